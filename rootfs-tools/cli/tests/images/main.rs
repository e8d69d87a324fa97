//! Images in and out: each transport there and back, against the tools that others use, and
//! against what nobody should send.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod forms;
mod hostile;
mod layout;
mod peers;
mod proxy;
mod registry;
mod server;
mod world;
