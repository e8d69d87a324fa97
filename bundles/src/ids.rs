//! Names and numbers of things: containers, tiles, users, digests, slices of ids.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a text or number is no id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not a container id.
    #[error("container id {0:?} is not 12 characters of a-z and 0-9")]
    Container(String),
    /// Not a tile id.
    #[error("tile {0:?} is not a path of the form apps/NAME, without `.`, `..` and hidden names")]
    Tile(String),
    /// Not a user id.
    #[error("user {0:?} does not match [a-z0-9][a-z0-9._-]{{0,31}}")]
    User(String),
    /// Not a digest.
    #[error("digest {0:?} is not sha256: and 64 lower-case hexadecimal digits")]
    Digest(String),
    /// Not a plain name in the workspace's root directory.
    #[error("{0:?} is not a plain file name")]
    FileName(String),
    /// A slice that would map host root or leave the id space.
    #[error("slice starting at {0} must start at 65536 or above and leave room for 65536 ids")]
    Slice(u32),
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $error:ident, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Parses the id.
            pub fn parse(text: impl Into<String>) -> Result<Self, IdError> {
                let text = text.into();
                let valid: fn(&str) -> bool = $valid;
                if valid(&text) { Ok(Self(text)) } else { Err(IdError::$error(text)) }
            }

            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

fn is_plain_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 255
        && !text.starts_with('.')
        && !text.contains(['/', '\\'])
        && !text.chars().any(char::is_control)
}

text_id! {
    /// The short name of a sandbox: the last 12 characters of its run or session id.
    ContainerId, Container,
    |text| text.len() == 12 && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

text_id! {
    /// A tile: its path relative to the workspace, `apps/x`.
    TileId, Tile,
    |text| text.len() <= 512
        && text.strip_prefix("apps/").is_some_and(|rest| rest.split('/').all(is_plain_name))
}

text_id! {
    /// A person; `owner` is the holder of the owner token.
    UserId, User,
    |text| text.len() <= 32
        && text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        && text.bytes().all(|b| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-')
        })
}

text_id! {
    /// A plain, visible file name without a slash.
    FileName, FileName, is_plain_name
}

text_id! {
    /// A SHA-256 digest, `sha256:` and 64 hexadecimal digits.
    Digest, Digest,
    |text| text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

impl Digest {
    /// Returns the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::of_parts(&[bytes])
    }

    /// Returns the digest of the parts, one after the other.
    pub(crate) fn of_parts(parts: &[&[u8]]) -> Self {
        use sha2::Digest as _;
        let mut hash = sha2::Sha256::new();
        for part in parts {
            hash.update(part);
        }
        let mut text = String::with_capacity(71);
        text.push_str("sha256:");
        for byte in hash.finalize() {
            for digit in [byte >> 4, byte & 15] {
                text.extend(char::from_digit(digit.into(), 16));
            }
        }
        Self(text)
    }

    /// Returns the 64 hexadecimal digits.
    pub fn hex(&self) -> &str {
        self.0.trim_start_matches("sha256:")
    }
}

/// 65,536 consecutive host ids, the same for users and groups; sandbox id `n` is host id
/// `first + n`. Host id 0 is in none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Slice(u32);

impl Slice {
    /// Ids in a slice.
    pub const LEN: u32 = 65_536;

    /// Parses the first id of a slice. It need not be aligned, but must leave room for the whole
    /// slice above host root and below the reserved id.
    pub fn parse(first: u32) -> Result<Self, IdError> {
        if first < Self::LEN || first.checked_add(Self::LEN).is_none() {
            return Err(IdError::Slice(first));
        }
        Ok(Self(first))
    }

    /// Returns the host id of the sandbox's root.
    pub const fn first(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Slice {
    type Error = IdError;

    fn try_from(first: u32) -> Result<Self, IdError> {
        Self::parse(first)
    }
}

impl From<Slice> for u32 {
    fn from(slice: Slice) -> Self {
        slice.0
    }
}
