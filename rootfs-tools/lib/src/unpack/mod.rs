//! Builds one tree from the archives of layers, from the lowest up.
//!
//! The attributes of directories are set at the end, see [`directories`]. What a layer removes is
//! removed before any of its entries is placed, see [`whiteout`].

mod attributes;
mod directories;
mod whiteout;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use self::attributes::{Attributes, Target};
use self::directories::Directories;
pub(crate) use self::whiteout::Whiteouts;
use crate::archive::{Archive, ArchiveError, Device, Entry, EntryName, Kind, Trailer};
use crate::decode::{self, Decoder};
use crate::files::{FileError, failed};
use crate::notice::{Notice, Notices};
use crate::tree::{self, Directory, PlaceError, Tree, TreePath, call_failed};

/// Most entries an archive may have.
const MAX_ENTRIES: u64 = 4_000_000;
const BUFFER_BYTES: usize = 128 * 1024;

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

/// What the marks for removed files in an archive mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marks {
    /// The archive is a whole root file system: it has none.
    Refused,
    /// The archive is a layer of an image.
    Applied,
}

/// Counts the entries of an archive.
#[derive(Debug, Default)]
struct Counter(u64);

impl Counter {
    fn count(&mut self) -> Result<(), UnpackError> {
        self.0 += 1;
        if self.0 > MAX_ENTRIES {
            return Err(UnpackError::Entries);
        }
        Ok(())
    }
}

/// A tree that is being built.
pub(crate) struct Unpacker<'a> {
    tree: Tree,
    directories: Directories,
    /// The owner of what is made here.
    owner: (u32, u32),
    marks: Marks,
    /// Paths of the present layer; none for the lowest, where everything is of this layer.
    own: Option<HashSet<TreePath>>,
    entries: u64,
    notices: &'a mut Notices,
}

fn refuse(entry: EntryName, source: PlaceError) -> UnpackError {
    UnpackError::Entry { entry, source }
}

/// Reads an archive, plain or compressed, to its end as an import does, but places nothing. Returns
/// the number of its entries.
pub fn read_archive(input: impl Read) -> Result<u64, UnpackError> {
    let unreadable = |source| ArchiveError::Read { offset: 0, source };
    let (compression, input) = decode::detect(input).map_err(unreadable)?;
    let input = BufReader::with_capacity(BUFFER_BYTES, input);
    let decoder = Decoder::new(compression, input).map_err(unreadable)?;
    let decoder = BufReader::with_capacity(BUFFER_BYTES, decoder);
    let mut archive = Archive::new(decoder);
    let mut counter = Counter::default();
    while let Some(entry) = archive.next_entry()? {
        counter.count()?;
        let path = TreePath::parse(&entry.path);
        path.and_then(|path| whiteout::mark(&path, &entry))
            .map_err(|source| refuse(entry.name(), source))?;
    }
    archive.drain()?;
    Ok(counter.0)
}

/// Content comes from the archive while an entry is placed.
enum Placing {
    Archive(ArchiveError),
    Place(PlaceError),
}

impl From<ArchiveError> for Placing {
    fn from(error: ArchiveError) -> Self {
        Self::Archive(error)
    }
}

impl From<PlaceError> for Placing {
    fn from(error: PlaceError) -> Self {
        Self::Place(error)
    }
}

/// Where an entry goes.
struct Spot<'a> {
    parent: &'a Directory,
    name: &'a OsStr,
    path: &'a TreePath,
    entry: EntryName,
}

impl<'a> Unpacker<'a> {
    /// Begins with the empty directory `root`.
    pub(crate) fn new(
        root: &Path,
        marks: Marks,
        notices: &'a mut Notices,
    ) -> Result<Self, FileError> {
        let tree = Tree::open(root).map_err(failed("open", root))?;
        let opened = tree.resolve(b"").map_err(failed("open", root))?;
        let stat = rustix::fs::fstat(&opened).map_err(failed("examine", root))?;
        let directory = Directory {
            fd: opened,
            inode: stat.st_ino,
        };
        Ok(Self {
            tree,
            directories: Directories::new(&directory),
            owner: (stat.st_uid, stat.st_gid),
            marks,
            own: None,
            entries: 0,
            notices,
        })
    }

    /// Begins a layer above the present ones and removes what it marks.
    pub(crate) fn remove_marked(&mut self, whiteouts: &Whiteouts) -> Result<(), UnpackError> {
        self.own = Some(HashSet::new());
        for path in &whiteouts.opaque {
            self.empty(path, whiteouts)
                .map_err(|source| refuse(EntryName::new(path.as_bytes()), source))?;
        }
        for path in &whiteouts.removed {
            self.remove(path, whiteouts)
                .map_err(|source| refuse(EntryName::new(path.as_bytes()), source))?;
        }
        Ok(())
    }

    /// Places the entries of an archive, reading it to its end.
    pub(crate) fn apply<R: BufRead>(&mut self, input: R) -> Result<(), UnpackError> {
        let mut archive = match self.marks {
            Marks::Applied => Archive::of_layer(input),
            Marks::Refused => Archive::new(input),
        };
        let mut counter = Counter::default();
        while let Some(entry) = archive.next_entry()? {
            counter.count()?;
            let name = entry.name();
            self.place(entry, &mut archive)
                .map_err(|error| match error {
                    Placing::Archive(error) => error.into(),
                    Placing::Place(source) => refuse(name, source),
                })?;
        }
        if archive.drain()? == Trailer::Junk {
            self.notices.add(Notice::TrailingData);
        }
        self.entries += counter.0;
        Ok(())
    }

    /// Sets the attributes of the directories. Returns the number of entries.
    pub(crate) fn finish(self) -> Result<u64, UnpackError> {
        self.directories
            .finish(&self.tree)
            .map_err(|(path, source)| UnpackError::Directory {
                entry: EntryName::new(&path),
                source,
            })?;
        Ok(self.entries)
    }

    /// Opens a directory of the layers below; `None` where there is none.
    fn lower(&self, path: &[u8], whiteouts: &Whiteouts) -> Result<Option<OwnedFd>, PlaceError> {
        match self.tree.resolve_below(path, whiteouts.last_name(path)) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(call_failed("openat2")(error)),
        }
    }

    fn empty(&mut self, path: &TreePath, whiteouts: &Whiteouts) -> Result<(), PlaceError> {
        let Some(directory) = self.lower(path.as_bytes(), whiteouts)? else {
            return Ok(());
        };
        self.tree.forget();
        let directories = &mut self.directories;
        tree::remove_children(&directory, &mut |inode| directories.remove(inode))
    }

    fn remove(&mut self, path: &TreePath, whiteouts: &Whiteouts) -> Result<(), PlaceError> {
        let Some((parent, name)) = path.split() else {
            return Err(PlaceError::BadWhiteout);
        };
        let Some(parent) = self.lower(parent, whiteouts)? else {
            return Ok(());
        };
        let Some(stat) = tree::examine(&parent, name)? else {
            return Ok(());
        };
        self.clear_away(&parent, name, &stat)
    }

    fn clear_away(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        stat: &Stat,
    ) -> Result<(), PlaceError> {
        self.tree.forget();
        let directories = &mut self.directories;
        tree::remove(parent, name, stat, &mut |inode| directories.remove(inode))
    }

    fn place<R: BufRead>(
        &mut self,
        mut entry: Entry,
        archive: &mut Archive<R>,
    ) -> Result<(), Placing> {
        let path = TreePath::parse(&entry.path)?;
        if whiteout::mark(&path, &entry)
            .map_err(|error| self.refused_mark(error))?
            .is_some()
        {
            return match self.marks {
                Marks::Refused => Err(PlaceError::Whiteout.into()),
                Marks::Applied => Ok(()),
            };
        }
        let (attributes, left_out) = Attributes::of(&mut entry);
        for (name, _) in left_out {
            let notice = Notice::Attribute(entry.name(), EntryName::new(&name));
            self.notices.add(notice);
        }
        let Some((parent, name)) = path.split() else {
            if entry.kind != Kind::Directory {
                return Err(PlaceError::Root.into());
            }
            let root = self.directories.root();
            self.directories.describe(root, attributes);
            return Ok(());
        };
        let parent = self.parent(parent)?;
        let spot = Spot {
            parent: &parent,
            name,
            path: &path,
            entry: entry.name(),
        };
        self.place_at(&spot, entry.kind, attributes, archive)?;
        if let Some(own) = &mut self.own {
            own.insert(path);
        }
        Ok(())
    }

    fn refused_mark(&self, error: PlaceError) -> PlaceError {
        match (self.marks, error) {
            (Marks::Refused, PlaceError::BadWhiteout) => PlaceError::Whiteout,
            (Marks::Refused | Marks::Applied, error) => error,
        }
    }

    fn place_at<R: BufRead>(
        &mut self,
        spot: &Spot<'_>,
        kind: Kind,
        attributes: Attributes,
        archive: &mut Archive<R>,
    ) -> Result<(), Placing> {
        let (parent, name) = (spot.parent.fd.as_fd(), spot.name);
        let (node, device) = match kind {
            Kind::Directory => return Ok(self.make_directory(spot, attributes)?),
            Kind::Hardlink { target } => return Ok(self.link(spot, &target)?),
            Kind::File { .. } => {
                let file = self.make_file(spot)?;
                write_content(&file, archive)?;
                return Ok(attributes.set(Target::Open(file.as_fd()), self.owner)?);
            }
            Kind::Symlink { target } => {
                let target = OsStr::from_bytes(&target);
                self.make(spot, || rustix::fs::symlinkat(target, parent, name))?
                    .map_err(call_failed("symlinkat"))?;
                return Ok(attributes.set(Target::Link(parent, name), self.owner)?);
            }
            Kind::Character(Device { major: 0, minor: 0 }) => {
                // Overlayfs takes it for a removed file.
                self.notices.add(Notice::WhiteoutDevice(spot.entry.clone()));
                return Ok(());
            }
            Kind::Fifo => (FileType::Fifo, Device { major: 0, minor: 0 }),
            Kind::Character(device) => (FileType::CharacterDevice, device),
            Kind::Block(device) => (FileType::BlockDevice, device),
        };
        let number = rustix::fs::makedev(device.major, device.minor);
        let mode = Mode::RUSR | Mode::WUSR;
        match self.make(spot, || {
            rustix::fs::mknodat(parent, name, node, mode, number)
        })? {
            Err(Errno::PERM) if node != FileType::Fifo => {
                let notice = Notice::DeviceNotPermitted(spot.entry.clone());
                self.notices.add(notice);
                return Ok(());
            }
            made => made.map_err(call_failed("mknodat"))?,
        }
        Ok(attributes.set(Target::Node(parent, name), self.owner)?)
    }

    /// Opens the parent of an entry, making what is missing of its path.
    fn parent(&mut self, path: &[u8]) -> Result<Rc<Directory>, PlaceError> {
        let mut made = Vec::new();
        let parent = self.tree.directory(path, &mut made)?;
        self.directories.add_implicit(made)?;
        Ok(parent)
    }

    /// Makes something new with `call`. What has the name already gives way first.
    fn make<T>(
        &mut self,
        spot: &Spot<'_>,
        mut call: impl FnMut() -> Result<T, Errno>,
    ) -> Result<Result<T, Errno>, PlaceError> {
        match call() {
            Err(Errno::EXIST) => {
                self.replace(spot)?;
                Ok(call())
            }
            outcome => Ok(outcome),
        }
    }

    /// Removes what is in the way of an entry.
    fn replace(&mut self, spot: &Spot<'_>) -> Result<(), PlaceError> {
        let Some(stat) = tree::examine(&spot.parent.fd, spot.name)? else {
            return Ok(());
        };
        if self.is_own(spot.path) {
            self.notices.add(Notice::Duplicate(spot.entry.clone()));
        }
        self.clear_away(&spot.parent.fd, spot.name, &stat)
    }

    /// Tells whether the present layer has had this path.
    fn is_own(&self, path: &TreePath) -> bool {
        self.own.as_ref().is_none_or(|own| own.contains(path))
    }

    fn make_directory(
        &mut self,
        spot: &Spot<'_>,
        attributes: Attributes,
    ) -> Result<(), PlaceError> {
        let make = || rustix::fs::mkdirat(&spot.parent.fd, spot.name, Mode::RWXU);
        match make() {
            Err(Errno::EXIST) => {}
            Err(error) => return Err(call_failed("mkdirat")(error)),
            Ok(()) => return self.enter_directory(spot, attributes),
        }
        if let Some(stat) = tree::examine(&spot.parent.fd, spot.name)? {
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    self.directories.describe(stat.st_ino, attributes);
                    return Ok(());
                }
                FileType::Symlink => {
                    let notice = Notice::DirectoryOverLink(spot.entry.clone());
                    self.notices.add(notice);
                    self.clear_away(&spot.parent.fd, spot.name, &stat)?;
                }
                FileType::RegularFile
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => self.replace(spot)?,
            }
        }
        make().map_err(call_failed("mkdirat"))?;
        self.enter_directory(spot, attributes)
    }

    fn enter_directory(
        &mut self,
        spot: &Spot<'_>,
        attributes: Attributes,
    ) -> Result<(), PlaceError> {
        let stat = tree::examine(&spot.parent.fd, spot.name)?.ok_or(PlaceError::NoDirectory)?;
        let place = (spot.parent.inode, spot.name.as_bytes());
        self.directories.add(stat.st_ino, place, attributes)
    }

    fn link(&mut self, spot: &Spot<'_>, target: &[u8]) -> Result<(), PlaceError> {
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
        if let Some(stat) = tree::examine(&spot.parent.fd, spot.name)? {
            if (stat.st_dev, stat.st_ino) == (found.st_dev, found.st_ino) {
                return Ok(());
            }
            self.replace(spot)?;
            // The target may have been below what was just removed.
            tree::examine(&target_parent, target_name)?.ok_or(PlaceError::LinkTarget)?;
        }
        let parent = &spot.parent.fd;
        rustix::fs::linkat(
            &target_parent,
            target_name,
            parent,
            spot.name,
            AtFlags::empty(),
        )
        .map_err(call_failed("linkat"))
    }

    fn make_file(&mut self, spot: &Spot<'_>) -> Result<File, PlaceError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let flags = flags | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = self
            .make(spot, || {
                rustix::fs::openat(&spot.parent.fd, spot.name, flags, mode)
            })?
            .map_err(call_failed("openat"))?;
        Ok(File::from(file))
    }
}

/// Writes the content of the present entry.
fn write_content<R: BufRead>(mut file: &File, archive: &mut Archive<R>) -> Result<(), Placing> {
    let write = |source| PlaceError::Call {
        call: "write",
        source,
    };
    while archive.pass_content(|part| Ok::<_, Placing>(file.write_all(part).map_err(write)?))? {}
    Ok(())
}
