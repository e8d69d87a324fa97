//! `run`: the whole life of a container in one command.
//!
//! libcontainer's own loop loses a SIGCHLD that comes between two of its calls and then waits for
//! ever. Here every signal is blocked before the container exists and taken from the queue.

use casemate_sys::process::{Ended, Pid, pidfd_open, pidfd_send, wait};
use casemate_sys::signal::{self, SignalSet};

use super::lifecycle::{create, lost, oci};
use super::{Create, Global, OciError};

/// Runs a bundle; returns the exit status of its guard init.
pub(super) fn run(global: &Global, options: &Create) -> Result<u8, OciError> {
    let all = SignalSet::all();
    signal::set_mask(&all)?;
    let mut container = create(global, options)?;
    let ended = watch(&mut container, &all);
    // The error that came first counts.
    let deleted = container.delete(true).map_err(oci("delete"));
    let ended = ended?;
    deleted?;
    Ok(ended.exit_status())
}

fn watch(
    container: &mut libcontainer::container::Container,
    all: &SignalSet,
) -> Result<Ended, OciError> {
    let pid = container
        .pid()
        .and_then(|pid| Pid::from_raw(pid.as_raw()))
        .ok_or_else(|| lost("no process"))?;
    let init = pidfd_open(pid)?;
    container.start().map_err(oci("start"))?;
    loop {
        let taken = signal::wait(all)?;
        if taken.signal != signal::CHLD {
            // It may have ended meanwhile.
            if let Err(error) = pidfd_send(&init, taken.signal) {
                tracing::debug!(%error, "a signal was not passed on");
            }
        } else if is_dead(pid)? {
            return Ok(wait(pid)?);
        }
    }
}

fn is_dead(pid: Pid) -> Result<bool, OciError> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), options)
        .map(|status| status.is_some())
        .map_err(|errno| casemate_sys::Error::new("waitid", pid.to_string(), errno).into())
}
