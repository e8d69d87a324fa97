//! The record of what a generation of a layer is built on.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::name::BaseName;
use crate::store::ResolvedBase;

/// The form of a stamp that this version writes and reads.
const SCHEMA: u32 = 1;
/// Version of the base under a layer that nobody has stamped (BASE-03).
pub const UNSTAMPED: &str = "v0";
/// How the root of a layer is mounted; the keeper's plan has the same.
pub(crate) const OVERLAY_OPTIONS: [&str; 4] =
    ["redirect_dir=on", "index=on", "metacopy=off", "xino=off"];

/// `stamp.json`: written and synced before the layer is mounted for the first time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stamp {
    /// Its form; 1.
    pub schema: u32,
    /// The base below the layer: nothing else may ever be below it (BASE-04).
    pub base: StampedBase,
    /// The tile, by its path relative to the workspace, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tile: Option<String>,
    /// The program that made the layer.
    pub created_by: String,
    /// When, RFC 3339 in UTC.
    pub created: String,
    /// Digest of the base's package list, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pkgs_digest: Option<Digest>,
    /// How the layer is mounted.
    pub overlay_opts: Vec<String>,
    /// The host id that the layer's files of inner id 0 belong to; none where they are stored from
    /// 0, as another program left them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_id: Option<u32>,
    /// The directory of the base as it was when the layer was last mounted on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower: Option<Identity>,
}

/// The base below a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StampedBase {
    /// Its name at that time; none for a label of another program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<BaseName>,
    /// Its version for people: the first digits of the manifest's digest, or the label of a base of
    /// another program.
    pub version: String,
    /// Digest of its manifest; none for a label that nothing in the store has yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_digest: Option<Digest>,
    /// Digest of its snapshot; none for a label that nothing in the store has yet.
    #[serde(default, rename = "chainID", skip_serializing_if = "Option::is_none")]
    pub chain_id: Option<Digest>,
}

/// What tells one directory from another that took its place: a layer's file handles point into
/// it (`index=on`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Inode number.
    pub inode: u64,
    /// Time of birth in nanoseconds, 0 where the file system does not keep it.
    pub born: u64,
}

impl StampedBase {
    /// Returns the record of a base of the store.
    pub fn of(base: &ResolvedBase) -> Self {
        Self {
            name: Some(base.name.clone()),
            version: base.manifest.short().to_owned(),
            manifest_digest: Some(base.manifest.clone()),
            chain_id: Some(base.chain.clone()),
        }
    }

    /// Returns the record of a base that only a version line names.
    pub fn labelled(version: &str) -> Self {
        let version = version.trim();
        let version = if version.is_empty() {
            UNSTAMPED
        } else {
            version
        };
        Self {
            name: None,
            version: version.to_owned(),
            manifest_digest: None,
            chain_id: None,
        }
    }
}

impl std::fmt::Display for StampedBase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name}@{}", self.version),
            None => f.write_str(&self.version),
        }
    }
}

impl Stamp {
    /// Makes the stamp of a new layer or generation on `base`.
    pub(crate) fn new(base: StampedBase, tile: Option<String>, first_id: Option<u32>) -> Self {
        Self {
            schema: SCHEMA,
            base,
            tile,
            created_by: concat!("casemate ", env!("CARGO_PKG_VERSION")).to_owned(),
            created: crate::time::now(),
            pkgs_digest: None,
            overlay_opts: OVERLAY_OPTIONS.map(str::to_owned).to_vec(),
            first_id,
            lower: None,
        }
    }

    /// Whether this version understands the stamp.
    pub(crate) fn is_known(&self) -> bool {
        self.schema == SCHEMA
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_reads_as_it_was_written() {
        let text = r#"{"schema":1,"base":{"name":"debian12","version":"e3b0c44298fc","manifestDigest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","chainID":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},"tile":"apps/x","createdBy":"x","created":"2026-01-01T00:00:00Z","overlayOpts":["index=on"],"firstId":65536}"#;
        let stamp: Stamp = serde_json::from_str(text).unwrap();
        assert!(stamp.is_known());
        assert_eq!(serde_json::to_string(&stamp).unwrap(), text);
        assert_eq!(StampedBase::labelled(" \n").to_string(), "v0");
    }
}
