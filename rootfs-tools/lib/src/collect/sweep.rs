//! Removes what is not marked.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use super::mark::Marks;
use super::roots::Roots;
use super::{Collected, Collection, Scope};
use crate::digest::Digest;
use crate::files::{self, FileError, failed};
use crate::name::BaseName;
use crate::store::Store;

/// What is to be moved to the trash.
pub(super) struct Dead {
    /// Below the directory of the trash, by their digits.
    blobs: Vec<(PathBuf, Digest)>,
    snapshots: Vec<(PathBuf, Digest)>,
    /// The locks of the snapshots: nobody begins to use them before they are gone.
    locks: Vec<OwnedFd>,
}

impl Dead {
    pub(super) fn discard(self, store: &Store) -> Result<(), FileError> {
        if self.blobs.is_empty() && self.snapshots.is_empty() {
            return Ok(());
        }
        let trash = store
            .root()
            .join("trash")
            .join(uuid::Uuid::now_v7().to_string());
        for (dead, kind) in [(&self.blobs, "blobs"), (&self.snapshots, "snapshots")] {
            let trash = trash.join(kind);
            files::make_dir(&trash, 0o700)?;
            for (path, digest) in dead {
                match fs::rename(path, trash.join(digest.hex())) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(failed("discard", path)(error));
                    }
                    Ok(()) | Err(_) => {}
                }
            }
        }
        drop(self.locks);
        Ok(())
    }
}

/// Returns the bases whose names nothing protects.
pub(super) fn unnamed(
    store: &Store,
    collection: &Collection,
    roots: &Roots,
    marks: &Marks,
) -> Result<Vec<BaseName>, FileError> {
    let mut unnamed = Vec::new();
    for entry in &roots.index.manifests {
        let Some(base) = entry.name().and_then(|name| store.resolved(&name, entry)) else {
            // Another tool's entry: it stays.
            continue;
        };
        let protected = roots.pinned.contains(&base.name)
            || marks.blobs.contains_key(&base.manifest)
            || marks.snapshots.contains_key(&base.chain);
        if protected
            || is_young(&store.blob_path(&base.manifest), collection.min_age)?
            || is_young(&store.snapshot_dir(&base.chain), collection.min_age)?
            || is_used(store, &base.chain)?
        {
            continue;
        }
        unnamed.push(base.name);
    }
    Ok(unnamed)
}

/// Returns what is not marked, and counts it.
pub(super) fn dead(
    store: &Store,
    collection: &Collection,
    scope: &Scope<'_>,
    marks: &Marks,
    collected: &mut Collected,
) -> Result<Dead, FileError> {
    let mut dead = Dead {
        blobs: Vec::new(),
        snapshots: Vec::new(),
        locks: Vec::new(),
    };
    for path in files::entries(&store.blobs())? {
        let Some(digest) = digest_of(&path) else {
            continue;
        };
        let concerned = match scope {
            Scope::Everything => true,
            Scope::Refused(brought, _) => brought.contains(&digest),
        };
        if !concerned || marks.blobs.contains_key(&digest) {
            collected.kept += 1;
        } else if is_young(&path, collection.min_age)? {
            collected.young += 1;
        } else {
            let metadata = path.symlink_metadata().map_err(failed("examine", &path))?;
            collected.blob_bytes += metadata.len();
            collected.blobs.push(digest.clone());
            dead.blobs.push((path, digest));
        }
    }
    if matches!(scope, Scope::Refused(..)) {
        return Ok(dead);
    }
    for path in files::entries(&store.root().join("snapshots/sha256"))? {
        let Some(digest) = digest_of(&path) else {
            continue;
        };
        if marks.snapshots.contains_key(&digest) {
            collected.kept += 1;
        } else if is_young(&path, collection.min_age)? {
            collected.young += 1;
        } else if let Use::Free(lock) = lock_unused(store, &digest)? {
            dead.locks.extend(lock);
            collected.snapshots.push(digest.clone());
            dead.snapshots.push((path, digest));
        } else {
            collected.kept += 1;
        }
    }
    collected.blobs.sort();
    collected.snapshots.sort();
    Ok(dead)
}

fn digest_of(path: &Path) -> Option<Digest> {
    let hex = path.file_name()?.to_str()?;
    Digest::parse(format!("sha256:{hex}")).ok()
}

/// Tells whether the file is younger; one that is not there is not.
fn is_young(path: &Path, age: Duration) -> Result<bool, FileError> {
    if age.is_zero() {
        return Ok(false);
    }
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed("examine", path)(error)),
    };
    let modified = metadata.modified().map_err(failed("examine", path))?;
    // What is from the future is young.
    let passed = SystemTime::now().duration_since(modified);
    Ok(!passed.is_ok_and(|passed| passed >= age))
}

fn is_used(store: &Store, chain: &Digest) -> Result<bool, FileError> {
    Ok(matches!(lock_unused(store, chain)?, Use::Taken))
}

/// Whether somebody uses a snapshot.
enum Use {
    /// Nobody, as long as this lock is held. A snapshot without a lock file was never whole.
    Free(Option<OwnedFd>),
    Taken,
}

fn lock_unused(store: &Store, chain: &Digest) -> Result<Use, FileError> {
    match files::try_lock_existing(&store.snapshot_dir(chain).join("use")) {
        Ok(Some(lock)) => Ok(Use::Free(Some(lock))),
        Ok(None) => Ok(Use::Taken),
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(Use::Free(None)),
        Err(error) => Err(error),
    }
}
