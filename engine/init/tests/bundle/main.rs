//! The guard init in real bundles under Debian's runc. Needs root.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "clippy exempts test functions, not what they call"
)]

mod enter;
mod failures;
mod guards;
mod lifecycle;
mod support;
mod view;
