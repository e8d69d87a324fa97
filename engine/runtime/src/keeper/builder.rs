//! Creates a container in a process of its own that begins in the sandbox's groups.
//!
//! To move a process into a group the kernel waits for a grace period of milliseconds; one that is
//! made there waits for nothing. libcontainer moves its process all the same, so the file that it
//! writes to is covered, in the keeper's view of the mounts alone.

use std::fs::File;
use std::io::Write as _;

use casemate_sys::Error;
use casemate_sys::error::chain;
use casemate_sys::process::{self, Fork, Pid};
use libcontainer::container::Container;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::groups::Groups;

/// Most bytes of an answer: such a write to a pipe is never split.
const MAX_ANSWER: usize = 4096;

/// What the builder says before it ends.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The container's first process, as this pid namespace sees it.
    Created(i32),
    Failed(String),
}

/// Why there is no container.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    /// A system call around the builder.
    #[error(transparent)]
    Call(#[from] Error),
    /// What the builder had to say.
    #[error("the container was not created: {0}")]
    Create(String),
}

/// Creates a container; its first process becomes a child of the caller, which must be a
/// subreaper. `make` runs in the groups, in a copy of the caller.
pub(crate) fn build<E: std::error::Error>(
    groups: &Groups,
    make: impl FnOnce() -> Result<Pid, E>,
) -> Result<Pid, BuildError> {
    let (answers, answer) = casemate_sys::descriptor::pipe()?;
    let builder = match process::fork_into(groups.unified())? {
        Fork::Parent(builder) => builder,
        Fork::Child => {
            drop(answers);
            process::exit_now(tell(File::from(answer), &enter_and_make(groups, make)))
        }
    };
    drop(answer);
    process::wait(builder)?;
    // What it has made has the pipe as well, which therefore does not end; it has its answer whole.
    rustix::io::ioctl_fionbio(&answers, true)
        .map_err(Error::of("ioctl", || "FIONBIO".to_owned()))?;
    let mut text = vec![0; MAX_ANSWER];
    let length = match rustix::io::read(&answers, &mut text) {
        Ok(length) => length,
        Err(Errno::AGAIN) => 0,
        Err(errno) => return Err(Error::new("read", "the builder's answer", errno).into()),
    };
    match serde_json::from_slice(text.get(..length).unwrap_or_default()) {
        Ok(Answer::Created(pid)) => Pid::from_raw(pid)
            .ok_or_else(|| BuildError::Call(Error::new("clone3", "no process", Errno::SRCH))),
        Ok(Answer::Failed(why)) => Err(BuildError::Create(why)),
        Err(_cut) => Err(BuildError::Create("its builder has died".to_owned())),
    }
}

/// The first process of a created container.
pub(crate) fn first_process(container: &Container) -> Option<Pid> {
    Pid::from_raw(container.pid()?.as_raw())
}

fn enter_and_make<E: std::error::Error>(
    groups: &Groups,
    make: impl FnOnce() -> Result<Pid, E>,
) -> Answer {
    let made = groups
        .enter()
        .map_err(|error| chain(&error))
        .and_then(|()| make().map_err(|error| chain(&error)));
    match made {
        Ok(pid) => Answer::Created(pid.as_raw_nonzero().get()),
        Err(mut why) => {
            why.truncate(why.floor_char_boundary(MAX_ANSWER / 8));
            Answer::Failed(why)
        }
    }
}

/// Returns the builder's exit status.
fn tell(mut pipe: File, answer: &Answer) -> u8 {
    let Ok(text) = serde_json::to_vec(answer) else {
        return 1;
    };
    u8::from(pipe.write_all(&text).is_err())
}
