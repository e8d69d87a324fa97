//! An image of the store: its manifest, its configuration and its layers, read and checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::blob::{Blob, BlobError};
use crate::digest::{Digest, DigestError};
use crate::layers::LayerFile;
use crate::name::BaseName;
use crate::oci::{Descriptor, ImageConfig, Manifest, Platform};
use crate::store::Store;

/// Most layers of an image: Docker's and the kernel's overlayfs end there.
const MAX_LAYERS: usize = 500;

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Its manifest or its configuration cannot be read.
    #[error("the {what} {digest} of the image cannot be read")]
    Blob {
        /// Which one.
        what: &'static str,
        /// Its digest.
        digest: Digest,
        /// The cause.
        #[source]
        source: BlobError,
    },
    /// Its manifest or its configuration is not what it should be.
    #[error("the {what} {digest} of the image is malformed")]
    Document {
        /// Which one.
        what: &'static str,
        /// Its digest.
        digest: Digest,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// A digest is none.
    #[error("the manifest {digest} refers to something by no SHA-256 digest")]
    Digest {
        /// Digest of the manifest.
        digest: Digest,
        /// The cause.
        #[source]
        source: DigestError,
    },
    /// The configuration does not describe the layers of the manifest.
    #[error("the image {digest} has {layers} layers, but its configuration describes {diff_ids}")]
    Layers {
        /// Digest of the manifest.
        digest: Digest,
        /// Number of layers.
        layers: usize,
        /// Number of layers that the configuration describes.
        diff_ids: usize,
    },
    /// No layer, or more than anything could mount.
    #[error("the image {digest} has {layers} layers; 1 to {MAX_LAYERS} are possible")]
    Count {
        /// Digest of the manifest.
        digest: Digest,
        /// Number of layers.
        layers: usize,
    },
}

impl ImageError {
    /// Returns the digest of the document that is at fault.
    pub(crate) fn digest(&self) -> &Digest {
        match self {
            Self::Blob { digest, .. }
            | Self::Document { digest, .. }
            | Self::Digest { digest, .. }
            | Self::Layers { digest, .. }
            | Self::Count { digest, .. } => digest,
        }
    }
}

/// An image to be given a name.
#[derive(Debug, Clone)]
pub struct Image<'a> {
    /// Its manifest, which is in the store, as are the blobs it refers to.
    pub manifest: &'a Blob,
    /// Media type of the manifest.
    pub media_type: &'a str,
    /// The name of the base.
    pub name: &'a BaseName,
    /// Annotations of its entry in the index.
    pub annotations: BTreeMap<String, String>,
}

/// What the documents of an image say.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Blob,
    pub(crate) layers: Vec<Blob>,
    pub(crate) diff_ids: Vec<Digest>,
    pub(crate) platform: Platform,
}

impl Parts {
    /// Reads the documents of an image.
    pub(crate) fn read(store: &Store, manifest: &Digest) -> Result<Self, ImageError> {
        let document: Manifest = read(store, "manifest", manifest)?;
        let blob = |descriptor: &Descriptor| {
            descriptor.blob().map_err(|source| ImageError::Digest {
                digest: manifest.clone(),
                source,
            })
        };
        let layers = document
            .layers
            .iter()
            .map(blob)
            .collect::<Result<Vec<_>, _>>()?;
        let config = blob(&document.config)?;
        if !(1..=MAX_LAYERS).contains(&layers.len()) {
            return Err(ImageError::Count {
                digest: manifest.clone(),
                layers: layers.len(),
            });
        }
        let ImageConfig {
            platform, rootfs, ..
        } = read(store, "configuration", &config.digest)?;
        if layers.len() != rootfs.diff_ids.len() {
            return Err(ImageError::Layers {
                digest: manifest.clone(),
                layers: layers.len(),
                diff_ids: rootfs.diff_ids.len(),
            });
        }
        Ok(Self {
            config,
            layers,
            diff_ids: rootfs.diff_ids,
            platform,
        })
    }

    /// Returns the layers with their files.
    pub(crate) fn files(&self, path: impl Fn(&Digest) -> PathBuf) -> Vec<LayerFile> {
        let pairs = self.layers.iter().zip(&self.diff_ids);
        pairs
            .map(|(blob, diff_id)| LayerFile {
                path: path(&blob.digest),
                blob: blob.clone(),
                diff_id: Some(diff_id.clone()),
            })
            .collect()
    }
}

fn read<T: serde::de::DeserializeOwned>(
    store: &Store,
    what: &'static str,
    digest: &Digest,
) -> Result<T, ImageError> {
    let content = store.document(digest).map_err(|source| ImageError::Blob {
        what,
        digest: digest.clone(),
        source,
    })?;
    serde_json::from_slice(&content).map_err(|source| ImageError::Document {
        what,
        digest: digest.clone(),
        source,
    })
}

/// Returns the digest of the tree that the layers make, the lowest first.
///
/// Source: OCI image-spec, `config.md`, "Layer `ChainID`".
pub(crate) fn chain_id(diff_ids: &[Digest]) -> Option<Digest> {
    diff_ids
        .iter()
        .cloned()
        .reduce(|below, diff_id| Digest::of(format!("{below} {diff_id}").as_bytes()))
}
