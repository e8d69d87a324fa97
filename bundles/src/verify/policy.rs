//! What the host must have, and what a terminal may lack (DEC-07).

use super::facts::{Class, Facts};
use super::rule::{Rule, Violation, require};
use crate::{Enforcement, Gap, LimitSupport};

/// Least Landlock ABI that has the rights a class relies on.
pub(super) const fn landlock_abi(class: Class, host_network: bool) -> u32 {
    match class {
        // The scope of abstract sockets came with 6, truncation with 3.
        _ if host_network => 6,
        Class::AdminNesting => 0,
        Class::Admin | Class::Restricted | Class::Backend | Class::Process => 3,
    }
}

/// Refuses a host without what is never optional.
pub(super) fn host(facts: &Facts<'_>) -> Result<(), Violation> {
    let host = facts.host;
    for (present, name) in [
        (host.user_namespaces, "user namespaces"),
        (host.id_mapped_mounts, "ID-mapped mounts"),
        (host.overlay, "overlays"),
        (host.seccomp, "seccomp"),
        (host.openat2, "openat2"),
        (host.cgroup_kill, "cgroup.kill"),
    ] {
        require(present, Rule::HostSupport, || {
            format!("the host has no {name}")
        })?;
    }
    Ok(())
}

/// The report names exactly what is missing, and only a terminal has gaps.
pub(super) fn enforcement(claimed: &Enforcement, facts: &Facts<'_>) -> Result<(), Violation> {
    let mut gaps = Vec::new();
    if facts.host.landlock_abi < landlock_abi(facts.class, facts.host_network) {
        gaps.push(Gap::Landlock);
    }
    if facts.limits.is_some() && matches!(facts.host.limits, LimitSupport::Missing) {
        gaps.push(Gap::Limits);
    }
    require(claimed.gaps == gaps, Rule::Enforcement, || {
        format!(
            "the host leaves {gaps:?} open, the bundle says {:?}",
            claimed.gaps
        )
    })?;
    require(
        gaps.is_empty() || facts.class.is_terminal(),
        Rule::Enforcement,
        || format!("{:?} is refused where {gaps:?} is open", facts.class),
    )
}
