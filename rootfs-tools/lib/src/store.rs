//! The store of base images.
//!
//! ```text
//! <root>/meta.json                              format and feature flags
//!        store/{oci-layout,index.json,blobs/}   an OCI image layout; a base is the tag base-<name>
//!        snapshots/sha256/<chain>/{fs,meta.json,use}   unpacked, committed by one rename
//!        index/<number>-<digest>.json           the last copies of index.json
//!        pins/<name>.json                       what may not be collected
//!        staging/<uuid>/{lock,…}                an import under way; its process holds the lock
//!        holds/<uuid>                           what a process under way needs; it holds the lock
//!        trash/<uuid>                           renamed here, then deleted without locks
//!        workspaces/<digest>.json               whose layers' stamps are roots of collection
//!        quarantine/<uuid>-<name>               files that could not be used, for people
//!        locks/{gc,index}
//! ```
//!
//! Locks are `flock`s and die with their process. `locks/gc` is held shared while something is
//! published and exclusively while leftovers are moved to the trash; `locks/index` is held while
//! `index.json` and the pins change. A snapshot's `use` is locked shared while a sandbox has it
//! mounted. Whatever an interrupted import leaves is in `staging` with a free lock, or is a blob
//! or snapshot without a name, which the same import finds and takes over.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{FlockOperation, OFlags};
use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::digest::Digest;
use crate::files::{self, FileError, failed};
use crate::format::{Access, Format, FormatError};
use crate::name::BaseName;
use crate::oci::{Descriptor, Index, Platform};
use crate::staging::{self, Staging};

/// Why the store could not be opened, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no store at this place.
    #[error("{} is no store of base images; `rootfs-tools import` or `build` makes one", .0.display())]
    Absent(PathBuf),
    /// The store was written by a newer version.
    #[error("the store {} cannot be used", root.display())]
    Format {
        /// The store.
        root: PathBuf,
        /// The cause.
        #[source]
        source: FormatError,
    },
    /// No base has this name.
    #[error("there is no base {0}; `rootfs-tools list` shows those that exist")]
    UnknownBase(BaseName),
    /// The snapshot is not installed.
    #[error("the snapshot {0} is not in the store; import its base again")]
    UnknownSnapshot(Digest),
    /// A file of the store could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A base that a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedBase {
    /// The name asked for.
    pub name: BaseName,
    /// Digest of the manifest: the version of the base.
    pub manifest: Digest,
    /// Digest of the snapshot: what is mounted.
    pub chain: Digest,
    /// The root directory of the snapshot, read-only by agreement.
    pub fs: PathBuf,
}

/// The entry of a base in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseEntry {
    /// Its name.
    pub name: BaseName,
    /// Its manifest.
    pub manifest: Blob,
    /// Media type of the manifest.
    pub media_type: String,
    /// Digest of the snapshot.
    pub chain: Digest,
    /// Annotations of the entry.
    pub annotations: BTreeMap<String, String>,
    /// What it runs on, where the entry says so.
    pub platform: Option<Platform>,
}

/// What `list` shows of a base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BaseSummary {
    /// Its name.
    pub name: BaseName,
    /// Digest of the manifest.
    pub manifest: Digest,
    /// Digest of the snapshot.
    pub chain: Digest,
    /// Size of the uncompressed layers in bytes; `None` where the snapshot is missing.
    pub bytes: Option<u64>,
    /// Number of entries of the layers; `None` where the snapshot is missing.
    pub entries: Option<u64>,
    /// Whether a pin protects it.
    pub pinned: bool,
    /// When it got its name, RFC 3339 in UTC.
    pub created: String,
}

/// `snapshots/sha256/<chain>/meta.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotMeta {
    #[serde(flatten)]
    pub(crate) format: Format,
    pub(crate) chain: Digest,
    /// Digests of the uncompressed layers.
    pub(crate) diff_ids: Vec<Digest>,
    /// Digests of the blobs that these were unpacked from.
    #[serde(default)]
    pub(crate) layers: Vec<Digest>,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// `pins/<name>.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pin {
    #[serde(flatten)]
    pub(crate) format: Format,
    pub(crate) name: BaseName,
    pub(crate) manifest: Digest,
    pub(crate) chain: Digest,
    pub(crate) created: String,
}

/// An opened store.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    access: Access,
}

impl Store {
    /// Opens the store at `root` and clears away what interrupted imports left.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        let Some(format) = files::read_json::<Format>(&root.join("meta.json"))? else {
            return Err(StoreError::Absent(root));
        };
        let access = match format.access() {
            Ok(access) => access,
            Err(source) => return Err(StoreError::Format { root, source }),
        };
        let store = Self { root, access };
        if store.access == Access::ReadWrite {
            staging::sweep(&store)?;
        }
        Ok(store)
    }

    /// Opens the store at `root`, making it first where there is none.
    pub fn create(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        // A store of a newer version is refused before anything is made in it.
        if files::read_json::<Format>(&root.join("meta.json"))?.is_some() {
            return Self::open(root);
        }
        for (dir, mode) in [
            ("", 0o755),
            ("store/blobs/sha256", 0o755),
            ("pins", 0o755),
            ("locks", 0o755),
            // The snapshots hold set-user-id programs, perhaps old ones: no way in for host users.
            ("snapshots", 0o700),
            ("snapshots/sha256", 0o700),
            ("staging", 0o700),
            ("holds", 0o700),
            ("trash", 0o700),
        ] {
            files::make_dir(&root.join(dir), mode)?;
        }
        let store = Self {
            root,
            access: Access::ReadWrite,
        };
        let staging = Staging::create(&store)?;
        let lock = store.lock_index()?;
        let layout = store.root.join("store/oci-layout");
        if files::read_json::<serde_json::Value>(&layout)?.is_none() {
            files::replace_json(&staging, &layout, &layout_document())?;
        }
        if files::read_whole(&store.index_path())?.is_none() {
            store.write_index(&staging, &Index::empty())?;
        }
        // Last: its presence says that the rest is there.
        let meta = store.root.join("meta.json");
        if files::read_json::<Format>(&meta)?.is_none() {
            files::replace_json(&staging, &meta, &Format::current())?;
        }
        drop((lock, staging));
        Self::open(store.root)
    }

    /// Returns the directory of the store.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the base that has the name.
    pub fn resolve(&self, name: &str) -> Result<ResolvedBase, ResolveError> {
        let name = BaseName::parse(name)?;
        let index = self.index()?;
        let base = index
            .find(&name)
            .and_then(|entry| self.resolved(&name, entry));
        base.ok_or_else(|| StoreError::UnknownBase(name).into())
    }

    /// Returns what every name stands for, sorted by name. Reads the index alone, which a service
    /// without privilege may do.
    pub fn bases(&self) -> Result<Vec<ResolvedBase>, StoreError> {
        let index = self.index()?;
        let mut bases: Vec<_> = index
            .manifests
            .iter()
            .filter_map(|entry| self.resolved(&entry.name()?, entry))
            .collect();
        bases.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(bases)
    }

    /// Returns all bases, sorted by name.
    pub fn list(&self) -> Result<Vec<BaseSummary>, StoreError> {
        let index = self.index()?;
        let mut bases = Vec::new();
        for entry in &index.manifests {
            let Some(base) = entry.name().and_then(|name| self.resolved(&name, entry)) else {
                continue;
            };
            let meta = match self.snapshot_meta(&base.chain) {
                Ok(meta) => Some(meta),
                Err(StoreError::UnknownSnapshot(_)) => None,
                Err(error) => return Err(error),
            };
            bases.push(BaseSummary {
                pinned: self.pin_of(&base.name)?.is_some(),
                name: base.name,
                manifest: base.manifest,
                bytes: meta.as_ref().map(|meta| meta.bytes),
                entries: meta.as_ref().map(|meta| meta.entries),
                chain: base.chain,
                created: entry.created().unwrap_or("unknown").to_owned(),
            });
        }
        bases.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(bases)
    }

    /// Returns what the index says of a base.
    pub fn entry(&self, name: &BaseName) -> Result<BaseEntry, StoreError> {
        let index = self.index()?;
        let found = index.find(name).and_then(|entry| {
            Some(BaseEntry {
                name: name.clone(),
                manifest: entry.blob().ok()?,
                media_type: entry.media_type.clone(),
                chain: entry.chain()?,
                annotations: entry.annotations.clone(),
                platform: entry.platform(),
            })
        });
        found.ok_or_else(|| StoreError::UnknownBase(name.clone()))
    }

    /// Locks a snapshot for use: as long as the descriptor is open, in any process, nothing removes
    /// the snapshot.
    pub fn use_lock(&self, chain: &Digest) -> Result<OwnedFd, StoreError> {
        let dir = self.snapshot_dir(chain);
        let path = dir.join("use");
        let absent = |error: FileError| {
            if error.source.kind() == io::ErrorKind::NotFound {
                StoreError::UnknownSnapshot(chain.clone())
            } else {
                error.into()
            }
        };
        let lock = files::open_lock(&path, OFlags::empty()).map_err(absent)?;
        rustix::fs::flock(&lock, FlockOperation::LockShared).map_err(failed("lock", &path))?;
        // A collector may have moved the directory between open and lock.
        let held = rustix::fs::fstat(&lock).map_err(failed("examine", &path))?;
        let there = rustix::fs::stat(&path)
            .map_err(failed("examine", &path))
            .map_err(absent)?;
        if (held.st_dev, held.st_ino) != (there.st_dev, there.st_ino) {
            return Err(StoreError::UnknownSnapshot(chain.clone()));
        }
        Ok(lock)
    }

    /// Protects a base from collection. Pinning a pinned base renews the pin.
    pub fn pin(&self, name: &BaseName) -> Result<(), StoreError> {
        self.require_write()?;
        let staging = Staging::create(self)?;
        let lock = self.lock_index()?;
        let index = self.index()?;
        let base = index
            .find(name)
            .and_then(|entry| self.resolved(name, entry))
            .ok_or_else(|| StoreError::UnknownBase(name.clone()))?;
        self.write_pin(&staging, &base)?;
        drop(lock);
        Ok(())
    }

    /// Removes the protection of a base; the base stays. Returns whether there was one.
    pub fn unpin(&self, name: &BaseName) -> Result<Unpinned, StoreError> {
        self.require_write()?;
        let lock = self.lock_index()?;
        let path = self.pin_path(name);
        let outcome = match fs::remove_file(&path) {
            Ok(()) => Unpinned::Removed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.index()?.find(name).is_none() {
                    return Err(StoreError::UnknownBase(name.clone()));
                }
                Unpinned::WasNotPinned
            }
            Err(error) => return Err(failed("remove", &path)(error).into()),
        };
        files::sync_dir(&self.root.join("pins"))?;
        drop(lock);
        Ok(outcome)
    }

    pub(crate) fn require_write(&self) -> Result<(), StoreError> {
        match &self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly(unknown) => Err(StoreError::Format {
                root: self.root.clone(),
                source: FormatError::WriteNeeds(unknown.clone()),
            }),
        }
    }

    pub(crate) fn lock_index(&self) -> Result<OwnedFd, FileError> {
        files::lock(
            &self.root.join("locks/index"),
            FlockOperation::LockExclusive,
        )
    }

    /// Keeps collection away while something is published.
    pub(crate) fn lock_publish(&self) -> Result<OwnedFd, FileError> {
        files::lock(&self.root.join("locks/gc"), FlockOperation::LockShared)
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join("store/blobs/sha256")
    }

    pub(crate) fn snapshot_dir(&self, chain: &Digest) -> PathBuf {
        self.root.join("snapshots/sha256").join(chain.hex())
    }

    pub(crate) fn snapshot_meta(&self, chain: &Digest) -> Result<SnapshotMeta, StoreError> {
        files::read_json(&self.snapshot_dir(chain).join("meta.json"))?
            .ok_or_else(|| StoreError::UnknownSnapshot(chain.clone()))
    }

    pub(crate) fn pin_of(&self, name: &BaseName) -> Result<Option<Pin>, FileError> {
        files::read_json(&self.pin_path(name))
    }

    pub(crate) fn write_pin(
        &self,
        staging: &Staging,
        base: &ResolvedBase,
    ) -> Result<(), FileError> {
        let pin = Pin {
            format: Format::current(),
            name: base.name.clone(),
            manifest: base.manifest.clone(),
            chain: base.chain.clone(),
            created: crate::time::now(),
        };
        files::replace_json(staging, &self.pin_path(&base.name), &pin)
    }

    pub(crate) fn resolved(&self, name: &BaseName, entry: &Descriptor) -> Option<ResolvedBase> {
        let chain = entry.chain()?;
        Some(ResolvedBase {
            name: name.clone(),
            manifest: Digest::parse(entry.digest.as_str()).ok()?,
            fs: self.snapshot_dir(&chain).join("fs"),
            chain,
        })
    }

    fn pin_path(&self, name: &BaseName) -> PathBuf {
        self.root.join("pins").join(format!("{name}.json"))
    }
}

/// Returns `oci-layout`.
pub(crate) fn layout_document() -> serde_json::Value {
    serde_json::json!({ "imageLayoutVersion": "1.0.0" })
}

/// What [`Store::unpin`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unpinned {
    /// There was a pin.
    Removed,
    /// There was none.
    WasNotPinned,
}

/// Why a name could not be resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The text is no name.
    #[error(transparent)]
    Name(#[from] crate::name::NameError),
    /// The store has no such base or cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<FileError> for ResolveError {
    fn from(error: FileError) -> Self {
        Self::Store(error.into())
    }
}
