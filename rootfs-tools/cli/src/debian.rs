//! `rootfs-tools build`: a Debian base made by mmdebstrap.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use casemate_rootfs::BaseName;
use rustix::process::{Pid, Signal};

use crate::command::BuildOptions;
use crate::listing::Output;
use crate::progress::Progress;

/// What every base has beside the variant's packages: a shell and what a person at a terminal
/// reaches for first. coreutils, tar and apt are in every variant.
const PACKAGES: [&str; 6] = [
    "bash",
    "ca-certificates",
    "git",
    "iproute2",
    "less",
    "procps",
];

/// Commands that run in the finished tree, which is `$1`. mmdebstrap copies both files from the
/// host: a base must not depend on where it was built. The sandbox mounts its own resolv.conf.
const CUSTOMIZE: [&str; 2] = [
    r#"printf 'casemate\n' > "$1/etc/hostname""#,
    r#"rm -f "$1/etc/resolv.conf" && : > "$1/etc/resolv.conf""#,
];

/// Exit code of unshare(1) when there is no such program.
const NOT_FOUND: i32 = 127;

/// Last lines of mmdebstrap that are shown when it fails.
const SHOWN_LINES: usize = 12;

/// Why a base was not built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    /// The program is not there.
    #[error("mmdebstrap is not installed; install it with `apt-get install mmdebstrap`")]
    Missing,
    /// Building needs to change owners.
    #[error("a base is built by root; run this as root")]
    NotRoot,
    /// The program could not be started.
    #[error("cannot start mmdebstrap through unshare")]
    Start(#[source] io::Error),
    /// It failed; its last lines say why.
    #[error("mmdebstrap failed ({status}); it said:\n{said}")]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// Its last lines.
        said: String,
    },
}

/// Builds a base and imports it.
pub(crate) fn run(root: &Path, options: &BuildOptions, output: Output) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(BuildError::NotRoot.into());
    }
    let name = match &options.name {
        Some(name) => name.clone(),
        None => default_name(&options.suite)?,
    };
    let progress = Mutex::new(Progress::new(output.is_json(), None));
    let (mut build, messages) = Build::start(options)?;
    let imported = thread::scope(|scope| {
        let said = scope.spawn(|| relay(messages, &progress));
        let mut step = |step| lock(&progress).step(step);
        let imported = crate::import::import(root, &name, &mut build, &mut step);
        build.stop();
        let said = said.join().unwrap_or_default();
        match build.status {
            // Why the build failed says more than that there is no archive.
            Some(status) if status.code() == Some(NOT_FOUND) => Err(BuildError::Missing.into()),
            Some(status) if !status.success() && build.failed => {
                Err(BuildError::Failed { status, said }.into())
            }
            _ => imported,
        }
    });
    output.imported(&imported?)
}

/// A running mmdebstrap. Reading gives its archive and fails where mmdebstrap fails, so that an
/// import of a failed build is never completed.
#[derive(Debug)]
struct Build {
    child: Child,
    archive: ChildStdout,
    /// Set when it has ended.
    status: Option<ExitStatus>,
    /// Whether it ended by itself and failed.
    failed: bool,
}

impl Build {
    fn start(options: &BuildOptions) -> Result<(Self, ChildStderr), BuildError> {
        let mut command = command(options);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(BuildError::Start)?;
        let (Some(archive), Some(messages)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(BuildError::Start(io::Error::from(
                io::ErrorKind::BrokenPipe,
            )));
        };
        Ok((
            Self {
                child,
                archive,
                status: None,
                failed: false,
            },
            messages,
        ))
    }

    /// Ends mmdebstrap where it still runs: it removes its mounts and files itself.
    fn stop(&mut self) {
        if self.status.is_none() {
            let pid = Pid::from_child(&self.child);
            // It may have ended just now; and its end has no message any more: the import's error
            // is the one to report.
            if rustix::process::kill_process(pid, Signal::TERM).is_ok() {
                drop(self.child.wait());
            }
        }
    }
}

impl Read for Build {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.archive.read(buffer)?;
        if count == 0 && !buffer.is_empty() {
            let status = self.child.wait()?;
            self.status = Some(status);
            if !status.success() {
                self.failed = true;
                return Err(io::Error::other("mmdebstrap failed"));
            }
        }
        Ok(count)
    }
}

fn command(options: &BuildOptions) -> Command {
    // In a mount namespace of its own: what it mounts goes with it, also when it is killed.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "mmdebstrap"]);
    command.arg(format!("--variant={}", options.variant.as_str()));
    command.arg(format!(
        "--include={}",
        packages(&options.include).join(",")
    ));
    for hook in CUSTOMIZE {
        command.arg(format!("--customize-hook={hook}"));
    }
    command.args([options.suite.as_str(), "-"]);
    command.args(&options.mirror);
    command
        .env("LC_ALL", "C.UTF-8")
        .env("SOURCE_DATE_EPOCH", epoch());
    command
}

fn packages(more: &[String]) -> Vec<&str> {
    PACKAGES
        .into_iter()
        .chain(more.iter().map(String::as_str))
        .collect()
}

/// Returns the newest time that files of the base have: the caller's, or the begin of this day,
/// so that two builds of one day from one mirror are the same base.
fn epoch() -> String {
    const DAY: u64 = 86_400;
    std::env::var("SOURCE_DATE_EPOCH").unwrap_or_else(|_| {
        // A clock before 1970 counts as 1970.
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        (now / DAY * DAY).to_string()
    })
}

fn default_name(suite: &str) -> Result<BaseName, casemate_rootfs::NameError> {
    BaseName::parse(match suite {
        "bookworm" => "debian12",
        "trixie" => "debian13",
        other => other,
    })
}

/// Shows what mmdebstrap says. Returns its last lines.
fn relay(messages: ChildStderr, progress: &Mutex<Progress>) -> String {
    let mut last = VecDeque::new();
    for line in BufReader::new(messages).split(b'\n') {
        // A pipe that cannot be read is at its end.
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if let Some(text) = line.strip_prefix("I: ") {
            lock(progress).text(text);
        }
        last.push_back(line);
        if last.len() > SHOWN_LINES {
            last.pop_front();
        }
    }
    Vec::from(last).join("\n")
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    // A panic while a line was printed leaves nothing half done.
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::command::{Arguments, Command as Typed};

    #[test]
    fn mmdebstrap_gets_packages_suite_and_mirror() {
        let typed = Arguments::try_parse_from([
            "rootfs-tools",
            "build",
            "--suite=bookworm",
            "--include=jq,gdb",
            "--include=strace",
            "--mirror=http://127.0.0.1:1/debian",
        ])
        .unwrap();
        let Typed::Build(options) = typed.command else {
            panic!("not build")
        };
        let command = command(&options);
        let arguments: Vec<_> = command.get_args().map(|a| a.to_str().unwrap()).collect();
        assert_eq!(
            arguments[..5],
            [
                "--mount",
                "--propagation=private",
                "mmdebstrap",
                "--variant=minbase",
                "--include=bash,ca-certificates,git,iproute2,less,procps,jq,gdb,strace"
            ]
        );
        assert_eq!(
            arguments[7..],
            ["bookworm", "-", "http://127.0.0.1:1/debian"]
        );
        assert_eq!(default_name(&options.suite).unwrap().as_str(), "debian12");
    }
}
