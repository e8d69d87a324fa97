//! Directories of imports under way.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::files::{self, FileError, failed};
use crate::store::Store;

/// A directory that its holder's lock keeps, and that nobody else looks into.
#[derive(Debug)]
pub(crate) struct Staging {
    dir: PathBuf,
    /// Held until the directory is gone.
    _lock: OwnedFd,
}

impl Staging {
    /// Makes a directory and locks it. The publishing lock keeps a sweeper away from the moment
    /// between the two.
    pub(crate) fn create(store: &Store) -> Result<Self, FileError> {
        let publish = store.lock_publish()?;
        let dir = store
            .root()
            .join("staging")
            .join(uuid::Uuid::now_v7().to_string());
        files::make_dir(&dir, 0o700)?;
        let path = dir.join("lock");
        let lock = files::try_lock(&path)?
            .ok_or_else(|| failed("lock", &path)(io::Error::from(io::ErrorKind::WouldBlock)))?;
        drop(publish);
        Ok(Self { dir, _lock: lock })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns a path in it that nothing else uses.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.dir.join(uuid::Uuid::now_v7().to_string())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What cannot be removed now is removed when the store is opened again.
        drop(fs::remove_dir_all(&self.dir));
    }
}

/// Removes what has no living holder. Does nothing while another process publishes or sweeps, and
/// nothing for a caller who may not write.
pub(crate) fn sweep(store: &Store) -> Result<(), FileError> {
    let (staging, trash) = (store.root().join("staging"), store.root().join("trash"));
    let leftovers = match files::entries(&staging) {
        Ok(leftovers) => leftovers,
        Err(error) if error.source.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        Err(error) => return Err(error),
    };
    if !leftovers.is_empty() {
        let Some(exclusive) = files::try_lock(&store.root().join("locks/gc"))? else {
            return Ok(());
        };
        for dir in leftovers {
            discard_if_free(&dir, &trash)?;
        }
        drop(exclusive);
    }
    empty_trash(store)
}

/// Deletes what is in the trash.
pub(crate) fn empty_trash(store: &Store) -> Result<(), FileError> {
    for dead in files::entries(&store.root().join("trash"))? {
        match fs::remove_dir_all(&dead) {
            Ok(()) => {}
            // Two sweepers may delete the same tree.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("remove", &dead)(error)),
        }
    }
    Ok(())
}

/// Moves a staging directory to the trash unless its holder lives.
fn discard_if_free(dir: &Path, trash: &Path) -> Result<(), FileError> {
    let lock = match files::try_lock(&dir.join("lock")) {
        Ok(Some(lock)) => lock,
        Ok(None) => return Ok(()),
        // Its holder has just removed it.
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let dead = trash.join(uuid::Uuid::now_v7().to_string());
    match fs::rename(dir, &dead) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("discard", dir)(error)),
    }
    drop(lock);
    Ok(())
}
