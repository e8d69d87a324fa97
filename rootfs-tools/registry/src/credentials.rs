//! Who we are to a registry.
//!
//! Source: containers-auth.json(5); Docker's `config.json`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// Largest file of credentials that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// A name and a password. They have no text form.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// Why a file of credentials cannot be used. What is in it is never shown.
#[derive(Debug, thiserror::Error)]
pub enum AuthFileError {
    /// It cannot be read.
    #[error("cannot read the credentials in {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("{} is no file of credentials (line {line}, column {column})", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where it goes wrong.
        line: usize,
        /// Where it goes wrong.
        column: usize,
    },
    /// The entry of the registry is malformed.
    #[error("the entry for {registry} in {} is no name and password in base64", path.display())]
    Entry {
        /// The file.
        path: PathBuf,
        /// The registry.
        registry: String,
    },
    /// The credentials are somewhere else.
    #[error(
        "{} leaves the credentials of {registry} to a helper program, which is not run; use `skopeo login --authfile`, or --creds",
        path.display()
    )]
    Helper {
        /// The file.
        path: PathBuf,
        /// The registry.
        registry: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuthFile {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
    #[serde(default)]
    creds_store: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
}

impl Credentials {
    /// Takes a name and a password.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            password: password.into(),
        }
    }

    /// Finds the credentials for a repository of a registry in a file; `None` where the file has
    /// none, or does not exist.
    pub fn find(path: &Path, host: &str, repository: &str) -> Result<Option<Self>, AuthFileError> {
        let failed = |source| AuthFileError::Read {
            path: path.to_owned(),
            source,
        };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut content = Vec::new();
        file.take(MAX_FILE_BYTES)
            .read_to_end(&mut content)
            .map_err(failed)?;
        // The text of the parser's error may quote a secret: only its place is kept.
        let parsed: AuthFile = match serde_json::from_slice(&content) {
            Ok(parsed) => parsed,
            Err(error) => {
                return Err(AuthFileError::Syntax {
                    path: path.to_owned(),
                    line: error.line(),
                    column: error.column(),
                });
            }
        };
        parsed.find(path, host, repository)
    }

    /// Returns the value of the `Authorization` header.
    pub(crate) fn basic(&self) -> String {
        let pair = format!("{}:{}", self.user, self.password);
        format!("Basic {}", STANDARD.encode(pair))
    }
}

impl AuthFile {
    fn find(
        &self,
        path: &Path,
        host: &str,
        repository: &str,
    ) -> Result<Option<Credentials>, AuthFileError> {
        let Some((registry, entry)) = self.entry(host, repository) else {
            let helped = self.cred_helpers.contains_key(host) || !self.creds_store.is_empty();
            return if helped {
                Err(AuthFileError::Helper {
                    path: path.to_owned(),
                    registry: host.to_owned(),
                })
            } else {
                Ok(None)
            };
        };
        let decoded = STANDARD.decode(entry.auth.trim_end_matches('\0'));
        let pair = decoded
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .and_then(|text| {
                let (user, password) = text.split_once(':')?;
                Some(Credentials::new(user, password.trim_end_matches('\0')))
            });
        pair.map(Some).ok_or_else(|| AuthFileError::Entry {
            path: path.to_owned(),
            registry: registry.to_owned(),
        })
    }

    /// Returns the entry of the longest key that is the host, or host and the first parts of the
    /// repository. Docker writes some keys as URLs.
    fn entry(&self, host: &str, repository: &str) -> Option<(&str, &Entry)> {
        let whole = format!("{host}/{repository}");
        let mut wanted = whole.as_str();
        loop {
            let found = self.auths.iter().find(|(key, entry)| {
                let named = key
                    .strip_prefix("https://")
                    .or_else(|| key.strip_prefix("http://"));
                let plain = match named {
                    Some(url) => url.split('/').next().unwrap_or(url),
                    None => key,
                };
                plain == wanted && !entry.auth.is_empty()
            });
            if let Some((key, entry)) = found {
                return Some((key, entry));
            }
            wanted = wanted.rsplit_once('/')?.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        file
    }

    fn auths(entries: &[(&str, &str)]) -> tempfile::NamedTempFile {
        let auths: BTreeMap<_, _> = entries
            .iter()
            .map(|(key, pair)| (key, serde_json::json!({ "auth": STANDARD.encode(pair) })))
            .collect();
        file(&serde_json::json!({ "auths": auths }).to_string())
    }

    #[test]
    fn the_most_specific_entry_counts() {
        let file = auths(&[
            ("r.example", "host:1"),
            ("r.example/team", "team:2"),
            ("https://other.example/v1/", "other:3:4"),
        ]);
        let find = |host, repository| Credentials::find(file.path(), host, repository).unwrap();
        assert_eq!(
            find("r.example", "team/debian"),
            Some(Credentials::new("team", "2"))
        );
        assert_eq!(
            find("r.example", "teams"),
            Some(Credentials::new("host", "1"))
        );
        assert_eq!(
            find("other.example", "x"),
            Some(Credentials::new("other", "3:4"))
        );
        assert_eq!(find("r.example:5000", "x"), None);
        let absent = Path::new("/nonexistent/auth.json");
        assert_eq!(Credentials::find(absent, "r.example", "x").unwrap(), None);
    }

    #[test]
    fn no_secret_is_in_any_text() {
        let credentials = Credentials::new("user", "secret");
        assert_eq!(format!("{credentials:?}"), "Credentials");
        assert_eq!(credentials.basic(), "Basic dXNlcjpzZWNyZXQ=");
        for content in [
            r#"{"auths": {"r.example": "secret"}}"#,
            r#"{"auths": {"r.example": {"auth": "secret"}}}"#,
            r#"{"auths": {"r.example": {"auth": 5}}, "secret": }"#,
            r#"{"credsStore": "secret"}"#,
            r#"{"credHelpers": {"r.example": "secret"}}"#,
        ] {
            let file = file(content);
            let error = Credentials::find(file.path(), "r.example", "x").unwrap_err();
            let error = format!("{error} {error:?}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
