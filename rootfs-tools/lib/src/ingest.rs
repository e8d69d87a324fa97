//! From what is imported to a layer blob, hashing both it and the archive on the way.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use crate::blob::Blob;
use crate::decode::{self, Compression, Decoder};
use crate::digest::{Digest, Hashing};
use crate::files::{FileError, failed};

/// zstd level of the blobs: 7 to 15 % smaller than gzip's default and 2 to 5 times cheaper to read.
pub(crate) const LEVEL: i32 = 3;
/// Largest uncompressed archive, in bytes.
const MAX_BYTES: u64 = 64 << 30;
const BUFFER_BYTES: usize = 128 * 1024;

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

/// A layer blob that was just written.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) blob: Blob,
    /// Digest of the uncompressed archive; `None` where the blob was taken as it came.
    pub(crate) diff_id: Option<Digest>,
    pub(crate) compression: Compression,
}

/// A sink for an uncompressed archive that writes the blob.
struct BlobWriter {
    encoder: zstd::Encoder<'static, Hashing<BufWriter<File>>>,
}

impl BlobWriter {
    fn create(path: &Path) -> Result<Self, FileError> {
        let file = File::create_new(path).map_err(failed("create", path))?;
        let blob = Hashing::new(BufWriter::with_capacity(BUFFER_BYTES, file));
        let encoder = zstd::Encoder::new(blob, LEVEL).map_err(failed("write", path))?;
        Ok(Self { encoder })
    }

    /// Writes the end of the blob and makes it durable.
    fn finish(self) -> io::Result<Blob> {
        let (writer, digest, size) = self.encoder.finish()?.finish();
        writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .sync_all()?;
        Ok(Blob { digest, size })
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
/// `path`. What images may be compressed with stays as it is, the rest becomes zstd. `progress`
/// gets the bytes read of the input.
pub(crate) fn ingest_archive(
    input: &mut dyn Read,
    path: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Layer, IngestError> {
    let counted = Counted::new(input, progress);
    let (compression, input) = decode::detect(counted).map_err(IngestError::Read)?;
    match compression {
        Compression::Gzip | Compression::Zstd => keep(input, path, compression),
        Compression::None | Compression::Xz => {
            let input = BufReader::with_capacity(BUFFER_BYTES, input);
            let mut decoder = Decoder::new(compression, input).map_err(IngestError::Read)?;
            let mut writer = Hashing::new(BlobWriter::create(path)?);
            let write = |bytes: &[u8]| writer.write_all(bytes).map_err(failed("write", path));
            if copy(&mut decoder, write)? == 0 {
                return Err(IngestError::Empty);
            }
            let (writer, diff_id, _) = writer.finish();
            finish(writer, diff_id, path)
        }
    }
}

/// Writes a compressed archive as it is. It is decompressed once, when it is unpacked.
fn keep(mut input: impl Read, path: &Path, compression: Compression) -> Result<Layer, IngestError> {
    let file = File::create_new(path).map_err(failed("create", path))?;
    let mut output = Hashing::new(file);
    let write = |bytes: &[u8]| output.write_all(bytes).map_err(failed("write", path));
    copy(&mut input, write)?;
    let (file, digest, size) = output.finish();
    file.sync_all().map_err(failed("sync", path))?;
    Ok(Layer {
        blob: Blob { digest, size },
        diff_id: None,
        compression,
    })
}

/// Gives what `input` has to `sink`. Returns the number of bytes.
fn copy(
    input: &mut dyn Read,
    mut sink: impl FnMut(&[u8]) -> Result<(), FileError>,
) -> Result<u64, IngestError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut total = 0;
    loop {
        let count = match input.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(IngestError::Read(error)),
        };
        total += count as u64;
        if total > MAX_BYTES {
            return Err(IngestError::Size);
        }
        sink(buffer.get(..count).unwrap_or_default())?;
    }
}

/// Writes the archive that `write` makes as the blob `path`.
pub(crate) fn ingest_written<E: From<IngestError>>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<Layer, E> {
    let created = BlobWriter::create(path).map_err(IngestError::from)?;
    let mut writer = Hashing::new(created);
    write(&mut writer)?;
    let (writer, diff_id, _) = writer.finish();
    Ok(finish(writer, diff_id, path)?)
}

fn finish(writer: BlobWriter, diff_id: Digest, path: &Path) -> Result<Layer, IngestError> {
    Ok(Layer {
        blob: writer.finish().map_err(failed("write", path))?,
        diff_id: Some(diff_id),
        compression: Compression::Zstd,
    })
}

/// An input that reports how much of it has been read.
pub struct Counted<'a, R> {
    input: R,
    bytes: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a, R> Counted<'a, R> {
    /// Counts from 0; `progress` gets the bytes so far after each read.
    pub fn new(input: R, progress: &'a mut dyn FnMut(u64)) -> Self {
        Self {
            input,
            bytes: 0,
            progress,
        }
    }
}

impl<R> std::fmt::Debug for Counted<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counted")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.bytes += count as u64;
        (self.progress)(self.bytes);
        Ok(count)
    }
}
