//! Mounts of `config.json`.

use casemate_bundles::Rule;
use serde_json::json;

use crate::change::{In, Mutation, P, R, mount, push};

pub(crate) const MUTATIONS: &[Mutation] = &[
    (
        R,
        "another tile's clone at the own tile",
        In::Config,
        |c| {
            mount(c, "/srv/team/apps/notes")["source"] =
                json!("/run/casemate/k2v9c0a1b2d3/mounts/5");
        },
        Rule::StageSource,
    ),
    (
        R,
        "the workspace itself as a source",
        In::Config,
        |c| {
            mount(c, "/srv/team/apps/wiki")["source"] = json!("/srv/team");
        },
        Rule::MountSource,
    ),
    (
        R,
        "a source that is the skeleton's, for the init",
        In::Config,
        |c| {
            mount(c, "/run/casemate/init")["source"] = json!("/tmp/init");
        },
        Rule::MountSource,
    ),
    (
        R,
        "a target that nobody planned",
        In::Config,
        |c| {
            mount(c, "/srv/team/apps/wiki")["destination"] = json!("/srv/team/apps/secret");
        },
        Rule::MountTarget,
    ),
    (
        R,
        "one mount too many",
        In::Config,
        |c| {
            push(
                &mut c["mounts"],
                json!({"destination": "/host", "type": "bind", "source": "/",
            "options": ["rbind", "rro", "nosuid", "nodev"]}),
            );
        },
        Rule::MountTarget,
    ),
    (
        R,
        "a mount over the root",
        In::Config,
        |c| {
            mount(c, "/opt/sdk")["destination"] = json!("/");
        },
        Rule::MountTarget,
    ),
    (
        R,
        "a target twice",
        In::Config,
        |c| {
            let again = mount(c, "/opt/sdk").clone();
            push(&mut c["mounts"], again);
        },
        Rule::MountTarget,
    ),
    (
        R,
        "no /proc of its own",
        In::Config,
        |c| {
            c["mounts"]
                .as_array_mut()
                .unwrap()
                .retain(|mount| mount["destination"] != "/proc");
        },
        Rule::MountTarget,
    ),
    (
        R,
        "another tile writable",
        In::Config,
        |c| {
            mount(c, "/srv/team/apps/wiki")["options"] = json!(["rbind", "rw", "nosuid", "nodev"]);
        },
        Rule::MountFlag,
    ),
    (
        R,
        "ro instead of rro, which leaves sub-mounts writable",
        In::Config,
        |c| {
            mount(c, "/srv/team/apps/wiki")["options"] = json!(["rbind", "ro", "nosuid", "nodev"]);
        },
        Rule::MountFlag,
    ),
    (
        R,
        "set-user-id programs in the own tile",
        In::Config,
        |c| {
            mount(c, "/srv/team/apps/notes")["options"] = json!(["rbind", "rw", "nodev"]);
        },
        Rule::MountFlag,
    ),
    (
        R,
        "devices in the own home",
        In::Config,
        |c| {
            mount(c, "/srv/team/homes/ann")["options"] = json!(["rbind", "rw", "nosuid"]);
        },
        Rule::MountFlag,
    ),
    (
        R,
        "the host's terminals",
        In::Config,
        |c| {
            mount(c, "/dev/pts")["options"] =
                json!(["nosuid", "noexec", "ptmxmode=0666", "mode=0620", "gid=5"]);
        },
        Rule::MountFlag,
    ),
    (
        R,
        "a tmpfs where devpts belongs",
        In::Config,
        |c| {
            mount(c, "/dev/pts")["type"] = json!("tmpfs");
        },
        Rule::MountType,
    ),
    (
        R,
        "the skeleton after the tiles, which it would cover",
        In::Config,
        |c| {
            let mounts = c["mounts"].as_array_mut().unwrap();
            let at = mounts
                .iter()
                .position(|mount| mount["destination"] == "/srv/team")
                .unwrap();
            let skeleton = mounts.remove(at);
            mounts.push(skeleton);
        },
        Rule::MountOrder,
    ),
    (
        R,
        "a shared mount",
        In::Config,
        |c| {
            push(
                &mut mount(c, "/srv/team/apps/notes")["options"],
                json!("rshared"),
            );
        },
        Rule::Propagation,
    ),
    (
        R,
        "a shared root",
        In::Config,
        |c| {
            c["linux"]["rootfsPropagation"] = json!("shared");
        },
        Rule::Propagation,
    ),
    (
        P,
        "more scratch than planned",
        In::Config,
        |c| {
            mount(c, "/tmp")["options"] = json!(["nosuid", "nodev", "mode=1777", "size=0"]);
        },
        Rule::MountFlag,
    ),
    (
        P,
        "a writable projection",
        In::Config,
        |c| {
            mount(c, "/workspace/src")["options"] = json!(["rbind", "rw", "nosuid", "nodev"]);
        },
        Rule::MountFlag,
    ),
    (
        P,
        "a writable root",
        In::Config,
        |c| c["root"]["readonly"] = json!(false),
        Rule::Root,
    ),
    (
        R,
        "another root",
        In::Config,
        |c| c["root"]["path"] = json!("/"),
        Rule::Root,
    ),
];
