//! The view: hide what is the init's own, keep a spare proc, lock everything.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use casemate_guard_plan::{EXIT_INIT_FAILED, RUN_DIR, Stage};
use casemate_sys::descriptor::{self, Flags};
use casemate_sys::namespace::{self, Kinds};
use casemate_sys::process::{self, Ended, Fork};
use casemate_sys::view::Cover;
use casemate_sys::{mount, view};

use crate::failure::Failure;

/// [`REPORT_PATH`] for the kernel.
pub(crate) const REPORT: &CStr = c"/run/casemate/report";
const RUN: &CStr = c"/run/casemate";
const SPARE_PROC: &CStr = c"/run/casemate/proc";

/// Whether the view is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Every mount is locked and the ids are mapped.
    Closed,
    /// The writer of the maps has failed and has reported it.
    WriterFailed,
}

/// Unmounts plan, own binary and report: no process of the sandbox ever sees them. With their
/// directory in one call, since each unmount waits for every processor (`synchronize_rcu`).
pub(crate) fn hide() -> Result<(), Failure> {
    mount::detach(Path::new(RUN_DIR)).map_err(Failure::on(Stage::Hide, RUN_DIR))
}

/// Mounts a proc without masks and covers it. The kernel allows a nested proc only where an
/// unmasked one is mounted, so the cover lies over its parent and not on itself; and the namespace
/// ceilings are written through the descriptor, since the visible `/proc/sys` is read-only.
pub(crate) fn mount_spare_proc() -> Result<OwnedFd, Failure> {
    view::cover(RUN, Cover::Writable).map_err(Failure::of(Stage::SpareProc))?;
    view::make_directory(SPARE_PROC, 0o555).map_err(Failure::of(Stage::SpareProc))?;
    view::mount_proc(SPARE_PROC).map_err(Failure::of(Stage::SpareProc))?;
    let flags = Flags::PATH | Flags::DIRECTORY;
    let proc = descriptor::open(descriptor::here(), SPARE_PROC, flags)
        .map_err(Failure::of(Stage::SpareProc))?;
    view::cover(RUN, Cover::ReadOnly).map_err(Failure::of(Stage::SpareProc))?;
    Ok(proc)
}

/// Makes everything shared, so that the locked copy receives what is mounted in A later.
pub(crate) fn share() -> Result<(), Failure> {
    view::share_all().map_err(Failure::of(Stage::Propagation))
}

/// Moves PID 1 into namespace B, where the kernel locks every mount of the view
/// (`mount_namespaces(7)`, restrictions). The maps are written by a child that stays in A and ends.
pub(crate) fn lock(proc: &OwnedFd) -> Result<Lock, Failure> {
    let (gate, opened) = descriptor::pipe().map_err(Failure::of(Stage::Lock))?;
    let writer = match process::fork().map_err(Failure::of(Stage::Lock))? {
        Fork::Child => {
            drop(opened);
            return write_maps(proc, File::from(gate)).map(|()| process::exit_now(0));
        }
        Fork::Parent(writer) => writer,
    };
    drop(gate);
    namespace::unshare(Kinds::USER | Kinds::MOUNT).map_err(Failure::of(Stage::Lock))?;
    File::from(opened)
        .write_all(b"b")
        .map_err(Failure::io(Stage::Lock, "pipe to the writer of the maps"))?;
    match process::wait(writer).map_err(Failure::of(Stage::Maps))? {
        Ended::Exited(0) => {}
        Ended::Exited(_) | Ended::Signaled { .. } => return Ok(Lock::WriterFailed),
    }
    // A change of credentials sets the flag to that of fs.suid_dumpable.
    process::forbid_dump().map_err(Failure::of(Stage::Dumpable))?;
    Ok(Lock::Closed)
}

/// Mirrors A's own extents, once PID 1 is in B: what A has not, B cannot have.
fn write_maps(proc: &OwnedFd, mut gate: File) -> Result<(), Failure> {
    let users = identity(proc, c"self/uid_map")?;
    let groups = identity(proc, c"self/gid_map")?;
    let mut byte = [0];
    let read = gate
        .read(&mut byte)
        .map_err(Failure::io(Stage::Lock, "pipe from PID 1"))?;
    if read == 0 {
        // PID 1 has failed and says so itself.
        process::exit_now(EXIT_INIT_FAILED);
    }
    write_map(proc, c"1/uid_map", &users)?;
    write_map(proc, c"1/gid_map", &groups)
}

/// The identity map over the extents of our own namespace.
fn identity(proc: &OwnedFd, path: &CStr) -> Result<String, Failure> {
    let subject = path.to_string_lossy();
    let mut own = String::new();
    let source = descriptor::open(proc, path, Flags::RDONLY).map_err(Failure::of(Stage::Maps))?;
    File::from(source)
        .read_to_string(&mut own)
        .map_err(Failure::io(Stage::Maps, &subject))?;
    mirrored(&own).ok_or_else(|| Failure::refused(Stage::Maps, own))
}

fn write_map(proc: &OwnedFd, path: &CStr, map: &str) -> Result<(), Failure> {
    let subject = path.to_string_lossy();
    let target = descriptor::open(proc, path, Flags::WRONLY).map_err(Failure::of(Stage::Maps))?;
    // One write: the kernel takes a map whole.
    File::from(target)
        .write_all(map.as_bytes())
        .map_err(Failure::io(Stage::Maps, &subject))
}

/// Each extent `inside outside count` becomes `inside inside count`.
fn mirrored(map: &str) -> Option<String> {
    let mut identity = String::with_capacity(map.len());
    for line in map.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (inside, _outside, count) = (fields.next()?, fields.next()?, fields.next()?);
        writeln!(identity, "{inside} {inside} {count}").ok()?;
    }
    Some(identity).filter(|map| !map.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_extent_is_mirrored_and_no_fixed_length_is_assumed() {
        let own = "         0     100000       1000\n      2000     300000          1\n";
        assert_eq!(mirrored(own).as_deref(), Some("0 0 1000\n2000 2000 1\n"));
    }

    #[test]
    fn an_empty_or_torn_map_is_refused() {
        assert_eq!(mirrored(""), None);
        assert_eq!(mirrored("0 100000\n"), None);
    }

    #[test]
    fn the_paths_are_those_of_the_plan() {
        assert_eq!(REPORT.to_str(), Ok(casemate_guard_plan::REPORT_PATH));
        assert_eq!(RUN.to_str(), Ok(RUN_DIR));
    }
}
