//! Directories that the operator has named: the only places below which sources are looked up.

use std::os::fd::OwnedFd;
use std::path::Path;

use casemate_bundles::{HostPath, ProjectionKind};
use casemate_sys::dir::Dir;
use casemate_sys::{Error, Result};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

/// The directories. They are opened anew by each keeper: a mount can be cloned only through a
/// descriptor of the own mount namespace.
#[derive(Debug)]
pub(crate) struct Roots(Vec<HostPath>);

impl Roots {
    /// Checks that each is a directory.
    pub(crate) fn new(paths: Vec<HostPath>) -> Result<Self> {
        for path in &paths {
            Dir::open_trusted(path.as_ref())?;
        }
        Ok(Self(paths))
    }

    /// Opens a directory that is written to, as [`Self::open`] does.
    pub(crate) fn open_dir(&self, path: &HostPath) -> Result<Dir> {
        let (root, below) = self.place(path)?;
        Dir::open_trusted(root.as_ref())?.open_dir(Path::new(below))
    }

    /// Opens a source (`O_PATH`) below the innermost directory that it lies in, never through a
    /// symlink from there on, and checks what it is.
    pub(crate) fn open(&self, path: &HostPath, kind: ProjectionKind) -> Result<OwnedFd> {
        let (root, below) = self.place(path)?;
        let fd = Dir::open_trusted(root.as_ref())?.open(Path::new(below), OFlags::PATH)?;
        check_kind(&fd, path.as_ref(), kind)?;
        Ok(fd)
    }

    fn place<'p>(&self, path: &'p HostPath) -> Result<(&HostPath, &'p str)> {
        self.0
            .iter()
            .filter_map(|root| Some((root, path.below(root)?)))
            .max_by_key(|(root, _)| root.depth())
            .ok_or_else(|| Error::new("openat2", format!("{path}: no root"), Errno::ACCESS))
    }
}

/// Refuses an open file that is not of the kind, with `ENOTDIR` or `EISDIR`.
pub(crate) fn check_kind(fd: &OwnedFd, path: &Path, kind: ProjectionKind) -> Result<()> {
    let show = || path.display().to_string();
    let stat = rustix::fs::fstat(fd).map_err(Error::of("fstat", show))?;
    match (FileType::from_raw_mode(stat.st_mode), kind) {
        (FileType::Directory, ProjectionKind::Directory)
        | (FileType::RegularFile, ProjectionKind::File) => Ok(()),
        (_, ProjectionKind::Directory) => Err(Error::new("fstat", show(), Errno::NOTDIR)),
        (_, ProjectionKind::File) => Err(Error::new("fstat", show(), Errno::ISDIR)),
    }
}
