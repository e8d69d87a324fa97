//! What the host has to offer before a profile is compiled for it (DEC-07).

use casemate_guard_plan::GuardTier;

use super::{landlock, profile};
use crate::{CompileError, Component, Enforcement, Gap, HostSupport, LimitSupport, Profile};

/// Refuses a host that lacks what is never optional and lists what a terminal goes without.
pub(super) fn enforcement(
    profile: &Profile,
    host: &HostSupport,
) -> Result<Enforcement, CompileError> {
    let always = [
        (host.user_namespaces, Component::UserNamespaces),
        (host.id_mapped_mounts, Component::IdMappedMounts),
        (host.overlay, Component::Overlay),
        (host.seccomp, Component::Seccomp),
        (host.openat2, Component::Openat2),
        (host.cgroup_kill, Component::CgroupKill),
    ];
    for (present, component) in always {
        if !present {
            return Err(CompileError::Unavailable { component });
        }
    }
    let tier = profile::tier(profile);
    let network = profile::network(profile);
    let mut gaps = Vec::new();
    if landlock::needs(tier, network) > host.landlock_abi {
        gaps.push((Gap::Landlock, Component::Landlock));
    }
    if profile::limits(profile).is_some() && host.limits == LimitSupport::Missing {
        gaps.push((Gap::Limits, Component::Limits));
    }
    match tier {
        GuardTier::AdminNesting | GuardTier::Admin | GuardTier::Restricted => Ok(Enforcement {
            gaps: gaps.into_iter().map(|(gap, _component)| gap).collect(),
        }),
        GuardTier::Backend | GuardTier::Process => match gaps.first() {
            Some((_gap, component)) => Err(CompileError::Unavailable {
                component: *component,
            }),
            None => Ok(Enforcement { gaps: Vec::new() }),
        },
    }
}
