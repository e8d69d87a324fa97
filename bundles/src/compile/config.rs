//! `config.json`: the outer stage, for any OCI runtime. Every key is set here; nothing is left to
//! a builder's defaults.

use std::collections::BTreeMap;

use casemate_guard_plan::INIT_PATH;
use serde::Serialize;

use super::layout::Layout;
use super::mounts::{self, Mount};
use super::{annotations, environment, profile, seccomp};
use crate::{
    Digest, HostSupport, LaunchPlan, LimitSupport, Limits, Network, Placement, Profile, Slice,
    Stdio, TileId, bundle,
};

/// What the init needs before it drops everything: to lock the view and to write the maps.
const INIT_CAPABILITIES: [&str; 5] = [
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
];

/// Kernel files that say more about the host than a sandbox may know; the lists of podman and
/// moby together (E-57).
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
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Standard character devices: null, zero, full, random, urandom, tty, console, ptmx, pts.
const DEVICES: [(i64, Option<i64>); 9] = [
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

/// Microseconds in which a quota is counted.
const CPU_PERIOD: u64 = 100_000;

/// Most open files that a payload can ask for, and what it starts with.
const NOFILE_HARD: u64 = 65_536;
const NOFILE_SOFT: u64 = 4096;

/// What a document is made of.
pub(super) struct Input<'a> {
    pub(super) plan: &'a LaunchPlan,
    pub(super) placement: &'a Placement,
    pub(super) host: &'a HostSupport,
    pub(super) layout: &'a Layout,
    pub(super) guard: &'a Digest,
}

/// The document (OCI runtime specification 1.0.2, config.md).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document<'a> {
    annotations: BTreeMap<&'static str, String>,
    hostname: String,
    linux: Linux,
    mounts: Vec<Mount<'a>>,
    oci_version: &'static str,
    process: Process,
    root: Root,
}

#[derive(Debug, Serialize)]
struct Root {
    path: &'static str,
    readonly: bool,
}

#[derive(Debug, Serialize)]
struct Process {
    args: Vec<String>,
    capabilities: Capabilities,
    cwd: &'static str,
    env: Vec<String>,
    rlimits: Vec<Rlimit>,
    terminal: bool,
    user: User,
}

#[derive(Debug, Serialize)]
struct Capabilities {
    ambient: &'static [&'static str],
    bounding: &'static [&'static str],
    effective: &'static [&'static str],
    inheritable: &'static [&'static str],
    permitted: &'static [&'static str],
}

#[derive(Debug, Serialize)]
struct Rlimit {
    hard: u64,
    soft: u64,
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct User {
    additional_gids: [u32; 0],
    gid: u32,
    uid: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Linux {
    cgroups_path: String,
    gid_mappings: [IdMapping; 1],
    masked_paths: &'static [&'static str],
    namespaces: Vec<Namespace>,
    readonly_paths: &'static [&'static str],
    resources: Resources,
    rootfs_propagation: &'static str,
    seccomp: seccomp::OuterProfile,
    uid_mappings: [IdMapping; 1],
}

#[derive(Debug, Serialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
struct IdMapping {
    #[serde(rename = "containerID")]
    container: u32,
    #[serde(rename = "hostID")]
    host: u32,
    size: u32,
}

#[derive(Debug, Serialize)]
struct Resources {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<Cpu>,
    devices: Vec<Device>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pids: Option<Pids>,
}

#[derive(Debug, Serialize)]
struct Cpu {
    period: u64,
    quota: u64,
}

#[derive(Debug, Serialize)]
struct Memory {
    limit: u64,
    swap: u64,
}

#[derive(Debug, Serialize)]
struct Pids {
    limit: u64,
}

#[derive(Debug, Serialize)]
struct Device {
    access: &'static str,
    allow: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    major: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minor: Option<i64>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
}

/// Builds the document.
pub(super) fn document<'a>(input: &Input<'a>) -> Document<'a> {
    let Input {
        plan, host, guard, ..
    } = *input;
    Document {
        annotations: annotations::of(plan, guard),
        hostname: hostname(profile::tile(&plan.profile)),
        linux: linux(input),
        mounts: mounts::list(input),
        oci_version: "1.0.2",
        process: process(plan, host),
        root: Root {
            path: bundle::file::ROOTFS,
            readonly: match plan.profile {
                Profile::Process { .. } => true,
                Profile::Terminal { .. } | Profile::Backend { .. } => false,
            },
        },
    }
}

fn process(plan: &LaunchPlan, host: &HostSupport) -> Process {
    let mut args = vec![INIT_PATH.to_owned()];
    args.extend_from_slice(plan.argv.as_slice());
    let hard = host.nofile.min(NOFILE_HARD);
    Process {
        args,
        capabilities: Capabilities {
            ambient: &[],
            bounding: &INIT_CAPABILITIES,
            effective: &INIT_CAPABILITIES,
            inheritable: &[],
            permitted: &INIT_CAPABILITIES,
        },
        // The init goes to the plan's directory itself, after the view is locked.
        cwd: "/",
        env: environment::lines(plan),
        rlimits: vec![
            Rlimit {
                hard: 0,
                soft: 0,
                kind: "RLIMIT_CORE",
            },
            Rlimit {
                hard,
                soft: hard.min(NOFILE_SOFT),
                kind: "RLIMIT_NOFILE",
            },
        ],
        terminal: match plan.stdio {
            Stdio::Terminal(_) => true,
            Stdio::Pipes => false,
        },
        user: User {
            additional_gids: [],
            gid: 0,
            uid: 0,
        },
    }
}

fn linux(input: &Input<'_>) -> Linux {
    let extent = IdMapping {
        container: 0,
        host: input.placement.ids.first(),
        size: Slice::LEN,
    };
    Linux {
        cgroups_path: input.placement.cgroup.to_string(),
        gid_mappings: [extent],
        masked_paths: &MASKED,
        namespaces: namespaces(profile::network(&input.plan.profile)),
        readonly_paths: &READ_ONLY,
        resources: resources(input),
        rootfs_propagation: "private",
        seccomp: seccomp::outer(),
        uid_mappings: [extent],
    }
}

/// The cgroup namespace hides the host's cgroup names in `/proc/self/cgroup` (E-56).
fn namespaces(network: Network) -> Vec<Namespace> {
    ["cgroup", "ipc", "mount", "network", "pid", "user", "uts"]
        .into_iter()
        .filter(|&kind| match network {
            Network::None => true,
            Network::Host => kind != "network",
        })
        .map(|kind| Namespace { kind })
        .collect()
}

fn resources(input: &Input<'_>) -> Resources {
    let mut devices = vec![Device {
        access: "rwm",
        allow: false,
        major: None,
        minor: None,
        kind: None,
    }];
    devices.extend(DEVICES.map(|(major, minor)| character(major, minor)));
    devices.extend(
        input
            .layout
            .devices
            .iter()
            .map(|device| character(device.major.into(), Some(device.minor.into()))),
    );
    let limits = match input.host.limits {
        LimitSupport::V1 | LimitSupport::V2 => profile::limits(&input.plan.profile),
        // Listed as a gap.
        LimitSupport::Missing => None,
    };
    Resources {
        cpu: limits.map(cpu),
        devices,
        memory: limits.map(|limits| Memory {
            limit: limits.memory.get(),
            swap: limits.memory.get(),
        }),
        pids: limits.map(|limits| Pids {
            limit: limits.pids.get(),
        }),
    }
}

fn cpu(limits: &Limits) -> Cpu {
    Cpu {
        period: CPU_PERIOD,
        quota: limits.cpu.get() * (CPU_PERIOD / 1000),
    }
}

const fn character(major: i64, minor: Option<i64>) -> Device {
    Device {
        access: "rwm",
        allow: true,
        major: Some(major),
        minor,
        kind: Some("c"),
    }
}

/// The tile's last component with what a host name cannot have as `-`; else the program's name.
fn hostname(tile: Option<&TileId>) -> String {
    let name = tile
        .and_then(|tile| tile.as_str().rsplit('/').next())
        .unwrap_or_default();
    let clean: String = name
        .chars()
        .take(63)
        .map(|c| match c.to_ascii_lowercase() {
            c if c.is_ascii_alphanumeric() => c,
            _ => '-',
        })
        .collect();
    let trimmed = clean.trim_matches('-');
    if trimmed.is_empty() {
        "casemate".to_owned()
    } else {
        trimmed.to_owned()
    }
}
