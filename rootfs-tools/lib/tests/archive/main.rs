//! Archives that are odd or hostile: each lands right or is refused with its entry named, nothing
//! outside the tree changes, and after a refusal the store is as it was.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod compressed;
mod hostile;
mod image;
mod layered;
mod mutated;
mod odd;
mod world;
