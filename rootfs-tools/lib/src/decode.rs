//! Compressed archives: what they are, and how a stored layer is read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use crate::digest::{Digest, Hashing};
use crate::files::{FileError, failed};

/// Bytes by which the kind of a stream is known.
const MAGIC_BYTES: usize = 6;
const BUFFER_BYTES: usize = 128 * 1024;
/// Most uncompressed bytes for one compressed byte, beyond the first [`FREE_BYTES`]. Deflate cannot
/// give more than 1032.
const MAX_RATIO: u64 = 1100;
/// Uncompressed bytes that need no reason.
const FREE_BYTES: u64 = 64 << 20;

/// How a stream is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
    Xz,
}

impl Compression {
    /// Tells it by the first bytes. What comes out is checked against its own digest, so a stream
    /// that could be taken for two kinds gains nothing.
    pub(crate) fn of(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            // A data frame, or a skippable frame before one (RFC 8878, 3.1).
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            _ => Self::None,
        }
    }
}

/// A stream whose first bytes have been looked at.
pub(crate) type Detected<R> = io::Chain<Cursor<Vec<u8>>, R>;

/// Reads the first bytes of a stream. Returns them in front of the rest, and what they say.
pub(crate) fn detect<R: Read>(mut input: R) -> io::Result<(Compression, Detected<R>)> {
    let mut head = Vec::new();
    (&mut input)
        .take(MAGIC_BYTES as u64)
        .read_to_end(&mut head)?;
    let compression = Compression::of(&head);
    Ok((compression, Cursor::new(head).chain(input)))
}

/// A decompressor that reads all members or frames of its input.
pub(crate) enum Decoder<R: BufRead> {
    None(R),
    Gzip(flate2::bufread::MultiGzDecoder<R>),
    Zstd(zstd::Decoder<'static, R>),
    Xz(xz2::bufread::XzDecoder<R>),
}

impl<R: BufRead> Decoder<R> {
    pub(crate) fn new(compression: Compression, input: R) -> io::Result<Self> {
        Ok(match compression {
            Compression::None => Self::None(input),
            Compression::Gzip => Self::Gzip(flate2::bufread::MultiGzDecoder::new(input)),
            Compression::Zstd => Self::Zstd(zstd::Decoder::with_buffer(input)?),
            Compression::Xz => Self::Xz(xz2::bufread::XzDecoder::new_multi_decoder(input)),
        })
    }

    fn get_ref(&self) -> &R {
        match self {
            Self::None(input) => input,
            Self::Gzip(decoder) => decoder.get_ref(),
            Self::Zstd(decoder) => decoder.get_ref(),
            Self::Xz(decoder) => decoder.get_ref(),
        }
    }

    pub(crate) fn into_inner(self) -> R {
        match self {
            Self::None(input) => input,
            Self::Gzip(decoder) => decoder.into_inner(),
            Self::Zstd(decoder) => decoder.finish(),
            Self::Xz(decoder) => decoder.into_inner(),
        }
    }
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::None(input) => input.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstd(decoder) => decoder.read(buffer),
            Self::Xz(decoder) => decoder.read(buffer),
        }
    }
}

/// A stored layer: gives the archive, and computes its digest and the blob's while it is read.
pub(crate) struct LayerReader {
    decoder: Hashing<Decoder<BufReader<Hashing<File>>>>,
}

/// The digests of a layer that was read to its end.
#[derive(Debug)]
pub(crate) struct LayerDigests {
    pub(crate) blob: Digest,
    pub(crate) diff_id: Digest,
    /// Size of the uncompressed archive in bytes.
    pub(crate) bytes: u64,
}

impl LayerReader {
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path).map_err(failed("open", path))?;
        let mut input = BufReader::with_capacity(BUFFER_BYTES, Hashing::new(file));
        let head = input.fill_buf().map_err(failed("read", path))?;
        let compression = Compression::of(head);
        let decoder = Decoder::new(compression, input).map_err(failed("read", path))?;
        Ok(Self {
            decoder: Hashing::new(decoder),
        })
    }

    /// Returns how many bytes of the blob have been read.
    pub(crate) fn blob_bytes(&self) -> u64 {
        self.decoder.get_ref().get_ref().get_ref().passed()
    }

    /// Reads what is left.
    pub(crate) fn finish(mut self) -> io::Result<LayerDigests> {
        io::copy(&mut self, &mut io::sink())?;
        let (decoder, diff_id, bytes) = self.decoder.finish();
        let mut blob = decoder.into_inner();
        io::copy(&mut blob, &mut io::sink())?;
        let (_, blob, _) = blob.into_inner().finish();
        Ok(LayerDigests {
            blob,
            diff_id,
            bytes,
        })
    }
}

impl Read for LayerReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.decoder.read(buffer)?;
        let (bytes, blob_bytes) = (self.decoder.passed(), self.blob_bytes());
        if bytes > FREE_BYTES && bytes / MAX_RATIO > blob_bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidData, RatioError));
        }
        Ok(count)
    }
}

/// The layer expands like a bomb.
#[derive(Debug, thiserror::Error)]
#[error("it expands to more than {MAX_RATIO} times its size, which no root file system does")]
pub(crate) struct RatioError;
