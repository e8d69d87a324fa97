//! Content digests and readers and writers that compute them in passing.

use std::fmt;
use std::fmt::Write as _;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// A text that is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("digest {0:?} is not sha256: and 64 lower-case hexadecimal digits")]
pub struct DigestError(String);

/// A SHA-256 digest, `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

const PREFIX: &str = "sha256:";

impl Digest {
    /// Parses `sha256:<hex>`.
    pub fn parse(text: impl Into<String>) -> Result<Self, DigestError> {
        let text = text.into();
        let valid = text.strip_prefix(PREFIX).is_some_and(|hex| {
            hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        });
        if valid {
            Ok(Self(text))
        } else {
            Err(DigestError(text))
        }
    }

    /// Returns the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_hash(&sha2::Sha256::digest(bytes))
    }

    /// Returns the whole text, with its algorithm.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the hexadecimal digits, which are the names of files and directories.
    pub fn hex(&self) -> &str {
        self.0.strip_prefix(PREFIX).unwrap_or(&self.0)
    }

    /// Returns the first twelve hexadecimal digits, for names that people read.
    pub(crate) fn short(&self) -> &str {
        self.hex().get(..12).unwrap_or_else(|| self.hex())
    }

    fn from_hash(hash: &[u8]) -> Self {
        let mut text = String::with_capacity(PREFIX.len() + 64);
        text.push_str(PREFIX);
        for byte in hash {
            // Writing to a string cannot fail.
            write!(text, "{byte:02x}").unwrap_or_default();
        }
        Self(text)
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        Self::parse(text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A reader or writer that hashes and counts what passes.
pub(crate) struct Hashing<T> {
    inner: T,
    hash: sha2::Sha256,
    bytes: u64,
}

impl<T> Hashing<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self {
            inner,
            hash: sha2::Sha256::new(),
            bytes: 0,
        }
    }

    /// Returns how many bytes have passed.
    pub(crate) fn passed(&self) -> u64 {
        self.bytes
    }

    /// Ends the computation.
    pub(crate) fn finish(self) -> (T, Digest, u64) {
        (
            self.inner,
            Digest::from_hash(&self.hash.finalize()),
            self.bytes,
        )
    }

    pub(crate) fn pass(&mut self, passed: &[u8]) {
        self.hash.update(passed);
        self.bytes += passed.len() as u64;
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.pass(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(buffer)?;
        self.pass(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_text_is_a_digest() {
        let hex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").as_str(), format!("sha256:{hex}"));
        assert_eq!(Digest::parse(format!("sha256:{hex}")).unwrap().hex(), hex);
        for bad in [
            hex.to_owned(),
            format!("sha512:{hex}"),
            format!("sha256:{}", hex.to_uppercase()),
        ] {
            assert_eq!(Digest::parse(bad.clone()), Err(DigestError(bad)));
        }
    }

    #[test]
    fn passing_bytes_are_hashed_and_counted() {
        let mut reader = Hashing::new(&b"abc"[..]);
        io::copy(&mut reader, &mut io::sink()).unwrap();
        let (_, digest, bytes) = reader.finish();
        assert_eq!((digest, bytes), (Digest::of(b"abc"), 3));
    }
}
