//! PID 1 after the payload has been forked: owns nothing, reaps, forwards.

use casemate_guard_plan::Stage;
use casemate_sys::capability::Capabilities;
use casemate_sys::process::{self, Ended, Pid};
use casemate_sys::signal::{self, SignalSet, Taken};

use crate::confine;
use crate::failure::Failure;

/// Whose signals are passed on to the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Senders {
    /// Processes outside the pid namespace: the payload does not drive PID 1.
    Outside,
    /// Everybody: the process that waits is outside itself.
    Anybody,
}

/// Gives up every privilege: no capability in any set, no new ones.
pub(crate) fn drop_privileges() -> Result<(), Failure> {
    confine::reduce_capabilities(Capabilities::NONE)?;
    process::forbid_new_privileges().map_err(Failure::of(Stage::NoNewPrivs))
}

/// Reaps everything until the payload has ended. All signals are blocked, so none is lost between
/// two waits.
pub(crate) fn until_ended(payload: Pid, senders: Senders) -> Result<Ended, Failure> {
    let all = SignalSet::all();
    loop {
        let taken = signal::wait(&all).map_err(Failure::of(Stage::Signals))?;
        if taken.signal == signal::CHLD {
            // One SIGCHLD stands for any number of dead children.
            while let Some((pid, ended)) = process::reap().map_err(Failure::of(Stage::Fork))? {
                if pid == payload {
                    return Ok(ended);
                }
            }
        } else if passes(senders, taken) {
            // EPERM where the payload has changed its ids: PID 1 has no power over it any more, and
            // the keeper kills by cgroup.
            drop(process::kill(payload, taken.signal));
        }
    }
}

const fn passes(senders: Senders, taken: Taken) -> bool {
    match senders {
        Senders::Outside => taken.is_from_outside(),
        Senders::Anybody => true,
    }
}
