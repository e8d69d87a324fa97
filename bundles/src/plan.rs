//! The launch plan: who may do what in one sandbox. Input of the compiler.

use serde::{Deserialize, Serialize};

use crate::{
    Argv, ContainerId, Digest, Environment, FileName, HostPath, Limits, SandboxPath, Slice, TileId,
    UserId,
};

/// Everything that decides a bundle, without where it is put.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchPlan {
    /// Name of the sandbox.
    pub id: ContainerId,
    /// What it is for, and the view that goes with it.
    pub profile: Profile,
    /// The base snapshot it runs on, by chain id.
    pub base: Digest,
    /// Command; looked up in the fixed `PATH` inside the sandbox.
    pub argv: Argv,
    /// Working directory.
    pub cwd: SandboxPath,
    /// What the caller adds to the fixed environment.
    pub environment: Environment,
    /// Standard streams.
    pub stdio: Stdio,
}

/// Standard streams of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Stdio {
    /// A terminal of its own.
    Terminal(WindowSize),
    /// Three pipes.
    Pipes,
}

/// Size of a terminal in character cells: 1…1000 columns, 1…500 rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u16, u16)", into = "(u16, u16)")]
pub struct WindowSize {
    cols: u16,
    rows: u16,
}

/// A size outside 1…1000 × 1…500.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("terminal size {cols}x{rows} is outside 1x1 to 1000x500")]
pub struct WindowSizeError {
    /// Columns asked for.
    pub cols: u16,
    /// Rows asked for.
    pub rows: u16,
}

impl WindowSize {
    /// Parses a size.
    pub const fn parse(cols: u16, rows: u16) -> Result<Self, WindowSizeError> {
        if cols == 0 || cols > 1000 || rows == 0 || rows > 500 {
            return Err(WindowSizeError { cols, rows });
        }
        Ok(Self { cols, rows })
    }

    /// Returns the columns.
    pub const fn cols(self) -> u16 {
        self.cols
    }

    /// Returns the rows.
    pub const fn rows(self) -> u16 {
        self.rows
    }
}

impl TryFrom<(u16, u16)> for WindowSize {
    type Error = WindowSizeError;

    fn try_from((cols, rows): (u16, u16)) -> Result<Self, WindowSizeError> {
        Self::parse(cols, rows)
    }
}

impl From<WindowSize> for (u16, u16) {
    fn from(size: WindowSize) -> Self {
        (size.cols, size.rows)
    }
}

/// What a sandbox is for. Each variant carries all that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Profile {
    /// A shell on a tile.
    Terminal {
        /// Who opened it.
        tier: Tier,
        /// What it sees; the own tile is writable.
        view: WorkspaceView,
    },
    /// A tile's service; its own tile is read-only.
    Backend {
        /// What it may take.
        limits: Limits,
        /// What it sees.
        view: WorkspaceView,
    },
    /// A command run.
    Process {
        /// What it may take.
        limits: Limits,
        /// What it reaches.
        network: Network,
        /// What it sees.
        view: ProcessView,
    },
}

/// Trust in whoever opened a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Tier {
    /// An administrator; not limited.
    Admin {
        /// Whether nested mounts and namespaces work.
        nesting: Nesting,
        /// What it reaches.
        network: Network,
    },
    /// Anybody else; network none, no extra capabilities.
    Restricted {
        /// What it may take.
        limits: Limits,
    },
}

/// Whether an administrator's shell may mount and make namespaces of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nesting {
    /// The locked view alone carries the promise; mount, fuse, bwrap, podman work.
    On,
    /// Mount guard and read guard as well.
    Off,
}

/// What a sandbox reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// A network namespace of its own with loopback only.
    None,
    /// The host's network.
    Host,
}

/// The allow-list view of a workspace: what is not named here does not exist in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceView {
    /// The workspace; keeps its own absolute path inside the sandbox.
    pub root: HostPath,
    /// Host id (user and group) that owns the workspace's files.
    pub service: u32,
    /// The sandbox's own tile.
    pub own: TreeOwner<TileId>,
    /// Other tiles that may be read.
    pub readable: Vec<TreeOwner<TileId>>,
    /// Whose home is `$HOME`; none for a backend.
    pub home: Option<TreeOwner<UserId>>,
    /// Plain files of the workspace's root directory, read-only.
    pub root_files: Vec<FileName>,
    /// Directories outside the workspace, read-only at their own paths.
    pub extra_ro: Vec<HostPath>,
}

/// A tree of the workspace with the slice that its files' other ids belong to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeOwner<Id> {
    /// The tile or the user.
    pub id: Id,
    /// On disk, inner id `n > 0` of this tree is `slice.first() + n`; inner root is the service.
    pub slice: Slice,
}

/// The view of a command run: `/workspace`, `/input`, `/output`, `/runtime`, `/tmp` and a minimal
/// root, nothing else (PSBX-03).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessView {
    /// What is mounted below `/workspace`, `/input` and `/runtime`; targets do not overlap.
    pub projections: Vec<Projection>,
    /// Whether there is a writable `/output`, deleted with the run.
    pub output: bool,
    /// Size of `/tmp` in bytes, charged to the memory limit.
    pub scratch_bytes: u64,
}

/// One read-only projection into a command run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Projection {
    /// Where it appears: at or below `/workspace`, `/input` or `/runtime`.
    pub target: SandboxPath,
    /// What appears.
    pub source: HostPath,
    /// What the source must be.
    pub kind: ProjectionKind,
    /// Host id that owns the source's files; seen as the sandbox's root.
    pub owner: u32,
}

/// What a projection's source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProjectionKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
}

/// Where a bundle is put: decided by the spawner, never by whoever asks for a launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// The sandbox's own directory, root-owned, mode 0710; everything made for it lies below.
    pub stage: HostPath,
    /// The guard init's binary.
    pub init: HostPath,
    /// The base snapshot's unpacked tree, owned by 0:0.
    pub base: HostPath,
    /// Where the root's changes go.
    pub upper: Upper,
    /// Ids of the sandbox.
    pub ids: Slice,
    /// The sandbox's cgroup, absolute below each hierarchy's root, unique.
    pub cgroup: HostPath,
}

/// Where the changes of the root go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Upper {
    /// Memory, at most this many bytes, charged to the memory limit. Vanishes with the sandbox.
    Memory(u64),
    /// An empty directory on disk, in which `upper` and `work` are made. Vanishes with the sandbox.
    Disk(HostPath),
    /// A generation of a tile's layer, below `.xbin/term` of the workspace: `upper` and `work` are
    /// in it already and stay. For terminals only.
    Layer(HostPath),
}
