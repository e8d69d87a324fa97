//! Attributes of what an archive describes, set in the order owner, mode, extended attributes,
//! times: a change of owner clears set-user-id bits and file capabilities.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

use crate::archive::Entry;
use crate::tree::{self, PlaceError, call_failed};

/// An extended attribute: its name and its value.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

/// Attributes of something in the tree.
#[derive(Debug)]
pub(super) struct Attributes {
    mode: u32,
    owner: (u32, u32),
    /// Seconds and nanoseconds since 1970.
    mtime: (i64, u32),
    xattrs: Vec<Xattr>,
}

/// What attributes are set on.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// A pipe or device with this name in an open directory.
    Node(BorrowedFd<'a>, &'a OsStr),
    /// A symbolic link, which has no mode.
    Link(BorrowedFd<'a>, &'a OsStr),
}

impl Attributes {
    /// Returns those of an entry, and the extended attributes that are not taken over.
    pub(super) fn of(entry: &mut Entry) -> (Self, Vec<Xattr>) {
        let xattrs = std::mem::take(&mut entry.xattrs);
        let (kept, left_out) = xattrs.into_iter().partition(|(name, _)| is_kept(name));
        let attributes = Self {
            mode: entry.mode,
            owner: (entry.uid, entry.gid),
            mtime: entry.mtime,
            xattrs: kept,
        };
        (attributes, left_out)
    }

    /// Returns those of a directory that no entry describes.
    pub(super) fn implicit() -> Self {
        Self {
            mode: 0o755,
            owner: (0, 0),
            mtime: (0, 0),
            xattrs: Vec::new(),
        }
    }

    /// Sets them. `owner` is the owner that the target has already.
    pub(super) fn set(&self, target: Target<'_>, owner: (u32, u32)) -> Result<(), PlaceError> {
        if self.owner != owner {
            self.set_owner(target)?;
        }
        let mode = Mode::from_raw_mode(self.mode);
        match target {
            Target::Open(file) => {
                rustix::fs::fchmod(file, mode).map_err(call_failed("fchmod"))?;
            }
            // The name was made a moment ago in a tree where nobody else is: it is no link.
            Target::Node(parent, name) => {
                rustix::fs::chmodat(parent, name, mode, AtFlags::empty())
                    .map_err(call_failed("fchmodat"))?;
            }
            Target::Link(..) => {}
        }
        for (name, value) in &self.xattrs {
            set_xattr(target, name, value)?;
        }
        self.set_times(target)
    }

    fn set_owner(&self, target: Target<'_>) -> Result<(), PlaceError> {
        let (uid, gid) = (Uid::from_raw(self.owner.0), Gid::from_raw(self.owner.1));
        match target {
            Target::Open(file) => {
                rustix::fs::fchown(file, Some(uid), Some(gid)).map_err(call_failed("fchown"))
            }
            Target::Node(parent, name) | Target::Link(parent, name) => {
                let nofollow = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(parent, name, Some(uid), Some(gid), nofollow)
                    .map_err(call_failed("fchownat"))
            }
        }
    }

    fn set_times(&self, target: Target<'_>) -> Result<(), PlaceError> {
        let (tv_sec, nanos) = self.mtime;
        let time = Timespec {
            tv_sec,
            tv_nsec: nanos.into(),
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        match target {
            Target::Open(file) => rustix::fs::futimens(file, &times),
            Target::Node(parent, name) | Target::Link(parent, name) => {
                rustix::fs::utimensat(parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
        .map_err(call_failed("utimensat"))
    }
}

fn set_xattr(target: Target<'_>, name: &[u8], value: &[u8]) -> Result<(), PlaceError> {
    let key = OsStr::from_bytes(name);
    match target {
        Target::Open(file) => rustix::fs::fsetxattr(file, key, value, XattrFlags::empty())
            .map_err(call_failed("fsetxattr")),
        Target::Node(parent, name) | Target::Link(parent, name) => {
            let path = tree::through(parent.as_fd(), name);
            rustix::fs::lsetxattr(path, key, value, XattrFlags::empty())
                .map_err(call_failed("lsetxattr"))
        }
    }
}

/// Tells which extended attributes are taken over: those of users and file capabilities. Those of
/// overlayfs would forge removed and redirected files; labels of another host's security module
/// mean nothing here.
fn is_kept(name: &[u8]) -> bool {
    name == b"security.capability"
        || (name.starts_with(b"user.") && !name.starts_with(b"user.overlay."))
}
