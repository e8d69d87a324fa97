//! Compressed archives: what they are, and how a stored layer is read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, JoinHandle};

use crate::digest::{Digest, Hashing};
use crate::files::{FileError, failed};

/// Bytes by which the kind of a stream is known.
const MAGIC_BYTES: usize = 6;
const BUFFER_BYTES: usize = 128 * 1024;
/// Chunks between the decompressing thread and the reader: enough for neither to wait often.
const CHUNKS: usize = 16;
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
///
/// A thread decompresses ahead of the reader. Two threads share the work about evenly: inflating
/// here, hashing the archive and making files there.
pub(crate) struct LayerReader {
    chunks: Receiver<io::Result<Vec<u8>>>,
    /// Gives read chunks back.
    empty: Sender<Vec<u8>>,
    chunk: Vec<u8>,
    /// Bytes of the chunk that have been read.
    read: usize,
    archive: Hashing<io::Sink>,
    /// Gives the digest of the blob at its end.
    thread: JoinHandle<io::Result<Digest>>,
    blob_bytes: Arc<AtomicU64>,
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
        let (full, chunks) = mpsc::sync_channel(CHUNKS);
        let (empty, returned) = mpsc::channel();
        let blob_bytes = Arc::new(AtomicU64::new(0));
        let ahead = Ahead {
            decoder,
            full,
            returned,
            blob_bytes: Arc::clone(&blob_bytes),
        };
        let thread = thread::Builder::new()
            .name("decompress".to_owned())
            .spawn(move || ahead.run())
            .map_err(failed("start a thread to read", path))?;
        Ok(Self {
            chunks,
            empty,
            chunk: Vec::new(),
            read: 0,
            archive: Hashing::new(io::sink()),
            thread,
            blob_bytes,
        })
    }

    /// Returns how many bytes of the blob have been read.
    pub(crate) fn blob_bytes(&self) -> u64 {
        self.blob_bytes.load(Ordering::Relaxed)
    }

    /// Reads what is left.
    pub(crate) fn finish(mut self) -> io::Result<LayerDigests> {
        loop {
            let count = self.fill_buf()?.len();
            if count == 0 {
                break;
            }
            self.consume(count);
        }
        let ended = || io::Error::other("the decompressing thread ended");
        let blob = self.thread.join().map_err(|_panic| ended())??;
        let (_, diff_id, bytes) = self.archive.finish();
        Ok(LayerDigests {
            blob,
            diff_id,
            bytes,
        })
    }
}

impl BufRead for LayerReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.read == self.chunk.len() {
            // The sender is gone at the end of the archive.
            if let Ok(next) = self.chunks.recv() {
                let done = std::mem::replace(&mut self.chunk, next?);
                // The thread may have ended.
                drop(self.empty.send(done));
                self.read = 0;
                self.archive.pass(&self.chunk);
            }
        }
        Ok(self.chunk.get(self.read..).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.read = self.chunk.len().min(self.read + count);
    }
}

impl Read for LayerReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

/// Decompresses ahead of a reader.
struct Ahead {
    decoder: Decoder<BufReader<Hashing<File>>>,
    full: SyncSender<io::Result<Vec<u8>>>,
    returned: Receiver<Vec<u8>>,
    blob_bytes: Arc<AtomicU64>,
}

impl Ahead {
    /// Returns the digest of the blob.
    fn run(mut self) -> io::Result<Digest> {
        let mut bytes = 0;
        loop {
            let mut chunk = self.returned.try_recv().unwrap_or_default();
            chunk.resize(BUFFER_BYTES, 0);
            let count = match self.fill(&mut chunk, &mut bytes) {
                Ok(count) => count,
                Err(error) => {
                    let kind = error.kind();
                    // Whoever reads gets the error; nobody may be left to.
                    drop(self.full.send(Err(error)));
                    return Err(kind.into());
                }
            };
            chunk.truncate(count);
            if count == 0 {
                break;
            }
            if self.full.send(Ok(chunk)).is_err() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        let mut blob = self.decoder.into_inner();
        io::copy(&mut blob, &mut io::sink())?;
        let (_, digest, _) = blob.into_inner().finish();
        Ok(digest)
    }

    fn fill(&mut self, chunk: &mut [u8], bytes: &mut u64) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = chunk.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.decoder.read(rest) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        *bytes += filled as u64;
        let blob_bytes = self.decoder.get_ref().get_ref().passed();
        self.blob_bytes.store(blob_bytes, Ordering::Relaxed);
        if *bytes > FREE_BYTES && *bytes / MAX_RATIO > blob_bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidData, RatioError));
        }
        Ok(filled)
    }
}

/// The layer expands like a bomb.
#[derive(Debug, thiserror::Error)]
#[error("it expands to more than {MAX_RATIO} times its size, which no root file system does")]
pub(crate) struct RatioError;
