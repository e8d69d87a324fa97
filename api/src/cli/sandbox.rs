//! From what the flags mean to a plan: base, workspace, slice.

use casemate_bundles::{Digest, HostPath, LaunchPlan, Stdio, TileId};
use casemate_engine::{EngineConfig, SpawnerMode};
use casemate_protocol::{IdChoice, LayerChoice};
use casemate_rootfs::Store as Bases;
use casemate_rootfs::layer::{Layers, TileKey};

use super::flags::{Kind, Wanted};
use super::{CliError, Invocation, output};
use crate::config::Config;
use crate::store::Store;
use crate::workspace::{
    BackendRequest, IdKind, Payload, Planner, ProcessRequest, RunId, TerminalRequest, Workspace,
    process_plan,
};

/// A sandbox that is ready to be launched or compiled.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) run: RunId,
    pub(super) plan: LaunchPlan,
    pub(super) ids: IdChoice,
    pub(super) engine: EngineConfig,
    pub(super) layer: Option<LayerChoice>,
}

/// Refuses anybody but root: making namespaces, mounts and cgroups of other ids needs it.
pub(super) fn require_root() -> Result<(), CliError> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(CliError::NeedsRoot)
    }
}

/// Returns the snapshot of the named base, else of the configured one, else of the only one.
pub(super) fn resolve_base(config: &Config, named: Option<&str>) -> Result<Digest, CliError> {
    let bases = Bases::open(config.root.as_str()).map_err(CliError::Bases)?;
    let current = match named.or(config.base.as_deref()) {
        Some(name) => Some(name.to_owned()),
        None => bases
            .current_name()
            .map_err(|error| CliError::Bases(error.into()))?
            .map(|name| name.to_string()),
    };
    let chain = if let Some(name) = current.as_deref() {
        bases.resolve(name).map_err(CliError::Base)?.chain
    } else {
        let mut list = bases.list().map_err(CliError::Bases)?;
        match (list.pop(), list.is_empty()) {
            (Some(only), true) => only.chain,
            (Some(_), false) => {
                return Err(CliError::Usage(
                    "there are several bases: name one with --base (rootfs-tools list)".to_owned(),
                ));
            }
            (None, _) => {
                return Err(CliError::Unavailable {
                    component: casemate_bundles::Component::Base,
                    hint: "make one with: rootfs-tools build --suite bookworm --name debian12"
                        .to_owned(),
                });
            }
        }
    };
    Digest::parse(chain.as_str()).map_err(|error| CliError::Failed(error.to_string()))
}

/// Returns the base that a tile's layer is built on, and says so where new layers are built on
/// another one; the base of new layers where it has none.
fn base_of_layer(config: &Config, tile: &TileId) -> Result<Digest, CliError> {
    let layers = Layers::open(workspace_path(config)?.as_ref())?;
    let key = TileKey::of(tile.as_str());
    let look = match layers {
        Some(layers) => layers.look(&key)?,
        None => None,
    };
    let current = resolve_base(config, None);
    let Some(look) = look else {
        return current;
    };
    let bases = Bases::open(config.root.as_str()).map_err(CliError::Bases)?;
    let Some(base) = bases.resolve_stamped(&look.base).map_err(CliError::Bases)? else {
        return Err(CliError::Unavailable {
            component: casemate_bundles::Component::Base,
            hint: format!(
                "the layer of {tile} is built on {}, which is not installed: import that base \
                 again, or reset the layer: rootfs-tools reset {tile}",
                look.base
            ),
        });
    };
    if current.is_ok_and(|current| current.as_str() != base.chain.as_str()) {
        output::complain(&format!(
            "the layer of {tile} is built on {}, which is not the current base: rootfs-tools rebase \
             {tile} --to NAME moves it",
            look.base
        ));
    }
    Digest::parse(base.chain.as_str()).map_err(|error| CliError::Failed(error.to_string()))
}

/// Makes the plan. A terminal's home is made where there is none.
pub(super) fn plan(
    invocation: &Invocation,
    wanted: Wanted,
    (stdio, layer): (Stdio, Option<LayerChoice>),
) -> Result<Planned, CliError> {
    let config = &invocation.config;
    let has_tile = wanted.has_tile();
    let run = RunId::new(IdKind::Run).map_err(|error| CliError::Failed(error.to_string()))?;
    let engine = config.engine(
        SpawnerMode::Private,
        config.workspace.clone().filter(|_| has_tile),
    )?;
    let base = match (layer, &wanted.kind, &wanted.base) {
        (Some(LayerChoice::Current), Kind::Terminal { tile, .. }, None) => {
            base_of_layer(config, tile)?
        }
        (_, _, named) => resolve_base(config, named.as_deref())?,
    };
    let payload = Payload {
        id: run.container().clone(),
        base,
        argv: wanted.argv,
        cwd: wanted.cwd,
        environment: wanted.environment,
        stdio,
    };
    let (plan, ids) = match wanted.kind {
        Kind::Process {
            limits,
            network,
            tile,
        } => {
            let projections = match tile {
                Some(tile) => vec![open_workspace(config)?.projection(&tile)?],
                None => Vec::new(),
            };
            let request = ProcessRequest {
                limits,
                network,
                projections,
                output: true,
            };
            (process_plan(request, payload)?, IdChoice::Pool)
        }
        Kind::Terminal {
            tile,
            user,
            tier,
            visible,
        } => {
            let request = TerminalRequest {
                tile,
                user,
                tier,
                visible,
            };
            with_planner(config, &engine, |planner| {
                let (plan, slice) = planner.terminal(&request, payload)?;
                Ok((plan, IdChoice::Fixed(slice)))
            })?
        }
        Kind::Backend { tile, limits } => {
            let request = BackendRequest { tile, limits };
            with_planner(config, &engine, |planner| {
                let (plan, slice) = planner.backend(&request, payload)?;
                Ok((plan, IdChoice::Fixed(slice)))
            })?
        }
    };
    Ok(Planned {
        run,
        plan,
        ids,
        engine,
        layer,
    })
}

fn with_planner<T>(
    config: &Config,
    engine: &EngineConfig,
    plan: impl FnOnce(Planner<'_>) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let workspace = open_workspace(config)?;
    let store = Store::open(&workspace)?;
    plan(Planner {
        workspace: &workspace,
        store: &store,
        ids: engine.ids,
        extra_ro: &config.extra_ro,
    })
}

fn open_workspace(config: &Config) -> Result<Workspace, CliError> {
    Ok(Workspace::open(workspace_path(config)?)?)
}

fn workspace_path(config: &Config) -> Result<&HostPath, CliError> {
    config.workspace.as_ref().ok_or_else(|| {
        CliError::Usage("a tile needs a workspace: name it with --workspace".to_owned())
    })
}
