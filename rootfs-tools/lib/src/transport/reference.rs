//! How places of images are written: the names of transports are those of skopeo.
//!
//! Source: containers-transports(5); distribution/reference `reference.go`; OCI image-spec,
//! `annotations.md` (`org.opencontainers.image.ref.name`).

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::digest::Digest;

/// Longest tag, in bytes.
const MAX_TAG_BYTES: usize = 128;
/// Longest name of a repository, in bytes.
const MAX_REPOSITORY_BYTES: usize = 255;
/// Transports of skopeo that a base cannot come from or go to.
const OTHER_TRANSPORTS: [&str; 7] = [
    "containers-storage",
    "dir",
    "docker-daemon",
    "ostree",
    "sif",
    "tarball",
    "atomic",
];

/// A text that names no place of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Another transport of skopeo.
    #[error("transport {0} is not supported; use oci:, oci-archive:, docker-archive: or docker://")]
    Transport(String),
    /// No path after the transport.
    #[error("{0}: has no path behind it, like {0}:/srv/images/debian")]
    Path(&'static str),
    /// No registry.
    #[error("{0:?} does not begin with the host of a registry, like registry.example:5000/debian")]
    Host(String),
    /// No repository.
    #[error(
        "{0:?} is no name of a repository: lower-case letters and digits, with `.`, `_`, `-` between, in parts with `/`"
    )]
    Repository(String),
    /// No tag.
    #[error(
        "{0:?} is no tag: 1 to {MAX_TAG_BYTES} letters, digits, `.`, `_`, `-`, not beginning with `.` or `-`"
    )]
    Tag(String),
    /// No digest.
    #[error(transparent)]
    Digest(#[from] crate::digest::DigestError),
}

/// Where an image is or is put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A root file system: an archive, a directory, or `-` for standard input.
    Plain(PathBuf),
    /// `oci:DIR[:TAG]`: a directory in the OCI image layout.
    Layout {
        /// The directory.
        dir: PathBuf,
        /// Which of its images.
        tag: Option<Tag>,
    },
    /// `oci-archive:FILE[:TAG]`: such a directory as a tar archive.
    LayoutArchive {
        /// The archive.
        file: PathBuf,
        /// Which of its images.
        tag: Option<Tag>,
    },
    /// `docker-archive:FILE[:NAME[:TAG]]`: what `docker save` writes.
    DockerArchive {
        /// The archive.
        file: PathBuf,
        /// Which of its images.
        tag: Option<Tag>,
    },
    /// `docker://HOST/REPOSITORY[:TAG|@DIGEST]`: a registry.
    Registry(RegistryReference),
}

impl Place {
    /// Parses what an operator typed. A text without a transport is a path; one that looks like
    /// a transport is `./`-escaped to be a path.
    pub fn parse(text: &OsStr) -> Result<Self, ReferenceError> {
        let bytes = text.as_bytes();
        let Some((transport, rest)) = split_once(bytes, b':') else {
            return Ok(Self::Plain(PathBuf::from(text)));
        };
        match transport {
            b"oci" => {
                let (dir, tag) = path_and_tag("oci", rest)?;
                Ok(Self::Layout { dir, tag })
            }
            b"oci-archive" => {
                let (file, tag) = path_and_tag("oci-archive", rest)?;
                Ok(Self::LayoutArchive { file, tag })
            }
            b"docker-archive" => {
                let (file, tag) = path_and_tag("docker-archive", rest)?;
                Ok(Self::DockerArchive { file, tag })
            }
            b"docker" => {
                let named = String::from_utf8_lossy(rest);
                let named = named
                    .strip_prefix("//")
                    .ok_or_else(|| ReferenceError::Host(named.to_string()))?;
                RegistryReference::parse(named).map(Self::Registry)
            }
            other => match OTHER_TRANSPORTS.into_iter().find(|t| t.as_bytes() == other) {
                Some(known) => Err(ReferenceError::Transport(known.to_owned())),
                None => Ok(Self::Plain(PathBuf::from(text))),
            },
        }
    }
}

/// Splits like skopeo: the path ends at the first colon.
fn path_and_tag(
    transport: &'static str,
    rest: &[u8],
) -> Result<(PathBuf, Option<Tag>), ReferenceError> {
    let (path, tag) = match split_once(rest, b':') {
        Some((path, tag)) => (path, Some(Tag::of_layout(&String::from_utf8_lossy(tag))?)),
        None => (rest, None),
    };
    if path.is_empty() {
        return Err(ReferenceError::Path(transport));
    }
    Ok((Path::new(OsStr::from_bytes(path)).to_owned(), tag))
}

fn split_once(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let position = bytes.iter().position(|byte| *byte == at)?;
    Some((bytes.get(..position)?, bytes.get(position + 1..)?))
}

/// The name of an image within a layout, an archive or a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    /// Parses a tag of a registry.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let starts = text
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
        let rest = text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if starts && rest && text.len() <= MAX_TAG_BYTES {
            Ok(Self(text.to_owned()))
        } else {
            Err(ReferenceError::Tag(text.to_owned()))
        }
    }

    /// Parses a name in a layout or archive, which may be a whole reference.
    fn of_layout(text: &str) -> Result<Self, ReferenceError> {
        let starts = text
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphanumeric());
        let rest = text.bytes().all(|b| {
            b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/' | b':' | b'@' | b'+')
        });
        if starts && rest && text.len() <= MAX_REPOSITORY_BYTES + 1 + MAX_TAG_BYTES {
            Ok(Self(text.to_owned()))
        } else {
            Err(ReferenceError::Tag(text.to_owned()))
        }
    }

    /// Returns the tag as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An image in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryReference {
    /// The registry, with its port where one was named.
    pub host: String,
    /// The repository.
    pub repository: String,
    /// Which of its images.
    pub version: Version,
}

/// Which image of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Version {
    /// The one that has the tag now.
    Tag(Tag),
    /// Exactly this one.
    Digest(Digest),
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => write!(f, ":{tag}"),
            Self::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

impl fmt::Display for RegistryReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}{}", self.host, self.repository, self.version)
    }
}

impl RegistryReference {
    /// Parses `HOST[:PORT]/REPOSITORY[:TAG][@DIGEST]`. The digest wins over the tag; without both
    /// the tag is `latest`. There is no default registry: a short name means another image in
    /// each of them.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let (named, digest) = match text.split_once('@') {
            Some((named, digest)) => (named, Some(Digest::parse(digest)?)),
            None => (text, None),
        };
        let (host, path) = named
            .split_once('/')
            .ok_or_else(|| ReferenceError::Host(text.to_owned()))?;
        if !is_host(host) {
            return Err(ReferenceError::Host(text.to_owned()));
        }
        let (repository, tag) = match path.split_once(':') {
            Some((repository, tag)) => (repository, Some(Tag::parse(tag)?)),
            None => (path, None),
        };
        let parts_valid = repository.split('/').all(is_repository_part);
        if !parts_valid || repository.len() > MAX_REPOSITORY_BYTES {
            return Err(ReferenceError::Repository(repository.to_owned()));
        }
        let version = match (digest, tag) {
            (Some(digest), _) => Version::Digest(digest),
            (None, Some(tag)) => Version::Tag(tag),
            (None, None) => Version::Tag(Tag("latest".to_owned())),
        };
        Ok(Self {
            host: host.to_owned(),
            repository: repository.to_owned(),
            version,
        })
    }

    /// Returns the host without its port.
    pub fn host_name(&self) -> &str {
        split_port(&self.host).0
    }
}

/// Splits off the port; an IPv6 address is in brackets.
fn split_port(host: &str) -> (&str, Option<&str>) {
    if let Some(rest) = host.strip_prefix('[')
        && let Some((address, after)) = rest.split_once(']')
    {
        return (address, after.strip_prefix(':'));
    }
    match host.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    }
}

/// A host must not be mistaken for a part of a repository: it has a dot, a port, or is localhost.
fn is_host(host: &str) -> bool {
    let (name, port) = split_port(host);
    let port_valid = port.is_none_or(|port| {
        port.parse::<u16>().is_ok_and(|number| number != 0)
            && port.bytes().all(|b| b.is_ascii_digit())
    });
    if host.starts_with('[') {
        let whole = match port {
            Some(port) => format!("[{name}]:{port}"),
            None => format!("[{name}]"),
        };
        return port_valid && whole == host && name.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let labels_valid = name.split('.').all(|label| {
        let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
        edge(label.bytes().next())
            && edge(label.bytes().last())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    });
    let distinct = name.contains('.') || port.is_some() || name == "localhost";
    labels_valid && port_valid && distinct
}

/// `[a-z0-9]+` with single separators `.`, `_`, `__` or any number of `-` between.
fn is_repository_part(part: &str) -> bool {
    let mut rest = part;
    loop {
        let word = rest
            .bytes()
            .take_while(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9'))
            .count();
        rest = rest.get(word..).unwrap_or_default();
        if word == 0 {
            return false;
        }
        if rest.is_empty() {
            return true;
        }
        let dashes = rest.bytes().take_while(|b| *b == b'-').count();
        let separator = if dashes > 0 {
            dashes
        } else if rest.starts_with("__") {
            2
        } else {
            usize::from(rest.starts_with(['.', '_']))
        };
        if separator == 0 {
            return false;
        }
        rest = rest.get(separator..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Place, ReferenceError> {
        Place::parse(OsStr::new(text))
    }

    fn registry(text: &str) -> (String, String, String) {
        let reference = RegistryReference::parse(text).unwrap();
        (
            reference.host,
            reference.repository,
            reference.version.to_string(),
        )
    }

    #[test]
    fn transports_are_those_of_skopeo() {
        let tag = |text: &str| Some(Tag(text.to_owned()));
        assert_eq!(
            parse("oci:/srv/images:base-debian12").unwrap(),
            Place::Layout {
                dir: "/srv/images".into(),
                tag: tag("base-debian12")
            }
        );
        assert_eq!(
            parse("oci-archive:a.tar").unwrap(),
            Place::LayoutArchive {
                file: "a.tar".into(),
                tag: None
            }
        );
        assert_eq!(
            parse("docker-archive:a.tar:registry.example/team/debian:12").unwrap(),
            Place::DockerArchive {
                file: "a.tar".into(),
                tag: tag("registry.example/team/debian:12")
            }
        );
        for plain in ["-", "tree", "/srv/a.tar.gz", "./oci:x", "C:x"] {
            assert_eq!(parse(plain).unwrap(), Place::Plain(plain.into()), "{plain}");
        }
        for (bad, error) in [
            ("oci:", ReferenceError::Path("oci")),
            ("oci-archive::t", ReferenceError::Path("oci-archive")),
            ("docker:debian", ReferenceError::Host("debian".to_owned())),
            ("dir:/x", ReferenceError::Transport("dir".to_owned())),
            ("oci:x:", ReferenceError::Tag(String::new())),
            ("oci:x:a b", ReferenceError::Tag("a b".to_owned())),
        ] {
            assert_eq!(parse(bad), Err(error), "{bad}");
        }
    }

    #[test]
    fn a_registry_reference_has_host_repository_and_version() {
        let digest = Digest::of(b"");
        let whole = |h: &str, r: &str, v: String| (h.to_owned(), r.to_owned(), v);
        assert_eq!(
            registry("127.0.0.1:5000/a/b-c__d.e:12"),
            whole("127.0.0.1:5000", "a/b-c__d.e", ":12".to_owned())
        );
        assert_eq!(
            registry("localhost/debian"),
            whole("localhost", "debian", ":latest".to_owned())
        );
        assert_eq!(
            registry(&format!("[::1]:5000/debian:12@{digest}")),
            whole("[::1]:5000", "debian", format!("@{digest}"))
        );
    }

    #[test]
    fn what_is_ambiguous_or_malformed_is_refused() {
        for bad in [
            "debian",
            "debian:12",
            "library/debian",
            "registry.example/",
            "registry.example/A",
            "registry.example/a..b",
            "registry.example/a___b",
            "registry.example/-a",
            "registry.example/a//b",
            "registry.example/../a",
            "registry.example/a:",
            "registry.example/a:.x",
            "registry.example/a@sha256:12",
            "registry.example:0/a",
            "registry.example:+80/a",
            "registry.example:99999/a",
            "user@registry.example/a",
            "registry.example?x/a",
            "registry..example/a",
            "[::1/a",
            "[::1]x/a",
            "[x]:1/a",
        ] {
            assert!(RegistryReference::parse(bad).is_err(), "{bad}");
        }
        let long = format!("registry.example/{}", "a".repeat(256));
        RegistryReference::parse(&long).unwrap_err();
    }

    proptest! {
        #[test]
        fn what_parses_is_written_the_same_way_again(text in "[a-z0-9.:/@_\\[\\]-]{1,60}") {
            if let Ok(reference) = RegistryReference::parse(&text) {
                let again = RegistryReference::parse(&reference.to_string()).unwrap();
                prop_assert_eq!(reference, again);
            }
        }
    }
}
