//! What a collection removes, and what keeps things from it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use casemate_rootfs::{
    Action, BaseName, CollectError, Collected, Collection, Digest, ResolvedBase, Source, Store,
};

struct World {
    temp: tempfile::TempDir,
    store: Store,
}

fn name(text: &str) -> BaseName {
    BaseName::parse(text).unwrap()
}

fn everything() -> Collection {
    Collection {
        action: Action::Remove,
        min_age: Duration::ZERO,
        workspaces: Vec::new(),
        quarantine: Vec::new(),
    }
}

impl World {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::create(temp.path().join("root")).unwrap();
        Self { temp, store }
    }

    fn import(&self, base: &str) -> ResolvedBase {
        let tree = self.temp.path().join(base);
        fs::create_dir_all(tree.join("etc")).unwrap();
        fs::write(tree.join("etc/name"), base).unwrap();
        self.store
            .import(&name(base), Source::Directory(&tree), &mut |_| {})
            .unwrap()
            .base
    }

    fn unpinned(&self, base: &str) -> ResolvedBase {
        let imported = self.import(base);
        self.store.unpin(&name(base)).unwrap();
        imported
    }

    fn collect(&self) -> Collected {
        self.store.collect(&everything()).unwrap()
    }

    /// Names of what is stored: blobs, then snapshots.
    fn stored(&self) -> (Vec<String>, Vec<String>) {
        let root = self.store.root();
        (
            names(&root.join("store/blobs/sha256")),
            names(&root.join("snapshots/sha256")),
        )
    }

    /// A layer of a workspace on a base, as its stamp says it.
    fn layer(&self, base: &ResolvedBase) -> PathBuf {
        let generation = self.temp.path().join("ws").join(generation());
        fs::create_dir_all(generation.join("upper")).unwrap();
        let stamp = serde_json::json!({
            "schema": 1,
            "base": {
                "name": base.name, "version": "1",
                "manifestDigest": base.manifest, "chainID": base.chain,
            },
            "createdBy": "test", "created": "2026-01-01T00:00:00Z",
            "overlayOpts": [],
        });
        fs::write(generation.join("stamp.json"), stamp.to_string()).unwrap();
        self.temp.path().join("ws")
    }
}

/// The first generation of a tile's layer, in its workspace.
fn generation() -> PathBuf {
    let key = casemate_rootfs::layer::TileKey::of("apps/notes");
    PathBuf::from(format!(".xbin/term/{}/gen/1", key.as_str()))
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_base_goes_with_its_pin_and_takes_only_its_own_along() {
    let world = World::new();
    let kept = world.import("kept");
    let before = world.stored();
    let gone = world.unpinned("gone");
    let collected = world.collect();
    assert_eq!(collected.names, [name("gone")]);
    assert_eq!(collected.snapshots, [gone.chain]);
    assert_eq!(collected.blobs.len(), 3);
    assert_eq!(world.stored(), before);
    assert_eq!(names(&world.store.root().join("trash")).len(), 0);
    assert_eq!(world.store.bases().unwrap(), [kept]);
    assert_eq!(world.store.index_damage().unwrap(), None);
    let again = world.collect();
    assert!(again.blobs.is_empty() && again.names.is_empty());
}

#[test]
fn a_preview_removes_nothing() {
    let world = World::new();
    world.unpinned("gone");
    let before = world.stored();
    let preview = Collection {
        action: Action::Preview,
        ..everything()
    };
    let collected = world.store.collect(&preview).unwrap();
    assert_eq!((collected.names.len(), collected.blobs.len()), (1, 3));
    assert_eq!(world.stored(), before);
    assert_eq!(world.store.bases().unwrap().len(), 1);
}

#[test]
fn what_is_young_stays() {
    let world = World::new();
    world.unpinned("young");
    let belt = Collection {
        min_age: Duration::from_hours(1),
        ..everything()
    };
    let collected = world.store.collect(&belt).unwrap();
    assert_eq!((collected.names.len(), collected.blobs.len()), (0, 0));
    assert_eq!(world.store.bases().unwrap().len(), 1);
}

#[test]
fn a_running_sandbox_keeps_its_base() {
    let world = World::new();
    let base = world.unpinned("used");
    let used = world.store.use_lock(&base.chain).unwrap();
    let before = world.stored();
    assert!(world.collect().snapshots.is_empty());
    assert_eq!(world.stored(), before);
    drop(used);
    assert_eq!(world.collect().snapshots, [base.chain]);
}

#[test]
fn a_layer_keeps_its_base_when_its_workspace_is_given_or_known() {
    let world = World::new();
    let base = world.unpinned("below");
    let workspace = world.layer(&base);
    let before = world.stored();
    let given = Collection {
        workspaces: vec![workspace.clone()],
        ..everything()
    };
    assert!(world.store.collect(&given).unwrap().names.is_empty());
    world.store.register_workspace(&workspace).unwrap();
    assert!(world.collect().names.is_empty());
    assert_eq!(world.stored(), before);
    let why = world.store.why(&base.chain, &[]).unwrap();
    assert!(why.iter().any(|why| why.root.starts_with("layer, ")));

    fs::remove_dir_all(workspace.join(".xbin")).unwrap();
    assert_eq!(world.collect().names, [name("below")]);
}

#[test]
fn a_hold_keeps_what_it_names_and_ends_with_its_process() {
    let world = World::new();
    let hold = world.store.hold().unwrap();
    let blob = world
        .store
        .ingest_blob(&hold, &mut &b"content"[..], None)
        .unwrap();
    assert!(world.collect().blobs.is_empty());
    let why = world.store.why(&blob.digest, &[]).unwrap();
    assert!(why[0].root.starts_with("import under way"));
    drop(hold);
    assert_eq!(world.collect().blobs, [blob.digest]);

    // As a process leaves it that was killed.
    let stale = world.store.root().join("holds/stale");
    fs::write(&stale, "").unwrap();
    world.collect();
    stale.symlink_metadata().unwrap_err();
}

#[test]
fn the_current_base_stays_without_a_pin() {
    let world = World::new();
    world.unpinned("now");
    world.store.set_current(&name("now")).unwrap();
    assert!(world.collect().names.is_empty());
}

#[test]
fn a_root_that_cannot_be_read_ends_it_and_is_named() {
    let world = World::new();
    let base = world.import("base");
    world.unpinned("gone");
    let workspace = world.layer(&base);
    world.store.register_workspace(&workspace).unwrap();
    let root = world.store.root();
    let hex = Digest::of(workspace.to_str().unwrap().as_bytes());
    let manifest = root.join("store/blobs/sha256").join(base.manifest.hex());
    let pin = root.join("pins/base.json");
    let stamp = workspace.join(generation()).join("stamp.json");
    let damages = [
        (pin.clone(), pin.clone()),
        (stamp.clone(), stamp),
        (root.join("store/index.json"), root.join("store/index.json")),
        (root.join("current.json"), root.join("current.json")),
        (
            root.join(format!("workspaces/{}.json", hex.hex())),
            root.join(format!("workspaces/{}.json", hex.hex())),
        ),
        (manifest, pin),
    ];
    world.store.set_current(&name("base")).unwrap();
    for (damaged, named) in damages {
        let content = fs::read(&damaged).unwrap();
        for damage in [&b""[..], &vec![0; content.len()]] {
            fs::remove_file(&damaged).unwrap();
            fs::write(&damaged, damage).unwrap();
            let before = world.stored();
            match world.store.collect(&everything()) {
                Err(CollectError::Root { file, .. }) => assert_eq!(file, named),
                other => panic!("{}: {other:?}", damaged.display()),
            }
            assert_eq!(world.stored(), before);
            assert_eq!(world.store.bases().unwrap().len(), 2);
        }
        fs::write(&damaged, content).unwrap();
    }
    assert_eq!(world.collect().names, [name("gone")]);
}

#[test]
fn a_pinned_base_without_its_manifest_ends_it() {
    let world = World::new();
    let base = world.import("base");
    let blobs = world.store.root().join("store/blobs/sha256");
    fs::remove_file(blobs.join(base.manifest.hex())).unwrap();
    let before = world.stored();
    let error = world.store.collect(&everything()).unwrap_err();
    assert!(error.to_string().contains("pins/base.json"), "{error}");
    assert_eq!(world.stored(), before);
}

#[test]
fn quarantine_is_the_way_out_and_takes_nothing_else() {
    let world = World::new();
    world.import("good");
    world.import("bad");
    let pin = world.store.root().join("pins/bad.json");
    let fine = Collection {
        quarantine: vec![pin.clone()],
        ..everything()
    };
    let error = world.store.collect(&fine).unwrap_err();
    assert!(matches!(error, CollectError::NoObstacle(file) if file == pin));
    fs::write(&pin, "damaged").unwrap();
    let collected = world.store.collect(&fine).unwrap();
    assert_eq!(collected.names, [name("bad")]);
    assert_eq!(
        fs::read_to_string(&collected.quarantined[0]).unwrap(),
        "damaged"
    );
    pin.symlink_metadata().unwrap_err();
    assert_eq!(world.store.bases().unwrap().len(), 1);

    let index = world.store.root().join("store/index.json");
    fs::write(&index, "damaged").unwrap();
    let out = Collection {
        quarantine: vec![index],
        ..everything()
    };
    world.store.collect(&out).unwrap();
    assert_eq!(world.store.index_damage().unwrap(), None);
    assert_eq!(world.store.bases().unwrap().len(), 1);
}

#[test]
fn another_tools_entry_keeps_its_image() {
    let world = World::new();
    let base = world.unpinned("ours");
    let index = world.store.root().join("store/index.json");
    let text = fs::read_to_string(&index).unwrap();
    // With a tag that is no base's, and as if this program had written it.
    let foreign = text.replace("base-ours", "theirs");
    let copy = format!(
        "index/0000000099-{}.json",
        Digest::of(foreign.as_bytes()).hex()
    );
    fs::write(world.store.root().join(copy), &foreign).unwrap();
    fs::write(&index, &foreign).unwrap();
    let before = world.stored();
    assert!(world.collect().blobs.is_empty());
    assert_eq!(world.stored(), before);
    let why = world.store.why(&base.manifest, &[]).unwrap();
    assert!(why[0].root.starts_with("entry theirs of"), "{why:?}");
}

#[test]
fn the_reason_is_a_chain_of_blobs() {
    let world = World::new();
    let base = world.import("base");
    let config = world
        .stored()
        .0
        .into_iter()
        .map(|hex| Digest::parse(format!("sha256:{hex}")).unwrap())
        .find(|digest| *digest != base.manifest)
        .unwrap();
    let why = world.store.why(&config, &[]).unwrap();
    assert_eq!(why.len(), 2);
    assert!(why[0].root.starts_with("pin ") && why[1].root.starts_with("entry base-base"));
    assert_eq!(why[0].blobs, [base.manifest, config]);
    assert!(world.store.why(&Digest::of(b"x"), &[]).unwrap().is_empty());
}
