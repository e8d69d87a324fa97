//! System calls with errors that carry their arguments.
//!
//! The only crate of the engine with `unsafe`: what `rustix` offers safely is used from there, the
//! rest is called through `libc`. A module is a noun of the kernel's interface.
#![expect(
    unsafe_code,
    reason = "system calls that rustix does not wrap, and fork, which it cannot"
)]
#![expect(
    clippy::unnecessary_debug_formatting,
    reason = "messages show paths as strace(1) does: quoted, with escapes"
)]

pub mod capability;
pub mod cgroup;
pub mod descriptor;
pub mod dir;
pub mod error;
pub mod idmap;
pub mod keyring;
pub mod landlock;
pub mod memfd;
pub mod mount;
pub mod namespace;
pub mod probe;
pub mod process;
pub mod seccomp;
pub mod signal;
pub mod socket;
pub mod terminal;
pub mod view;

pub use error::{Error, Result};
pub use rustix::io::Errno;
