//! A terminal's layer: locked, stamped and on the right base before anything is mounted.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use casemate_bundles::{Component, HostPath, LaunchPlan, Profile, WorkspaceView};
use casemate_protocol::{LaunchError, LayerChoice};
use casemate_rootfs::layer::{Generation, LayerError, Layers, NewLayer, StampedBase, TileKey};
use casemate_rootfs::{Digest, Store};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::Spawner;
use super::place::{Placed, engine};
use crate::keeper::groups::Parents;

/// How long what a dead holder has left may take to die.
const KILL: Duration = Duration::from_millis(500);

/// A layer that is ready to be mounted.
#[derive(Debug)]
pub(super) struct Opened {
    /// The generation's directory.
    pub(super) path: HostPath,
    /// Held by the keeper until the layer is unmounted.
    pub(super) lock: OwnedFd,
}

/// Who mounts a layer. Its group may outlive it.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    id: String,
    /// Below the root of the version 2 hierarchy.
    cgroup: PathBuf,
}

impl Spawner {
    /// Opens the layer of a terminal's own tile, for the ids and on the base that it was placed
    /// with.
    pub(super) fn open_layer(
        &self,
        plan: &LaunchPlan,
        choice: LayerChoice,
        placed: &Placed,
    ) -> Result<Opened, LaunchError> {
        let view = terminal(plan)?;
        let key = TileKey::of(view.own.id.as_str());
        let store = self.store()?;
        // Before a stamp, so that no collection misses it.
        store
            .register_workspace(view.root.as_ref())
            .map_err(|error| failed(error.into()))?;
        let layers = Layers::create(view.root.as_ref()).map_err(failed)?;
        // Before a stamp says so: a collection keeps what layers of known workspaces are built on.
        self.store()?
            .register_workspace(view.root.as_ref())
            .map_err(|error| {
                tracing::error!(%error, "the workspace cannot be entered into the store");
                engine("store", 0)
            })?;
        let first = placed.placement.ids.first();
        let (mut generation, lock) = match choice {
            LayerChoice::Current => {
                let held = layers.lock(&key, Duration::ZERO).map_err(failed)?;
                if let Some(holder) = held.holder().map_err(failed)? {
                    end(&self.parents, &holder)?;
                }
                let new = NewLayer {
                    base: stamped(&store, plan)?,
                    tile: Some(view.own.id.as_str().to_owned()),
                    first_id: first,
                };
                let generation = held.ensure(&new).map_err(failed)?;
                let holder = Holder {
                    id: plan.id.as_str().to_owned(),
                    cgroup: self.parents.path_of(plan.id.as_str()),
                };
                let record = serde_json::to_vec(&holder).map_err(|_ours| engine("layer", 0))?;
                held.set_holder(&record).map_err(failed)?;
                (generation, held.into_lock())
            }
            LayerChoice::Unfinished(number) => layers.unfinished(&key, number).map_err(failed)?,
        };
        check_base(&store, plan, &generation)?;
        generation.give_to(first).map_err(failed)?;
        generation
            .put_on(placed.placement.base.as_ref())
            .map_err(failed)?;
        let path = HostPath::parse(generation.path().to_string_lossy())
            .map_err(|_not_ours| engine("layer", 0))?;
        Ok(Opened { path, lock })
    }

    fn store(&self) -> Result<Store, LaunchError> {
        Store::open(self.root.as_str()).map_err(|error| {
            tracing::error!(%error, "the store cannot be opened");
            engine("store", 0)
        })
    }
}

/// Refuses any base but the one that the layer was built on (BASE-04, BASE-14).
fn check_base(
    store: &Store,
    plan: &LaunchPlan,
    generation: &Generation,
) -> Result<(), LaunchError> {
    let stamped = &generation.stamp().base;
    let found = store.resolve_stamped(stamped).map_err(|error| {
        tracing::error!(%error, "the bases cannot be read");
        engine("bases", 0)
    })?;
    match found {
        None => Err(LaunchError::Unavailable {
            component: Component::Base,
            hint: "the base of this tile's layer is not installed: reset the terminal, or \
                   import that base again"
                .to_owned(),
        }),
        Some(base) if base.chain.as_str() == plan.base.as_str() => Ok(()),
        Some(base) => Err(LaunchError::Refused {
            code: "PLAN_BASE".to_owned(),
            message: format!(
                "the tile's layer is built on {}: run on that base, rebase it or reset it",
                base.name
            ),
        }),
    }
}

/// What a new layer on the plan's base is stamped with.
fn stamped(store: &Store, plan: &LaunchPlan) -> Result<StampedBase, LaunchError> {
    let fail = |error: &dyn std::fmt::Display| {
        tracing::error!(%error, "the bases cannot be read");
        engine("bases", 0)
    };
    let bases = store.bases().map_err(|error| fail(&error))?;
    let chain = Digest::parse(plan.base.as_str()).map_err(|error| fail(&error))?;
    let named = bases.into_iter().find(|base| base.chain == chain);
    Ok(named.map_or_else(
        || StampedBase {
            name: None,
            version: chain.hex().chars().take(12).collect(),
            manifest_digest: None,
            chain_id: Some(chain.clone()),
        },
        |base| StampedBase::of(&base),
    ))
}

fn terminal(plan: &LaunchPlan) -> Result<&WorkspaceView, LaunchError> {
    match &plan.profile {
        Profile::Terminal { view, .. } => Ok(view),
        Profile::Backend { .. } | Profile::Process { .. } => Err(LaunchError::Refused {
            code: "PLAN_LAYER".to_owned(),
            message: "a layer belongs to a terminal".to_owned(),
        }),
    }
}

/// Kills what a holder that died has left. While something of it lives, the layer is mounted.
fn end(parents: &Parents, holder: &[u8]) -> Result<(), LaunchError> {
    let Ok(holder) = serde_json::from_slice::<Holder>(holder) else {
        tracing::warn!("a layer's holder has left no readable record");
        return Ok(());
    };
    let killed = parents
        .kill_at(&holder.cgroup, &holder.id)
        .and_then(|events| events.map_or(Ok(()), |events| events.wait_empty(KILL)));
    match killed {
        Ok(()) => Ok(()),
        Err(error) if error.errno() == Errno::BUSY => {
            Err(busy("what the tile's last terminal has left"))
        }
        // The record is the service's to write: it must not name a group of anybody else.
        Err(error) if error.errno() == Errno::INVAL => {
            tracing::warn!(%error, "a layer's holder has left a record of no sandbox");
            Ok(())
        }
        Err(error) => {
            tracing::error!(%error, "what a dead holder has left was not killed");
            Err(engine("layer", error.errno().raw_os_error()))
        }
    }
}

fn busy(what: &str) -> LaunchError {
    LaunchError::Busy {
        what: what.to_owned(),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: LayerError) -> LaunchError {
    match &error {
        LayerError::Busy(_) => busy("the tile's layer is in another terminal"),
        LayerError::Mounted(_) => busy("the tile's layer is still mounted"),
        LayerError::NoGeneration { .. } | LayerError::Absent(_) => LaunchError::Refused {
            code: "PLAN_LAYER".to_owned(),
            message: "there is no such generation of the tile's layer".to_owned(),
        },
        LayerError::Call { .. }
        | LayerError::Stamp { .. }
        | LayerError::NewerStamp(_)
        | LayerError::Current(_)
        | LayerError::MissingBase { .. }
        | LayerError::NoOlder(_)
        | LayerError::Store(_) => {
            tracing::error!(
                error = casemate_sys::error::chain(&error),
                "layer cannot be used"
            );
            engine("layer", 0)
        }
    }
}
