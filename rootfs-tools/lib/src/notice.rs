//! What an import left out or changed without refusing the archive.

use std::fmt;

use crate::archive::EntryName;

/// Most notices that are kept; the rest is counted.
const KEPT: usize = 100;

/// One thing worth knowing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// There is data after the end marker of the archive.
    TrailingData,
    /// A second entry of the same name; it counts.
    Duplicate(EntryName),
    /// A directory took the place of a symbolic link, which often merges `/usr`.
    DirectoryOverLink(EntryName),
    /// A character device 0:0, which overlayfs takes for a removed file, was left out.
    WhiteoutDevice(EntryName),
    /// A device node was left out: this process may not make any.
    DeviceNotPermitted(EntryName),
    /// An extended attribute (second) of an entry (first) was left out.
    Attribute(EntryName, EntryName),
    /// A socket was left out.
    Socket(EntryName),
    /// Another file system is mounted there; it is archived as an empty directory.
    OtherFileSystem(EntryName),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TrailingData => write!(f, "data after the end of the archive is not used"),
            Self::Duplicate(entry) => write!(f, "entry {entry} appears again; the last counts"),
            Self::DirectoryOverLink(entry) => {
                write!(f, "directory {entry} replaces a symbolic link")
            }
            Self::WhiteoutDevice(entry) => {
                write!(
                    f,
                    "device {entry} is left out: 0:0 marks removed files in overlays"
                )
            }
            Self::DeviceNotPermitted(entry) => {
                write!(
                    f,
                    "device {entry} is left out: making device nodes is not permitted here"
                )
            }
            Self::Attribute(entry, name) => {
                write!(f, "extended attribute {name} of {entry} is left out")
            }
            Self::Socket(entry) => write!(f, "socket {entry} is left out"),
            Self::OtherFileSystem(entry) => {
                write!(
                    f,
                    "{entry} is another file system: only the empty directory is taken"
                )
            }
        }
    }
}

/// Notices of one import.
#[derive(Debug, Clone, Default)]
pub struct Notices {
    kept: Vec<Notice>,
    dropped: u64,
}

impl Notices {
    pub(crate) fn add(&mut self, notice: Notice) {
        if self.kept.len() < KEPT {
            self.kept.push(notice);
        } else {
            self.dropped += 1;
        }
    }

    /// Returns the first hundred.
    pub fn kept(&self) -> &[Notice] {
        &self.kept
    }

    /// Returns how many more there were.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}
