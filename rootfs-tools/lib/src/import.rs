//! Import: from an archive or a directory to a named, pinned snapshot.
//!
//! 1. the input becomes a compressed layer in a staging directory, hashed and synced
//! 2. the layer is read again, checked against both digests, and unpacked in staging
//! 3. the file system is synced, once
//! 4. under `locks/gc` (shared): blobs are renamed into place, then the snapshot
//! 5. under `locks/index`: the pin file, then `index.json`
//!
//! Nothing outside staging changes before step 4, so a refused archive leaves no trace. Each
//! later step is one rename and can be repeated.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::digest::Digest;
use crate::directory::{self, DirectoryError};
use crate::files::{self, FileError, failed};
use crate::format::Format;
use crate::ingest::{self, BlobReader, IngestError, Layer};
use crate::name::BaseName;
use crate::notice::Notices;
use crate::oci::{Descriptor, ImageConfig, Manifest};
use crate::staging::Staging;
use crate::store::{ResolvedBase, SnapshotMeta, Store, StoreError};
use crate::unpack::{self, UnpackError};

/// Why an import failed. The store is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The store does not let itself be changed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The input cannot be taken.
    #[error(transparent)]
    Ingest(#[from] IngestError),
    /// The directory cannot be archived.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The archive is refused.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// What was written could not be read back.
    #[error("the layer that was just written cannot be read back")]
    ReadBack(#[source] io::Error),
    /// What was written is not what was read back.
    #[error(
        "the layer that was just written reads back as {found} instead of {written}: check the disk"
    )]
    Changed {
        /// Digest of what was written.
        written: Digest,
        /// Digest of what was read.
        found: Digest,
    },
    /// A file of the store could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What is imported.
#[expect(missing_debug_implementations, reason = "a reader has no Debug")]
pub enum Source<'a> {
    /// A tar archive of a root file system: plain, gzip, zstd or xz.
    Archive(&'a mut dyn Read),
    /// A root file system in a directory.
    Directory(&'a Path),
}

/// How far an import is. The steps after `Unpacking` are reported when they are done and durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Bytes read of the input.
    Reading(u64),
    /// Bytes unpacked, of the uncompressed archive.
    Unpacking {
        /// So far.
        bytes: u64,
        /// Altogether.
        of: u64,
    },
    /// The snapshot is complete in staging.
    Synced,
    /// The blobs are in the store.
    BlobsStored,
    /// The snapshot is in the store.
    SnapshotStored,
    /// The base is pinned.
    Pinned,
    /// The base has its name.
    Named,
}

/// What an import made.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The base.
    pub base: ResolvedBase,
    /// Size of the uncompressed archive in bytes.
    pub bytes: u64,
    /// Number of entries of the archive.
    pub entries: u64,
    /// What was left out or is worth knowing.
    pub notices: Notices,
}

impl Store {
    /// Imports `source`, gives it `name` and pins it. A base that had the name keeps a name with
    /// the first digits of its version.
    pub fn import(
        &self,
        name: &BaseName,
        source: Source<'_>,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Imported, ImportError> {
        self.require_write()?;
        let staging = Staging::create(self)?;
        let mut notices = Notices::default();
        let blob = staging.dir().join("layer");
        let layer = match source {
            Source::Archive(input) => {
                let mut read = |bytes| progress(Step::Reading(bytes));
                ingest::ingest_archive(input, &blob, &mut read)?
            }
            Source::Directory(dir) => ingest::ingest_written(&blob, |sink| {
                let mut read = |bytes| progress(Step::Reading(bytes));
                directory::archive(dir, sink, &mut notices, &mut read).map_err(ImportError::from)
            })?,
        };
        let snapshot = unpack_snapshot(&staging, &layer, &mut notices, progress)?;
        let publish = self.lock_publish()?;
        let (manifest, manifest_bytes) = self.store_blobs(&staging, &layer)?;
        progress(Step::BlobsStored);
        self.store_snapshot(&staging, &snapshot.chain)?;
        progress(Step::SnapshotStored);
        let base = ResolvedBase {
            name: name.clone(),
            manifest,
            fs: self.snapshot_dir(&snapshot.chain).join("fs"),
            chain: snapshot.chain,
        };
        self.give_name(&staging, &base, manifest_bytes, progress)?;
        drop(publish);
        Ok(Imported {
            base,
            bytes: snapshot.bytes,
            entries: snapshot.entries,
            notices,
        })
    }

    /// Moves the layer into the store and writes config and manifest. Returns the manifest's
    /// digest and size.
    fn store_blobs(&self, staging: &Staging, layer: &Layer) -> Result<(Digest, u64), ImportError> {
        let blobs = self.blobs();
        move_blob(&staging.dir().join("layer"), &blobs.join(layer.blob.hex()))?;
        let write = |content: &[u8]| -> Result<(Digest, u64), FileError> {
            let digest = Digest::of(content);
            let temporary = staging.dir().join("blob");
            files::write_synced(&temporary, content)?;
            move_blob(&temporary, &blobs.join(digest.hex()))?;
            Ok((digest, content.len() as u64))
        };
        let (config, config_bytes) =
            write(&files::to_json(&ImageConfig::new(&layer.diff_id), &blobs)?)?;
        let manifest = Manifest::new((&config, config_bytes), (&layer.blob, layer.blob_bytes));
        let stored = write(&files::to_json(&manifest, &blobs)?)?;
        files::sync_dir(&blobs)?;
        Ok(stored)
    }

    fn store_snapshot(&self, staging: &Staging, chain: &Digest) -> Result<(), ImportError> {
        let from = staging.dir().join("snapshot");
        let to = self.snapshot_dir(chain);
        match rustix::fs::renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            // The same archive was imported before, or another import was faster.
            Err(Errno::EXIST) => drop(self.snapshot_meta(chain)?),
            Err(error) => return Err(failed("move the snapshot to", &to)(error).into()),
        }
        files::sync_dir(&self.root().join("snapshots/sha256"))?;
        Ok(())
    }

    /// Pins the base and enters it into the index.
    fn give_name(
        &self,
        staging: &Staging,
        base: &ResolvedBase,
        manifest_bytes: u64,
        progress: &mut dyn FnMut(Step),
    ) -> Result<(), ImportError> {
        let created = crate::time::now();
        let entry = Descriptor::base(&base.manifest, manifest_bytes, &base.chain, created);
        let lock = self.lock_index()?;
        let mut index = self.index()?;
        if let Some(kept) = index.preserved_name(&base.name, &entry)
            && self.pin_of(&base.name)?.is_some()
            && let Some(old) = index
                .find(&base.name)
                .and_then(|old| self.resolved(&kept, old))
        {
            self.write_pin(staging, &old)?;
        }
        self.write_pin(staging, base)?;
        progress(Step::Pinned);
        index.give_name(&base.name, entry);
        files::replace_json(staging, &self.index_path(), &index)?;
        progress(Step::Named);
        drop(lock);
        Ok(())
    }
}

/// Unpacks the layer in staging, checks that it is what was written, and makes it durable.
fn unpack_snapshot(
    staging: &Staging,
    layer: &Layer,
    notices: &mut Notices,
    progress: &mut dyn FnMut(Step),
) -> Result<SnapshotMeta, ImportError> {
    let snapshot = staging.dir().join("snapshot");
    let fs = snapshot.join("fs");
    files::make_dir(&snapshot, 0o755)?;
    files::make_dir(&fs, 0o700)?;
    let mut blob = BlobReader::open(&staging.dir().join("layer"))?;
    let mut report = |bytes| {
        progress(Step::Unpacking {
            bytes,
            of: layer.bytes,
        });
    };
    let unpacked = unpack::unpack(&mut blob, &fs, notices, &mut report)?;
    let (found, diff_id) = blob.finish().map_err(ImportError::ReadBack)?;
    for (written, found) in [(&layer.blob, found), (&layer.diff_id, diff_id)] {
        if *written != found {
            return Err(ImportError::Changed {
                written: written.clone(),
                found,
            });
        }
    }
    let meta = SnapshotMeta {
        format: Format::current(),
        // OCI image-spec, config.md: the chain id of one layer is its diff id.
        chain: layer.diff_id.clone(),
        diff_ids: vec![layer.diff_id.clone()],
        bytes: layer.bytes,
        entries: unpacked.entries,
    };
    let path = snapshot.join("meta.json");
    files::write_synced(&path, &files::to_json(&meta, &path)?)?;
    files::write_synced(&snapshot.join("use"), b"")?;
    let opened = fs::File::open(&snapshot).map_err(failed("open", &snapshot))?;
    rustix::fs::syncfs(&opened).map_err(failed("sync", &snapshot))?;
    progress(Step::Synced);
    Ok(meta)
}

/// Renames a synced file to its place among the blobs, where nobody writes to it any more.
fn move_blob(from: &Path, to: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::PermissionsExt as _;
    let permissions = fs::Permissions::from_mode(0o444);
    fs::set_permissions(from, permissions).map_err(failed("protect", from))?;
    fs::rename(from, to).map_err(failed("store", to))
}
