//! The store as its users see it: names, pins, versions, formats, locks.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use casemate_rootfs::{BaseName, ResolveError, Source, Step, Store, StoreError, Unpinned};

fn name(text: &str) -> BaseName {
    BaseName::parse(text).unwrap()
}

/// A small tree with one file of the given content.
fn tree(at: &Path, content: &str) {
    fs::create_dir_all(at.join("etc")).unwrap();
    fs::write(at.join("etc/release"), content).unwrap();
}

fn import(store: &Store, base: &str, tree: &Path) -> casemate_rootfs::Imported {
    store
        .import(&name(base), Source::Directory(tree), &mut |_| {})
        .unwrap()
}

#[test]
fn a_directory_becomes_a_named_pinned_snapshot() {
    let temp = tempfile::tempdir().unwrap();
    let source = temp.path().join("tree");
    tree(&source, "one\n");
    fs::set_permissions(source.join("etc"), fs::Permissions::from_mode(0o555)).unwrap();
    let store = Store::create(temp.path().join("root")).unwrap();
    let imported = import(&store, "debian12", &source);

    let base = Store::open(temp.path().join("root"))
        .unwrap()
        .resolve("debian12")
        .unwrap();
    assert_eq!(base, imported.base);
    assert_eq!(
        base.fs,
        temp.path()
            .join("root/snapshots/sha256")
            .join(base.chain.hex())
            .join("fs")
    );
    assert_eq!(
        fs::read_to_string(base.fs.join("etc/release")).unwrap(),
        "one\n"
    );
    assert_eq!(
        fs::metadata(base.fs.join("etc")).unwrap().mode() & 0o7777,
        0o555
    );
    let listed = store.list().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (&listed[0].name, listed[0].pinned),
        (&name("debian12"), true)
    );
    assert_eq!(
        fs::read_dir(temp.path().join("root/staging"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn skopeo_reads_the_store_and_its_copy_has_the_same_layer() {
    let temp = tempfile::tempdir().unwrap();
    tree(&temp.path().join("tree"), "one\n");
    let store = Store::create(temp.path().join("root")).unwrap();
    let imported = import(&store, "debian12", &temp.path().join("tree"));
    let from = format!(
        "oci:{}:base-debian12",
        temp.path().join("root/store").display()
    );

    let inspect = Command::new("skopeo")
        .args(["inspect", "--raw", &from])
        .output()
        .unwrap();
    assert!(
        inspect.status.success(),
        "{}",
        String::from_utf8_lossy(&inspect.stderr)
    );
    assert_eq!(
        casemate_rootfs::Digest::of(&inspect.stdout),
        imported.base.manifest
    );
    let inspect = Command::new("skopeo")
        .args(["inspect", &from])
        .output()
        .unwrap();
    assert!(
        inspect.status.success(),
        "{}",
        String::from_utf8_lossy(&inspect.stderr)
    );
    let config = Command::new("skopeo")
        .args(["inspect", "--config", &from])
        .output()
        .unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config.stdout).unwrap();
    assert_eq!(
        config["rootfs"]["diff_ids"][0],
        imported.base.chain.as_str()
    );

    let to = format!("oci:{}:copy", temp.path().join("copy").display());
    let copy = Command::new("skopeo")
        .args(["copy", "--insecure-policy", &from, &to])
        .output()
        .unwrap();
    assert!(
        copy.status.success(),
        "{}",
        String::from_utf8_lossy(&copy.stderr)
    );
    let manifest: serde_json::Value = serde_json::from_slice(
        &Command::new("skopeo")
            .args(["inspect", "--raw", &to])
            .output()
            .unwrap()
            .stdout,
    )
    .unwrap();
    let layer = manifest["layers"][0]["digest"].as_str().unwrap();
    let blob = layer.strip_prefix("sha256:").unwrap();
    let ours = fs::read(temp.path().join("root/store/blobs/sha256").join(blob)).unwrap();
    assert_eq!(
        ours,
        fs::read(temp.path().join("copy/blobs/sha256").join(blob)).unwrap()
    );
}

#[test]
fn the_same_tree_has_the_same_version_and_another_one_preserves_it() {
    let temp = tempfile::tempdir().unwrap();
    let source = temp.path().join("tree");
    tree(&source, "one\n");
    let store = Store::create(temp.path().join("root")).unwrap();
    let first = import(&store, "debian12", &source).base;
    assert_eq!(import(&store, "debian12", &source).base, first);
    assert_eq!(store.list().unwrap().len(), 1);

    fs::write(source.join("etc/release"), "two\n").unwrap();
    let second = import(&store, "debian12", &source).base;
    assert_ne!(second.chain, first.chain);
    assert_eq!(store.resolve("debian12").unwrap(), second);
    let kept = format!("debian12-{}", &first.manifest.hex()[..12]);
    let old = store.resolve(&kept).unwrap();
    assert_eq!((&old.chain, &old.manifest), (&first.chain, &first.manifest));
    assert_eq!(
        fs::read_to_string(old.fs.join("etc/release")).unwrap(),
        "one\n"
    );
    assert!(store.list().unwrap().iter().all(|base| base.pinned));
}

#[test]
fn a_pin_comes_and_goes_and_the_base_stays() {
    let temp = tempfile::tempdir().unwrap();
    tree(&temp.path().join("tree"), "one\n");
    let store = Store::create(temp.path().join("root")).unwrap();
    import(&store, "d", &temp.path().join("tree"));
    assert_eq!(store.unpin(&name("d")).unwrap(), Unpinned::Removed);
    assert_eq!(store.unpin(&name("d")).unwrap(), Unpinned::WasNotPinned);
    assert!(!store.list().unwrap()[0].pinned);
    store.pin(&name("d")).unwrap();
    assert!(store.list().unwrap()[0].pinned);
    for outcome in [store.pin(&name("x")), store.unpin(&name("x")).map(drop)] {
        assert!(matches!(outcome, Err(StoreError::UnknownBase(unknown)) if unknown == name("x")));
    }
    assert_eq!(
        fs::read_dir(temp.path().join("root/pins")).unwrap().count(),
        1
    );
}

#[test]
fn a_store_of_a_newer_version_is_refused_and_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    tree(&temp.path().join("tree"), "one\n");
    let root = temp.path().join("root");
    let store = Store::create(&root).unwrap();
    import(&store, "d", &temp.path().join("tree"));
    let meta = root.join("meta.json");

    for text in [r#"{"format":1,"incompat":["new"]}"#, r#"{"format":2}"#] {
        fs::write(&meta, text).unwrap();
        for outcome in [Store::open(&root), Store::create(&root)] {
            assert!(matches!(outcome, Err(StoreError::Format { .. })));
        }
    }
    fs::write(&meta, r#"{"format":1,"ro_compat":["new"]}"#).unwrap();
    let store = Store::open(&root).unwrap();
    store.resolve("d").unwrap();
    assert!(matches!(
        store.unpin(&name("d")),
        Err(StoreError::Format { .. })
    ));
    let refused = store.import(
        &name("d"),
        Source::Directory(&temp.path().join("tree")),
        &mut |_| {},
    );
    refused.unwrap_err();
    assert_eq!(
        fs::read_to_string(&meta).unwrap(),
        r#"{"format":1,"ro_compat":["new"]}"#
    );
    fs::write(&meta, r#"{"format":1,"compat":["new"]}"#).unwrap();
    Store::open(&root).unwrap().pin(&name("d")).unwrap();
}

#[test]
fn what_is_not_there_is_named() {
    let temp = tempfile::tempdir().unwrap();
    assert!(matches!(Store::open(temp.path()), Err(StoreError::Absent(at)) if at == temp.path()));
    let store = Store::create(temp.path()).unwrap();
    assert!(matches!(
        store.resolve("debian12"),
        Err(ResolveError::Store(StoreError::UnknownBase(base))) if base == name("debian12")
    ));
    assert!(matches!(store.resolve("../x"), Err(ResolveError::Name(_))));
    let nothing = casemate_rootfs::Digest::of(b"nothing");
    assert!(matches!(
        store.use_lock(&nothing),
        Err(StoreError::UnknownSnapshot(chain)) if chain == nothing
    ));
}

#[test]
fn a_use_lock_is_shared_and_bars_an_exclusive_one() {
    use rustix::fs::{FlockOperation, flock};
    let temp = tempfile::tempdir().unwrap();
    tree(&temp.path().join("tree"), "one\n");
    let store = Store::create(temp.path().join("root")).unwrap();
    let base = import(&store, "d", &temp.path().join("tree")).base;
    let held = (
        store.use_lock(&base.chain).unwrap(),
        store.use_lock(&base.chain).unwrap(),
    );
    let file = fs::File::open(base.fs.with_file_name("use")).unwrap();
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    assert_eq!(flock(&file, exclusive), Err(rustix::io::Errno::WOULDBLOCK));
    drop(held);
    flock(&file, exclusive).unwrap();
}

#[test]
fn host_users_have_no_way_to_the_programs_of_a_snapshot() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("root");
    Store::create(&root).unwrap();
    for (dir, mode) in [("snapshots", 0o700), ("staging", 0o700), ("store", 0o755)] {
        assert_eq!(
            fs::metadata(root.join(dir)).unwrap().mode() & 0o7777,
            mode,
            "{dir}"
        );
    }
}

#[test]
fn the_steps_come_in_their_order() {
    let temp = tempfile::tempdir().unwrap();
    tree(&temp.path().join("tree"), "one\n");
    let store = Store::create(temp.path().join("root")).unwrap();
    let mut steps = Vec::new();
    let tree = temp.path().join("tree");
    store
        .import(&name("d"), Source::Directory(&tree), &mut |step| {
            steps.push(step);
        })
        .unwrap();
    let durable: Vec<_> = steps
        .iter()
        .filter(|step| !matches!(step, Step::Reading(_) | Step::Unpacking { .. }))
        .collect();
    assert_eq!(
        durable,
        [
            &Step::Synced,
            &Step::BlobsStored,
            &Step::SnapshotStored,
            &Step::Pinned,
            &Step::Named
        ]
    );
}

#[test]
fn a_missing_snapshot_hides_no_other_base() {
    let temp = tempfile::tempdir().unwrap();
    let store = Store::create(temp.path().join("root")).unwrap();
    for base in ["here", "missing"] {
        tree(&temp.path().join(base), base);
        import(&store, base, &temp.path().join(base));
    }
    let missing = store.resolve("missing").unwrap();
    fs::remove_dir_all(missing.fs.parent().unwrap()).unwrap();
    let listed = store.list().unwrap();
    assert!(listed[0].bytes.is_some() && listed[1].bytes.is_none());
    // An import of the same tree makes it anew.
    import(&store, "missing", &temp.path().join("missing"));
    assert!(store.list().unwrap()[1].bytes.is_some());
}
