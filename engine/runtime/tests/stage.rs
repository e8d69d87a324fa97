//! `stage up|down`: a bundle of somebody else gets nothing that its operator has not named.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test code: a failed step is a failed test"
)]

mod common;

use std::path::PathBuf;
use std::process::{Command, Output};

use casemate_bundles::{
    HostPath, LaunchPlan, Placement, Profile, Projection, ProjectionKind, SandboxPath, Slice,
    Upper, compile,
};
use common::{Ask, World};
use serde_json::json;

/// First id of the last slice, which no other sandbox of the test uses.
const LAST: u32 = 1_879_048_192 + 63 * 65_536;

struct Bundle {
    world: World,
    plan: LaunchPlan,
    placement: Placement,
}

fn host(path: PathBuf) -> HostPath {
    HostPath::parse(path.into_os_string().into_string().unwrap()).unwrap()
}

impl Bundle {
    fn new() -> Self {
        let world = World::start();
        let plan = Ask::new(&["true"]).request(&world.base).plan;
        let dir = world.dir.path();
        let fs = format!("root/snapshots/sha256/{}/fs", world.base.hex());
        let placement = Placement {
            stage: host(dir.join("bundle")),
            init: host(dir.join("init")),
            base: host(dir.join(fs)),
            upper: Upper::Memory(128 << 20),
            ids: Slice::parse(LAST).unwrap(),
            cgroup: HostPath::parse(format!("/casemate/{}", plan.id)).unwrap(),
        };
        Self {
            world,
            plan,
            placement,
        }
    }

    fn dir(&self) -> PathBuf {
        self.world.dir.path().join("bundle")
    }

    /// Writes what somebody who follows no rule but the compiler's would hand out.
    fn write(&self) {
        let host = &self.world.support;
        let bundle = compile(&self.plan, &self.placement, host).unwrap();
        let dir = self.dir();
        if std::fs::exists(&dir).unwrap() {
            std::fs::remove_dir_all(&dir).unwrap();
        }
        std::fs::create_dir(&dir).unwrap();
        let record = json!({
            "plan": self.plan,
            "placement": self.placement,
            "host": host,
            "digest": bundle.digest,
            "enforcement": bundle.enforcement,
        });
        for (name, bytes) in [
            ("config.json", bundle.config),
            ("guard.json", bundle.guard),
            ("stage.json", bundle.stage),
            ("plan.json", serde_json::to_vec(&record).unwrap()),
        ] {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
    }

    fn call(&self, script: &str) -> Output {
        let dir = self.world.dir.path();
        let stage = format!(
            "stage() {{ {} stage $1 {} --root {} --init {} --ids 1879048192:64; }}",
            env!("CARGO_BIN_EXE_casemate-runtime"),
            self.dir().display(),
            dir.join("root").display(),
            dir.join("init").display(),
        );
        Command::new("unshare")
            .args(["--mount", "sh", "-ec"])
            .arg(format!("{stage}; {script}"))
            .output()
            .unwrap()
    }

    fn assert_refused(&self, why: &str) {
        for verb in ["up", "down"] {
            let output = self.call(&format!("stage {verb}"));
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success(), "{why}");
            assert!(text.contains(why), "{text}");
        }
        let mut names: Vec<_> = std::fs::read_dir(self.dir())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        let documents = ["config.json", "guard.json", "plan.json", "stage.json"];
        assert_eq!(names, documents, "{why}: nothing is made or removed");
    }
}

#[test]
fn the_own_bundle_is_mounted_and_taken_down() {
    let bundle = Bundle::new();
    bundle.write();
    let script = "stage up; test -x $0/bundle/rootfs/usr/bin/true; ! stage up; stage down; \
                  ! test -e $0/bundle; stage up; stage down";
    let script = script.replace("$0", bundle.dir().to_str().unwrap());
    let output = bundle.call(&script);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_is_not_this_installations_is_refused() {
    type Change = fn(&mut Placement);
    let mut bundle = Bundle::new();
    let ours = bundle.placement.clone();
    let changes: [(&str, Change); 4] = [
        ("guard init", |place| {
            place.init = HostPath::parse("/usr/bin/true").unwrap();
        }),
        ("base", |place| {
            place.base = HostPath::parse("/usr").unwrap();
        }),
        ("slice of ids", |place| {
            place.ids = Slice::parse(1_879_048_192).unwrap();
        }),
        ("control group", |place| {
            place.cgroup = HostPath::parse("/system.slice").unwrap();
        }),
    ];
    for (what, change) in changes {
        bundle.placement = ours.clone();
        change(&mut bundle.placement);
        bundle.write();
        bundle.assert_refused(&format!("the {what} of the bundle is not"));
    }
}

#[test]
fn a_source_that_nobody_has_named_is_refused() {
    let mut bundle = Bundle::new();
    let Profile::Process { view, .. } = &mut bundle.plan.profile else {
        unreachable!("a command run");
    };
    view.projections.push(Projection {
        target: SandboxPath::parse("/workspace").unwrap(),
        source: HostPath::parse("/root").unwrap(),
        kind: ProjectionKind::Directory,
        owner: 0,
    });
    bundle.write();
    bundle.assert_refused("is outside what this engine may show");
}

#[test]
fn a_changed_document_is_neither_mounted_nor_removed() {
    let bundle = Bundle::new();
    bundle.write();
    let path = bundle.dir().join("config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, config.replacen("\"true\"", "\"false\"", 1)).unwrap();
    bundle.assert_refused("");
    let mut spaced = config.into_bytes();
    spaced.push(b'\n');
    std::fs::write(&path, spaced).unwrap();
    bundle.assert_refused("");
}
