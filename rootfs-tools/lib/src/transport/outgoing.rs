//! An image on its way out: as it is, or with its layers compressed in another way.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::blob::{Blob, BlobError};
use crate::decode::LayerReader;
use crate::digest::{Digest, Hashing};
use crate::files::{FileError, failed, to_json};
use crate::hold::Hold;
use crate::image::{ImageError, Parts};
use crate::import::Step;
use crate::ingest;
use crate::name::BaseName;
use crate::oci::{self, Manifest, Platform};
use crate::store::{Store, StoreError};

const BUFFER_BYTES: usize = 128 * 1024;
/// gzip level of exports: that of gzip(1), docker and skopeo.
const GZIP_LEVEL: u32 = 6;

/// Why an image could not be exported. Nothing appears at its destination.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The store has no such base, or cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The documents of the image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A blob of the image is missing or damaged.
    #[error("the base cannot be exported; `rootfs-tools fsck --deep` says what is damaged")]
    Blob(#[source] BlobError),
    /// A layer cannot be read.
    #[error("layer {layer} cannot be read; `rootfs-tools fsck --deep` says what is damaged")]
    Read {
        /// Digest of the layer.
        layer: Digest,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A layer is not what it should be.
    #[error("layer {0} is damaged; `rootfs-tools fsck --deep` says what else is")]
    Damaged(Digest),
    /// The destination is something else.
    #[error("{} is there and is no OCI image layout; name a new directory", .0.display())]
    Occupied(PathBuf),
    /// The layout at the destination cannot be used.
    #[error("the layout {} cannot be added to", dir.display())]
    Layout {
        /// The directory.
        dir: PathBuf,
        /// The cause.
        #[source]
        source: crate::transport::FilesError,
    },
    /// The form needs layers that are not compressed.
    #[error("a docker archive has plain layers: leave out --compress")]
    PlainLayers,
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// How layers are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compress {
    /// gzip, which every tool reads.
    Gzip,
    /// zstd, smaller and faster to read.
    Zstd,
    /// Not at all.
    None,
}

impl Compress {
    fn media_type(self) -> &'static str {
        match self {
            Self::Gzip => oci::LAYER_GZIP,
            Self::Zstd => oci::LAYER_ZSTD,
            Self::None => oci::LAYER_PLAIN,
        }
    }
}

/// An image whose parts can be read. As long as it exists no collection takes them.
#[derive(Debug)]
pub struct Outgoing<'a> {
    store: &'a Store,
    hold: Hold,
    manifest: Vec<u8>,
    media_type: String,
    config: Blob,
    layers: Vec<Blob>,
    pub(crate) diff_ids: Vec<Digest>,
    pub(crate) platform: Platform,
    /// Blobs that are not the store's.
    made: BTreeMap<Digest, PathBuf>,
}

impl Store {
    /// Prepares a base for export. With `compress`, layers of another kind are compressed anew and
    /// the image gets a new manifest, and with it another digest.
    pub fn outgoing(
        &self,
        name: &BaseName,
        compress: Option<Compress>,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Outgoing<'_>, ExportError> {
        let entry = self.entry(name)?;
        let hold = self.hold()?;
        let has = |blob: &Blob| match self.has_blob(&hold, blob) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ExportError::Blob(BlobError::Absent(blob.digest.clone()))),
            Err(error) => Err(ExportError::Blob(error)),
        };
        has(&entry.manifest)?;
        let manifest = self
            .document(&entry.manifest.digest)
            .map_err(ExportError::Blob)?;
        let parts = Parts::read(self, &entry.manifest.digest)?;
        has(&parts.config)?;
        parts.layers.iter().try_for_each(has)?;
        let mut outgoing = Outgoing {
            store: self,
            hold,
            manifest,
            media_type: entry.media_type,
            config: parts.config,
            layers: parts.layers,
            diff_ids: parts.diff_ids,
            platform: parts.platform,
            made: BTreeMap::new(),
        };
        if let Some(compress) = compress {
            outgoing.compress(compress, progress)?;
        }
        Ok(outgoing)
    }
}

impl Outgoing<'_> {
    /// Returns the manifest.
    pub fn manifest(&self) -> &[u8] {
        &self.manifest
    }

    /// Returns the media type of the manifest.
    pub fn media_type(&self) -> &str {
        &self.media_type
    }

    /// Returns the digest and size of the manifest.
    pub fn manifest_blob(&self) -> Blob {
        Blob {
            digest: Digest::of(&self.manifest),
            size: self.manifest.len() as u64,
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Blob {
        &self.config
    }

    /// Returns the layers, each once, the lowest first.
    pub fn layers(&self) -> Vec<&Blob> {
        let mut layers: Vec<&Blob> = Vec::new();
        for layer in &self.layers {
            if !layers.contains(&layer) {
                layers.push(layer);
            }
        }
        layers
    }

    /// Opens the configuration or a layer. Reading fails at the end where it is damaged.
    pub fn open(&self, blob: &Blob) -> Result<Box<dyn Read>, ExportError> {
        if let Some(path) = self.made.get(&blob.digest) {
            let file = File::open(path).map_err(failed("open", path))?;
            return Ok(Box::new(file));
        }
        let file = self.store.blob(&blob.digest).map_err(ExportError::Blob)?;
        Ok(Box::new(file))
    }

    /// Returns the layers with the digests of their archives.
    pub(crate) fn archives(&self) -> impl Iterator<Item = (&Blob, &Digest)> {
        self.layers.iter().zip(&self.diff_ids)
    }

    /// Unpacks the compression of a layer into `sink`. Returns the size.
    pub(crate) fn plain(
        &self,
        layer: &Blob,
        diff_id: &Digest,
        sink: &mut dyn Write,
    ) -> Result<u64, ExportError> {
        let path = self.store.blob_path(&layer.digest);
        let mut reader = LayerReader::open(&path)?;
        let failed = |source| ExportError::Read {
            layer: layer.digest.clone(),
            source,
        };
        let bytes = io::copy(&mut reader, sink).map_err(failed)?;
        let found = reader.finish().map_err(failed)?;
        if found.blob == layer.digest && found.diff_id == *diff_id {
            Ok(bytes)
        } else {
            Err(ExportError::Damaged(layer.digest.clone()))
        }
    }

    fn compress(
        &mut self,
        compress: Compress,
        progress: &mut dyn FnMut(Step),
    ) -> Result<(), ExportError> {
        let manifest = self.document()?;
        let wanted = compress.media_type();
        let of = self.layers.iter().map(|layer| layer.size).sum();
        let mut bytes = 0;
        let mut replaced: BTreeMap<Digest, Blob> = BTreeMap::new();
        for (index, layer) in self.layers.clone().into_iter().enumerate() {
            let kind = manifest.layers.get(index).map(|layer| &layer.media_type);
            let same = kind.is_some_and(|kind| oci::oci_layer(kind) == wanted);
            if !same && !replaced.contains_key(&layer.digest) {
                let Some(diff_id) = self.diff_ids.get(index) else {
                    continue;
                };
                let file = self.hold.staging().temporary();
                let made = self.recompress(&layer, diff_id, compress, &file)?;
                self.made.insert(made.digest.clone(), file);
                replaced.insert(layer.digest.clone(), made);
            }
            bytes += layer.size;
            progress(Step::Compressing { bytes, of });
        }
        if replaced.is_empty() {
            return Ok(());
        }
        for layer in &mut self.layers {
            if let Some(made) = replaced.get(&layer.digest) {
                *layer = made.clone();
            }
        }
        self.rewrite(wanted)
    }

    fn document(&self) -> Result<Manifest, ExportError> {
        let digest = Digest::of(&self.manifest);
        serde_json::from_slice(&self.manifest).map_err(|source| {
            ExportError::Image(ImageError::Document {
                what: "manifest",
                digest,
                source,
            })
        })
    }

    /// Makes a new manifest with the present layers.
    fn rewrite(&mut self, media_type: &str) -> Result<(), ExportError> {
        let mut manifest = self.document()?;
        for (entry, layer) in manifest.layers.iter_mut().zip(&self.layers) {
            media_type.clone_into(&mut entry.media_type);
            entry.digest = layer.digest.as_str().to_owned();
            entry.size = layer.size;
        }
        self.manifest = to_json(&manifest, Path::new("the manifest"))?;
        Ok(())
    }

    fn recompress(
        &self,
        layer: &Blob,
        diff_id: &Digest,
        compress: Compress,
        path: &Path,
    ) -> Result<Blob, ExportError> {
        let file = File::create_new(path).map_err(failed("create", path))?;
        let output = Hashing::new(BufWriter::with_capacity(BUFFER_BYTES, file));
        let output = match compress {
            Compress::None => {
                let mut output = output;
                self.plain(layer, diff_id, &mut output)?;
                output
            }
            Compress::Gzip => {
                let level = flate2::Compression::new(GZIP_LEVEL);
                let mut encoder = flate2::write::GzEncoder::new(output, level);
                self.plain(layer, diff_id, &mut encoder)?;
                encoder.finish().map_err(failed("write", path))?
            }
            Compress::Zstd => {
                let mut encoder =
                    zstd::Encoder::new(output, ingest::LEVEL).map_err(failed("write", path))?;
                self.plain(layer, diff_id, &mut encoder)?;
                encoder.finish().map_err(failed("write", path))?
            }
        };
        let (mut output, digest, size) = output.finish();
        output.flush().map_err(failed("write", path))?;
        Ok(Blob { digest, size })
    }
}
