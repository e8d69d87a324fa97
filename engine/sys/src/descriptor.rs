//! Descriptors: what they are, and close-on-exec (`close_range(2)`, `fstat(2)`).

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

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

/// The first open descriptor that is none of 0–2, read from `/proc/self/fd`.
pub fn first_extra() -> Result<Option<u32>> {
    const FD_DIRECTORY: &CStr = c"/proc/self/fd";
    let directory = open(here(), FD_DIRECTORY, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let own = directory.as_raw_fd().unsigned_abs();
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(Error::of("getdents64", || format!("{FD_DIRECTORY:?}")))?;
        // `.` and `..` are no numbers.
        let number = entry.file_name().to_str().map_or(Ok(0), str::parse::<u32>);
        match number {
            Ok(number) if number > 2 && number != own => return Ok(Some(number)),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(None)
}

/// Takes over a descriptor that came through the exec. Refused with `EBUSY` when it is marked
/// close-on-exec: then it was opened by this process, or has been taken over before.
pub fn inherited(number: i32) -> Result<OwnedFd> {
    let failure = |errno| Error::new("fcntl", format!("{number}, F_GETFD"), errno);
    // SAFETY: F_GETFD reads the flags of any number and answers EBADF for one that is not open.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return Err(Error::last("fcntl", format!("{number}, F_GETFD")));
    }
    if number <= 2 || flags & libc::FD_CLOEXEC != 0 {
        return Err(failure(Errno::BUSY));
    }
    // SAFETY: the number is open and nobody in this process owns it: what this process opens is
    // close-on-exec, and so is this one from the next line on.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC)
        .map_err(Error::of("fcntl", || {
            format!("{number}, F_SETFD, FD_CLOEXEC")
        }))?;
    Ok(owned)
}

/// Waits until there is something to read or the other end is closed; false when `timeout` came
/// first. A signal does not end the wait.
pub fn wait_readable(fd: impl AsFd, timeout: Duration) -> Result<bool> {
    let end = Instant::now() + timeout;
    let fd = fd.as_fd();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timespec = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&timespec)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(Error::new(
                    "ppoll",
                    format!("{fd:?}, POLLIN, {left:?}"),
                    errno,
                ));
            }
        }
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
