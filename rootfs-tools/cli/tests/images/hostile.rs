//! Manifests, indexes and layouts that nobody should send: each is refused by name, and the store
//! has no new base.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::layout::{INDEX, Layout, MANIFEST, archive, manifest};
use crate::world::World;

const HERE: (&str, &str) = ("linux", "amd64");

struct Case {
    name: &'static str,
    exit: i32,
    says: &'static str,
    make: fn(&Layout),
}

fn whole(layout: &Layout) -> Value {
    layout.image(HERE, "one\n")
}

/// Changes a whole manifest and enters it.
fn changed(layout: &Layout, change: impl FnOnce(&mut Value)) {
    let mut document = whole(layout);
    change(&mut document);
    layout.enter(&layout.json(MANIFEST, &document));
}

const CASES: &[Case] = &[
    Case {
        name: "manifest larger than any",
        exit: 64,
        says: "the limit is 4194304",
        make: |layout| {
            changed(layout, |document| {
                document["annotations"] = json!({ "x": "y".repeat(5 << 20) });
            });
        },
    },
    Case {
        name: "manifest with a false size",
        exit: 64,
        says: "bytes instead of",
        make: |layout| {
            let mut entry = layout.json(MANIFEST, &whole(layout));
            entry["size"] = json!(entry["size"].as_u64().unwrap() + 1);
            layout.enter(&entry);
        },
    },
    Case {
        name: "manifest that was changed",
        exit: 64,
        says: "the document should be sha256:",
        make: |layout| {
            let entry = layout.json(MANIFEST, &whole(layout));
            let hex = entry["digest"]
                .as_str()
                .unwrap()
                .trim_start_matches("sha256:");
            let path = layout.dir.join("blobs/sha256").join(hex);
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, text.replacen("schemaVersion", "SchemaVersion", 1)).unwrap();
            layout.enter(&entry);
        },
    },
    Case {
        name: "both manifest and index",
        exit: 64,
        says: "ambiguous",
        make: |layout| {
            changed(layout, |document| {
                document["manifests"] = json!([]);
            });
        },
    },
    Case {
        name: "manifest announced as an index",
        exit: 64,
        says: "ambiguous",
        make: |layout| layout.enter(&layout.json(INDEX, &whole(layout))),
    },
    Case {
        name: "manifest that calls itself an index",
        exit: 64,
        says: "ambiguous",
        make: |layout| changed(layout, |document| document["mediaType"] = json!(INDEX)),
    },
    Case {
        name: "schema 1",
        exit: 64,
        says: "is not of schema version 2",
        make: |layout| {
            changed(layout, |document| {
                *document = json!({ "schemaVersion": 1, "fsLayers": [] });
            });
        },
    },
    Case {
        name: "no JSON",
        exit: 64,
        says: "is no manifest or index",
        make: |layout| layout.enter(&layout.blob(MANIFEST, b"\x00\xff{")),
    },
    Case {
        name: "deep JSON",
        exit: 64,
        says: "is no manifest or index",
        make: |layout| layout.enter(&layout.blob(MANIFEST, "[".repeat(1 << 20).as_bytes())),
    },
    Case {
        name: "layer that is elsewhere",
        exit: 64,
        says: "other places (urls)",
        make: |layout| {
            changed(layout, |document| {
                document["layers"][0]["urls"] = json!(["http://127.0.0.1:1/x"]);
            });
        },
    },
    Case {
        name: "layer that may not be handed on",
        exit: 64,
        says: "other places (urls)",
        make: |layout| {
            changed(layout, |document| {
                document["layers"][0]["mediaType"] =
                    json!("application/vnd.oci.image.layer.nondistributable.v1.tar");
            });
        },
    },
    Case {
        name: "layer of an unknown kind",
        exit: 64,
        says: "which is not supported",
        make: |layout| {
            changed(layout, |document| {
                document["layers"][0]["mediaType"] = json!("application/vnd.squashfs");
            });
        },
    },
    Case {
        name: "artifact",
        exit: 64,
        says: "is of no container image",
        make: |layout| {
            changed(layout, |document| {
                document["config"]["mediaType"] = json!("application/vnd.cncf.helm.config.v1+json");
            });
        },
    },
    Case {
        name: "digest that is a path",
        exit: 64,
        says: "cannot be checked",
        make: |layout| {
            changed(layout, |document| {
                document["layers"][0]["digest"] = json!("sha256:../../../../etc/passwd");
            });
        },
    },
    Case {
        name: "digest of another kind",
        exit: 64,
        says: "cannot be checked",
        make: |layout| {
            changed(layout, |document| {
                document["layers"][0]["digest"] = json!(format!("sha512:{}", "0".repeat(128)));
            });
        },
    },
    Case {
        name: "negative size",
        exit: 64,
        says: "is no manifest or index",
        make: |layout| changed(layout, |document| document["layers"][0]["size"] = json!(-1)),
    },
    Case {
        name: "huge configuration",
        exit: 64,
        says: "the limit is 4194304",
        make: |layout| {
            changed(layout, |document| {
                document["config"]["size"] = json!(1u64 << 40);
            });
        },
    },
    Case {
        name: "missing layer",
        exit: 64,
        says: "it is incomplete",
        make: |layout| {
            changed(layout, |document| {
                document["layers"][0]["digest"] = json!(casemate_rootfs::Digest::of(b"absent"));
            });
        },
    },
    Case {
        name: "layer with a false size",
        exit: 64,
        says: "it is incomplete",
        make: |layout| changed(layout, |document| document["layers"][0]["size"] = json!(1)),
    },
    Case {
        name: "layer that was changed",
        exit: 64,
        says: "should be sha256:",
        make: |layout| {
            let document = whole(layout);
            let hex = document["layers"][0]["digest"].as_str().unwrap();
            let path = layout
                .dir
                .join("blobs/sha256")
                .join(hex.trim_start_matches("sha256:"));
            let mut content = fs::read(&path).unwrap();
            content[700] ^= 1;
            fs::write(path, content).unwrap();
            layout.enter(&layout.json(MANIFEST, &document));
        },
    },
    Case {
        name: "layer that is not what the configuration promises",
        exit: 64,
        says: "the image's configuration says",
        make: |layout| {
            let (layer, _) = layout.layer(&BTreeMap::from([("a", "b")]));
            let other = json!(casemate_rootfs::Digest::of(b"other"));
            let config = layout.config(HERE, &[other]);
            layout.enter(&layout.json(MANIFEST, &manifest(&config, &[layer])));
        },
    },
    Case {
        name: "more layers than the configuration has",
        exit: 64,
        says: "has 2 layers, but its configuration describes 1",
        make: |layout| {
            changed(layout, |document| {
                let layer = document["layers"][0].clone();
                document["layers"].as_array_mut().unwrap().push(layer);
            });
        },
    },
    Case {
        name: "no layer",
        exit: 64,
        says: "has 0 layers",
        make: |layout| {
            let config = layout.config(HERE, &[]);
            layout.enter(&layout.json(MANIFEST, &manifest(&config, &[])));
        },
    },
    Case {
        name: "another platform",
        exit: 64,
        says: "is for linux/arm64, not for linux/amd64",
        make: |layout| {
            layout.enter(&layout.json(MANIFEST, &layout.image(("linux", "arm64"), "x")));
        },
    },
    Case {
        name: "index in an index",
        exit: 64,
        says: "another index",
        make: |layout| {
            let mut entry = layout.json(INDEX, &json!({ "schemaVersion": 2, "manifests": [] }));
            entry["platform"] = json!({ "os": "linux", "architecture": "amd64" });
            let index = json!({ "schemaVersion": 2, "manifests": [entry] });
            layout.enter(&layout.json(INDEX, &index));
        },
    },
    Case {
        name: "index that is behind the name of a manifest",
        exit: 64,
        says: "ambiguous",
        make: |layout| {
            let inner = json!({ "schemaVersion": 2, "manifests": [] });
            let mut entry = layout.json(MANIFEST, &inner);
            entry["platform"] = json!({ "os": "linux", "architecture": "amd64" });
            let index = json!({ "schemaVersion": 2, "manifests": [entry] });
            layout.enter(&layout.json(INDEX, &index));
        },
    },
    Case {
        name: "index of a thousand and one",
        exit: 64,
        says: "the limit is 1000",
        make: |layout| {
            let entry = layout.json(MANIFEST, &whole(layout));
            let index = json!({ "schemaVersion": 2, "manifests": vec![entry; 1001] });
            layout.enter(&layout.json(INDEX, &index));
        },
    },
    Case {
        name: "layout of another version",
        exit: 64,
        says: "known is 1.0.0",
        make: |layout| {
            fs::write(
                layout.dir.join("oci-layout"),
                r#"{"imageLayoutVersion":"2.0.0"}"#,
            )
            .unwrap();
        },
    },
    Case {
        name: "layout without an index",
        exit: 66,
        says: "has no index.json",
        make: |_| {},
    },
    Case {
        name: "pipe in the place of the index",
        exit: 64,
        says: "is no regular file",
        make: |layout| {
            let path = layout.dir.join("index.json");
            let made = std::process::Command::new("mkfifo")
                .arg(path)
                .status()
                .unwrap();
            assert!(made.success());
        },
    },
    Case {
        name: "endless index",
        exit: 64,
        says: "the limit is",
        make: |layout| {
            let file = fs::File::create(layout.dir.join("index.json")).unwrap();
            file.set_len(1 << 40).unwrap();
        },
    },
];

#[test]
fn what_nobody_should_send_is_refused_by_name() {
    let world = World::new();
    world.ours("root", &["import", "--name", "kept", "tree"]);
    let before = world.bases("root");
    for (number, case) in CASES.iter().enumerate() {
        let dir = format!("layout-{number}");
        (case.make)(&Layout::new(world.path(&dir)));
        let output = world
            .command("root", &["import", "--name", "d", &format!("oci:{dir}:t")])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(case.exit),
            "{}: {stderr}",
            case.name
        );
        assert!(stderr.contains(case.says), "{}: {stderr}", case.name);
        // The same as an archive, where the layout can be one.
        let packed = world.path(&format!("{dir}.tar"));
        if case.name.contains("pipe") || case.name.contains("endless") {
            continue;
        }
        world.tool("tar", &["-cf", packed.to_str().unwrap(), "-C", &dir, "."]);
        world.fails(
            "root",
            &["import", "--name", "d", &format!("oci-archive:{dir}.tar:t")],
            case.exit,
            case.says,
        );
    }
    assert_eq!(world.bases("root"), before);
    world.ours("root", &["fsck"]);
}

#[test]
fn what_is_odd_but_right_is_taken() {
    let world = World::new();
    // A layer twice: it counts twice, and is fetched once.
    let layout = Layout::new(world.path("twice"));
    let (layer, diff_id) = layout.layer(&BTreeMap::from([("a", "1")]));
    let config = layout.config(HERE, &[diff_id.clone(), diff_id]);
    layout.enter(&layout.json(MANIFEST, &manifest(&config, &[layer.clone(), layer])));
    world.ours("root", &["import", "--name", "twice", "oci:twice:t"]);
    // A document without its media type.
    let layout = Layout::new(world.path("bare"));
    let mut document = whole(&layout);
    document.as_object_mut().unwrap().remove("mediaType");
    layout.enter(&layout.json(MANIFEST, &document));
    let bare = world.ours("root", &["import", "--name", "bare", "oci:bare:t"]);
    let manifest = casemate_rootfs::Digest::of(document.to_string().as_bytes());
    assert_eq!(bare["manifest"], manifest.as_str());
    // The same image entered twice.
    let entry = layout.json(MANIFEST, &document);
    let index = json!({ "schemaVersion": 2, "manifests": [entry.clone(), entry] });
    fs::write(layout.dir.join("index.json"), index.to_string()).unwrap();
    world.ours("root", &["import", "--name", "same", "oci:bare"]);
}

#[test]
fn an_index_gives_the_image_of_the_platform() {
    let world = World::new();
    let layout = Layout::new(world.path("many"));
    let mut entries = Vec::new();
    for (os, architecture, variant) in [
        ("unknown", "unknown", None),
        ("linux", "arm64", Some("v8")),
        ("linux", "amd64", None),
    ] {
        let document = layout.image((os, architecture), architecture);
        let mut entry = layout.json(MANIFEST, &document);
        entry["platform"] = json!({ "os": os, "architecture": architecture });
        if let Some(variant) = variant {
            entry["platform"]["variant"] = json!(variant);
        }
        entries.push(entry);
    }
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries });
    layout.enter(&layout.json(INDEX, &index));
    let release = |name: &str| fs::read_to_string(world.fs("root", name).join("release")).unwrap();
    world.ours("root", &["import", "--name", "here", "oci:many:t"]);
    assert_eq!(release("here"), "amd64");
    for platform in ["linux/arm64", "linux/arm64/v8"] {
        let arguments = [
            "import",
            "--name",
            "arm",
            "--platform",
            platform,
            "oci:many:t",
        ];
        world.ours("root", &arguments);
        assert_eq!(release("arm"), "arm64");
    }
    for platform in ["linux/arm64/v9", "linux/riscv64", "windows/amd64"] {
        world.fails(
            "root",
            &[
                "import",
                "--name",
                "x",
                "--platform",
                platform,
                "oci:many:t",
            ],
            64,
            "it has unknown/unknown, linux/arm64/v8, linux/amd64",
        );
    }
}

#[test]
fn a_docker_archive_is_taken_by_the_letter() {
    let world = World::new();
    let layer = archive(&BTreeMap::from([("etc/release", "docker\n")]));
    let diff_id = casemate_rootfs::Digest::of(&layer);
    let config = |diff_ids: &[&str]| {
        json!({ "os": "linux", "architecture": "amd64",
                "rootfs": { "type": "layers", "diff_ids": diff_ids } })
        .to_string()
    };
    let good = config(&[diff_id.as_str()]);
    let table = |config: &str, layers: &[&str]| {
        json!([{ "Config": config, "RepoTags": ["team/d:1"], "Layers": layers }]).to_string()
    };
    let pack = |name: &str, files: &[(&str, &[u8])], link: Option<(&str, &str)>| {
        let dir = world.path(name);
        for (path, content) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        if let Some((path, target)) = link {
            fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, dir.join(path)).unwrap();
        }
        world.tool("tar", &["-cf", &format!("{name}.tar"), "-C", name, "."]);
        format!("docker-archive:{name}.tar")
    };
    let whole = pack(
        "whole",
        &[
            (
                "manifest.json",
                table("c.json", &["x/layer.tar"]).as_bytes(),
            ),
            ("c.json", good.as_bytes()),
            ("x/layer.tar", &layer),
        ],
        None,
    );
    for source in [whole.clone(), format!("{whole}:team/d:1")] {
        world.ours("root", &["import", "--name", "d", &source]);
    }
    world.fails(
        "root",
        &["import", "--name", "d", &format!("{whole}:team/d:2")],
        66,
        "team/d:1",
    );
    // A link to the layer of another image, as older versions of docker wrote.
    let linked = pack(
        "linked",
        &[
            (
                "manifest.json",
                table("c.json", &["y/layer.tar"]).as_bytes(),
            ),
            ("c.json", good.as_bytes()),
            ("x/layer.tar", &layer),
        ],
        Some(("y/layer.tar", "../x/layer.tar")),
    );
    world.ours("root", &["import", "--name", "linked", &linked]);
    let bases = world.bases("root");
    // What leads out of the archive stays within it: there is no such member.
    let outside = pack(
        "outside",
        &[
            (
                "manifest.json",
                table("c.json", &["../../../../etc/passwd"]).as_bytes(),
            ),
            ("c.json", good.as_bytes()),
        ],
        None,
    );
    world.fails(
        "root",
        &["import", "--name", "x", &outside],
        66,
        "has no ../../../../etc/passwd",
    );
    let by_link = pack(
        "by-link",
        &[
            ("manifest.json", table("c.json", &["y"]).as_bytes()),
            ("c.json", good.as_bytes()),
        ],
        Some(("y", "/etc/passwd")),
    );
    world.fails("root", &["import", "--name", "x", &by_link], 66, "has no y");
    let other = pack(
        "other",
        &[
            ("manifest.json", table("c.json", &["l"]).as_bytes()),
            (
                "c.json",
                config(&[casemate_rootfs::Digest::of(b"").as_str()]).as_bytes(),
            ),
            ("l", &layer),
        ],
        None,
    );
    world.fails(
        "root",
        &["import", "--name", "x", &other],
        64,
        "configuration says",
    );
    let fewer = pack(
        "fewer",
        &[
            ("manifest.json", table("c.json", &["l"]).as_bytes()),
            ("c.json", config(&[]).as_bytes()),
            ("l", &layer),
        ],
        None,
    );
    world.fails(
        "root",
        &["import", "--name", "x", &fewer],
        64,
        "describes 0",
    );
    assert_eq!(world.bases("root"), bases);
}
