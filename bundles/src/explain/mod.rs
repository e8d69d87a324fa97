//! What a path inside a sandbox resolves to, and by which rule.
//!
//! Read from the documents alone, so that it also answers for a bundle of unknown origin. Symlinks
//! are not followed: a link inside a sandbox leads to another path of the same view.

mod view;

use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) use self::view::{Facts, View};
use crate::text::{PathText, Text};
use crate::{HostPath, SandboxPath, StagePlan};

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

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "absent",
            Self::ReadOnly => "read-only",
            Self::ReadWrite => "read-write",
        })
    }
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
    /// A mount that no bundle of this program has.
    Foreign,
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
            Self::Foreign => "foreign mount",
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

/// `stage.json` as it is judged.
pub(crate) type StageText<'a> = StagePlan<PathText<'a>, PathText<'a>>;

/// One mount of `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(crate) struct OciMount<'a> {
    pub(crate) destination: PathText<'a>,
    pub(crate) options: Vec<Text<'a>>,
    pub(crate) source: Text<'a>,
    #[serde(rename = "type")]
    pub(crate) kind: Text<'a>,
}

impl OciMount<'_> {
    /// Whether the mount is read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.options
            .iter()
            .any(|option| option == "ro" || option == "rro")
    }
}

/// The part of `config.json` that decides the view.
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Config<'a> {
    #[serde(default)]
    annotations: std::collections::BTreeMap<Text<'a>, Text<'a>>,
    linux: Linux<'a>,
    mounts: Vec<OciMount<'a>>,
    process: Process<'a>,
    root: Root,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct Linux<'a> {
    masked_paths: Vec<Text<'a>>,
    readonly_paths: Vec<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Process<'a> {
    env: Vec<Text<'a>>,
}

#[derive(Debug, Deserialize)]
struct Root {
    readonly: bool,
}

/// Says what `path` resolves to in the sandbox of these two documents.
pub fn explain(
    config: &[u8],
    stage: &[u8],
    path: &SandboxPath,
) -> Result<Resolution, ExplainError> {
    let config: Config<'_> = serde_json::from_slice(config).map_err(ExplainError::Config)?;
    let stage: StageText<'_> = serde_json::from_slice(stage).map_err(ExplainError::Stage)?;
    let workspace = config
        .process
        .env
        .iter()
        .find_map(|line| line.strip_prefix("XBIN_WORKSPACE="));
    let view = View::new(
        &Facts {
            mounts: &config.mounts,
            masked: &config.linux.masked_paths,
            read_only: &config.linux.readonly_paths,
            read_only_root: config.root.readonly,
            workspace,
            tile: config
                .annotations
                .iter()
                .find(|(key, _value)| **key == "io.casemate.tile")
                .map(|(_key, value)| &**value),
        },
        &stage,
    );
    Ok(view.resolve(path))
}
