//! Marks what the roots reach.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::roots::{Missing, Root, RootKind};
use crate::blob::BlobError;
use crate::digest::Digest;
use crate::image::ImageError;
use crate::oci::Descriptor;
use crate::store::Store;

/// Through what something is reached.
#[derive(Debug, Clone)]
pub(super) enum Through {
    Root,
    Blob(Digest),
}

/// What is reached, each with one reason.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) blobs: HashMap<Digest, Through>,
    pub(super) snapshots: HashMap<Digest, RootKind>,
}

/// A manifest or an index, as far as it refers to blobs.
#[derive(Debug, Deserialize)]
struct References {
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default)]
    blobs: Vec<Descriptor>,
    #[serde(default)]
    manifests: Vec<Descriptor>,
    subject: Option<Descriptor>,
}

impl Marks {
    /// Marks what a root reaches. Nothing of it is marked on an error.
    pub(super) fn add(&mut self, store: &Store, root: &Root) -> Result<(), ImageError> {
        let mut reached = HashMap::new();
        let mut open: Vec<_> = root
            .manifests
            .iter()
            .map(|(digest, missing)| (digest.clone(), Through::Root, *missing))
            .collect();
        while let Some((digest, through, missing)) = open.pop() {
            if reached.contains_key(&digest) || self.blobs.contains_key(&digest) {
                continue;
            }
            reached.insert(digest.clone(), through);
            let Some(references) = references(store, &digest, missing)? else {
                continue;
            };
            let through = || Through::Blob(digest.clone());
            let leaves = [&references.layers, &references.blobs]
                .into_iter()
                .flatten();
            for leaf in leaves.chain(&references.config) {
                if let Ok(leaf) = Digest::parse(leaf.digest.as_str()) {
                    reached.entry(leaf).or_insert_with(through);
                }
            }
            for manifest in references.manifests.iter().chain(&references.subject) {
                if let Ok(manifest) = Digest::parse(manifest.digest.as_str()) {
                    // An index may list images for other machines, which nobody has fetched.
                    open.push((manifest, through(), Missing::Fine));
                }
            }
        }
        for blob in &root.blobs {
            reached.entry(blob.clone()).or_insert(Through::Root);
        }
        self.blobs.extend(reached);
        for snapshot in &root.snapshots {
            self.snapshots
                .entry(snapshot.clone())
                .or_insert_with(|| root.kind.clone());
        }
        Ok(())
    }
}

/// Returns the root that an entry of the index is. One that another tool wrote may refer to blobs
/// that are not there (OCI image-spec, `image-layout.md`).
pub(super) fn index_root(index: PathBuf, entry: &Descriptor) -> Root {
    let tag = entry.tag().unwrap_or(entry.digest.as_str()).to_owned();
    let mut root = Root::new(RootKind::Index(index, tag));
    root.snapshots.extend(entry.chain());
    // An entry with another digest is no blob of this store.
    if let Ok(digest) = Digest::parse(entry.digest.as_str()) {
        if is_manifest(&entry.media_type) {
            root.manifests.push((digest, Missing::Fine));
        } else {
            root.blobs.insert(digest);
        }
    }
    root
}

fn is_manifest(media_type: &str) -> bool {
    matches!(
        media_type,
        crate::oci::MANIFEST
            | crate::oci::INDEX
            | "application/vnd.docker.distribution.manifest.v2+json"
            | "application/vnd.docker.distribution.manifest.list.v2+json"
    )
}

/// Returns what a manifest or an index refers to; `None` where it is not there and need not be.
fn references(
    store: &Store,
    digest: &Digest,
    missing: Missing,
) -> Result<Option<References>, ImageError> {
    let content = match (store.document(digest), missing) {
        (Err(BlobError::Absent(_)), Missing::Fine) => return Ok(None),
        (content, Missing::Fine | Missing::Refused) => {
            content.map_err(|source| ImageError::Blob {
                what: "manifest",
                digest: digest.clone(),
                source,
            })?
        }
    };
    serde_json::from_slice(&content)
        .map(Some)
        .map_err(|source| ImageError::Document {
            what: "manifest",
            digest: digest.clone(),
            source,
        })
}
