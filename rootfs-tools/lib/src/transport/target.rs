//! Files that appear whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::files::{FileError, failed, sync_dir};

const BUFFER_BYTES: usize = 128 * 1024;

/// A file that has no name until it is complete, so that nothing is left of an export that fails
/// or is killed. Where a file system cannot do that, it has another name and is removed.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) output: BufWriter<File>,
    /// A name in the directory of the file.
    temporary: PathBuf,
    /// Whether it has that name already.
    named: bool,
}

impl NewFile {
    pub(crate) fn create(path: &Path) -> Result<Self, FileError> {
        let dir = directory(path);
        let temporary = beside(path);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        let (file, named) = match rustix::fs::open(dir, flags, mode) {
            Ok(file) => (File::from(file), false),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) if dir.is_dir() => {
                let file = File::options()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .open(&temporary);
                (file.map_err(failed("create", &temporary))?, true)
            }
            Err(error) => return Err(failed("create a file in", dir)(error)),
        };
        Ok(Self {
            output: BufWriter::with_capacity(BUFFER_BYTES, file),
            temporary,
            named,
        })
    }

    /// Makes the file durable and gives it its name, in the place of another one.
    pub(crate) fn publish(mut self, path: &Path) -> Result<(), FileError> {
        let written = self
            .output
            .flush()
            .and_then(|()| self.output.get_ref().sync_all());
        written.map_err(failed("write", path))?;
        if !self.named {
            // open(2), O_TMPFILE: this way needs no capability.
            let open = format!("/proc/self/fd/{}", self.output.get_ref().as_raw_fd());
            rustix::fs::linkat(CWD, open, CWD, &self.temporary, AtFlags::SYMLINK_FOLLOW)
                .map_err(failed("name", &self.temporary))?;
            self.named = true;
        }
        fs::rename(&self.temporary, path).map_err(failed("name", path))?;
        self.named = false;
        sync_dir(directory(path))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.named {
            // It is in nobody's way.
            drop(fs::remove_file(&self.temporary));
        }
    }
}

/// Refuses to replace what is no file: a device, a directory.
pub(crate) fn check_replaceable(path: &Path) -> Result<(), FileError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(()),
        Ok(_) => Err(failed("replace", path)(io::Error::other(
            "it is no regular file",
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("examine", path)(error)),
    }
}

pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Returns a hidden name beside `path` that nothing else has.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", uuid::Uuid::now_v7()));
    directory(path).join(name)
}
