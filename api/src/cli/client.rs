//! Commands that ask a running service: `login` and `session`. They read the owner token, so they
//! are for root and the service user.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use super::{CliError, Invocation, output};
use crate::auth::token;
use crate::config::Config;

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

/// Returns whose sockets listen on a port, from the text of `/proc/net/tcp` (`proc_net(5)`).
fn listeners(table: &str, port: u16) -> impl Iterator<Item = u32> {
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    table.lines().filter_map(move |line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, state) = (fields.next()?, fields.nth(1)?);
        let uid = fields.nth(3)?.parse().ok()?;
        (local.ends_with(&port) && state == LISTEN).then_some(uid)
    })
}

/// The running service, with the right to ask it.
struct Service {
    address: SocketAddr,
    /// The service user.
    owner: u32,
    host: String,
    token: String,
}

impl Service {
    fn of(config: &Config) -> Result<Self, CliError> {
        let workspace = config.workspace.as_ref().ok_or_else(|| {
            CliError::Usage("name the service's workspace: --workspace DIR".to_owned())
        })?;
        let secret = token::read(Path::new(workspace.as_str()))?;
        let owner = std::fs::metadata(workspace.as_str())
            .map_err(|error| CliError::Failed(format!("cannot look at the workspace: {error}")))?
            .uid();
        let mut address = config.listen;
        if address.ip().is_unspecified() {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        Ok(Self {
            address,
            owner,
            host: config.listen.to_string(),
            token: secret.expose().to_owned(),
        })
    }

    /// Sends one request and returns its JSON answer.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, CliError> {
        self.check_listener()?;
        let answer = self
            .exchange(method, path, &body.to_string())
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

    /// Refuses to give the owner token to somebody else's program: while the service is down, any
    /// user may listen on its port.
    fn check_listener(&self) -> Result<(), CliError> {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            // A host without IPv6 has no second one.
            let Ok(text) = std::fs::read_to_string(table) else {
                continue;
            };
            if listeners(&text, self.address.port()).any(|uid| uid != 0 && uid != self.owner) {
                return Err(CliError::Failed(format!(
                    "another user's program listens on {}; the owner token was not sent",
                    self.address
                )));
            }
        }
        Ok(())
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.host,
            self.token,
            body.len(),
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_listener_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(listeners(&table, port).collect::<Vec<_>>(), [own]);
        drop(listener);
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        assert_eq!(listeners(&table, port).count(), 0);
    }
}
