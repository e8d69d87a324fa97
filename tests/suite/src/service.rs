//! A service of a world, and a client that speaks just enough HTTP.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::{Child, Stdio};
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
pub struct Service<'a> {
    world: &'a World,
    child: Child,
    port: u16,
    config: PathBuf,
    workspace: PathBuf,
}

impl<'a> Service<'a> {
    /// Starts it and waits until a probe sandbox has run.
    pub fn start(world: &'a World) -> Result<Self> {
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
            world,
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
        self.child = Self::spawn(self.world, &self.config)?;
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
        let token = fs::read_to_string(self.workspace.join(".xbin/token")).unwrap_or_default();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let text = body.map(Value::to_string).unwrap_or_default();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
            self.port,
            token.trim(),
            text.len()
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, rest) = answer.split_once("\r\n\r\n").context("no header")?;
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        Ok((
            status,
            serde_json::from_str(rest).unwrap_or_else(|_| rest.into()),
        ))
    }
}

impl Drop for Service<'_> {
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
