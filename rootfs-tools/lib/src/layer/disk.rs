//! Files of a layer's directory: written whole or not at all, and never through a symlink.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use casemate_sys::dir::Dir;
use casemate_sys::{Error, Result};
use rustix::fs::{AtFlags, OFlags, RenameFlags, StatxFlags};
use rustix::io::Errno;

use super::stamp::Identity;

/// Longest stamp that is read, in bytes.
const MAX_FILE: usize = 64 * 1024;

/// Whether there is nothing by that name.
pub(super) fn is_absent(error: &Error) -> bool {
    error.errno() == Errno::NOENT
}

/// Turns "there is no such thing" into `None`.
pub(super) fn optional<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the directory `name`; `None` where it is absent.
pub(super) fn dir(parent: &Dir, name: &str) -> Result<Option<Dir>> {
    optional(parent.open_dir(Path::new(name)))
}

/// Returns what the file `name` holds; `None` where it is absent.
pub(super) fn read(parent: &Dir, name: &str) -> Result<Option<Vec<u8>>> {
    optional(parent.read(Path::new(name), MAX_FILE))
}

/// Whether a directory is absent or has nothing in it.
pub(super) fn is_empty(parent: &Dir, name: &str) -> Result<bool> {
    match dir(parent, name)? {
        Some(dir) => Ok(dir.names()?.is_empty()),
        None => Ok(true),
    }
}

/// Makes changes of names in `dir` durable.
pub(super) fn sync(dir: &Dir) -> Result<()> {
    rustix::fs::fsync(dir).map_err(Error::of("fsync", || show(dir, "")))
}

/// Writes the file `name`: a reader sees the old content or the new one, also after a crash.
pub(super) fn replace(parent: &Dir, name: &str, content: &[u8]) -> Result<()> {
    let fresh = format!(".{name}.new");
    let file = parent.open(
        Path::new(&fresh),
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
    )?;
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::fchmod(&file, mode).map_err(Error::of("fchmod", || show(parent, &fresh)))?;
    let mut file = File::from(file);
    file.write_all(content)
        .and_then(|()| file.sync_all())
        .map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::new("write", show(parent, &fresh), errno)
        })?;
    rename(parent, &fresh, name)?;
    sync(parent)
}

/// Renames within a directory; replaces a file or a link.
pub(super) fn rename(parent: &Dir, from: &str, to: &str) -> Result<()> {
    rustix::fs::renameat(parent, from, parent, to).map_err(Error::of("renameat", || {
        format!("{}, {to:?}", show(parent, from))
    }))
}

/// Renames into another directory, where the name must be free.
pub(super) fn move_to(from: &Dir, name: &str, to: &Dir, new: &str) -> Result<()> {
    rustix::fs::renameat_with(from, name, to, new, RenameFlags::NOREPLACE)
        .map_err(Error::of("renameat2", || {
            format!("{}, {}", show(from, name), show(to, new))
        }))
}

/// Returns where the symbolic link `name` leads; `None` where it is absent.
pub(super) fn link(parent: &Dir, name: &str) -> Result<Option<PathBuf>> {
    match rustix::fs::readlinkat(parent, name, Vec::new()) {
        Ok(target) => Ok(Some(PathBuf::from(target.to_string_lossy().into_owned()))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Error::new("readlinkat", show(parent, name), errno)),
    }
}

/// Makes the symbolic link `name`, in one step where it leads elsewhere.
pub(super) fn replace_link(parent: &Dir, name: &str, target: &str) -> Result<()> {
    let fresh = format!(".{name}.new");
    match rustix::fs::unlinkat(parent, fresh.as_str(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(Error::new("unlinkat", show(parent, &fresh), errno)),
    }
    rustix::fs::symlinkat(target, parent, fresh.as_str())
        .map_err(Error::of("symlinkat", || show(parent, &fresh)))?;
    rename(parent, &fresh, name)?;
    sync(parent)
}

/// Makes everything that was written on the file system of `dir` durable.
pub(super) fn sync_file_system(dir: &Dir) -> Result<()> {
    rustix::fs::syncfs(dir.as_fd()).map_err(Error::of("syncfs", || show(dir, "")))
}

/// Returns what tells `dir` from a directory that takes its place.
pub(super) fn identity(dir: &Dir) -> Result<Identity> {
    let found = rustix::fs::statx(
        dir,
        "",
        AtFlags::EMPTY_PATH,
        StatxFlags::INO | StatxFlags::BTIME,
    )
    .map_err(Error::of("statx", || show(dir, "")))?;
    let seconds = u64::try_from(found.stx_btime.tv_sec).unwrap_or(0);
    Ok(Identity {
        inode: found.stx_ino,
        born: seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(found.stx_btime.tv_nsec.into()),
    })
}

fn show(dir: &Dir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}
