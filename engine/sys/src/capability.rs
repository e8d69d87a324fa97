//! Capability sets (`capabilities(7)`).

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::error::{Error, Result};

/// The kernel's names in the order of their numbers (`linux/capability.h`).
const NAMES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// A set of capabilities: bit n is capability n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// No capability.
    pub const NONE: Self = Self(0);

    /// This set with the capability of that name, as `CAP_CHOWN`; `None` when nothing is called so.
    pub fn with(self, name: &str) -> Option<Self> {
        let number = NAMES.iter().position(|known| *known == name)?;
        Some(Self(self.0 | 1 << number))
    }

    /// The bits.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// Makes `keep` the bounding, permitted and effective set of the calling thread and empties
/// inheritable and ambient. Needs `CAP_SETPCAP`. Capabilities that only the kernel knows are
/// dropped as well.
pub fn reduce_to(keep: Capabilities) -> Result<()> {
    rustix::thread::clear_ambient_capability_set().map_err(Error::of("prctl", || {
        "PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL".to_owned()
    }))?;
    drop_bounding(keep)?;
    let set = CapabilitySet::from_bits_retain(keep.0);
    let sets = CapabilitySets {
        effective: set,
        permitted: set,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets)
        .map_err(Error::of("capset", || format!("E=P={:#x}, I=0", keep.0)))
}

fn drop_bounding(keep: Capabilities) -> Result<()> {
    for number in 0..u64::BITS {
        let bit = 1 << number;
        if keep.0 & bit != 0 {
            continue;
        }
        let capability = CapabilitySet::from_bits_retain(bit);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The first number past the kernel's last one.
            Err(Errno::INVAL) => break,
            Err(errno) => {
                return Err(Error::new(
                    "prctl",
                    format!("PR_CAPBSET_DROP, {number}"),
                    errno,
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_kernel_s_numbers() {
        let bit = |name| Capabilities::NONE.with(name).map(Capabilities::bits);
        assert_eq!(bit("CAP_CHOWN"), Some(1));
        assert_eq!(bit("CAP_SYS_ADMIN"), Some(1 << 21));
        assert_eq!(bit("CAP_SETFCAP"), Some(1 << 31));
        assert_eq!(bit("CAP_CHECKPOINT_RESTORE"), Some(1 << 40));
    }

    #[test]
    fn a_name_without_prefix_or_in_lower_case_is_unknown() {
        assert_eq!(Capabilities::NONE.with("CHOWN"), None);
        assert_eq!(Capabilities::NONE.with("cap_chown"), None);
        assert_eq!(Capabilities::NONE.with(""), None);
    }
}
