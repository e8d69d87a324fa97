//! Imports that are killed, and imports that meet.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use casemate_rootfs::{BaseName, Source, Step, Store};

/// Tells the test binary to be the process that imports: `<step> <root> <tree>`.
const ROLE: &str = "CASEMATE_TEST_IMPORT";

/// The points at which an import is killed. `unpacking` is in the middle of it.
const POINTS: [&str; 7] = [
    "reading",
    "unpacking",
    "synced",
    "blobs",
    "snapshot",
    "pinned",
    "named",
];

fn point(step: Step) -> &'static str {
    match step {
        Step::Reading(_) => "reading",
        Step::Unpacking { bytes, of } => {
            if bytes > of / 2 {
                "unpacking"
            } else {
                ""
            }
        }
        Step::Synced => "synced",
        Step::BlobsStored => "blobs",
        Step::SnapshotStored => "snapshot",
        Step::Pinned => "pinned",
        Step::Named => "named",
        Step::Fetching { .. } | Step::Compressing { .. } | Step::Writing { .. } => "",
    }
}

/// The importing process: at the point it says so on standard output and waits to be killed.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let [at, root, tree] = role.split(' ').collect::<Vec<_>>()[..] else {
        panic!("bad role")
    };
    let store = Store::open(root).unwrap();
    let mut progress = |step| {
        if point(step) == at {
            std::io::stdout().write_all(b"\n<at the point>\n").unwrap();
            loop {
                std::thread::park();
            }
        }
    };
    let tree = Path::new(tree);
    store
        .import(&name("base"), Source::Directory(tree), &mut progress)
        .unwrap();
}

fn start(at: &str, root: &Path, tree: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(ROLE, format!("{at} {} {}", root.display(), tree.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Starts an import and waits until it is at the point.
fn start_until(at: &str, root: &Path, tree: &Path) -> Child {
    use std::io::BufRead as _;
    let mut child = start(at, root, tree);
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let reached = lines
        .map_while(Result::ok)
        .any(|line| line == "<at the point>");
    assert!(reached, "the import did not reach {at}");
    child
}

fn name(text: &str) -> BaseName {
    BaseName::parse(text).unwrap()
}

fn tree(at: &Path) {
    fs::create_dir_all(at.join("bin")).unwrap();
    for number in 0..40 {
        fs::write(at.join(format!("bin/{number}")), vec![number; 20_000]).unwrap();
    }
}

fn names_in(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Nothing is left of imports under way, and every snapshot is whole.
fn assert_clean(root: &Path, chain: &str) {
    for dir in ["staging", "trash"] {
        assert_eq!(names_in(&root.join(dir)), BTreeSet::new(), "{dir}");
    }
    let stray = |dir: &Path| names_in(dir).into_iter().find(|name| name.contains("tmp"));
    assert_eq!(
        (stray(&root.join("store")), stray(&root.join("pins"))),
        (None, None)
    );
    for snapshot in names_in(&root.join("snapshots/sha256")) {
        assert_eq!(snapshot, chain);
        let dir = root.join("snapshots/sha256").join(snapshot);
        assert_eq!(
            names_in(&dir),
            ["fs", "meta.json", "use"].map(String::from).into()
        );
        assert_eq!(names_in(&dir.join("fs/bin")).len(), 40);
        assert_eq!(fs::read(dir.join("fs/bin/39")).unwrap(), vec![39; 20_000]);
    }
}

#[test]
fn an_import_killed_at_any_point_leaves_nothing_half_done() {
    let temp = tempfile::tempdir().unwrap();
    let source = temp.path().join("tree");
    tree(&source);
    let whole = Store::create(temp.path().join("whole")).unwrap();
    let expected = whole
        .import(&name("base"), Source::Directory(&source), &mut |_| {})
        .unwrap()
        .base;
    for (index, at) in POINTS.into_iter().enumerate() {
        let root = temp.path().join(at);
        Store::create(&root).unwrap();
        let mut child = start_until(at, &root, &source);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert_eq!(names_in(&root.join("staging")).len(), 1, "killed at {at}");

        let store = Store::open(&root).unwrap();
        assert_clean(&root, expected.chain.hex());
        let stored = names_in(&root.join("snapshots/sha256")).len();
        assert_eq!(stored == 1, index >= 4, "killed at {at}");
        let resolved = store.resolve("base").ok();
        assert_eq!(resolved.is_some(), at == "named", "killed at {at}");

        let again = store
            .import(&name("base"), Source::Directory(&source), &mut |_| {})
            .unwrap();
        assert_eq!(
            (&again.base.chain, &again.base.manifest),
            (&expected.chain, &expected.manifest)
        );
        assert_clean(&root, expected.chain.hex());
        assert_eq!(store.list().unwrap().len(), 1);
        assert!(store.list().unwrap()[0].pinned);
        drop(store.use_lock(&again.base.chain).unwrap());
    }
}

#[test]
fn an_import_under_way_is_not_swept() {
    let temp = tempfile::tempdir().unwrap();
    let (root, source) = (temp.path().join("root"), temp.path().join("tree"));
    tree(&source);
    Store::create(&root).unwrap();
    for at in ["reading", "unpacking", "synced", "blobs", "named"] {
        let mut child = start_until(at, &root, &source);
        Store::open(&root).unwrap();
        let held = names_in(&root.join("staging"));
        assert_eq!(held.len(), 1, "swept at {at}");
        assert!(
            root.join("staging")
                .join(held.first().unwrap())
                .join("lock")
                .is_file()
        );
        child.kill().unwrap();
        child.wait().unwrap();
        Store::open(&root).unwrap();
        assert_eq!(names_in(&root.join("staging")).len(), 0, "left at {at}");
    }
}

#[test]
fn imports_at_once_all_succeed_and_agree() {
    let temp = tempfile::tempdir().unwrap();
    let (root, source) = (temp.path().join("root"), temp.path().join("tree"));
    tree(&source);
    Store::create(&root).unwrap();
    let children: Vec<_> = (0..4).map(|_| start("never", &root, &source)).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    let store = Store::open(&root).unwrap();
    let base = store.resolve("base").unwrap();
    assert_clean(&root, base.chain.hex());
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn imports_of_several_names_at_once_are_all_in_the_index() {
    let temp = tempfile::tempdir().unwrap();
    let store = Store::create(temp.path().join("root")).unwrap();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (store, temp) = (&store, temp.path());
            scope.spawn(move || {
                let source = temp.join(format!("tree{number}"));
                fs::create_dir_all(source.join("etc")).unwrap();
                fs::write(source.join("etc/number"), number.to_string()).unwrap();
                let base = name(&format!("base{number}"));
                store
                    .import(&base, Source::Directory(&source), &mut |_| {})
                    .unwrap();
            });
        }
    });
    let listed = store.list().unwrap();
    assert_eq!(listed.len(), 8);
    for base in listed {
        let fs_path = store.resolve(base.name.as_str()).unwrap().fs;
        let number = fs::read_to_string(fs_path.join("etc/number")).unwrap();
        assert_eq!(base.name.as_str(), format!("base{number}"));
    }
}
