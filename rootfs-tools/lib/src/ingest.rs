//! From what is imported to a compressed layer blob, hashing both on the way.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use crate::digest::{Digest, Hashing};
use crate::files::{FileError, failed};

/// zstd level of the blobs: 7 to 15 % smaller than gzip's default and 2 to 5 times cheaper to read.
const LEVEL: i32 = 3;
/// Largest uncompressed archive, in bytes.
const MAX_BYTES: u64 = 64 << 30;

/// Why input is not taken.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// The input could not be read, or its compressed data is damaged.
    #[error("the archive cannot be read: it is damaged, truncated or not compressed as it says")]
    Read(#[source] io::Error),
    /// There is no byte in it.
    #[error("the archive is empty")]
    Empty,
    /// Larger than any root file system.
    #[error("the uncompressed archive is larger than {MAX_BYTES} bytes")]
    Size,
    /// The blob could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A layer blob in a staging directory.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Digest of the compressed blob.
    pub(crate) blob: Digest,
    /// Size of the compressed blob in bytes.
    pub(crate) blob_bytes: u64,
    /// Digest of the uncompressed archive.
    pub(crate) diff_id: Digest,
    /// Size of the uncompressed archive in bytes.
    pub(crate) bytes: u64,
}

/// A sink for an uncompressed archive that writes the blob.
pub(crate) struct BlobWriter {
    encoder: zstd::Encoder<'static, Hashing<BufWriter<File>>>,
}

impl BlobWriter {
    fn create(path: &Path) -> Result<Self, FileError> {
        let file = File::create_new(path).map_err(failed("create", path))?;
        let blob = Hashing::new(BufWriter::with_capacity(128 * 1024, file));
        let encoder = zstd::Encoder::new(blob, LEVEL).map_err(failed("write", path))?;
        Ok(Self { encoder })
    }

    /// Writes the end of the blob and makes it durable.
    fn finish(self) -> io::Result<(Digest, u64)> {
        let (writer, digest, bytes) = self.encoder.finish()?.finish();
        writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .sync_all()?;
        Ok((digest, bytes))
    }
}

impl Write for BlobWriter {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.encoder.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder.flush()
    }
}

/// Writes the archive that `input` gives, plain or compressed with gzip, zstd or xz, as the blob
/// `path`. `progress` gets the bytes read of the input.
pub(crate) fn ingest_archive(
    input: &mut dyn Read,
    path: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Layer, IngestError> {
    let mut counted = Counted {
        input,
        bytes: 0,
        progress,
    };
    let mut decoded = decode(&mut counted).map_err(IngestError::Read)?;
    let mut writer = Hashing::new(BlobWriter::create(path)?);
    let mut buffer = vec![0; 128 * 1024];
    loop {
        let count = match decoded.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(IngestError::Read(error)),
        };
        writer
            .write_all(buffer.get(..count).unwrap_or_default())
            .map_err(failed("write", path))?;
        if writer.bytes() > MAX_BYTES {
            return Err(IngestError::Size);
        }
    }
    finish(writer, path)
}

/// Writes the archive that `write` makes as the blob `path`.
pub(crate) fn ingest_written<E: From<IngestError>>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<Layer, E> {
    let created = BlobWriter::create(path).map_err(IngestError::from)?;
    let mut writer = Hashing::new(created);
    write(&mut writer)?;
    Ok(finish(writer, path)?)
}

fn finish(writer: Hashing<BlobWriter>, path: &Path) -> Result<Layer, IngestError> {
    let (writer, diff_id, bytes) = writer.finish();
    if bytes == 0 {
        return Err(IngestError::Empty);
    }
    let (blob, blob_bytes) = writer.finish().map_err(failed("write", path))?;
    Ok(Layer {
        blob,
        blob_bytes,
        diff_id,
        bytes,
    })
}

/// Returns a reader of the uncompressed archive, by the first bytes of the input.
fn decode<'a>(input: &'a mut dyn Read) -> io::Result<Box<dyn Read + 'a>> {
    const MAGIC_BYTES: usize = 6;
    let mut head = Vec::new();
    (&mut *input)
        .take(MAGIC_BYTES as u64)
        .read_to_end(&mut head)?;
    let compression = Compression::of(&head);
    let whole = io::Cursor::new(head).chain(input);
    Ok(match compression {
        Compression::None => Box::new(whole),
        Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        Compression::Zstd => Box::new(zstd::Decoder::new(whole)?),
        Compression::Xz => Box::new(xz2::read::XzDecoder::new_multi_decoder(whole)),
    })
}

enum Compression {
    None,
    Gzip,
    Zstd,
    Xz,
}

impl Compression {
    fn of(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            // A data frame, or a skippable frame before one (RFC 8878, 3.1).
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            _ => Self::None,
        }
    }
}

/// Opens a blob of this store for reading; both digests are computed while it is read.
pub(crate) struct BlobReader {
    decoder: Hashing<zstd::Decoder<'static, BufReader<Hashing<File>>>>,
}

impl BlobReader {
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path).map_err(failed("open", path))?;
        let reader = BufReader::with_capacity(128 * 1024, Hashing::new(file));
        let decoder = zstd::Decoder::with_buffer(reader).map_err(failed("read", path))?;
        Ok(Self {
            decoder: Hashing::new(decoder),
        })
    }

    /// Reads what is left. Returns the digest of the blob and that of the archive.
    pub(crate) fn finish(mut self) -> io::Result<(Digest, Digest)> {
        io::copy(&mut self.decoder, &mut io::sink())?;
        let (decoder, diff_id, _) = self.decoder.finish();
        let mut blob = decoder.finish().into_inner();
        io::copy(&mut blob, &mut io::sink())?;
        let (_, digest, _) = blob.finish();
        Ok((digest, diff_id))
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer)
    }
}

/// Reports how much of an input has been read.
struct Counted<'a> {
    input: &'a mut dyn Read,
    bytes: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.bytes += count as u64;
        (self.progress)(self.bytes);
        Ok(count)
    }
}
