//! `casemate-init enter`: the same namespaces, the same guards, never host root.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::support::{Bundle, FIRST_ID, Running, init, status_field, wait_until};

/// A running sandbox and a command line that joins it.
fn living(bundle: Bundle) -> (Running, Command) {
    let mut running = bundle.start(&["sleep", "60"]);
    running.ready();
    let mut command = Command::new(init());
    command
        .args([
            "enter",
            "--pid",
            &running.payload_pid().to_string(),
            "--plan",
        ])
        .arg(running.bundle().path().join("plan"))
        .env_clear()
        .env("PATH", "/usr/bin")
        .stdin(Stdio::null());
    (running, command)
}

fn text(output: &Output) -> (Option<i32>, &str, &str) {
    let stdout = std::str::from_utf8(&output.stdout).unwrap();
    let stderr = std::str::from_utf8(&output.stderr).unwrap();
    (output.status.code(), stdout, stderr)
}

#[test]
fn a_command_joins_every_namespace_of_the_payload() {
    let (running, mut command) = living(Bundle::new());
    let output = command
        .args(["--", "sh", "-c", "readlink /proc/self/ns/*"])
        .output()
        .unwrap();
    let (code, stdout, stderr) = text(&output);
    assert_eq!((code, stderr), (Some(0), ""));
    let payload = PathBuf::from(format!("/proc/{}/ns", running.payload_pid()));
    let mut kinds: Vec<_> = payload
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    kinds.sort();
    let expected: Vec<_> = kinds
        .iter()
        .map(|kind| std::fs::read_link(kind).unwrap())
        .collect();
    let found: Vec<_> = stdout.lines().map(PathBuf::from).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_command_has_the_guards_of_the_payload() {
    let (running, mut command) = living(Bundle::new());
    let payload = running.payload_pid();
    let payload = std::fs::read_to_string(format!("/proc/{payload}/status")).unwrap();
    let output = command
        .args(["--", "cat", "/proc/self/status"])
        .output()
        .unwrap();
    let (_, stdout, _) = text(&output);
    for field in [
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "NoNewPrivs",
        "Seccomp",
        "Seccomp_filters",
        "SigBlk",
        "SigIgn",
        "Groups",
    ] {
        let found = status_field(stdout, field);
        assert_eq!(found, status_field(&payload, field), "{field}");
    }
}

#[test]
fn a_command_is_under_landlock_and_in_the_locked_view() {
    let (_running, mut command) = living(Bundle::new());
    let script = "pwd; echo a > /tmp/a; echo b > /kept/b; ls -A /run/casemate";
    let output = command.args(["--", "sh", "-c", script]).output().unwrap();
    let (_, stdout, stderr) = text(&output);
    assert_eq!(stdout, "/tmp\n");
    assert!(stderr.contains("/kept/b: Permission denied"), "{stderr}");

    let mut control = Bundle::new();
    control.plan.landlock = None;
    let (_running, mut command) = living(control);
    let output = command.args(["--", "sh", "-c", script]).output().unwrap();
    assert_eq!(text(&output), (Some(0), "/tmp\n", ""));
}

#[test]
fn a_command_is_never_host_root() {
    let (running, mut command) = living(Bundle::admin());
    let mut child = command
        .args(["--", "sleep", "60"])
        .stdout(Stdio::null())
        // The test's own may be a regular file, which the init refuses.
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let joiner = child.id();
    let command = wait_until("the command", || {
        let children = format!("/proc/{joiner}/task/{joiner}/children");
        let pid: u32 = std::fs::read_to_string(children)
            .unwrap()
            .trim()
            .parse()
            .ok()?;
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (name == "sleep\n").then_some(pid)
    });
    for pid in [command, joiner] {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let ids = format!("{FIRST_ID}\t{FIRST_ID}\t{FIRST_ID}\t{FIRST_ID}");
        assert_eq!(status_field(&status, "Uid"), ids, "{pid}");
        assert_eq!(status_field(&status, "Gid"), ids, "{pid}");
    }
    assert_ne!(command, running.payload_pid());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_null_device_from_outside_is_replaced_by_the_sandbox_s_own() {
    let script = "mount=$(sed -n 's/^mnt_id:\\t//p' /proc/self/fdinfo/0); \
                  grep -c \"^$mount \" /proc/self/mountinfo";
    let (_running, mut command) = living(Bundle::new());
    let output = command.args(["--", "sh", "-c", script]).output().unwrap();
    assert_eq!(text(&output), (Some(0), "1\n", ""));
    // Another device keeps the mount it was opened on.
    let (_running, mut command) = living(Bundle::new());
    command.stdin(File::open("/dev/zero").unwrap());
    let output = command.args(["--", "sh", "-c", script]).output().unwrap();
    assert_eq!(text(&output), (Some(1), "0\n", ""));
}

#[test]
fn a_command_s_code_and_signal_come_back() {
    for (script, code) in [("exit 9", 9), ("kill -KILL $$", 137)] {
        let (_running, mut command) = living(Bundle::new());
        let output = command.args(["--", "sh", "-c", script]).output().unwrap();
        assert_eq!(text(&output).0, Some(code), "{script}");
    }
    let (_running, mut command) = living(Bundle::new());
    let output = command.args(["--", "no-such-program"]).output().unwrap();
    assert_eq!(text(&output).0, Some(127));
}

#[test]
fn a_process_that_maps_host_root_is_not_joined() {
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let (running, _) = living(Bundle::new());
    let mut bundle = running;
    let output = Command::new(init())
        .args(["enter", "--pid", &sleeper.id().to_string(), "--plan"])
        .arg(bundle.bundle().path().join("plan"))
        .args(["--", "id", "-u"])
        .output()
        .unwrap();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let (code, stdout, stderr) = text(&output);
    assert_eq!((code, stdout), (Some(125), ""));
    assert!(stderr.contains("maps the caller's root"), "{stderr}");
}

#[test]
fn a_process_that_has_ended_is_not_joined() {
    let (running, mut command) = living(Bundle::new());
    running.signal("KILL");
    let _outcome = running.wait();
    // The plan is gone with the bundle, so the step that fails may be that one.
    let output = command.args(["--", "echo", "ran"]).output().unwrap();
    let (code, stdout, _) = text(&output);
    assert_eq!((code, stdout), (Some(125), ""));
}

#[test]
fn a_command_that_is_not_executed_in_time_is_killed() {
    let (_running, mut command) = living(Bundle::new());
    let output = command
        .args(["--deadline-ms", "0", "--", "echo", "ran"])
        .output()
        .unwrap();
    let (code, stdout, stderr) = text(&output);
    assert_eq!((code, stdout), (Some(125), ""));
    assert_eq!(stderr, "casemate-init: Join: not executed within 0 ms\n");
}

#[test]
fn a_wrong_command_line_is_answered_with_the_usage() {
    let output = Command::new(init())
        .args(["enter", "--pid", "0"])
        .output()
        .unwrap();
    let (code, _, stderr) = text(&output);
    assert_eq!(code, Some(125));
    assert!(
        stderr.contains("usage: casemate-init enter --pid PID"),
        "{stderr}"
    );
}

#[test]
fn a_terminal_that_is_asked_for_must_be_one() {
    let (_running, mut command) = living(Bundle::new());
    let output = command
        .args(["--tty", "--", "echo", "ran"])
        .output()
        .unwrap();
    let (code, stdout, stderr) = text(&output);
    assert_eq!((code, stdout), (Some(125), ""));
    assert!(stderr.contains("descriptor 0 is no terminal"), "{stderr}");
}
