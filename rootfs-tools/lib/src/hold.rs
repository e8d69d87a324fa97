//! Holds: what a process under way needs, so that no collection takes it.
//!
//! `holds/<uuid>` lists digests, one a line. Its maker keeps the file locked; a file whose lock is
//! free belongs to nobody any more and protects nothing. So a hold needs no expiry: it ends with
//! its process, also when that is killed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

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

/// Holds as a collector finds them.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// What living processes hold, each with the file that says so.
    pub(crate) live: Vec<(PathBuf, BTreeSet<Digest>)>,
    /// Files that nobody holds any more.
    pub(crate) stale: Vec<PathBuf>,
}

/// Reads all holds. The caller has the collecting lock: no hold begins or grows meanwhile.
pub(crate) fn read_all(store: &Store) -> Result<Holds, HoldError> {
    let mut holds = Holds::default();
    for path in files::entries_if_any(&directory(store))? {
        match files::try_lock_existing(&path) {
            Ok(Some(_free)) => holds.stale.push(path),
            Ok(None) => {
                let digests = read(&path)?;
                holds.live.push((path, digests));
            }
            // Its process has just ended.
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(holds)
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

impl HoldError {
    /// Returns the file.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::File(error) => &error.path,
            Self::Line { path, .. } => path,
        }
    }
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
