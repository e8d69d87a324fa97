//! From a request to a launch plan.

use casemate_bundles::{
    Argv, ContainerId, Digest, Environment, HostPath, LaunchPlan, Limits, Network, ProcessView,
    Profile, Projection, ProjectionKind, SandboxPath, Slice, Stdio, Tier, TileId, TreeOwner,
    UserId, WorkspaceView,
};
use casemate_engine::IdBlock;

use super::{Workspace, WorkspaceError};
use crate::store::{Store, StoreError, Tree};

/// The root's manifest names every tile, so only administrators see it.
const ROOT_MANIFEST: &str = "xbin.json";
/// Most tiles besides the own one that a shell sees; each is a mount.
const MOST_READABLE: usize = 512;

/// What every sandbox is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// Name of the sandbox.
    pub id: ContainerId,
    /// The base it runs on.
    pub base: Digest,
    /// Command.
    pub argv: Argv,
    /// Working directory; the profile's own without it.
    pub cwd: Option<SandboxPath>,
    /// What is added to the fixed environment.
    pub environment: Environment,
    /// Standard streams.
    pub stdio: Stdio,
}

/// Which other tiles a shell reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Visible {
    /// Every one there is now.
    All,
    /// These; each has to exist.
    Only(Vec<TileId>),
}

/// A terminal on a tile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalRequest {
    /// The own tile.
    pub tile: TileId,
    /// Whose home it has.
    pub user: UserId,
    /// Trust in whoever opens it.
    pub tier: Tier,
    /// Other tiles.
    pub visible: Visible,
}

/// A tile's service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendRequest {
    /// The own tile.
    pub tile: TileId,
    /// What it may take.
    pub limits: Limits,
}

/// A command run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessRequest {
    /// What it may take.
    pub limits: Limits,
    /// What it reaches.
    pub network: Network,
    /// What is mounted into it.
    pub projections: Vec<Projection>,
    /// Whether it has a writable `/output`.
    pub output: bool,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The workspace lacks what was asked for.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The database gives no slice.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A tile's or home's own path cannot be a working directory.
    #[error("the workspace's path cannot be used inside a sandbox")]
    Path(#[from] casemate_bundles::PathError),
}

/// Plans sandboxes on one workspace.
#[derive(Debug, Clone, Copy)]
pub struct Planner<'a> {
    /// Where the tiles are.
    pub workspace: &'a Workspace,
    /// Where their slices are.
    pub store: &'a Store,
    /// Ids that a tile or a home may get.
    pub ids: IdBlock,
    /// Directories outside the workspace that are seen read-only.
    pub extra_ro: &'a [HostPath],
}

impl Planner<'_> {
    /// Plans a terminal, and returns it with the slice it has to run on. Makes the home where there
    /// is none.
    pub fn terminal(
        &self,
        request: &TerminalRequest,
        payload: Payload,
    ) -> Result<(LaunchPlan, Slice), PlanError> {
        let own = self.tree(&request.tile)?;
        let slice = own.slice;
        let readable = self.readable(request, slice)?;
        self.workspace.ensure_home(&request.user)?;
        let home = TreeOwner {
            id: request.user.clone(),
            slice: self.store.slice(Tree::Home(&request.user), self.ids)?,
        };
        let mut root_files = self.workspace.root_files()?;
        match request.tier {
            Tier::Admin { .. } => {}
            Tier::Restricted { .. } => root_files.retain(|name| name.as_str() != ROOT_MANIFEST),
        }
        let view = WorkspaceView {
            root: self.workspace.path().clone(),
            service: self.workspace.service(),
            own,
            readable,
            home: Some(home),
            root_files,
            extra_ro: self.extra_ro.to_vec(),
        };
        let tier = request.tier;
        let cwd = self.tile_cwd(&request.tile)?;
        Ok((payload.plan(Profile::Terminal { tier, view }, cwd), slice))
    }

    /// Plans a tile's service, and returns it with the slice it has to run on.
    pub fn backend(
        &self,
        request: &BackendRequest,
        payload: Payload,
    ) -> Result<(LaunchPlan, Slice), PlanError> {
        let own = self.tree(&request.tile)?;
        let slice = own.slice;
        let view = WorkspaceView {
            root: self.workspace.path().clone(),
            service: self.workspace.service(),
            own,
            readable: Vec::new(),
            home: None,
            root_files: Vec::new(),
            extra_ro: self.extra_ro.to_vec(),
        };
        let limits = request.limits;
        let cwd = self.tile_cwd(&request.tile)?;
        Ok((payload.plan(Profile::Backend { limits, view }, cwd), slice))
    }

    fn tile_cwd(&self, tile: &TileId) -> Result<SandboxPath, PlanError> {
        Ok(SandboxPath::parse(self.workspace.tile_path(tile).as_str())?)
    }

    /// Returns the other tiles that a shell reads. A tile is whatever has a manifest, which what
    /// runs in tiles can write: a tile gets a slice only when it is opened itself, and none of them
    /// keeps another one from opening.
    fn readable(
        &self,
        request: &TerminalRequest,
        own: Slice,
    ) -> Result<Vec<TreeOwner<TileId>>, PlanError> {
        let mut ids = match &request.visible {
            Visible::All => self.workspace.tiles()?,
            Visible::Only(ids) => {
                for id in ids {
                    self.workspace.tile(id)?;
                }
                ids.clone()
            }
        };
        ids.sort();
        ids.dedup();
        ids.retain(|id| *id != request.tile);
        let known = self.store.slices()?;
        if ids.len() > MOST_READABLE {
            tracing::warn!(
                tiles = ids.len(),
                most = MOST_READABLE,
                "not every tile is shown"
            );
            // Those that somebody has opened come first.
            ids.sort_by_key(|id| !known.contains_key(id.as_str()));
            ids.truncate(MOST_READABLE);
            ids.sort();
        }
        let with_slice = |id: TileId| TreeOwner {
            // Where there is none, nothing but the service has written: any slice shows that.
            slice: known.get(id.as_str()).copied().unwrap_or(own),
            id,
        };
        Ok(ids.into_iter().map(with_slice).collect())
    }

    fn tree(&self, id: &TileId) -> Result<TreeOwner<TileId>, PlanError> {
        let tile = self.workspace.tile(id)?;
        Ok(TreeOwner {
            slice: self.store.slice(Tree::Tile(&tile.id), self.ids)?,
            id: tile.id,
        })
    }
}

impl Workspace {
    /// Returns the projection of a tile into a command run: the whole directory, read-only, at
    /// `/workspace`.
    pub fn projection(&self, id: &TileId) -> Result<Projection, PlanError> {
        let tile = self.tile(id)?;
        Ok(Projection {
            target: SandboxPath::parse("/workspace")?,
            source: self.tile_path(&tile.id),
            kind: ProjectionKind::Directory,
            owner: self.service(),
        })
    }
}

/// Plans a command run. Its working directory is `/workspace` if present, else `/tmp`; half of its
/// memory may be `/tmp`.
pub fn process_plan(request: ProcessRequest, payload: Payload) -> Result<LaunchPlan, PlanError> {
    let workspace = SandboxPath::parse("/workspace")?;
    let present = request
        .projections
        .iter()
        .any(|projection| projection.target.is_within(&workspace));
    let cwd = if present {
        workspace
    } else {
        SandboxPath::parse("/tmp")?
    };
    let profile = Profile::Process {
        limits: request.limits,
        network: request.network,
        view: ProcessView {
            projections: request.projections,
            output: request.output,
            scratch_bytes: request.limits.memory.get() / 2,
        },
    };
    Ok(payload.plan(profile, cwd))
}

impl Payload {
    fn plan(self, profile: Profile, default_cwd: SandboxPath) -> LaunchPlan {
        LaunchPlan {
            id: self.id,
            profile,
            base: self.base,
            argv: self.argv,
            cwd: self.cwd.unwrap_or(default_cwd),
            environment: self.environment,
            stdio: self.stdio,
        }
    }
}
