//! Mounts by path, one call each (`mount(2)`), for a process whose view nobody else changes.

use std::ffi::CStr;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use crate::error::{Error, Result};

const INERT: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// Mounts the proc file system of the own pid namespace (`proc(5)`), writable, `nosuid`, `nodev`,
/// `noexec`.
pub fn mount_proc(target: &CStr) -> Result<()> {
    mount(c"proc", target, c"proc", INERT, None).map_err(Error::of("mount", || {
        format!("proc, {target:?}, {INERT:?}")
    }))
}

/// Covers a directory with an empty read-only tmpfs.
pub fn cover(target: &CStr) -> Result<()> {
    let flags = INERT | MountFlags::RDONLY;
    let options = c"size=4k,nr_inodes=2,mode=0555";
    mount(c"tmpfs", target, c"tmpfs", flags, options).map_err(Error::of("mount", || {
        format!("tmpfs, {target:?}, {flags:?}, {options:?}")
    }))
}

/// Makes every mount of the namespace shared: one that is copied later gets what is mounted here.
pub fn share_all() -> Result<()> {
    let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    mount_change(c"/", flags).map_err(Error::of("mount", || format!("\"/\", {flags:?}")))
}

/// `mkdirat(2)`.
pub fn make_directory(path: &CStr, mode: u32) -> Result<()> {
    rustix::fs::mkdir(path, rustix::fs::Mode::from_raw_mode(mode))
        .map_err(Error::of("mkdirat", || format!("{path:?}, {mode:#o}")))
}
