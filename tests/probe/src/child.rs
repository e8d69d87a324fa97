//! Attempts in a process of their own, so that one may be killed, crash or hang without harm.

use crate::raw::{self, Errno, int, ptr, ptr_mut, sys};

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It said this.
    Said(String),
    /// It died by this signal before it said anything.
    Died(i32),
    /// It ended without a word.
    Silent(i32),
    /// It did not end; it was killed.
    Hung,
}

impl Ended {
    /// The outcome as one word.
    pub(crate) fn word(self) -> String {
        match self {
            Self::Said(text) => text,
            Self::Died(libc::SIGSEGV | libc::SIGBUS) => "crash".to_owned(),
            Self::Died(libc::SIGSYS) => "killed".to_owned(),
            Self::Died(signal) => format!("signal:{signal}"),
            Self::Silent(code) => format!("exit:{code}"),
            Self::Hung => "hung".to_owned(),
        }
    }
}

/// Forks. 0 in the child.
pub(crate) fn fork() -> Result<u64, Errno> {
    sys(libc::SYS_clone, &[int(libc::SIGCHLD)])
}

/// Runs `attempt` in a child and returns what it said within `millis`.
pub(crate) fn run(millis: u32, attempt: impl FnOnce() -> String) -> Ended {
    match start(attempt) {
        Ok((pid, reader)) => finish(pid, reader, millis),
        Err(errno) => Ended::Said(format!("fork:{}", errno.name())),
    }
}

fn start(attempt: impl FnOnce() -> String) -> Result<(u64, u64), Errno> {
    let mut ends = [0_i32; 2];
    sys(libc::SYS_pipe2, &[ptr_mut(&mut ends), int(libc::O_CLOEXEC)])?;
    let [reader, writer] = ends.map(int);
    let pid = fork()?;
    if pid == 0 {
        let mut said = attempt().into_bytes();
        said.push(0);
        let mut rest = said.as_slice();
        while !rest.is_empty() {
            match sys(libc::SYS_write, &[writer, ptr(rest), rest.len() as u64]) {
                Ok(count) => {
                    rest = usize::try_from(count)
                        .ok()
                        .and_then(|n| rest.get(n..))
                        .unwrap_or(&[]);
                }
                Err(_) => break,
            }
        }
        raw::leave(0);
    }
    sys(libc::SYS_close, &[writer])?;
    Ok((pid, reader))
}

fn finish(pid: u64, reader: u64, millis: u32) -> Ended {
    let said = listen(reader, millis);
    let _closed = sys(libc::SYS_close, &[reader]);
    if said.is_err() {
        let _killed = sys(libc::SYS_kill, &[pid, int(libc::SIGKILL)]);
    }
    let mut status = 0_i32;
    while sys(libc::SYS_wait4, &[pid, ptr_mut(&mut status)]) == Err(Errno(libc::EINTR)) {}
    match said {
        Ok(Some(text)) => Ended::Said(text),
        Ok(None) if libc::WIFSIGNALED(status) => Ended::Died(libc::WTERMSIG(status)),
        Ok(None) => Ended::Silent(libc::WEXITSTATUS(status)),
        Err(Hang) => Ended::Hung,
    }
}

struct Hang;

fn listen(reader: u64, millis: u32) -> Result<Option<String>, Hang> {
    let mut said = Vec::new();
    loop {
        let Ok(fd) = i32::try_from(reader) else {
            return Ok(None);
        };
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        match sys(libc::SYS_poll, &[ptr_mut(&mut poll), 1, u64::from(millis)]) {
            Ok(0) => return Err(Hang),
            Ok(_) => {}
            Err(Errno(libc::EINTR)) => continue,
            Err(_) => return Ok(None),
        }
        let mut buffer = [0_u8; 4096];
        let count = sys(
            libc::SYS_read,
            &[reader, ptr_mut(&mut buffer), buffer.len() as u64],
        );
        let count = usize::try_from(count.unwrap_or(0)).unwrap_or(0);
        if count == 0 {
            return Ok(None);
        }
        said.extend_from_slice(buffer.get(..count).unwrap_or(&[]));
        // A child that forked says it twice.
        if let Some(end) = said.iter().position(|byte| *byte == 0) {
            said.truncate(end);
            return Ok(Some(String::from_utf8_lossy(&said).into_owned()));
        }
    }
}
