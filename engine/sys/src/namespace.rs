//! Namespaces (`namespaces(7)`).

use std::os::fd::AsFd;

use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags};

use crate::error::{Error, Result};

/// Kinds of namespaces to leave or to join.
pub type Kinds = ThreadNameSpaceType;

/// One kind, to check what a namespace descriptor is.
pub type Kind = LinkNameSpaceType;

/// `unshare(2)`: the calling thread moves into new namespaces of these kinds.
pub fn unshare(kinds: Kinds) -> Result<()> {
    // SAFETY: the kinds are CLONE_NEW* bits only, so the descriptor table stays shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::from_bits_retain(kinds.bits())) }
        .map_err(Error::of("unshare", || format!("{kinds:?}")))
}

/// `setns(2)` on a descriptor of one namespace.
pub fn join(namespace: impl AsFd, kind: Kind) -> Result<()> {
    let namespace = namespace.as_fd();
    rustix::thread::move_into_link_name_space(namespace, Some(kind))
        .map_err(Error::of("setns", || format!("{namespace:?}, {kind:?}")))
}

/// `setns(2)` on a pidfd: into all those namespaces of the process, or into none. A pid namespace
/// is that of later children only.
pub fn join_process(pidfd: impl AsFd, kinds: Kinds) -> Result<()> {
    let pidfd = pidfd.as_fd();
    rustix::thread::move_into_thread_name_spaces(pidfd, kinds)
        .map_err(Error::of("setns", || format!("{pidfd:?}, {kinds:?}")))
}
