//! Marks of an image layer for what it removes from the layers below.
//!
//! Source: OCI image-spec, `layer.md`, "Whiteouts". A mark concerns the layers below alone,
//! wherever it stands in its archive. So a layer is read for its marks first, and what they name
//! is removed before any of its entries is placed.

use std::collections::{BTreeSet, HashSet};
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt as _;

use super::{Counter, UnpackError, refuse};
use crate::archive::{Archive, Entry, Kind};
use crate::tree::{LastName, PlaceError, TreePath};

const PREFIX: &[u8] = b".wh.";
/// What begins with this is AUFS's own, but for the mark of an opaque directory.
const RESERVED: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What an entry marks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The content of this directory.
    Opaque(TreePath),
    /// This file or directory.
    Removed(TreePath),
}

/// The marks of one layer, sorted: the order of the archive says nothing.
#[derive(Debug, Default)]
pub(crate) struct Whiteouts {
    pub(super) opaque: BTreeSet<TreePath>,
    pub(super) removed: BTreeSet<TreePath>,
    /// The directories that the layer describes itself.
    directories: HashSet<TreePath>,
}

impl Whiteouts {
    /// Reads a layer to its end for its marks.
    pub(crate) fn scan<R: BufRead>(input: R) -> Result<Self, UnpackError> {
        let mut archive = Archive::of_layer(input);
        let mut counter = Counter::default();
        let mut found = Self::default();
        while let Some(entry) = archive.next_entry()? {
            counter.count()?;
            found
                .take(&entry)
                .map_err(|source| refuse(entry.name(), source))?;
        }
        archive.drain()?;
        Ok(found)
    }

    fn take(&mut self, entry: &Entry) -> Result<(), PlaceError> {
        let path = TreePath::parse(&entry.path)?;
        match mark(&path, entry)? {
            Some(Mark::Opaque(directory)) => {
                self.opaque.insert(directory);
            }
            Some(Mark::Removed(path)) => {
                self.removed.insert(path);
            }
            None if entry.kind == Kind::Directory => {
                self.directories.insert(path);
            }
            None => {}
        }
        Ok(())
    }

    /// Tells how the path of a directory with marks ends. Where the layer has that directory
    /// itself, it hides a symbolic link below, and its marks concern nothing behind that link.
    pub(super) fn last_name(&self, directory: &[u8]) -> LastName {
        match TreePath::parse(directory) {
            Ok(path) if self.directories.contains(&path) => LastName::Itself,
            Ok(_) | Err(_) => LastName::Followed,
        }
    }
}

/// Returns what the entry marks; `None` for an entry that is no mark.
pub(super) fn mark(path: &TreePath, entry: &Entry) -> Result<Option<Mark>, PlaceError> {
    if !path.names().any(|name| name.starts_with(PREFIX)) {
        return Ok(None);
    }
    let Some((parent, name)) = path.split() else {
        return Ok(None);
    };
    let removed = name.as_bytes().strip_prefix(PREFIX);
    let within = parent
        .split(|byte| *byte == b'/')
        .any(|name| name.starts_with(PREFIX));
    let (Some(removed), Kind::File { bytes: 0 }, false) = (removed, &entry.kind, within) else {
        return Err(PlaceError::BadWhiteout);
    };
    if name.as_bytes() == OPAQUE {
        return Ok(Some(Mark::Opaque(TreePath::parse(parent)?)));
    }
    // `.wh...` must not remove the parent of the directory.
    if removed.is_empty()
        || removed == b"."
        || removed == b".."
        || name.as_bytes().starts_with(RESERVED)
    {
        return Err(PlaceError::BadWhiteout);
    }
    let path = [parent, removed].join(&b'/');
    Ok(Some(Mark::Removed(TreePath::parse(&path)?)))
}
