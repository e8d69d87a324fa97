//! Debian's `docker-registry` on loopback, with a configuration and storage of its own.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use crate::world::World;

pub(crate) struct Server {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub(crate) host: String,
}

/// How a registry is set up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Setup {
    Open,
    /// The user `user` with the password `pass:word`.
    Password,
    /// TLS with a certificate of its own authority, `ca.pem`.
    Tls,
}

impl Server {
    pub(crate) fn start(world: &World, setup: Setup) -> Self {
        let extra = match setup {
            Setup::Open => String::new(),
            Setup::Password => {
                let line = world.tool("htpasswd", &["-Bbn", "user", "pass:word"]);
                std::fs::write(world.path("htpasswd"), line).unwrap();
                let path = world.text("htpasswd");
                format!("auth: {{htpasswd: {{realm: test, path: {path}}}}}\n")
            }
            Setup::Tls => String::new(),
        };
        let tls = if matches!(setup, Setup::Tls) {
            certificate(world);
            let (certificate, key) = (world.text("ca.pem"), world.text("key.pem"));
            format!(", tls: {{certificate: {certificate}, key: {key}}}")
        } else {
            String::new()
        };
        let storage = world.text("registry");
        let config = format!(
            "version: 0.1\nlog: {{level: info, accesslog: {{disabled: true}}}}\n\
             storage: {{filesystem: {{rootdirectory: {storage}}}}}\n\
             http: {{addr: '127.0.0.1:0', secret: x{tls}}}\n{extra}"
        );
        std::fs::write(world.path("registry.yml"), config).unwrap();
        let mut child = Command::new("docker-registry")
            .arg("serve")
            .arg(world.path("registry.yml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let host = loop {
            let line = lines.next().expect("docker-registry listens").unwrap();
            if let Some((_, rest)) = line.split_once("listening on ") {
                let end = rest.find(['"', ',', ' ']).unwrap_or(rest.len());
                break rest[..end].to_owned();
            }
        };
        // Nobody waits for the rest of what it says, but it must be able to say it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, host }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn certificate(world: &World) {
    world.tool(
        "openssl",
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=test",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-keyout",
            "key.pem",
            "-out",
            "ca.pem",
        ],
    );
}
