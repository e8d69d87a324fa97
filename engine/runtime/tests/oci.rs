//! The OCI command line on a bundle whose stage a keeper has mounted.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test code: a failed step is a failed test"
)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use casemate_protocol::AttachMode;
use common::{Ask, Connection, World};
use serde_json::{Value, json};

/// A copy of a living sandbox's bundle with another command and a group of its own.
struct Bundle {
    world: World,
    _alive: Connection,
    keeper: String,
    dir: PathBuf,
    config: Value,
}

impl Bundle {
    fn new(name: &str) -> Self {
        let mut world = World::start();
        let ask = Ask::new(&["cat"]).stream();
        let mut alive = world.launch(&ask);
        alive.attach(AttachMode::Write);
        alive.attached();
        alive.input(b"x\n");
        alive.until("x\n");
        let stage = world.run_dir().join(&ask.id);
        let state = std::fs::read_to_string(stage.join("state.json")).unwrap();
        let state: Value = serde_json::from_str(&state).unwrap();
        // The bundle lies in the keeper's own view of the mounts.
        let below = stage.strip_prefix("/").unwrap().join("bundle/config.json");
        let seen = format!("/proc/{}/root", state["pid"]);
        let config = std::fs::read_to_string(Path::new(&seen).join(below)).unwrap();
        let mut config: Value = serde_json::from_str(&config).unwrap();
        config["root"]["path"] = json!(stage.join("bundle/rootfs"));
        config["linux"]["cgroupsPath"] = json!(format!("/casemate-oci-{name}-{}", ask.id));
        // The keeper of the living sandbox reads the other end.
        config["mounts"]
            .as_array_mut()
            .unwrap()
            .retain(|mount| mount["destination"] != json!("/run/casemate/report"));
        let dir = world.dir.path().join("bundle");
        std::fs::create_dir(&dir).unwrap();
        Self {
            keeper: state["pid"].to_string(),
            world,
            _alive: alive,
            dir,
            config,
        }
    }

    fn command(&mut self, script: &str) {
        self.config["process"]["args"] = json!(["/run/casemate/init", "sh", "-c", script]);
        self.write(&self.config.clone());
    }

    fn write(&self, config: &Value) {
        std::fs::write(
            self.dir.join("config.json"),
            serde_json::to_vec(config).unwrap(),
        )
        .unwrap();
    }

    fn call(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["-m", "-t", &self.keeper])
            // The keeper has covered the host's hierarchies for itself.
            .args(["unshare", "-m", "--propagation", "private", "sh", "-c"])
            .args(["umount -l /sys/fs/cgroup; exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_casemate-runtime"))
            .arg("--root")
            .arg(self.world.dir.path().join("oci"))
            .args(arguments)
            .stdin(Stdio::null())
            .env("LISTEN_FDS", "3");
        command
    }

    fn oci(&self, arguments: &[&str]) -> Output {
        self.call(arguments).output().unwrap()
    }

    fn with_bundle(&self, command: &str) -> Output {
        let dir = self.dir.to_str().unwrap();
        self.oci(&[command, "--bundle", dir, "c1"])
    }

    fn status(&self) -> String {
        let output = self.oci(&["state", "c1"]);
        let state: Value = serde_json::from_slice(&output.stdout).unwrap();
        state["status"].as_str().unwrap().to_owned()
    }
}

#[test]
fn run_gives_the_exit_status_and_leaves_nothing() {
    let mut bundle = Bundle::new("run");
    bundle.command("echo out; ls /proc/self/fd | wc -l; env; exit 3");
    let output = bundle.with_bundle("run");
    let errors = String::from_utf8(output.stderr).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(text.starts_with("out\n4\n"), "{text}");
    assert!(!text.contains("LISTEN_FDS"), "{text}");
    assert!(!bundle.oci(&["state", "c1"]).status.success());
    assert_eq!(bundle.oci(&["list", "--quiet"]).stdout, b"");
    for _ in 0..20 {
        bundle.command("exit 0");
        assert_eq!(bundle.with_bundle("run").status.code(), Some(0));
    }
}

#[test]
fn run_limits_with_the_groups_of_a_keeper() {
    let mut bundle = Bundle::new("groups");
    let limits = bundle.config["linux"]["resources"]["pids"]["limit"].clone();
    bundle.command("echo ready; sleep 1000");
    let mut own = bundle
        .call(&["run", "--bundle", bundle.dir.to_str().unwrap(), "c1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = [0; 6];
    std::io::Read::read_exact(own.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert_eq!(&line, b"ready\n");
    let name = bundle.config["linux"]["cgroupsPath"].as_str().unwrap();
    let name = name.trim_start_matches('/').to_owned();
    let groups = common::groups(&name);
    let controllers: Vec<&str> = groups.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(controllers, ["", "cpu", "memory", "pids"]);
    let (_, pids) = &groups[3];
    let limit = std::fs::read_to_string(pids.join("pids.max")).unwrap();
    assert_eq!(limit.trim(), limits.to_string());
    for (controller, group) in &groups {
        let inside = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
        assert!(!inside.is_empty(), "nobody in {controller:?}");
    }
    assert!(bundle.oci(&["kill", "c1", "KILL"]).status.success());
    assert_eq!(own.wait().unwrap().code(), Some(137));
    assert_eq!(common::groups(&name), []);
}

#[test]
fn a_container_goes_through_its_states() {
    let mut bundle = Bundle::new("states");
    bundle.command("sleep 1000");
    let dir = bundle.dir.to_str().unwrap().to_owned();
    let created = bundle
        .call(&["create", "--bundle", &dir, "c1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(created.success());
    assert_eq!(bundle.status(), "created");
    assert!(bundle.oci(&["start", "c1"]).status.success());
    assert_eq!(bundle.status(), "running");
    assert_eq!(bundle.oci(&["list", "-q"]).stdout, b"c1\n");
    assert!(!bundle.oci(&["delete", "c1"]).status.success());
    assert!(bundle.oci(&["kill", "c1", "KILL"]).status.success());
    let until = std::time::Instant::now() + common::LIMIT;
    while bundle.status() != "stopped" {
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(bundle.oci(&["delete", "c1"]).status.success());
    assert!(bundle.oci(&["delete", "--force", "c1"]).status.success());
    let features = bundle.oci(&["features"]);
    let features: Value = serde_json::from_slice(&features.stdout).unwrap();
    assert_eq!(features["linux"]["cgroup"]["systemd"], json!(false));
}

#[test]
fn bundles_that_are_not_safe_here_are_refused() {
    type Change = fn(&mut Value);
    let mut bundle = Bundle::new("refused");
    bundle.command("true");
    let changes: [(&str, Change); 7] = [
        ("host id 0", |config| {
            config["linux"]["uidMappings"][0]["hostID"] = json!(0);
        }),
        ("one extent", |config| {
            let more = config["linux"]["gidMappings"][0].clone();
            config["linux"]["gidMappings"]
                .as_array_mut()
                .unwrap()
                .push(more);
        }),
        ("user namespace", |config| {
            config["linux"]["namespaces"]
                .as_array_mut()
                .unwrap()
                .retain(|namespace| namespace["type"] != json!("user"));
        }),
        ("process.args", |config| {
            config["process"]["args"] = json!(["/bin/sh"]);
        }),
        ("process.capabilities", |config| {
            config["process"]
                .as_object_mut()
                .unwrap()
                .remove("capabilities");
        }),
        ("hooks", |config| {
            config["hooks"] = json!({"prestart": [{"path": "/bin/true"}]});
        }),
        ("cgroupsPath", |config| {
            config["linux"]["cgroupsPath"] = json!("relative");
        }),
    ];
    for (word, change) in changes {
        let mut config = bundle.config.clone();
        change(&mut config);
        bundle.write(&config);
        let output = bundle.with_bundle("run");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(70), "{word}: {text}");
        assert!(text.contains("refused") && text.contains(word), "{text}");
    }
    for bad in [
        &["state", "../x"][..],
        &["state", "absent"],
        &["kill", "absent", "TERM"],
    ] {
        assert_eq!(bundle.oci(bad).status.code(), Some(70));
    }
    assert_eq!(bundle.oci(&["exec", "c1", "sh"]).status.code(), Some(2));
}
