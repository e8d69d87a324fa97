//! A layer over its base, read the way overlayfs shows it, without a mount.
//!
//! The upper was written by whoever used the terminal: everything is opened by handle, and a
//! symlink on the way is no directory. Overlayfs' marks are read as the kernel does: a character
//! device 0:0 is a deletion, `trusted.overlay.opaque` hides what lies below, and
//! `trusted.overlay.redirect` says where a renamed directory was.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use casemate_sys::dir::Dir;
use casemate_sys::{Error, Result};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

/// What the names of overlayfs' own attributes begin with.
pub(crate) const OVERLAY_PREFIX: &str = "trusted.overlay.";
const OPAQUE: &str = "trusted.overlay.opaque";
const REDIRECT: &str = "trusted.overlay.redirect";
/// Longest value of an attribute (`XATTR_SIZE_MAX`).
const MAX_XATTR: usize = 65_536;

/// Which of the two directories something lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Upper,
    Base,
}

/// Something that is seen. A directory may be of both sides.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// Where it is in the upper.
    pub(crate) upper: Option<PathBuf>,
    /// Where it is in the base, which is another path after a rename.
    pub(crate) base: Option<PathBuf>,
    /// What is known of it; ids as they are stored on its side.
    pub(crate) stat: Stat,
}

impl Node {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// The side whose attributes and content are seen, and the path there.
    pub(crate) fn place(&self) -> (Side, &Path) {
        match (&self.upper, &self.base) {
            (Some(path), _) => (Side::Upper, path),
            (None, Some(path)) => (Side::Base, path),
            (None, None) => (Side::Base, Path::new("")),
        }
    }
}

/// A base with an upper over it, or alone.
#[derive(Debug)]
pub(crate) struct Merged {
    base: Dir,
    upper: Option<Dir>,
}

impl Merged {
    pub(crate) fn new(base: Dir, upper: Option<Dir>) -> Self {
        Self { base, upper }
    }

    /// Opens a base alone.
    pub(crate) fn base(fs: &Path) -> Result<Self> {
        Ok(Self::new(Dir::open_trusted(fs)?, None))
    }

    pub(crate) fn side(&self, side: Side) -> Option<&Dir> {
        match side {
            Side::Base => Some(&self.base),
            Side::Upper => self.upper.as_ref(),
        }
    }

    /// Returns the root directory.
    pub(crate) fn root(&self) -> Result<Node> {
        let here = Path::new("");
        let stat = match &self.upper {
            Some(upper) => upper.stat(here)?,
            None => self.base.stat(here)?,
        };
        Ok(Node {
            upper: self.upper.is_some().then(PathBuf::new),
            base: Some(PathBuf::new()),
            stat,
        })
    }

    /// Returns what a path is; nothing is followed.
    pub(crate) fn find(&self, path: &Path) -> Result<Option<Node>> {
        let mut node = self.root()?;
        for component in path.components() {
            let Component::Normal(name) = component else {
                continue;
            };
            match self.child(&node, name)? {
                Some(child) => node = child,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    /// Returns what a name in a directory is.
    pub(crate) fn child(&self, dir: &Node, name: &OsStr) -> Result<Option<Node>> {
        if !dir.is_dir() {
            return Ok(None);
        }
        let lower = dir.base.as_ref().map(|path| path.join(name));
        let above = match (&self.upper, &dir.upper) {
            (Some(side), Some(path)) => {
                let path = path.join(name);
                stat(side, &path)?.map(|stat| (side, path, stat))
            }
            (Some(_), None) | (None, _) => None,
        };
        let Some((side, path, found)) = above else {
            let Some(path) = lower else {
                return Ok(None);
            };
            return Ok(stat(&self.base, &path)?.map(|stat| Node {
                upper: None,
                base: Some(path),
                stat,
            }));
        };
        if is_whiteout(&found) {
            return Ok(None);
        }
        let base = if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            self.below(side, &path, lower)?
        } else {
            None
        };
        Ok(Some(Node {
            upper: Some(path),
            base,
            stat: found,
        }))
    }

    /// Returns the directory of the base that a directory of the upper is merged with.
    fn below(&self, side: &Dir, path: &Path, lower: Option<PathBuf>) -> Result<Option<PathBuf>> {
        let dir = side.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        if xattr(&dir, OPAQUE)?.is_some_and(|value| value == b"y") {
            return Ok(None);
        }
        let lower = match xattr(&dir, REDIRECT)? {
            None => lower,
            Some(target) => {
                let target = Path::new(OsStr::from_bytes(&target)).to_owned();
                match target.strip_prefix("/") {
                    Ok(below) => Some(below.to_owned()),
                    Err(_relative) => lower.map(|lower| lower.with_file_name(target)),
                }
            }
        };
        let Some(lower) = lower else {
            return Ok(None);
        };
        let is_dir = stat(&self.base, &lower)?
            .is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        Ok(is_dir.then_some(lower))
    }

    /// Returns the names that are seen in a directory, with those that the upper says are gone.
    pub(crate) fn names(&self, dir: &Node) -> Result<BTreeSet<OsString>> {
        let mut names = BTreeSet::new();
        let sides = [
            (self.upper.as_ref(), &dir.upper),
            (Some(&self.base), &dir.base),
        ];
        for (side, path) in sides {
            if let (Some(side), Some(path)) = (side, path) {
                let found = side.open_dir(path)?.names()?;
                names.extend(found.into_iter().map(PathBuf::into_os_string));
            }
        }
        Ok(names)
    }

    /// Opens the content of a regular file or a directory for reading.
    pub(crate) fn open(&self, node: &Node) -> Result<OwnedFd> {
        let (side, path) = node.place();
        let dir = self
            .side(side)
            .ok_or_else(|| Error::new("openat2", path.display().to_string(), Errno::NOENT))?;
        dir.open(path, OFlags::RDONLY | OFlags::NONBLOCK)
    }

    /// Reads a regular file; `None` where there is none by that path.
    pub(crate) fn read(&self, path: &Path, limit: usize) -> Result<Option<Vec<u8>>> {
        match self.find(path)? {
            Some(node) if node.kind() == FileType::RegularFile => {
                self.read_node(&node, limit).map(Some)
            }
            Some(_) | None => Ok(None),
        }
    }

    pub(crate) fn read_node(&self, node: &Node, limit: usize) -> Result<Vec<u8>> {
        let (side, path) = node.place();
        match self.side(side) {
            Some(dir) => dir.read(path, limit),
            None => Ok(Vec::new()),
        }
    }

    /// Returns where a symbolic link leads.
    pub(crate) fn read_link(&self, node: &Node) -> Result<PathBuf> {
        let (side, path) = node.place();
        let fail = |errno| Error::new("readlinkat", path.display().to_string(), errno);
        let dir = self.side(side).ok_or_else(|| fail(Errno::NOENT))?;
        let parent = dir.open(
            path.parent().unwrap_or_else(|| Path::new("")),
            OFlags::PATH | OFlags::DIRECTORY,
        )?;
        let name = path.file_name().unwrap_or_default();
        let target = rustix::fs::readlinkat(&parent, name, Vec::new()).map_err(fail)?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }
}

fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Returns what is known of a path; `None` where nothing is, or something on the way is no
/// directory.
pub(crate) fn stat(dir: &Dir, path: &Path) -> Result<Option<Stat>> {
    match dir.stat(path) {
        Ok(stat) => Ok(Some(stat)),
        Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns the value of an extended attribute of an open file.
pub(crate) fn xattr(file: &OwnedFd, name: &str) -> Result<Option<Vec<u8>>> {
    let mut value = vec![0; MAX_XATTR];
    match rustix::fs::fgetxattr(file, name, &mut value[..]) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(Error::new("fgetxattr", name, errno)),
    }
}

/// Returns the extended attributes of an open file, without overlayfs' own.
pub(crate) fn xattrs(file: &OwnedFd) -> Result<Vec<(OsString, Vec<u8>)>> {
    let mut list = vec![0; MAX_XATTR];
    let length = match rustix::fs::flistxattr(file, &mut list[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(Error::new("flistxattr", "", errno)),
    };
    list.truncate(length);
    let mut found = Vec::new();
    for name in list.split(|byte| *byte == 0) {
        if name.is_empty() || name.starts_with(OVERLAY_PREFIX.as_bytes()) {
            continue;
        }
        let name = OsStr::from_bytes(name);
        if let Some(value) = xattr(file, &name.to_string_lossy())? {
            found.push((name.to_owned(), value));
        }
    }
    Ok(found)
}
