//! Small behaviours that the suites need a payload to have.

use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use crate::raw::{Errno, int, leave, ptr, sys};
use crate::{child, facts};

const SIG_IGN: u64 = 1;

/// Runs the verb, if there is one of this name; returns its exit status.
pub(crate) fn run(name: &str, args: &[String]) -> Option<u8> {
    let number = args
        .first()
        .and_then(|arg| arg.parse().ok())
        .unwrap_or(0_u64);
    match name {
        "caps" => say(&caps()),
        "fork-bomb" => fork_bomb(number),
        "hog" => hog(number),
        "hog-then-kill" => hog_then_kill(number),
        "flood" => flood(number),
        "count" => count(),
        "stop-self" => signal_self(libc::SIGSTOP),
        "kill-self" => signal_self(i32::try_from(number).unwrap_or(libc::SIGKILL)),
        "ignore-term" => ignore_term(),
        "daemonize" => return Some(daemonize(number)),
        "sleep" => pause(number),
        "exit" => return Some(u8::try_from(number).unwrap_or(255)),
        "bytes" => bytes(),
        "close-stdin" => close_stdin(),
        _ => return None,
    }
    Some(0)
}

fn pause(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

fn say(text: &str) {
    let _reader_may_be_gone = writeln!(io::stdout(), "{text}");
}

/// Effective, permitted and bounding set in one line.
fn caps() -> String {
    let status = facts::status_lines();
    ["CapEff", "CapPrm", "CapBnd", "NoNewPrivs"]
        .map(|key| format!("{key}={}", status.get(key).map_or("?", String::as_str)))
        .join(" ")
}

/// Forks sleeping children until refused; prints how many it got.
fn fork_bomb(most: u64) {
    let mut made = 0;
    while made < most {
        match child::fork() {
            Ok(0) => {
                pause(600);
                leave(0);
            }
            Ok(_) => made += 1,
            Err(errno) => {
                say(&format!("refused {}", errno.name()));
                break;
            }
        }
    }
    say(&format!("made {made}"));
}

fn touched(mebibytes: u64) -> Vec<Vec<u8>> {
    // Written page by page, so that every page is there.
    (0..mebibytes).map(|_| vec![0xa5_u8; 1 << 20]).collect()
}

fn hog(mebibytes: u64) {
    let held = touched(mebibytes);
    say(&format!("held {}", held.len()));
}

/// Takes memory near the limit and then ends by its own SIGKILL.
fn hog_then_kill(mebibytes: u64) {
    let held = touched(mebibytes);
    say(&format!("held {}", held.len()));
    signal_self(libc::SIGKILL);
    drop(held);
}

/// Writes this many bytes to each of both streams, in turn.
fn flood(bytes: u64) {
    let block = vec![b'x'; 1 << 16];
    let mut left = bytes;
    while left > 0 {
        let now = usize::try_from(left.min(1 << 16)).unwrap_or(block.len());
        for fd in [1_u64, 2] {
            let mut rest = block.get(..now).unwrap_or(&block);
            while !rest.is_empty() {
                match sys(libc::SYS_write, &[fd, ptr(rest), rest.len() as u64]) {
                    Ok(done) => {
                        rest = usize::try_from(done)
                            .ok()
                            .and_then(|n| rest.get(n..))
                            .unwrap_or(&[]);
                    }
                    Err(Errno(libc::EINTR | libc::EAGAIN)) => {}
                    Err(_) => leave(1),
                }
            }
        }
        left -= now as u64;
    }
}

/// Counts standard input.
fn count() {
    let mut buffer = vec![0; 1 << 16];
    let mut total = 0;
    while let Ok(now @ 1..) = io::stdin().read(&mut buffer) {
        total += now;
    }
    say(&total.to_string());
}

fn signal_self(signal: i32) {
    let own = u64::from(std::process::id());
    let _sent = sys(libc::SYS_kill, &[own, int(signal)]);
}

fn ignore(signal: i32) {
    // struct kernel_sigaction: handler, flags, restorer, mask.
    let action = [SIG_IGN, 0, 0, 0];
    let _set = sys(libc::SYS_rt_sigaction, &[int(signal), ptr(&action), 0, 8]);
}

/// Starts a child that ignores what can be ignored, and waits with it.
fn ignore_term() {
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGPIPE] {
        ignore(signal);
    }
    let _second = child::fork();
    say("ignoring");
    pause(600);
}

/// Leaves a grandchild in a session of its own that holds stdout; ends at once.
fn daemonize(seconds: u64) -> u8 {
    match child::fork() {
        Ok(0) => {
            let _session = sys(libc::SYS_setsid, &[]);
            // PR_SET_CHILD_SUBREAPER
            let _reaper = sys(libc::SYS_prctl, &[36, 1]);
            match child::fork() {
                Ok(0) => {
                    ignore(libc::SIGHUP);
                    pause(seconds);
                    leave(0);
                }
                Ok(_) | Err(_) => leave(0),
            }
        }
        Ok(_) => {
            say("left");
            0
        }
        Err(_) => 1,
    }
}

/// Every byte value once, then a character that is cut in half.
fn bytes() {
    let mut all: Vec<u8> = (0..=u8::MAX).collect();
    all.extend("€".bytes().take(2));
    let _reader_may_be_gone = io::stdout().write_all(&all);
}

fn close_stdin() {
    let _closed = sys(libc::SYS_close, &[0]);
    pause(1);
    say("closed");
}
