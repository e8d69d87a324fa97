//! `casemate exec`: a command run of the running service, by `POST /v1/exec`.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::Service;
use super::{CliError, Invocation, output, parse};

/// Time limit that the service gives a run that names none.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(1);
/// What the service may take besides the run's own time.
const SLACK: Duration = Duration::from_secs(30);
/// Most standard input: a request's body is at most 1 MiB, and this is written in base64.
const MAX_INPUT: u64 = 700 << 10;

/// Runs a command in a sandbox of the running service; needs the owner token, so root or the
/// service user.
///
/// The exit status is that of `casemate run`. When this program ends before the command, the
/// command is cancelled.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Arguments {
    /// Name of the base image [default: the service's]
    #[arg(long, value_name = "NAME")]
    base: Option<String>,
    /// Time limit, as 500ms, 60s, 5m or 2h [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    timeout: Option<Duration>,
    /// Memory with its tmpfs, as 512M or 2G [default: 512M]
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    memory: Option<u64>,
    /// Tasks [default: 128]
    #[arg(long, value_name = "N")]
    pids: Option<u64>,
    /// Processors, as 2 or 0.5 [default: 1]
    #[arg(long, value_name = "N", value_parser = parse::processors)]
    cpus: Option<u64>,
    /// A variable for the command; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse::variable)]
    env: Vec<(String, String)>,
    /// Working directory inside the sandbox [default: /tmp]
    #[arg(long, value_name = "PATH")]
    cwd: Option<String>,
    /// Send standard input, at most 700 KiB; without it the command has none
    #[arg(long)]
    stdin: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// The command and its arguments, after `--`; looked up in the sandbox
    #[arg(last = true, value_name = "ARGV", required = true)]
    argv: Vec<String>,
}

/// What of the result decides status and output.
#[derive(Debug, Deserialize)]
struct Ended {
    outcome: String,
    exit_code: Option<u8>,
    signal: Option<u8>,
    stdout: String,
    stderr: String,
    encoding: String,
}

pub(super) fn run(invocation: &Invocation, arguments: Arguments) -> Result<ExitCode, CliError> {
    let service = Service::of(&invocation.config)?;
    let json = arguments.json;
    let patience = arguments.timeout.unwrap_or(DEFAULT_TIMEOUT) + SLACK;
    let body = arguments.body()?;
    let result = service.ask_within(patience, "POST", "/v1/exec", &body)?;
    if json {
        output::write_json(&result)?;
    }
    let ended: Ended = serde_json::from_value(result)
        .map_err(|error| CliError::Failed(format!("the service's result is malformed: {error}")))?;
    if !json {
        ended.show()?;
    }
    Ok(ExitCode::from(ended.status()))
}

impl Arguments {
    /// Returns the request; what is not said is left to the service.
    fn body(self) -> Result<Value, CliError> {
        let mut env = BTreeMap::new();
        for (name, value) in self.env {
            if env.insert(name.clone(), value).is_some() {
                return Err(CliError::Usage(format!("--env {name} is given twice")));
            }
        }
        let timeout_ms = self.timeout.map(|time| time.as_millis());
        let timeout_ms = timeout_ms.and_then(|time| u64::try_from(time).ok());
        let mut body = json!({
            "argv": self.argv,
            "base": self.base,
            "cwd": self.cwd,
            "env": env,
            "limits": {
                "timeout_ms": timeout_ms,
                "memory_bytes": self.memory,
                "pids": self.pids,
                "cpu_millis": self.cpus,
            },
        });
        if let (true, Some(fields)) = (self.stdin, body.as_object_mut()) {
            let text = STANDARD.encode(read_input()?);
            fields.insert("stdin".to_owned(), json!({ "base64": text }));
        }
        Ok(body)
    }
}

fn read_input() -> Result<Vec<u8>, CliError> {
    let mut input = Vec::new();
    std::io::stdin()
        .take(MAX_INPUT + 1)
        .read_to_end(&mut input)
        .map_err(|source| CliError::System {
            operation: "read standard input",
            source,
        })?;
    if input.len() as u64 > MAX_INPUT {
        return Err(CliError::Usage(format!(
            "standard input is longer than {} KiB",
            MAX_INPUT >> 10
        )));
    }
    Ok(input)
}

impl Ended {
    /// Writes what is kept of both streams.
    fn show(&self) -> Result<(), CliError> {
        let (stdout, stderr) = (self.bytes(&self.stdout)?, self.bytes(&self.stderr)?);
        // Where standard error is closed there is nobody to tell.
        let _nobody = std::io::stderr().lock().write_all(&stderr);
        let mut out = std::io::stdout().lock();
        out.write_all(&stdout)
            .and_then(|()| out.flush())
            .map_err(CliError::Output)
    }

    fn bytes(&self, text: &str) -> Result<Vec<u8>, CliError> {
        match self.encoding.as_str() {
            "utf-8" => Ok(text.as_bytes().to_vec()),
            "base64" => STANDARD
                .decode(text)
                .map_err(|error| CliError::Failed(format!("the output is malformed: {error}"))),
            other => Err(CliError::Failed(format!("the output is in {other}"))),
        }
    }

    fn status(&self) -> u8 {
        match self.outcome.as_str() {
            "exited" => self.exit_code.unwrap_or(70),
            "signaled" => self.signal.and_then(|n| n.checked_add(128)).unwrap_or(255),
            "timed_out" | "idle_timed_out" => 124,
            "cancelled" => 130,
            "out_of_memory" => 137,
            _ => 70,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(outcome: &str, exit_code: Option<u8>, signal: Option<u8>) -> Ended {
        Ended {
            outcome: outcome.to_owned(),
            exit_code,
            signal,
            stdout: String::new(),
            stderr: String::new(),
            encoding: "utf-8".to_owned(),
        }
    }

    #[test]
    fn the_status_is_that_of_a_run() {
        for (result, status) in [
            (ended("exited", Some(7), None), 7),
            (ended("signaled", None, Some(9)), 137),
            (ended("timed_out", None, None), 124),
            (ended("cancelled", None, None), 130),
            (ended("out_of_memory", None, None), 137),
            (ended("lost", None, None), 70),
        ] {
            assert_eq!(result.status(), status, "{result:?}");
        }
    }
}
