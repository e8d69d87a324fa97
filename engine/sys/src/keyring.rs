//! Session keyrings (`session-keyring(7)`).

use crate::error::{Error, Result};

/// Leaves the inherited session keyring for a new, empty, anonymous one
/// (`KEYCTL_JOIN_SESSION_KEYRING`).
pub fn join_new_session() -> Result<()> {
    let anonymous = std::ptr::null::<libc::c_char>();
    // SAFETY: a null name asks for an anonymous keyring; nothing else is read.
    let serial = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            libc::KEYCTL_JOIN_SESSION_KEYRING,
            anonymous,
        )
    };
    if serial < 0 {
        return Err(Error::last("keyctl", "KEYCTL_JOIN_SESSION_KEYRING, NULL"));
    }
    Ok(())
}
