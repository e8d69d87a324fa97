//! The privileged steps of a sandbox, in their order. Each is done or the sandbox does not start.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::OwnedFd;

use casemate_guard_plan::{EXIT_INIT_FAILED, PLAN_PATH, Report, Stage};
use casemate_sys::descriptor::Standard;
use casemate_sys::process::{self, Ended, Fork};
use casemate_sys::signal::{self, SignalSet};

use crate::confine;
use crate::failure::{Failure, Reporter};
use crate::plan::Guards;
use crate::reap::{self, Senders};
use crate::stdio::{self, Stdio};
use crate::view::{self, Lock};

/// PID 1 from its first step to its exit status. Forked children leave it by an error or not at
/// all.
pub(crate) fn run(argv: &[CString], reporter: &mut Reporter) -> Result<u8, Failure> {
    // In namespace A, the runtime's.
    block_signals()?;
    process::forbid_dump().map_err(Failure::of(Stage::Dumpable))?;
    require_pid_one()?;
    stdio::refuse_extra()?;
    let stdio = Stdio::check()?;
    reporter.open()?;
    let guards = read_plan()?;
    view::hide()?;
    let proc = view::mount_spare_proc()?;
    view::share()?;
    stdio.leave_terminal()?;

    // Into namespace B: from here on every mount is locked.
    match view::lock(&proc)? {
        Lock::Closed => {}
        Lock::WriterFailed => return Ok(EXIT_INIT_FAILED),
    }
    let payload = match process::fork().map_err(Failure::of(Stage::Fork))? {
        Fork::Child => match become_payload(argv, &guards, stdio, Some(&proc), reporter)? {},
        Fork::Parent(payload) => payload,
    };

    // PID 1 keeps nothing.
    drop(proc);
    stdio::to_null(Standard::ALL.into_iter())?;
    reap::drop_privileges()?;
    let ended = reap::until_ended(payload, Senders::Outside)?;
    reporter.write(&match ended {
        Ended::Exited(code) => Report::Exited { code },
        Ended::Signaled { signal, core } => Report::Signaled { signal, core },
    });
    reporter.stay_for_keeper();
    Ok(ended.exit_status())
}

/// The payload's own steps, in namespace B, ending in its exec. `proc` is the spare proc of a new
/// sandbox; a command that joins a living one finds the ceilings set.
pub(crate) fn become_payload(
    argv: &[CString],
    guards: &Guards,
    stdio: Stdio,
    proc: Option<&OwnedFd>,
    reporter: &mut Reporter,
) -> Result<Infallible, Failure> {
    confine::join_new_keyring()?;
    stdio.lead_session()?;
    confine::enter_directory(guards)?;
    stdio.reopen_null()?;
    confine::clear_groups()?;
    if let Some(proc) = proc {
        confine::set_ceilings(guards, proc)?;
    }
    confine::reduce_capabilities(guards.capabilities)?;
    confine::forbid_new_privileges(guards)?;
    confine::restrict(guards)?;
    confine::filter_calls(guards)?;
    confine::take_ids(guards)?;
    confine::close_on_exec()?;
    confine::reset_signals()?;
    reporter.write(&Report::Ready);
    Err(confine::execute(argv))
}

/// Signals are taken from the queue only; an inherited "ignore" of SIGCHLD would make children
/// vanish unseen.
pub(crate) fn block_signals() -> Result<(), Failure> {
    signal::set_mask(&SignalSet::all()).map_err(Failure::of(Stage::Signals))?;
    signal::reset(signal::CHLD).map_err(Failure::of(Stage::Signals))
}

fn require_pid_one() -> Result<(), Failure> {
    match process::id().as_raw_pid() {
        1 => Ok(()),
        pid => Err(Failure::refused(
            Stage::Pid,
            format!("runs as process {pid}; it must be the first of a pid namespace"),
        )),
    }
}

fn read_plan() -> Result<Guards, Failure> {
    let plan = File::open(PLAN_PATH).map_err(Failure::io(Stage::Plan, PLAN_PATH))?;
    Guards::read(plan, PLAN_PATH)
}
