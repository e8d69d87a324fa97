//! Reading: documents and blobs.

use std::io::{self, Read};

use casemate_rootfs::Digest;
use casemate_rootfs::transport::Version;
use ureq::http::{Method, header};

use crate::error::RegistryError;
use crate::http::Response;
use crate::session::{Call, Registry, header_text};

/// Longest manifest or index, in bytes: what registries accept.
const MAX_DOCUMENT_BYTES: u64 = 4 * 1024 * 1024;
/// How many bytes count as progress of a download.
const PROGRESS_BYTES: u64 = 64 * 1024;
/// What we understand.
const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
                      application/vnd.oci.image.manifest.v1+json, \
                      application/vnd.docker.distribution.manifest.list.v2+json, \
                      application/vnd.docker.distribution.manifest.v2+json";

/// A manifest or an index, as the registry has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// What the registry says that it is.
    pub media_type: Option<String>,
    /// The document; its digest is the one asked for, if one was.
    pub bytes: Vec<u8>,
    /// Its digest.
    pub digest: Digest,
}

impl Registry {
    /// Reads a manifest or an index.
    pub fn document(&mut self, version: &Version) -> Result<Document, RegistryError> {
        self.retrying(|registry| registry.document_once(version))
    }

    fn document_once(&mut self, version: &Version) -> Result<Document, RegistryError> {
        const OPERATION: &str = "read the manifest";
        let name = match version {
            Version::Tag(tag) => tag.as_str(),
            Version::Digest(digest) => digest.as_str(),
        };
        let mut call = Call::new(
            OPERATION,
            Method::GET,
            self.url(&format!("manifests/{name}")),
        );
        call.headers.push((header::ACCEPT, ACCEPT.to_owned()));
        let answer = self.send(call)?;
        if answer.status() != 200 {
            return Err(self.unexpected(OPERATION, answer));
        }
        let media_type = header_text(&answer, &header::CONTENT_TYPE)
            .map(|text| text.split(';').next().unwrap_or(text).trim().to_owned());
        let bytes = self.bounded(OPERATION, answer, MAX_DOCUMENT_BYTES)?;
        let digest = Digest::of(&bytes);
        if let Version::Digest(wanted) = version
            && *wanted != digest
        {
            return Err(RegistryError::Changed {
                host: self.host().to_owned(),
                wanted: wanted.clone(),
                found: digest,
            });
        }
        Ok(Document {
            media_type,
            bytes,
            digest,
        })
    }

    /// Opens a blob of `bytes` bytes. The caller computes its digest: nothing here does.
    pub fn blob(&mut self, digest: &Digest, bytes: u64) -> Result<BlobReader<'_>, RegistryError> {
        let body = self.retrying(|registry| registry.open_blob(digest, bytes, 0))?;
        Ok(BlobReader {
            registry: self,
            digest: digest.clone(),
            bytes,
            done: 0,
            body: Some(body),
            failures: 0,
            progress_at: 0,
        })
    }

    /// Asks for a blob from `offset` on.
    fn open_blob(
        &mut self,
        digest: &Digest,
        bytes: u64,
        offset: u64,
    ) -> Result<Box<dyn Read>, RegistryError> {
        const OPERATION: &str = "read a layer or configuration";
        let mut call = Call::new(OPERATION, Method::GET, self.url(&format!("blobs/{digest}")));
        if offset > 0 {
            call.headers
                .push((header::RANGE, format!("bytes={offset}-")));
        }
        let answer = self.send(call)?;
        let skip = match answer.status().as_u16() {
            // A registry need not know ranges: then it begins anew.
            200 => offset,
            206 if offset > 0 => {
                if content_range(&answer) != Some((offset, bytes)) {
                    return Err(self.wrong(OPERATION, "is another range than asked for"));
                }
                0
            }
            _ => return Err(self.unexpected(OPERATION, answer)),
        };
        let length = answer.body().content_length();
        if length.is_some_and(|length| length + offset - skip != bytes) {
            return Err(self.wrong(OPERATION, "has another size than its manifest says"));
        }
        let mut body = answer.into_body().into_reader();
        let skipped = io::copy(&mut (&mut body).take(skip), &mut io::sink());
        skipped.map_err(|source| RegistryError::Transfer {
            operation: OPERATION,
            host: self.host().to_owned(),
            source: Box::new(ureq::Error::Io(source)),
        })?;
        Ok(Box::new(body))
    }
}

/// Reads `bytes 5-9/10` as (5, 10), if it goes to the end.
fn content_range(answer: &Response) -> Option<(u64, u64)> {
    let text = header_text(answer, &header::CONTENT_RANGE)?;
    let (range, whole) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, whole): (u64, u64, u64) =
        (first.parse().ok()?, last.parse().ok()?, whole.parse().ok()?);
    (last.checked_add(1)? == whole).then_some((first, whole))
}

/// A blob on its way. Where the connection breaks it is taken up again.
pub struct BlobReader<'a> {
    registry: &'a mut Registry,
    digest: Digest,
    bytes: u64,
    done: u64,
    body: Option<Box<dyn Read>>,
    /// Since there was progress.
    failures: u32,
    progress_at: u64,
}

impl std::fmt::Debug for BlobReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobReader")
            .field("digest", &self.digest)
            .field("done", &self.done)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl BlobReader<'_> {
    /// Waits and connects again, unless that has been tried too often.
    fn resume(&mut self, source: io::Error) -> io::Result<()> {
        let mut source = source;
        loop {
            if self.done >= self.progress_at + PROGRESS_BYTES {
                self.failures = 0;
            }
            self.progress_at = self.done;
            if self.failures >= self.registry.retries.count {
                return Err(io::Error::other(RegistryError::Broken {
                    digest: self.digest.clone(),
                    failures: self.failures + 1,
                    at: self.done,
                    source,
                }));
            }
            let broken = RegistryError::Read(source);
            self.registry.retries.wait(self.failures, &broken);
            self.failures += 1;
            match self.registry.open_blob(&self.digest, self.bytes, self.done) {
                Ok(body) => {
                    self.body = Some(body);
                    return Ok(());
                }
                Err(error) if error.is_transient() => source = io::Error::other(error),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}

impl Read for BlobReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.bytes - self.done).unwrap_or(usize::MAX);
        let want = left.min(buffer.len());
        let Some(buffer) = buffer.get_mut(..want).filter(|buffer| !buffer.is_empty()) else {
            return Ok(0);
        };
        loop {
            let source = match self.body.as_mut().map(|body| body.read(buffer)) {
                Some(Ok(0)) | None => io::Error::from(io::ErrorKind::UnexpectedEof),
                Some(Ok(count)) => {
                    self.done += count as u64;
                    return Ok(count);
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => continue,
                Some(Err(error)) => error,
            };
            self.body = None;
            self.resume(source)?;
        }
    }
}
