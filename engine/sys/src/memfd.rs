//! Sealed anonymous files, for messages larger than a packet.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FileType, MemfdFlags, SealFlags, fcntl_add_seals, fstat, memfd_create};
use rustix::io::Errno;

use crate::{Error, Result};

/// Returns a memfd with the given contents that nobody can change any more (`memfd_create(2)`).
pub fn sealed(name: &str, parts: &[&[u8]]) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create(name, flags).map_err(Error::of("memfd_create", || name.to_owned()))?;
    let mut file = File::from(fd);
    for part in parts {
        file.write_all(part).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::new("write", format!("memfd:{name}, {}", part.len()), errno)
        })?;
    }
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&file, seals).map_err(Error::of("fcntl", || format!("F_ADD_SEALS, {name}")))?;
    Ok(file.into())
}

/// Reads a memfd that somebody else has sent, from its start, at most `limit` bytes; a longer one
/// fails with `E2BIG`, anything but a regular file with `EINVAL`.
pub fn read(fd: impl AsFd, limit: usize) -> Result<Vec<u8>> {
    let stat = fstat(&fd).map_err(Error::of("fstat", || "memfd".to_owned()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::new("fstat", "not a regular file", Errno::INVAL));
    }
    let size = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if size > limit {
        return Err(Error::new("read", format!("{size} bytes"), Errno::TOOBIG));
    }
    let io = |error: &std::io::Error| {
        Error::new(
            "pread64",
            "memfd",
            Errno::from_io_error(error).unwrap_or(Errno::IO),
        )
    };
    let file = File::from(
        fd.as_fd()
            .try_clone_to_owned()
            .map_err(|error| io(&error))?,
    );
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, 0)
        .map_err(|error| io(&error))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_file_cannot_be_written_and_reads_back() {
        let fd = sealed("test", &[b"ab", b"c"]).unwrap();
        assert_eq!(read(&fd, 3).unwrap(), b"abc");
        assert_eq!(read(&fd, 2).unwrap_err().errno(), Errno::TOOBIG);
        let refused = File::from(fd).write_at(b"x", 0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn a_pipe_is_not_read() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(read(&reader, 10).unwrap_err().errno(), Errno::INVAL);
    }
}
