//! What a path inside a sandbox resolves to, and by which rule.

use std::fmt;

use serde::Serialize;

use crate::{HostPath, SandboxPath};

/// What a path resolves to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resolution {
    /// The path asked for.
    pub path: SandboxPath,
    /// The rule that decides it.
    pub rule: ViewRule,
    /// Where the deciding mount is.
    pub mount: SandboxPath,
    /// What it is on the host, where it is anything there. Never shown to a client.
    pub source: Option<HostPath>,
    /// What the mount allows.
    pub access: Access,
}

/// What the mounts allow; permissions, Landlock and seccomp may allow less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// There is nothing by that name.
    Absent,
    /// It may be read.
    ReadOnly,
    /// It may be written.
    ReadWrite,
}

/// Why a path is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ViewRule {
    /// The sandbox's own tile.
    OwnTile,
    /// Another tile that may be read.
    ReadableTile,
    /// The own home.
    Home,
    /// A plain file of the workspace's root directory.
    RootFile,
    /// The sealed skeleton of the workspace: directories that hold the targets, else empty.
    Skeleton,
    /// A directory outside the workspace.
    ExtraReadOnly,
    /// What a command run was given.
    Projection,
    /// The output directory of a command run.
    Output,
    /// Memory that vanishes with the sandbox.
    Scratch,
    /// The root: base snapshot and the changes above it.
    Base,
    /// A file system of the kernel: `/proc`, `/sys`, `/dev`.
    Kernel,
    /// Covered in such a file system.
    Masked,
    /// A device of the sandbox.
    Device,
    /// The guard init, its plan and its report, gone before the payload starts.
    Init,
}

impl fmt::Display for ViewRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OwnTile => "own tile",
            Self::ReadableTile => "readable tile",
            Self::Home => "home",
            Self::RootFile => "root file",
            Self::Skeleton => "skeleton",
            Self::ExtraReadOnly => "extra read-only",
            Self::Projection => "projection",
            Self::Output => "output",
            Self::Scratch => "scratch",
            Self::Base => "base layer",
            Self::Kernel => "kernel file system",
            Self::Masked => "masked",
            Self::Device => "device",
            Self::Init => "guard init",
        })
    }
}

/// Why a path cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// `config.json` is not the document that the compiler writes.
    #[error("config.json cannot be read as a bundle of this program")]
    Config(#[source] serde_json::Error),
    /// `stage.json` is not the document that the compiler writes.
    #[error("stage.json cannot be read as a stage plan")]
    Stage(#[source] serde_json::Error),
}
