//! A service of a world, and a client that speaks just enough HTTP.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::command::{eventually, wait};
use crate::workspace::SERVICE;
use crate::world::{BASE, SLICES, World};

/// How long a service may take until it is ready.
const READY: Duration = Duration::from_mins(1);
/// How long one request may take.
const PATIENCE: Duration = Duration::from_mins(2);

/// A running service with a workspace of its own.
#[derive(Debug)]
pub struct Service {
    world: Arc<World>,
    child: Child,
    port: u16,
    config: PathBuf,
    workspace: PathBuf,
}

impl Service {
    /// Starts it and waits until a probe sandbox has run.
    pub fn start(world: &Arc<World>) -> Result<Self> {
        let workspace = world.path("service");
        for (name, mode) in [
            ("", 0o700),
            ("apps", 0o755),
            ("homes", 0o755),
            ("data", 0o700),
            (".xbin", 0o700),
        ] {
            let path = workspace.join(name);
            fs::create_dir_all(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            chown(&path, Some(SERVICE), Some(SERVICE))?;
        }
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let config = world.path("service.toml");
        let text = format!(
            "root = \"{}\"\nrun_dir = \"{}\"\nworkspace = \"{}\"\nlisten = \"127.0.0.1:{port}\"\n\
             service_user = \"{SERVICE}\"\nbase = \"{BASE}\"\n[ids]\nfirst = {}\nslices = {SLICES}\n",
            world.root.display(),
            world.run_dir.display(),
            workspace.display(),
            world.first_id
        );
        fs::write(&config, text)?;
        let child = Self::spawn(world, &config)?;
        let service = Self {
            world: Arc::clone(world),
            child,
            port,
            config,
            workspace,
        };
        service.ready()?;
        Ok(service)
    }

    fn spawn(world: &World, config: &PathBuf) -> Result<Child> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(world.path("service.log"))?;
        let mut command = world.programs.command("casemate");
        command.arg("--config").arg(config).arg("serve");
        Ok(command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?)
    }

    fn ready(&self) -> Result<()> {
        eventually(READY, "the service is ready", || {
            self.request("GET", "/readyz", None)
                .is_ok_and(|(status, _)| status == 200)
        })
        .with_context(|| {
            let log = fs::read_to_string(self.world.path("service.log")).unwrap_or_default();
            log.chars()
                .rev()
                .take(2000)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect::<String>()
        })
    }

    /// The process id of the service.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it without warning and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        self.child.kill()?;
        wait(&mut self.child, PATIENCE)?;
        self.child = Self::spawn(&self.world, &self.config)?;
        self.ready()
    }

    /// Runs a command through `POST /v1/exec`; the result.
    pub fn exec(&self, argv: &[&str]) -> Result<Value> {
        let (status, body) = self.request("POST", "/v1/exec", Some(&json!({ "argv": argv })))?;
        ensure!(status == 200, "{status} {body}");
        Ok(body)
    }

    /// One request as the owner.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let text = body.map(Value::to_string).unwrap_or_default();
        answer(self.send(method, path, "", &text)?)
    }

    /// Sends a request as the owner, with further header lines; the answer is still to be read.
    pub fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Result<TcpStream> {
        let token = fs::read_to_string(self.workspace.join(".xbin/token")).unwrap_or_default();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n{headers}\
             Connection: close\r\n\r\n",
            self.port,
            token.trim(),
            body.len()
        )?;
        // A body that is refused by its length is answered before it is sent.
        let _refused = stream.write_all(body.as_bytes());
        Ok(stream)
    }
}

/// Reads an answer to its end: status and body, a string where it is no JSON.
pub fn answer(mut stream: TcpStream) -> Result<(u16, Value)> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // The rest of a refused body that nobody reads resets the connection after the answer.
        Err(error) if error.kind() == ErrorKind::ConnectionReset && !answer.is_empty() => {}
        read => drop(read?),
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, rest) = answer.split_once("\r\n\r\n").context("no header")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    let body = serde_json::from_str(rest).unwrap_or_else(|_no_json| rest.into());
    Ok((status, body))
}

impl Drop for Service {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended by itself, which its test has seen.
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ended = wait(&mut self.child, Duration::from_secs(20));
    }
}
