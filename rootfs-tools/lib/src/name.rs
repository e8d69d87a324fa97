//! Names of bases.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Longest name accepted, in bytes: it must fit in a file name with a suffix.
const MAX_BYTES: usize = 64;

/// A text that is no name of a base.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "base name {0:?} is not 1 to {MAX_BYTES} of a-z, 0-9, `.`, `_`, `-`, starting with a letter or digit"
)]
pub struct NameError(String);

/// The name of a base, like `debian12`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BaseName(String);

impl BaseName {
    /// Parses a name.
    pub fn parse(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        let starts = text
            .bytes()
            .next()
            .is_some_and(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9'));
        let rest = text
            .bytes()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-'));
        if starts && rest && text.len() <= MAX_BYTES {
            Ok(Self(text))
        } else {
            Err(NameError(text))
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name under which the base `manifest` is kept when `self` moves to another one.
    pub(crate) fn preserved(&self, manifest: &Digest) -> Self {
        let kept = MAX_BYTES - 1 - manifest.short().len();
        Self(format!(
            "{}-{}",
            self.0.get(..kept).unwrap_or(&self.0),
            manifest.short()
        ))
    }
}

impl TryFrom<String> for BaseName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl From<BaseName> for String {
    fn from(name: BaseName) -> Self {
        name.0
    }
}

impl fmt::Display for BaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_file_name_component() {
        assert_eq!(BaseName::parse("debian12").unwrap().as_str(), "debian12");
        for bad in [
            "",
            ".",
            "..",
            ".x",
            "-x",
            "a/b",
            "Debian",
            "a b",
            "a\0",
            &"a".repeat(65),
        ] {
            assert_eq!(BaseName::parse(bad), Err(NameError(bad.to_owned())));
        }
    }

    #[test]
    fn a_preserved_name_is_a_name_again() {
        let digest = Digest::of(b"");
        let long = BaseName::parse("a".repeat(64)).unwrap().preserved(&digest);
        assert_eq!(BaseName::parse(long.as_str()).unwrap(), long);
        assert_eq!(
            BaseName::parse("d").unwrap().preserved(&digest).as_str(),
            "d-e3b0c44298fc"
        );
    }
}
