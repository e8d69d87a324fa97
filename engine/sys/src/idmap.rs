//! User namespaces that hold nothing but a map of ids, for ID-mapped mounts.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::{Error, Result};

/// One extent, for users and groups alike: `count` ids from `disk` on are seen as `kernel` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// First id on disk.
    pub disk: u32,
    /// First id that the kernel sees instead.
    pub kernel: u32,
    /// How many.
    pub count: u32,
}

/// Returns a descriptor of a user namespace with this map. Costs one fork: keep the descriptor.
pub fn user_namespace(extents: &[Extent]) -> Result<OwnedFd> {
    let child = child()?;
    let made = write_maps(child, extents).and_then(|()| open_namespace(child));
    let killed = kill_process(child, Signal::KILL).map_err(Error::of("kill", || show(child)));
    let reaped = retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))
        .map_err(Error::of("waitpid", || show(child)));
    killed?;
    reaped?;
    made
}

fn show(child: Pid) -> String {
    child.as_raw_nonzero().to_string()
}

/// A child in a new user namespace that waits to be killed.
fn child() -> Result<Pid> {
    let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and with a null stack this is fork(2); the child makes only system
    // calls on its own copy of the memory and never returns from this block.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) };
    if pid == 0 {
        loop {
            // SAFETY: waits for a signal; has no arguments.
            unsafe {
                libc::pause();
            }
        }
    }
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .filter(|_made| pid > 0)
        .ok_or_else(|| Error::last("clone", "CLONE_NEWUSER"))
}

fn write_maps(child: Pid, extents: &[Extent]) -> Result<()> {
    let lines: Vec<String> = extents
        .iter()
        .map(|extent| format!("{} {} {}\n", extent.disk, extent.kernel, extent.count))
        .collect();
    let map = lines.concat();
    for file in ["uid_map", "gid_map"] {
        let path = format!("/proc/{}/{file}", child.as_raw_nonzero());
        let io = |error: &std::io::Error| {
            let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
            Error::new("write", format!("{path:?}, {map:?}"), errno)
        };
        // One write: the kernel takes a map once and whole.
        File::options()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(map.as_bytes()))
            .map_err(|error| io(&error))?;
    }
    Ok(())
}

fn open_namespace(child: Pid) -> Result<OwnedFd> {
    let path = format!("/proc/{}/ns/user", child.as_raw_nonzero());
    open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(Error::of("open", || format!("{path:?}")))
}
