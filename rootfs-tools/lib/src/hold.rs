//! Holds: what a process under way needs, so that no collection takes it.
//!
//! `holds/<uuid>` lists digests, one a line. Its maker keeps the file locked; a file whose lock is
//! free belongs to nobody any more and protects nothing. So a hold needs no expiry: it ends with
//! its process, also when that is killed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::digest::Digest;
use crate::files::{self, FileError, failed};
use crate::staging::Staging;
use crate::store::{Store, StoreError};

/// Protects blobs and snapshots from collection, and has a place for what is not complete yet.
/// Ends when it is dropped. Several threads may use it at once.
#[derive(Debug)]
pub struct Hold {
    staging: Staging,
    path: PathBuf,
    /// Locked as long as it is open.
    list: File,
    /// Blobs that were not there before.
    brought: Mutex<BTreeSet<Digest>>,
}

impl Store {
    /// Begins a hold.
    pub fn hold(&self) -> Result<Hold, StoreError> {
        self.require_write()?;
        Ok(Hold::create(self)?)
    }
}

impl Hold {
    /// The publishing lock keeps a collector away from the moment between making and locking.
    fn create(store: &Store) -> Result<Self, FileError> {
        let staging = Staging::create(store)?;
        let dir = directory(store);
        // A store of an earlier version has no such directory.
        files::make_dir(&dir, 0o700)?;
        let publish = store.lock_publish()?;
        let path = dir.join(uuid::Uuid::now_v7().to_string());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND;
        let list = rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
            .map_err(failed("create", &path))?;
        rustix::fs::flock(&list, FlockOperation::NonBlockingLockExclusive)
            .map_err(failed("lock", &path))?;
        drop(publish);
        Ok(Self {
            staging,
            path,
            list: File::from(list),
            brought: Mutex::default(),
        })
    }

    /// Protects the blobs and the snapshot of this digest from now on, whether they exist or not.
    ///
    /// The publishing lock makes this happen before or after a collection, never within: what
    /// exists afterwards stays.
    pub(crate) fn add(&self, store: &Store, digest: &Digest) -> Result<(), FileError> {
        let publish = store.lock_publish()?;
        let written = (&self.list).write_all(format!("{digest}\n").as_bytes());
        drop(publish);
        written.map_err(failed("write", &self.path))
    }

    /// Notes a blob that was not there before.
    pub(crate) fn note_brought(&self, digest: &Digest) {
        // A panic while a digest was inserted leaves the set whole.
        let mut brought = self.brought.lock().unwrap_or_else(PoisonError::into_inner);
        brought.insert(digest.clone());
    }

    /// Returns the blobs that were not there before.
    pub(crate) fn brought(&self) -> BTreeSet<Digest> {
        let brought = self.brought.lock().unwrap_or_else(PoisonError::into_inner);
        brought.clone()
    }

    /// Returns its file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn staging(&self) -> &Staging {
        &self.staging
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // What cannot be removed now is free, and removed by the next collection.
        drop(fs::remove_file(&self.path));
    }
}

/// A hold as a collector finds it.
#[derive(Debug)]
pub(crate) enum State {
    /// What a living process holds.
    Held(BTreeSet<Digest>),
    /// Nobody holds it any more.
    Stale,
    /// Its process has just ended.
    Gone,
}

/// Returns the files of all holds.
pub(crate) fn files(store: &Store) -> Result<Vec<PathBuf>, FileError> {
    files::entries_if_any(&directory(store))
}

/// Looks at a hold. The caller has the collecting lock: no hold begins or grows meanwhile.
pub(crate) fn look(path: &Path) -> Result<State, HoldError> {
    match files::try_lock_existing(path) {
        Ok(Some(_free)) => Ok(State::Stale),
        Ok(None) => read(path).map(State::Held),
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(State::Gone),
        Err(error) => Err(error.into()),
    }
}

/// A hold cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A line is no digest.
    #[error("the hold {} has a line that is no digest", path.display())]
    Line {
        /// The hold.
        path: PathBuf,
        /// The cause.
        #[source]
        source: crate::digest::DigestError,
    },
}

fn read(path: &Path) -> Result<BTreeSet<Digest>, HoldError> {
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    text.lines()
        .map(|line| {
            Digest::parse(line).map_err(|source| HoldError::Line {
                path: path.to_owned(),
                source,
            })
        })
        .collect()
}

fn directory(store: &Store) -> PathBuf {
    store.root().join("holds")
}
