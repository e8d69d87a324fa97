//! What the host offers, found by trying, and what a bundle therefore enforces.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a probe of this host tried and found. There is no default: only a probe makes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSupport {
    /// Machine architecture.
    pub arch: Arch,
    /// Landlock ABI, 0 without Landlock.
    pub landlock_abi: u32,
    /// Which limits can be set.
    pub limits: LimitSupport,
    /// Whether user namespaces can be made by root and mapped to a slice.
    pub user_namespaces: bool,
    /// Whether ID-mapped mounts work (`mount_setattr(2)`).
    pub id_mapped_mounts: bool,
    /// Whether an overlay with an ID-mapped lower can be mounted and written.
    pub overlay: bool,
    /// Whether a seccomp filter can be loaded.
    pub seccomp: bool,
    /// Whether `openat2(2)` works.
    pub openat2: bool,
    /// Whether a cgroup can be killed as a whole (`cgroup.kill`).
    pub cgroup_kill: bool,
    /// Whether `/dev/fuse` exists (10:229).
    pub fuse: bool,
    /// Whether `/dev/net/tun` exists (10:200).
    pub tun: bool,
    /// Hard limit of open files that the engine itself has (`RLIMIT_NOFILE`).
    pub nofile: u64,
}

/// Architectures that have a syscall table here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Arch {
    X86_64,
}

/// Where each controller's files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitSupport {
    /// Memory, pids and cpu on cgroup v2.
    V2,
    /// Memory, pids and cpu on cgroup v1.
    V1,
    /// At least one of them is missing or not delegated.
    Missing,
}

/// A piece that isolation needs; the name in `Unavailable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Component {
    #[serde(rename = "userns")]
    UserNamespaces,
    #[serde(rename = "idmap")]
    IdMappedMounts,
    #[serde(rename = "overlay")]
    Overlay,
    #[serde(rename = "seccomp")]
    Seccomp,
    #[serde(rename = "landlock")]
    Landlock,
    #[serde(rename = "limits")]
    Limits,
    #[serde(rename = "cgroup.kill")]
    CgroupKill,
    #[serde(rename = "openat2")]
    Openat2,
    #[serde(rename = "ids")]
    Ids,
    #[serde(rename = "base")]
    Base,
    #[serde(rename = "net.internet")]
    NetInternet,
    #[serde(rename = "spawner")]
    Spawner,
    #[serde(rename = "init")]
    Init,
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UserNamespaces => "userns",
            Self::IdMappedMounts => "idmap",
            Self::Overlay => "overlay",
            Self::Seccomp => "seccomp",
            Self::Landlock => "landlock",
            Self::Limits => "limits",
            Self::CgroupKill => "cgroup.kill",
            Self::Openat2 => "openat2",
            Self::Ids => "ids",
            Self::Base => "base",
            Self::NetInternet => "net.internet",
            Self::Spawner => "spawner",
            Self::Init => "init",
        })
    }
}

/// Which protections a bundle has; every missing one is listed. Terminals only: a command run is
/// refused where one is missing (DEC-07).
#[must_use = "a gap has to reach the person who opens the session"]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enforcement {
    /// What is missing, sorted.
    pub gaps: Vec<Gap>,
}

/// A protection that this host cannot give to a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// No Landlock: no read guard, no abstract-socket scope.
    Landlock,
    /// No controller: memory, tasks and processor are not limited.
    Limits,
}
