//! The guard plan: what the payload is left with.

use casemate_guard_plan::{GuardTier, Landlock, Seccomp, VERSION};
use serde::Serialize;

use super::{landlock, profile, seccomp};
use crate::{HostSupport, LaunchPlan};

/// Every capability of `capability.h`, sorted.
const ALL: [&str; 41] = [
    "CAP_AUDIT_CONTROL",
    "CAP_AUDIT_READ",
    "CAP_AUDIT_WRITE",
    "CAP_BLOCK_SUSPEND",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_KILL",
    "CAP_LEASE",
    "CAP_LINUX_IMMUTABLE",
    "CAP_MAC_ADMIN",
    "CAP_MAC_OVERRIDE",
    "CAP_MKNOD",
    "CAP_NET_ADMIN",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_RAW",
    "CAP_PERFMON",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYSLOG",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_CHROOT",
    "CAP_SYS_MODULE",
    "CAP_SYS_NICE",
    "CAP_SYS_PACCT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_WAKE_ALARM",
];

/// RESTR-02: what package managers need, sorted.
const RESTRICTED: [&str; 11] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// A [`GuardPlan`](casemate_guard_plan::GuardPlan) as it is written; fields in the order of their
/// keys.
#[derive(Debug, Serialize)]
pub(super) struct Document<'a> {
    capabilities: &'static [&'static str],
    cwd: &'a str,
    gid: u32,
    landlock: Option<Landlock>,
    namespace_ceilings: bool,
    no_new_privs: bool,
    seccomp: &'static Seccomp,
    tier: GuardTier,
    uid: u32,
    version: u32,
}

/// Builds the document.
pub(super) fn document<'a>(plan: &'a LaunchPlan, host: &HostSupport) -> Document<'a> {
    let tier = profile::tier(&plan.profile);
    Document {
        capabilities: capabilities(tier),
        cwd: plan.cwd.as_str(),
        gid: 0,
        landlock: landlock::ruleset(plan, host.landlock_abi),
        namespace_ceilings: match tier {
            GuardTier::AdminNesting | GuardTier::Admin => false,
            GuardTier::Restricted | GuardTier::Backend | GuardTier::Process => true,
        },
        no_new_privs: match tier {
            // sudo and su work there.
            GuardTier::AdminNesting => false,
            GuardTier::Admin | GuardTier::Restricted | GuardTier::Backend | GuardTier::Process => {
                true
            }
        },
        seccomp: seccomp::program(tier, profile::network(&plan.profile)),
        tier,
        uid: 0,
        version: VERSION,
    }
}

/// An administrator is full in the inner user namespace, which owns nothing of the outer one.
const fn capabilities(tier: GuardTier) -> &'static [&'static str] {
    match tier {
        GuardTier::AdminNesting | GuardTier::Admin => &ALL,
        GuardTier::Restricted => &RESTRICTED,
        GuardTier::Backend | GuardTier::Process => &[],
    }
}
