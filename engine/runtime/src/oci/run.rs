//! `run`: the whole life of a container in one command.
//!
//! libcontainer's own loop loses a SIGCHLD that comes between two of its calls and then waits for
//! ever. Here every signal is blocked before the container exists and taken from the queue.

use casemate_sys::process::{Ended, Pid, pidfd_open, pidfd_send, wait};
use casemate_sys::signal::{self, SignalSet};

use super::lifecycle::{checked, create, init_of, load, oci};
use super::{Create, Global, OciError, bundle, groups};

/// Runs a bundle; returns the exit status of its guard init.
pub(super) fn run(global: &Global, options: &Create) -> Result<u8, OciError> {
    let all = SignalSet::all();
    signal::set_mask(&all)?;
    checked(&options.id)?;
    bundle::check(&options.bundle)?;
    let groups = groups::Own::make(global, options)?;
    let ended = keep(global, options, groups.as_ref(), &all);
    // The error that came first counts.
    let removed = groups.map_or(Ok(()), groups::Own::remove);
    let ended = ended?;
    removed?;
    Ok(ended.exit_status())
}

fn keep(
    global: &Global,
    options: &Create,
    groups: Option<&groups::Own>,
    all: &SignalSet,
) -> Result<Ended, OciError> {
    let make = || create(global, options);
    let mut container = match groups {
        Some(groups) => {
            groups.create(make)?;
            load(global, &options.id)?
        }
        None => make()?,
    };
    let ended = watch(&mut container, groups, all);
    let deleted = container.delete(true).map_err(oci("delete"));
    let ended = ended?;
    deleted?;
    Ok(ended)
}

fn watch(
    container: &mut libcontainer::container::Container,
    groups: Option<&groups::Own>,
    all: &SignalSet,
) -> Result<Ended, OciError> {
    let pid = init_of(container)?;
    let init = pidfd_open(pid)?;
    if let Some(groups) = groups {
        groups.limit(pid)?;
    }
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
