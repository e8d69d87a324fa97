//! Puts files into the upper of a generation that is not mounted, as overlayfs would have.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use casemate_sys::dir::{Dir, Owner};
use casemate_sys::{Error, Result};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::layer::merged::{Merged, Node, Side, xattrs};

/// Name under which a file is written before it takes its place.
const FRESH: &str = ".casemate-rebase";
/// Ids of a sandbox, and the one of files that belong to none of them.
const IDS: u32 = 65_536;
const NOBODY: u32 = 65_534;
const OPAQUE: &str = "trusted.overlay.opaque";

/// Whether something could be put in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    Done,
    /// A directory of its path is something else now, or a directory is in its place.
    Blocked,
}

/// Who owns a new file, by inner id, and its permission bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
}

/// Inner id of one that is stored on `side` of a layer whose files begin at `first`.
pub(super) fn attributes(node: &Node, first: u32) -> Attributes {
    let inner = |id: u32| {
        let inner = match node.place().0 {
            Side::Upper => id.checked_sub(first),
            Side::Base => Some(id),
        };
        // What the sandbox could not have made belongs to nobody in it.
        inner.filter(|id| *id < IDS).unwrap_or(NOBODY)
    };
    Attributes {
        uid: inner(node.stat.st_uid),
        gid: inner(node.stat.st_gid),
        mode: node.stat.st_mode & 0o7777,
    }
}

/// Writes into one upper.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    /// What is seen now: the new base and the upper that is written to.
    pub(super) target: &'a Merged,
    upper: &'a Dir,
    /// First id of both layers.
    first: u32,
    /// Where files with several names were put, by their inode in the source's upper.
    links: HashMap<u64, PathBuf>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(target: &'a Merged, first: u32) -> Result<Self> {
        let upper = target
            .side(Side::Upper)
            .ok_or_else(|| Error::new("openat2", "no upper", Errno::NOENT))?;
        Ok(Self {
            target,
            upper,
            first,
            links: HashMap::new(),
        })
    }

    /// Copies what a path is in another layer, with owner, mode, times and attributes. A directory
    /// is made without its content.
    pub(super) fn copy(&mut self, source: &Merged, path: &Path, node: &Node) -> Result<Put> {
        let attributes = attributes(node, self.first);
        match node.kind() {
            FileType::Directory => {
                if let Some(there) = self.target.find(path)? {
                    return Ok(if there.is_dir() {
                        Put::Done
                    } else {
                        Put::Blocked
                    });
                }
                if self.parents(source, path)? == Put::Blocked {
                    return Ok(Put::Blocked);
                }
                self.make_dir(path, attributes)?;
                let (from, to) = (source.open(node)?, self.open_upper(path)?);
                copy_xattrs(&from, &to)?;
                Ok(Put::Done)
            }
            FileType::RegularFile => {
                if node.stat.st_nlink > 1
                    && let Some(first) = self.links.get(&node.stat.st_ino).cloned()
                {
                    return self.link(source, &first, path);
                }
                let content = source.open(node)?;
                let put = self.file(
                    source,
                    path,
                    content.try_clone().map_err(io_error)?,
                    attributes,
                )?;
                if put == Put::Done {
                    let to = self.open_upper(path)?;
                    copy_xattrs(&content, &to)?;
                    set_times(&to, &node.stat)?;
                    if node.stat.st_nlink > 1 {
                        self.links.insert(node.stat.st_ino, path.to_owned());
                    }
                }
                Ok(put)
            }
            FileType::Symlink => {
                let link = source.read_link(node)?;
                let make =
                    |parent: &OwnedFd, name: &OsStr| rustix::fs::symlinkat(&link, parent, name);
                self.node(source, path, attributes, &make)
            }
            FileType::Fifo => {
                let mode = Mode::from_raw_mode(attributes.mode);
                let make = |parent: &OwnedFd, name: &OsStr| {
                    rustix::fs::mknodat(parent, name, FileType::Fifo, mode, 0)
                };
                self.node(source, path, attributes, &make)
            }
            // Devices do not work in a layer, and a socket has nobody behind it.
            FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(Put::Blocked),
        }
    }

    /// Writes a file with this content.
    pub(super) fn write(
        &mut self,
        source: &Merged,
        path: &Path,
        content: &[u8],
        attributes: Attributes,
    ) -> Result<Put> {
        let memory = casemate_sys::memfd::sealed("content", &[content])?;
        rustix::fs::seek(&memory, rustix::fs::SeekFrom::Start(0))
            .map_err(Error::of("lseek", || "memfd".to_owned()))?;
        self.file(source, path, memory, attributes)
    }

    /// Takes a path away from what is seen.
    pub(super) fn delete(&mut self, source: &Merged, path: &Path) -> Result<Put> {
        if self.target.find(path)?.is_none() {
            return Ok(Put::Done);
        }
        if self.parents(source, path)? == Put::Blocked {
            return Ok(Put::Blocked);
        }
        self.upper.remove_tree(path)?;
        if let Some(base) = self.target.side(Side::Base)
            && crate::layer::merged::stat(base, path)?.is_some()
        {
            self.upper.make_device(path, 0, 0, 0)?;
        }
        Ok(Put::Done)
    }

    fn file(
        &mut self,
        source: &Merged,
        path: &Path,
        content: OwnedFd,
        attributes: Attributes,
    ) -> Result<Put> {
        if !self.clear(source, path)? {
            return Ok(Put::Blocked);
        }
        let fresh = path.with_file_name(FRESH);
        self.upper.remove_tree(&fresh)?;
        let file = self
            .upper
            .open(&fresh, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        let mut file = File::from(file);
        io::copy(&mut File::from(content), &mut file).map_err(io_error)?;
        self.own(&file, attributes)?;
        let (parent, name) = self.parent(path)?;
        rustix::fs::renameat(&parent, FRESH, &parent, name)
            .map_err(Error::of("renameat", || path.display().to_string()))?;
        Ok(Put::Done)
    }

    fn node(
        &mut self,
        source: &Merged,
        path: &Path,
        attributes: Attributes,
        make: &dyn Fn(&OwnedFd, &OsStr) -> std::result::Result<(), Errno>,
    ) -> Result<Put> {
        if !self.clear(source, path)? {
            return Ok(Put::Blocked);
        }
        let (parent, name) = self.parent(path)?;
        make(&parent, name).map_err(Error::of("mknodat", || path.display().to_string()))?;
        let (uid, gid) = self.host(attributes);
        rustix::fs::chownat(
            &parent,
            name,
            Some(uid),
            Some(gid),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .map_err(Error::of("fchownat", || path.display().to_string()))?;
        Ok(Put::Done)
    }

    fn link(&mut self, source: &Merged, first: &Path, path: &Path) -> Result<Put> {
        if !self.clear(source, path)? {
            return Ok(Put::Blocked);
        }
        let (from, name) = self.parent(first)?;
        let (to, new) = self.parent(path)?;
        rustix::fs::linkat(&from, name, &to, new, AtFlags::empty())
            .map_err(Error::of("linkat", || path.display().to_string()))?;
        Ok(Put::Done)
    }

    /// Makes room for something that is no directory; `false` where that cannot be.
    fn clear(&mut self, source: &Merged, path: &Path) -> Result<bool> {
        if self.target.find(path)?.is_some_and(|node| node.is_dir()) {
            return Ok(false);
        }
        if self.parents(source, path)? == Put::Blocked {
            return Ok(false);
        }
        match self.upper.remove_file(path) {
            Err(error) if error.errno() != Errno::NOENT => Err(error),
            _gone => Ok(true),
        }
    }

    /// Makes the directories of a path, as the new base has them, or as the other layer has them.
    fn parents(&self, source: &Merged, path: &Path) -> Result<Put> {
        let mut ancestors: Vec<&Path> = path.ancestors().skip(1).collect();
        ancestors.reverse();
        for dir in ancestors {
            if dir.as_os_str().is_empty() {
                continue;
            }
            let node = match self.target.find(dir)? {
                Some(node) if node.upper.is_some() && node.is_dir() => continue,
                Some(node) if node.is_dir() => node,
                Some(_other) => return Ok(Put::Blocked),
                None => match source.find(dir)? {
                    Some(node) if node.is_dir() => node,
                    Some(_) | None => return Ok(Put::Blocked),
                },
            };
            self.make_dir(dir, attributes(&node, self.first))?;
        }
        Ok(Put::Done)
    }

    fn make_dir(&self, path: &Path, attributes: Attributes) -> Result<()> {
        let was_removed = match self.upper.remove_file(path) {
            Ok(()) => true,
            Err(error) if matches!(error.errno(), Errno::NOENT) => false,
            Err(error) => return Err(error),
        };
        self.upper.make_dir(path, 0o700, Owner { uid: 0, gid: 0 })?;
        let made = self.open_upper(path)?;
        if was_removed {
            // What the base has there stays removed.
            rustix::fs::fsetxattr(&made, OPAQUE, b"y", XattrFlags::empty())
                .map_err(Error::of("fsetxattr", || OPAQUE.to_owned()))?;
        }
        self.own(&made, attributes)
    }

    fn own(&self, file: impl std::os::fd::AsFd, attributes: Attributes) -> Result<()> {
        let (uid, gid) = self.host(attributes);
        rustix::fs::fchown(&file, Some(uid), Some(gid))
            .map_err(Error::of("fchown", || format!("{attributes:?}")))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(attributes.mode))
            .map_err(Error::of("fchmod", || format!("{attributes:?}")))
    }

    fn host(&self, attributes: Attributes) -> (Uid, Gid) {
        let host = |id: u32| self.first.saturating_add(id);
        (
            Uid::from_raw(host(attributes.uid)),
            Gid::from_raw(host(attributes.gid)),
        )
    }

    fn open_upper(&self, path: &Path) -> Result<OwnedFd> {
        self.upper.open(path, OFlags::RDONLY | OFlags::NONBLOCK)
    }

    fn parent<'p>(&self, path: &'p Path) -> Result<(OwnedFd, &'p OsStr)> {
        let parent = path.parent().unwrap_or_else(|| Path::new(""));
        let fd = self
            .upper
            .open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok((fd, path.file_name().unwrap_or_default()))
    }
}

fn copy_xattrs(from: &OwnedFd, to: &OwnedFd) -> Result<()> {
    for (name, value) in xattrs(from)? {
        rustix::fs::fsetxattr(to, &*name, &value, XattrFlags::empty())
            .map_err(Error::of("fsetxattr", || {
                name.to_string_lossy().into_owned()
            }))?;
    }
    Ok(())
}

fn set_times(to: &OwnedFd, stat: &Stat) -> Result<()> {
    let time = |seconds: i64, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    rustix::fs::futimens(to, &times).map_err(Error::of("utimensat", String::new))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn io_error(error: io::Error) -> Error {
    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
    Error::new("write", error.to_string(), errno)
}

/// Feeds a file to `sink`.
pub(super) fn stream(file: OwnedFd, sink: &mut dyn FnMut(&[u8])) -> Result<()> {
    let mut file = File::from(file);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer).map_err(io_error)? {
            0 => return Ok(()),
            count => sink(buffer.get(..count).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn world() -> (tempfile::TempDir, Merged, Merged) {
        let temp = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let path = temp.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Dir::open_trusted(&path).unwrap()
        };
        let (a, u) = (dir("a"), dir("u"));
        let (b, n) = (dir("b"), dir("n"));
        (temp, Merged::new(a, Some(u)), Merged::new(b, Some(n)))
    }

    #[test]
    fn a_copy_keeps_everything() {
        let (temp, source, target) = world();
        let path = temp.path();
        std::fs::create_dir_all(path.join("u/srv/x")).unwrap();
        std::fs::write(path.join("u/srv/x/file"), "content").unwrap();
        std::fs::hard_link(path.join("u/srv/x/file"), path.join("u/srv/x/same")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path.join("u/srv/x/link")).unwrap();
        std::os::unix::fs::chown(path.join("u/srv/x/file"), Some(70_007), Some(70_008)).unwrap();
        let file = File::open(path.join("u/srv/x/file")).unwrap();
        rustix::fs::fsetxattr(&file, "user.x", b"1", XattrFlags::empty()).unwrap();
        let mut writer = Writer::new(&target, 70_000).unwrap();
        for name in ["srv/x", "srv/x/file", "srv/x/same", "srv/x/link"] {
            let node = source.find(Path::new(name)).unwrap().unwrap();
            assert_eq!(
                writer.copy(&source, Path::new(name), &node).unwrap(),
                Put::Done
            );
        }
        let made = std::fs::metadata(path.join("n/srv/x/file")).unwrap();
        assert_eq!((made.uid(), made.gid(), made.nlink()), (70_007, 70_008, 2));
        let file = File::open(path.join("n/srv/x/same")).unwrap();
        assert_eq!(xattrs(&OwnedFd::from(file)).unwrap().len(), 1);
        let link = std::fs::read_link(path.join("n/srv/x/link")).unwrap();
        assert_eq!(link, Path::new("/etc/passwd"));
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let (temp, source, target) = world();
        let path = temp.path();
        std::fs::create_dir_all(path.join("u/opt/x")).unwrap();
        std::fs::write(path.join("u/opt/x/file"), "content").unwrap();
        std::fs::create_dir_all(path.join("victim")).unwrap();
        std::os::unix::fs::symlink(path.join("victim"), path.join("n/opt")).unwrap();
        let mut writer = Writer::new(&target, 0).unwrap();
        let name = Path::new("opt/x/file");
        let node = source.find(name).unwrap().unwrap();
        assert_eq!(writer.copy(&source, name, &node).unwrap(), Put::Blocked);
        assert_eq!(std::fs::read_dir(path.join("victim")).unwrap().count(), 0);
    }

    #[test]
    fn a_deletion_hides_what_the_base_has() {
        let (temp, source, target) = world();
        let path = temp.path();
        std::fs::create_dir_all(path.join("b/etc")).unwrap();
        std::fs::write(path.join("b/etc/x"), "x").unwrap();
        let mut writer = Writer::new(&target, 0).unwrap();
        let name = Path::new("etc/x");
        assert_eq!(writer.delete(&source, name).unwrap(), Put::Done);
        assert!(target.find(name).unwrap().is_none());
        let file = Attributes {
            uid: 0,
            gid: 0,
            mode: 0o600,
        };
        assert_eq!(writer.write(&source, name, b"y", file).unwrap(), Put::Done);
        assert_eq!(target.read(name, 9).unwrap().unwrap(), b"y");
    }
}
