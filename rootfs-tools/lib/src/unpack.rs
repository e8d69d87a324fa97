//! Builds a tree from an archive.
//!
//! Attributes are set in the order owner, mode, extended attributes, times: a change of owner
//! clears set-user-id bits and file capabilities. Those of directories are set at the very end,
//! in reverse, because each entry below a directory changes its time and a mode without write
//! permission must not be in the way.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::archive::{Archive, ArchiveError, Device, Entry, EntryName, Kind, Trailer};
use crate::files::{FileError, failed};
use crate::notice::{Notice, Notices};
use crate::tree::{self, PlaceError, Tree, TreePath, call_failed};

/// Most entries an archive may have.
const MAX_ENTRIES: u64 = 4_000_000;

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The archive cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// An entry cannot be placed.
    #[error("entry {entry} is refused")]
    Entry {
        /// Its name.
        entry: EntryName,
        /// The cause.
        #[source]
        source: PlaceError,
    },
    /// The attributes of the directories could not be set.
    #[error("cannot set the attributes of the directory {entry}")]
    Directory {
        /// Its path.
        entry: EntryName,
        /// The cause.
        #[source]
        source: PlaceError,
    },
    /// Too many entries.
    #[error("the archive has more than {MAX_ENTRIES} entries")]
    Entries,
    /// The root of the tree could not be opened.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What was unpacked.
#[derive(Debug)]
pub(crate) struct Unpacked {
    pub(crate) entries: u64,
}

/// Attributes of something in the tree.
#[derive(Debug)]
struct Attributes {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: (i64, u32),
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Attributes of a directory to be set at the end.
#[derive(Debug)]
struct Pending {
    path: Vec<Vec<u8>>,
    attributes: Attributes,
    order: u64,
}

struct Unpacker<'a> {
    tree: Tree,
    /// By inode number: a path may lead elsewhere later, and the last entry counts.
    directories: HashMap<u64, Pending>,
    order: u64,
    notices: &'a mut Notices,
    buffer: Vec<u8>,
}

/// Unpacks `input` into the empty directory `root`, reading it to its end. `progress` gets the
/// bytes read.
pub(crate) fn unpack<R: Read>(
    input: R,
    root: &Path,
    notices: &mut Notices,
    progress: &mut dyn FnMut(u64),
) -> Result<Unpacked, UnpackError> {
    let tree = Tree::open(root).map_err(failed("open", root))?;
    let mut unpacker = Unpacker {
        tree,
        directories: HashMap::new(),
        order: 0,
        notices,
        buffer: vec![0; 128 * 1024],
    };
    unpacker
        .implicit_root()
        .map_err(|source| refuse(EntryName::new(b"."), source))?;
    let mut archive = Archive::new(input);
    let mut entries = 0;
    while let Some(entry) = archive.next_entry()? {
        entries += 1;
        if entries > MAX_ENTRIES {
            return Err(UnpackError::Entries);
        }
        let name = entry.name();
        unpacker
            .place(entry, &mut archive)
            .map_err(|error| match error {
                Placing::Archive(error) => error.into(),
                Placing::Place(source) => refuse(name, source),
            })?;
        progress(archive.offset());
    }
    if archive.drain()? == Trailer::Junk {
        unpacker.notices.add(Notice::TrailingData);
    }
    progress(archive.offset());
    unpacker.finish_directories()?;
    Ok(Unpacked { entries })
}

fn refuse(entry: EntryName, source: PlaceError) -> UnpackError {
    UnpackError::Entry { entry, source }
}

/// Content comes from the archive while an entry is placed.
enum Placing {
    Archive(ArchiveError),
    Place(PlaceError),
}

impl From<PlaceError> for Placing {
    fn from(error: PlaceError) -> Self {
        Self::Place(error)
    }
}

impl Unpacker<'_> {
    fn place<R: Read>(&mut self, entry: Entry, archive: &mut Archive<R>) -> Result<(), Placing> {
        let path = TreePath::parse(&entry.path)?;
        let entry_name = entry.name();
        let attributes = self.attributes(&entry);
        let Some((parent, name)) = path.split() else {
            if entry.kind != Kind::Directory {
                return Err(PlaceError::Root.into());
            }
            let root = self.tree.resolve(&[]).map_err(call_failed("openat2"))?;
            self.defer(tree::inode(&root)?, &[], attributes);
            return Ok(());
        };
        if path
            .components()
            .iter()
            .any(|name| name.starts_with(b".wh."))
        {
            return Err(PlaceError::Whiteout.into());
        }
        let parent = self.parent(parent)?;
        let existing = tree::examine(&parent, name)?;
        let block = matches!(entry.kind, Kind::Block(_));
        match entry.kind {
            Kind::Directory => {
                self.make_directory(&parent, name, existing.as_ref(), &entry_name)?;
                let directory = tree::open_directory_at(&parent, name)?;
                self.defer(tree::inode(&directory)?, path.components(), attributes);
                return Ok(());
            }
            Kind::Hardlink { target } => {
                return Ok(self.link(&parent, name, existing.as_ref(), &target)?);
            }
            Kind::Character(Device { major: 0, minor: 0 }) => {
                // Overlayfs takes it for a removed file.
                self.notices.add(Notice::WhiteoutDevice(entry_name));
                return Ok(());
            }
            Kind::File { bytes } => {
                self.clear(&parent, name, existing.as_ref(), &entry_name)?;
                self.write_file(&parent, name, bytes, archive)?;
            }
            Kind::Symlink { target } => {
                self.clear(&parent, name, existing.as_ref(), &entry_name)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&target), &parent, name)
                    .map_err(call_failed("symlinkat"))?;
                set_link_attributes(&parent, name, &attributes)?;
                return Ok(());
            }
            Kind::Fifo => {
                self.clear(&parent, name, existing.as_ref(), &entry_name)?;
                Node {
                    kind: FileType::Fifo,
                    device: 0,
                }
                .make(&parent, name)?;
            }
            Kind::Character(device) | Kind::Block(device) => {
                self.clear(&parent, name, existing.as_ref(), &entry_name)?;
                let kind = if block {
                    FileType::BlockDevice
                } else {
                    FileType::CharacterDevice
                };
                let device = rustix::fs::makedev(device.major, device.minor);
                if !self.make_device(&parent, name, &Node { kind, device }, entry_name)? {
                    return Ok(());
                }
            }
        }
        set_node_attributes(&parent, name, &attributes)?;
        Ok(())
    }

    /// Opens the parent of an entry, making what is missing of its path.
    fn parent(&mut self, path: &[Vec<u8>]) -> Result<OwnedFd, PlaceError> {
        let mut made = Vec::new();
        let parent = self.tree.directory(path, &mut made)?;
        let parent = parent.try_clone().map_err(|source| PlaceError::Call {
            call: "fcntl(F_DUPFD_CLOEXEC)",
            source,
        })?;
        for implicit in made {
            self.defer(implicit.inode, &implicit.path, implicit_attributes());
        }
        Ok(parent)
    }

    fn implicit_root(&mut self) -> Result<(), PlaceError> {
        let root = self.tree.resolve(&[]).map_err(call_failed("openat2"))?;
        self.defer(tree::inode(&root)?, &[], implicit_attributes());
        Ok(())
    }

    /// Keeps the attributes of a directory for the end.
    fn defer(&mut self, inode: u64, path: &[Vec<u8>], attributes: Attributes) {
        self.order += 1;
        let pending = Pending {
            path: path.to_vec(),
            attributes,
            order: self.order,
        };
        self.directories.insert(inode, pending);
    }

    /// Removes what is in the way of an entry that is no directory.
    fn clear(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        existing: Option<&Stat>,
        entry: &EntryName,
    ) -> Result<(), PlaceError> {
        if let Some(stat) = existing {
            self.notices.add(Notice::Duplicate(entry.clone()));
            self.tree.forget();
            tree::remove(parent, name, stat)?;
        }
        Ok(())
    }

    fn make_directory(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        existing: Option<&Stat>,
        entry: &EntryName,
    ) -> Result<(), PlaceError> {
        if let Some(stat) = existing {
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind == FileType::Directory {
                return Ok(());
            }
            self.notices.add(if kind == FileType::Symlink {
                Notice::DirectoryOverLink(entry.clone())
            } else {
                Notice::Duplicate(entry.clone())
            });
            self.tree.forget();
            tree::remove(parent, name, stat)?;
        }
        rustix::fs::mkdirat(parent, name, Mode::RWXU).map_err(call_failed("mkdirat"))
    }

    fn link(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        existing: Option<&Stat>,
        target: &[u8],
    ) -> Result<(), PlaceError> {
        let target = TreePath::parse(target)?;
        let (target_parent, target_name) = target.split().ok_or(PlaceError::LinkToDirectory)?;
        let target_parent = match self.tree.resolve(target_parent) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(PlaceError::LinkTarget),
            resolved => resolved.map_err(call_failed("openat2"))?,
        };
        let found = tree::examine(&target_parent, target_name)?.ok_or(PlaceError::LinkTarget)?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            return Err(PlaceError::LinkToDirectory);
        }
        if let Some(stat) = existing {
            if (stat.st_dev, stat.st_ino) == (found.st_dev, found.st_ino) {
                return Ok(());
            }
            self.tree.forget();
            tree::remove(parent, name, stat)?;
            // The target may have been below what was just removed.
            tree::examine(&target_parent, target_name)?.ok_or(PlaceError::LinkTarget)?;
        }
        rustix::fs::linkat(&target_parent, target_name, parent, name, AtFlags::empty())
            .map_err(call_failed("linkat"))
    }

    fn write_file<R: Read>(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        bytes: u64,
        archive: &mut Archive<R>,
    ) -> Result<(), Placing> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(parent, name, flags | OFlags::CLOEXEC, mode)
            .map_err(call_failed("openat"))?;
        let mut file = File::from(file);
        let mut rest = bytes;
        while rest > 0 {
            let count = archive
                .read_content(&mut self.buffer)
                .map_err(Placing::Archive)?;
            file.write_all(self.buffer.get(..count).unwrap_or_default())
                .map_err(|source| PlaceError::Call {
                    call: "write",
                    source,
                })?;
            rest -= count as u64;
        }
        Ok(())
    }

    /// Makes a device node. Returns whether there is one now.
    fn make_device(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        node: &Node,
        entry: EntryName,
    ) -> Result<bool, PlaceError> {
        match node.make(parent, name) {
            Err(PlaceError::Call { source, .. })
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                self.notices.add(Notice::DeviceNotPermitted(entry));
                Ok(false)
            }
            made => made.map(|()| true),
        }
    }

    fn attributes(&mut self, entry: &Entry) -> Attributes {
        let mut xattrs = Vec::new();
        for (name, value) in &entry.xattrs {
            if is_kept(name) {
                xattrs.push((name.clone(), value.clone()));
            } else {
                self.notices
                    .add(Notice::Attribute(entry.name(), EntryName::new(name)));
            }
        }
        Attributes {
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            mtime: entry.mtime,
            xattrs,
        }
    }

    fn finish_directories(&mut self) -> Result<(), UnpackError> {
        let mut pending: Vec<_> = self.directories.drain().collect();
        pending.sort_by_key(|(_, directory)| std::cmp::Reverse(directory.order));
        for (inode, directory) in pending {
            let set = self.finish_directory(inode, &directory);
            set.map_err(|source| UnpackError::Directory {
                entry: EntryName::new(&directory.path.join(&b'/')),
                source,
            })?;
        }
        Ok(())
    }

    fn finish_directory(&self, inode: u64, pending: &Pending) -> Result<(), PlaceError> {
        let directory = match self.tree.resolve(&pending.path) {
            // A later entry has replaced it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            resolved => resolved.map_err(call_failed("openat2"))?,
        };
        let stat = rustix::fs::fstat(&directory).map_err(call_failed("fstat"))?;
        if stat.st_ino != inode {
            return Ok(());
        }
        let attributes = &pending.attributes;
        let (uid, gid) = owner(attributes);
        rustix::fs::fchown(&directory, Some(uid), Some(gid)).map_err(call_failed("fchown"))?;
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(attributes.mode))
            .map_err(call_failed("fchmod"))?;
        for (name, value) in &attributes.xattrs {
            rustix::fs::fsetxattr(
                &directory,
                OsStr::from_bytes(name),
                value,
                XattrFlags::empty(),
            )
            .map_err(call_failed("fsetxattr"))?;
        }
        rustix::fs::futimens(&directory, &timestamps(attributes)).map_err(call_failed("utimensat"))
    }
}

/// Tells which extended attributes are taken over: those of users and file capabilities. Those of
/// overlayfs would forge removed and redirected files; labels of another host's security module
/// mean nothing here.
fn is_kept(name: &[u8]) -> bool {
    name == b"security.capability"
        || (name.starts_with(b"user.") && !name.starts_with(b"user.overlay."))
}

/// Returns the attributes of a directory that the archive does not describe.
fn implicit_attributes() -> Attributes {
    Attributes {
        mode: 0o755,
        uid: 0,
        gid: 0,
        mtime: (0, 0),
        xattrs: Vec::new(),
    }
}

fn owner(attributes: &Attributes) -> (Uid, Gid) {
    (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid))
}

fn timestamps(attributes: &Attributes) -> Timestamps {
    let (tv_sec, nanos) = attributes.mtime;
    let time = Timespec {
        tv_sec,
        tv_nsec: nanos.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// A pipe or device to be made.
struct Node {
    kind: FileType,
    /// Number of a device, 0 of a pipe.
    device: u64,
}

impl Node {
    fn make(&self, parent: &OwnedFd, name: &OsStr) -> Result<(), PlaceError> {
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(parent, name, self.kind, mode, self.device)
            .map_err(call_failed("mknodat"))
    }
}

/// Sets the attributes of a file, pipe or device that was just made.
fn set_node_attributes(
    parent: &OwnedFd,
    name: &OsStr,
    attributes: &Attributes,
) -> Result<(), PlaceError> {
    let (uid, gid) = owner(attributes);
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(parent, name, Some(uid), Some(gid), nofollow)
        .map_err(call_failed("fchownat"))?;
    // Nobody else is in this tree, and the name was made without following: it is no link.
    rustix::fs::chmodat(
        parent,
        name,
        Mode::from_raw_mode(attributes.mode),
        AtFlags::empty(),
    )
    .map_err(call_failed("fchmodat"))?;
    set_xattrs(parent, name, attributes)?;
    rustix::fs::utimensat(parent, name, &timestamps(attributes), nofollow)
        .map_err(call_failed("utimensat"))
}

/// Sets the attributes of a symbolic link, which has no mode.
fn set_link_attributes(
    parent: &OwnedFd,
    name: &OsStr,
    attributes: &Attributes,
) -> Result<(), PlaceError> {
    let (uid, gid) = owner(attributes);
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(parent.as_fd(), name, Some(uid), Some(gid), nofollow)
        .map_err(call_failed("fchownat"))?;
    set_xattrs(parent, name, attributes)?;
    rustix::fs::utimensat(parent, name, &timestamps(attributes), nofollow)
        .map_err(call_failed("utimensat"))
}

fn set_xattrs(parent: &OwnedFd, name: &OsStr, attributes: &Attributes) -> Result<(), PlaceError> {
    for (key, value) in &attributes.xattrs {
        let path = tree::through(parent, name);
        rustix::fs::lsetxattr(path, OsStr::from_bytes(key), value, XattrFlags::empty())
            .map_err(call_failed("lsetxattr"))?;
    }
    Ok(())
}
