//! What a check finds and makes good.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use casemate_rootfs::{BaseName, Checked, Depth, Repair, ResolvedBase, Source, Store};

struct World {
    _temp: tempfile::TempDir,
    store: Store,
    base: ResolvedBase,
}

impl World {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("tree");
        fs::create_dir_all(tree.join("etc")).unwrap();
        fs::write(tree.join("etc/release"), "release").unwrap();
        let store = Store::create(temp.path().join("root")).unwrap();
        let name = BaseName::parse("base").unwrap();
        let base = store
            .import(&name, Source::Directory(&tree), &mut |_| {})
            .unwrap()
            .base;
        Self {
            _temp: temp,
            store,
            base,
        }
    }

    fn deep(&self, repair: Repair) -> Checked {
        self.store.check(Depth::Content, repair).unwrap()
    }

    /// Finds one problem that says so, and repairs it.
    fn repaired(&self, says: &str) {
        let found = self.deep(Repair::No);
        assert_eq!(found.findings.len(), 1, "{found:?}");
        assert!(found.findings[0].problem.contains(says), "{found:?}");
        assert!(!found.is_clean());
        let repaired = self.deep(Repair::Yes);
        assert!(
            repaired.is_clean() && repaired.findings.len() == 1,
            "{repaired:?}"
        );
        assert_eq!(self.deep(Repair::No).findings, []);
        let release = self.base.fs.join("etc/release");
        assert_eq!(fs::read_to_string(release).unwrap(), "release");
    }

    fn blob(&self) -> PathBuf {
        let blobs = self.store.root().join("store/blobs/sha256");
        blobs.join(self.base.manifest.hex())
    }
}

fn write(path: &Path, content: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, content).unwrap();
}

#[test]
fn a_whole_store_is_clean() {
    let world = World::new();
    let checked = world.deep(Repair::No);
    assert_eq!(checked.findings, []);
    assert_eq!((checked.blobs, checked.snapshots), (3, 1));
}

#[test]
fn a_snapshot_that_changed_is_unpacked_anew() {
    let world = World::new();
    let release = world.base.fs.join("etc/release");
    fs::write(&release, "changed").unwrap();
    world.repaired("differs from its layers at etc/release");
    fs::set_permissions(&release, fs::Permissions::from_mode(0o777)).unwrap();
    world.repaired("differs from its layers at etc/release");
    fs::write(world.base.fs.join("etc/more"), "").unwrap();
    world.repaired("differs from its layers at etc");
    fs::remove_dir_all(world.base.fs.parent().unwrap()).unwrap();
    world.repaired("is missing");
    fs::write(world.base.fs.with_file_name("meta.json"), "").unwrap();
    world.repaired("has no record");
    world.store.use_lock(&world.base.chain).unwrap();
}

#[test]
fn a_snapshot_in_use_is_not_replaced() {
    let world = World::new();
    fs::write(world.base.fs.join("etc/release"), "changed").unwrap();
    let used = world.store.use_lock(&world.base.chain).unwrap();
    assert!(!world.deep(Repair::Yes).is_clean());
    drop(used);
    world.repaired("differs");
}

#[test]
fn index_layout_and_strays_are_made_good() {
    let world = World::new();
    let store = world.store.root().join("store");
    write(&store.join("index.json"), b"");
    world.repaired("index.json is damaged");
    write(&store.join("oci-layout"), b"{}");
    world.repaired("oci-layout is missing or damaged");
    fs::write(store.join("blobs/sha256/stray"), "").unwrap();
    world.repaired("does not belong there");
}

#[test]
fn a_damaged_blob_is_found_and_an_import_replaces_it() {
    let world = World::new();
    let content = fs::read(world.blob()).unwrap();
    let mut flipped = content.clone();
    flipped[10] ^= 1;
    write(&world.blob(), &flipped);
    assert!(!world.deep(Repair::No).is_clean());
    world.deep(Repair::Yes);
    world.blob().symlink_metadata().unwrap_err();
    assert!(!world.deep(Repair::No).is_clean());
    fs::write(world.blob(), content).unwrap();
    assert_eq!(world.deep(Repair::No).findings, []);
}

#[test]
fn a_pin_without_an_entry_is_noted_and_entered() {
    let world = World::new();
    let root = world.store.root();
    let index = root.join("store/index.json");
    let empty = r#"{"schemaVersion":2,"manifests":[]}"#;
    fs::remove_dir_all(root.join("index")).unwrap();
    write(&index, empty.as_bytes());
    let found = world.deep(Repair::No);
    assert!(found.is_clean() && found.notes.len() == 1, "{found:?}");
    assert!(world.deep(Repair::Yes).is_clean());
    assert_eq!(world.store.resolve("base").unwrap(), world.base);
}
