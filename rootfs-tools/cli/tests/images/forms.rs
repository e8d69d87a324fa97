//! Layouts and archives, there and back.

use std::fs;
use std::process::Command;

use crate::world::{World, failed, names};

/// Exports the base and imports it into another store. Returns what it was and what it became.
fn there_and_back(
    world: &World,
    export: &[&str],
    from: &str,
) -> (serde_json::Value, serde_json::Value) {
    let was = world.ours("root", &["show", "d"]);
    let mut arguments = vec!["export", "d"];
    arguments.extend(export);
    world.ours("root", &arguments);
    let became = world.ours("other", &["import", "--name", "d", from]);
    (was, became)
}

#[test]
fn a_manifest_survives_a_layout_and_an_archive_to_the_byte() {
    for (to, from) in [
        ("oci:lay:t", "oci:lay:t"),
        ("oci:lay", "oci:lay:d"),
        ("oci:lay:registry.example/team/d:1", "oci:lay"),
        ("oci-archive:lay.tar:t", "oci-archive:lay.tar:t"),
        ("oci-archive:lay.tar", "oci-archive:lay.tar"),
    ] {
        let world = World::with_base();
        let (was, became) = there_and_back(&world, &[to], from);
        assert_eq!(was["manifest"], became["manifest"], "{to}");
        assert_eq!(was["chain"], became["chain"], "{to}");
    }
}

#[test]
fn the_tree_survives_every_form_and_compression() {
    for (export, from) in [
        (
            &["docker-archive:d.tar:team/d:1"][..],
            "docker-archive:d.tar",
        ),
        (&["docker-archive:d.tar"], "docker-archive:d.tar:d"),
        (&["oci:lay:t", "--compress=gzip"], "oci:lay:t"),
        (&["oci:lay:t", "--compress=none"], "oci:lay:t"),
        (
            &["oci-archive:lay.tar", "--compress=gzip"],
            "oci-archive:lay.tar",
        ),
    ] {
        let world = World::with_base();
        let (was, became) = there_and_back(&world, export, from);
        assert_eq!(was["chain"], became["chain"], "{export:?}");
        let tree = world.fs("other", "d");
        assert_eq!(
            fs::read_to_string(tree.join("etc/release")).unwrap(),
            "one\n"
        );
        assert_eq!(
            fs::read(tree.join("bin/big")).unwrap(),
            fs::read(world.path("tree/usr/bin/big")).unwrap()
        );
    }
}

#[test]
fn the_same_export_gives_the_same_bytes() {
    let world = World::with_base();
    for form in ["oci-archive", "docker-archive"] {
        for copy in ["a", "b"] {
            world.ours("root", &["export", "d", &format!("{form}:{copy}.tar:x")]);
        }
        let bytes = |name| fs::read(world.path(name)).unwrap();
        assert!(bytes("a.tar") == bytes("b.tar"), "{form}");
    }
    let digest = |to| world.ours("root", &["export", "d", "--compress=gzip", to])["digest"].clone();
    assert_eq!(digest("oci:a"), digest("oci:b"));
    let stored = world.ours("root", &["show", "d"])["manifest"].clone();
    assert_ne!(digest("oci:a"), stored);
    let zstd = world.ours("root", &["export", "d", "--compress=zstd", "oci:z"]);
    assert_eq!(zstd["digest"], stored, "it is zstd already");
}

#[test]
fn a_compressed_archive_is_taken_too() {
    let world = World::with_base();
    world.ours("root", &["export", "d", "oci-archive:lay.tar:t"]);
    for (program, suffix) in [("gzip", "gz"), ("zstd", "zst"), ("xz", "xz")] {
        let file = format!("lay.tar.{suffix}");
        world.tool("sh", &["-c", &format!("{program} -c lay.tar > {file}")]);
        let source = format!("oci-archive:{file}:t");
        let became = world.ours("other", &["import", "--name", suffix, &source]);
        assert_eq!(became["chain"], world.bases("root")[0]["chain"]);
    }
}

#[test]
fn a_layout_is_added_to_and_a_tag_moves() {
    let world = World::with_base();
    world.ours("root", &["export", "d", "oci:lay:one"]);
    fs::write(world.path("tree/etc/release"), "two\n").unwrap();
    world.ours("root", &["import", "--name", "e", "tree"]);
    world.ours("root", &["export", "e", "oci:lay:two"]);
    world.fails(
        "other",
        &["import", "--name", "x", "oci:lay"],
        64,
        "one, two",
    );
    world.fails(
        "other",
        &["import", "--name", "x", "oci:lay:three"],
        66,
        "it has one, two",
    );
    let manifest = |tag: &str| {
        let source = format!("oci:lay:{tag}");
        world.ours("other", &["import", "--name", "x", &source])["manifest"].clone()
    };
    assert_ne!(manifest("one"), manifest("two"));
    world.ours("root", &["export", "e", "oci:lay:one"]);
    assert_eq!(manifest("one"), manifest("two"));
}

#[test]
fn nothing_is_replaced_that_is_something_else() {
    let world = World::with_base();
    fs::create_dir(world.path("full")).unwrap();
    fs::write(world.path("full/mine"), "x").unwrap();
    fs::create_dir(world.path("empty")).unwrap();
    let export = |to: &str, exit, says: &str| {
        world.fails("root", &["export", "d", to], exit, says);
    };
    export("oci:full", 64, "is no OCI image layout");
    export("oci-archive:full", 74, "it is no regular file");
    export("docker-archive:/dev/null", 74, "it is no regular file");
    export("full", 64, "put oci:");
    assert_eq!(names(&world.path("full")), ["mine"]);
    world.fails(
        "root",
        &["push", "d", "oci:x"],
        64,
        "push goes to a registry",
    );
    world.fails(
        "root",
        &["export", "none", "oci:x"],
        66,
        "there is no base none",
    );
    world.fails(
        "root",
        &["export", "--compress=zstd", "d", "docker-archive:x"],
        64,
        "leave out --compress",
    );
    world.path("x").symlink_metadata().unwrap_err();
    world.ours("root", &["export", "d", "oci:empty"]);
    world.ours("root", &["export", "d", "oci:absent/below"]);
}

#[test]
fn an_export_of_a_damaged_base_leaves_nothing() {
    let world = World::with_base();
    world.ours("root", &["export", "d", "oci:lay:d"]);
    let before = (
        names(&world.path("lay/blobs/sha256")),
        fs::read(world.path("lay/index.json")).unwrap(),
    );
    let blobs = world.path("root/store/blobs/sha256");
    let largest = names(&blobs)
        .into_iter()
        .max_by_key(|name| blobs.join(name).metadata().unwrap().len())
        .unwrap();
    let mut content = fs::read(blobs.join(&largest)).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::remove_file(blobs.join(&largest)).unwrap();
    fs::write(blobs.join(&largest), content).unwrap();
    fs::remove_file(world.path("lay/blobs/sha256").join(&largest)).unwrap();
    for to in [
        "oci:new",
        "oci-archive:new.tar",
        "docker-archive:new.tar",
        "oci:lay:e",
    ] {
        world.fails("root", &["export", "d", to], 74, "fsck");
    }
    let mut there = names(world.path("").as_path());
    there.retain(|name| name.contains("new"));
    assert_eq!(there, [""; 0]);
    let mut blobs = before.0;
    blobs.retain(|name| *name != largest);
    assert_eq!(names(&world.path("lay/blobs/sha256")), blobs);
    assert_eq!(fs::read(world.path("lay/index.json")).unwrap(), before.1);
}

#[test]
fn a_killed_export_leaves_nothing() {
    let world = World::with_base();
    let tree = names(&world.path(""));
    let mut killed = 0;
    // The n-th write of the archive: it has no name yet, whatever n is.
    for nth in [1, 4, 12] {
        let output = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-e", "trace=pwrite64,write,linkat"])
            .args(["-e", &format!("inject=write,linkat:signal=KILL:when={nth}")])
            .arg(env!("CARGO_BIN_EXE_rootfs-tools"))
            .args(["export", "d", "oci-archive:a.tar"])
            .env("CASEMATE_ROOT", world.path("root"))
            .current_dir(world.path(""))
            .output()
            .unwrap();
        killed += usize::from(!output.status.success());
        assert_eq!(names(&world.path("")), tree, "write {nth}");
    }
    assert_eq!(killed, 3);
    world.ours("root", &["export", "d", "oci-archive:a.tar"]);
    world.ours("other", &["import", "--name", "d", "oci-archive:a.tar"]);
}

#[test]
fn what_cannot_be_meant_is_a_usage_error_and_makes_nothing() {
    let world = World::new();
    for arguments in [
        &["import", "--name", "d", "oci:"][..],
        &["import", "--name", "d", "dir:/x"],
        &["import", "--name", "d", "containers-storage:x"],
        &["import", "--name", "d", "docker://debian"],
        &["import", "--name", "d", "docker://library/debian:12"],
        &[
            "import",
            "--name",
            "d",
            "docker://registry.example/debian@sha256:12",
        ],
        &["import", "--name", "d", "--platform", "amd64", "oci:x"],
        &["import", "--name", "d", "--platform", "linux/amd64", "tree"],
        &[
            "import",
            "--name",
            "d",
            "--creds",
            ":x",
            "docker://127.0.0.1:1/d",
        ],
        &["export", "d"],
        &["push", "d", "docker://x"],
    ] {
        let output = world.command("root", arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
    }
    world.path("root").symlink_metadata().unwrap_err();
    failed(
        &world
            .command("root", &["import", "--name", "d", "oci:absent:x"])
            .output()
            .unwrap(),
        66,
        "has no oci-layout",
    );
}
