//! From a wire request to a run that can be planned. Pure: nothing is looked up.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_bundles::{
    Argv, ArgvError, CpuMillis, Environment, EnvironmentError, LimitError, Limits, MemoryBytes,
    Pids, SandboxPath,
};
use serde_json::Value;

use super::wire::{ExecRequest, LimitsRequest, NetRequest, Stdin};
use crate::error::{ApiError, ErrorKind};
use crate::term::control::Net;

/// A command run without its place and its base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPlan {
    /// The command.
    pub argv: Argv,
    /// Name of the base; `None` for the configured one.
    pub base: Option<String>,
    /// Working directory; `None` for the profile's own.
    pub cwd: Option<SandboxPath>,
    /// Variables besides the fixed ones.
    pub environment: Environment,
    /// Standard input; empty for none.
    pub stdin: Vec<u8>,
    /// What it may take.
    pub limits: Limits,
    /// From start to the end at the latest.
    pub timeout_ms: u64,
    /// Bytes kept of standard output.
    pub stdout_bytes: u32,
    /// Bytes kept of standard error.
    pub stderr_bytes: u32,
}

const DEFAULT_TIMEOUT_MS: u64 = 60_000;
const DEFAULT_KEPT: u64 = 1 << 20;
/// Ceilings of what a caller may ask for.
const MAX_TIMEOUT_MS: u64 = 3_600_000;
const MAX_PIDS: u64 = 4096;
const MAX_MEMORY: u64 = 16 << 30;
const MAX_CPU: u64 = 64_000;
const MAX_KEPT: u64 = 16 << 20;

/// Directories that a working directory may be or lie in (PSBX-09).
const CWD_ROOTS: [&str; 4] = ["/workspace", "/input", "/output", "/tmp"];

impl RunPlan {
    /// Parses a request.
    pub fn parse(request: ExecRequest) -> Result<Self, ApiError> {
        refuse_unsupported(&request)?;
        check_network(request.net.as_ref())?;
        let limits = &request.limits;
        Ok(Self {
            argv: Argv::parse(request.argv).map_err(|error| bad_argv(&error))?,
            base: request.base,
            cwd: parse_cwd(request.cwd)?,
            environment: Environment::parse(request.env).map_err(|error| bad_env(&error))?,
            stdin: parse_stdin(request.stdin)?,
            limits: parse_limits(limits)?,
            timeout_ms: within(
                "timeout_ms",
                limits.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS),
                1,
                MAX_TIMEOUT_MS,
            )?,
            stdout_bytes: kept("stdout_bytes", limits.stdout_bytes)?,
            stderr_bytes: kept("stderr_bytes", limits.stderr_bytes)?,
        })
    }
}

fn refused(code: &str, message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorKind::Refused, code, message)
}

fn refuse_unsupported(request: &ExecRequest) -> Result<(), ApiError> {
    let fields: [(&str, &Option<Value>, &str); 7] = [
        ("tty", &request.tty, "open a terminal on a tile instead"),
        ("files", &request.files, "pass the input on stdin"),
        ("commit", &request.commit, "/output is deleted with the run"),
        (
            "on_failure",
            &request.on_failure,
            "/output is deleted with the run",
        ),
        (
            "assets",
            &request.assets,
            "name a base that has the program",
        ),
        ("session", &request.session, "pass the input on stdin"),
        (
            "yield_time_ms",
            &request.yield_time_ms,
            "send Prefer: wait=N instead",
        ),
    ];
    match fields.into_iter().find(|(_, value, _)| value.is_some()) {
        Some((name, _, instead)) => Err(refused(
            "PLAN_NOT_SUPPORTED",
            format!("{name} is not supported; {instead}"),
        )),
        None => Ok(()),
    }
}

fn check_network(net: Option<&NetRequest>) -> Result<(), ApiError> {
    let Some(net) = net else { return Ok(()) };
    match net.scope {
        Net::None if net.allow.is_none() => Ok(()),
        Net::None => Err(refused(
            "PLAN_NOT_SUPPORTED",
            "net.allow needs network scope internet",
        )),
        Net::Host => Err(refused(
            "PLAN_NET_SCOPE",
            "network scope host is only for `casemate run` as root; ask for none",
        )),
        Net::Internet => Err(ApiError::unavailable(
            &"net.internet",
            "network scope internet is not available; ask for none",
        )),
    }
}

fn bad_argv(error: &ArgvError) -> ApiError {
    refused("PLAN_BAD_ARGV", error.to_string())
}

fn bad_env(error: &EnvironmentError) -> ApiError {
    let code = match error {
        EnvironmentError::Reserved(_) => "PLAN_RESERVED_ENV",
        EnvironmentError::Name(_) | EnvironmentError::Nul(_) | EnvironmentError::TooLarge(_) => {
            "PLAN_BAD_ENV"
        }
    };
    refused(code, error.to_string())
}

fn parse_cwd(cwd: Option<String>) -> Result<Option<SandboxPath>, ApiError> {
    let bad = |message: String| refused("PLAN_BAD_CWD", message);
    let Some(cwd) = cwd else { return Ok(None) };
    let cwd = SandboxPath::parse(cwd).map_err(|error| bad(error.to_string()))?;
    let allowed = CWD_ROOTS.iter().any(|root| {
        let rest = cwd.as_str().strip_prefix(root);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    if allowed {
        Ok(Some(cwd))
    } else {
        Err(bad(format!(
            "cwd {cwd} is not below {}",
            CWD_ROOTS.join(", ")
        )))
    }
}

fn parse_stdin(stdin: Option<Stdin>) -> Result<Vec<u8>, ApiError> {
    match stdin {
        None => Ok(Vec::new()),
        Some(Stdin::Text(text)) => Ok(text.into_bytes()),
        Some(Stdin::Base64(text)) => STANDARD
            .decode(text)
            .map_err(|error| ApiError::invalid(format!("stdin.base64: {error}"))),
    }
}

fn parse_limits(limits: &LimitsRequest) -> Result<Limits, ApiError> {
    let default = Limits::RUN;
    let bad = |error: LimitError| refused("PLAN_LIMIT_OUT_OF_RANGE", error.to_string());
    let memory = limits.memory_bytes.unwrap_or_else(|| default.memory.get());
    let pids = limits.pids.unwrap_or_else(|| default.pids.get());
    let cpu = limits.cpu_millis.unwrap_or_else(|| default.cpu.get());
    Ok(Limits {
        memory: MemoryBytes::parse(within("memory_bytes", memory, 0, MAX_MEMORY)?).map_err(bad)?,
        pids: Pids::parse(within("pids", pids, 0, MAX_PIDS)?).map_err(bad)?,
        cpu: CpuMillis::parse(within("cpu_millis", cpu, 0, MAX_CPU)?).map_err(bad)?,
    })
}

fn kept(name: &str, bytes: Option<u64>) -> Result<u32, ApiError> {
    let bytes = within(name, bytes.unwrap_or(DEFAULT_KEPT), 0, MAX_KEPT)?;
    u32::try_from(bytes).map_err(ApiError::internal)
}

fn within(name: &str, value: u64, min: u64, max: u64) -> Result<u64, ApiError> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(refused(
            "PLAN_LIMIT_OUT_OF_RANGE",
            format!("limits.{name} {value} is outside {min} to {max}"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(body: &Value) -> Result<RunPlan, ApiError> {
        let request: ExecRequest = serde_json::from_value(body.clone())
            .map_err(|error| ApiError::invalid(error.to_string()))?;
        RunPlan::parse(request)
    }

    #[test]
    fn defaults_are_those_of_the_conventions() {
        let plan = parse(&json!({"argv": ["true"]})).unwrap();
        assert_eq!(plan.limits, Limits::RUN);
        assert_eq!((plan.timeout_ms, plan.stdout_bytes), (60_000, 1 << 20));
        assert_eq!((plan.cwd, plan.stdin.len()), (None, 0));
    }

    #[test]
    fn each_malformed_request_has_one_typed_error() {
        let long = "x".repeat(131_072);
        for (body, code) in [
            (json!({}), "INVALID_INPUT"),
            (json!([]), "INVALID_INPUT"),
            (json!({"argv": "ls -l"}), "INVALID_INPUT"),
            (json!({"argv": ["ls", 1]}), "INVALID_INPUT"),
            (json!({"argv": ["ls"], "command": "x"}), "INVALID_INPUT"),
            (
                json!({"argv": ["ls"], "limits": {"memory": 1}}),
                "INVALID_INPUT",
            ),
            (
                json!({"argv": ["ls"], "limits": {"pids": -1}}),
                "INVALID_INPUT",
            ),
            (
                json!({"argv": ["ls"], "limits": {"pids": 1.5}}),
                "INVALID_INPUT",
            ),
            (json!({"argv": ["ls"], "stdin": "x"}), "INVALID_INPUT"),
            (
                json!({"argv": ["ls"], "stdin": {"text": "a", "base64": "b"}}),
                "INVALID_INPUT",
            ),
            (
                json!({"argv": ["ls"], "stdin": {"base64": "?"}}),
                "INVALID_INPUT",
            ),
            (json!({"argv": ["ls"], "env": {"A": 1}}), "INVALID_INPUT"),
            (
                json!({"argv": ["ls"], "net": {"scope": "lan"}}),
                "INVALID_INPUT",
            ),
            (json!({"argv": ["ls"], "net": {}}), "INVALID_INPUT"),
            (json!({"argv": []}), "PLAN_BAD_ARGV"),
            (json!({"argv": [""]}), "PLAN_BAD_ARGV"),
            (json!({"argv": ["a\u{0}b"]}), "PLAN_BAD_ARGV"),
            (json!({"argv": ["echo", long]}), "PLAN_BAD_ARGV"),
            (json!({"argv": ["ls"], "cwd": "tmp"}), "PLAN_BAD_CWD"),
            (json!({"argv": ["ls"], "cwd": "/"}), "PLAN_BAD_CWD"),
            (json!({"argv": ["ls"], "cwd": "/runtime"}), "PLAN_BAD_CWD"),
            (json!({"argv": ["ls"], "cwd": "/tmpx"}), "PLAN_BAD_CWD"),
            (
                json!({"argv": ["ls"], "cwd": "/tmp/../etc"}),
                "PLAN_BAD_CWD",
            ),
            (
                json!({"argv": ["ls"], "env": {"PATH": "/x"}}),
                "PLAN_RESERVED_ENV",
            ),
            (
                json!({"argv": ["ls"], "env": {"LD_PRELOAD": "/x"}}),
                "PLAN_RESERVED_ENV",
            ),
            (json!({"argv": ["ls"], "env": {"A=B": "x"}}), "PLAN_BAD_ENV"),
            (
                json!({"argv": ["ls"], "env": {"A": "\u{0}"}}),
                "PLAN_BAD_ENV",
            ),
            (
                json!({"argv": ["ls"], "limits": {"timeout_ms": 0}}),
                "PLAN_LIMIT_OUT_OF_RANGE",
            ),
            (
                json!({"argv": ["ls"], "limits": {"pids": 1}}),
                "PLAN_LIMIT_OUT_OF_RANGE",
            ),
            (
                json!({"argv": ["ls"], "limits": {"pids": 5000}}),
                "PLAN_LIMIT_OUT_OF_RANGE",
            ),
            (
                json!({"argv": ["ls"], "limits": {"memory_bytes": 1}}),
                "PLAN_LIMIT_OUT_OF_RANGE",
            ),
            (
                json!({"argv": ["ls"], "limits": {"stdout_bytes": 1_u64 << 30}}),
                "PLAN_LIMIT_OUT_OF_RANGE",
            ),
            (
                json!({"argv": ["ls"], "tty": {"cols": 80}}),
                "PLAN_NOT_SUPPORTED",
            ),
            (json!({"argv": ["ls"], "files": []}), "PLAN_NOT_SUPPORTED"),
            (
                json!({"argv": ["ls"], "commit": "auto"}),
                "PLAN_NOT_SUPPORTED",
            ),
            (
                json!({"argv": ["ls"], "on_failure": "commit"}),
                "PLAN_NOT_SUPPORTED",
            ),
            (json!({"argv": ["ls"], "assets": []}), "PLAN_NOT_SUPPORTED"),
            (
                json!({"argv": ["ls"], "session": "ses_x"}),
                "PLAN_NOT_SUPPORTED",
            ),
            (
                json!({"argv": ["ls"], "yield_time_ms": 5}),
                "PLAN_NOT_SUPPORTED",
            ),
            (
                json!({"argv": ["ls"], "net": {"scope": "none", "allow": []}}),
                "PLAN_NOT_SUPPORTED",
            ),
            (
                json!({"argv": ["ls"], "net": {"scope": "host"}}),
                "PLAN_NET_SCOPE",
            ),
            (
                json!({"argv": ["ls"], "net": {"scope": "internet"}}),
                "SANDBOX_UNAVAILABLE",
            ),
        ] {
            let error = parse(&body).unwrap_err();
            assert_eq!(error.code, code, "{body}");
        }
        let error = parse(&json!({"argv": ["echo", long]})).unwrap_err();
        assert!(error.message.contains("131072") && error.message.contains("stdin"));
    }
}
