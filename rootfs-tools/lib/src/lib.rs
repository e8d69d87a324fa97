//! Content-addressed base images: store, snapshots, pins.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use casemate_rootfs::{BaseName, Source, Store};
//!
//! let store = Store::create("/var/lib/casemate")?;
//! let mut archive = std::fs::File::open("debian12.tar")?;
//! store.import(&BaseName::parse("debian12")?, Source::Archive(&mut archive), &mut |_| {})?;
//!
//! let base = store.resolve("debian12")?;
//! let held = store.use_lock(&base.chain)?; // as long as it is open, base.fs stays
//! # drop(held);
//! # Ok(())
//! # }
//! ```
//!
//! A test base needs no network: put `/bin/busybox` or a static program, and the directories that
//! a sandbox mounts on, into a directory, and import it with [`Source::Directory`]. That takes
//! some milliseconds.

mod adopt;
mod archive;
mod blob;
mod collect;
mod current;
mod decode;
mod diff;
mod digest;
mod directory;
mod files;
mod format;
mod fsck;
mod generation;
mod hold;
mod image;
mod import;
mod ingest;
pub mod layer;
mod layers;
mod name;
mod notice;
mod oci;
mod packages;
mod pax;
pub mod rebase;
mod staging;
mod store;
mod time;
pub mod transport;
mod tree;
mod unpack;

pub use adopt::{AdoptError, AdoptedBase, AdoptedLayer};
pub use archive::{ArchiveError, EntryName};
pub use blob::{Blob, BlobError, BlobFile};
pub use collect::{Action, CollectError, Collected, Collection, Why};
pub use diff::{Change, Difference, Side};
pub use digest::{Digest, DigestError};
pub use directory::DirectoryError;
pub use files::FileError;
pub use format::FormatError;
pub use fsck::{Checked, Depth, Finding, Repair};
pub use generation::IndexDamage;
pub use hold::{Hold, HoldError};
pub use image::{Image, ImageError};
pub use import::{ImportError, Imported, Source, Step};
pub use ingest::{Counted, IngestError};
pub use layers::LayerError;
pub use name::{BaseName, NameError};
pub use notice::{Notice, Notices};
pub use oci::{Platform, PlatformError};
pub use packages::{Contents, ContentsError, Package, Privileged};
pub use pax::PaxError;
pub use store::{BaseEntry, BaseSummary, ResolveError, ResolvedBase, Store, StoreError, Unpinned};
pub use tree::PlaceError;
pub use unpack::{UnpackError, read_archive};
