//! System calls with errors that carry their arguments.
//!
//! The only crate of the engine with `unsafe`: what `rustix` offers safely is used from there, the
//! rest is called through `libc`. A module is a noun of the kernel's interface.
#![expect(
    unsafe_code,
    reason = "system calls that rustix does not wrap, and fork, which it cannot"
)]

pub mod error;

pub use error::{Error, Result};
