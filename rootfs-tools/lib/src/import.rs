//! Import: from an archive, a directory or the blobs of an image to a named, pinned snapshot.
//!
//! 1. a hold keeps what is needed from now on; the blobs are hashed, synced and in place, the one
//!    of an archive or directory in staging still
//! 2. the layers are read, checked against their digests, and unpacked in staging
//! 3. the file system is synced, once
//! 4. under `locks/gc` (shared): blobs that are still in staging are renamed into place, then the
//!    snapshot
//! 5. under `locks/index`: the pin file, then `index.json`
//!
//! What an archive or directory gives changes nothing outside staging before step 4, so a refused
//! archive leaves no trace. Each later step is one rename and can be repeated.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::blob::{Blob, BlobError};
use crate::digest::Digest;
use crate::directory::{self, DirectoryError};
use crate::files::{self, FileError, failed};
use crate::format::Format;
use crate::hold::Hold;
use crate::image::{self, Image, ImageError, Parts};
use crate::ingest::{self, IngestError, Layer};
use crate::layers::{self, LayerError, LayerFile};
use crate::name::BaseName;
use crate::notice::Notices;
use crate::oci::{self, Descriptor, ImageConfig, Manifest, Platform};
use crate::store::{ResolvedBase, SnapshotMeta, Store, StoreError};
use crate::unpack::Marks;

/// Why an import failed. The bases of the store are as they were before.
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
    /// The documents of the image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A blob of the image is missing or damaged.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// A layer is refused.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A file of the store could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

impl ImportError {
    /// Tells whether the image itself is at fault: it is refused again the next time.
    fn is_refusal(&self) -> bool {
        match self {
            Self::Image(error) => !matches!(error, ImageError::Blob { .. }),
            Self::Layer(LayerError::File(_) | LayerError::Blob { .. }) => false,
            Self::Layer(_) => true,
            Self::Store(_)
            | Self::Ingest(_)
            | Self::Directory(_)
            | Self::Blob(_)
            | Self::File(_) => false,
        }
    }
}

/// What is imported.
#[expect(missing_debug_implementations, reason = "a reader has no Debug")]
pub enum Source<'a> {
    /// A tar archive of a root file system: plain, gzip, zstd or xz.
    Archive(&'a mut dyn Read),
    /// A root file system in a directory.
    Directory(&'a Path),
}

/// How far an import or export is. The steps after `Unpacking` are reported when they are done and durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Bytes read of the input.
    Reading(u64),
    /// Bytes of the layers of an image that have been fetched.
    Fetching {
        /// So far.
        bytes: u64,
        /// Altogether.
        of: u64,
    },
    /// Bytes of the layers' blobs that are unpacked.
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
    /// Bytes of the layers that are compressed anew for an export.
    Compressing {
        /// So far.
        bytes: u64,
        /// Altogether.
        of: u64,
    },
    /// Bytes of an image that are written to its destination.
    Writing {
        /// So far.
        bytes: u64,
        /// Altogether.
        of: u64,
    },
}

/// What an import made.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The base.
    pub base: ResolvedBase,
    /// Size of the uncompressed layers in bytes.
    pub bytes: u64,
    /// Number of entries of the layers.
    pub entries: u64,
    /// What was left out or is worth knowing.
    pub notices: Notices,
}

/// What gets a name.
struct Named<'a> {
    name: &'a BaseName,
    entry: Descriptor,
    base: ResolvedBase,
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
        let hold = self.hold()?;
        let mut notices = Notices::default();
        let file = hold.staging().temporary();
        let layer = match source {
            Source::Archive(input) => {
                let mut read = |bytes| progress(Step::Reading(bytes));
                ingest::ingest_archive(input, &file, &mut read)?
            }
            Source::Directory(dir) => ingest::ingest_written(&file, |sink| {
                let mut read = |bytes| progress(Step::Reading(bytes));
                directory::archive(dir, sink, &mut notices, &mut read).map_err(ImportError::from)
            })?,
        };
        let layers = [LayerFile {
            path: file,
            blob: layer.blob.clone(),
            diff_id: layer.diff_id.clone(),
        }];
        let snapshot = unpack_snapshot(&hold, &layers, Marks::Refused, &mut notices, progress)?;
        let publish = self.lock_publish()?;
        let manifest = self.store_rootfs(&hold, &layers, &layer, &snapshot.chain)?;
        progress(Step::BlobsStored);
        self.store_snapshot(&hold, &snapshot)?;
        progress(Step::SnapshotStored);
        let image = Image {
            manifest: &manifest,
            media_type: oci::MANIFEST,
            name,
            annotations: BTreeMap::new(),
        };
        let base = self.give_name(&hold, image, (&Platform::here(), snapshot.chain), progress)?;
        drop(publish);
        Ok(Imported {
            base,
            bytes: snapshot.bytes,
            entries: snapshot.entries,
            notices,
        })
    }

    /// Unpacks an image whose manifest, configuration and layers were stored with
    /// [`Store::ingest_blob`] under the same hold, or found with [`Store::has_blob`]; gives it the
    /// name and pins it. A base that had the name keeps a name with the first digits of its
    /// version.
    pub fn commit_image(
        &self,
        hold: &Hold,
        image: Image<'_>,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Imported, ImportError> {
        let committed = self.commit(hold, image, progress);
        if let Err(error) = &committed
            && error.is_refusal()
        {
            // The blobs are in nobody's way: the next collection takes what stays here.
            drop(self.discard_refused(hold));
        }
        committed
    }

    fn commit(
        &self,
        hold: &Hold,
        image: Image<'_>,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Imported, ImportError> {
        self.require_write()?;
        let parts = Parts::read(self, &image.manifest.digest)?;
        let mut blobs = vec![image.manifest, &parts.config];
        blobs.extend(&parts.layers);
        for blob in blobs {
            if !self.has_blob(hold, blob)? {
                return Err(BlobError::Absent(blob.digest.clone()).into());
            }
        }
        progress(Step::BlobsStored);
        let layers = parts.files(|digest| self.blob_path(digest));
        let chain = image::chain_id(&parts.diff_ids);
        let mut notices = Notices::default();
        let snapshot = if let Some(known) = self.known_snapshot(hold, chain.as_ref(), &layers)? {
            known
        } else {
            let made = unpack_snapshot(hold, &layers, Marks::Applied, &mut notices, progress)?;
            let publish = self.lock_publish()?;
            self.store_snapshot(hold, &made)?;
            drop(publish);
            made
        };
        progress(Step::SnapshotStored);
        let publish = self.lock_publish()?;
        let base = self.give_name(hold, image, (&parts.platform, snapshot.chain), progress)?;
        drop(publish);
        Ok(Imported {
            base,
            bytes: snapshot.bytes,
            entries: snapshot.entries,
            notices,
        })
    }

    /// Returns the snapshot that the layers unpack to, where the store has it. The layers are
    /// checked all the same: a configuration can name any snapshot.
    fn known_snapshot(
        &self,
        hold: &Hold,
        chain: Option<&Digest>,
        layers: &[LayerFile],
    ) -> Result<Option<SnapshotMeta>, ImportError> {
        let Some(chain) = chain else {
            return Ok(None);
        };
        hold.add(self, chain)?;
        let meta = match self.snapshot_meta(chain) {
            Err(StoreError::UnknownSnapshot(_)) => return Ok(None),
            meta => meta?,
        };
        let made_of: Vec<_> = layers.iter().map(|layer| &layer.blob.digest).collect();
        if !meta.layers.iter().eq(made_of) {
            for layer in layers {
                layers::verify(layer)?;
            }
        }
        Ok(Some(meta))
    }

    /// Moves the layer into the store and writes config and manifest. Returns the manifest.
    fn store_rootfs(
        &self,
        hold: &Hold,
        layers: &[LayerFile],
        layer: &Layer,
        diff_id: &Digest,
    ) -> Result<Blob, ImportError> {
        for layer in layers {
            self.place_blob(hold, &layer.path, &layer.blob.digest)?;
        }
        let write = |content: &[u8]| -> Result<Blob, FileError> {
            let digest = Digest::of(content);
            let temporary = hold.staging().temporary();
            files::write_synced(&temporary, content)?;
            self.place_blob(hold, &temporary, &digest)?;
            Ok(Blob {
                digest,
                size: content.len() as u64,
            })
        };
        let blobs = self.blobs();
        let config = write(&files::to_json(&ImageConfig::of_rootfs(diff_id), &blobs)?)?;
        let manifest = Manifest::of_rootfs(&config, &layer.blob, layer.compression);
        Ok(write(&files::to_json(&manifest, &blobs)?)?)
    }

    fn store_snapshot(&self, hold: &Hold, snapshot: &SnapshotMeta) -> Result<(), ImportError> {
        let chain = &snapshot.chain;
        hold.add(self, chain)?;
        let from = hold.staging().dir().join("snapshot");
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

    /// Pins the base and enters it into the index. The caller keeps collection away.
    fn give_name(
        &self,
        hold: &Hold,
        image: Image<'_>,
        (platform, chain): (&Platform, Digest),
        progress: &mut dyn FnMut(Step),
    ) -> Result<ResolvedBase, ImportError> {
        let created = crate::time::now();
        let mut entry = Descriptor::base(image.media_type, image.manifest, &chain, created);
        entry.set_platform(platform);
        for (key, value) in image.annotations {
            entry.annotations.entry(key).or_insert(value);
        }
        let named = Named {
            name: image.name,
            entry,
            base: ResolvedBase {
                name: image.name.clone(),
                manifest: image.manifest.digest.clone(),
                fs: self.snapshot_dir(&chain).join("fs"),
                chain,
            },
        };
        self.enter(hold, named, progress)
    }

    fn enter(
        &self,
        hold: &Hold,
        named: Named<'_>,
        progress: &mut dyn FnMut(Step),
    ) -> Result<ResolvedBase, ImportError> {
        let Named { name, entry, base } = named;
        let staging = hold.staging();
        let lock = self.lock_index()?;
        let mut index = self.index()?;
        if let Some(kept) = index.preserved_name(name, &entry)
            && self.pin_of(name)?.is_some()
            && let Some(old) = index.find(name).and_then(|old| self.resolved(&kept, old))
        {
            self.write_pin(staging, &old)?;
        }
        self.write_pin(staging, &base)?;
        progress(Step::Pinned);
        index.give_name(name, entry);
        self.write_index(staging, &index)?;
        progress(Step::Named);
        drop(lock);
        Ok(base)
    }
}

/// Unpacks the layers in staging, checks them, and makes the tree durable.
fn unpack_snapshot(
    hold: &Hold,
    layers: &[LayerFile],
    marks: Marks,
    notices: &mut Notices,
    progress: &mut dyn FnMut(Step),
) -> Result<SnapshotMeta, ImportError> {
    let snapshot = hold.staging().dir().join("snapshot");
    unpack_to(&snapshot, layers, marks, (notices, progress))
}

/// Unpacks the layers of a base that is known already to `snapshot`.
pub(crate) fn unpack_again(snapshot: &Path, layers: &[LayerFile]) -> Result<(), ImportError> {
    let mut notices = Notices::default();
    // A root file system has no marks: it comes out the same.
    unpack_to(
        snapshot,
        layers,
        Marks::Applied,
        (&mut notices, &mut |_| {}),
    )
    .map(drop)
}

fn unpack_to(
    snapshot: &Path,
    layers: &[LayerFile],
    marks: Marks,
    (notices, progress): (&mut Notices, &mut dyn FnMut(Step)),
) -> Result<SnapshotMeta, ImportError> {
    let fs = snapshot.join("fs");
    files::make_dir(snapshot, 0o755)?;
    files::make_dir(&fs, 0o700)?;
    let of = layers.iter().map(|layer| layer.blob.size).sum();
    let mut report = |bytes| progress(Step::Unpacking { bytes, of });
    let unpacked = layers::flatten(layers, &fs, marks, notices, &mut report)?;
    // An archive without a byte has no layer either.
    let chain = image::chain_id(&unpacked.diff_ids).filter(|_| unpacked.bytes > 0);
    let meta = SnapshotMeta {
        format: Format::current(),
        chain: chain.ok_or(IngestError::Empty)?,
        diff_ids: unpacked.diff_ids,
        layers: layers
            .iter()
            .map(|layer| layer.blob.digest.clone())
            .collect(),
        bytes: unpacked.bytes,
        entries: unpacked.entries,
    };
    let path = snapshot.join("meta.json");
    files::write_synced(&path, &files::to_json(&meta, &path)?)?;
    files::write_synced(&snapshot.join("use"), b"")?;
    let opened = fs::File::open(snapshot).map_err(failed("open", snapshot))?;
    rustix::fs::syncfs(&opened).map_err(failed("sync", snapshot))?;
    progress(Step::Synced);
    Ok(meta)
}
