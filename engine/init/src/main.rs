//! The guard init: first program of every bundle.
//!
//! As PID 1 it closes the view, puts every guard of the plan around the payload, executes it, and
//! stays to reap. Called `enter` anywhere else it executes one more command in a living sandbox.
//! Every failure ends in [`EXIT_INIT_FAILED`]; nothing is ever run with fewer guards.

mod confine;
mod enter;
mod failure;
mod guard;
mod plan;
mod reap;
mod stdio;
mod view;

use std::ffi::CString;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;

use casemate_guard_plan::EXIT_INIT_FAILED;
use casemate_sys::process;

use crate::failure::Reporter;

fn main() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or(0, std::panic::Location::line);
        say(&format!("internal fault at line {place}"));
        process::exit_now(EXIT_INIT_FAILED);
    }));
    let argv: Vec<CString> = std::env::args_os()
        .skip(1)
        .map(|word| CString::new(word.into_vec()).unwrap_or_default())
        .collect();
    let mut reporter = Reporter::Unopened;
    // PID 1 has no commands of its own: a payload may be called `enter`.
    let ended = match argv.split_first() {
        Some((first, rest)) if first.as_c_str() == c"enter" && process::id().as_raw_pid() != 1 => {
            reporter = Reporter::Absent;
            enter::run(rest)
        }
        Some(_) | None => guard::run(&argv, &mut reporter),
    };
    let status = ended.unwrap_or_else(|failure| {
        reporter.failed(&failure);
        say(&failure.to_string());
        failure.exit_status()
    });
    // No destructor runs: the forked processes share them with PID 1.
    process::exit_now(status)
}

/// One line on stderr, which may be closed: there is nobody else to tell.
fn say(line: &str) {
    drop(std::io::stderr().write_all(format!("casemate-init: {line}\n").as_bytes()));
}
