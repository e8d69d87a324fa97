//! A client of image registries: what pulling and pushing a base takes, and no more.
//!
//! * It blocks and streams: a blob passes through one buffer, and a broken download goes on where
//!   it stopped.
//! * Nothing that a registry says is believed: documents are bounded, digests are computed by the
//!   caller over every byte, redirects never lead from TLS to plain HTTP, and credentials go to
//!   the registry and its token server alone.
//! * Plain HTTP is spoken to loopback addresses, elsewhere only where the operator allows it.
//!
//! Source: OCI distribution-spec 1.1; Docker registry token authentication; RFC 9110, 11.

mod challenge;
mod credentials;
mod error;
mod http;
mod image;
mod pull;
mod push;
mod session;

pub use credentials::{AuthFileError, Credentials};
pub use error::{RegistryError, Said};
pub use image::{PushError, RegistrySource, push};
pub use pull::{BlobReader, Document};
pub use session::{Access, Options, PlainHttp, Registry, Retries};
