//! The rest of `config.json`: root, namespaces, ids, limits, devices, outer seccomp, annotations.

use std::collections::BTreeMap;

use super::document::{Config, Cpu, DeviceRule, IdMapping, Linux, Memory, Pids, Seccomp};
use super::facts::{Class, Facts};
use super::rule::{Rule, Violation, broken, require};
use crate::text::Text;
use crate::{Digest, LimitSupport};

/// Kernel files that must not be seen, the union of what podman and moby mask (E-57).
const MASKED: [&str; 14] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/dev/block",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/selinux",
];

/// Kernel files that must not be written.
const SEALED: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Names of the outer profile: what no tier allows and what libseccomp 2.5.4 knows.
const OUTER: [&str; 25] = [
    "acct",
    "bpf",
    "clock_settime",
    "create_module",
    "delete_module",
    "finit_module",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kexec_file_load",
    "kexec_load",
    "lookup_dcookie",
    "nfsservctl",
    "open_by_handle_at",
    "perf_event_open",
    "quotactl",
    "reboot",
    "settimeofday",
    "swapoff",
    "swapon",
    "syslog",
    "userfaultfd",
];

pub(super) fn check(
    config: &Config<'_>,
    facts: &Facts<'_>,
    guard: &Digest,
) -> Result<(), Violation> {
    require(config.oci_version == "1.0.2", Rule::OciVersion, || {
        format!("ociVersion is {:?}", config.oci_version)
    })?;
    require(config.hooks.is_none(), Rule::Hooks, || {
        "there are hooks".to_owned()
    })?;
    root(config, facts)?;
    annotations(&config.annotations, facts, guard)?;
    hostname(&config.hostname, facts)?;
    let linux = &config.linux;
    id_map(&linux.uid_mappings, facts)?;
    id_map(&linux.gid_mappings, facts)?;
    namespaces(linux, facts)?;
    require(
        linux.cgroups_path == facts.placement.cgroup.as_str(),
        Rule::CgroupsPath,
        || format!("cgroupsPath is {:?}", linux.cgroups_path),
    )?;
    require(
        linux.rootfs_propagation == "private",
        Rule::Propagation,
        || format!("the root is {}", linux.rootfs_propagation),
    )?;
    require(
        linux.masked_paths == MASKED && linux.readonly_paths == SEALED,
        Rule::MaskedPaths,
        || "masked or read-only kernel files differ from the table".to_owned(),
    )?;
    resources(linux, facts)?;
    devices(&linux.resources.devices, facts)?;
    outer(&linux.seccomp)
}

fn root(config: &Config<'_>, facts: &Facts<'_>) -> Result<(), Violation> {
    let sealed = matches!(facts.class, Class::Process);
    require(
        config.root.path == "rootfs" && config.root.readonly == sealed,
        Rule::Root,
        || format!("root is {:?}", config.root),
    )
}

fn annotations(
    found: &BTreeMap<Text<'_>, Text<'_>>,
    facts: &Facts<'_>,
    guard: &Digest,
) -> Result<(), Violation> {
    let profile = match facts.class {
        Class::AdminNesting | Class::Admin => "terminal-admin",
        Class::Restricted => "terminal-restricted",
        Class::Backend => "backend",
        Class::Process => "process",
    };
    let network = if facts.host_network { "host" } else { "none" };
    let mut expected = vec![
        ("io.casemate.base", facts.plan.base.as_str()),
        ("io.casemate.guard", guard.as_str()),
        ("io.casemate.id", facts.plan.id.as_str()),
        ("io.casemate.network", network),
        ("io.casemate.profile", profile),
    ];
    if let Some(view) = facts.workspace {
        expected.push(("io.casemate.tile", view.own.id.as_str()));
    }
    let found = found.iter().map(|(key, value)| (&**key, &**value));
    require(found.eq(expected), Rule::Annotations, || {
        "they do not describe the plan and the guard plan".to_owned()
    })
}

fn hostname(found: &str, facts: &Facts<'_>) -> Result<(), Violation> {
    let plain = !found.is_empty()
        && found.len() <= 63
        && found
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let fitting = match facts.workspace {
        None => found == "casemate",
        Some(view) => {
            let name = view.own.id.as_str().rsplit('/').next().unwrap_or_default();
            let simple = name.len() <= 63
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
            !simple || found == name
        }
    };
    require(plain && fitting, Rule::Hostname, || {
        format!("the host name is {found:?}")
    })
}

fn id_map(found: &[IdMapping], facts: &Facts<'_>) -> Result<(), Violation> {
    let expected = IdMapping {
        container: 0,
        host: facts.placement.ids.first(),
        size: 65_536,
    };
    // The type of a slice excludes host root already; a bundle is not trusted to have used it.
    require(
        found == [expected] && expected.host != 0,
        Rule::IdMap,
        || format!("the map is {found:?}"),
    )
}

fn namespaces(linux: &Linux<'_>, facts: &Facts<'_>) -> Result<(), Violation> {
    let mut expected = vec!["cgroup", "ipc", "mount"];
    if !facts.host_network {
        expected.push("network");
    }
    expected.extend(["pid", "user", "uts"]);
    let found = linux.namespaces.iter().map(|namespace| &*namespace.kind);
    require(found.eq(expected), Rule::Namespaces, || {
        format!("the list is {:?}", linux.namespaces)
    })
}

fn resources(linux: &Linux<'_>, facts: &Facts<'_>) -> Result<(), Violation> {
    let limits = match facts.host.limits {
        LimitSupport::V1 | LimitSupport::V2 => facts.limits,
        LimitSupport::Missing => None,
    };
    let memory = limits.map(|limits| Memory {
        limit: limits.memory.get(),
        swap: limits.memory.get(),
    });
    let pids = limits.map(|limits| Pids {
        limit: limits.pids.get(),
    });
    let cpu = limits.map(|limits| Cpu {
        period: 100_000,
        quota: limits.cpu.get() * 100,
    });
    let found = &linux.resources;
    require(
        found.memory == memory && found.pids == pids && found.cpu == cpu,
        Rule::Resources,
        || "limits are not the plan's".to_owned(),
    )
}

/// Everything is denied, then the standard nodes and an administrator's own are allowed.
fn devices(found: &[DeviceRule<'_>], facts: &Facts<'_>) -> Result<(), Violation> {
    let mut expected = vec![
        (1, Some(3)),
        (1, Some(5)),
        (1, Some(7)),
        (1, Some(8)),
        (1, Some(9)),
        (5, Some(0)),
        (5, Some(1)),
        (5, Some(2)),
        (136, None),
    ];
    if facts.class.is_admin() {
        if facts.host.fuse {
            expected.push((10, Some(229)));
        }
        if facts.host.tun {
            expected.push((10, Some(200)));
        }
    }
    let Some((first, rest)) = found.split_first() else {
        return Err(broken(Rule::Devices, "there is no device rule"));
    };
    let denied = !first.allow
        && first.access == "rwm"
        && first.kind.is_none()
        && first.major.is_none()
        && first.minor.is_none();
    require(denied, Rule::Devices, || {
        "the first rule does not deny every device".to_owned()
    })?;
    let same = rest.len() == expected.len()
        && rest.iter().zip(expected).all(|(rule, (major, minor))| {
            rule.allow
                && rule.access == "rwm"
                && rule.kind.as_deref() == Some("c")
                && rule.major == Some(major)
                && rule.minor == minor
        });
    require(same, Rule::Devices, || {
        "the allowed devices are not the tier's".to_owned()
    })
}

fn outer(seccomp: &Seccomp<'_>) -> Result<(), Violation> {
    let shape = seccomp.default_action == "SCMP_ACT_ALLOW"
        && seccomp.architectures == ["SCMP_ARCH_X86_64", "SCMP_ARCH_X32"];
    let [rule] = seccomp.syscalls.as_slice() else {
        return Err(broken(Rule::OuterSeccomp, "it is not one rule"));
    };
    let mut names: Vec<&str> = rule.names.iter().map(|name| &**name).collect();
    names.sort_unstable();
    require(
        shape && rule.action == "SCMP_ACT_ERRNO" && rule.errno_ret == 38 && names == OUTER,
        Rule::OuterSeccomp,
        || "it is not the one outer profile".to_owned(),
    )
}
