//! Why something is kept.

use serde::Serialize;

use super::CollectError;
use super::mark::{self, Marks, Through};
use super::roots::{Root, Roots};
use crate::digest::Digest;
use crate::store::Store;

/// A chain from a root to what it keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Why {
    /// The root, for people.
    pub root: String,
    /// The blobs on the way, the last of which was asked for.
    pub blobs: Vec<Digest>,
    /// Whether the root keeps the snapshot of this digest.
    pub snapshot: bool,
}

/// Returns a chain of each root that keeps the blob or snapshot.
pub(super) fn chains(
    store: &Store,
    roots: &Roots,
    digest: &Digest,
) -> Result<Vec<Why>, CollectError> {
    let entries = roots.index.manifests.iter();
    let entries: Vec<Root> = entries
        .map(|entry| mark::index_root(store.index_path(), entry))
        .collect();
    let mut found = Vec::new();
    for root in roots.list.iter().chain(&entries) {
        let mut marks = Marks::default();
        marks
            .add(store, root)
            .map_err(|source| CollectError::Root {
                file: root.file().to_owned(),
                source: source.into(),
            })?;
        let blobs = chain(&marks, digest);
        let snapshot = marks.snapshots.contains_key(digest);
        if snapshot || !blobs.is_empty() {
            found.push(Why {
                root: root.kind.to_string(),
                blobs,
                snapshot,
            });
        }
    }
    Ok(found)
}

fn chain(marks: &Marks, digest: &Digest) -> Vec<Digest> {
    let mut chain = Vec::new();
    let mut at = Some(digest);
    while let Some(digest) = at.filter(|digest| !chain.contains(*digest)) {
        at = match marks.blobs.get(digest) {
            Some(Through::Blob(above)) => Some(above),
            Some(Through::Root) => None,
            None => return Vec::new(),
        };
        chain.push(digest.clone());
    }
    chain.reverse();
    chain
}
