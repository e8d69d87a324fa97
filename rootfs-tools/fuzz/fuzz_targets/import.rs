//! Any archive: it lands in the store or is refused, and nothing beside the store changes.

#![no_main]

use std::sync::LazyLock;

use casemate_rootfs::{BaseName, Source, Store};
use libfuzzer_sys::fuzz_target;

struct World {
    temp: tempfile::TempDir,
    store: Store,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let temp = tempfile::tempdir().unwrap();
    let store = Store::create(temp.path().join("root")).unwrap();
    World { temp, store }
});

fuzz_target!(|bytes: &[u8]| {
    let name = BaseName::parse("fuzzed").unwrap();
    let source = Source::Archive(&mut &*bytes);
    drop(WORLD.store.import(&name, source, &mut |_| {}));
    assert_eq!(std::fs::read_dir(WORLD.temp.path()).unwrap().count(), 1);
});
