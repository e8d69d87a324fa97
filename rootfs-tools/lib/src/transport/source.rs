//! Import of images: fetched by digest, checked, and handed to the store.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Read;

use crate::blob::{Blob, BlobError};
use crate::digest::Digest;
use crate::files::{FileError, to_json};
use crate::hold::Hold;
use crate::image::Image;
use crate::import::{ImportError, Imported, Step};
use crate::name::BaseName;
use crate::oci::{self, Manifest, Platform};
use crate::store::{Store, StoreError};
use crate::transport::document::{self, Document, DocumentError, ImageManifest, Received};
use crate::transport::files::FilesError;

/// Why an image could not be fetched. The bases of the store are as they were before.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The layout or archive cannot be used.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A manifest, index or configuration is refused.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// A registry cannot be used.
    #[error("cannot fetch the image")]
    Remote(#[source] Box<dyn Error + Send + Sync>),
    /// The place has no such image.
    #[error("{place} has no image {wanted}; it has {}", if .present.is_empty() { "none with a name" } else { .present })]
    NoImage {
        /// The layout or archive.
        place: String,
        /// The name asked for.
        wanted: String,
        /// The names it has.
        present: String,
    },
    /// More than one image.
    #[error("{place} has {count} images; add the name of one of them: {present}")]
    Several {
        /// The layout or archive.
        place: String,
        /// How many.
        count: usize,
        /// The names it has.
        present: String,
    },
    /// A blob cannot be stored.
    #[error("cannot take {what} {digest}")]
    Blob {
        /// What it is.
        what: &'static str,
        /// Its digest.
        digest: Digest,
        /// The cause.
        #[source]
        source: BlobError,
    },
    /// The image cannot be unpacked or named.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The store does not let itself be changed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of the store could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Where an image is fetched from. What it gives is checked by the caller.
pub trait ImageSource {
    /// Returns the manifest or index of the image.
    fn top(&mut self) -> Result<Received, FetchError>;

    /// Returns a manifest that the index names.
    fn manifest(&mut self, blob: &Blob, media_type: &str) -> Result<Received, FetchError>;

    /// Opens a configuration or a layer.
    fn blob<'a>(&'a mut self, blob: &Blob) -> Result<Box<dyn Read + 'a>, FetchError>;
}

impl Store {
    /// Imports the image that `source` has for the platform, gives it `name` and pins it. An OCI
    /// manifest stays as it is, to the byte; Docker's becomes OCI's, since tools that read layouts
    /// know no other, and the entry in the index says what it was. A base that had the name keeps a name with the first
    /// digits of its version.
    pub fn import_image(
        &self,
        name: &BaseName,
        source: &mut dyn ImageSource,
        platform: &Platform,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Imported, FetchError> {
        let hold = self.hold()?;
        let (manifest, bytes) = find_manifest(source, platform)?;
        let total = manifest.layers.iter().map(|layer| layer.size).sum();
        let mut fetched = Fetched {
            store: self,
            hold: &hold,
            done: 0,
            total,
            progress,
        };
        let stored = fetched.take_manifest(&manifest, &bytes)?;
        fetched.fetch(source, "the configuration", &manifest.config)?;
        let config = self.document(&manifest.config.digest);
        let config = config.map_err(taking("the configuration", &manifest.config))?;
        document::check_platform(&manifest.config.digest, &config, platform)?;
        for layer in &manifest.layers {
            fetched.fetch_layer(source, layer)?;
        }
        let mut annotations = BTreeMap::new();
        if stored != manifest.blob {
            let origin = manifest.blob.digest.as_str().to_owned();
            annotations.insert(oci::ORIGIN.to_owned(), origin);
        }
        let image = Image {
            manifest: &stored,
            media_type: oci::MANIFEST,
            name,
            annotations,
        };
        Ok(self.commit_image(&hold, image, progress)?)
    }
}

fn find_manifest(
    source: &mut dyn ImageSource,
    platform: &Platform,
) -> Result<(ImageManifest, Vec<u8>), FetchError> {
    let top = source.top()?;
    let entry = match Document::parse(&top)? {
        Document::Manifest(manifest) => return Ok((manifest, top.bytes)),
        Document::Index(entries) => document::select(&Digest::of(&top.bytes), &entries, platform)?,
    };
    let blob = entry.blob().map_err(|source| DocumentError::Digest {
        digest: Digest::of(&top.bytes),
        source,
    })?;
    let received = source.manifest(&blob, &entry.media_type)?;
    document::check_received(&blob, &received)?;
    match Document::parse(&received)? {
        Document::Manifest(manifest) => Ok((manifest, received.bytes)),
        Document::Index(_) => Err(DocumentError::Nested(blob.digest).into()),
    }
}

fn taking(what: &'static str, blob: &Blob) -> impl FnOnce(BlobError) -> FetchError {
    let digest = blob.digest.clone();
    move |source| FetchError::Blob {
        what,
        digest,
        source,
    }
}

/// What has been stored of an image.
struct Fetched<'a> {
    store: &'a Store,
    hold: &'a Hold,
    /// Bytes of layers.
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(Step),
}

impl Fetched<'_> {
    /// Stores the manifest as an OCI manifest. Returns what was stored.
    fn take_manifest(
        &mut self,
        manifest: &ImageManifest,
        bytes: &[u8],
    ) -> Result<Blob, FetchError> {
        const WHAT: &str = "the manifest";
        if manifest.media_type == oci::MANIFEST {
            self.take(WHAT, &manifest.blob, &mut &bytes[..])?;
            return Ok(manifest.blob.clone());
        }
        let digest = manifest.blob.digest.clone();
        let mut document: Manifest = match serde_json::from_slice(bytes) {
            Ok(document) => document,
            Err(source) => return Err(DocumentError::Syntax { digest, source }.into()),
        };
        document.make_oci();
        let content = to_json(&document, self.store.root())?;
        let blob = Blob {
            digest: Digest::of(&content),
            size: content.len() as u64,
        };
        self.take(WHAT, &blob, &mut &content[..])?;
        Ok(blob)
    }

    fn take(
        &mut self,
        what: &'static str,
        blob: &Blob,
        input: &mut dyn Read,
    ) -> Result<(), FetchError> {
        let stored = self.store.ingest_blob(self.hold, input, Some(blob));
        stored.map(drop).map_err(taking(what, blob))
    }

    fn has(&self, what: &'static str, blob: &Blob) -> Result<bool, FetchError> {
        let found = self.store.has_blob(self.hold, blob);
        found.map_err(taking(what, blob))
    }

    fn fetch(
        &mut self,
        source: &mut dyn ImageSource,
        what: &'static str,
        blob: &Blob,
    ) -> Result<(), FetchError> {
        if self.has(what, blob)? {
            return Ok(());
        }
        let mut input = source.blob(blob)?;
        self.take(what, blob, &mut input)
    }

    /// Fetches a layer unless the store has it, perhaps from a lower place of this image.
    fn fetch_layer(
        &mut self,
        source: &mut dyn ImageSource,
        layer: &Blob,
    ) -> Result<(), FetchError> {
        const WHAT: &str = "the layer";
        if !self.has(WHAT, layer)? {
            let mut input = Reported {
                input: source.blob(layer)?,
                done: self.done,
                total: self.total,
                progress: self.progress,
            };
            let stored = self.store.ingest_blob(self.hold, &mut input, Some(layer));
            stored.map_err(taking(WHAT, layer))?;
        }
        self.done += layer.size;
        Ok(())
    }
}

/// Reports how much of the layers has come.
struct Reported<'a, 'b> {
    input: Box<dyn Read + 'a>,
    done: u64,
    total: u64,
    progress: &'b mut dyn FnMut(Step),
}

impl Read for Reported<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.done += count as u64;
        (self.progress)(Step::Fetching {
            bytes: self.done,
            of: self.total,
        });
        Ok(count)
    }
}
