//! Bases and layers that older programs left.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use casemate_rootfs::Store;
use casemate_rootfs::layer::{Layers, TileKey, gate, stamps};

fn rootfs(path: &Path, version: Option<&str>) {
    fs::create_dir_all(path.join("etc")).unwrap();
    fs::write(path.join("etc/name"), path.to_str().unwrap()).unwrap();
    if let Some(version) = version {
        fs::write(path.join("etc/xbin-base-version"), format!("{version}\n")).unwrap();
    }
}

fn layer(workspace: &Path, tile: &str, version: Option<&str>) {
    let dir = workspace
        .join(".xbin/term")
        .join(TileKey::of(tile).as_str());
    fs::create_dir_all(dir.join("upper/etc")).unwrap();
    fs::create_dir_all(dir.join("work")).unwrap();
    fs::write(dir.join("upper/etc/mine"), tile).unwrap();
    if let Some(version) = version {
        fs::write(dir.join("base"), format!("{version}\n")).unwrap();
    }
}

#[test]
fn bases_and_layers_of_older_programs_are_taken_over() {
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name);
    rootfs(&path("rootfs"), Some("bbbbbbbbbbbb"));
    rootfs(&path("rootfs-aaaaaaaaaaaa"), Some("aaaaaaaaaaaa"));
    // Without a version of its own, a directory is none of theirs.
    rootfs(&path("rootfs-backup"), None);
    let workspace = path("ws");
    layer(&workspace, "apps/new", Some("bbbbbbbbbbbb"));
    layer(&workspace, "apps/old", Some("aaaaaaaaaaaa"));
    layer(&workspace, "apps/older", None);
    fs::create_dir_all(workspace.join(".xbin/term/view-0123456789")).unwrap();

    let store = Store::create(path("root")).unwrap();
    let adopt = || {
        store
            .adopt_bases(&path("rootfs"), None, &mut |_, _| {})
            .unwrap()
    };
    let bases = adopt();
    let names: Vec<_> = bases.iter().map(|base| base.name.as_str()).collect();
    assert_eq!(names, ["rootfs-aaaaaaaaaaaa", "rootfs-bbbbbbbbbbbb"]);
    let current = store.current().unwrap().unwrap();
    assert_eq!(current.name.as_str(), "rootfs-bbbbbbbbbbbb");
    assert_eq!(adopt(), bases, "again");

    let layers = store.adopt_layers(&workspace).unwrap();
    let shown: Vec<_> = layers
        .iter()
        .map(|one| (one.base.as_str(), one.installed))
        .collect();
    assert_eq!(
        shown,
        [
            ("rootfs-bbbbbbbbbbbb@bbbbbbbbbbbb", true),
            ("rootfs-aaaaaaaaaaaa@aaaaaaaaaaaa", true),
            ("v0", false),
        ]
    );
    assert_eq!(store.adopt_layers(&workspace).unwrap(), layers, "again");
    // The third is locked until its base is there, or until it is reset.
    let verdict = gate(&store, &workspace).unwrap();
    assert_eq!((verdict.layers, verdict.blocked.len()), (3, 1));
    let roots = stamps(&workspace).unwrap();
    let chains = roots.iter().filter(|root| root.base.chain_id.is_some());
    assert_eq!(chains.count(), 2);
    rootfs(&path("first"), None);
    let bases = store
        .adopt_bases(&path("first"), None, &mut |_, _| {})
        .unwrap();
    assert_eq!(bases[0].name, "first-v0");
    assert!(gate(&store, &workspace).unwrap().blocked.is_empty());
}

#[test]
fn an_adopted_layer_is_given_to_the_ids_of_its_tile() {
    let temp = tempfile::tempdir().unwrap();
    let workspace = temp.path().join("ws");
    layer(&workspace, "apps/old", None);
    let key = TileKey::of("apps/old");
    let upper = workspace
        .join(".xbin/term")
        .join(key.as_str())
        .join("upper");
    std::os::unix::fs::chown(upper.join("etc/mine"), Some(1000), Some(8)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    fs::set_permissions(upper.join("etc/mine"), mode).unwrap();
    let layers = Layers::open(&workspace).unwrap().unwrap();
    let held = layers.lock(&key, Duration::ZERO).unwrap();
    let mut generation = held.current().unwrap().unwrap();
    let first = 0x5400_0000;
    // Interrupted after one file, it is done again.
    let mine = generation.path().join("upper/etc/mine");
    std::os::unix::fs::chown(&mine, Some(first + 1000), Some(8)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    fs::set_permissions(&mine, mode).unwrap();
    generation.give_to(first).unwrap();
    generation.give_to(first).unwrap();
    let found = fs::metadata(&mine).unwrap();

    assert_eq!((found.uid(), found.gid()), (first + 1000, first + 8));
    assert_eq!(found.mode() & 0o7777, 0o4755);
    let dir = fs::metadata(generation.path().join("upper")).unwrap();
    assert_eq!((dir.uid(), dir.gid()), (first, first));
    assert_eq!(
        held.current().unwrap().unwrap().stamp().first_id,
        Some(first)
    );
}
