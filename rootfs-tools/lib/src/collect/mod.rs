//! Collection: removes what nothing needs.
//!
//! Under `locks/gc`, exclusively: read the roots, mark what they reach, drop the names of bases
//! that nothing protects, and rename what is not marked to the trash. What follows, the deleting,
//! needs no lock. Importers publish under the same lock, shared, and name what they need in a hold
//! first, so nothing becomes needed between the marking and the renaming.
//!
//! A root that cannot be read ends the collection before anything changed.

mod mark;
mod roots;
mod sweep;
mod why;
mod workspace;

use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde::Serialize;

use self::mark::Marks;
use self::roots::Roots;
pub use self::why::Why;
use crate::digest::Digest;
use crate::files::{self, FileError};
use crate::hold::Hold;
use crate::name::BaseName;
use crate::oci::Index;
use crate::staging::{self, Staging};
use crate::store::{Store, StoreError};

/// Why nothing was removed.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// What a root needs is not known.
    #[error(
        "nothing was removed, because {} cannot be used; repair it, or leave it out with `rootfs-tools gc --quarantine {}`",
        file.display(), file.display()
    )]
    Root {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A file that was to be left out is no obstacle.
    #[error("{} is in nobody's way: only a root that cannot be used is moved to quarantine", .0.display())]
    NoObstacle(PathBuf),
    /// The store does not let itself be changed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of the store could not be read or changed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What becomes of what nothing needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is removed.
    Remove,
    /// It is reported.
    Preview,
}

/// How to collect.
#[derive(Debug, Clone)]
pub struct Collection {
    /// Whether anything is removed.
    pub action: Action,
    /// What is younger stays: a second belt for what is being used outside of all locks.
    pub min_age: Duration,
    /// Workspaces whose layers protect their bases, beside those that the store knows.
    pub workspaces: Vec<PathBuf>,
    /// Roots that cannot be used and are to be moved to quarantine.
    pub quarantine: Vec<PathBuf>,
}

/// What was removed, or would be.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// Bases that lost their name: not pinned, not current, below no layer, not in use.
    pub names: Vec<BaseName>,
    /// Snapshots.
    pub snapshots: Vec<Digest>,
    /// Blobs.
    pub blobs: Vec<Digest>,
    /// Bytes of the blobs.
    pub blob_bytes: u64,
    /// Blobs and snapshots that nothing needs, but that are too young.
    pub young: u64,
    /// Blobs and snapshots that stay.
    pub kept: u64,
    /// Where files in quarantine are now.
    pub quarantined: Vec<PathBuf>,
}

/// What is collected.
enum Scope<'a> {
    /// All that nothing needs.
    Everything,
    /// Blobs that an import brought which was refused.
    Refused(&'a BTreeSet<Digest>, &'a Hold),
}

impl Store {
    /// Removes blobs, snapshots and names that nothing needs.
    pub fn collect(&self, collection: &Collection) -> Result<Collected, CollectError> {
        self.require_write()?;
        self.collect_within(collection, &Scope::Everything)
    }

    /// Returns every chain from a root to what has this digest; none where nothing needs it.
    pub fn why(&self, digest: &Digest, workspaces: &[PathBuf]) -> Result<Vec<Why>, CollectError> {
        let collection = Collection {
            action: Action::Preview,
            min_age: Duration::ZERO,
            workspaces: workspaces.to_vec(),
            quarantine: Vec::new(),
        };
        let lock = self.lock_collect()?;
        let index_lock = self.lock_index()?;
        let roots = Roots::read(self, &collection)?;
        let found = why::chains(self, &roots, digest);
        drop((index_lock, lock));
        found
    }

    /// Removes the blobs that a refused import brought, unless something else needs them.
    pub(crate) fn discard_refused(&self, hold: &Hold) -> Result<(), CollectError> {
        let brought = hold.brought();
        if brought.is_empty() {
            return Ok(());
        }
        let collection = Collection {
            action: Action::Remove,
            min_age: Duration::ZERO,
            workspaces: Vec::new(),
            quarantine: Vec::new(),
        };
        self.collect_within(&collection, &Scope::Refused(&brought, hold))
            .map(drop)
    }

    fn collect_within(
        &self,
        collection: &Collection,
        scope: &Scope<'_>,
    ) -> Result<Collected, CollectError> {
        let staging = Staging::create(self)?;
        let lock = self.lock_collect()?;
        let index_lock = self.lock_index()?;
        let mut roots = Roots::read(self, collection)?;
        if let Scope::Refused(_, hold) = scope {
            roots.forget_hold(hold.path());
        }
        let mut marks = Marks::default();
        for root in std::mem::take(&mut roots.list) {
            if let Err(source) = marks.add(self, &root) {
                roots.obstacle(self, collection, root.file(), source)?;
            }
        }
        let mut collected = Collected::default();
        let mut index = roots.index.clone();
        let unnamed = sweep::unnamed(self, collection, &roots, &marks)?;
        match scope {
            Scope::Everything => {
                index.manifests.retain(|entry| !is_unnamed(entry, &unnamed));
                collected.names = unnamed;
            }
            Scope::Refused(..) => {}
        }
        for entry in &index.manifests {
            let root = mark::index_root(self.index_path(), entry);
            if let Err(source) = marks.add(self, &root) {
                let blob = self.blob_path(source.digest());
                roots.obstacle(self, collection, &blob, source)?;
                // Without that blob, whatever else the entry keeps is lost with it.
                marks
                    .add(self, &root)
                    .map_err(|source| CollectError::Root {
                        file: self.blob_path(source.digest()),
                        source: source.into(),
                    })?;
            }
        }
        roots.check_quarantine(collection)?;
        let dead = sweep::dead(self, collection, scope, &marks, &mut collected)?;
        if collection.action == Action::Remove {
            write_index_if_changed(self, &staging, &roots, &index)?;
            dead.discard(self)?;
            roots.remove_stale_holds()?;
        }
        collected.quarantined = roots.quarantined;
        drop((index_lock, lock));
        if collection.action == Action::Remove {
            staging::empty_trash(self)?;
        }
        Ok(collected)
    }

    fn lock_collect(&self) -> Result<std::os::fd::OwnedFd, FileError> {
        files::lock(&self.root().join("locks/gc"), FlockOperation::LockExclusive)
    }
}

fn is_unnamed(entry: &crate::oci::Descriptor, unnamed: &[BaseName]) -> bool {
    entry.name().is_some_and(|name| unnamed.contains(&name))
}

fn write_index_if_changed(
    store: &Store,
    staging: &Staging,
    roots: &Roots,
    index: &Index,
) -> Result<(), FileError> {
    if roots.index_damaged || index.manifests.len() != roots.index.manifests.len() {
        store.write_index(staging, index)?;
    }
    Ok(())
}

/// Tells whether two paths name the same file.
fn same_file(a: &Path, b: &Path) -> bool {
    if a == b {
        return true;
    }
    let identity = |path: &Path| {
        let stat = rustix::fs::lstat(path).ok()?;
        Some((stat.st_dev, stat.st_ino))
    };
    identity(a).is_some_and(|identified| identity(b) == Some(identified))
}
