//! The files of a layout: in a directory, or in an archive that is read in place.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::archive::{Archive, ArchiveError, Kind};
use crate::decode::{self, Compression, Decoder};
use crate::hold::Hold;

/// Most entries of an archive of images.
const MAX_ENTRIES: usize = 100_000;
/// Largest archive of images once it is decompressed, in bytes.
const MAX_BYTES: u64 = 128 << 30;
/// Largest `oci-layout`, in bytes.
const MAX_VERSION_BYTES: u64 = 64 * 1024;
const BUFFER_BYTES: usize = 128 * 1024;

/// Why a layout or an archive of images cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// It is not there, or cannot be read.
    #[error("cannot read {}", path.display())]
    Open {
        /// What was to be read.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is no file.
    #[error("{} is no regular file", .0.display())]
    Kind(PathBuf),
    /// A file is longer than anything of its kind.
    #[error("{file} in {} has {bytes} bytes; the limit is {limit}", place.display())]
    Large {
        /// The layout or archive.
        place: PathBuf,
        /// The file in it.
        file: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A file is not there.
    #[error("{} has no {file}{}", place.display(), if *.partial { ": it is incomplete" } else { "" })]
    Absent {
        /// The layout or archive.
        place: PathBuf,
        /// The file in it.
        file: String,
        /// Whether another file names it.
        partial: bool,
    },
    /// A file is not what it should be.
    #[error("{file} in {} is malformed", place.display())]
    Syntax {
        /// The layout or archive.
        place: PathBuf,
        /// The file in it.
        file: String,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// A layout of another version.
    #[error("{} is a layout of version {version:?}; known is 1.0.0", place.display())]
    Version {
        /// The layout or archive.
        place: PathBuf,
        /// Its version.
        version: String,
    },
    /// A file has another size than the manifest says.
    #[error("{file} in {} has {found} bytes instead of {expected}: it is incomplete", place.display())]
    Size {
        /// The layout or archive.
        place: PathBuf,
        /// The file in it.
        file: String,
        /// The size that the manifest says.
        expected: u64,
        /// Its size.
        found: u64,
    },
    /// The archive is no archive.
    #[error("{} cannot be read as an archive of images", place.display())]
    Archive {
        /// The archive.
        place: PathBuf,
        /// The cause.
        #[source]
        source: ArchiveError,
    },
    /// The archive has a file twice, or more files than any other.
    #[error("{} has {what}", place.display())]
    Odd {
        /// The archive.
        place: PathBuf,
        /// What is odd, as an object.
        what: &'static str,
    },
}

/// `oci-layout`.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    image_layout_version: String,
}

/// Files by name.
#[derive(Debug)]
pub(crate) enum Files {
    Directory(PathBuf),
    Archive(ArchiveFiles),
}

/// An archive with the places of its files.
#[derive(Debug)]
pub(crate) struct ArchiveFiles {
    path: PathBuf,
    file: File,
    members: BTreeMap<Vec<u8>, Member>,
}

#[derive(Debug, Clone)]
enum Member {
    File {
        offset: u64,
        bytes: u64,
    },
    /// The whole path, as a link of `docker save` to the layer of another image.
    Link(Vec<u8>),
}

impl Files {
    /// Reads the table of an archive. A compressed one is decompressed into the store's staging
    /// directory first, since its files are not in the order in which they are needed.
    pub(crate) fn of_archive(path: &Path, hold: &Hold) -> Result<Self, FilesError> {
        let failed = |source| FilesError::Open {
            path: path.to_owned(),
            source,
        };
        let (file, _) = open_regular(path)?;
        let (compression, input) = decode::detect(&file).map_err(failed)?;
        let mut file = if compression == Compression::None {
            drop(input);
            file
        } else {
            let decoded = hold.staging().temporary();
            inflate(compression, input, &decoded).map_err(failed)?;
            File::open(&decoded).map_err(failed)?
        };
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let members = members(path, &file)?;
        Ok(Self::Archive(ArchiveFiles {
            path: path.to_owned(),
            file,
            members,
        }))
    }

    pub(crate) fn place(&self) -> &Path {
        match self {
            Self::Directory(dir) => dir,
            Self::Archive(archive) => &archive.path,
        }
    }

    /// Opens a file. Returns its size.
    pub(crate) fn open(&self, name: &str) -> Result<(Box<dyn Read + '_>, u64), FilesError> {
        match self {
            Self::Directory(dir) => match open_regular(&dir.join(name)) {
                Ok((file, bytes)) => Ok((Box::new(file), bytes)),
                Err(FilesError::Open { source, .. })
                    if source.kind() == io::ErrorKind::NotFound =>
                {
                    Err(self.absent(name))
                }
                Err(error) => Err(error),
            },
            Self::Archive(archive) => archive
                .open(name)
                .map(|(reader, bytes)| (Box::new(reader) as Box<dyn Read>, bytes))
                .ok_or_else(|| self.absent(name)),
        }
    }

    /// Reads a whole file of at most `limit` bytes.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, FilesError> {
        let (reader, bytes) = self.open(name)?;
        if bytes > limit {
            return Err(FilesError::Large {
                place: self.place().to_owned(),
                file: name.to_owned(),
                bytes,
                limit,
            });
        }
        let mut content = Vec::new();
        let read = reader.take(limit).read_to_end(&mut content);
        read.map_err(|source| FilesError::Open {
            path: self.place().join(name),
            source,
        })?;
        Ok(content)
    }

    /// Reads a JSON document.
    pub(crate) fn read_json<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
        limit: u64,
    ) -> Result<T, FilesError> {
        let content = self.read(name, limit)?;
        serde_json::from_slice(&content).map_err(|source| FilesError::Syntax {
            place: self.place().to_owned(),
            file: name.to_owned(),
            source,
        })
    }

    /// Checks that this is a layout.
    pub(crate) fn check_layout(&self) -> Result<(), FilesError> {
        let Version {
            image_layout_version: version,
        } = self.read_json("oci-layout", MAX_VERSION_BYTES)?;
        if version == "1.0.0" {
            Ok(())
        } else {
            Err(FilesError::Version {
                place: self.place().to_owned(),
                version,
            })
        }
    }

    fn absent(&self, name: &str) -> FilesError {
        FilesError::Absent {
            place: self.place().to_owned(),
            file: name.to_owned(),
            partial: name.starts_with("blobs/"),
        }
    }
}

/// Opens a file without waiting for what could be at the other end of a pipe.
fn open_regular(path: &Path) -> Result<(File, u64), FilesError> {
    let failed = |source| FilesError::Open {
        path: path.to_owned(),
        source,
    };
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_file() {
        Ok((file, metadata.len()))
    } else {
        Err(FilesError::Kind(path.to_owned()))
    }
}

fn inflate(compression: Compression, input: impl Read, path: &Path) -> io::Result<()> {
    let input = BufReader::with_capacity(BUFFER_BYTES, input);
    let mut decoder = Decoder::new(compression, input)?;
    let mut output = io::BufWriter::with_capacity(BUFFER_BYTES, File::create_new(path)?);
    let copied = io::copy(&mut (&mut decoder).take(MAX_BYTES), &mut output)?;
    if copied == MAX_BYTES {
        return Err(io::Error::other("it is larger than any archive of images"));
    }
    output.flush()
}

fn members(path: &Path, file: &File) -> Result<BTreeMap<Vec<u8>, Member>, FilesError> {
    let odd = |what| FilesError::Odd {
        place: path.to_owned(),
        what,
    };
    let unreadable = |source| FilesError::Archive {
        place: path.to_owned(),
        source,
    };
    let mut archive = Archive::new(BufReader::with_capacity(BUFFER_BYTES, file));
    let mut members = BTreeMap::new();
    while let Some(entry) = archive.next_entry().map_err(unreadable)? {
        let name = normal(&entry.path);
        let member = match entry.kind {
            Kind::File { bytes } => Member::File {
                offset: archive.offset(),
                bytes,
            },
            Kind::Symlink { target } if target.starts_with(b"/") => continue,
            Kind::Symlink { target } => {
                let parent = name.iter().rposition(|byte| *byte == b'/');
                let parent = parent.and_then(|end| name.get(..=end)).unwrap_or_default();
                Member::Link(normal(&[parent, &target].concat()))
            }
            Kind::Hardlink { target } => Member::Link(normal(&target)),
            Kind::Directory | Kind::Fifo | Kind::Character(_) | Kind::Block(_) => continue,
        };
        if members.insert(name, member).is_some() {
            return Err(odd("a file twice"));
        }
        if members.len() > MAX_ENTRIES {
            return Err(odd("more files than any archive of images"));
        }
    }
    Ok(members)
}

/// Brings a path to one form, without `.` and `..`; what leads out of the archive stays within.
fn normal(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            other => parts.push(other),
        }
    }
    parts.join(&b'/')
}

impl ArchiveFiles {
    fn open(&self, name: &str) -> Option<(Part<'_>, u64)> {
        let member = match self.members.get(&normal(name.as_bytes()))? {
            Member::Link(target) => self.members.get(target)?,
            file @ Member::File { .. } => file,
        };
        match member {
            Member::File { offset, bytes } => {
                let part = Part {
                    file: &self.file,
                    at: *offset,
                    left: *bytes,
                };
                Some((part, *bytes))
            }
            // A link to a link has no use.
            Member::Link(_) => None,
        }
    }
}

/// A part of a file.
struct Part<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let count = self
            .file
            .read_at(buffer.get_mut(..want).unwrap_or_default(), self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_in_the_archive() {
        for (path, want) in [
            (&b"./blobs//sha256/x"[..], &b"blobs/sha256/x"[..]),
            (b"a/../../../etc/passwd", b"etc/passwd"),
            (b"/manifest.json", b"manifest.json"),
            (b"x/../y/layer.tar", b"y/layer.tar"),
        ] {
            assert_eq!(normal(path), want);
        }
    }
}
