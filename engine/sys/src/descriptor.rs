//! Descriptors: what they are, and close-on-exec (`close_range(2)`, `fstat(2)`).

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};

use crate::error::{Error, Result};

/// What a descriptor refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A block device.
    BlockDevice,
    /// The null device, character 1:3.
    Null,
    /// Another character device: a terminal, for one.
    CharacterDevice,
    /// A pipe or FIFO.
    Pipe,
    /// A socket.
    Socket,
    /// A symbolic link (opened by `O_PATH|O_NOFOLLOW`) or an anonymous inode.
    Other,
}

/// `fstat(2)`, reduced to the kind.
pub fn kind(fd: impl AsFd) -> Result<Kind> {
    let fd = fd.as_fd();
    let stat = rustix::fs::fstat(fd).map_err(Error::of("fstat", || format!("{fd:?}")))?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::Regular,
        FileType::Directory => Kind::Directory,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::CharacterDevice if stat.st_rdev == rustix::fs::makedev(1, 3) => Kind::Null,
        FileType::CharacterDevice => Kind::CharacterDevice,
        FileType::Fifo => Kind::Pipe,
        FileType::Socket => Kind::Socket,
        FileType::Symlink | FileType::Unknown => Kind::Other,
    })
}

/// `openat(2)` close-on-exec, without creating; a relative path starts at `directory`.
pub fn open(directory: impl AsFd, path: &CStr, flags: OFlags) -> Result<OwnedFd> {
    let directory = directory.as_fd();
    rustix::fs::openat(directory, path, flags | OFlags::CLOEXEC, Mode::empty())
        .map_err(Error::of("openat", || {
            format!("{directory:?}, {path:?}, {flags:?}")
        }))
}

/// The calling process's working directory, as a place where [`open`] starts.
pub const fn here() -> BorrowedFd<'static> {
    rustix::fs::CWD
}

/// Flags of [`open`].
pub type Flags = OFlags;

/// Which of the standard descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standard {
    /// 0
    Input,
    /// 1
    Output,
    /// 2
    Error,
}

impl Standard {
    /// All three, by number.
    pub const ALL: [Self; 3] = [Self::Input, Self::Output, Self::Error];

    /// Its number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Input => 0,
            Self::Output => 1,
            Self::Error => 2,
        }
    }

    /// A borrow of it.
    pub fn borrow(self) -> BorrowedFd<'static> {
        match self {
            Self::Input => rustix::stdio::stdin(),
            Self::Output => rustix::stdio::stdout(),
            Self::Error => rustix::stdio::stderr(),
        }
    }

    /// `dup2(2)`: makes it refer to what `fd` does.
    pub fn replace(self, fd: impl AsFd) -> Result<()> {
        let fd = fd.as_fd();
        match self {
            Self::Input => rustix::stdio::dup2_stdin(fd),
            Self::Output => rustix::stdio::dup2_stdout(fd),
            Self::Error => rustix::stdio::dup2_stderr(fd),
        }
        .map_err(Error::of("dup2", || format!("{fd:?}, {}", self.number())))
    }
}

/// Marks every descriptor from 3 on close-on-exec.
pub fn close_all_on_exec() -> Result<()> {
    // SAFETY: the flag closes nothing now, so no owned descriptor becomes invalid.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3_u32,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(Error::last(
            "close_range",
            "3, 4294967295, CLOSE_RANGE_CLOEXEC",
        )),
    }
}

/// A pipe, close-on-exec: the end to read from, then the end to write to.
pub fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(Error::of("pipe2", || "O_CLOEXEC".to_owned()))
}
