//! The OCI documents of the store, as far as it writes them.
//!
//! Source: OCI image-spec, `image-layout.md`, `image-index.md`, `manifest.md`, `config.md`. What
//! an index has beyond this is kept as it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::blob::Blob;
use crate::decode::Compression;
use crate::digest::{Digest, DigestError};
use crate::name::BaseName;

pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
pub(crate) const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const DOCKER_LAYER_ZSTD: &str = "application/vnd.docker.image.rootfs.diff.tar.zstd";
const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
const DOCKER_LAYER_PLAIN: &str = "application/vnd.docker.image.rootfs.diff.tar";
pub(crate) const LAYER_PLAIN: &str = "application/vnd.oci.image.layer.v1.tar";

/// Annotation of an index entry: its tag.
pub(crate) const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Annotation of an index entry: when the name was given, RFC 3339.
const CREATED: &str = "org.opencontainers.image.created";
/// Annotation of an index entry: the snapshot that the manifest unpacks to.
const CHAIN: &str = "io.casemate.base.chain";
/// Annotation of an index entry: the manifest that the image had where it came from, if it is
/// another one.
pub(crate) const ORIGIN: &str = "io.casemate.base.origin";
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
    pub(crate) fn new(media_type: &str, blob: &Blob) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: blob.digest.as_str().to_owned(),
            size: blob.size,
            annotations: BTreeMap::new(),
            rest: BTreeMap::new(),
        }
    }

    /// Returns the blob that it refers to.
    pub(crate) fn blob(&self) -> Result<Blob, DigestError> {
        Ok(Blob {
            digest: Digest::parse(self.digest.as_str())?,
            size: self.size,
        })
    }

    /// Returns the index entry of a base.
    pub(crate) fn base(media_type: &str, manifest: &Blob, chain: &Digest, created: String) -> Self {
        let mut descriptor = Self::new(media_type, manifest);
        descriptor
            .annotations
            .insert(CHAIN.to_owned(), chain.as_str().to_owned());
        descriptor.annotations.insert(CREATED.to_owned(), created);
        descriptor
    }

    /// Returns the tag.
    pub(crate) fn tag(&self) -> Option<&str> {
        self.annotations.get(REF_NAME).map(String::as_str)
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

    pub(crate) fn platform(&self) -> Option<Platform> {
        serde_json::from_value(self.rest.get("platform")?.clone()).ok()
    }

    pub(crate) fn set_platform(&mut self, platform: &Platform) {
        let mut fields = serde_json::Map::new();
        fields.insert(
            "architecture".to_owned(),
            platform.architecture.as_str().into(),
        );
        fields.insert("os".to_owned(), platform.os.as_str().into());
        if let Some(variant) = &platform.variant {
            fields.insert("variant".to_owned(), variant.as_str().into());
        }
        self.rest.insert("platform".to_owned(), fields.into());
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

/// A manifest.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

impl Manifest {
    /// Returns the manifest of a root file system, which has one layer.
    pub(crate) fn of_rootfs(config: &Blob, layer: &Blob, compression: Compression) -> Self {
        Self::of_layers(config, [(layer, compression)])
    }

    /// Returns the manifest of layers that were just written, the lowest first.
    pub(crate) fn of_layers<'a, I>(config: &Blob, layers: I) -> Self
    where
        I: IntoIterator<Item = (&'a Blob, Compression)>,
    {
        let entry = |(layer, compression): (&Blob, Compression)| {
            let media_type = match compression {
                Compression::Gzip => LAYER_GZIP,
                // No other one is stored.
                Compression::Zstd | Compression::None | Compression::Xz => LAYER_ZSTD,
            };
            Descriptor::new(media_type, layer)
        };
        Self {
            schema_version: 2,
            media_type: Some(MANIFEST.to_owned()),
            config: Descriptor::new(CONFIG, config),
            layers: layers.into_iter().map(entry).collect(),
            rest: BTreeMap::new(),
        }
    }

    /// Turns Docker's manifest into OCI's, which differs in the media types alone.
    pub(crate) fn make_oci(&mut self) {
        self.media_type = Some(MANIFEST.to_owned());
        CONFIG.clone_into(&mut self.config.media_type);
        for layer in &mut self.layers {
            layer.media_type = oci_layer(&layer.media_type).to_owned();
        }
    }
}

/// Returns OCI's media type for that of a layer; as it is where there is none.
pub(crate) fn oci_layer(media_type: &str) -> &str {
    match media_type {
        DOCKER_LAYER_GZIP => LAYER_GZIP,
        DOCKER_LAYER_ZSTD => LAYER_ZSTD,
        DOCKER_LAYER_PLAIN => LAYER_PLAIN,
        other => other,
    }
}

/// Tells whether a layer of this media type can be unpacked.
pub(crate) fn is_layer(media_type: &str) -> bool {
    matches!(oci_layer(media_type), LAYER_GZIP | LAYER_ZSTD | LAYER_PLAIN)
}

/// An image configuration, as far as it concerns the tree. What is written has no time in it: the
/// same archive gives the same digest.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ImageConfig {
    #[serde(flatten)]
    pub(crate) platform: Platform,
    #[serde(default)]
    config: Option<Value>,
    pub(crate) rootfs: RootFs,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RootFs {
    #[serde(rename = "type")]
    kind: String,
    pub(crate) diff_ids: Vec<Digest>,
}

impl ImageConfig {
    /// Returns that of a root file system for this machine.
    pub(crate) fn of_rootfs(diff_id: &Digest) -> Self {
        Self {
            platform: Platform::here(),
            config: Some(Value::Object(serde_json::Map::new())),
            rootfs: RootFs {
                kind: "layers".to_owned(),
                diff_ids: vec![diff_id.clone()],
            },
        }
    }
}

/// What an image runs on, in the words of Go (OCI image-spec, `image-index.md`, "platform").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// The processor: `amd64`, `arm64`.
    pub architecture: String,
    /// The operating system: `linux`.
    pub os: String,
    /// The kind of the processor, `v8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// A text that is no platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("platform {0:?} is not like linux/amd64 or linux/arm64/v8")]
pub struct PlatformError(String);

impl Platform {
    /// Parses `os/architecture[/variant]`.
    pub fn parse(text: &str) -> Result<Self, PlatformError> {
        let parts: Vec<_> = text.split('/').collect();
        let valid = |part: &&str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        let (os, architecture, variant) = match parts.as_slice() {
            [os, architecture] => (*os, *architecture, None),
            [os, architecture, variant] => (*os, *architecture, Some((*variant).to_owned())),
            _ => return Err(PlatformError(text.to_owned())),
        };
        if !parts.iter().all(valid) {
            return Err(PlatformError(text.to_owned()));
        }
        Ok(Self {
            architecture: architecture.to_owned(),
            os: os.to_owned(),
            variant,
        })
    }

    /// Tells whether an image for `found` is one for `self`; a variant counts where one is asked
    /// for.
    pub(crate) fn takes(&self, found: &Self) -> bool {
        let variant = self.variant.is_none() || self.variant == found.variant;
        (&self.os, &self.architecture) == (&found.os, &found.architecture) && variant
    }

    /// Returns that of this machine.
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            architecture: architecture.to_owned(),
            os: "linux".to_owned(),
            variant: None,
        }
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(content: &[u8]) -> Descriptor {
        let digest = Digest::of(content);
        let blob = Blob {
            digest: digest.clone(),
            size: 1,
        };
        Descriptor::base(MANIFEST, &blob, &digest, "now".to_owned())
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
    fn platforms_are_parsed_written_and_compared() {
        let parse = |text| Platform::parse(text).unwrap();
        for text in ["linux/amd64", "linux/arm64/v8", "linux/riscv64"] {
            assert_eq!(parse(text).to_string(), text);
        }
        for bad in [
            "",
            "linux",
            "linux/",
            "linux/arm64/v8/x",
            "Linux/amd64",
            "linux/a b",
        ] {
            Platform::parse(bad).unwrap_err();
        }
        assert!(parse("linux/arm64").takes(&parse("linux/arm64/v8")));
        assert!(!parse("linux/arm64/v7").takes(&parse("linux/arm64/v8")));
        assert!(!parse("linux/amd64").takes(&parse("linux/arm64")));
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
