//! Landlock rulesets (`landlock(7)`); the bits are the caller's.

use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::error::{Error, Result};

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

/// What a ruleset denies unless a rule allows it: `struct landlock_ruleset_attr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Handled {
    /// `LANDLOCK_ACCESS_FS_*`.
    pub fs: u64,
    /// `LANDLOCK_ACCESS_NET_*`.
    pub net: u64,
    /// `LANDLOCK_SCOPE_*`.
    pub scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

/// A ruleset that is not in force yet.
#[derive(Debug)]
pub struct Ruleset(OwnedFd);

impl Ruleset {
    /// `landlock_create_ruleset(2)`. `EINVAL` when the kernel does not know one of the bits,
    /// `ENOMSG` when nothing is handled.
    pub fn create(handled: Handled) -> Result<Self> {
        // SAFETY: the attribute is a live structure of the size given; the kernel copies it.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const handled,
                size_of::<Handled>(),
                0,
            )
        };
        match i32::try_from(fd) {
            // SAFETY: the kernel has just returned this descriptor to us, close-on-exec.
            Ok(fd) if fd >= 0 => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
            _ => Err(Error::last(
                "landlock_create_ruleset",
                format!("{handled:x?}"),
            )),
        }
    }

    /// Allows `rights` on what `parent` refers to and below it. `EINVAL` when a right is not
    /// handled or does not apply to the kind of file.
    pub fn allow_beneath(&self, parent: impl AsFd, rights: u64) -> Result<()> {
        let attribute = PathBeneath {
            allowed: rights,
            parent: parent.as_fd().as_raw_fd(),
        };
        // SAFETY: both descriptors are borrowed for the call and the attribute is alive; the
        // kernel copies it.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.0.as_raw_fd(),
                RULE_PATH_BENEATH,
                &raw const attribute,
                0,
            )
        };
        match answer {
            0 => Ok(()),
            _ => Err(Error::last(
                "landlock_add_rule",
                format!("PATH_BENEATH, {rights:#x}, {}", parent.as_fd().as_raw_fd()),
            )),
        }
    }

    /// `landlock_restrict_self(2)`: in force for this thread and what it starts. Needs
    /// `no_new_privs` or `CAP_SYS_ADMIN` in the own user namespace.
    pub fn restrict_self(self) -> Result<()> {
        let fd = self.0.as_raw_fd();
        // SAFETY: the descriptor is owned by `self` until the end of the call.
        match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, fd, 0) } {
            0 => Ok(()),
            _ => Err(Error::last("landlock_restrict_self", format!("{fd}, 0"))),
        }
    }
}

/// The ABI version of the running kernel: `EOPNOTSUPP` when Landlock is switched off, `ENOSYS` when
/// it is not built in.
pub fn abi() -> Result<u32> {
    let none = std::ptr::null::<Handled>();
    // SAFETY: with this flag the kernel reads no attribute.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            none,
            0_usize,
            CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(answer).map_err(|_negative| {
        Error::last(
            "landlock_create_ruleset",
            "NULL, 0, LANDLOCK_CREATE_RULESET_VERSION",
        )
    })
}
