//! The OCI documents of the store, as far as it writes them.
//!
//! Source: OCI image-spec, `image-layout.md`, `image-index.md`, `manifest.md`, `config.md`. What
//! an index has beyond this is kept as it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Digest;
use crate::name::BaseName;

pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+zstd";

/// Annotation of an index entry: its tag.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Annotation of an index entry: when the name was given, RFC 3339.
const CREATED: &str = "org.opencontainers.image.created";
/// Annotation of an index entry: the snapshot that the manifest unpacks to.
const CHAIN: &str = "io.casemate.base.chain";
/// What the tag of a base begins with.
const TAG_PREFIX: &str = "base-";

/// A reference to a blob.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[serde(flatten)]
    pub(crate) rest: BTreeMap<String, Value>,
}

impl Descriptor {
    fn new(media_type: &str, digest: &Digest, size: u64) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: digest.as_str().to_owned(),
            size,
            annotations: BTreeMap::new(),
            rest: BTreeMap::new(),
        }
    }

    /// Returns the index entry of a base.
    pub(crate) fn base(manifest: &Digest, size: u64, chain: &Digest, created: String) -> Self {
        let mut descriptor = Self::new(MANIFEST, manifest, size);
        descriptor
            .annotations
            .insert(CHAIN.to_owned(), chain.as_str().to_owned());
        descriptor.annotations.insert(CREATED.to_owned(), created);
        descriptor
    }

    /// Returns the base's name; `None` for an entry that is no base.
    pub(crate) fn name(&self) -> Option<BaseName> {
        let tag = self.annotations.get(REF_NAME)?.strip_prefix(TAG_PREFIX)?;
        BaseName::parse(tag).ok()
    }

    pub(crate) fn set_name(&mut self, name: &BaseName) {
        self.annotations
            .insert(REF_NAME.to_owned(), format!("{TAG_PREFIX}{name}"));
    }

    /// Returns the digest of the snapshot; `None` for an entry that is no base.
    pub(crate) fn chain(&self) -> Option<Digest> {
        self.annotations
            .get(CHAIN)
            .and_then(|text| Digest::parse(text.as_str()).ok())
    }

    /// Returns when the name was given.
    pub(crate) fn created(&self) -> Option<&str> {
        self.annotations.get(CREATED).map(String::as_str)
    }
}

/// `index.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    pub(crate) schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    #[serde(default)]
    pub(crate) manifests: Vec<Descriptor>,
    #[serde(flatten)]
    pub(crate) rest: BTreeMap<String, Value>,
}

impl Index {
    pub(crate) fn empty() -> Self {
        Self {
            schema_version: 2,
            media_type: Some(INDEX.to_owned()),
            manifests: Vec::new(),
            rest: BTreeMap::new(),
        }
    }

    /// Gives `name` to `entry`. A base that had the name keeps an entry under a preserved one, so
    /// that no tool which collects unreferenced blobs takes it away.
    pub(crate) fn give_name(&mut self, name: &BaseName, mut entry: Descriptor) {
        entry.set_name(name);
        if let Some(kept) = self.preserved_name(name, &entry) {
            self.manifests
                .retain(|old| old.name().as_ref() != Some(&kept));
            for old in self
                .manifests
                .iter_mut()
                .filter(|old| old.name().as_ref() == Some(name))
            {
                old.set_name(&kept);
            }
        } else {
            self.manifests
                .retain(|old| old.name().as_ref() != Some(name));
        }
        self.manifests.push(entry);
    }

    /// Returns the name for the base that `entry` takes `name` from, if it is another one.
    pub(crate) fn preserved_name(&self, name: &BaseName, entry: &Descriptor) -> Option<BaseName> {
        let old = self.find(name)?;
        let digest = Digest::parse(old.digest.as_str()).ok()?;
        (old.digest != entry.digest).then(|| name.preserved(&digest))
    }

    /// Returns the entry of a base.
    pub(crate) fn find(&self, name: &BaseName) -> Option<&Descriptor> {
        self.manifests
            .iter()
            .find(|entry| entry.name().as_ref() == Some(name))
    }
}

/// A manifest with one layer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    schema_version: u32,
    media_type: &'static str,
    config: Descriptor,
    layers: [Descriptor; 1],
}

impl Manifest {
    pub(crate) fn new(config: (&Digest, u64), layer: (&Digest, u64)) -> Self {
        Self {
            schema_version: 2,
            media_type: MANIFEST,
            config: Descriptor::new(CONFIG, config.0, config.1),
            layers: [Descriptor::new(LAYER, layer.0, layer.1)],
        }
    }
}

/// An image configuration. It has no time in it: the same archive gives the same digest.
#[derive(Debug, Serialize)]
pub(crate) struct ImageConfig {
    architecture: &'static str,
    os: &'static str,
    config: BTreeMap<String, Value>,
    rootfs: RootFs,
}

#[derive(Debug, Serialize)]
struct RootFs {
    #[serde(rename = "type")]
    kind: &'static str,
    diff_ids: [Digest; 1],
}

impl ImageConfig {
    pub(crate) fn new(diff_id: &Digest) -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            architecture,
            os: "linux",
            config: BTreeMap::new(),
            rootfs: RootFs {
                kind: "layers",
                diff_ids: [diff_id.clone()],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(content: &[u8]) -> Descriptor {
        Descriptor::base(
            &Digest::of(content),
            1,
            &Digest::of(content),
            "now".to_owned(),
        )
    }

    fn names(index: &Index) -> Vec<String> {
        index
            .manifests
            .iter()
            .filter_map(|d| Some(d.name()?.as_str().to_owned()))
            .collect()
    }

    #[test]
    fn a_moved_name_preserves_what_had_it() {
        let name = BaseName::parse("d").unwrap();
        let mut index = Index::empty();
        for content in [b"a", b"a", b"b", b"a", b"b", b"c"] {
            index.give_name(&name, entry(content));
        }
        let short = |content: &[u8]| format!("d-{}", Digest::of(content).short());
        let mut have = names(&index);
        have.sort();
        let mut want = vec![short(b"a"), short(b"b"), "d".to_owned()];
        want.sort();
        assert_eq!(have, want);
        let current = index
            .manifests
            .iter()
            .find(|d| d.name().as_ref() == Some(&name))
            .unwrap();
        assert_eq!(current.digest, Digest::of(b"c").as_str());
    }

    #[test]
    fn foreign_entries_and_keys_survive() {
        let text = r#"{"schemaVersion":2,"manifests":[{"mediaType":"x","digest":"sha512:1","size":1,"platform":{"os":"linux"}}],"subject":1}"#;
        let mut index: Index = serde_json::from_str(text).unwrap();
        index.give_name(&BaseName::parse("d").unwrap(), entry(b"a"));
        let value = serde_json::to_value(&index).unwrap();
        assert_eq!(value["subject"], 1);
        assert_eq!(value["manifests"][0]["platform"]["os"], "linux");
        assert_eq!(value["manifests"].as_array().unwrap().len(), 2);
    }
}
