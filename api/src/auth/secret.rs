//! Random credentials and their digests.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest as _, Sha256};

/// A credential. Not printable; compared by digest, in constant time.
#[derive(Clone)]
pub struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Takes a credential that a client sent or a file holds.
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// Makes a credential of `bytes` random bytes, in URL-safe base64.
    pub fn random(bytes: usize) -> std::io::Result<Self> {
        let mut buffer = vec![0; bytes];
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            filled += getrandom(rest, GetRandomFlags::empty())?;
        }
        Ok(Self(URL_SAFE_NO_PAD.encode(buffer)))
    }

    /// Returns the text, for the one client or file that it is meant for.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns its digest, which is all that is kept.
    pub fn digest(&self) -> SecretDigest {
        SecretDigest(Sha256::digest(self.0.as_bytes()).into())
    }
}

/// SHA-256 of a [`Secret`]. Equality takes the same time wherever two digests differ.
#[derive(Debug, Clone, Copy, Eq)]
pub struct SecretDigest([u8; 32]);

impl SecretDigest {
    /// Returns the bytes, as they are kept in the database.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for SecretDigest {
    fn eq(&self, other: &Self) -> bool {
        let difference = self
            .0
            .iter()
            .zip(other.0)
            .fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(difference) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_distinct_and_not_printed() {
        let (a, b) = (Secret::random(32).unwrap(), Secret::random(32).unwrap());
        assert_eq!(a.expose().len(), 43);
        assert!(a.digest() == a.clone().digest() && a.digest() != b.digest());
        assert_eq!(format!("{a:?}"), "Secret");
    }
}
