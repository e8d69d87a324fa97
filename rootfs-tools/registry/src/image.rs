//! Whole images: a repository as a source of the store, and as a destination.

use std::io::Read;

use casemate_rootfs::transport::{
    ExportError, FetchError, ImageSource, Outgoing, Received, RegistryReference, Version,
};
use casemate_rootfs::{Blob, Step};

use crate::error::RegistryError;
use crate::session::{Access, Options, Registry};

/// An image of a registry.
#[derive(Debug)]
pub struct RegistrySource {
    registry: Registry,
    version: Version,
}

impl RegistrySource {
    /// Reaches the registry.
    pub fn connect(reference: &RegistryReference, options: Options) -> Result<Self, RegistryError> {
        Ok(Self {
            registry: Registry::connect(reference, Access::Pull, options)?,
            version: reference.version.clone(),
        })
    }

    fn document(&mut self, version: &Version) -> Result<Received, FetchError> {
        let document = self.registry.document(version);
        let document = document.map_err(|error| FetchError::Remote(Box::new(error)))?;
        Ok(Received {
            media_type: document.media_type,
            bytes: document.bytes,
        })
    }
}

impl ImageSource for RegistrySource {
    fn top(&mut self) -> Result<Received, FetchError> {
        self.document(&self.version.clone())
    }

    fn manifest(&mut self, blob: &Blob, _media_type: &str) -> Result<Received, FetchError> {
        self.document(&Version::Digest(blob.digest.clone()))
    }

    fn blob<'a>(&'a mut self, blob: &Blob) -> Result<Box<dyn Read + 'a>, FetchError> {
        match self.registry.blob(&blob.digest, blob.size) {
            Ok(reader) => Ok(Box::new(reader)),
            Err(error) => Err(FetchError::Remote(Box::new(error))),
        }
    }
}

/// Why an image was not pushed. The registry may have parts of it, but no name for it.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The registry cannot be used.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A blob cannot be read.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The digest at the destination is not that of the image.
    #[error("the image is {found}, so it cannot be pushed as {wanted}; push it with a tag")]
    Digest {
        /// The digest of the image.
        found: casemate_rootfs::Digest,
        /// The digest asked for.
        wanted: casemate_rootfs::Digest,
    },
}

/// Sends an image: what the repository has not, then the manifest, which gives it its name.
pub fn push(
    outgoing: &Outgoing<'_>,
    reference: &RegistryReference,
    options: Options,
    progress: &mut dyn FnMut(Step),
) -> Result<Blob, PushError> {
    let manifest = outgoing.manifest_blob();
    if let Version::Digest(wanted) = &reference.version
        && *wanted != manifest.digest
    {
        return Err(PushError::Digest {
            found: manifest.digest,
            wanted: wanted.clone(),
        });
    }
    let mut registry = Registry::connect(reference, Access::Push, options)?;
    let mut blobs = outgoing.layers();
    blobs.push(outgoing.config());
    let of = blobs.iter().map(|blob| blob.size).sum();
    let mut before = 0;
    for blob in blobs {
        if !registry.has_blob(&blob.digest)? {
            // Fails here where it is not there, and not as a failure of the registry.
            drop(outgoing.open(blob)?);
            let mut open = || outgoing.open(blob).map_err(std::io::Error::other);
            let mut sent = |bytes| {
                let bytes = before + bytes;
                progress(Step::Writing { bytes, of });
            };
            registry.push_blob(&blob.digest, blob.size, &mut open, &mut sent)?;
        }
        before += blob.size;
    }
    registry.push_manifest(
        &reference.version,
        outgoing.media_type(),
        outgoing.manifest(),
    )?;
    Ok(manifest)
}
