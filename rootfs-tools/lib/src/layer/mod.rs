//! Layers: what a tile's terminals have changed in the root file system, kept in generations.
//!
//! ```text
//! <workspace>/.xbin/term/<tile-key>/lock        held while the layer is mounted or changed
//!                                   current     link to gen/<N>: the only generation that is used
//!                                   gen/<N>/stamp.json   what it is built on, synced first
//!                                   gen/<N>/lock         held while a rebase mounts it
//!                                   gen/<N>/{upper,work}
//!                                   trash-<uuid>         renamed here, then deleted
//! ```
//!
//! A generation is whole before `current` leads to it, so whoever is interrupted leaves the layer
//! as it was: generations above the current one are leftovers, those below it are kept for a way
//! back. A layer without `current` has no content, whatever lies beside it; that is what a reset
//! does first. Older programs kept `upper`, `work` and a version line `base` directly in the
//! layer's directory; the first lock turns that into a generation.
//!
//! Everything is reached by handles and never through a symlink: the workspace belongs to the
//! service, and uppers are written by whoever uses the terminal.

pub(crate) mod changes;
mod disk;
mod gate;
mod held;
mod key;
mod layers;
pub(crate) mod merged;
mod owner;
mod stamp;

use std::path::PathBuf;

pub use gate::{Blocked, Reason, Verdict, gate};
pub use held::{Generation, Held, NewLayer};
pub use key::TileKey;
pub use layers::{Layers, Look, Stamped, stamps};
pub use stamp::{Identity, Stamp, StampedBase, UNSTAMPED};

use crate::store::StoreError;

/// Why a layer cannot be looked at, used or changed.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// A system call.
    #[error("cannot {operation} of the layer {layer}")]
    Call {
        /// What was tried, as a verb with an object.
        operation: &'static str,
        /// Whose, by its directory name; `*` for all.
        layer: String,
        /// Why.
        #[source]
        source: casemate_sys::Error,
    },
    /// A stamp is no stamp.
    #[error("{} cannot be read: restore it, or reset the layer", path.display())]
    Stamp {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A stamp of a newer version.
    #[error("{} was written by a newer version; use that", .0.display())]
    NewerStamp(PathBuf),
    /// The link to the current generation leads nowhere that this version knows.
    #[error("{} does not lead to a generation: point it to gen/<number>, or reset the layer", .0.display())]
    Current(PathBuf),
    /// Somebody holds the layer.
    #[error("the layer {0} is in use: end its session first")]
    Busy(TileKey),
    /// The layer is mounted, though nobody holds its lock.
    #[error("the layer {0} is still mounted: end every process of its last session first")]
    Mounted(TileKey),
    /// The layer's base is not installed.
    #[error(
        "the base {base} of the layer {key} is not in the store: import it again, or reset the layer"
    )]
    MissingBase {
        /// Which layer.
        key: TileKey,
        /// On what it is built.
        base: Box<StampedBase>,
    },
    /// There is no such layer.
    #[error("there is no layer {0}")]
    Absent(TileKey),
    /// There is no older generation to go back to.
    #[error("the layer {0} has no older generation")]
    NoOlder(TileKey),
    /// A generation that is not there, or not one that may be used this way.
    #[error("the layer {key} has no generation {number} that is being built")]
    NoGeneration {
        /// Which layer.
        key: TileKey,
        /// Which generation.
        number: u32,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn call(
    operation: &'static str,
    layer: &TileKey,
) -> impl Fn(casemate_sys::Error) -> LayerError + use<> {
    let layer = layer.to_string();
    move |source| LayerError::Call {
        operation,
        layer: layer.clone(),
        source,
    }
}
