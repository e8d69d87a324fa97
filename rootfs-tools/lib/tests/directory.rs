//! Directories as input.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;

use casemate_rootfs::{BaseName, Imported, Source, Store};

fn import(store: &Store, tree: &Path) -> Imported {
    let name = BaseName::parse("d").unwrap();
    store
        .import(&name, Source::Directory(tree), &mut |_| {})
        .unwrap()
}

fn sh(script: &str, at: &Path) {
    let status = Command::new("sh")
        .args(["-euc", script, "sh"])
        .arg(at)
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn a_directory_comes_back_with_all_that_a_file_system_keeps() {
    let temp = tempfile::tempdir().unwrap();
    let tree = temp.path().join("tree");
    sh(
        r#"mkdir -p "$1/bin" "$1/dev" && cd "$1"
           echo x > bin/su && chown 3000000:42 bin/su && chmod 4750 bin/su && ln bin/su bin/hard
           ln -s /absolute/target bin/link && chown -h 5:6 bin/link
           setcap cap_net_raw+ep bin/su 2>/dev/null || true
           mkfifo pipe && mknod dev/null c 1 3 && mknod dev/loop0 b 7 0
           touch -d 1960-01-01T00:00:00Z bin/su && chmod 1777 dev && touch -d @12 bin
           long=$(printf 'n%.0s' $(seq 200)); mkdir -p "$long" && echo y > "$long/$long" && touch -d @12 ."#,
        &tree,
    );
    rustix::fs::setxattr(
        tree.join("bin"),
        "user.note",
        b"a\nb=c",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    let store = Store::create(temp.path().join("root")).unwrap();
    let imported = import(&store, &tree);
    assert!(imported.notices.kept().is_empty(), "{:?}", imported.notices);
    let root = imported.base.fs;

    let list = |dir: &Path| {
        let output = Command::new("ls")
            .args(["-lRAn", "--time-style=+%s", "."])
            .current_dir(dir)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(list(&root), list(&tree));
    assert_eq!(
        fs::metadata(root.join("bin/su")).unwrap().mtime(),
        -315_619_200
    );
    assert_eq!(fs::metadata(root.join("bin/su")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(&root).unwrap().mtime(), 12);
    let mut value = [0; 16];
    let count = rustix::fs::getxattr(root.join("bin"), "user.note", &mut value[..]).unwrap();
    assert_eq!(&value[..count], b"a\nb=c");
}

#[test]
fn the_same_directory_is_the_same_base_in_whatever_order_it_was_filled() {
    let temp = tempfile::tempdir().unwrap();
    for (tree, order) in [("one", "a b c d e"), ("two", "e c a d b")] {
        let script = format!(
            r#"mkdir -p "$1" && cd "$1" && for f in {order}; do echo $f > $f; touch -d @99 $f; done; touch -d @99 ."#
        );
        sh(&script, &temp.path().join(tree));
    }
    let store = Store::create(temp.path().join("root")).unwrap();
    let one = import(&store, &temp.path().join("one")).base;
    assert_eq!(import(&store, &temp.path().join("two")).base, one);
}

#[test]
fn sockets_are_left_out_with_a_notice() {
    let temp = tempfile::tempdir().unwrap();
    let tree = temp.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    assert!(
        fs::symlink_metadata(tree.join("socket"))
            .unwrap()
            .file_type()
            .is_socket()
    );
    let store = Store::create(temp.path().join("root")).unwrap();
    let imported = import(&store, &tree);
    let notices: Vec<_> = imported
        .notices
        .kept()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(notices, ["socket \"./socket\" is left out"]);
    assert_eq!(fs::read_dir(imported.base.fs).unwrap().count(), 0);
}

#[test]
fn another_file_system_is_taken_as_an_empty_directory() {
    let temp = tempfile::tempdir().unwrap();
    let (tree, root) = (temp.path().join("tree"), temp.path().join("root"));
    fs::create_dir_all(tree.join("proc")).unwrap();
    // The mount is seen by the child only and ends with it.
    let test = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-euc"])
        .arg(r#"mount -t tmpfs tmpfs "$1/proc" && echo x > "$1/proc/x" && exec "$2" --exact child --nocapture"#)
        .arg("sh")
        .arg(&tree)
        .arg(test)
        .env("CASEMATE_TEST_DIRECTORY", &tree)
        .env("CASEMATE_TEST_ROOT", &root)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("notice: \"./proc\" is another file system"),
        "{said}"
    );
    let base = Store::open(&root).unwrap().resolve("d").unwrap();
    assert_eq!(fs::read_dir(base.fs.join("proc")).unwrap().count(), 0);
}

/// The import of the test above, in its own mount namespace.
#[test]
fn child() {
    let Some(tree) = std::env::var_os("CASEMATE_TEST_DIRECTORY") else {
        return;
    };
    let store = Store::create(std::env::var_os("CASEMATE_TEST_ROOT").unwrap()).unwrap();
    for notice in import(&store, Path::new(&tree)).notices.kept() {
        println!("notice: {notice}");
    }
}

#[test]
fn what_is_no_directory_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("file");
    fs::write(&file, "").unwrap();
    let store = Store::create(temp.path().join("root")).unwrap();
    let name = BaseName::parse("d").unwrap();
    for path in [&file, &temp.path().join("absent")] {
        store
            .import(&name, Source::Directory(path), &mut |_| {})
            .unwrap_err();
    }
    assert_eq!(store.list().unwrap(), []);
}
