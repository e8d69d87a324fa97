//! Directories that the operator has named: the only places below which sources are looked up.

use std::path::{Path, PathBuf};

use casemate_bundles::{HostPath, ProjectionKind};
use casemate_sys::dir::Dir;
use casemate_sys::{Error, Result};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Open directories by their paths.
#[derive(Debug, Default)]
pub(crate) struct Roots(Vec<(HostPath, Dir)>);

impl Roots {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Opens a directory that the operator has named, following symlinks on the way to it.
    pub(crate) fn add(&mut self, path: &HostPath) -> Result<()> {
        self.0.push((path.clone(), Dir::open_trusted(path.as_ref())?));
        Ok(())
    }

    /// Adds an open directory.
    pub(crate) fn add_open(&mut self, path: HostPath, dir: Dir) {
        self.0.push((path, dir));
    }

    /// The innermost named directory that `path` lies in, and the way from there.
    pub(crate) fn find<'a>(&self, path: &'a HostPath) -> Option<(&Dir, &'a Path)> {
        self.0
            .iter()
            .filter_map(|(root, dir)| Some((root.depth(), dir, path.below(root)?)))
            .max_by_key(|(depth, ..)| *depth)
            .map(|(_, dir, below)| (dir, Path::new(below)))
    }

    /// Opens a source (`O_PATH`) below one of the directories, never through a symlink, and checks
    /// what it is.
    pub(crate) fn open(&self, path: &HostPath, kind: ProjectionKind) -> Result<OwnedFd> {
        let (dir, below) = self
            .find(path)
            .ok_or_else(|| Error::new("openat2", format!("{path:?}: no root"), Errno::ACCESS))?;
        let fd = dir.open(below, OFlags::PATH)?;
        check_kind(&fd, path.as_ref(), kind)?;
        Ok(fd)
    }
}

/// Refuses an open file that is not of the kind, with `ENOTDIR` or `EISDIR`.
pub(crate) fn check_kind(fd: &OwnedFd, path: &Path, kind: ProjectionKind) -> Result<()> {
    let show = || format!("{}", PathBuf::from(path).display());
    let stat = rustix::fs::fstat(fd).map_err(Error::of("fstat", show))?;
    match (FileType::from_raw_mode(stat.st_mode), kind) {
        (FileType::Directory, ProjectionKind::Directory)
        | (FileType::RegularFile, ProjectionKind::File) => Ok(()),
        (_, ProjectionKind::Directory) => Err(Error::new("fstat", show(), Errno::NOTDIR)),
        (_, ProjectionKind::File) => Err(Error::new("fstat", show(), Errno::ISDIR)),
    }
}
