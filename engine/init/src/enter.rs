//! `casemate-init enter`: one more command in a living sandbox, with the guards of its plan.
//!
//! Started by host root, who has put the caller into the sandbox's cgroup and made descriptors 0–2.
//! The ids change to those of the sandbox before anything of it is touched, and a sandbox that maps
//! host root is refused: the command never runs as host root.

use std::ffi::{CStr, CString};
use std::time::Duration;

use casemate_guard_plan::Stage;
use casemate_sys::descriptor::{self, Flags, Standard};
use casemate_sys::namespace::{self, Kinds};
use casemate_sys::process::{self, Fork, Pid};
use casemate_sys::signal;

use crate::failure::{Failure, Reporter};
use crate::plan::Guards;
use crate::reap::{self, Senders};
use crate::stdio::{self, Stdio};
use crate::{confine, guard};

const USAGE: &str = "usage: casemate-init enter --pid PID --plan FD|PATH [--tty] \
                     [--deadline-ms N] -- PROGRAM [ARGUMENT]…";

/// How long the command may take to be executed, unless `--deadline-ms` says otherwise.
const DEADLINE: Duration = Duration::from_secs(10);

/// The command line.
#[derive(Debug, PartialEq, Eq)]
struct Request<'a> {
    /// A process of the sandbox, as the host numbers it. Its PID 1 cannot have moved.
    pid: Pid,
    plan: &'a CStr,
    /// Whether standard input becomes the controlling terminal.
    terminal: bool,
    /// From joining to exec; a process of the sandbox may stop the joining one.
    deadline: Duration,
    argv: &'a [CString],
}

/// From the command line to the exit status of the command. The forked child leaves by an error or
/// not at all.
pub(crate) fn run(words: &[CString]) -> Result<u8, Failure> {
    guard::block_signals()?;
    process::forbid_dump().map_err(Failure::of(Stage::Dumpable))?;
    let request = Request::parse(words).ok_or_else(|| Failure::refused(Stage::Join, USAGE))?;
    let guards = read_plan(request.plan)?;
    let stdio = Stdio::check()?.with_terminal(request.terminal)?;

    join(request.pid)?;
    confine::clear_groups()?;
    // What setns leaves is host root, which has no number in the sandbox; this is the sandbox's.
    process::set_ids(0, 0).map_err(Failure::of(Stage::Ids))?;
    process::forbid_dump().map_err(Failure::of(Stage::Dumpable))?;

    let (executed, until_exec) = descriptor::pipe().map_err(Failure::of(Stage::Fork))?;
    let command = match process::fork().map_err(Failure::of(Stage::Fork))? {
        Fork::Child => {
            drop(executed);
            let mut nobody = Reporter::Absent;
            let failure = guard::become_payload(request.argv, &guards, stdio, None, &mut nobody);
            drop(until_exec);
            match failure? {}
        }
        Fork::Parent(command) => command,
    };
    drop(until_exec);
    let is_executed = descriptor::wait_readable(&executed, request.deadline);
    if !is_executed.map_err(Failure::of(Stage::Join))? {
        process::kill(command, signal::KILL).map_err(Failure::of(Stage::Join))?;
        let ms = request.deadline.as_millis();
        return Err(Failure::refused(
            Stage::Join,
            format!("not executed within {ms} ms"),
        ));
    }
    stdio::to_null([Standard::Input, Standard::Output].into_iter())?;
    reap::drop_privileges()?;
    Ok(reap::until_ended(command, Senders::Anybody)?.exit_status())
}

/// Moves into every namespace of the process, in one call. Its number may have been given to
/// another process before the pidfd was opened, so what is behind the pidfd is checked, and then
/// that it has lived through the check.
fn join(pid: Pid) -> Result<(), Failure> {
    let pidfd = process::pidfd_open(pid).map_err(Failure::of(Stage::Join))?;
    let path = format!("/proc/{pid}/uid_map");
    let map = std::fs::read_to_string(&path).map_err(Failure::io(Stage::Join, &path))?;
    if !process::pidfd_is_alive(&pidfd).map_err(Failure::of(Stage::Join))? {
        return Err(Failure::refused(
            Stage::Join,
            format!("process {pid} has ended"),
        ));
    }
    if maps_callers_root(&map) {
        return Err(Failure::refused(
            Stage::Join,
            format!("process {pid} maps the caller's root: it is in no sandbox of ours"),
        ));
    }
    let kinds = Kinds::USER
        | Kinds::MOUNT
        | Kinds::PROCESS_ID
        | Kinds::NETWORK
        | Kinds::INTER_PROCESS_COMMUNICATION
        | Kinds::HOST_NAME_AND_NIS_DOMAIN_NAME
        | Kinds::CONTROL_GROUP;
    namespace::join_process(&pidfd, kinds).map_err(Failure::of(Stage::Join))
}

/// Whether an extent `inside outside count` begins at the reader's id 0; a line that is none counts
/// as well.
fn maps_callers_root(map: &str) -> bool {
    map.lines()
        .any(|line| matches!(line.split_ascii_whitespace().nth(1), Some("0") | None))
}

/// A number is an inherited descriptor, which is closed after reading; anything else is a path.
fn read_plan(source: &CStr) -> Result<Guards, Failure> {
    let name = source.to_string_lossy();
    let file = match name.parse() {
        Ok(number) => descriptor::inherited(number),
        Err(_no_number) => descriptor::open(descriptor::here(), source, Flags::RDONLY),
    };
    Guards::read(file.map_err(Failure::on(Stage::Plan, &name))?.into(), &name)
}

impl<'a> Request<'a> {
    fn parse(words: &'a [CString]) -> Option<Self> {
        let (mut pid, mut plan, mut terminal, mut deadline) = (None, None, false, DEADLINE);
        let mut words = words.iter();
        loop {
            match words.next()?.to_bytes() {
                b"--pid" => pid = Some(positive(words.next()?)?),
                b"--plan" => plan = Some(words.next()?.as_c_str()),
                b"--tty" => terminal = true,
                b"--deadline-ms" => deadline = Duration::from_millis(number(words.next()?)?),
                b"--" => break,
                _ => return None,
            }
        }
        let argv = words.as_slice();
        Some(Self {
            pid: pid?,
            plan: plan?,
            terminal,
            deadline,
            argv: (!argv.is_empty()).then_some(argv)?,
        })
    }
}

fn positive(word: &CStr) -> Option<Pid> {
    let number: i32 = number(word)?;
    if number > 0 {
        Pid::from_raw(number)
    } else {
        None
    }
}

fn number<T: std::str::FromStr>(word: &CStr) -> Option<T> {
    word.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<CString> {
        line.split(' ')
            .map(|word| CString::new(word).unwrap())
            .collect()
    }

    #[test]
    fn a_full_command_line_is_read() {
        let words = words("--pid 7 --plan 3 --tty --deadline-ms 250 -- sh -c --pid");
        let request = Request::parse(&words).unwrap();
        assert_eq!(request.pid.as_raw_pid(), 7);
        assert_eq!(request.plan, c"3");
        assert!(request.terminal);
        assert_eq!(request.deadline, Duration::from_millis(250));
        assert_eq!(
            request.argv,
            [c"sh".to_owned(), c"-c".to_owned(), c"--pid".to_owned()]
        );
    }

    #[test]
    fn an_incomplete_or_unknown_command_line_is_refused() {
        for line in [
            "--pid 7 --plan 3",
            "--pid 7 --plan 3 --",
            "--pid 0 --plan 3 -- sh",
            "--pid -1 --plan 3 -- sh",
            "--pid x --plan 3 -- sh",
            "--plan 3 -- sh",
            "--pid 7 -- sh",
            "--pid 7 --plan 3 sh",
            "--pid 7 --plan 3 --deadline-ms -1 -- sh",
        ] {
            assert_eq!(Request::parse(&words(line)), None, "{line}");
        }
    }

    #[test]
    fn a_map_with_the_caller_s_root_is_found_wherever_it_stands() {
        assert!(maps_callers_root("0 0 4294967295\n"));
        assert!(maps_callers_root("1 100000 10\n0 0 1\n"));
        assert!(maps_callers_root("\n"));
        assert!(!maps_callers_root("         0     100000      65536\n"));
    }
}
