//! The tools of others: they read our store in place and what we export, and we read theirs.

use std::fs;

use serde_json::Value;

use crate::server::{Server, Setup};
use crate::world::World;

fn inspect(world: &World, place: &str) -> Value {
    serde_json::from_str(&world.tool("skopeo", &["inspect", "--tls-verify=false", place])).unwrap()
}

#[test]
fn skopeo_and_podman_read_the_store_in_place() {
    let world = World::new();
    let program = "int puts(const char *); int main(void) { puts(\"ran\"); return 0; }\n";
    fs::write(world.path("hello.c"), program).unwrap();
    world.tool("cc", &["-static", "-o", "tree/usr/bin/hello", "hello.c"]);
    let base = world.ours("root", &["import", "--name", "d", "tree"]);
    let place = format!("oci:{}:base-d", world.text("root/store"));
    assert_eq!(inspect(&world, &place)["Digest"], base["manifest"]);
    let index = fs::read(world.path("root/store/index.json")).unwrap();
    let podman = |arguments: &[&str]| {
        let (root, run) = (world.text("podman"), world.text("podman-run"));
        let mut all = vec![
            "--root",
            &root,
            "--runroot",
            &run,
            "--storage-driver",
            "vfs",
        ];
        all.extend(arguments);
        world.tool("podman", &all)
    };
    let id = podman(&["pull", "-q", &place]).trim().to_owned();
    let digest = podman(&["image", "inspect", "--format", "{{.Digest}}", &id]);
    assert_eq!(digest.trim(), base["manifest"].as_str().unwrap());
    let mounted = podman(&["image", "mount", &id]);
    let release = fs::read_to_string(format!("{}/etc/release", mounted.trim())).unwrap();
    assert_eq!(release, "one\n");
    podman(&["image", "unmount", &id]);
    // Not everywhere may limits be raised, which podman does by itself.
    let limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"];
    let run = [
        &[
            "--runtime=runc",
            "--cgroup-manager=cgroupfs",
            "run",
            "--rm",
            "--network=none",
        ][..],
        &limits,
        &[&place, "/bin/hello"],
    ];
    assert_eq!(podman(&run.concat()), "ran\n");
    assert_eq!(
        fs::read(world.path("root/store/index.json")).unwrap(),
        index
    );
    world.ours("root", &["fsck", "--deep"]);
}

#[test]
fn what_we_export_is_read_by_skopeo_and_umoci() {
    let world = World::with_base();
    let manifest = world.ours("root", &["show", "d"])["manifest"].clone();
    world.ours("root", &["export", "d", "oci:lay:d"]);
    world.ours("root", &["export", "d", "oci-archive:lay.tar:d"]);
    world.ours(
        "root",
        &["export", "d", "docker-archive:docker.tar:team/d:1"],
    );
    assert_eq!(inspect(&world, "oci:lay:d")["Digest"], manifest);
    assert_eq!(inspect(&world, "oci-archive:lay.tar:d")["Digest"], manifest);
    // skopeo reads every blob of these, checks it, and tells what it unpacks to.
    world.tool(
        "skopeo",
        &["copy", "-q", "oci-archive:lay.tar:d", "oci:copied:d"],
    );
    let docker = [
        "copy",
        "-q",
        "docker-archive:docker.tar:team/d:1",
        "oci:docker:d",
    ];
    world.tool("skopeo", &docker);
    let chain = world.bases("root")[0]["chain"].clone();
    for from in ["oci:copied:d", "oci:docker:d"] {
        let became = world.ours("other", &["import", "--name", "d", from]);
        assert_eq!(became["chain"], chain, "{from}");
    }
    // umoci of Debian 12 knows no zstd.
    world.ours("root", &["export", "--compress=gzip", "d", "oci:gz:d"]);
    world.tool("umoci", &["unpack", "--image", "gz:d", "bundle"]);
    assert_eq!(
        fs::read(world.path("bundle/rootfs/bin/big")).unwrap(),
        fs::read(world.path("tree/usr/bin/big")).unwrap()
    );
}

#[test]
fn layers_of_umoci_are_flattened() {
    let world = World::new();
    fs::write(world.path("tree/etc/gone"), "x").unwrap();
    fs::create_dir(world.path("more")).unwrap();
    fs::write(world.path("more/new"), "new\n").unwrap();
    for arguments in [
        &["init", "--layout", "u"][..],
        &["new", "--image", "u:d"],
        &["insert", "--image", "u:d", "tree", "/"],
        &["insert", "--image", "u:d", "--whiteout", "/etc/gone"],
        &["insert", "--image", "u:d", "--opaque", "more", "/etc/more"],
    ] {
        world.tool("umoci", arguments);
    }
    world.ours("root", &["import", "--name", "d", "oci:u:d"]);
    let tree = world.fs("root", "d");
    assert_eq!(
        fs::read_to_string(tree.join("etc/release")).unwrap(),
        "one\n"
    );
    assert_eq!(
        fs::read_to_string(tree.join("etc/more/new")).unwrap(),
        "new\n"
    );
    tree.join("etc/gone").symlink_metadata().unwrap_err();
    // Three layers go out as three, and come back as they were.
    let manifest = world.bases("root")[0]["manifest"].clone();
    for (to, from) in [
        ("oci-archive:a.tar", "oci-archive:a.tar"),
        ("docker-archive:b.tar", "docker-archive:b.tar"),
    ] {
        world.ours("root", &["export", "d", to]);
        let became = world.ours("other", &["import", "--name", "d", from]);
        assert_eq!(became["chain"], world.bases("root")[0]["chain"], "{to}");
        if from.starts_with("oci") {
            assert_eq!(became["manifest"], manifest);
        }
    }
}

#[test]
fn images_of_docker_become_oci_and_say_what_they_were() {
    let world = World::with_base();
    let server = Server::start(&world, Setup::Open);
    let place = format!("docker://{}/d:docker", server.host);
    world.ours("root", &["export", "--compress=gzip", "d", "oci:lay:d"]);
    let copy = [
        "copy",
        "-q",
        "--format=v2s2",
        "--dest-tls-verify=false",
        "oci:lay:d",
        &place,
    ];
    world.tool("skopeo", &copy);
    let raw = world.tool(
        "skopeo",
        &["inspect", "--tls-verify=false", "--raw", &place],
    );
    assert!(raw.contains("vnd.docker.distribution.manifest.v2"));
    let became = world.ours("other", &["import", "--name", "d", &place]);
    assert_eq!(became["chain"], world.bases("root")[0]["chain"]);
    let stored = format!("oci:{}:base-d", world.text("other/store"));
    assert_eq!(inspect(&world, &stored)["Digest"], became["manifest"]);
    let index: Value =
        serde_json::from_slice(&fs::read(world.path("other/store/index.json")).unwrap()).unwrap();
    assert_eq!(
        index["manifests"][0]["annotations"]["io.casemate.base.origin"],
        inspect(&world, &place)["Digest"]
    );
    // A list of Docker's with this platform in it.
    let saved = [
        "copy",
        "-q",
        "--src-tls-verify=false",
        &place,
        "docker-archive:skopeo.tar:x/d:1",
    ];
    world.tool("skopeo", &saved);
    let from_archive = world.ours(
        "third",
        &["import", "--name", "d", "docker-archive:skopeo.tar"],
    );
    assert_eq!(from_archive["chain"], became["chain"]);
}
