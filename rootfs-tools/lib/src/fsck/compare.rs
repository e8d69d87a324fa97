//! Compares two trees.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::directory;
use crate::files::{FileError, failed};

const BUFFER_BYTES: usize = 64 * 1024;

/// Returns the first path at which the trees differ: kind, owner, mode, times, extended attributes,
/// content.
pub(super) fn difference(a: &Path, b: &Path) -> Result<Option<PathBuf>, FileError> {
    let mut open = vec![PathBuf::new()];
    while let Some(path) = open.pop() {
        let (one, other) = (a.join(&path), b.join(&path));
        let (Some(left), Some(right)) = (examine(&one)?, examine(&other)?) else {
            return Ok(Some(path));
        };
        if !same_attributes(&left, &right) || directory::xattrs(&one)? != directory::xattrs(&other)?
        {
            return Ok(Some(path));
        }
        if left.is_dir() {
            let names = names(&one)?;
            if names != self::names(&other)? {
                return Ok(Some(path));
            }
            open.extend(names.iter().map(|name| path.join(name)));
        } else if !same_content(&one, &other, &left)? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn examine(path: &Path) -> Result<Option<Metadata>, FileError> {
    match path.symlink_metadata() {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("examine", path)(error)),
    }
}

fn same_attributes(a: &Metadata, b: &Metadata) -> bool {
    let of = |metadata: &Metadata| {
        let size = if metadata.is_dir() { 0 } else { metadata.len() };
        // Directories count their children, which are compared themselves.
        let links = if metadata.is_dir() {
            0
        } else {
            metadata.nlink()
        };
        (
            (metadata.mode(), metadata.uid(), metadata.gid(), size),
            (
                metadata.mtime(),
                metadata.mtime_nsec(),
                metadata.rdev(),
                links,
            ),
        )
    };
    of(a) == of(b)
}

fn names(dir: &Path) -> Result<Vec<std::ffi::OsString>, FileError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        names.push(entry.map_err(failed("list", dir))?.file_name());
    }
    names.sort();
    Ok(names)
}

fn same_content(a: &Path, b: &Path, metadata: &Metadata) -> Result<bool, FileError> {
    let kind = metadata.file_type();
    if kind.is_symlink() {
        let target = |path: &Path| path.read_link().map_err(failed("read", path));
        return Ok(target(a)? == target(b)?);
    }
    if kind.is_fifo() || kind.is_char_device() || kind.is_block_device() || kind.is_socket() {
        return Ok(true);
    }
    let open = |path: &Path| File::open(path).map_err(failed("open", path));
    let (mut one, mut other) = (open(a)?, open(b)?);
    let (mut left, mut right) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    loop {
        let count = one.read(&mut left).map_err(failed("read", a))?;
        if count == 0 {
            // The sizes are the same.
            return Ok(true);
        }
        let part = right.get_mut(..count).unwrap_or_default();
        match other.read_exact(part) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(failed("read", b)(error)),
        }
        if left.get(..count) != right.get(..count) {
            return Ok(false);
        }
    }
}
