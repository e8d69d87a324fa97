//! An index that is damaged: noticed, and its copy stands in.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use casemate_rootfs::{BaseName, Source, Store};

struct World {
    temp: tempfile::TempDir,
    store: Store,
}

impl World {
    /// A store with the bases `one` and `two`.
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::create(temp.path().join("root")).unwrap();
        let world = Self { temp, store };
        world.import("one");
        world.import("two");
        world
    }

    fn import(&self, name: &str) {
        let tree = self.temp.path().join(name);
        fs::create_dir_all(tree.join("etc")).unwrap();
        fs::write(tree.join("etc/name"), name).unwrap();
        let base = BaseName::parse(name).unwrap();
        self.store
            .import(&base, Source::Directory(&tree), &mut |_| {})
            .unwrap();
    }

    fn index(&self) -> PathBuf {
        self.store.root().join("store/index.json")
    }

    fn names(&self) -> Vec<String> {
        let bases = self.store.bases().unwrap();
        bases.iter().map(|base| base.name.to_string()).collect()
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .map(|list| list.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    files.sort();
    files
}

#[test]
fn an_index_cut_anywhere_is_noticed_and_the_copy_is_used() {
    let world = World::new();
    assert_eq!(world.store.index_damage().unwrap(), None);
    let whole = fs::read(world.index()).unwrap();
    for length in 0..whole.len() {
        fs::write(world.index(), &whole[..length]).unwrap();
        let damage = world.store.index_damage().unwrap().unwrap();
        assert!(damage.to_string().contains("index.json is damaged"));
        assert_eq!(world.names(), ["one", "two"], "cut at {length}");
    }
}

#[test]
fn zeros_marks_and_what_others_wrote_are_noticed() {
    let world = World::new();
    let whole = fs::read(world.index()).unwrap();
    let mut marked = b"\xef\xbb\xbf".to_vec();
    marked.extend_from_slice(&whole);
    let foreign = br#"{"schemaVersion":2,"manifests":[]}"#.to_vec();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for content in [vec![0; whole.len()], marked, foreign, flipped] {
        fs::write(world.index(), content).unwrap();
        assert!(world.store.index_damage().unwrap().is_some());
        assert_eq!(world.names(), ["one", "two"]);
    }
    fs::remove_file(world.index()).unwrap();
    assert!(world.store.index_damage().unwrap().unwrap().missing);
    assert_eq!(world.names(), ["one", "two"]);
}

#[test]
fn the_generation_before_stands_in_for_a_copy_that_is_damaged_too() {
    let world = World::new();
    let copies = files(&world.store.root().join("index"));
    assert_eq!(copies.len(), 2);
    fs::write(world.index(), "").unwrap();
    fs::write(&copies[1], "").unwrap();
    assert_eq!(world.store.index_damage().unwrap().unwrap().copy, copies[0]);
    assert_eq!(world.names(), ["one"]);
    fs::write(&copies[0], "").unwrap();
    let error = world.store.bases().unwrap_err();
    assert!(error.to_string().contains("store/index.json"), "{error}");
}

#[test]
fn the_next_import_repairs_the_index_and_keeps_the_damaged_one_aside() {
    let world = World::new();
    fs::write(world.index(), "foreign").unwrap();
    world.import("three");
    assert_eq!(world.store.index_damage().unwrap(), None);
    assert_eq!(world.names(), ["one", "three", "two"]);
    let aside = files(&world.store.root().join("quarantine"));
    assert_eq!(aside.len(), 1);
    assert_eq!(fs::read_to_string(&aside[0]).unwrap(), "foreign");
    assert_eq!(files(&world.store.root().join("index")).len(), 2);
}

#[test]
fn a_copy_that_was_not_published_yet_changes_nothing() {
    let world = World::new();
    let copies = files(&world.store.root().join("index"));
    // As after a crash between the copy and the index: the older index is the valid one.
    fs::copy(&copies[0], world.index()).unwrap();
    assert_eq!(world.store.index_damage().unwrap(), None);
    assert_eq!(world.names(), ["one"]);
}
