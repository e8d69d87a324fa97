//! Manifests and indexes that come from outside, taken by the letter.
//!
//! A document that two programs read differently is how one image is checked and another one run
//! (CVE-2021-41190). So each is of one kind, by its own words, by its shape and by whoever
//! announced it.
//!
//! Source: OCI image-spec, `manifest.md`, `image-index.md`, `descriptor.md`; Docker image manifest
//! version 2, schema 2.

use serde::Deserialize;
use serde_json::Value;

use crate::blob::Blob;
use crate::digest::{Digest, DigestError};
use crate::oci::{self, Descriptor, Platform};

/// Longest document, in bytes: what registries accept.
pub(crate) const MAX_DOCUMENT_BYTES: u64 = 4 * 1024 * 1024;
/// Most entries of an index.
const MAX_ENTRIES: usize = 1000;
/// Most platforms that an error names.
const SHOWN_PLATFORMS: usize = 12;

const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
/// Schema 1: signed, without a configuration; nobody writes it any more.
const DOCKER_OLD: [&str; 2] = [
    "application/vnd.docker.distribution.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v1+prettyjws",
];

/// Why a document is refused.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// It is no JSON, or has not what it must have.
    #[error("the document {digest} is no manifest or index")]
    Syntax {
        /// Its digest.
        digest: Digest,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// It is of another version.
    #[error("the document {0} is not of schema version 2; push the image again with a newer tool")]
    Version(Digest),
    /// Its kind is not clear.
    #[error(
        "the document {digest} is ambiguous: announced as {announced:?}, it calls itself {own:?} and has the parts of {shape}"
    )]
    Ambiguous {
        /// Its digest.
        digest: Digest,
        /// What the index, layout or registry says.
        announced: String,
        /// What it says itself.
        own: String,
        /// What it looks like.
        shape: &'static str,
    },
    /// It is longer or shorter than announced.
    #[error("the document {digest} has {found} bytes instead of {announced}")]
    Size {
        /// Its digest.
        digest: Digest,
        /// The announced size.
        announced: u64,
        /// The size.
        found: u64,
    },
    /// It is another one.
    #[error("the document should be {announced}, but is {found}")]
    Changed {
        /// The announced digest.
        announced: Digest,
        /// The digest.
        found: Digest,
    },
    /// It refers to something by another digest.
    #[error("the document {digest} refers to something that cannot be checked")]
    Digest {
        /// Its digest.
        digest: Digest,
        /// The cause.
        #[source]
        source: DigestError,
    },
    /// An index in an index.
    #[error("the index {0} has another index for this platform, which is not followed")]
    Nested(Digest),
    /// More entries than any index needs.
    #[error("the index {digest} has {entries} entries; the limit is {MAX_ENTRIES}")]
    Entries {
        /// Its digest.
        digest: Digest,
        /// How many.
        entries: usize,
    },
    /// No image for the platform.
    #[error("the index {digest} has no image for {wanted}; it has {}", if .present.is_empty() { "none with a platform" } else { .present })]
    Platform {
        /// Its digest.
        digest: Digest,
        /// The platform asked for.
        wanted: String,
        /// The platforms it has.
        present: String,
    },
    /// The image is for something else.
    #[error("the image is for {found}, not for {wanted}; if that is meant: --platform {found}")]
    OtherPlatform {
        /// The platform asked for.
        wanted: String,
        /// The platform of the image.
        found: String,
    },
    /// Something that is no root file system.
    #[error("the manifest {digest} is of no container image: its configuration is {media_type:?}")]
    Artifact {
        /// Digest of the manifest.
        digest: Digest,
        /// Media type of its configuration.
        media_type: String,
    },
    /// A layer that cannot be had or unpacked.
    #[error("layer {layer} has the media type {media_type:?}, which is not supported")]
    Layer {
        /// Digest of the layer.
        layer: String,
        /// Its media type.
        media_type: String,
    },
    /// A layer that is somewhere else.
    #[error("layer {layer} is to be fetched from other places (urls), which is refused")]
    Foreign {
        /// Digest of the layer.
        layer: String,
    },
    /// The configuration is no configuration.
    #[error("the configuration {digest} is malformed")]
    Config {
        /// Its digest.
        digest: Digest,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// A manifest, index or configuration is larger than any real one.
    #[error("the document {digest} has {bytes} bytes; the limit is {MAX_DOCUMENT_BYTES}")]
    TooLarge {
        /// Its digest.
        digest: Digest,
        /// Its size.
        bytes: u64,
    },
}

/// A document as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// What whoever sent it says that it is.
    pub media_type: Option<String>,
    /// The document.
    pub bytes: Vec<u8>,
}

/// What a document is.
#[derive(Debug)]
pub(crate) enum Document {
    Index(Vec<Descriptor>),
    Manifest(ImageManifest),
}

/// A manifest whose parts can be fetched.
#[derive(Debug, Clone)]
pub(crate) struct ImageManifest {
    pub(crate) media_type: &'static str,
    pub(crate) blob: Blob,
    pub(crate) config: Blob,
    pub(crate) layers: Vec<Blob>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Any {
    schema_version: u32,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
    /// Schema 1.
    #[serde(default, rename = "fsLayers")]
    fs_layers: Option<Value>,
}

impl Document {
    /// Reads a document.
    pub(crate) fn parse(received: &Received) -> Result<Self, DocumentError> {
        let digest = Digest::of(&received.bytes);
        let any: Any = match serde_json::from_slice(&received.bytes) {
            Ok(any) => any,
            Err(source) => return Err(DocumentError::Syntax { digest, source }),
        };
        let announced = received.media_type.as_deref();
        let old = announced.is_some_and(|kind| DOCKER_OLD.contains(&kind));
        if any.schema_version != 2 || any.fs_layers.is_some() || old {
            return Err(DocumentError::Version(digest));
        }
        let own = any.media_type.as_deref();
        let ambiguous = |shape| DocumentError::Ambiguous {
            digest: digest.clone(),
            announced: announced.unwrap_or("nothing").to_owned(),
            own: own.unwrap_or("nothing").to_owned(),
            shape,
        };
        // Registries and layouts that know nothing say something general.
        let announced_kind = announced.filter(|kind| !is_general(kind));
        let kinds = [announced_kind, own];
        match (any.manifests, any.config, any.layers) {
            (Some(manifests), None, None) => {
                agreed(kinds, [oci::INDEX, DOCKER_INDEX]).ok_or_else(|| ambiguous("an index"))?;
                if manifests.len() > MAX_ENTRIES {
                    return Err(DocumentError::Entries {
                        digest,
                        entries: manifests.len(),
                    });
                }
                Ok(Self::Index(manifests))
            }
            (None, Some(config), Some(layers)) => {
                let media_type = agreed(kinds, [oci::MANIFEST, DOCKER_MANIFEST])
                    .ok_or_else(|| ambiguous("a manifest"))?;
                let blob = Blob {
                    digest: digest.clone(),
                    size: received.bytes.len() as u64,
                };
                ImageManifest::checked(media_type, blob, &config, &layers).map(Self::Manifest)
            }
            (Some(_), _, _) => Err(ambiguous("both")),
            (None, _, _) => Err(ambiguous("neither")),
        }
    }
}

fn is_general(media_type: &str) -> bool {
    matches!(
        media_type,
        "" | "application/json" | "application/octet-stream" | "text/plain"
    )
}

/// Returns the one of `known` that all words agree on, the first where there is no word.
fn agreed(words: [Option<&str>; 2], known: [&'static str; 2]) -> Option<&'static str> {
    let mut said = words.into_iter().flatten();
    let Some(first) = said.next() else {
        return known.into_iter().next();
    };
    let found = known.into_iter().find(|kind| *kind == first)?;
    said.all(|other| other == first).then_some(found)
}

impl ImageManifest {
    fn checked(
        media_type: &'static str,
        blob: Blob,
        config: &Descriptor,
        layers: &[Descriptor],
    ) -> Result<Self, DocumentError> {
        if !matches!(config.media_type.as_str(), oci::CONFIG | DOCKER_CONFIG) {
            return Err(DocumentError::Artifact {
                digest: blob.digest,
                media_type: config.media_type.clone(),
            });
        }
        for layer in layers {
            check_layer(layer)?;
        }
        let refer = |descriptor: &Descriptor| {
            descriptor.blob().map_err(|source| DocumentError::Digest {
                digest: blob.digest.clone(),
                source,
            })
        };
        let config = refer(config)?;
        if config.size > MAX_DOCUMENT_BYTES {
            return Err(DocumentError::TooLarge {
                digest: config.digest,
                bytes: config.size,
            });
        }
        Ok(Self {
            media_type,
            config,
            layers: layers.iter().map(refer).collect::<Result<_, _>>()?,
            blob,
        })
    }
}

fn check_layer(layer: &Descriptor) -> Result<(), DocumentError> {
    let has_urls = layer
        .rest
        .get("urls")
        .is_some_and(|urls| urls.as_array().is_none_or(|urls| !urls.is_empty()) && !urls.is_null());
    if has_urls
        || layer.media_type.contains("nondistributable")
        || layer.media_type.contains("foreign")
    {
        return Err(DocumentError::Foreign {
            layer: layer.digest.clone(),
        });
    }
    if !oci::is_layer(&layer.media_type) {
        return Err(DocumentError::Layer {
            layer: layer.digest.clone(),
            media_type: layer.media_type.clone(),
        });
    }
    Ok(())
}

/// Returns the entry for a platform. The first that fits counts; an entry without a platform
/// counts where it is the only one.
pub(crate) fn select(
    index: &Digest,
    entries: &[Descriptor],
    wanted: &Platform,
) -> Result<Descriptor, DocumentError> {
    let fitting = entries
        .iter()
        .find(|entry| entry.platform().is_some_and(|found| wanted.takes(&found)));
    let entry = match (fitting, entries) {
        (Some(entry), _) => entry,
        (None, [only]) if only.platform().is_none() => only,
        (None, _) => {
            let mut present: Vec<_> = entries
                .iter()
                .filter_map(|entry| Some(entry.platform()?.to_string()))
                .collect();
            present.dedup();
            present.truncate(SHOWN_PLATFORMS);
            return Err(DocumentError::Platform {
                digest: index.clone(),
                wanted: wanted.to_string(),
                present: present.join(", "),
            });
        }
    };
    if matches!(entry.media_type.as_str(), oci::INDEX | DOCKER_INDEX) {
        return Err(DocumentError::Nested(index.clone()));
    }
    Ok(entry.clone())
}

/// Checks that a document is the one that `entry` refers to.
pub(crate) fn check_received(entry: &Blob, received: &Received) -> Result<(), DocumentError> {
    let found = received.bytes.len() as u64;
    if found != entry.size {
        return Err(DocumentError::Size {
            digest: entry.digest.clone(),
            announced: entry.size,
            found,
        });
    }
    let digest = Digest::of(&received.bytes);
    if digest != entry.digest {
        return Err(DocumentError::Changed {
            announced: entry.digest.clone(),
            found: digest,
        });
    }
    Ok(())
}

/// Checks that an image is for a platform.
pub(crate) fn check_platform(
    config: &Digest,
    bytes: &[u8],
    wanted: &Platform,
) -> Result<(), DocumentError> {
    let found: Platform = match serde_json::from_slice(bytes) {
        Ok(found) => found,
        Err(source) => {
            return Err(DocumentError::Config {
                digest: config.clone(),
                source,
            });
        }
    };
    // The variant is often left out of configurations.
    if (&found.os, &found.architecture) == (&wanted.os, &wanted.architecture) {
        Ok(())
    } else {
        Err(DocumentError::OtherPlatform {
            wanted: wanted.to_string(),
            found: found.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn manifest() -> String {
        let entry = |media_type: &str| json!({ "mediaType": media_type, "digest": Digest::of(b""), "size": 0 });
        json!({
            "schemaVersion": 2,
            "mediaType": oci::MANIFEST,
            "config": entry(oci::CONFIG),
            "layers": [entry(oci::LAYER_ZSTD), entry(oci::LAYER_GZIP)],
        })
        .to_string()
    }

    #[test]
    fn general_words_say_nothing_and_others_must_agree() {
        let parse = |announced: Option<&str>| {
            Document::parse(&Received {
                media_type: announced.map(str::to_owned),
                bytes: manifest().into_bytes(),
            })
        };
        for agreed in [None, Some("application/json"), Some(oci::MANIFEST)] {
            assert!(
                matches!(parse(agreed), Ok(Document::Manifest(_))),
                "{agreed:?}"
            );
        }
        for other in [DOCKER_MANIFEST, oci::INDEX, "text/html"] {
            let refused = parse(Some(other));
            assert!(
                matches!(refused, Err(DocumentError::Ambiguous { .. })),
                "{other}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_changed_document_is_read_or_refused(at in 0usize..400, byte in any::<u8>()) {
            let mut bytes = manifest().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            let received = Received { media_type: None, bytes };
            if let Ok(Document::Manifest(manifest)) = Document::parse(&received) {
                prop_assert_eq!(manifest.blob.digest, Digest::of(&received.bytes));
                prop_assert!(manifest.layers.len() <= 2);
            }
        }
    }
}
