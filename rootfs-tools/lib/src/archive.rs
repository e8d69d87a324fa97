//! Reads a tar archive, entry by entry, with nothing left to interpretation.
//!
//! Two programs that read one archive differently are how a hostile one gets past a check. So
//! each extension is understood or refused, a size stands once, and an archive that just stops is
//! an error. Formats: v7, ustar, GNU long names, PAX records (POSIX.1-2017, `pax`).

use std::io::{self, BufRead, Read as _};

use tar::Header;

use crate::pax::{PaxError, Records};

const BLOCK: usize = 512;
/// Largest PAX header or GNU long name, in bytes.
const MAX_EXTENSION_BYTES: u64 = 1024 * 1024;
/// Longest path or link target, in bytes (`PATH_MAX` less the terminator).
const MAX_PATH_BYTES: usize = 4095;
/// Longest component of a path, in bytes (`NAME_MAX`).
pub(crate) const MAX_NAME_BYTES: usize = 255;

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The stream failed: a bad disk, or compressed data that is damaged.
    #[error(
        "the archive cannot be read at byte {offset}: it is damaged, truncated or out of reach"
    )]
    Read {
        /// Bytes of the uncompressed archive before the failure.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The stream ended inside an entry or before the end marker.
    #[error("the archive is truncated at byte {offset}: it ends without its end marker")]
    Truncated {
        /// Length of what there is.
        offset: u64,
    },
    /// A block that should be a header is none.
    #[error("the archive has no valid header at byte {offset}: it is damaged or no tar archive")]
    Header {
        /// Where the header should be.
        offset: u64,
    },
    /// A field of a header is no number.
    #[error("entry {entry}: its {field} is no number")]
    Field {
        /// The entry's name.
        entry: EntryName,
        /// The field.
        field: &'static str,
    },
    /// The PAX header before an entry is malformed.
    #[error("entry {entry}: its extended header is malformed")]
    Pax {
        /// The entry's name.
        entry: EntryName,
        /// The cause.
        #[source]
        source: PaxError,
    },
    /// An extension header is larger than any real one.
    #[error(
        "extended header at byte {offset} has {bytes} bytes; the limit is {MAX_EXTENSION_BYTES}"
    )]
    ExtensionSize {
        /// Where it begins.
        offset: u64,
        /// Its size.
        bytes: u64,
    },
    /// Two extension headers say the same of one entry, or one says something of none.
    #[error("extended header at byte {offset} is repeated or has no entry")]
    Extension {
        /// Where it begins.
        offset: u64,
    },
    /// A global header would change the meaning of every entry.
    #[error(
        "the global header at byte {offset} sets more than a comment; archive the tree again without it"
    )]
    Global {
        /// Where it begins.
        offset: u64,
    },
    /// A sparse file, which each tool writes in another way.
    #[error("entry {entry} is stored as a sparse file; archive the tree again without --sparse")]
    Sparse {
        /// The entry's name.
        entry: EntryName,
    },
    /// Something that is no part of a root file system.
    #[error("entry {entry} has the type {kind:?}, which is no part of a root file system")]
    Kind {
        /// The entry's name.
        entry: EntryName,
        /// The type byte.
        kind: char,
    },
    /// Only files have content.
    #[error("entry {entry} has content, but is no file")]
    Content {
        /// The entry's name.
        entry: EntryName,
    },
    /// A path or link target is too long, or has a NUL byte.
    #[error(
        "entry {entry}: its path or link target is empty, longer than {MAX_PATH_BYTES} bytes or has a NUL byte"
    )]
    Path {
        /// The entry's name.
        entry: EntryName,
    },
}

/// The name of an entry, for people: bytes that are no text are shown as escapes, and a long name
/// is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryName(String);

impl EntryName {
    pub(crate) fn new(path: &[u8]) -> Self {
        const SHOWN: usize = 200;
        let cut = path.get(..SHOWN).unwrap_or(path);
        let more = if path.len() > SHOWN { "…" } else { "" };
        Self(format!("\"{}{more}\"", cut.escape_ascii()))
    }
}

impl std::fmt::Display for EntryName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    File { bytes: u64 },
    Directory,
    Symlink { target: Vec<u8> },
    Hardlink { target: Vec<u8> },
    Fifo,
    Character(Device),
    Block(Device),
}

/// A device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// One entry.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds and nanoseconds since 1970.
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    pub(crate) fn name(&self) -> EntryName {
        EntryName::new(&self.path)
    }
}

/// What extension headers say of the entry after them.
#[derive(Debug, Default)]
struct Extensions {
    long_path: Option<Vec<u8>>,
    long_target: Option<Vec<u8>>,
    pax: Option<Vec<u8>>,
}

/// A reader of an archive.
pub(crate) struct Archive<R> {
    input: R,
    offset: u64,
    /// Bytes of content not yet read.
    content: u64,
    /// Bytes up to the next header after that.
    padding: u64,
    end: End,
}

/// How an archive ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// With a block of zeros: nothing else tells that it is whole.
    Marked,
    /// After any entry: a digest tells that it is whole.
    Open,
}

impl<R: BufRead> Archive<R> {
    /// Reads an archive that nothing else is known of.
    pub(crate) fn new(input: R) -> Self {
        Self::ending(input, End::Marked)
    }

    /// Reads a layer of an image, whose digest is checked. `umoci insert` of Debian 12 writes layers
    /// without an end marker, whose last block is not full.
    pub(crate) fn of_layer(input: R) -> Self {
        Self::ending(input, End::Open)
    }

    fn ending(input: R, end: End) -> Self {
        Self {
            input,
            offset: 0,
            content: 0,
            padding: 0,
            end,
        }
    }

    /// Returns the next entry; what was not read of the present one is skipped.
    pub(crate) fn next_entry(&mut self) -> Result<Option<Entry>, ArchiveError> {
        let mut extensions = Extensions::default();
        loop {
            self.skip_content()?;
            let at = self.offset;
            let pending = extensions.pax.is_some()
                || extensions.long_path.is_some()
                || extensions.long_target.is_some();
            if self.end == End::Open && !pending && self.is_over()? {
                return Ok(None);
            }
            let mut header = Header::new_old();
            self.fill(header.as_mut_bytes())?;
            if header.as_bytes().iter().all(|byte| *byte == 0) {
                return if pending {
                    Err(ArchiveError::Extension { offset: at })
                } else {
                    Ok(None)
                };
            }
            let bytes = checked_size(&header).ok_or(ArchiveError::Header { offset: at })?;
            let slot = match header.entry_type().as_byte() {
                b'L' => &mut extensions.long_path,
                b'K' => &mut extensions.long_target,
                b'x' => &mut extensions.pax,
                b'g' => {
                    let records = self.read_extension(at, bytes)?;
                    if !Records::parse(&records).is_ok_and(|records| records.only_comments()) {
                        return Err(ArchiveError::Global { offset: at });
                    }
                    continue;
                }
                _ => return self.entry(&header, extensions, bytes).map(Some),
            };
            if slot.is_some() {
                return Err(ArchiveError::Extension { offset: at });
            }
            *slot = Some(self.read_extension(at, bytes)?);
        }
    }

    /// Reads to the end of the stream. Returns whether there was anything but zeros.
    pub(crate) fn drain(&mut self) -> Result<Trailer, ArchiveError> {
        let mut buffer = [0; 8 * 1024];
        let mut trailer = Trailer::Zeros;
        loop {
            let count = self
                .input
                .read(&mut buffer)
                .map_err(|e| self.read_failed(e))?;
            self.offset += count as u64;
            if count == 0 {
                return Ok(trailer);
            }
            if buffer.iter().take(count).any(|byte| *byte != 0) {
                trailer = Trailer::Junk;
            }
        }
    }

    fn entry(
        &mut self,
        header: &Header,
        extensions: Extensions,
        header_bytes: u64,
    ) -> Result<Entry, ArchiveError> {
        let mut path = match extensions.long_path {
            Some(path) => cut_terminator(path),
            None => header.path_bytes().into_owned(),
        };
        let mut target = match extensions.long_target {
            Some(target) => Some(cut_terminator(target)),
            None => header.link_name_bytes().map(std::borrow::Cow::into_owned),
        };
        let pax = extensions.pax.unwrap_or_default();
        let malformed = |path: &[u8], source| ArchiveError::Pax {
            entry: EntryName::new(path),
            source,
        };
        let records = Records::parse(&pax).map_err(|source| malformed(&path, source))?;
        if let Some(long) = records.get(b"path") {
            path = long.to_vec();
        }
        if let Some(long) = records.get(b"linkpath") {
            target = Some(long.to_vec());
        }
        let entry = EntryName::new(&path);
        if records.has_sparse() {
            return Err(ArchiveError::Sparse { entry });
        }
        let number = |key: &[u8]| {
            records
                .number(key)
                .map_err(|source| malformed(&path, source))
        };
        let field = |value: Option<u64>, field| match value.map(u32::try_from) {
            Some(Ok(value)) => Ok(value),
            _ => Err(ArchiveError::Field {
                entry: entry.clone(),
                field,
            }),
        };
        let bytes = number(b"size")?.unwrap_or(header_bytes);
        let uid = field(number(b"uid")?.or_else(|| header.uid().ok()), "owner")?;
        let gid = field(number(b"gid")?.or_else(|| header.gid().ok()), "group")?;
        let mode = field(header.mode().ok().map(u64::from), "mode")?;
        let mtime = match records.time().map_err(|source| malformed(&path, source))? {
            Some(time) => time,
            None => match header.mtime() {
                // GNU tar writes times before 1970 as negative base-256 numbers.
                Ok(seconds) => (i64::from_ne_bytes(seconds.to_ne_bytes()), 0),
                Err(_) => {
                    return Err(ArchiveError::Field {
                        entry,
                        field: "time",
                    });
                }
            },
        };
        check_path(&path, &entry)?;
        let kind = kind_of(header, &path, (bytes, target), &entry)?;
        self.content = bytes;
        self.padding = bytes.next_multiple_of(BLOCK as u64) - bytes;
        let xattrs = records.xattrs();
        Ok(Entry {
            path,
            kind,
            mode: mode & 0o7777,
            uid,
            gid,
            mtime,
            xattrs,
        })
    }

    fn read_extension(&mut self, offset: u64, bytes: u64) -> Result<Vec<u8>, ArchiveError> {
        if bytes > MAX_EXTENSION_BYTES {
            return Err(ArchiveError::ExtensionSize { offset, bytes });
        }
        let mut content = Vec::new();
        let read = (&mut self.input).take(bytes).read_to_end(&mut content);
        let count = read.map_err(|e| self.read_failed(e))? as u64;
        self.offset += count;
        if count < bytes {
            return Err(ArchiveError::Truncated {
                offset: self.offset,
            });
        }
        self.padding = bytes.next_multiple_of(BLOCK as u64) - bytes;
        Ok(content)
    }

    fn skip_content(&mut self) -> Result<(), ArchiveError> {
        self.skip(self.content)?;
        self.content = 0;
        // Who writes no end marker does not fill the last block either.
        if self.end == End::Marked || self.padding == 0 || !self.is_over()? {
            self.skip(self.padding)?;
        }
        self.padding = 0;
        Ok(())
    }

    fn skip(&mut self, mut rest: u64) -> Result<(), ArchiveError> {
        let mut buffer = [0; 8 * 1024];
        while rest > 0 {
            let want = usize::try_from(rest)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            self.fill(buffer.get_mut(..want).unwrap_or_default())?;
            rest -= want as u64;
        }
        Ok(())
    }

    fn is_over(&mut self) -> Result<bool, ArchiveError> {
        loop {
            match self.input.fill_buf() {
                Ok(rest) => return Ok(rest.is_empty()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.read_failed(error)),
            }
        }
    }

    fn fill(&mut self, mut buffer: &mut [u8]) -> Result<(), ArchiveError> {
        while !buffer.is_empty() {
            let count = match self.input.read(buffer) {
                Ok(0) => {
                    return Err(ArchiveError::Truncated {
                        offset: self.offset,
                    });
                }
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.read_failed(error)),
            };
            self.offset += count as u64;
            buffer = buffer.get_mut(count..).unwrap_or_default();
        }
        Ok(())
    }

    /// Gives the next part of the present entry's content to `sink`, without a copy. Returns
    /// whether there was any.
    pub(crate) fn pass_content<E: From<ArchiveError>>(
        &mut self,
        sink: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.content == 0 {
            return Ok(false);
        }
        let offset = self.offset;
        let part = loop {
            match self.input.fill_buf() {
                Ok(part) => break part,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ArchiveError::Read { offset, source }.into()),
            }
        };
        let count = usize::try_from(self.content)
            .unwrap_or(usize::MAX)
            .min(part.len());
        if count == 0 {
            return Err(ArchiveError::Truncated { offset }.into());
        }
        sink(part.get(..count).unwrap_or_default())?;
        self.input.consume(count);
        self.offset += count as u64;
        self.content -= count as u64;
        Ok(true)
    }

    fn read_failed(&self, source: io::Error) -> ArchiveError {
        ArchiveError::Read {
            offset: self.offset,
            source,
        }
    }

    /// Returns how many bytes of the uncompressed archive have been read.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
}

/// What follows the end marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trailer {
    Zeros,
    Junk,
}

/// Returns the size field of a header whose checksum is right.
fn checked_size(header: &Header) -> Option<u64> {
    let sum = |bytes: Option<&[u8]>| -> u32 {
        bytes
            .unwrap_or_default()
            .iter()
            .map(|byte| u32::from(*byte))
            .sum()
    };
    let bytes = header.as_bytes();
    let computed = sum(bytes.get(..148)) + sum(bytes.get(156..)) + 8 * u32::from(b' ');
    if header.cksum().ok()? != computed {
        return None;
    }
    // A size near the top of the range would overflow when it is rounded up.
    header
        .entry_size()
        .ok()
        .filter(|bytes| *bytes < i64::MAX.cast_unsigned())
}

fn kind_of(
    header: &Header,
    path: &[u8],
    (bytes, target): (u64, Option<Vec<u8>>),
    entry: &EntryName,
) -> Result<Kind, ArchiveError> {
    let device = || match (header.device_major(), header.device_minor()) {
        (Ok(Some(major)), Ok(Some(minor))) => Ok(Device { major, minor }),
        _ => Err(ArchiveError::Field {
            entry: entry.clone(),
            field: "device number",
        }),
    };
    let link = |target: Option<Vec<u8>>| {
        let target = target.ok_or_else(|| ArchiveError::Path {
            entry: entry.clone(),
        })?;
        check_path(&target, entry)?;
        Ok(target)
    };
    // POSIX.1-2017, pax, ustar interchange format; `S` is GNU tar's.
    let kind = match header.entry_type().as_byte() {
        // Archives of Unix v7 mark a directory by the slash alone.
        b'0' | 0 if path.ends_with(b"/") => Kind::Directory,
        b'0' | b'7' | 0 => Kind::File { bytes },
        b'1' => Kind::Hardlink {
            target: link(target)?,
        },
        b'2' => Kind::Symlink {
            target: link(target)?,
        },
        b'3' => Kind::Character(device()?),
        b'4' => Kind::Block(device()?),
        b'5' => Kind::Directory,
        b'6' => Kind::Fifo,
        b'S' => {
            return Err(ArchiveError::Sparse {
                entry: entry.clone(),
            });
        }
        other => {
            return Err(ArchiveError::Kind {
                entry: entry.clone(),
                kind: char::from(other),
            });
        }
    };
    if bytes != 0 && !matches!(kind, Kind::File { .. }) {
        return Err(ArchiveError::Content {
            entry: entry.clone(),
        });
    }
    Ok(kind)
}

fn check_path(path: &[u8], entry: &EntryName) -> Result<(), ArchiveError> {
    if path.is_empty() || path.len() > MAX_PATH_BYTES || path.contains(&0) {
        return Err(ArchiveError::Path {
            entry: entry.clone(),
        });
    }
    Ok(())
}

/// GNU long names end with a NUL byte.
fn cut_terminator(mut name: Vec<u8>) -> Vec<u8> {
    if name.last() == Some(&0) {
        name.pop();
    }
    name
}
