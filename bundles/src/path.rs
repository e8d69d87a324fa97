//! Absolute, normalised paths: on the host and in the sandbox, not interchangeable.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest path accepted, in bytes (`PATH_MAX` less the terminator).
const MAX_PATH_BYTES: usize = 4095;

/// Why a text is no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Relative or empty.
    #[error("path {0:?} is not absolute")]
    NotAbsolute(String),
    /// Contains `.`, `..`, an empty component or a trailing slash.
    #[error("path {0:?} is not normalised: write it without `.`, `..`, `//` and trailing `/`")]
    NotNormalised(String),
    /// Contains a NUL byte or another control character.
    #[error("path {0:?} contains a control character")]
    ControlCharacter(String),
    /// Longer than 4095 bytes.
    #[error("path is {0} bytes long; the limit is {MAX_PATH_BYTES}")]
    TooLong(usize),
}

/// Looks at whole paths first, which a processor does many bytes at a time; few need a closer look.
pub(crate) fn check(path: &str) -> Result<(), PathError> {
    let bytes = path.as_bytes();
    if bytes.len() > MAX_PATH_BYTES {
        return Err(PathError::TooLong(bytes.len()));
    }
    let Some((b'/', rest)) = bytes.split_first() else {
        return Err(PathError::NotAbsolute(path.to_owned()));
    };
    // In UTF-8 the second block of control characters starts with 0xc2. Bytes, not truth values, so
    // that the loops become vector instructions.
    let control = |byte| u8::from(byte < 0x20) | u8::from(byte == 0x7f) | u8::from(byte == 0xc2);
    let found = rest.iter().fold(0, |found, &byte| found | control(byte));
    if found != 0 && path.chars().any(char::is_control) {
        return Err(PathError::ControlCharacter(path.to_owned()));
    }
    let odd = |a, b| u8::from(a == b'/') & (u8::from(b == b'/') | u8::from(b == b'.'));
    let pairs = bytes.iter().zip(rest);
    let found = pairs.fold(0, |found, (&a, &b)| found | odd(a, b));
    let slash = rest.last() == Some(&b'/');
    if (found != 0 || slash)
        && path
            .split('/')
            .skip(1)
            .any(|part| matches!(part, "" | "." | ".."))
    {
        return Err(PathError::NotNormalised(path.to_owned()));
    }
    Ok(())
}

/// Returns what of a path lies below another: empty where they are equal.
pub(crate) fn below<'a>(path: &'a str, other: &str) -> Option<&'a str> {
    if other == "/" {
        return Some(path.trim_start_matches('/'));
    }
    let rest = path.strip_prefix(other)?;
    if rest.is_empty() {
        Some("")
    } else {
        rest.strip_prefix('/')
    }
}

macro_rules! absolute_path {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Parses an absolute, normalised path.
            pub fn parse(path: impl Into<String>) -> Result<Self, PathError> {
                let path = path.into();
                check(&path)?;
                Ok(Self(path))
            }

            /// Returns `/`.
            pub fn root() -> Self {
                Self("/".to_owned())
            }

            /// Returns the path as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Returns `self` with a relative, normalised path below it.
            pub fn join(&self, below: &str) -> Result<Self, PathError> {
                let root = if self.0 == "/" { "" } else { &self.0 };
                let mut path = String::with_capacity(root.len() + 1 + below.len());
                path.push_str(root);
                path.push('/');
                path.push_str(below);
                Self::parse(path)
            }

            /// Returns the number of components; `/` has none.
            pub fn depth(&self) -> usize {
                self.components().count()
            }

            /// Returns the components from the root down.
            pub fn components(&self) -> impl Iterator<Item = &str> {
                self.0.split('/').filter(|part| !part.is_empty())
            }

            /// Returns whether `self` is `other` or lies below it, by component.
            pub fn is_within(&self, other: &Self) -> bool {
                self.below(other).is_some()
            }

            /// Returns what of `self` lies below `other`: empty where they are equal.
            pub fn below(&self, other: &Self) -> Option<&str> {
                below(&self.0, &other.0)
            }

            /// Returns the directory that holds `self`; `None` for `/`.
            pub fn parent(&self) -> Option<Self> {
                let (parent, name) = self.0.rsplit_once('/')?;
                if name.is_empty() {
                    return None;
                }
                Some(Self(if parent.is_empty() { "/".to_owned() } else { parent.to_owned() }))
            }
        }

        impl TryFrom<String> for $name {
            type Error = PathError;

            fn try_from(path: String) -> Result<Self, PathError> {
                Self::parse(path)
            }
        }

        impl From<$name> for String {
            fn from(path: $name) -> Self {
                path.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl AsRef<std::path::Path> for $name {
            fn as_ref(&self) -> &std::path::Path {
                self.0.as_ref()
            }
        }
    };
}

absolute_path! {
    /// An absolute, normalised path on the host. Never shown to a client.
    HostPath
}
absolute_path! {
    /// An absolute, normalised path inside a sandbox.
    SandboxPath
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_not_absolute_and_normalised() {
        for bad in [
            "",
            "a",
            "./a",
            "/a/",
            "//",
            "/a//b",
            "/a/./b",
            "/..",
            "/a/../b",
            "/a\0b",
            "/\n",
            "/a\u{7f}",
            "/\u{80}",
            "/a\u{9f}b",
            "/.",
            "/a/..",
            "/a/.",
        ] {
            SandboxPath::parse(bad).expect_err(bad);
        }
        for good in ["/", "/a", "/a/b c/…", "/a/..b", "/\u{a0}", "/ü", "/€"] {
            assert_eq!(SandboxPath::parse(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn below_works_by_component() {
        let path = |text: &str| HostPath::parse(text).unwrap();
        assert_eq!(path("/a/b/c").below(&path("/a")), Some("b/c"));
        assert_eq!(path("/a").below(&path("/a")), Some(""));
        assert_eq!(path("/ab").below(&path("/a")), None);
        assert_eq!(path("/ab").below(&path("/")), Some("ab"));
        assert_eq!(path("/a/b").parent(), Some(path("/a")));
        assert_eq!(path("/a").parent(), Some(path("/")));
        assert_eq!(path("/").parent(), None);
    }
}
