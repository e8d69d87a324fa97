//! What `docker save` writes, as a source.
//!
//! Its layers are plain archives and its manifest names files, not digests. So the layers are
//! stored as if they were imported one by one, and the image gets a manifest of its own; the
//! configuration stays as it is, and with it the digest of what is unpacked.
//!
//! Source: moby, `image/spec/v1.2.md`, "Combined Image JSON + Filesystem Changeset Format".

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::blob::Blob;
use crate::digest::Digest;
use crate::files::to_json;
use crate::hold::Hold;
use crate::image::Image;
use crate::import::{ImportError, Imported, Step};
use crate::ingest::{self, Layer};
use crate::name::BaseName;
use crate::oci::{self, Manifest, Platform};
use crate::store::Store;
use crate::transport::document::{self, MAX_DOCUMENT_BYTES};
use crate::transport::files::Files;
use crate::transport::reference::Tag;
use crate::transport::source::FetchError;

/// Most names that an error shows.
const SHOWN_NAMES: usize = 12;

/// An entry of `manifest.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

impl Saved {
    fn tags(&self) -> &[String] {
        self.repo_tags.as_deref().unwrap_or_default()
    }

    fn has(&self, tag: &Tag) -> bool {
        self.tags().iter().any(|named| {
            named == tag.as_str()
                || named.strip_suffix(":latest") == Some(tag.as_str())
                || named.strip_prefix("docker.io/library/") == Some(tag.as_str())
        })
    }
}

impl Store {
    /// Imports an image of an archive that `docker save` wrote, gives it `name` and pins it.
    pub fn import_docker_archive(
        &self,
        name: &BaseName,
        (file, tag): (&Path, Option<&Tag>),
        platform: &Platform,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Imported, FetchError> {
        let hold = self.hold()?;
        let files = Files::of_archive(file, &hold)?;
        let saved = find(&files, tag)?;
        let config = files.read(&saved.config, MAX_DOCUMENT_BYTES)?;
        document::check_platform(&Digest::of(&config), &config, platform)?;
        let layers = self.take_layers(&files, &saved, &hold, progress)?;
        let config = self.take(&hold, "the configuration", &config)?;
        let kinds = layers.iter().map(|layer| (&layer.blob, layer.compression));
        let manifest = Manifest::of_layers(&config, kinds);
        let manifest = to_json(&manifest, self.root())?;
        let manifest = self.take(&hold, "the manifest", &manifest)?;
        let image = Image {
            manifest: &manifest,
            media_type: oci::MANIFEST,
            name,
            annotations: BTreeMap::new(),
        };
        Ok(self.commit_image(&hold, image, progress)?)
    }

    fn take_layers(
        &self,
        files: &Files,
        saved: &Saved,
        hold: &Hold,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Vec<Layer>, FetchError> {
        let mut opened = Vec::new();
        for name in &saved.layers {
            opened.push(files.open(name)?);
        }
        let of = opened.iter().map(|(_, bytes)| bytes).sum();
        let mut before = 0;
        let mut layers = Vec::new();
        for (mut input, bytes) in opened {
            let file = hold.staging().temporary();
            let mut report = |bytes| {
                let bytes = before + bytes;
                progress(Step::Fetching { bytes, of });
            };
            let layer = ingest::ingest_archive(&mut input, &file, &mut report)
                .map_err(ImportError::from)?;
            self.place_blob(hold, &file, &layer.blob.digest)?;
            layers.push(layer);
            before += bytes;
        }
        Ok(layers)
    }

    fn take(&self, hold: &Hold, what: &'static str, content: &[u8]) -> Result<Blob, FetchError> {
        let stored = self.ingest_blob(hold, &mut &content[..], None);
        stored.map_err(|source| FetchError::Blob {
            what,
            digest: Digest::of(content),
            source,
        })
    }
}

fn find(files: &Files, tag: Option<&Tag>) -> Result<Saved, FetchError> {
    let saved: Vec<Saved> = files.read_json("manifest.json", MAX_DOCUMENT_BYTES)?;
    let fitting: Vec<_> = saved
        .iter()
        .filter(|image| tag.is_none_or(|tag| image.has(tag)))
        .collect();
    let place = files.place().display().to_string();
    let present = || {
        let names: Vec<_> = saved.iter().flat_map(Saved::tags).cloned().collect();
        names.get(..SHOWN_NAMES).unwrap_or(&names).join(", ")
    };
    match fitting.as_slice() {
        [image] => Ok((*image).clone()),
        [] => Err(FetchError::NoImage {
            place,
            wanted: tag.map(Tag::to_string).unwrap_or_default(),
            present: present(),
        }),
        several => Err(FetchError::Several {
            place,
            count: several.len(),
            present: present(),
        }),
    }
}
