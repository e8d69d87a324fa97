//! A package mirror on 127.0.0.1 with one package in it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::command::run;

const PATIENCE: Duration = Duration::from_mins(1);

/// A mirror that serves a flat repository (`deb http://127.0.0.1:PORT ./`) until the test ends.
#[derive(Debug)]
pub struct Mirror {
    /// Where it listens.
    pub port: u16,
    /// The package file.
    pub package: PathBuf,
}

impl Mirror {
    /// Builds the package `hello` and serves it.
    pub fn start(dir: &Path) -> Result<Self> {
        let files = dir.join("mirror");
        fs::create_dir_all(&files)?;
        let package = build(dir, &files)?;
        let port = serve_directory(files)?;
        Ok(Self { port, package })
    }
}

/// Serves the files of a directory on 127.0.0.1 until the test ends; returns the port.
pub fn serve_directory(files: PathBuf) -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // A client that goes away is its own affair.
            let _served = serve(&files, connection);
        }
    });
    Ok(port)
}

fn build(dir: &Path, files: &Path) -> Result<PathBuf> {
    let tree = dir.join("hello");
    fs::create_dir_all(tree.join("DEBIAN"))?;
    fs::create_dir_all(tree.join("usr/bin"))?;
    let control = "Package: hello\nVersion: 2.10-3\nArchitecture: all\nPriority: optional\n\
                   Section: devel\nMaintainer: Nobody <nobody@localhost>\nDescription: greeting\n";
    fs::write(tree.join("DEBIAN/control"), control)?;
    // A maintainer script changes owners and modes, as real ones do.
    let script =
        "#!/bin/sh\nset -e\nchown games:games /usr/bin/hello\nchown root:root /usr/bin/hello\n";
    fs::write(tree.join("DEBIAN/postinst"), script)?;
    fs::write(
        tree.join("usr/bin/hello"),
        "#!/bin/sh\necho 'Hello, world!'\n",
    )?;
    for name in ["DEBIAN/postinst", "usr/bin/hello"] {
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(0o755))?;
    }
    let package = files.join("hello.deb");
    let mut command = Command::new("dpkg-deb");
    command
        .args(["--root-owner-group", "--build"])
        .arg(&tree)
        .arg(&package);
    run(&mut command, PATIENCE)?.success()?;
    let sum = run(Command::new("sha256sum").arg(&package), PATIENCE)?
        .success()?
        .text();
    let digest = sum.split_whitespace().next().context("no digest")?;
    let size = fs::metadata(&package)?.len();
    let index = format!("{control}Filename: ./hello.deb\nSize: {size}\nSHA256: {digest}\n");
    fs::write(files.join("Packages"), index)?;
    Ok(package)
}

fn serve(files: &Path, connection: TcpStream) -> Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut writer = connection;
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut header = String::from("-");
        while !header.trim().is_empty() {
            header.clear();
            reader.read_line(&mut header)?;
        }
        let path = first.split(' ').nth(1).unwrap_or_default();
        // What apt encodes in the names of packages.
        let name = path
            .trim_start_matches('/')
            .replace("%2b", "+")
            .replace("%3a", ":")
            .replace("%7e", "~");
        match fs::read(files.join(&name)) {
            Ok(body) if !name.contains("..") => {
                write!(
                    writer,
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                )?;
                writer.write_all(&body)?;
            }
            Ok(_) | Err(_) => {
                writer.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            }
        }
    }
}
