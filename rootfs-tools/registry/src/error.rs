//! Why a registry could not be used.

use std::{fmt, io};

use casemate_rootfs::Digest;

/// Why a registry could not be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// There was no answer.
    #[error("cannot {operation}: there is no usable answer from the registry {host}")]
    Transfer {
        /// What was tried.
        operation: &'static str,
        /// The registry.
        host: String,
        /// The cause.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The registry does not speak TLS.
    #[error("the registry {host} speaks plain HTTP; only --insecure allows that beyond loopback")]
    PlainHttp {
        /// The registry.
        host: String,
    },
    /// The certificate of the registry is not good.
    #[error(
        "the certificate of the registry {host} is not trusted; add its authority to the system's, or name it in SSL_CERT_FILE"
    )]
    Certificate {
        /// The registry.
        host: String,
        /// The cause.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The registry wants credentials and there are none, or refuses those that there are.
    #[error("cannot {operation}: the registry {host} {}{said}", if *.given {
        "does not accept the credentials"
    } else {
        "asks for credentials; log in with `skopeo login`, or use --creds"
    })]
    Denied {
        /// What was tried.
        operation: &'static str,
        /// The registry.
        host: String,
        /// Whether there were credentials.
        given: bool,
        /// What the registry said.
        said: Said,
    },
    /// There is no such image, or blob.
    #[error("cannot {operation}: the registry {host} has no such image{said}")]
    NotFound {
        /// What was tried.
        operation: &'static str,
        /// The registry.
        host: String,
        /// What the registry said.
        said: Said,
    },
    /// Another answer than the protocol has.
    #[error("cannot {operation}: the registry {host} answered with status {status}{said}")]
    Status {
        /// What was tried.
        operation: &'static str,
        /// The registry.
        host: String,
        /// The status of the answer.
        status: u16,
        /// What the registry said.
        said: Said,
        /// After how many seconds the registry wants to be asked again.
        retry_after: Option<u64>,
    },
    /// An answer that cannot be used.
    #[error("cannot {operation}: the answer of the registry {host} {wrong}")]
    Answer {
        /// What was tried.
        operation: &'static str,
        /// The registry.
        host: String,
        /// What is wrong with it, as a predicate.
        wrong: &'static str,
    },
    /// A document that is not what was asked for.
    #[error("the registry {host} sent {found} instead of {wanted}")]
    Changed {
        /// The registry.
        host: String,
        /// The digest asked for.
        wanted: Digest,
        /// The digest of what came.
        found: Digest,
    },
    /// A download that broke more often than is borne.
    #[error("the download of {digest} broke {failures} times, last at byte {at}; try again later")]
    Broken {
        /// The blob.
        digest: Digest,
        /// How often, without progress between.
        failures: u32,
        /// Bytes that had come.
        at: u64,
        /// The last cause.
        #[source]
        source: io::Error,
    },
    /// What is to be sent could not be read.
    #[error("cannot read what is to be sent to the registry")]
    Read(#[source] io::Error),
}

impl RegistryError {
    /// Whether the same may succeed a little later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Transfer { source, .. } => {
                let broken = matches!(
                    **source,
                    ureq::Error::Io(_)
                        | ureq::Error::Timeout(_)
                        | ureq::Error::ConnectionFailed
                        | ureq::Error::Protocol(_)
                );
                broken && tls_error(source).is_none() && !is_refused(source)
            }
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            Self::PlainHttp { .. }
            | Self::Certificate { .. }
            | Self::Denied { .. }
            | Self::NotFound { .. }
            | Self::Answer { .. }
            | Self::Changed { .. }
            | Self::Broken { .. }
            | Self::Read(_) => false,
        }
    }
}

/// Returns what TLS says of an error.
pub(crate) fn tls_error(error: &ureq::Error) -> Option<&rustls::Error> {
    if let ureq::Error::Rustls(error) = error {
        Some(error)
    } else if let ureq::Error::Io(error) = error {
        error.get_ref()?.downcast_ref()
    } else {
        None
    }
}

/// Whether nobody listens there.
fn is_refused(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// What a registry said of an error: made fit for a terminal, and cut.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said(String);

impl Said {
    /// Most characters that are shown.
    const SHOWN: usize = 200;

    /// Takes the first error of the body, which the specification describes, or nothing.
    pub(crate) fn of(body: &[u8]) -> Self {
        #[derive(serde::Deserialize)]
        struct Envelope {
            errors: Vec<Single>,
        }
        #[derive(serde::Deserialize)]
        struct Single {
            #[serde(default)]
            code: String,
            #[serde(default)]
            message: String,
        }
        let Ok(Envelope { errors }) = serde_json::from_slice(body) else {
            return Self::default();
        };
        let Some(Single { code, message }) = errors.into_iter().next() else {
            return Self::default();
        };
        let text: String = format!("{code} {message}")
            .trim()
            .chars()
            .filter(|c| !c.is_control())
            .take(Self::SHOWN)
            .collect();
        Self(text)
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, " ({:?})", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_registry_says_cannot_paint_the_terminal() {
        let body = br#"{"errors":[{"code":"DENIED","message":"no\u001b[31m\nentry"}]}"#;
        assert_eq!(Said::of(body).to_string(), r#" ("DENIED no[31mentry")"#);
        let long = format!(
            r#"{{"errors":[{{"message":"{}"}}]}}"#,
            "x".repeat(Said::SHOWN + 1)
        );
        assert_eq!(Said::of(long.as_bytes()).0.len(), Said::SHOWN);
        for none in [&b"<html>"[..], b"{}", br#"{"errors":[]}"#, b"\xff"] {
            assert_eq!(Said::of(none).to_string(), "");
        }
    }
}
