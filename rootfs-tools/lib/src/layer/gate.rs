//! The gate at the service's start: every layer's base is there (BASE-05).

use std::fmt;
use std::path::Path;

use super::key::TileKey;
use super::layers::Layers;
use super::stamp::StampedBase;
use super::{LayerError, Look};
use crate::store::Store;

/// What the gate found.
#[derive(Debug, Default)]
pub struct Verdict {
    /// How many layers have content.
    pub layers: usize,
    /// Those that must not be used as they are.
    pub blocked: Vec<Blocked>,
}

/// A layer that cannot be used.
#[derive(Debug)]
pub struct Blocked {
    /// Its directory name.
    pub key: TileKey,
    /// The tile, where it is known.
    pub tile: Option<String>,
    /// Why.
    pub reason: Reason,
}

/// Why a layer cannot be used.
#[derive(Debug)]
pub enum Reason {
    /// Its base is not in the store, or not whole.
    MissingBase(StampedBase),
    /// Its record cannot be read.
    Unreadable(LayerError),
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tile {
            Some(tile) => write!(f, "{tile} ({}): ", self.key)?,
            None => write!(f, "{}: ", self.key)?,
        }
        match &self.reason {
            Reason::MissingBase(base) => write!(f, "its base {base} is not installed"),
            Reason::Unreadable(error) => f.write_str(&casemate_sys::error::chain(error)),
        }
    }
}

/// Looks whether each layer of a workspace has the exact base that it was built on. Costs some
/// look-ups for each layer, whatever is in it.
pub fn gate(store: &Store, workspace: &Path) -> Result<Verdict, LayerError> {
    let mut verdict = Verdict::default();
    let Some(layers) = Layers::open(workspace)? else {
        return Ok(verdict);
    };
    for key in layers.keys()? {
        let (tile, reason) = match layers.look(&key) {
            Ok(None) => continue,
            Ok(Some(look)) => {
                verdict.layers += 1;
                match reason(store, &look)? {
                    Some(reason) => (look.tile, reason),
                    None => continue,
                }
            }
            Err(error) => {
                verdict.layers += 1;
                (None, Reason::Unreadable(error))
            }
        };
        verdict.blocked.push(Blocked { key, tile, reason });
    }
    Ok(verdict)
}

fn reason(store: &Store, look: &Look) -> Result<Option<Reason>, LayerError> {
    Ok(match store.resolve_stamped(&look.base)? {
        Some(_installed) => None,
        None => Some(Reason::MissingBase(look.base.clone())),
    })
}
