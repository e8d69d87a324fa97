//! Layers: keys, stamps, locks, generations, the gate, and what is left after a crash.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use casemate_rootfs::layer::{
    Held, LayerError, Layers, NewLayer, Reason, StampedBase, TileKey, gate, stamps,
};
use casemate_rootfs::{BaseName, ResolvedBase, Source, Store};

struct World {
    temp: tempfile::TempDir,
    store: Store,
}

const TILE: &str = "apps/notes";

impl World {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("ws")).unwrap();
        let store = Store::create(temp.path().join("root")).unwrap();
        Self { temp, store }
    }

    fn base(&self, name: &str) -> ResolvedBase {
        let tree = self.temp.path().join("trees").join(name);
        fs::create_dir_all(tree.join("etc")).unwrap();
        fs::write(tree.join("etc/release"), name).unwrap();
        let name = BaseName::parse(name).unwrap();
        self.store
            .import(&name, Source::Directory(&tree), &mut |_| {})
            .unwrap()
            .base
    }

    fn workspace(&self) -> PathBuf {
        self.temp.path().join("ws")
    }

    fn layers(&self) -> Layers {
        Layers::create(&self.workspace()).unwrap()
    }

    fn lock(&self) -> Held {
        self.layers().lock(&key(), Duration::ZERO).unwrap()
    }

    fn dir(&self) -> PathBuf {
        self.layers().path().join(key().as_str())
    }

    /// Leaves a layer as older programs made them.
    fn legacy(&self, label: Option<&str>) {
        let dir = self.dir();
        fs::create_dir_all(dir.join("upper/etc")).unwrap();
        fs::create_dir_all(dir.join("work")).unwrap();
        fs::write(dir.join("upper/etc/mine"), "mine").unwrap();
        if let Some(label) = label {
            fs::write(dir.join("base"), label).unwrap();
        }
    }
}

fn key() -> TileKey {
    TileKey::of(TILE)
}

fn new(base: &ResolvedBase) -> NewLayer {
    NewLayer {
        base: StampedBase::of(base),
        tile: Some(TILE.to_owned()),
        first_id: 65_536,
    }
}

fn put(generation: &Path, text: &str) {
    fs::write(generation.join("upper/file"), text).unwrap();
}

#[test]
fn a_new_layer_is_stamped_with_its_base() {
    let world = World::new();
    let base = world.base("debian12");
    assert_eq!(stamps(&world.workspace()).unwrap(), []);
    let held = world.lock();
    let made = held.ensure(&new(&base)).unwrap();
    assert_eq!(made.number(), 1);
    let again = held.ensure(&new(&world.base("debian13"))).unwrap();
    assert_eq!(again.stamp(), made.stamp(), "a stamp is written once");
    let look = world.layers().look(&key()).unwrap().unwrap();
    assert_eq!(look.base, StampedBase::of(&base));
    assert_eq!(look.tile.as_deref(), Some(TILE));
    let roots = stamps(&world.workspace()).unwrap();
    assert_eq!(roots.len(), 1);
    assert_eq!(roots[0].base.chain_id.as_ref(), Some(&base.chain));
}

#[test]
fn one_holder_at_a_time() {
    let world = World::new();
    let held = world.lock();
    let second = world.layers().lock(&key(), Duration::from_millis(50));
    assert!(matches!(second, Err(LayerError::Busy(_))));
    drop(held);
    world.lock();
}

#[test]
fn a_layer_without_a_stamp_is_v0() {
    let world = World::new();
    world.legacy(None);
    let look = world.layers().look(&key()).unwrap().unwrap();
    assert_eq!((look.base.version.as_str(), look.generation), ("v0", None));
    let held = world.lock();
    let current = held.current().unwrap().unwrap();
    assert_eq!(current.stamp().base.version, "v0");
    assert_eq!(current.stamp().first_id, None);
    let mine = world.dir().join("gen/1/upper/etc/mine");
    assert_eq!(fs::read_to_string(mine).unwrap(), "mine");
    assert!(!world.dir().join("upper").is_dir());
    // The label is a base's name, or its end.
    assert!(world.store.resolve_stamped(&look.base).unwrap().is_none());
    let base = world.base("rootfs-v0");
    let found = world.store.resolve_stamped(&look.base).unwrap();
    assert_eq!(found.unwrap().chain, base.chain);
}

#[test]
fn an_interrupted_conversion_is_completed() {
    let world = World::new();
    world.legacy(Some("abc123\n"));
    // As after the link, before the move.
    let made = world.dir().join("gen/1");
    fs::create_dir_all(made.join("upper")).unwrap();
    fs::create_dir_all(made.join("work")).unwrap();
    let stamp =
        r#"{"schema":1,"base":{"version":"abc123"},"createdBy":"","created":"","overlayOpts":[]}"#;
    fs::write(made.join("stamp.json"), stamp).unwrap();
    symlink("gen/1", world.dir().join("current")).unwrap();
    let held = world.lock();
    let current = held.current().unwrap().unwrap();
    assert_eq!(current.stamp().base.version, "abc123");
    assert!(made.join("upper/etc/mine").is_file());
    let names: Vec<_> = fs::read_dir(world.dir()).unwrap().flatten().collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

#[test]
fn what_lies_beside_the_layers_is_none() {
    let world = World::new();
    let base = world.base("debian12");
    world.lock().ensure(&new(&base)).unwrap();
    let term = world.layers().path().to_owned();
    for name in ["view-x1", "view-01234567", "x.tmp", "apps~b-0123456"] {
        fs::create_dir_all(term.join(name)).unwrap();
    }
    fs::create_dir_all(term.join("view-01234567/apps")).unwrap();
    fs::create_dir_all(term.join("apps~new-01234567/upper")).unwrap();
    let verdict = gate(&world.store, &world.workspace()).unwrap();
    assert_eq!((verdict.layers, verdict.blocked.len()), (1, 0));
    assert_eq!(stamps(&world.workspace()).unwrap().len(), 1);
}

#[test]
fn the_gate_names_each_layer_without_its_base() {
    let world = World::new();
    let base = world.base("debian12");
    world.lock().ensure(&new(&base)).unwrap();
    let broken = world.layers().path().join("apps~b-01234567");
    fs::create_dir_all(broken.join("gen/1/upper")).unwrap();
    fs::write(broken.join("gen/1/stamp.json"), "{").unwrap();
    symlink("gen/1", broken.join("current")).unwrap();
    fs::remove_file(base.fs.parent().unwrap().join("meta.json")).unwrap();
    let verdict = gate(&world.store, &world.workspace()).unwrap();
    assert_eq!(verdict.layers, 2);
    let lines: Vec<_> = verdict.blocked.iter().map(ToString::to_string).collect();
    assert!(lines[0].contains("stamp.json cannot be read"), "{lines:?}");
    assert!(
        lines[1].starts_with("apps/notes (apps~notes-") && lines[1].contains("debian12@"),
        "{lines:?}"
    );
    assert!(matches!(verdict.blocked[1].reason, Reason::MissingBase(_)));
    assert!(
        stamps(&world.workspace()).is_err(),
        "a root that cannot be read"
    );
}

#[test]
fn a_generation_counts_when_it_is_current() {
    let world = World::new();
    let (old, fresh) = (world.base("debian12"), world.base("debian13"));
    let held = world.lock();
    let first = held.ensure(&new(&old)).unwrap();
    put(first.path(), "one");
    let mut stamp = first.stamp().clone();
    stamp.base = StampedBase::of(&fresh);
    let second = held.begin(stamp.clone()).unwrap();
    put(second.path(), "two");
    assert_eq!(held.current().unwrap().unwrap().number(), 1);
    assert_eq!(
        stamps(&world.workspace()).unwrap().len(),
        2,
        "both bases stay"
    );
    drop(held);
    let held = world.lock();
    assert!(!second.path().is_dir(), "a leftover");
    let second = held.begin(stamp).unwrap();
    assert_eq!(second.number(), 2);
    put(second.path(), "two");
    held.make_current(&second).unwrap();
    held.prune(1).unwrap();
    assert_eq!(held.current().unwrap().unwrap().number(), 2);
    let back = held.roll_back().unwrap();
    assert_eq!(back.number(), 1);
    assert_eq!(
        fs::read_to_string(back.path().join("upper/file")).unwrap(),
        "one"
    );
    assert!(!second.path().is_dir());
    assert!(matches!(held.roll_back(), Err(LayerError::NoOlder(_))));
}

#[test]
fn only_the_wanted_older_generations_are_kept() {
    let world = World::new();
    let base = world.base("debian12");
    let held = world.lock();
    let stamp = held.ensure(&new(&base)).unwrap().stamp().clone();
    for _ in 0..3 {
        let next = held.begin(stamp.clone()).unwrap();
        held.make_current(&next).unwrap();
    }
    held.prune(1).unwrap();
    let left: Vec<_> = fs::read_dir(world.dir().join("gen"))
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(held.current().unwrap().unwrap().number(), 4);
}

#[test]
fn an_unfinished_generation_has_a_lock_of_its_own() {
    let world = World::new();
    let base = world.base("debian12");
    let held = world.lock();
    let stamp = held.ensure(&new(&base)).unwrap().stamp().clone();
    let next = held.begin(stamp).unwrap();
    let layers = world.layers();
    assert!(layers.unfinished(&key(), 1).is_err(), "the current one");
    layers.unfinished(&key(), 3).unwrap_err();
    let (_, lock) = layers.unfinished(&key(), 2).unwrap();
    assert!(matches!(
        layers.unfinished(&key(), 2),
        Err(LayerError::Busy(_))
    ));
    drop(held);
    world.lock();
    assert!(next.path().is_dir(), "somebody has it mounted");
    drop(lock);
    world.lock();
    assert!(!next.path().is_dir());
}

#[test]
fn a_reset_empties_the_layer_or_leaves_it_whole() {
    let world = World::new();
    let base = world.base("debian12");
    let held = world.lock();
    let made = held.ensure(&new(&base)).unwrap();
    put(made.path(), "one");
    held.reset().unwrap();
    assert_eq!(held.current().unwrap().map(|one| one.number()), None);
    assert!(world.layers().look(&key()).unwrap().is_none());
    // As after the first step of a reset.
    let made = held.ensure(&new(&base)).unwrap();
    put(made.path(), "two");
    fs::remove_file(world.dir().join("current")).unwrap();
    drop(held);
    let fresh = world.base("debian13");
    let made = world.lock().ensure(&new(&fresh)).unwrap();
    assert_eq!(made.stamp().base, StampedBase::of(&fresh));
    assert!(!made.path().join("upper/file").is_file());
}

#[test]
fn a_link_out_of_the_layer_is_refused() {
    let world = World::new();
    let base = world.base("debian12");
    world.lock().ensure(&new(&base)).unwrap();
    let current = world.dir().join("current");
    for target in ["gen/0", "gen/01", "gen/1/../1", "/etc", "gen/x"] {
        fs::remove_file(&current).unwrap();
        symlink(target, &current).unwrap();
        let looked = world.layers().look(&key());
        assert!(matches!(looked, Err(LayerError::Current(_))), "{target}");
    }
}
