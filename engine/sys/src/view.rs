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

/// Puts an empty tmpfs over a directory, which has room for one directory.
pub fn cover(target: &CStr, cover: Cover) -> Result<()> {
    let flags = match cover {
        Cover::Writable => INERT,
        Cover::ReadOnly => INERT | MountFlags::RDONLY,
    };
    let options = c"size=4k,nr_inodes=2,mode=0755";
    mount(c"tmpfs", target, c"tmpfs", flags, options).map_err(Error::of("mount", || {
        format!("tmpfs, {target:?}, {flags:?}, {options:?}")
    }))
}

/// Whether something can be made in a cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// By the root of the user namespace, who owns it.
    Writable,
    /// By nobody.
    ReadOnly,
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
