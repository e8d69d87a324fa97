//! Running programs with a deadline.

use std::io::{Read, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// How often an ended child is looked for.
const TICK: Duration = Duration::from_millis(5);

/// What a program said and how it ended.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// From start to end.
    pub took: Duration,
}

impl Output {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The exit status, or 128 and the signal.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Itself when the status was 0.
    pub fn success(self) -> Result<Self> {
        ensure!(
            self.status.success(),
            "exit {}\nstdout: {:.2000}\nstderr: {:.4000}",
            self.code(),
            self.text(),
            self.errors()
        );
        Ok(self)
    }

    /// Standard output as JSON.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.stdout).with_context(|| {
            format!(
                "exit {}\nstdout: {:.2000}\nstderr: {:.2000}",
                self.code(),
                self.text(),
                self.errors()
            )
        })
    }
}

/// Runs a program to its end; one that takes longer than `deadline` is killed and is a failure.
pub fn run(command: &mut Command, deadline: Duration) -> Result<Output> {
    run_with_input(command, &[], deadline)
}

/// As [`run`], with these bytes on standard input.
pub fn run_with_input(command: &mut Command, input: &[u8], deadline: Duration) -> Result<Output> {
    let started = Instant::now();
    let stdin = if input.is_empty() {
        Stdio::null()
    } else {
        Stdio::piped()
    };
    let mut child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {command:?}"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let writer = child.stdin.take();
    let (status, stdout, stderr) = std::thread::scope(|scope| -> Result<_> {
        let stdout = scope.spawn(move || drain(stdout));
        let stderr = scope.spawn(move || drain(stderr));
        scope.spawn(move || {
            if let Some(mut pipe) = writer {
                // A program that does not read its input is no failure of the caller.
                let _closed = pipe.write_all(input);
            }
        });
        let status = wait(&mut child, deadline)?;
        let (Ok(stdout), Ok(stderr)) = (stdout.join(), stderr.join()) else {
            bail!("reader panicked");
        };
        Ok((status, stdout, stderr))
    })?;
    Ok(Output {
        status,
        stdout,
        stderr,
        took: started.elapsed(),
    })
}

/// Waits for a child; kills it when `deadline` has passed.
pub fn wait(child: &mut Child, deadline: Duration) -> Result<ExitStatus> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if started.elapsed() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("did not end within {deadline:?}");
        }
        std::thread::sleep(TICK);
    }
}

/// Waits until `holds` says so.
pub fn eventually(deadline: Duration, what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let started = Instant::now();
    while !holds() {
        ensure!(
            started.elapsed() < deadline,
            "not within {deadline:?}: {what}"
        );
        std::thread::sleep(TICK);
    }
    Ok(())
}

fn drain(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What was read before an error is what the test looks at.
        let _broken = pipe.read_to_end(&mut bytes);
    }
    bytes
}
