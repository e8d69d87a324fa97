//! Changes the owners of a tree from one range of ids to another.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use casemate_sys::dir::Dir;
use casemate_sys::{Error, Result};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, XattrFlags};

use super::merged::xattr;

/// Ids of a range.
const COUNT: u32 = 65_536;
const CAPABILITY: &str = "security.capability";

/// Moves every owner in `from..from + 65536` to the same place in the range that begins at `to`.
/// The ranges do not overlap, so what was moved already stays.
pub(super) fn shift(dir: &Dir, name: &Path, (from, to): (u32, u32)) -> Result<()> {
    let stat = dir.stat(name)?;
    let moved = |id: u32| match id.checked_sub(from) {
        Some(inner) if inner < COUNT => Some(to.saturating_add(inner)),
        Some(_) | None => None,
    };
    let (uid, gid) = (moved(stat.st_uid), moved(stat.st_gid));
    if uid.is_some() || gid.is_some() {
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let file = if is_file {
            Some(dir.open(name, OFlags::RDONLY | OFlags::NONBLOCK)?)
        } else {
            None
        };
        let capability = match &file {
            Some(file) => xattr(file, CAPABILITY)?,
            None => None,
        };
        let (parent, last) = parent(dir, name)?;
        let fail = |call| Error::of(call, move || name.display().to_string());
        rustix::fs::chownat(
            &parent,
            last,
            uid.map(Uid::from_raw),
            gid.map(Gid::from_raw),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .map_err(fail("fchownat"))?;
        // The kernel takes privileges away with the owner.
        if let Some(file) = &file {
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
            rustix::fs::fchmod(file, mode).map_err(fail("fchmod"))?;
            if let Some(value) = capability {
                rustix::fs::fsetxattr(file, CAPABILITY, &value, XattrFlags::empty())
                    .map_err(fail("fsetxattr"))?;
            }
        }
    }
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        let inside = dir.open_dir(name)?;
        for name in inside.names()? {
            shift(&inside, &name, (from, to))?;
        }
    }
    Ok(())
}

fn parent<'n>(dir: &Dir, name: &'n Path) -> Result<(std::os::fd::OwnedFd, &'n OsStr)> {
    let parent = name.parent().unwrap_or_else(|| Path::new(""));
    let fd = dir.open(parent, OFlags::PATH | OFlags::DIRECTORY)?;
    Ok((
        fd,
        name.file_name().unwrap_or_else(|| OsStr::from_bytes(b"")),
    ))
}
