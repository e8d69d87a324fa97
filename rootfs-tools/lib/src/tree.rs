//! A directory tree that is being built, reached through its root's descriptor only.
//!
//! Every parent is resolved by the kernel as if the tree were `/` (`RESOLVE_IN_ROOT`, no magic
//! links), the last component is never followed, and what is in the way is unlinked first. So no
//! symbolic link, absolute path or hard link of an archive reaches outside.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// Why an entry cannot be placed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// `..` in a path: nothing that is honest needs it.
    #[error("its path or link target has the component `..`")]
    DotDot,
    /// A component longer than a file name may be.
    #[error("its path has a component longer than 255 bytes")]
    LongName,
    /// The entry would replace the root directory.
    #[error("it would replace the root directory by something else")]
    Root,
    /// A directory of the path is no directory.
    #[error("a directory of its path is a file, or a symbolic link that leads nowhere")]
    NoDirectory,
    /// A hard link to something that is not in the archive before it.
    #[error("the target of the hard link is not in the archive before it")]
    LinkTarget,
    /// A hard link to a directory.
    #[error("the target of the hard link is a directory")]
    LinkToDirectory,
    /// An image layer's mark for a removed file.
    #[error(
        "names that begin with .wh. mark removed files in image layers; import a plain root file system"
    )]
    Whiteout,
    /// A system call failed.
    #[error("{call} failed")]
    Call {
        /// The system call.
        call: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

pub(crate) fn call_failed(call: &'static str) -> impl FnOnce(Errno) -> PlaceError {
    move |source| PlaceError::Call {
        call,
        source: source.into(),
    }
}

/// The components of a path of an archive, relative to the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreePath(Vec<Vec<u8>>);

impl TreePath {
    /// Parses a path: leading slashes, `.` and empty components say nothing.
    pub(crate) fn parse(path: &[u8]) -> Result<Self, PlaceError> {
        let mut components = Vec::new();
        for component in path.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => return Err(PlaceError::DotDot),
                long if long.len() > crate::archive::MAX_NAME_BYTES => {
                    return Err(PlaceError::LongName);
                }
                name => components.push(name.to_vec()),
            }
        }
        Ok(Self(components))
    }

    /// Returns the parent and the last component; `None` for the root.
    pub(crate) fn split(&self) -> Option<(&[Vec<u8>], &OsStr)> {
        let (last, parent) = self.0.split_last()?;
        Some((parent, OsStr::from_bytes(last)))
    }

    pub(crate) fn components(&self) -> &[Vec<u8>] {
        &self.0
    }
}

/// Joins components to a relative path; `.` where there are none.
pub(crate) fn join(components: &[Vec<u8>]) -> PathBuf {
    if components.is_empty() {
        return PathBuf::from(".");
    }
    PathBuf::from(OsStr::from_bytes(&components.join(&b'/')))
}

/// A directory that was made because an entry below it came without one.
#[derive(Debug)]
pub(crate) struct Implicit {
    pub(crate) path: Vec<Vec<u8>>,
    pub(crate) inode: u64,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    /// The directory that was opened last: the entries of one directory come in a row.
    recent: Option<(Vec<Vec<u8>>, OwnedFd)>,
}

impl Tree {
    /// Opens the tree whose root is the directory `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self {
            root: rustix::fs::open(path, flags, Mode::empty())?,
            recent: None,
        })
    }

    /// Opens a directory for reading its attributes and for the `*at` calls.
    pub(crate) fn directory(
        &mut self,
        path: &[Vec<u8>],
        made: &mut Vec<Implicit>,
    ) -> Result<&OwnedFd, PlaceError> {
        let known = self
            .recent
            .as_ref()
            .is_some_and(|(recent, _)| recent == path);
        if !known {
            let opened = match self.resolve(path) {
                Err(Errno::NOENT) => self.make_path(path, made)?,
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(PlaceError::NoDirectory),
                resolved => resolved.map_err(call_failed("openat2"))?,
            };
            self.recent = Some((path.to_vec(), opened));
        }
        // It was set just now.
        self.recent
            .as_ref()
            .map(|(_, directory)| directory)
            .ok_or(PlaceError::NoDirectory)
    }

    /// Opens a directory that exists.
    pub(crate) fn resolve(&self, path: &[Vec<u8>]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        open_in_root(&self.root, &join(path), flags)
    }

    /// Makes the missing directories of a path, from the first that is missing.
    fn make_path(&self, path: &[Vec<u8>], made: &mut Vec<Implicit>) -> Result<OwnedFd, PlaceError> {
        let mut at = self.resolve(&[]).map_err(call_failed("openat2"))?;
        for (depth, name) in path.iter().enumerate() {
            let below = path.get(..=depth).unwrap_or(path);
            at = match self.resolve(below) {
                Ok(existing) => existing,
                Err(Errno::NOENT) => {
                    let name = OsStr::from_bytes(name);
                    match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) => {}
                        // A symbolic link to nothing.
                        Err(Errno::EXIST) => return Err(PlaceError::NoDirectory),
                        Err(error) => return Err(call_failed("mkdirat")(error)),
                    }
                    let directory = open_directory_at(&at, name)?;
                    let inode = inode(&directory)?;
                    made.push(Implicit {
                        path: below.to_vec(),
                        inode,
                    });
                    directory
                }
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(PlaceError::NoDirectory),
                Err(error) => return Err(call_failed("openat2")(error)),
            };
        }
        Ok(at)
    }

    /// Forgets the directory that was opened last: a path may now lead elsewhere.
    pub(crate) fn forget(&mut self) {
        self.recent = None;
    }
}

/// Opens `path` as if `root` were `/`.
pub(crate) fn open_in_root(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    // openat2(2): EAGAIN when something on the system was renamed while a `..` of a symbolic
    // link was resolved.
    for _ in 0..128 {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            outcome => return outcome,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens the directory `name` itself, not what a link of that name leads to.
pub(crate) fn open_directory_at(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, PlaceError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(call_failed("openat"))
}

/// Returns the attributes of `name` itself; `None` where there is none.
pub(crate) fn examine(parent: &OwnedFd, name: &OsStr) -> Result<Option<Stat>, PlaceError> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(call_failed("fstatat")(error)),
    }
}

/// Returns the inode number of an open directory.
pub(crate) fn inode(directory: &OwnedFd) -> Result<u64, PlaceError> {
    rustix::fs::fstat(directory)
        .map(|stat| stat.st_ino)
        .map_err(call_failed("fstat"))
}

/// Removes `name` and all below it.
pub(crate) fn remove(parent: &OwnedFd, name: &OsStr, stat: &Stat) -> Result<(), PlaceError> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return rustix::fs::unlinkat(parent, name, AtFlags::empty())
            .map_err(call_failed("unlinkat"));
    }
    let directory = open_directory_at(parent, name)?;
    let entries = Dir::read_from(&directory).map_err(call_failed("getdents64"))?;
    for entry in entries {
        let entry = entry.map_err(call_failed("getdents64"))?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        if let Some(stat) = examine(&directory, name)? {
            remove(&directory, name, &stat)?;
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(call_failed("unlinkat"))
}

/// Returns a path that leads to `name` in an open directory, for calls that have no `*at` form.
pub(crate) fn through(parent: &OwnedFd, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())).join(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_parsed_path_has_only_names(path in "[a./\\x00-\\x7f]{0,40}") {
            if let Ok(parsed) = TreePath::parse(path.as_bytes()) {
                for name in parsed.components() {
                    prop_assert!(!name.is_empty() && name != b"." && name != b"..");
                    prop_assert!(!name.contains(&b'/'));
                }
                let joined = join(parsed.components());
                prop_assert!(joined.is_relative());
            } else {
                prop_assert!(path.split('/').any(|part| part == ".."));
            }
        }
    }
}
