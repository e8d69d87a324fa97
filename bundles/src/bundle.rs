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
/// lies below the stage; sources may lie elsewhere. Whoever obeys it holds paths as what they are;
/// who writes or judges it, as borrowed text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagePlan<Host = HostPath, Inside = crate::SandboxPath> {
    /// The steps, each relying on the ones before it.
    pub steps: Vec<StageStep<Host, Inside>>,
}

/// One step of a stage plan. Targets are made and opened by handle, never through a symlink. The
/// fields stand in the order of their keys: written as they are, they are canonical.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StageStep<Host = HostPath, Inside = crate::SandboxPath> {
    /// Makes a directory; its parent exists. One that exists already is refused.
    Directory {
        /// Permission bits.
        mode: u32,
        /// Owner.
        owner: HostOwner,
        /// Where.
        path: Host,
    },
    /// Makes an empty regular file, as a mount target.
    File {
        /// Permission bits.
        mode: u32,
        /// Owner.
        owner: HostOwner,
        /// Where.
        path: Host,
    },
    /// Makes a FIFO.
    Fifo {
        /// Permission bits.
        mode: u32,
        /// Owner.
        owner: HostOwner,
        /// Where.
        path: Host,
    },
    /// Makes a character device node.
    Device {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
        /// Permission bits; owned by host root.
        mode: u32,
        /// Where; on a mount without `nodev`.
        path: Host,
    },
    /// Mounts a tmpfs.
    Tmpfs {
        /// Its size in bytes.
        bytes: u64,
        /// Whether device nodes on it work.
        devices: bool,
        /// Where; an existing directory.
        path: Host,
    },
    /// Clones a mount tree, private, `nosuid,nodev`, and puts it below the stage.
    Bind {
        /// How ids on disk are seen; empty for as they are.
        id_map: Vec<IdMapLine>,
        /// What the source must be.
        kind: crate::ProjectionKind,
        /// Whether it is read-only, with all that is mounted below it.
        read_only: bool,
        /// What.
        source: Host,
        /// Where; an existing directory or file of the same kind.
        target: Host,
    },
    /// Mounts the root overlay: lower is ID-mapped, then one write is tried.
    Overlay {
        /// The base's tree.
        lower: Host,
        /// How the lower's ids are seen.
        lower_map: Vec<IdMapLine>,
        /// Options besides the three directories, as `key=value` or `key`, in order.
        options: Vec<String>,
        /// Where; an existing directory.
        target: Host,
        /// Takes the changes; an existing directory.
        upper: Host,
        /// Overlayfs' own; an existing empty directory beside `upper`.
        work: Host,
    },
    /// Makes a directory or an empty file inside the mounted root, as a mount target, with all
    /// missing parents. A symlink on the way, or a thing of the other kind, is refused.
    Target {
        /// What is made.
        kind: crate::ProjectionKind,
        /// Owner of what had to be made.
        owner: HostOwner,
        /// Where inside it, as the payload will see it.
        path: Inside,
        /// The mounted root.
        root: Host,
    },
}

/// An owner on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostOwner {
    /// Group.
    pub gid: u32,
    /// User.
    pub uid: u32,
}

/// One line of an ID-mapped mount, for users and groups alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdMapLine {
    /// How many.
    pub count: u32,
    /// First id on disk.
    pub disk: u32,
    /// First id that the kernel sees instead.
    pub kernel: u32,
}

/// Parses a guard plan document.
pub fn parse_guard(bytes: &[u8]) -> Result<GuardPlan, serde_json::Error> {
    serde_json::from_slice(bytes)
}
