//! Layouts that the tests write by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// A layout under construction.
pub(crate) struct Layout {
    pub(crate) dir: PathBuf,
}

impl Layout {
    pub(crate) fn new(dir: PathBuf) -> Self {
        fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self { dir }
    }

    /// Stores a blob. Returns its descriptor.
    pub(crate) fn blob(&self, media_type: &str, content: &[u8]) -> Value {
        let digest = casemate_rootfs::Digest::of(content);
        fs::write(self.dir.join("blobs/sha256").join(digest.hex()), content).unwrap();
        json!({ "mediaType": media_type, "digest": digest, "size": content.len() })
    }

    pub(crate) fn json(&self, media_type: &str, document: &Value) -> Value {
        self.blob(media_type, document.to_string().as_bytes())
    }

    /// Stores a layer of these files. Returns its descriptor and the digest of its archive.
    pub(crate) fn layer(&self, files: &BTreeMap<&str, &str>) -> (Value, Value) {
        let archive = archive(files);
        let layer = self.blob(LAYER, &archive);
        let diff_id = layer["digest"].clone();
        (layer, diff_id)
    }

    /// Stores a configuration for this platform.
    pub(crate) fn config(&self, platform: (&str, &str), diff_ids: &[Value]) -> Value {
        let (os, architecture) = platform;
        let document = json!({
            "os": os,
            "architecture": architecture,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        self.json(CONFIG, &document)
    }

    /// Stores a whole image with one layer. Returns the manifest.
    pub(crate) fn image(&self, platform: (&str, &str), release: &str) -> Value {
        let (layer, diff_id) = self.layer(&BTreeMap::from([("release", release)]));
        let config = self.config(platform, &[diff_id]);
        manifest(&config, &[layer])
    }

    /// Writes the index with one entry of the tag `t`.
    pub(crate) fn enter(&self, entry: &Value) {
        let mut entry = entry.clone();
        entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "t" });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] });
        fs::write(self.dir.join("index.json"), index.to_string()).unwrap();
    }
}

pub(crate) fn manifest(config: &Value, layers: &[Value]) -> Value {
    json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers })
}

/// Makes a plain archive with tar(1).
pub(crate) fn archive(files: &BTreeMap<&str, &str>) -> Vec<u8> {
    let temp = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = temp.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let output = Command::new("tar")
        .args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "-C"])
        .arg(temp.path())
        .args(["-cf", "-", "."])
        .output()
        .unwrap();
    assert!(output.status.success());
    output.stdout
}
