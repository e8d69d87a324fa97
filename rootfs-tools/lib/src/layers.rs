//! From the layers of an image to one tree.
//!
//! The lowest layer is read once: it is checked while it is unpacked. Each other layer is read for
//! what it removes first, and checked then.

use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use crate::blob::Blob;
use crate::decode::{LayerDigests, LayerReader};
use crate::digest::Digest;
use crate::files::FileError;
use crate::notice::Notices;
use crate::unpack::{Marks, UnpackError, Unpacker, Whiteouts};

/// Why a layer of an image is refused.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The archive cannot be read or unpacked.
    #[error("layer {layer} is refused")]
    Unpack {
        /// Digest of the layer's blob.
        layer: Digest,
        /// The cause.
        #[source]
        source: UnpackError,
    },
    /// The blob cannot be read to its end.
    #[error("layer {layer} cannot be read")]
    Read {
        /// Digest of the layer's blob.
        layer: Digest,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The blob is not what its digest says.
    #[error("layer {layer} reads as {found}: check the disk, then import the image again")]
    Blob {
        /// Digest that the blob should have.
        layer: Digest,
        /// Digest that it has.
        found: Digest,
    },
    /// The archive is not the one that the image's configuration promises.
    #[error("layer {layer} unpacks to {found}, but the image's configuration says {diff_id}")]
    DiffId {
        /// Digest of the layer's blob.
        layer: Digest,
        /// The digest of the archive that the configuration says.
        diff_id: Digest,
        /// The digest of the archive.
        found: Digest,
    },
    /// The attributes of the directories could not be set.
    #[error(transparent)]
    Directories(UnpackError),
    /// The root of the tree could not be opened.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A layer in a file.
#[derive(Debug, Clone)]
pub(crate) struct LayerFile {
    pub(crate) path: PathBuf,
    pub(crate) blob: Blob,
    /// Digest of the uncompressed archive, where it is known.
    pub(crate) diff_id: Option<Digest>,
}

/// What was unpacked.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// Entries of all archives.
    pub(crate) entries: u64,
    /// Bytes of all uncompressed archives.
    pub(crate) bytes: u64,
    /// Digest of each.
    pub(crate) diff_ids: Vec<Digest>,
}

/// Unpacks the layers, the lowest first, into the empty directory `root`. `progress` gets the bytes
/// read of all blobs.
pub(crate) fn flatten(
    layers: &[LayerFile],
    root: &Path,
    marks: Marks,
    notices: &mut Notices,
    progress: &mut dyn FnMut(u64),
) -> Result<Unpacked, LayerError> {
    let mut unpacker = Unpacker::new(root, marks, notices)?;
    let (mut bytes, mut before) = (0, 0);
    let mut diff_ids = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        if index > 0 {
            let mut reader = LayerReader::open(&layer.path)?;
            let whiteouts = Whiteouts::scan(&mut reader).map_err(refused(layer))?;
            check(layer, reader)?;
            unpacker.remove_marked(&whiteouts).map_err(refused(layer))?;
        }
        let mut reader = Reporting {
            reader: LayerReader::open(&layer.path)?,
            before,
            progress,
        };
        unpacker.apply(&mut reader).map_err(refused(layer))?;
        let digests = check(layer, reader.reader)?;
        bytes += digests.bytes;
        diff_ids.push(digests.diff_id);
        before += layer.blob.size;
    }
    let entries = unpacker.finish().map_err(LayerError::Directories)?;
    Ok(Unpacked {
        entries,
        bytes,
        diff_ids,
    })
}

/// Reads a layer to its end and checks both digests.
pub(crate) fn verify(layer: &LayerFile) -> Result<(), LayerError> {
    check(layer, LayerReader::open(&layer.path)?).map(drop)
}

fn refused(layer: &LayerFile) -> impl FnOnce(UnpackError) -> LayerError {
    let layer = layer.blob.digest.clone();
    |source| LayerError::Unpack { layer, source }
}

fn check(layer: &LayerFile, reader: LayerReader) -> Result<LayerDigests, LayerError> {
    let digest = &layer.blob.digest;
    let found = reader.finish().map_err(|source| LayerError::Read {
        layer: digest.clone(),
        source,
    })?;
    if found.blob != *digest {
        return Err(LayerError::Blob {
            layer: digest.clone(),
            found: found.blob,
        });
    }
    if let Some(diff_id) = &layer.diff_id
        && found.diff_id != *diff_id
    {
        return Err(LayerError::DiffId {
            layer: digest.clone(),
            diff_id: diff_id.clone(),
            found: found.diff_id,
        });
    }
    Ok(found)
}

/// Reports how much of the blobs has been read.
struct Reporting<'a> {
    reader: LayerReader,
    /// Bytes of the layers before.
    before: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Read for Reporting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

impl BufRead for Reporting<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        (self.progress)(self.before + self.reader.blob_bytes());
        self.reader.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.reader.consume(count);
    }
}
