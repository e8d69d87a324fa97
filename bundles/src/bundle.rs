//! A compiled bundle: three documents, their digest and what they enforce.

use casemate_guard_plan::GuardPlan;
use serde::{Deserialize, Serialize};

use crate::{Digest, Enforcement, HostPath};

/// A compiled bundle. The three documents are canonical JSON: same plan, same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// `config.json`, as any OCI runtime reads it.
    pub config: Vec<u8>,
    /// `guard.json`, as the guard init reads it (see [`GuardPlan`]).
    pub guard: Vec<u8>,
    /// `stage.json`: what is made and mounted before a runtime starts (see [`StagePlan`]).
    pub stage: Vec<u8>,
    /// Digest over the three, in this order, each with its length.
    pub digest: Digest,
    /// What the host could not give.
    pub enforcement: Enforcement,
}

/// File names inside a bundle directory.
pub mod file {
    /// The OCI document.
    pub const CONFIG: &str = "config.json";
    /// The guard plan.
    pub const GUARD: &str = "guard.json";
    /// The stage plan.
    pub const STAGE: &str = "stage.json";
    /// The report FIFO.
    pub const REPORT: &str = "report";
    /// Where the root file system is mounted.
    pub const ROOTFS: &str = "rootfs";
}

/// Directory of the bundle below the stage.
pub const BUNDLE_DIR: &str = "bundle";

/// What is made below the stage directory before an OCI runtime starts, in order. Every target
/// lies below the stage; sources may lie elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagePlan {
    /// The steps, each relying on the ones before it.
    pub steps: Vec<StageStep>,
}

/// One step of a stage plan. Targets are made and opened by handle, never through a symlink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case", deny_unknown_fields)]
pub enum StageStep {
    /// Makes a directory; its parent exists. One that exists already is refused.
    Directory {
        /// Where.
        path: HostPath,
        /// Owner.
        owner: HostOwner,
        /// Permission bits.
        mode: u32,
    },
    /// Makes an empty regular file, as a mount target.
    File {
        /// Where.
        path: HostPath,
        /// Owner.
        owner: HostOwner,
        /// Permission bits.
        mode: u32,
    },
    /// Makes a FIFO.
    Fifo {
        /// Where.
        path: HostPath,
        /// Owner.
        owner: HostOwner,
        /// Permission bits.
        mode: u32,
    },
    /// Makes a character device node.
    Device {
        /// Where; on a mount without `nodev`.
        path: HostPath,
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
        /// Permission bits; owned by host root.
        mode: u32,
    },
    /// Mounts a tmpfs.
    Tmpfs {
        /// Where; an existing directory.
        path: HostPath,
        /// Its size in bytes.
        bytes: u64,
        /// Whether device nodes on it work.
        devices: bool,
    },
    /// Clones a mount tree, private, `nosuid,nodev`, and puts it below the stage.
    Bind {
        /// What.
        source: HostPath,
        /// Where; an existing directory or file of the same kind.
        target: HostPath,
        /// What the source must be.
        kind: crate::ProjectionKind,
        /// How ids on disk are seen; empty for as they are.
        id_map: Vec<IdMapLine>,
        /// Whether it is read-only, with all that is mounted below it.
        read_only: bool,
    },
    /// Mounts the root overlay: lower is ID-mapped, then one write is tried.
    Overlay {
        /// The base's tree.
        lower: HostPath,
        /// How the lower's ids are seen.
        lower_map: Vec<IdMapLine>,
        /// Takes the changes; an existing directory.
        upper: HostPath,
        /// Overlayfs' own; an existing empty directory beside `upper`.
        work: HostPath,
        /// Where; an existing directory.
        target: HostPath,
        /// Options besides the three directories, as `key=value` or `key`, in order.
        options: Vec<String>,
    },
    /// Makes a directory or an empty file inside the mounted root, as a mount target, with all
    /// missing parents. A symlink on the way, or a thing of the other kind, is refused.
    Target {
        /// The mounted root.
        root: HostPath,
        /// Where inside it, as the payload will see it.
        path: crate::SandboxPath,
        /// What is made.
        kind: crate::ProjectionKind,
        /// Owner of what had to be made.
        owner: HostOwner,
    },
}

/// An owner on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostOwner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// One line of an ID-mapped mount, for users and groups alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdMapLine {
    /// First id on disk.
    pub disk: u32,
    /// First id that the kernel sees instead.
    pub kernel: u32,
    /// How many.
    pub count: u32,
}

/// Parses a guard plan document.
pub fn parse_guard(bytes: &[u8]) -> Result<GuardPlan, serde_json::Error> {
    serde_json::from_slice(bytes)
}
