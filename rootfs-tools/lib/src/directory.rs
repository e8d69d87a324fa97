//! Archives a directory: sorted by name, numeric owners, one file system.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tar::{Builder, EntryType, Header};

use crate::archive::EntryName;
use crate::files::{FileError, failed};
use crate::notice::{Notice, Notices};

/// Largest list of names or value of extended attributes (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const MAX_XATTR_BYTES: usize = 65_536;

/// Why a directory cannot be archived.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Something in it could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file changed its size.
    #[error("{} changed while it was read; import a tree that nobody writes to", .0.display())]
    Changed(PathBuf),
}

struct Archiver<'a> {
    root: &'a Path,
    device: u64,
    builder: Builder<Counting<'a>>,
    /// First path of each file that has several.
    links: HashMap<u64, PathBuf>,
    notices: &'a mut Notices,
}

/// Writes the archive of `root` to `sink`. `progress` gets the bytes written.
pub(crate) fn archive(
    root: &Path,
    sink: &mut dyn Write,
    notices: &mut Notices,
    progress: &mut dyn FnMut(u64),
) -> Result<(), DirectoryError> {
    let metadata = root.metadata().map_err(failed("examine", root))?;
    if !metadata.is_dir() {
        let error = io::Error::from(io::ErrorKind::NotADirectory);
        return Err(failed("archive", root)(error).into());
    }
    let mut archiver = Archiver {
        root,
        device: metadata.dev(),
        builder: Builder::new(Counting {
            sink,
            bytes: 0,
            progress,
        }),
        links: HashMap::new(),
        notices,
    };
    archiver.add(Path::new("."), &metadata)?;
    archiver.add_children(Path::new("."))?;
    archiver.builder.finish().map_err(failed("archive", root))?;
    Ok(())
}

impl Archiver<'_> {
    fn add_children(&mut self, below: &Path) -> Result<(), DirectoryError> {
        let dir = self.root.join(below);
        let mut names = Vec::new();
        for entry in dir.read_dir().map_err(failed("list", &dir))? {
            names.push(entry.map_err(failed("list", &dir))?.file_name());
        }
        names.sort();
        for name in names {
            let path = below.join(&name);
            let full = self.root.join(&path);
            let metadata = full.symlink_metadata().map_err(failed("examine", &full))?;
            self.add(&path, &metadata)?;
            if metadata.is_dir() {
                if metadata.dev() == self.device {
                    self.add_children(&path)?;
                } else {
                    let name = EntryName::new(path.as_os_str().as_bytes());
                    self.notices.add(Notice::OtherFileSystem(name));
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, metadata: &Metadata) -> Result<(), DirectoryError> {
        let full = self.root.join(path);
        let kind = metadata.file_type();
        if kind.is_socket() {
            self.notices
                .add(Notice::Socket(EntryName::new(path.as_os_str().as_bytes())));
            return Ok(());
        }
        let mut header = header_of(metadata);
        let write = failed::<io::Error>("archive", &full);
        if !kind.is_dir() && metadata.nlink() > 1 {
            if let Some(first) = self.links.get(&metadata.ino()) {
                header.set_entry_type(EntryType::Link);
                header.set_size(0);
                return Ok(self
                    .builder
                    .append_link(&mut header, path, first)
                    .map_err(write)?);
            }
            self.links.insert(metadata.ino(), path.to_owned());
        }
        self.add_xattrs(&full)?;
        if kind.is_file() {
            return self.add_file(path, &full, &mut header);
        }
        if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            let target = full.read_link().map_err(failed("read", &full))?;
            return Ok(self
                .builder
                .append_link(&mut header, path, target)
                .map_err(write)?);
        }
        let entry_type = if kind.is_dir() {
            EntryType::Directory
        } else if kind.is_fifo() {
            EntryType::Fifo
        } else if kind.is_block_device() {
            EntryType::Block
        } else {
            EntryType::Char
        };
        header.set_entry_type(entry_type);
        if kind.is_block_device() || kind.is_char_device() {
            let device = metadata.rdev();
            header
                .set_device_major(rustix::fs::major(device))
                .and_then(|()| header.set_device_minor(rustix::fs::minor(device)))
                .map_err(failed("archive", &full))?;
        }
        self.builder
            .append_data(&mut header, path, io::empty())
            .map_err(write)?;
        Ok(())
    }

    fn add_file(
        &mut self,
        path: &Path,
        full: &Path,
        header: &mut Header,
    ) -> Result<(), DirectoryError> {
        let mut options = File::options();
        // A pipe that took the file's place must not block.
        options
            .read(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
        let file = options.open(full).map_err(failed("open", full))?;
        let bytes = header.entry_size().map_err(failed("archive", full))?;
        let opened = file.metadata().map_err(failed("examine", full))?;
        if !opened.is_file() || opened.len() != bytes {
            return Err(DirectoryError::Changed(full.to_owned()));
        }
        let mut exact = Exact {
            file: file.take(bytes),
            left: bytes,
            ended: false,
        };
        let written = self.builder.append_data(header, path, &mut exact);
        if exact.ended {
            return Err(DirectoryError::Changed(full.to_owned()));
        }
        Ok(written.map_err(failed("archive", full))?)
    }

    /// Writes extended attributes as an extended header of the next entry.
    fn add_xattrs(&mut self, full: &Path) -> Result<(), DirectoryError> {
        let mut records = Vec::new();
        for (name, value) in xattrs(full)? {
            records.push((format!("SCHILY.xattr.{name}"), value));
        }
        let records = records
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_slice()));
        Ok(self
            .builder
            .append_pax_extensions(records)
            .map_err(failed("archive", full))?)
    }
}

fn header_of(metadata: &Metadata) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(metadata.mode() & 0o7777);
    header.set_uid(metadata.uid().into());
    header.set_gid(metadata.gid().into());
    // A negative number is written in base 256, as GNU tar does.
    header.set_mtime(metadata.mtime().cast_unsigned());
    header.set_size(if metadata.is_file() {
        metadata.len()
    } else {
        0
    });
    header
}

/// Returns the extended attributes of `path` itself whose names are text, sorted.
pub(crate) fn xattrs(path: &Path) -> Result<Vec<(String, Vec<u8>)>, FileError> {
    let mut buffer = vec![0; MAX_XATTR_BYTES];
    let count = match rustix::fs::llistxattr(path, &mut buffer[..]) {
        Ok(count) => count,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(failed("list the attributes of", path)(error)),
    };
    let list = buffer.get(..count).unwrap_or_default().to_vec();
    let mut found = Vec::new();
    for name in list
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let Ok(text) = str::from_utf8(name) else {
            continue;
        };
        match rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut buffer[..]) {
            Ok(count) => {
                let value = buffer.get(..count).unwrap_or_default().to_vec();
                found.push((text.to_owned(), value));
            }
            // Removed since.
            Err(rustix::io::Errno::NODATA) => {}
            Err(error) => return Err(failed("read the attributes of", path)(error)),
        }
    }
    found.sort();
    Ok(found)
}

/// Counts what is left to be read of a file.
struct Exact {
    file: io::Take<File>,
    left: u64,
    /// Whether the file ended before that.
    ended: bool,
}

impl io::Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.left = self.left.saturating_sub(count as u64);
        self.ended |= count == 0 && self.left > 0 && !buffer.is_empty();
        Ok(count)
    }
}

/// Reports how much has been written.
struct Counting<'a> {
    sink: &'a mut dyn Write,
    bytes: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Write for Counting<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.sink.write(buffer)?;
        self.bytes += count as u64;
        (self.progress)(self.bytes);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
