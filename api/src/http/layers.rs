//! The gate at the service's start: no terminal may ever run its layer on another base.

use std::fmt::Write as _;

use casemate_bundles::HostPath;
use casemate_rootfs::layer::{Blocked, LayerError, gate};
use casemate_rootfs::{Store, StoreError};

use crate::config::Config;

/// What becomes of a service some of whose layers lack their bases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokenLayers {
    /// It does not start (BASE-05).
    Refused,
    /// It starts; the terminals of those tiles are refused one by one.
    Locked,
}

/// Why the gate stays closed.
#[derive(Debug, thiserror::Error)]
pub enum LayersError {
    /// Layers without their bases.
    #[error("{0}")]
    Blocked(String),
    /// The layers cannot be looked at.
    #[error("the layers of the workspace cannot be looked at")]
    Look(#[source] LayerError),
    /// The store.
    #[error("the bases cannot be looked at")]
    Store(#[source] StoreError),
}

/// Looks at every layer, before anything is started. Some look-ups for each, whatever is in it.
pub(super) fn check(
    config: &Config,
    workspace: &HostPath,
    broken: BrokenLayers,
) -> Result<(), LayersError> {
    let store = match Store::open(config.root.as_str()) {
        Ok(store) => store,
        // A service without bases starts, and says so when one is asked for.
        Err(StoreError::Absent(_)) => return Ok(()),
        Err(error) => return Err(LayersError::Store(error)),
    };
    let verdict = gate(&store, workspace.as_ref()).map_err(LayersError::Look)?;
    if verdict.blocked.is_empty() {
        tracing::info!(layers = verdict.layers, "every layer has its base");
        return Ok(());
    }
    match broken {
        BrokenLayers::Refused => Err(LayersError::Blocked(refusal(&verdict.blocked))),
        BrokenLayers::Locked => {
            for blocked in &verdict.blocked {
                tracing::warn!(layer = %blocked.key, reason = %blocked, "layer is locked");
            }
            Ok(())
        }
    }
}

/// One line for each layer, then the ways out (BASE-06).
fn refusal(blocked: &[Blocked]) -> String {
    let mut text = format!("{} layers cannot be used;", blocked.len());
    for one in blocked {
        // Writing to a string cannot fail.
        let _written = write!(text, "\n  {one}");
    }
    text.push_str(
        "\nrestore: rootfs-tools import --name NAME ARCHIVE     the base that is missing\
         \nrebase:  rootfs-tools rebase TILE --to NAME           once it is back, onto another one\
         \nreset:   rootfs-tools reset TILE                      gives up the layer's changes\
         \nor start with --degraded, without the terminals of these tiles",
    );
    text
}
