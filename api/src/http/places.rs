//! Where runs and terminals take place: workspace, slices, bases. Blocking work is done on
//! blocking threads.

use std::path::PathBuf;
use std::sync::Arc;

use casemate_bundles::{Digest, HostPath, LaunchPlan, Nesting, Slice, TileId};
use casemate_engine::IdBlock;
use casemate_rootfs::{ResolveError, StoreError as BaseStoreError};
use serde_json::json;

use crate::config::Config;
use crate::error::{ApiError, ErrorKind};
use crate::store::{Store, StoreError};
use crate::term::SessionTimes;
use crate::workspace::{
    Manifest, Payload, PlanError, Planner, TerminalRequest, Workspace, WorkspaceError,
};

/// A base that a name stands for.
#[derive(Debug, Clone)]
pub struct Base {
    /// Its name.
    pub name: String,
    /// Digest of its manifest.
    pub manifest: String,
    /// Digest of its snapshot.
    pub chain: Digest,
}

/// Workspace, slices and bases of the service.
#[derive(Debug, Clone)]
pub struct Places {
    workspace: Arc<Workspace>,
    store: Arc<Store>,
    ids: IdBlock,
    extra_ro: Arc<[HostPath]>,
    root: PathBuf,
    default_base: Option<String>,
    nesting: Nesting,
    times: SessionTimes,
}

impl Places {
    /// Takes up an opened workspace.
    pub fn new(
        config: &Config,
        workspace: Arc<Workspace>,
        store: Arc<Store>,
        ids: IdBlock,
    ) -> Self {
        Self {
            workspace,
            store,
            ids,
            extra_ro: config.extra_ro.clone().into(),
            root: PathBuf::from(config.root.as_str()),
            default_base: config.base.clone(),
            nesting: config.nesting,
            times: SessionTimes {
                grace_ms: config.grace_s.saturating_mul(1000),
                idle_ms: config.idle_s.saturating_mul(1000),
                ring_bytes: config.ring_bytes,
            },
        }
    }

    /// Returns whether administrators' terminals have nesting where nobody says otherwise.
    pub const fn nesting(&self) -> Nesting {
        self.nesting
    }

    /// Returns how sessions are watched over.
    pub const fn times(&self) -> SessionTimes {
        self.times
    }

    /// Resolves the name of a base; `None` for the configured one, or the only one there is.
    pub async fn base(&self, name: Option<&str>) -> Result<Base, ApiError> {
        let asked = name.is_some();
        let name = name
            .map(str::to_owned)
            .or_else(|| self.default_base.clone());
        let root = self.root.clone();
        blocking(move || resolve(root, name, asked)).await
    }

    /// Lists the bases as `GET /v1/runtime` shows them.
    pub async fn bases(&self) -> Result<serde_json::Value, ApiError> {
        let root = self.root.clone();
        blocking(move || {
            let bases = casemate_rootfs::Store::open(root).and_then(|store| store.bases());
            match bases {
                Ok(bases) => Ok(bases
                    .into_iter()
                    .map(|base| {
                        json!({
                            "name": base.name, "manifest": base.manifest, "chain": base.chain,
                        })
                    })
                    .collect()),
                Err(BaseStoreError::Absent(_)) => Ok(json!([])),
                Err(error) => Err(ApiError::internal(error)),
            }
        })
        .await
    }

    /// Plans a terminal.
    pub async fn terminal(
        &self,
        request: TerminalRequest,
        payload: Payload,
    ) -> Result<(LaunchPlan, Slice), ApiError> {
        let places = self.clone();
        blocking(move || {
            let planner = Planner {
                workspace: &places.workspace,
                store: &places.store,
                ids: places.ids,
                extra_ro: &places.extra_ro,
            };
            planner.terminal(&request, payload).map_err(plan_error)
        })
        .await
    }

    /// Lists the tiles with what their manifests say; a manifest that does not parse says nothing.
    pub async fn tiles(&self) -> Result<Vec<(TileId, Option<Manifest>)>, ApiError> {
        let workspace = Arc::clone(&self.workspace);
        blocking(move || {
            let ids = workspace.tiles().map_err(workspace_error)?;
            let with_manifest = |id: TileId| {
                let manifest = match workspace.tile(&id) {
                    Ok(tile) => Some(tile.manifest),
                    Err(error) => {
                        tracing::warn!(tile = %id, error = %error, "a tile's manifest is not read");
                        None
                    }
                };
                (id, manifest)
            };
            Ok(ids.into_iter().map(with_manifest).collect())
        })
        .await
    }
}

fn resolve(root: PathBuf, name: Option<String>, asked: bool) -> Result<Base, ApiError> {
    let missing = || {
        ApiError::unavailable(
            &"base",
            "no base is configured and there is not exactly one; make one with `rootfs-tools`, \
             or name it in the configuration",
        )
    };
    let store = match casemate_rootfs::Store::open(root) {
        Ok(store) => store,
        Err(BaseStoreError::Absent(_)) => return Err(missing()),
        Err(error) => return Err(ApiError::internal(error)),
    };
    let name = match name {
        Some(name) => name,
        None => match store.bases().map_err(ApiError::internal)?.as_slice() {
            [only] => only.name.to_string(),
            [] | [_, ..] => return Err(missing()),
        },
    };
    let base = store.resolve(&name).map_err(|error| match error {
        ResolveError::Name(_) | ResolveError::Store(BaseStoreError::UnknownBase(_)) if asked => {
            ApiError::new(
                ErrorKind::Refused,
                "PLAN_UNKNOWN_BASE",
                "there is no base of that name",
            )
        }
        ResolveError::Name(_) | ResolveError::Store(BaseStoreError::UnknownBase(_)) => {
            ApiError::unavailable(
                &"base",
                "the configured base does not exist; import it again",
            )
        }
        ResolveError::Store(error) => ApiError::internal(error),
    })?;
    Ok(Base {
        name: base.name.to_string(),
        manifest: base.manifest.to_string(),
        chain: Digest::parse(base.chain.to_string()).map_err(ApiError::internal)?,
    })
}

fn plan_error(error: PlanError) -> ApiError {
    match error {
        PlanError::Workspace(error) => workspace_error(error),
        PlanError::Store(error) => match &error {
            StoreError::NoSlice { .. } => ApiError::unavailable(&"ids", error.to_string()),
            StoreError::File(_)
            | StoreError::Sqlite { .. }
            | StoreError::Newer { .. }
            | StoreError::Foreign
            | StoreError::SliceOutside { .. } => ApiError::internal(error),
        },
        PlanError::Path(_) => ApiError::internal(error),
    }
}

fn workspace_error(error: WorkspaceError) -> ApiError {
    match &error {
        WorkspaceError::NoTile { .. } => ApiError::not_found(error.to_string()),
        WorkspaceError::Manifest { .. } => {
            ApiError::new(ErrorKind::Refused, "PLAN_BAD_TILE", error.to_string())
        }
        WorkspaceError::Open { .. }
        | WorkspaceError::Owner { .. }
        | WorkspaceError::Access { .. } => ApiError::internal(error),
    }
}

/// Runs blocking work; a panic of it is a fault of ours.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(ApiError::internal)?
}
