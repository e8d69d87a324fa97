//! The command line as a program: exit statuses, one-line errors, nothing changed by bad input.
//!
//! What needs a real sandbox needs root, `CASEMATE_LIBEXEC` with the built programs and
//! `CASEMATE_TEST_ROOT` with a base; without them those tests say so and end.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests fail the test, and a skip is said"
)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A spare range of ids for sandboxes of these tests.
const FIRST_ID: &str = "1879048192";

/// Directories of one test; nothing of the host's configuration is seen.
struct World {
    directory: tempfile::TempDir,
    root: PathBuf,
}

impl World {
    /// A world without bases.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        Self { directory, root }
    }

    /// A world with a base; `None`, said on standard error, where there is none to be had.
    fn real() -> Option<Self> {
        let root = std::env::var_os("CASEMATE_TEST_ROOT");
        if root.is_none() || std::env::var_os("CASEMATE_LIBEXEC").is_none() {
            eprintln!("skipped: CASEMATE_TEST_ROOT and CASEMATE_LIBEXEC are needed");
            return None;
        }
        Some(Self {
            root: root?.into(),
            ..Self::new()
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_casemate"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CASEMATE_CONFIG", self.path("config.toml"))
            .env("CASEMATE_ROOT", &self.root)
            .env("CASEMATE_RUN_DIR", self.path("run"))
            .env("CASEMATE_IDS_FIRST", FIRST_ID)
            .env("CASEMATE_IDS_SLICES", "64")
            .stdin(Stdio::null());
        if let Some(libexec) = std::env::var_os("CASEMATE_LIBEXEC") {
            command.env("CASEMATE_LIBEXEC", libexec);
        }
        if fs::metadata(self.path("config.toml")).is_err() {
            fs::write(self.path("config.toml"), "").unwrap();
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Makes a workspace with two tiles that belongs to nobody special.
    fn workspace(&self) -> PathBuf {
        let workspace = self.path("workspace");
        for name in ["", "apps", "apps/a", "apps/b", "data", ".xbin"] {
            let path = workspace.join(name);
            fs::create_dir(&path).unwrap();
            chown(&path, Some(54_321), Some(54_321)).unwrap();
        }
        for name in ["apps/a/xbin.json", "apps/b/xbin.json", ".xbin/token"] {
            let path = workspace.join(name);
            fs::write(&path, "{}").unwrap();
            chown(&path, Some(54_321), Some(54_321)).unwrap();
        }
        workspace
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Asserts the status and one line on standard error that contains `word`.
fn assert_refused(output: &Output, status: i32, word: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.starts_with("casemate: ") && said.contains(word),
        "{said}"
    );
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
}

#[test]
fn each_bad_flag_is_one_line_and_changes_nothing() {
    let world = World::new();
    let cases: &[(&[&str], &str)] = &[
        (&["run"], "ARGV"),
        (&["run", "ls"], "ls"),
        (&["run", "--"], "ARGV"),
        (&["run", "--", ""], "command"),
        (&["run", "--bogus", "--", "true"], "--bogus"),
        (&["run", "--profile", "root", "--", "true"], "root"),
        (&["run", "--net", "lan", "--", "true"], "lan"),
        (&["run", "--timeout", "5", "--", "true"], "60s"),
        (&["run", "--timeout", "0s", "--", "true"], "0s"),
        (&["run", "--memory", "1.5G", "--", "true"], "512M"),
        (&["run", "--memory", "1", "--", "true"], "memory_bytes"),
        (&["run", "--pids", "0", "--", "true"], "pids"),
        (&["run", "--pids", "-1", "--", "true"], "-1"),
        (&["run", "--cpus", "0", "--", "true"], "cpu_millis"),
        (&["run", "--cpus", "1e3", "--", "true"], "0.5"),
        (&["run", "--env", "A", "--", "true"], "NAME=VALUE"),
        (&["run", "--env", "PATH=/x", "--", "true"], "reserved"),
        (&["run", "--env", "LD_PRELOAD=x", "--", "true"], "reserved"),
        (
            &["run", "--env", "A=1", "--env", "A=2", "--", "true"],
            "twice",
        ),
        (&["run", "--cwd", "tmp", "--", "true"], "absolute"),
        (&["run", "--cwd", "/tmp/../etc", "--", "true"], "normalised"),
        (
            &["run", "--tile", "apps/../data", "--", "true"],
            "apps/NAME",
        ),
        (&["run", "--visible", "apps/a", "--", "true"], "terminals"),
        (&["run", "--nesting", "on", "--", "true"], "terminal-admin"),
        (&["run", "--json", "--tty", "--", "true"], "--tty"),
        (
            &["run", "--profile", "terminal-admin", "--", "true"],
            "--tile",
        ),
        (
            &[
                "run",
                "--profile",
                "terminal-admin",
                "--tile",
                "apps/a",
                "--pids",
                "9",
                "--",
                "true",
            ],
            "not limited",
        ),
        (
            &[
                "run",
                "--profile",
                "backend",
                "--tile",
                "apps/a",
                "--net",
                "host",
                "--",
                "true",
            ],
            "none",
        ),
        (&["--root", "relative", "config", "show"], "root"),
        (&["bundle", "explain", "/nonexistent"], "PATH"),
        (&["nonsense"], "nonsense"),
        (&[], "Usage"),
    ];
    for (arguments, word) in cases {
        if arguments.is_empty() {
            assert_eq!(world.run(arguments).status.code(), Some(64));
        } else {
            assert_refused(&world.run(arguments), 64, word);
        }
    }
    let left: Vec<_> = fs::read_dir(world.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["config.toml"]);
}

#[test]
fn what_the_host_lacks_is_unavailable_with_its_name() {
    let world = World::new();
    let internet = world.run(&["run", "--net", "internet", "--", "true"]);
    assert_refused(
        &internet,
        69,
        "net.internet is unavailable: use --net host or --net none",
    );
    let no_base = world.run(&["run", "--", "true"]);
    assert_refused(&no_base, 69, "rootfs-tools build --suite bookworm");
    let mut no_ids = world.command(&["run", "--", "true"]);
    no_ids
        .env_remove("CASEMATE_IDS_FIRST")
        .env("CASEMATE_SERVICE_USER", "nobody-has-this-name");
    assert_refused(&no_ids.output().unwrap(), 69, "subuid");
}

#[test]
fn only_root_makes_sandboxes() {
    let world = World::new();
    let program = world.path("casemate");
    fs::copy(env!("CARGO_BIN_EXE_casemate"), &program).unwrap();
    fs::set_permissions(world.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for arguments in [&["run", "--", "true"][..], &["doctor"]] {
        let output = Command::new(&program)
            .args(arguments)
            .env_clear()
            .uid(65_534)
            .gid(65_534)
            .output()
            .unwrap();
        assert_refused(
            &output,
            69,
            "run as root, or use `casemate exec` through a service",
        );
    }
}

#[test]
fn each_value_of_the_configuration_shows_its_origin() {
    let world = World::new();
    fs::write(world.path("config.toml"), "listen = \"127.0.0.1:9\"\n").unwrap();
    let output = world.run(&["config", "show", "--run-dir", "/flag"]);
    let shown = text(&output.stdout);
    for line in [
        "run_dir = \"/flag\"  # flag",
        "ids.slices = 64  # variable CASEMATE_IDS_SLICES",
        "grace_s = 300  # default",
        "base = (none)  # default",
    ] {
        assert!(shown.lines().any(|found| found == line), "{line}: {shown}");
    }
    let listen = shown
        .lines()
        .find(|line| line.starts_with("listen"))
        .unwrap();
    assert!(listen.contains(":9\"  # file ") && listen.ends_with("config.toml"));
    fs::write(world.path("config.toml"), "listne = 1\n").unwrap();
    assert_refused(&world.run(&["config", "show"]), 64, "listne");
}

#[test]
fn a_closed_output_is_no_panic() {
    let world = World::new();
    for arguments in [&["config", "show"][..], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = world.command(arguments).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(141));
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn a_bundle_that_is_none_is_refused() {
    let world = World::new();
    let dir = world.path("bundle");
    let name = dir.to_str().unwrap();
    assert_refused(&world.run(&["bundle", "show", name]), 66, "config.json");
    fs::create_dir(&dir).unwrap();
    for file in ["config.json", "guard.json", "stage.json", "plan.json"] {
        fs::write(dir.join(file), "{").unwrap();
    }
    for arguments in [
        &["bundle", "show", name][..],
        &["bundle", "verify", name],
        &["bundle", "explain", name, "/etc"],
        &["bundle", "mount", name],
        &["bundle", "diff", name, name],
    ] {
        let output = world.run(arguments);
        assert_eq!(output.status.code(), Some(70), "{arguments:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{arguments:?}");
    }
}

#[test]
fn the_status_is_the_commands_own() {
    let Some(world) = World::real() else { return };
    for (argv, status) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["no-such-command"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let arguments = [&["run", "--"][..], argv].concat();
        let output = world.run(&arguments);
        assert_eq!(output.status.code(), Some(status), "{argv:?} {output:?}");
    }
    let slow = world.run(&["run", "--timeout", "300ms", "--", "sleep", "60"]);
    assert_eq!(slow.status.code(), Some(124));
    assert_refused(
        &world.run(&["run", "--base", "nope", "--", "true"]),
        66,
        "nope",
    );
    assert_eq!(
        fs::read_dir(world.path("run")).unwrap().count(),
        1,
        "slices alone"
    );
}

#[test]
fn the_first_signal_cancels_and_the_second_kills() {
    let Some(world) = World::real() else { return };
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done";
    let mut child = world
        .command(&["run", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut heard = String::new();
    let mut hear = |word: &str| {
        let mut byte = [0];
        while !heard.contains(word) && stdout.read(&mut byte).unwrap() == 1 {
            heard.push(char::from(byte[0]));
        }
        assert!(heard.contains(word), "{heard}");
    };
    let interrupt = || {
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    };
    hear("ready");
    interrupt();
    hear("asked");
    let killed = Instant::now();
    interrupt();
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(130), None));
    assert!(killed.elapsed() < Duration::from_millis(1500));
}

#[test]
fn streams_flow_and_a_reader_that_goes_away_ends_the_run() {
    let Some(world) = World::real() else { return };
    let mut child = world
        .command(&["run", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let bytes: Vec<u8> = (0..4_000_000_u32).map(|n| (n % 251) as u8).collect();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let mut got = Vec::new();
    stdout.read_to_end(&mut got).unwrap();
    writer.join().unwrap();
    assert!(got == bytes);
    assert!(child.wait().unwrap().success());

    let mut child = world
        .command(&["run", "--", "yes"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut [0; 1000])
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn a_terminal_sees_what_its_flags_allow() {
    let Some(world) = World::real() else { return };
    let workspace = world.workspace();
    let workspace = workspace.to_str().unwrap();
    let shell = |flags: &[&str], script: &str| {
        let arguments = [
            &["--workspace", workspace, "run", "--tile", "apps/a"][..],
            flags,
            &["--", "sh", "-c", script],
        ]
        .concat();
        world.run(&arguments)
    };
    let restricted = &["--profile", "terminal-restricted"][..];
    let script = format!(
        "touch mine && echo own; ls {workspace}/apps; cat {workspace}/.xbin/token; \
         cat $HOME/.bashrc >/dev/null && echo home"
    );
    let output = shell(restricted, &script);
    assert_eq!(text(&output.stdout), "own\na\nhome\n", "{output:?}");
    let seeing = [restricted, &["--visible", "apps/b"]].concat();
    let output = shell(&seeing, "ls ../b; touch ../b/x || echo refused");
    assert_eq!(text(&output.stdout), "xbin.json\nrefused\n", "{output:?}");
    let hidden = shell(&[restricted, &["--visible", "apps/c"]].concat(), "true");
    assert_refused(&hidden, 66, "apps/c");
    let run = shell(&[], "pwd; ls; touch x || echo refused");
    assert_eq!(
        text(&run.stdout),
        "/workspace\nmine\nxbin.json\nrefused\n",
        "{run:?}"
    );
}

#[test]
fn hostile_workspaces_are_refused() {
    let Some(world) = World::real() else { return };
    let workspace = world.workspace();
    let link = world.path("link");
    symlink(&workspace, &link).unwrap();
    symlink("/etc", workspace.join("apps/etc")).unwrap();
    let run = |workspace: &Path, tile: &str| {
        let workspace = workspace.to_str().unwrap();
        world.run(&[
            "--workspace",
            workspace,
            "run",
            "--tile",
            tile,
            "--",
            "true",
        ])
    };
    assert_refused(&run(&link, "apps/a"), 66, "symlinks");
    assert_refused(&run(&workspace, "apps/etc"), 66, "apps/etc");
    assert_refused(&run(Path::new("/"), "apps/a"), 64, "root");
}

#[test]
fn a_bundle_runs_the_same_under_runc() {
    let Some(world) = World::real() else { return };
    let dir = world.path("bundle");
    let dir = dir.to_str().unwrap();
    // The sandbox's root is nobody on the host and has to pass through.
    fs::set_permissions(world.directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let script = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; cat /proc/self/uid_map";
    let argv = ["--", "sh", "-c", script];
    let ours = world.run(&[&["run"][..], &argv].concat());
    assert!(ours.status.success(), "{ours:?}");
    let compiled = world.run(&[&["bundle", "compile", "--to", dir][..], &argv].concat());
    assert!(compiled.status.success(), "{compiled:?}");
    let again = world.run(&[&["bundle", "compile", "--to", dir][..], &argv].concat());
    assert_refused(&again, 64, "exists");
    let verified = world.run(&["bundle", "verify", dir]);
    assert!(text(&verified.stdout).starts_with(text(&compiled.stdout).trim_end()));
    let explained = world.run(&["bundle", "explain", dir, "/output/x"]);
    assert!(
        text(&explained.stdout).contains("read-write"),
        "{explained:?}"
    );

    let casemate = env!("CARGO_BIN_EXE_casemate");
    let id = format!("cli-{}", std::process::id());
    let steps = format!(
        "set -e; {casemate} bundle mount {dir}; runc run -b {dir}/bundle {id}; \
         {casemate} bundle unmount {dir}"
    );
    for _twice in 0..2 {
        // The environment is the one of our own command line.
        let mut command = world.command(&[]);
        let mut wrapped = Command::new("unshare");
        wrapped.args(["--mount", "sh", "-c", &steps]).env_clear();
        wrapped.envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        command.stdin(Stdio::null());
        let theirs = wrapped.stdin(Stdio::null()).output().unwrap();
        assert!(theirs.status.success(), "{theirs:?}");
        assert_eq!(text(&theirs.stdout), text(&ours.stdout));
    }

    let config = Path::new(dir).join("config.json");
    let changed = fs::read_to_string(&config)
        .unwrap()
        .replace("\"rro\"", "\"rw\"");
    let changed = changed.replacen("CAP_SETFCAP", "CAP_SYS_PTRACE", 1);
    fs::write(&config, changed).unwrap();
    let verified = world.run(&["bundle", "verify", dir]);
    assert_refused(&verified, 70, "breaks the rule");
    let mounted = world.run(&["bundle", "mount", dir]);
    assert!(!mounted.status.success());
}

#[test]
fn doctor_tries_a_sandbox_and_finds_nothing_left() {
    let Some(world) = World::real() else { return };
    let output = world.run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let state = |what: &str| {
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["what"] == what).unwrap();
        check["state"].clone()
    };
    for what in ["userns", "overlay", "limits", "sandbox", "clean-up"] {
        assert_eq!(state(what), "works", "{report:#}");
    }
    assert_eq!(state("runc"), "noted");
    assert_eq!(output.status.code(), Some(0));
}
