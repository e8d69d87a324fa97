//! The guard plan: what the payload is left with.

use casemate_guard_plan::GuardTier;

use super::document::Guard;
use super::facts::{Class, Facts};
use super::rule::{Rule, Violation, require};
use super::{landlock, program};
use crate::text::Text;

/// Capabilities by number in `capability.h`, 0…40.
const BY_NUMBER: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// RESTR-02, as bits: `chown`, `dac_override`, `fowner`, `fsetid`, `kill`, `setgid`, `setuid`,
/// `net_bind_service`, `sys_chroot`, `mknod`, `setfcap`.
const RESTRICTED: u64 =
    1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 18 | 1 << 27 | 1 << 31;

pub(super) fn check(plan: &Guard<'_>, facts: &Facts<'_>) -> Result<(), Violation> {
    let tier = match facts.class {
        Class::AdminNesting => GuardTier::AdminNesting,
        Class::Admin => GuardTier::Admin,
        Class::Restricted => GuardTier::Restricted,
        Class::Backend => GuardTier::Backend,
        Class::Process => GuardTier::Process,
    };
    require(
        plan.tier == tier && plan.version == 1,
        Rule::GuardTier,
        || format!("tier {:?}, version {}", plan.tier, plan.version),
    )?;
    require(plan.cwd == facts.plan.cwd.as_str(), Rule::Cwd, || {
        "the payload's directory is not the plan's".to_owned()
    })?;
    require(plan.uid == 0 && plan.gid == 0, Rule::GuardIds, || {
        format!("the payload is {}:{}", plan.uid, plan.gid)
    })?;
    let ceilings = !facts.class.is_admin();
    require(
        plan.namespace_ceilings == ceilings,
        Rule::GuardCeilings,
        || format!("namespace_ceilings is {}", plan.namespace_ceilings),
    )?;
    let no_new_privs = !matches!(facts.class, Class::AdminNesting);
    require(
        plan.no_new_privs == no_new_privs,
        Rule::GuardNoNewPrivs,
        || format!("no_new_privs is {}", plan.no_new_privs),
    )?;
    capabilities(&plan.capabilities, facts.class)?;
    landlock::check(plan.landlock.as_ref(), facts)?;
    program::check(&plan.seccomp, facts)
}

fn capabilities(found: &[Text<'_>], class: Class) -> Result<(), Violation> {
    let bits = match class {
        Class::AdminNesting | Class::Admin => (1 << BY_NUMBER.len()) - 1,
        Class::Restricted => RESTRICTED,
        Class::Backend | Class::Process => 0,
    };
    let mut expected: Vec<&str> = BY_NUMBER
        .into_iter()
        .enumerate()
        .filter(|(number, _name)| bits >> number & 1 == 1)
        .map(|(_number, name)| name)
        .collect();
    expected.sort_unstable();
    let names = found
        .iter()
        .map(|name| name.strip_prefix("CAP_").unwrap_or("?"));
    require(names.eq(expected), Rule::GuardCapabilities, || {
        format!("the payload keeps {found:?}")
    })
}
