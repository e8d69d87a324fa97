//! The command line: results, exit codes, and what stays untouched.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct World {
    temp: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("tree/etc")).unwrap();
        fs::write(temp.path().join("tree/etc/release"), "one\n").unwrap();
        Self { temp }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rootfs-tools"));
        command
            .env_remove("SOURCE_DATE_EPOCH")
            .env("CASEMATE_ROOT", self.path("root"));
        command.current_dir(self.temp.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    fn fails(&self, arguments: &[&str], exit: i32, says: &str) {
        failed(&self.run(arguments), exit, says);
    }

    /// Runs `build` with a program of this name first on the path.
    fn build_with(&self, script: &str) -> Output {
        let bin = self.path("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("mmdebstrap"), format!("#!/bin/sh\n{script}\n")).unwrap();
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(bin.join("mmdebstrap"), executable).unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut command = self.command();
        command
            .args(["build", "--suite", "bookworm"])
            .env("PATH", path)
            .output()
            .unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

fn failed(output: &Output, exit: i32, says: &str) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(exit), "{stderr}");
    assert!(stderr.contains(says), "{stderr:?} does not say {says:?}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_base_is_imported_listed_shown_and_unpinned() {
    let world = World::new();
    let imported = json(&world.succeeds(&["--json", "import", "--name", "debian12", "tree"]));
    assert_eq!(imported["name"], "debian12");
    let listed = json(&world.succeeds(&["list", "--json"]));
    assert_eq!(listed[0]["manifest"], imported["manifest"]);
    assert_eq!(listed[0]["pinned"], true);
    let shown = json(&world.succeeds(&["show", "debian12", "--json"]));
    let path = Path::new(shown["path"].as_str().unwrap());
    assert_eq!(
        fs::read_to_string(path.join("etc/release")).unwrap(),
        "one\n"
    );
    assert_eq!(shown["chain"], imported["chain"]);
    let table = world.succeeds(&["list"]);
    assert!(table.starts_with("NAME") && table.contains("debian12") && table.contains("yes"));

    assert_eq!(
        world.succeeds(&["unpin", "debian12"]),
        "debian12 is no longer pinned\n"
    );
    assert_eq!(
        world.succeeds(&["unpin", "debian12"]),
        "debian12 was not pinned\n"
    );
    assert_eq!(
        json(&world.succeeds(&["list", "--json"]))[0]["pinned"],
        false
    );
    assert_eq!(world.succeeds(&["pin", "debian12"]), "debian12 is pinned\n");
    assert!(
        world
            .succeeds(&["show", "debian12"])
            .contains("pinned    yes")
    );
}

#[test]
fn an_archive_may_come_through_a_pipe_and_be_compressed() {
    let world = World::new();
    let script = r#"tar -C tree -cf - . | gzip | "$1" import --name piped -"#;
    let output = Command::new("sh")
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_rootfs-tools")])
        .env("CASEMATE_ROOT", world.path("root"))
        .current_dir(world.temp.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("piped is sha256:"));
    assert!(text(&output.stderr).contains("unpacking"));
}

#[test]
fn the_flag_wins_over_the_variable() {
    let world = World::new();
    let other = world.path("other");
    world.succeeds(&[
        "--root",
        other.to_str().unwrap(),
        "import",
        "--name",
        "d",
        "tree",
    ]);
    assert!(other.join("meta.json").is_file());
    world.path("root").symlink_metadata().unwrap_err();
}

#[test]
fn what_cannot_be_meant_is_a_usage_error_and_makes_nothing() {
    let world = World::new();
    for arguments in [
        &["import", "tree"][..],
        &["import", "--name", "Debian", "tree"],
        &["import", "--name", "../x", "tree"],
        &["build"],
        &["build", "--suite", "--aptopt=x"],
        &["build", "--suite", "bookworm", "--include", "git;id"],
        &["build", "--suite", "bookworm", "--variant", "apt"],
        &["build", "--suite", "bookworm", "--mirror", "bookworm"],
        &["show"],
        &["frob"],
        &[],
    ] {
        world.fails(arguments, 64, "");
    }
    world.path("root").symlink_metadata().unwrap_err();
}

#[test]
fn what_is_not_there_is_named() {
    let world = World::new();
    world.fails(&["list"], 66, "is no store of base images");
    world.fails(
        &["import", "--name", "d", "absent.tar"],
        66,
        "cannot open absent.tar",
    );
    world.succeeds(&["import", "--name", "d", "tree"]);
    for command in ["show", "pin", "unpin"] {
        world.fails(&[command, "other"], 66, "there is no base other");
    }
}

#[test]
fn a_refused_archive_is_named_by_entry_also_in_json() {
    let world = World::new();
    let made = Command::new("tar")
        .args([
            "-C",
            "tree",
            "--transform=s,^etc/release$,../release,",
            "-Pcf",
            "bad.tar",
            "etc",
        ])
        .current_dir(world.temp.path())
        .status()
        .unwrap();
    assert!(made.success());
    let arguments = ["import", "--name", "d", "bad.tar"];
    world.fails(&arguments, 64, "entry \"../release\" is refused: its path");
    let output = world
        .command()
        .arg("--json")
        .args(arguments)
        .output()
        .unwrap();
    let last = text(&output.stderr).lines().last().map(json).unwrap();
    assert_eq!(last["exit"], 64);
    assert!(last["error"].as_str().unwrap().contains("../release"));
    fs::write(world.path("noise.tar"), [7; 4096]).unwrap();
    world.fails(
        &["import", "--name", "d", "noise.tar"],
        64,
        "no tar archive",
    );
    assert_eq!(
        json(&world.succeeds(&["--json", "list"])),
        serde_json::json!([])
    );
}

#[test]
fn a_store_of_a_newer_version_is_unavailable() {
    let world = World::new();
    world.succeeds(&["import", "--name", "d", "tree"]);
    fs::write(
        world.path("root/meta.json"),
        r#"{"format":1,"incompat":["layers2"]}"#,
    )
    .unwrap();
    for arguments in [
        &["list"][..],
        &["pin", "d"],
        &["import", "--name", "d", "tree"],
    ] {
        world.fails(arguments, 69, "layers2");
    }
}

#[test]
fn who_may_not_write_is_told_so() {
    let world = World::new();
    world.succeeds(&["import", "--name", "d", "tree"]);
    fs::set_permissions(world.temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = world.path("rootfs-tools");
    fs::copy(env!("CARGO_BIN_EXE_rootfs-tools"), &program).unwrap();
    let as_other = |arguments: &[&str]| {
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .args(arguments)
            .env("CASEMATE_ROOT", world.path("root"))
            .current_dir(world.temp.path())
            .output()
            .unwrap()
    };
    failed(&as_other(&["import", "--name", "e", "tree"]), 77, "cannot");
    failed(&as_other(&["pin", "d"]), 77, "cannot");
    failed(
        &as_other(&["build", "--suite", "bookworm"]),
        77,
        "run this as root",
    );
    assert_eq!(
        json(&world.succeeds(&["--json", "list"]))
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn without_mmdebstrap_the_way_to_get_it_is_said() {
    let world = World::new();
    std::os::unix::fs::symlink("/usr/bin/unshare", world.path("tree/unshare")).unwrap();
    let mut command = world.command();
    command
        .args(["build", "--suite", "bookworm"])
        .env("PATH", world.path("tree"));
    failed(&command.output().unwrap(), 69, "apt-get install mmdebstrap");
    assert_eq!(
        json(&world.succeeds(&["--json", "list"])),
        serde_json::json!([])
    );
}

#[test]
fn what_a_build_mounts_is_not_seen_outside_and_goes_with_it() {
    let world = World::new();
    let output = world.build_with(
        "mkdir mounted; mount -t tmpfs tmpfs mounted; echo x > mounted/x; tar -C tree -cf - .",
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(fs::read_dir(world.path("mounted")).unwrap().count(), 0);
}

#[test]
fn a_build_becomes_the_base_of_its_suite() {
    let world = World::new();
    let script = r#"
        printf '%s\n' "$@" > arguments
        echo "I: running apt-get update..." >&2
        env > environment
        tar -C tree -cf - .
    "#;
    let output = world.build_with(script);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("debian12 is sha256:"));
    assert!(text(&output.stderr).contains("running apt-get update"));
    let arguments = fs::read_to_string(world.path("arguments")).unwrap();
    assert!(arguments.contains("--variant=minbase\n") && arguments.ends_with("bookworm\n-\n"));
    let environment = fs::read_to_string(world.path("environment")).unwrap();
    let epoch = environment
        .lines()
        .find_map(|line| line.strip_prefix("SOURCE_DATE_EPOCH="));
    assert_eq!(epoch.unwrap().parse::<u64>().unwrap() % 86_400, 0);
}

#[test]
fn a_build_that_fails_makes_no_base_even_with_a_whole_archive() {
    let world = World::new();
    let tail = r#"echo "E: setup failed: no space" >&2; exit 3"#;
    for script in [format!("tar -C tree -cf - .; {tail}"), tail.to_owned()] {
        let output = world.build_with(&script);
        failed(&output, 69, "E: setup failed: no space");
        assert_eq!(
            json(&world.succeeds(&["--json", "list"])),
            serde_json::json!([])
        );
    }
}

#[test]
fn a_build_is_ended_when_its_archive_is_refused() {
    let world = World::new();
    // An xz header with no xz data behind it, from a program that goes on.
    let script = r"
        trap 'kill $!; echo ended > ended; exit 143' TERM
        printf '\3757zXZ\000'
        head -c 4096 /dev/zero | tr '\000' x
        sleep 60 & wait
    ";
    let output = world.build_with(script);
    failed(
        &output,
        64,
        "damaged, truncated or not compressed as it says",
    );
    assert_eq!(fs::read_to_string(world.path("ended")).unwrap(), "ended\n");
    assert_eq!(
        json(&world.succeeds(&["--json", "list"])),
        serde_json::json!([])
    );
}

#[test]
fn what_is_not_pinned_is_collected_and_the_rest_explained() {
    let world = World::new();
    for base in ["kept", "gone"] {
        fs::write(world.path("tree/etc/name"), base).unwrap();
        world.succeeds(&["import", "--name", base, "tree"]);
    }
    world.succeeds(&["unpin", "gone"]);
    let preview = world.succeeds(&["gc", "--dry-run", "--min-age", "0"]);
    assert!(preview.contains("base gone\n") && preview.contains("would be removed"));
    let young = world.succeeds(&["gc"]);
    assert!(
        young.starts_with("0 bases, 0 snapshots and 0 blobs"),
        "{young}"
    );
    let collected = json(&world.succeeds(&["--json", "gc", "--min-age=0"]));
    assert_eq!(collected["names"], serde_json::json!(["gone"]));
    let listed = json(&world.succeeds(&["--json", "list"]));
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let chain = listed[0]["chain"].as_str().unwrap();
    let why = world.succeeds(&["gc", "--why", chain]);
    assert!(why.contains("pins/kept.json -> snapshot\n"), "{why}");
    let unkept = format!("sha256:{}", "0".repeat(64));
    failed(&world.run(&["gc", "--why", &unkept]), 66, "nothing keeps");
    world.succeeds(&["fsck", "--deep"]);
}

#[test]
fn a_damaged_store_is_named_and_repaired() {
    let world = World::new();
    world.succeeds(&["import", "--name", "base", "tree"]);
    fs::write(world.path("root/store/index.json"), "").unwrap();
    let listed = world.run(&["list"]);
    assert!(listed.status.success());
    assert!(String::from_utf8_lossy(&listed.stderr).contains("warning: "));
    failed(&world.run(&["gc"]), 65, "store/index.json cannot be used");
    let checked = world.run(&["fsck"]);
    assert_eq!(checked.status.code(), Some(65));
    assert!(text(&checked.stdout).contains("1 problems, 1 remain"));
    let repaired = world.succeeds(&["fsck", "--repair"]);
    assert!(repaired.contains("restored from its copy"), "{repaired}");
    assert!(world.run(&["list"]).stderr.is_empty());
}
