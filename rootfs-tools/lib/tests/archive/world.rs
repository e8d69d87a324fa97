//! A store and a victim: a directory outside that archives try to reach.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use casemate_rootfs::{BaseName, Blob, BlobError, Digest, Image, Imported, Source, Store};

use crate::image::{self, Entry};

/// What became of an archive.
enum Outcome {
    Landed(Box<Imported>),
    /// With the whole chain of the error.
    Refused(String),
}

pub(crate) struct World {
    temp: tempfile::TempDir,
    store: Store,
}

impl World {
    pub(crate) fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("victim")).unwrap();
        let store = Store::create(temp.path().join("root")).unwrap();
        Self { temp, store }
    }

    /// A directory outside the store that stays empty.
    pub(crate) fn victim(&self) -> PathBuf {
        self.temp.path().join("victim")
    }

    /// Imports, and checks what holds for every import.
    fn import(&self, archive: &[u8]) -> Outcome {
        let name = BaseName::parse("test").unwrap();
        let outcome = self
            .store
            .import(&name, Source::Archive(&mut &*archive), &mut |_| {});
        let reached = fs::read_dir(self.victim()).unwrap().count();
        assert_eq!(reached, 0, "the victim was reached");
        let left = fs::read_dir(self.store.root().join("staging"))
            .unwrap()
            .count();
        assert_eq!(left, 0, "staging is not empty");
        match outcome {
            Ok(imported) => Outcome::Landed(Box::new(imported)),
            Err(error) => Outcome::Refused(chain(&error)),
        }
    }

    /// Imports what must be accepted. Returns the root of the snapshot and the notices.
    pub(crate) fn lands(&self, entries: &[Entry]) -> (PathBuf, Vec<String>) {
        self.bytes_land(&image::archive(entries))
    }

    pub(crate) fn bytes_land(&self, archive: &[u8]) -> (PathBuf, Vec<String>) {
        let imported = match self.import(archive) {
            Outcome::Landed(imported) => imported,
            Outcome::Refused(text) => panic!("refused: {text}"),
        };
        let notices = imported
            .notices
            .kept()
            .iter()
            .map(ToString::to_string)
            .collect();
        (imported.base.fs, notices)
    }

    /// Imports what must be refused. The message must contain `says`.
    pub(crate) fn refuses(&self, entries: &[Entry], says: &str) {
        self.bytes_refused(&image::archive(entries), says);
    }

    /// Imports what may be accepted or refused; in that case the store is as it was.
    pub(crate) fn lands_or_not(&self, archive: &[u8]) {
        let before = listing(self.store.root());
        match self.import(archive) {
            Outcome::Landed(_) => {
                let collection = casemate_rootfs::Collection {
                    action: casemate_rootfs::Action::Remove,
                    min_age: std::time::Duration::ZERO,
                    workspaces: Vec::new(),
                    quarantine: Vec::new(),
                };
                for base in self.store.list().unwrap() {
                    self.store.unpin(&base.name).unwrap();
                }
                self.store.collect(&collection).unwrap();
            }
            Outcome::Refused(_) => assert_unchanged(&before, self.store.root()),
        }
    }

    pub(crate) fn bytes_refused(&self, archive: &[u8], says: &str) {
        let before = listing(self.store.root());
        let Outcome::Refused(text) = self.import(archive) else {
            panic!("the archive was accepted");
        };
        assert!(text.contains(says), "{text:?} does not say {says:?}");
        assert_unchanged(&before, self.store.root());
    }
}

/// Images.
impl World {
    /// Imports an image of these layers, each a list of entries, and checks what holds for every
    /// import. Returns the root of the snapshot and the notices.
    pub(crate) fn image_lands(&self, layers: &[&[Entry]]) -> (PathBuf, Vec<String>) {
        let layers: Vec<_> = layers
            .iter()
            .map(|entries| image::archive(entries))
            .collect();
        let diff_ids: Vec<_> = layers.iter().map(|layer| Digest::of(layer)).collect();
        match self.commit(&layers, &diff_ids) {
            Outcome::Landed(imported) => {
                let notices = imported.notices.kept().iter().map(ToString::to_string);
                let notices = notices.collect();
                (imported.base.fs, notices)
            }
            Outcome::Refused(text) => panic!("refused: {text}"),
        }
    }

    /// Imports an image that must be refused, leaving the store as it was.
    pub(crate) fn image_refused(&self, layers: &[&[Entry]], says: &str) {
        let layers: Vec<_> = layers
            .iter()
            .map(|entries| image::archive(entries))
            .collect();
        let diff_ids: Vec<_> = layers.iter().map(|layer| Digest::of(layer)).collect();
        self.commit_refused(&layers, &diff_ids, says);
    }

    /// A blob whose content or size is not as announced.
    pub(crate) fn wrong_blob_refused(&self, content: &[u8]) {
        let before = listing(self.store.root());
        let hold = self.store.hold().unwrap();
        let announced = |content: &[u8], size: usize| Blob {
            digest: Digest::of(content),
            size: size as u64,
        };
        let right = announced(content, content.len());
        let mut flipped = content.to_vec();
        flipped[700] ^= 1;
        let outcome = self
            .store
            .ingest_blob(&hold, &mut &flipped[..], Some(&right));
        assert!(matches!(outcome, Err(BlobError::Digest { .. })));
        for size in [content.len() - 1, content.len() + 1] {
            let wrong = announced(content, size);
            let outcome = self
                .store
                .ingest_blob(&hold, &mut &content[..], Some(&wrong));
            assert!(matches!(outcome, Err(BlobError::Size { .. })));
        }
        drop(hold);
        assert_unchanged(&before, self.store.root());
    }

    /// A layer that the configuration describes as another one.
    pub(crate) fn wrong_diff_id_refused(&self, layer: &[u8], other: &[u8]) {
        let says = "but the image's configuration says";
        self.commit_refused(&[layer.to_vec()], &[Digest::of(other)], says);
        let two = [layer.to_vec(), layer.to_vec()];
        self.commit_refused(&two, &[Digest::of(layer), Digest::of(other)], says);
        self.commit_refused(
            &two,
            &[Digest::of(layer)],
            "2 layers, but its configuration",
        );
    }

    /// An image that claims the snapshot of `layers`, but has `evil` for the last one.
    pub(crate) fn borrowed_snapshot_refused(&self, layers: &[Vec<u8>], evil: &[u8]) {
        let diff_ids: Vec<_> = layers.iter().map(|layer| Digest::of(layer)).collect();
        let mut layers = layers.to_vec();
        *layers.last_mut().unwrap() = evil.to_vec();
        self.commit_refused(&layers, &diff_ids, "but the image's configuration says");
    }

    fn commit_refused(&self, layers: &[Vec<u8>], diff_ids: &[Digest], says: &str) {
        let before = listing(self.store.root());
        let Outcome::Refused(text) = self.commit(layers, diff_ids) else {
            panic!("the image was accepted");
        };
        assert!(text.contains(says), "{text:?} does not say {says:?}");
        assert_unchanged(&before, self.store.root());
    }

    fn commit(&self, layers: &[Vec<u8>], diff_ids: &[Digest]) -> Outcome {
        let hold = self.store.hold().unwrap();
        let ingest = |content: &[u8]| {
            let blob = Blob {
                digest: Digest::of(content),
                size: content.len() as u64,
            };
            if !self.store.has_blob(&hold, &blob).unwrap() {
                let stored = self.store.ingest_blob(&hold, &mut &*content, Some(&blob));
                assert_eq!(stored.unwrap(), blob);
            }
            blob
        };
        let descriptor = |kind: &str, blob: &Blob| {
            let media_type = format!("application/vnd.oci.image.{kind}");
            serde_json::json!({
                "mediaType": media_type, "digest": blob.digest, "size": blob.size,
            })
        };
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux",
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = ingest(config.to_string().as_bytes());
        let layers: Vec<_> = layers
            .iter()
            .map(|layer| descriptor("layer.v1.tar", &ingest(layer)))
            .collect();
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": media_type,
            "config": descriptor("config.v1+json", &config), "layers": layers,
        });
        let manifest = ingest(manifest.to_string().as_bytes());
        let name = BaseName::parse("test").unwrap();
        let image = Image {
            manifest: &manifest,
            media_type,
            name: &name,
            annotations: BTreeMap::new(),
        };
        let outcome = self.store.commit_image(&hold, image, &mut |_| {});
        let reached = fs::read_dir(self.victim()).unwrap().count();
        assert_eq!(reached, 0, "the victim was reached");
        drop(hold);
        for dir in ["staging", "holds"] {
            let left = fs::read_dir(self.store.root().join(dir)).unwrap().count();
            assert_eq!(left, 0, "{dir} is not empty");
        }
        match outcome {
            Ok(imported) => Outcome::Landed(Box::new(imported)),
            Err(error) => Outcome::Refused(chain(&error)),
        }
    }
}

/// The whole chain of an error.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

fn assert_unchanged(before: &Listing, root: &Path) {
    let after = listing(root);
    let paths = before.keys().chain(after.keys());
    let changed: Vec<_> = paths
        .filter(|path| before.get(*path) != after.get(*path))
        .collect();
    assert!(changed.is_empty(), "the store changed: {changed:?}");
}

type Listing = BTreeMap<PathBuf, (u64, u64, i64, Vec<u8>)>;

/// Each path below `root` with what tells a change, but for the directories in which an import
/// makes and removes its own.
fn listing(root: &Path) -> Listing {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let metadata = path.symlink_metadata().unwrap();
        let mut content = Vec::new();
        if metadata.is_dir() {
            open.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if metadata.is_file() {
            content = fs::read(&path).unwrap();
        }
        let comes_and_goes = ["staging", "holds", "trash", "blobs/sha256"];
        let changed = if comes_and_goes.iter().any(|dir| path.ends_with(dir)) {
            0
        } else {
            metadata.ctime_nsec()
        };
        found.insert(
            path,
            (metadata.ino(), u64::from(metadata.mode()), changed, content),
        );
    }
    found
}
