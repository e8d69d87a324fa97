//! From what the flags mean to a plan: base, workspace, slice.

use casemate_bundles::{Digest, HostPath, LaunchPlan, Stdio};
use casemate_engine::{EngineConfig, SpawnerMode};
use casemate_protocol::IdChoice;
use casemate_rootfs::Store as Bases;

use super::flags::{Kind, Wanted};
use super::{CliError, Invocation};
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
    let chain = if let Some(name) = named.or(config.base.as_deref()) {
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

/// Makes the plan. A terminal's home is made where there is none.
pub(super) fn plan(
    invocation: &Invocation,
    wanted: Wanted,
    stdio: Stdio,
) -> Result<Planned, CliError> {
    let config = &invocation.config;
    let has_tile = wanted.has_tile();
    let run = RunId::new(IdKind::Run).map_err(|error| CliError::Failed(error.to_string()))?;
    let engine = config.engine(
        SpawnerMode::Private,
        config.workspace.clone().filter(|_| has_tile),
    )?;
    let payload = Payload {
        id: run.container().clone(),
        base: resolve_base(config, wanted.base.as_deref())?,
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
