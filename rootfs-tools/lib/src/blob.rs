//! Blobs: written once under their digest, checked whenever they are read.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use crate::digest::{Digest, Hashing};
use crate::files::{self, FileError, failed};
use crate::hold::Hold;
use crate::store::{Store, StoreError};

/// Largest blob, in bytes.
const MAX_BLOB_BYTES: u64 = 64 << 30;
/// Largest manifest, configuration or index, in bytes. Registries take no manifest above 4 MiB.
const MAX_DOCUMENT_BYTES: u64 = 8 << 20;
const BUFFER_BYTES: usize = 128 * 1024;

/// A blob, as descriptors name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Blob {
    /// Digest of its bytes.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
}

/// Why a blob was not stored or could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The store does not let itself be changed or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no such blob.
    #[error("the blob {0} is not in the store; import the image again")]
    Absent(Digest),
    /// What it is read from failed.
    #[error("the blob cannot be read")]
    Read(#[source] io::Error),
    /// It is shorter or longer than announced.
    #[error("the blob {digest} should have {expected} bytes, but has {found}{}", if *.found > *.expected { " or more" } else { "" })]
    Size {
        /// Its digest.
        digest: Digest,
        /// The announced size.
        expected: u64,
        /// The bytes that were read.
        found: u64,
    },
    /// It is another one than announced.
    #[error("the blob should be {expected}, but is {found}")]
    Digest {
        /// The announced digest.
        expected: Digest,
        /// That of what was read.
        found: Digest,
    },
    /// Larger than a blob or document may be.
    #[error("the blob is larger than {limit} bytes")]
    Large {
        /// The limit.
        limit: u64,
    },
    /// A file of the store could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Store {
    /// Tells whether the store has the blob with the right size; if so, `hold` keeps it. A file of
    /// another size is no such blob: storing it anew replaces that file.
    pub fn has_blob(&self, hold: &Hold, blob: &Blob) -> Result<bool, BlobError> {
        hold.add(self, &blob.digest)?;
        let path = self.blob_path(&blob.digest);
        match path.symlink_metadata() {
            Ok(metadata) => Ok(metadata.is_file() && metadata.len() == blob.size),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("examine", &path)(error).into()),
        }
    }

    /// Stores what `input` gives, up to its end. Nothing appears in the store unless it has the
    /// announced size and digest; `hold` keeps it until it is committed as part of an image.
    pub fn ingest_blob(
        &self,
        hold: &Hold,
        input: &mut dyn Read,
        announced: Option<&Blob>,
    ) -> Result<Blob, BlobError> {
        self.require_write()?;
        let temporary = hold.staging().temporary();
        let written = write_blob(&temporary, input, announced);
        let stored = written.and_then(|blob| {
            self.place_blob(hold, &temporary, &blob.digest)?;
            Ok(blob)
        });
        if stored.is_err() {
            // The staging directory goes with the hold in any case.
            drop(fs::remove_file(&temporary));
        }
        stored
    }

    /// Renames a complete, synced file to its place among the blobs.
    pub(crate) fn place_blob(
        &self,
        hold: &Hold,
        file: &Path,
        digest: &Digest,
    ) -> Result<(), FileError> {
        use std::os::unix::fs::PermissionsExt as _;
        let permissions = fs::Permissions::from_mode(0o444);
        fs::set_permissions(file, permissions).map_err(failed("protect", file))?;
        hold.add(self, digest)?;
        let place = self.blob_path(digest);
        match place.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => hold.note_brought(digest),
            Ok(_) | Err(_) => {}
        }
        fs::rename(file, &place).map_err(failed("store", &place))?;
        files::sync_dir(&self.blobs())
    }

    /// Opens a blob. Reading fails at the end where its bytes are not those of its digest.
    pub fn blob(&self, digest: &Digest) -> Result<BlobFile, BlobError> {
        let path = self.blob_path(digest);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(BlobError::Absent(digest.clone()));
            }
            Err(error) => return Err(failed("open", &path)(error).into()),
        };
        let size = file.metadata().map_err(failed("examine", &path))?.len();
        Ok(BlobFile {
            expected: digest.clone(),
            size,
            input: Some(Hashing::new(file)),
        })
    }

    /// Reads a manifest, configuration or index whole and checks it.
    pub fn document(&self, digest: &Digest) -> Result<Vec<u8>, BlobError> {
        let blob = self.blob(digest)?;
        if blob.size > MAX_DOCUMENT_BYTES {
            return Err(BlobError::Large {
                limit: MAX_DOCUMENT_BYTES,
            });
        }
        let mut content = Vec::new();
        let read = blob.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut content);
        read.map_err(failed("read", &self.blob_path(digest)))?;
        Ok(content)
    }

    pub(crate) fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.hex())
    }
}

/// Writes a blob and makes it durable.
fn write_blob(
    path: &Path,
    input: &mut dyn Read,
    announced: Option<&Blob>,
) -> Result<Blob, BlobError> {
    let file = File::create_new(path).map_err(failed("create", path))?;
    let mut output = Hashing::new(file);
    let limit = announced.map_or(MAX_BLOB_BYTES, |blob| blob.size);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(BlobError::Read(error)),
        };
        let found = output.passed() + count as u64;
        if found > limit {
            return Err(match announced {
                Some(blob) => wrong_size(blob, found),
                None => BlobError::Large { limit },
            });
        }
        output
            .write_all(buffer.get(..count).unwrap_or_default())
            .map_err(failed("write", path))?;
    }
    let (file, digest, size) = output.finish();
    if let Some(blob) = announced {
        if size != blob.size {
            return Err(wrong_size(blob, size));
        }
        if digest != blob.digest {
            return Err(BlobError::Digest {
                expected: blob.digest.clone(),
                found: digest,
            });
        }
    }
    file.sync_all().map_err(failed("sync", path))?;
    Ok(Blob { digest, size })
}

fn wrong_size(blob: &Blob, found: u64) -> BlobError {
    BlobError::Size {
        digest: blob.digest.clone(),
        expected: blob.size,
        found,
    }
}

/// An open blob. The read that would tell the end fails where the bytes are not those of the
/// digest, so what was read counts only when the end was reached.
pub struct BlobFile {
    expected: Digest,
    size: u64,
    /// None after the end.
    input: Option<Hashing<File>>,
}

impl std::fmt::Debug for BlobFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobFile")
            .field("expected", &self.expected)
            .finish_non_exhaustive()
    }
}

impl BlobFile {
    /// Returns the size of the file.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl Read for BlobFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(input) = &mut self.input else {
            return Ok(0);
        };
        let count = input.read(buffer)?;
        if count == 0
            && !buffer.is_empty()
            && let Some(input) = self.input.take()
        {
            let (_, found, _) = input.finish();
            if found != self.expected {
                let expected = self.expected.clone();
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    BlobError::Digest { expected, found },
                ));
            }
        }
        Ok(count)
    }
}
