//! Files that matter: written whole or not at all, and locks that die with their holder.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::staging::Staging;

/// Largest document of the store that is read, in bytes.
const MAX_DOCUMENT_BYTES: u64 = 16 * 1024 * 1024;

/// An operation on a file of the store that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", path.display())]
pub struct FileError {
    /// What was tried, as a verb.
    pub operation: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The cause.
    #[source]
    pub source: io::Error,
}

/// Returns a function that turns an error of `operation` on `path` into a [`FileError`].
pub(crate) fn failed<E: Into<io::Error>>(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> FileError {
    move |source| FileError {
        operation,
        path: path.to_owned(),
        source: source.into(),
    }
}

/// Makes changes of names in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), FileError> {
    File::open(dir)
        .and_then(|file| file.sync_all())
        .map_err(failed("sync", dir))
}

/// Creates `dir` and its parents with `mode`, where it does not exist.
pub(crate) fn make_dir(dir: &Path, mode: u32) -> Result<(), FileError> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(dir)
        .map_err(failed("create", dir))
}

/// Writes a new file and makes its content durable.
pub(crate) fn write_synced(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let mut file = File::create(path).map_err(failed("create", path))?;
    file.write_all(content)
        .and_then(|()| file.sync_all())
        .map_err(failed("write", path))
}

/// Writes `document` as `path`, see [`replace`].
pub(crate) fn replace_json<T: Serialize>(
    staging: &Staging,
    path: &Path,
    document: &T,
) -> Result<(), FileError> {
    let mut content = to_json(document, path)?;
    content.push(b'\n');
    replace(staging, path, &content)
}

/// Writes `content` as `path`: a reader sees the old file or the new one, also after a crash. The
/// new one is written in `staging`, which is cleared away if this process dies.
pub(crate) fn replace(staging: &Staging, path: &Path, content: &[u8]) -> Result<(), FileError> {
    let temporary = staging.temporary();
    write_synced(&temporary, content)?;
    fs::rename(&temporary, path).map_err(failed("replace", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Returns `document` as JSON text.
pub(crate) fn to_json<T: Serialize>(document: &T, path: &Path) -> Result<Vec<u8>, FileError> {
    serde_json::to_vec_pretty(document).map_err(failed("encode", path))
}

/// Reads a JSON document; `None` where the file does not exist.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let Some(content) = read_whole(path)? else {
        return Ok(None);
    };
    serde_json::from_slice(&content)
        .map(Some)
        .map_err(failed("parse", path))
}

/// Reads a document; `None` where the file does not exist.
pub(crate) fn read_whole(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open", path)(error)),
    };
    let mut content = Vec::new();
    file.take(MAX_DOCUMENT_BYTES)
        .read_to_end(&mut content)
        .map_err(failed("read", path))?;
    Ok(Some(content))
}

/// Opens `path`, creating it, and waits for the lock.
pub(crate) fn lock(path: &Path, kind: FlockOperation) -> Result<OwnedFd, FileError> {
    let file = open_lock(path, OFlags::CREATE)?;
    loop {
        match rustix::fs::flock(&file, kind) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("lock", path)(error)),
        }
    }
}

/// Takes the lock at once; `None` where another process holds it.
pub(crate) fn try_lock(path: &Path) -> Result<Option<OwnedFd>, FileError> {
    try_lock_with(path, OFlags::CREATE)
}

/// Takes the lock of a file that exists; `None` where another process holds it.
pub(crate) fn try_lock_existing(path: &Path) -> Result<Option<OwnedFd>, FileError> {
    try_lock_with(path, OFlags::empty())
}

fn try_lock_with(path: &Path, flags: OFlags) -> Result<Option<OwnedFd>, FileError> {
    let file = open_lock(path, flags)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(failed("lock", path)(error)),
    }
}

/// Opens a lock file; `flags` says whether it may be created.
pub(crate) fn open_lock(path: &Path, flags: OFlags) -> Result<OwnedFd, FileError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | flags;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed("open", path))
}

/// Returns the paths of what is in `dir`.
pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>, FileError> {
    let list = fs::read_dir(dir).map_err(failed("list", dir))?;
    list.map(|entry| entry.map(|entry| entry.path()).map_err(failed("list", dir)))
        .collect()
}

/// Returns the paths of what is in `dir`; none where it does not exist.
pub(crate) fn entries_if_any(dir: &Path) -> Result<Vec<PathBuf>, FileError> {
    match entries(dir) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed,
    }
}
