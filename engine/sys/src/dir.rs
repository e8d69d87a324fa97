//! Directory handles: the only way in which the engine makes or opens a path that somebody else may
//! have written.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dev, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid, chownat,
    fstat, mkdirat, mknodat, openat2, renameat_with, unlinkat,
};
use rustix::io::Errno;

use crate::{Error, Result};

/// Who owns what is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Host user id.
    pub uid: u32,
    /// Host group id.
    pub gid: u32,
}

/// An open directory. Paths given to its methods are relative to it, are resolved beneath it and
/// never through a symlink or a magic link (`openat2(2)`, `RESOLVE_IN_ROOT`).
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

const BENEATH: ResolveFlags = ResolveFlags::IN_ROOT
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

impl Dir {
    /// Opens a directory by a path that the operator has chosen; symlinks on the way are followed.
    pub fn open_trusted(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(Error::of("openat", || {
                format!("AT_FDCWD, {path:?}, {flags:?}")
            }))?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// Opens a directory below this one.
    pub fn open_dir(&self, below: &Path) -> Result<Self> {
        Ok(Self {
            fd: self.open(below, OFlags::RDONLY | OFlags::DIRECTORY)?,
            path: self.path.join(below),
        })
    }

    /// Opens something below this directory; `O_CLOEXEC` and `O_NOFOLLOW` are added. An empty path
    /// is the directory itself. With `O_PATH` a symlink as the last component is opened as itself:
    /// look at its kind.
    pub fn open(&self, below: &Path, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let name = if below.as_os_str().is_empty() {
            Path::new(".")
        } else {
            below
        };
        let mode = if flags.contains(OFlags::CREATE) {
            Mode::from_raw_mode(0o600)
        } else {
            Mode::empty()
        };
        openat2(&self.fd, name, flags, mode, BENEATH).map_err(Error::of("openat2", || {
            format!("{:?}, {name:?}, {flags:?}, IN_ROOT|NO_SYMLINKS", self.path)
        }))
    }

    /// Returns what is known about something below this directory.
    pub fn stat(&self, below: &Path) -> Result<Stat> {
        let fd = self.open(below, OFlags::PATH)?;
        fstat(&fd).map_err(Error::of("fstat", || {
            format!("{:?}", self.path.join(below))
        }))
    }

    /// Makes a directory; its parent exists. The mode is exact only with `umask(0)`.
    pub fn make_dir(&self, below: &Path, mode: u32, owner: Owner) -> Result<()> {
        let (parent, name) = self.parent(below)?;
        mkdirat(&parent, name, Mode::from_raw_mode(mode))
            .map_err(Error::of("mkdirat", || self.show(below)))?;
        self.own(&parent, name, owner)
    }

    /// Makes an empty regular file; its parent exists.
    pub fn make_file(&self, below: &Path, mode: u32, owner: Owner) -> Result<()> {
        self.make_node(below, (FileType::RegularFile, 0), mode, owner)
    }

    /// Makes a FIFO; its parent exists.
    pub fn make_fifo(&self, below: &Path, mode: u32, owner: Owner) -> Result<()> {
        self.make_node(below, (FileType::Fifo, 0), mode, owner)
    }

    /// Makes a character device owned by root; its parent exists.
    pub fn make_device(&self, below: &Path, mode: u32, major: u32, minor: u32) -> Result<()> {
        let device = rustix::fs::makedev(major, minor);
        let root = Owner { uid: 0, gid: 0 };
        self.make_node(below, (FileType::CharacterDevice, device), mode, root)
    }

    /// Makes every missing directory of `below`. What exists must be directories.
    pub fn ensure_dirs(&self, below: &Path, mode: u32, owner: Owner) -> Result<()> {
        match self.open(below, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(_exists) => return Ok(()),
            Err(error) if error.errno() == Errno::NOENT => {}
            Err(error) => return Err(error),
        }
        if let Some(parent) = below.parent() {
            self.ensure_dirs(parent, mode, owner)?;
        }
        match self.make_dir(below, mode, owner) {
            Err(error) if error.errno() == Errno::EXIST => {
                self.open(below, OFlags::PATH | OFlags::DIRECTORY)?;
                Ok(())
            }
            made => made,
        }
    }

    /// Reads a regular file below this directory, at most `limit` bytes; a longer one fails with
    /// `E2BIG`.
    pub fn read(&self, below: &Path, limit: usize) -> Result<Vec<u8>> {
        use std::io::Read as _;
        let fd = self.open(below, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let fail = |errno| Error::new("read", self.show(below), errno);
        let mut bytes = Vec::new();
        let bound = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
        std::fs::File::from(fd)
            .take(bound)
            .read_to_end(&mut bytes)
            .map_err(|error| fail(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        if bytes.len() > limit {
            return Err(fail(Errno::TOOBIG));
        }
        Ok(bytes)
    }

    /// Makes a file below this directory with the given contents; one that exists is refused.
    pub fn write_new(&self, below: &Path, bytes: &[u8]) -> Result<()> {
        use std::io::Write as _;
        let fd = self.open(below, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        std::fs::File::from(fd).write_all(bytes).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::new("write", self.show(below), errno)
        })
    }

    /// Removes a file below this directory.
    pub fn remove_file(&self, below: &Path) -> Result<()> {
        let (parent, name) = self.parent(below)?;
        unlinkat(&parent, name, AtFlags::empty())
            .map_err(Error::of("unlinkat", || self.show(below)))
    }

    /// Removes an empty directory below this directory.
    pub fn remove_dir(&self, below: &Path) -> Result<()> {
        let (parent, name) = self.parent(below)?;
        unlinkat(&parent, name, AtFlags::REMOVEDIR)
            .map_err(Error::of("unlinkat", || self.show(below)))
    }

    /// Removes everything below a directory of this one and then itself; never leaves its file
    /// system and never follows a symlink. Nothing there is no failure.
    pub fn remove_tree(&self, below: &Path) -> Result<()> {
        match self.open_dir(below) {
            Ok(dir) => {
                dir.clear()?;
                self.remove_dir(below)
            }
            Err(error) if error.errno() == Errno::NOENT => Ok(()),
            Err(error) if matches!(error.errno(), Errno::LOOP | Errno::NOTDIR) => {
                self.remove_file(below)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the names in this directory, sorted.
    pub fn names(&self) -> Result<Vec<PathBuf>> {
        let fail = Error::of("getdents64", || format!("{:?}", self.path));
        let list = || -> std::result::Result<Vec<PathBuf>, Errno> {
            let mut names = Vec::new();
            for entry in rustix::fs::Dir::read_from(&self.fd)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    names.push(PathBuf::from(OsStr::from_bytes(name)));
                }
            }
            names.sort();
            Ok(names)
        };
        list().map_err(fail)
    }

    /// The path that this directory was opened by, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes everything in this directory. Directories inside directories are moved up first, so
    /// that however deep they are, two descriptors are enough.
    fn clear(&self) -> Result<()> {
        let mut moved = 0_u64;
        loop {
            let names = self.names()?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                if let Some(inside) = self.remove_or_open(&name)? {
                    inside.flatten_into(self, &mut moved)?;
                    self.remove_dir(&name)?;
                }
            }
        }
    }

    /// Removes what is no directory, and moves directories to another one.
    fn flatten_into(&self, to: &Self, moved: &mut u64) -> Result<()> {
        for name in self.names()? {
            if self.remove_or_open(&name)?.is_some() {
                self.move_up(&name, to, moved)?;
            }
        }
        Ok(())
    }

    /// Removes what is no directory, and opens what is one; never on another file system.
    fn remove_or_open(&self, name: &Path) -> Result<Option<Self>> {
        match self.remove_file(name) {
            Ok(()) => Ok(None),
            Err(error) if error.errno() == Errno::NOENT => Ok(None),
            Err(error) if matches!(error.errno(), Errno::ISDIR | Errno::PERM) => {
                let no_xdev = openat2(
                    &self.fd,
                    name,
                    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
                    Mode::empty(),
                    BENEATH | ResolveFlags::NO_XDEV,
                );
                let fd = no_xdev.map_err(Error::of("openat2", || self.show(name)))?;
                let path = self.path.join(name);
                Ok(Some(Self { fd, path }))
            }
            Err(error) => Err(error),
        }
    }

    /// Moves a directory to a free name in another one.
    fn move_up(&self, name: &Path, to: &Self, moved: &mut u64) -> Result<()> {
        loop {
            *moved += 1;
            let fresh = format!(".removed-{moved}");
            let done = renameat_with(&self.fd, name, &to.fd, &fresh, RenameFlags::NOREPLACE);
            match done {
                Err(Errno::EXIST) => {}
                done => return done.map_err(Error::of("renameat2", || self.show(name))),
            }
        }
    }

    fn make_node(
        &self,
        below: &Path,
        (kind, device): (FileType, Dev),
        mode: u32,
        owner: Owner,
    ) -> Result<()> {
        let (parent, name) = self.parent(below)?;
        mknodat(&parent, name, kind, Mode::from_raw_mode(mode), device)
            .map_err(Error::of("mknodat", || self.show(below)))?;
        self.own(&parent, name, owner)
    }

    fn own(&self, parent: &Parent<'_>, name: &OsStr, owner: Owner) -> Result<()> {
        if owner == (Owner { uid: 0, gid: 0 }) {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
        chownat(
            parent,
            name,
            Some(uid),
            Some(gid),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .map_err(Error::of("fchownat", || {
            format!("{:?}, {name:?}", self.path)
        }))
    }

    fn parent<'a>(&self, below: &'a Path) -> Result<(Parent<'_>, &'a OsStr)> {
        let invalid = || Error::new("openat2", self.show(below), Errno::INVAL);
        let name = below.file_name().ok_or_else(invalid)?;
        let parent = below.parent().ok_or_else(invalid)?;
        if parent.as_os_str().is_empty() {
            return Ok((Parent::Own(self.fd.as_fd()), name));
        }
        let opened = self.open(parent, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok((Parent::Opened(opened), name))
    }

    fn show(&self, below: &Path) -> String {
        format!("{:?}, {below:?}", self.path)
    }
}

/// The directory that holds a name.
enum Parent<'a> {
    Own(BorrowedFd<'a>),
    Opened(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(fd) => *fd,
            Self::Opened(fd) => fd.as_fd(),
        }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn temp() -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open_trusted(temp.path()).unwrap();
        (temp, dir)
    }

    #[test]
    fn a_symlink_on_the_way_is_refused() {
        let (temp, dir) = temp();
        let victim = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(victim.path(), temp.path().join("link")).unwrap();
        let owner = Owner { uid: 0, gid: 0 };
        for path in ["link", "link/below", "link/../up"] {
            let error = dir
                .ensure_dirs(Path::new(path), 0o755, owner)
                .expect_err(path);
            assert!(
                matches!(error.errno(), Errno::LOOP | Errno::NOTDIR),
                "{error}"
            );
        }
        assert_eq!(std::fs::read_dir(victim.path()).unwrap().count(), 0);
    }

    #[test]
    fn dot_dot_stays_below_the_handle() {
        let (_temp, dir) = temp();
        let same = dir.stat(Path::new("../../..")).unwrap();
        assert_eq!(same.st_ino, fstat(&dir).unwrap().st_ino);
    }

    #[test]
    fn remove_tree_does_not_follow_links() {
        let (temp, dir) = temp();
        let victim = tempfile::tempdir().unwrap();
        std::fs::write(victim.path().join("keep"), b"").unwrap();
        std::fs::create_dir_all(temp.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink(victim.path(), temp.path().join("a/b/link")).unwrap();
        dir.remove_tree(Path::new("a")).unwrap();
        dir.remove_tree(Path::new("a")).unwrap();
        assert!(dir.names().unwrap().is_empty());
        assert!(victim.path().join("keep").is_file());
    }

    #[test]
    fn remove_tree_has_no_depth() {
        let (temp, dir) = temp();
        let mut deep = Dir::open_trusted(temp.path()).unwrap();
        for _ in 0..1200 {
            deep.make_dir(Path::new("d"), 0o700, Owner { uid: 0, gid: 0 })
                .unwrap();
            std::fs::write(format!("/proc/self/fd/{}/file", deep.fd.as_raw_fd()), b"").unwrap();
            deep = deep.open_dir(Path::new("d")).unwrap();
        }
        drop(deep);
        dir.remove_tree(Path::new("d")).unwrap();
        assert_eq!(dir.names().unwrap(), [Path::new("file")]);
    }
}
