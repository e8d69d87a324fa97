//! Where images come from and go to: layouts, archives, registries.
//!
//! ```text
//! oci:DIR[:TAG]               layout      LayoutSource::directory    Outgoing::write_layout
//! oci-archive:FILE[:TAG]      files       LayoutSource::archive      Outgoing::write_layout_archive
//! docker-archive:FILE[:NAME]  docker      import_docker_archive      Outgoing::write_docker_archive
//! docker://HOST/REPO[:TAG]    (the crate of registries)              Outgoing::open
//! ```
//!
//! What comes in is fetched by digest and size, blob by blob, into the store, then unpacked from
//! there. What goes out appears at its destination by one rename.

mod docker;
mod document;
mod export;
mod files;
mod layout;
mod outgoing;
mod reference;
mod source;
mod target;

pub use document::{DocumentError, Received};
pub use files::FilesError;
pub use layout::LayoutSource;
pub use outgoing::{Compress, ExportError, Outgoing};
pub use reference::{Place, ReferenceError, RegistryReference, Tag, Version};
pub use source::{FetchError, ImageSource};
