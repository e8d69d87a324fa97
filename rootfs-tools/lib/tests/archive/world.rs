//! A store and a victim: a directory outside that archives try to reach.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use casemate_rootfs::{BaseName, Imported, Source, Store};

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

    pub(crate) fn bytes_refused(&self, archive: &[u8], says: &str) {
        let before = listing(self.store.root());
        let Outcome::Refused(text) = self.import(archive) else {
            panic!("the archive was accepted");
        };
        assert!(text.contains(says), "{text:?} does not say {says:?}");
        let after = listing(self.store.root());
        let changed: Vec<_> = before
            .keys()
            .chain(after.keys())
            .filter(|path| before.get(*path) != after.get(*path))
            .collect();
        assert!(changed.is_empty(), "the store changed: {changed:?}");
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

/// Each path below `root` with what tells a change, but for the directories in which an import
/// makes and removes its own.
fn listing(root: &Path) -> BTreeMap<PathBuf, (u64, u64, i64, Vec<u8>)> {
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
        let changed = if path.ends_with("staging") || path.ends_with("holds") {
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
