//! Commands that ask a running service: `login` and `session`. They read the owner token, so they
//! are for root and the service user.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use casemate_sys::dir::Dir;
use clap::Subcommand;
use serde_json::{Value, json};

use super::{CliError, Invocation, output};
use crate::auth::token;
use crate::config::Config;
use crate::http::socket_path;
use crate::workspace::Workspace;

/// How long the service may take for one answer.
const PATIENCE: Duration = Duration::from_mins(1);

/// Verbs of `session`.
#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// List the sessions
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// End sessions with everything that runs in them
    Kill {
        /// Every session
        #[arg(long, conflicts_with = "session")]
        all: bool,
        /// Names, as `session ls` shows them
        #[arg(required_unless_present = "all", value_name = "SESSION")]
        session: Vec<String>,
    },
}

/// `casemate login`: prints a link that logs a browser in, once, within 10 minutes.
pub(super) fn login(invocation: &Invocation) -> Result<ExitCode, CliError> {
    let service = Service::of(&invocation.config)?;
    let minted = service.ask("POST", "/v1/auth/login-codes", &json!({}))?;
    let path = text(&minted, "path");
    output::write(&format!("http://{}{path}\n", invocation.config.listen))?;
    Ok(ExitCode::SUCCESS)
}

/// `casemate session`.
pub(super) fn session(
    invocation: &Invocation,
    command: SessionCommand,
) -> Result<ExitCode, CliError> {
    let service = Service::of(&invocation.config)?;
    match command {
        SessionCommand::Ls { json } => {
            let list = service.ask("GET", "/v1/sessions", &Value::Null)?;
            let text = if json {
                format!("{list}\n")
            } else {
                rows(&list).concat()
            };
            output::write(&text)?;
        }
        SessionCommand::Kill { all, session } => {
            let names = if all {
                let list = service.ask("GET", "/v1/sessions", &Value::Null)?;
                let living = sessions(&list).filter(|session| !has_ended(session));
                living.map(|session| text(session, "session")).collect()
            } else {
                session
            };
            for name in names {
                let valid = name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
                if !valid {
                    return Err(CliError::Usage(format!("{name:?} is no session")));
                }
                service.ask("DELETE", &format!("/v1/sessions/{name}"), &Value::Null)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn sessions(list: &Value) -> impl Iterator<Item = &Value> {
    list.get("sessions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// Returns a field of an answer as text; nothing where there is none.
fn text(answer: &Value, field: &str) -> String {
    let text = answer.get(field).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

fn has_ended(session: &Value) -> bool {
    session.get("ended").and_then(Value::as_bool) == Some(true)
}

fn rows(list: &Value) -> Vec<String> {
    sessions(list)
        .map(|session| {
            let [name, tile, user, net] =
                ["session", "tile", "user", "net"].map(|field| text(session, field));
            let clients = &session["clients"];
            let ended = if session["ended"] == true {
                "  ended"
            } else {
                ""
            };
            format!("{name}  {tile}  {user}  net {net}  clients {clients}{ended}\n")
        })
        .collect()
}

/// The running service, with the right to ask it. The owner token goes to the socket in the
/// service's own directory and to no port: while the service is down, any user may listen there.
pub(super) struct Service {
    private: Dir,
    address: SocketAddr,
    token: String,
}

impl Service {
    pub(super) fn of(config: &Config) -> Result<Self, CliError> {
        let path = config.workspace.as_ref().ok_or_else(|| {
            CliError::Usage("name the service's workspace: --workspace DIR".to_owned())
        })?;
        let secret = token::read(Path::new(path.as_str()))?;
        Ok(Self {
            private: Workspace::open(path)?.private_dir()?,
            address: config.listen,
            token: secret.expose().to_owned(),
        })
    }

    /// Sends one request and returns its JSON answer.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, CliError> {
        self.ask_within(PATIENCE, method, path, body)
    }

    /// Sends one request that may take so long, and returns its JSON answer.
    pub(super) fn ask_within(
        &self,
        patience: Duration,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<Value, CliError> {
        let answer = self
            .exchange(patience, method, path, &body.to_string())
            .map_err(|source| CliError::NoService {
                address: self.address,
                source,
            })?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .ok_or_else(|| CliError::Failed("the service's answer is not HTTP".to_owned()))?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        let body: Value = serde_json::from_str(body)
            .map_err(|_error| CliError::Failed("the service's answer is not JSON".to_owned()))?;
        if status == "200" {
            return Ok(body);
        }
        let error = body.get("error").unwrap_or(&Value::Null);
        Err(CliError::Refused {
            status: status.parse().unwrap_or(500),
            message: text(error, "message"),
        })
    }

    fn exchange(
        &self,
        patience: Duration,
        method: &str,
        path: &str,
        body: &str,
    ) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket_path(&self.private))?;
        stream.set_read_timeout(Some(patience))?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n\
             {body}",
            self.token,
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}
