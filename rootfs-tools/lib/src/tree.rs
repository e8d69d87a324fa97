//! A directory tree that is being built, reached through its root's descriptor only.
//!
//! Every parent is resolved by the kernel as if the tree were `/` (`RESOLVE_IN_ROOT`, no magic
//! links), the last component is never followed, and what is in the way is unlinked first. So no
//! symbolic link, absolute path or hard link of an archive reaches outside.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// Deepest nesting of directories. Whoever walks or removes the tree keeps one descriptor a level.
pub(crate) const MAX_DEPTH: u32 = 256;

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
    /// An image layer's mark for a removed file, in a plain root file system.
    #[error(
        "names that begin with .wh. mark removed files in image layers; import the image it belongs to"
    )]
    Whiteout,
    /// A mark for a removed file that names none, or is no empty file.
    #[error("it begins with .wh., but marks no file as removed")]
    BadWhiteout,
    /// Directories nested like nobody nests them.
    #[error("it is nested deeper than {MAX_DEPTH} directories")]
    Depth,
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

/// A path of an archive, relative to the root: names with single slashes between them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TreePath(Vec<u8>);

impl TreePath {
    /// Parses a path: leading slashes, `.` and empty components say nothing.
    pub(crate) fn parse(path: &[u8]) -> Result<Self, PlaceError> {
        let mut joined = Vec::with_capacity(path.len());
        for component in path.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => return Err(PlaceError::DotDot),
                long if long.len() > crate::archive::MAX_NAME_BYTES => {
                    return Err(PlaceError::LongName);
                }
                name => {
                    if !joined.is_empty() {
                        joined.push(b'/');
                    }
                    joined.extend_from_slice(name);
                }
            }
        }
        Ok(Self(joined))
    }

    /// Returns the parent and the last name; `None` for the root.
    pub(crate) fn split(&self) -> Option<(&[u8], &OsStr)> {
        let name = self.names().next_back().filter(|name| !name.is_empty())?;
        let parent = self.0.len().saturating_sub(name.len() + 1);
        Some((self.0.get(..parent)?, OsStr::from_bytes(name)))
    }

    /// Returns the names; one empty name for the root.
    pub(crate) fn names(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/')
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// An open directory of the tree.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) fd: OwnedFd,
    pub(crate) inode: u64,
}

impl Directory {
    pub(crate) fn new(fd: OwnedFd) -> Result<Self, PlaceError> {
        let inode = rustix::fs::fstat(&fd).map_err(call_failed("fstat"))?.st_ino;
        Ok(Self { fd, inode })
    }
}

/// What becomes of a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastName {
    Followed,
    Itself,
}

/// A directory that was made because an entry below it came without one.
#[derive(Debug)]
pub(crate) struct Implicit {
    pub(crate) inode: u64,
    pub(crate) parent: u64,
    pub(crate) name: Vec<u8>,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    /// The directory that was opened last: the entries of one directory come in a row.
    recent: Option<(Vec<u8>, Rc<Directory>)>,
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

    /// Opens a directory for reading its attributes and for the `*at` calls, making what is
    /// missing of its path.
    pub(crate) fn directory(
        &mut self,
        path: &[u8],
        made: &mut Vec<Implicit>,
    ) -> Result<Rc<Directory>, PlaceError> {
        if let Some((recent, directory)) = &self.recent
            && recent == path
        {
            return Ok(Rc::clone(directory));
        }
        let opened = match self.resolve(path) {
            Err(Errno::NOENT) => self.make_path(path, made)?,
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(PlaceError::NoDirectory),
            resolved => Directory::new(resolved.map_err(call_failed("openat2"))?)?,
        };
        let opened = Rc::new(opened);
        self.recent = Some((path.to_vec(), Rc::clone(&opened)));
        Ok(opened)
    }

    /// Opens a directory that exists.
    pub(crate) fn resolve(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        open_in_root(&self.root, path, flags)
    }

    /// Opens a directory of the layers below. `end` says whether the last name may be a symbolic
    /// link.
    pub(crate) fn resolve_below(&self, path: &[u8], end: LastName) -> Result<OwnedFd, Errno> {
        let flags = match end {
            LastName::Followed => OFlags::empty(),
            LastName::Itself => OFlags::NOFOLLOW,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | flags;
        open_in_root(&self.root, path, flags)
    }

    /// Opens what is at `path` when no part of it is a symbolic link.
    pub(crate) fn resolve_real(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        open_resolved(&self.root, path, flags, resolve)
    }

    /// Makes the missing directories of a path, from the first that is missing.
    fn make_path(&self, path: &[u8], made: &mut Vec<Implicit>) -> Result<Directory, PlaceError> {
        let root = self.resolve(b"").map_err(call_failed("openat2"))?;
        let mut at = Directory::new(root)?;
        let mut end = 0;
        for name in path.split(|byte| *byte == b'/') {
            end += name.len();
            at = match self.resolve(path.get(..end).unwrap_or(path)) {
                Ok(existing) => Directory::new(existing)?,
                Err(Errno::NOENT) => {
                    let directory = make_implicit(&at, name)?;
                    made.push(Implicit {
                        inode: directory.inode,
                        parent: at.inode,
                        name: name.to_vec(),
                    });
                    directory
                }
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(PlaceError::NoDirectory),
                Err(error) => return Err(call_failed("openat2")(error)),
            };
            end += 1;
        }
        Ok(at)
    }

    /// Forgets the directory that was opened last: a path may now lead elsewhere.
    pub(crate) fn forget(&mut self) {
        self.recent = None;
    }
}

fn make_implicit(parent: &Directory, name: &[u8]) -> Result<Directory, PlaceError> {
    let name = OsStr::from_bytes(name);
    match rustix::fs::mkdirat(&parent.fd, name, Mode::RWXU) {
        Ok(()) => {}
        // A symbolic link to nothing.
        Err(Errno::EXIST) => return Err(PlaceError::NoDirectory),
        Err(error) => return Err(call_failed("mkdirat")(error)),
    }
    Directory::new(open_directory_at(&parent.fd, name)?)
}

/// Opens `path` as if `root` were `/`.
pub(crate) fn open_in_root(root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    open_resolved(root, path, flags, resolve)
}

fn open_resolved(
    root: &OwnedFd,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
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

/// Removes `name` and all below it. `gone` gets the inode number of each directory.
pub(crate) fn remove(
    parent: &OwnedFd,
    name: &OsStr,
    stat: &Stat,
    gone: &mut dyn FnMut(u64),
) -> Result<(), PlaceError> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return rustix::fs::unlinkat(parent, name, AtFlags::empty())
            .map_err(call_failed("unlinkat"));
    }
    let directory = open_directory_at(parent, name)?;
    remove_children(&directory, gone)?;
    gone(stat.st_ino);
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(call_failed("unlinkat"))
}

/// Removes all that is in a directory.
pub(crate) fn remove_children(
    directory: &OwnedFd,
    gone: &mut dyn FnMut(u64),
) -> Result<(), PlaceError> {
    let entries = Dir::read_from(directory).map_err(call_failed("getdents64"))?;
    for entry in entries {
        let entry = entry.map_err(call_failed("getdents64"))?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        if let Some(stat) = examine(directory, name)? {
            remove(directory, name, &stat, gone)?;
        }
    }
    Ok(())
}

/// Returns a path that leads to `name` in an open directory, for calls that have no `*at` form.
pub(crate) fn through(parent: BorrowedFd<'_>, name: &OsStr) -> PathBuf {
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
                let Some((parent, name)) = parsed.split() else {
                    prop_assert!(parsed.as_bytes().is_empty());
                    return Ok(());
                };
                let whole = [parent, b"/", name.as_bytes()].concat();
                prop_assert!(whole.strip_prefix(b"/").unwrap_or(&whole) == parsed.as_bytes());
                for name in parsed.names() {
                    prop_assert!(!name.is_empty() && name != b"." && name != b"..");
                }
            } else {
                prop_assert!(path.split('/').any(|part| part == ".."));
            }
        }
    }
}
