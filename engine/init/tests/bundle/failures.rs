//! Every step, made impossible: the payload does not run, the report names the step.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use casemate_guard_plan::{MAX_PLAN_BYTES, PLAN_PATH, RUN_DIR, Report, Stage};
use serde_json::json;

use crate::support::{Bundle, Outcome, init, rule};

/// The payload did not run, and this step is why; the errno and the subject of the report.
fn refused(outcome: &Outcome, stage: Stage) -> (i32, &str) {
    assert_eq!(outcome.code, Some(125), "{outcome:?}");
    assert_eq!(outcome.stdout, "", "{outcome:?}");
    let line = format!("casemate-init: {stage:?}: ");
    assert!(outcome.stderr.starts_with(&line), "{outcome:?}");
    let Some(Report::Failed {
        stage: reported,
        errno,
        subject,
    }) = outcome.reports.first()
    else {
        panic!("no failure reported: {outcome:?}");
    };
    assert_eq!(*reported, stage, "{outcome:?}");
    (*errno, subject)
}

/// Answers a system call with EPERM from the runtime's own filter on.
fn deny_outside(bundle: &mut Bundle, call: &str) {
    bundle.config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": [call], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}],
    });
}

const RAN: [&str; 2] = ["echo", "ran"];

#[test]
fn pid() {
    let output = Command::new(init()).arg("true").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with("casemate-init: Pid: runs as process "),
        "{stderr}"
    );
}

#[test]
fn descriptors_of_files_directories_and_more_than_three() {
    let bundle = Bundle::new();
    let file = File::open(bundle.path()).unwrap();
    let outcome = bundle.run_detached(&RAN, Stdio::from(file));
    assert_eq!(
        refused(&outcome, Stage::Descriptors),
        (0, "descriptor 0 is Directory")
    );

    let file = tempfile::tempfile().unwrap();
    let outcome = Bundle::new().run_detached(&RAN, Stdio::from(file));
    assert_eq!(
        refused(&outcome, Stage::Descriptors),
        (0, "descriptor 0 is Regular")
    );

    let mut bundle = Bundle::new();
    bundle.flags = vec!["--preserve-fds=1"];
    bundle.with_extra_descriptor = true;
    let outcome = bundle.run(&RAN);
    assert_eq!(
        refused(&outcome, Stage::Descriptors),
        (0, "descriptor 3 is inherited")
    );

    let (input, _) = std::io::pipe().unwrap();
    let outcome = Bundle::new().run_detached(&["cat"], Stdio::from(input));
    assert_eq!(outcome.code, Some(0), "a pipe is accepted: {outcome:?}");
}

#[test]
fn report() {
    let mut bundle = Bundle::new();
    let source = bundle.path().join("plan");
    let mounts = bundle.config["mounts"].as_array_mut().unwrap();
    mounts.last_mut().unwrap()["source"] = json!(source);
    let outcome = bundle.run(&RAN);
    assert_eq!(outcome.code, Some(125), "{outcome:?}");
    assert!(
        outcome.stderr.starts_with("casemate-init: Report: "),
        "{outcome:?}"
    );
}

#[test]
fn plans_that_are_none() {
    let valid = serde_json::to_value(&Bundle::new().plan).unwrap();
    let with = |key: &str, value: serde_json::Value| {
        let mut plan = valid.clone();
        plan[key] = value;
        plan.to_string()
    };
    let program = |program: serde_json::Value| {
        let mut seccomp = valid["seccomp"].clone();
        seccomp["program"] = program;
        with("seccomp", seccomp)
    };
    let unhandled = {
        let mut landlock = valid["landlock"].clone();
        landlock["handled_fs"] = json!(["execute"]);
        with("landlock", landlock)
    };
    let too_large = valid.to_string() + &" ".repeat(MAX_PLAN_BYTES);
    for (text, subject) in [
        (String::new(), "not a plan: line 1, column 0"),
        ("{}".to_owned(), "not a plan: line 1, column 2"),
        (with("more", json!(1)), "not a plan"),
        (with("uid", json!(-1)), "not a plan"),
        (with("version", json!(2)), "version 2, expected 1"),
        (
            with("cwd", json!("tmp")),
            "cwd: not an absolute path without NUL",
        ),
        (
            with("cwd", json!("/t\0mp")),
            "cwd: not an absolute path without NUL",
        ),
        (
            with("capabilities", json!(["CHOWN"])),
            "capability \"CHOWN\" is unknown",
        ),
        (unhandled, "landlock rule 0 allows what is not handled"),
        (
            with(
                "seccomp",
                json!({"arch": "AUDIT_ARCH_I386", "program": ["0"]}),
            ),
            "seccomp architecture \"AUDIT_ARCH_I386\"",
        ),
        (program(json!([])), "seccomp program of 0 instructions"),
        (
            program(json!(["0600000000050000", "06"])),
            "seccomp instruction 1",
        ),
        (
            program(json!(["06000000000500AB"])),
            "seccomp instruction 0",
        ),
        (too_large, "larger than 262144 bytes"),
    ] {
        let mut bundle = Bundle::new();
        bundle.plan_text = Some(text);
        let outcome = bundle.run(&RAN);
        let (errno, found) = refused(&outcome, Stage::Plan);
        assert!(found.starts_with(subject), "{found} instead of {subject}");
        assert_eq!(errno, 0);
    }
}

#[test]
fn a_plan_that_is_absent() {
    let mut bundle = Bundle::new();
    let mounts = bundle.config["mounts"].as_array_mut().unwrap();
    mounts.retain(|mount| mount["destination"] != PLAN_PATH);
    let outcome = bundle.run(&RAN);
    assert_eq!(refused(&outcome, Stage::Plan), (2, PLAN_PATH));
}

#[test]
fn hide() {
    let mut bundle = Bundle::new();
    deny_outside(&mut bundle, "umount2");
    assert_eq!(refused(&bundle.run(&RAN), Stage::Hide), (1, RUN_DIR));
}

#[test]
fn spare_proc() {
    // nosuid, nodev, noexec: 2 + 4 + 8.
    let mut bundle = Bundle::new();
    bundle.config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mount"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1,
                      "args": [{"index": 3, "value": 14, "op": "SCMP_CMP_EQ"}]}],
    });
    let outcome = bundle.run(&RAN);
    let (errno, subject) = refused(&outcome, Stage::SpareProc);
    assert_eq!(errno, 1);
    assert!(
        subject.starts_with("mount(tmpfs, \"/run/casemate\", "),
        "{subject}"
    );
}

#[test]
fn propagation() {
    let mut bundle = Bundle::new();
    bundle.config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mount"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1,
                      "args": [{"index": 3, "value": (1 << 20) | (1 << 14), "op": "SCMP_CMP_EQ"}]}],
    });
    let outcome = bundle.run(&RAN);
    assert_eq!(refused(&outcome, Stage::Propagation).0, 1);
}

#[test]
fn lock() {
    let mut bundle = Bundle::new();
    deny_outside(&mut bundle, "unshare");
    let outcome = bundle.run(&RAN);
    assert_eq!(refused(&outcome, Stage::Lock).0, 1);
}

#[test]
fn maps_without_the_capability_to_map_root() {
    let mut bundle = Bundle::new();
    for set in ["bounding", "effective", "permitted"] {
        let capabilities = bundle.config["process"]["capabilities"][set].as_array_mut();
        capabilities.unwrap().retain(|name| name != "CAP_SETFCAP");
    }
    let outcome = bundle.run(&RAN);
    assert_eq!(refused(&outcome, Stage::Maps), (1, "1/uid_map"));
    assert_eq!(outcome.reports.len(), 1, "reported once: {outcome:?}");
}

#[test]
fn keyring() {
    let mut bundle = Bundle::new();
    bundle.flags = vec!["--no-new-keyring"];
    deny_outside(&mut bundle, "keyctl");
    assert_eq!(refused(&bundle.run(&RAN), Stage::Keyring).0, 1);
}

#[test]
fn session() {
    let mut bundle = Bundle::new();
    deny_outside(&mut bundle, "setsid");
    assert_eq!(refused(&bundle.run(&RAN), Stage::Session), (1, "setsid()"));
}

#[test]
fn working_directories() {
    for (cwd, errno) in [("/absent", 2), ("/etc/../usr/bin/env", 20)] {
        let mut bundle = Bundle::new();
        bundle.plan.cwd = cwd.to_owned();
        assert_eq!(refused(&bundle.run(&RAN), Stage::Cwd), (errno, cwd));
    }
    for number in 0..16 {
        let mut bundle = Bundle::new();
        bundle.plan.cwd = format!("/proc/self/fd/{number}/..");
        let outcome = bundle.run(&["pwd"]);
        assert_ne!(outcome.code, Some(0), "{number}: {outcome:?}");
        refused(&outcome, Stage::Cwd);
    }
}

#[test]
fn ceilings() {
    // The one write of one byte to descriptor 5: 3 is the report, 4 the spare proc.
    let mut bundle = Bundle::new();
    bundle.config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["write"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1,
                      "args": [{"index": 0, "value": 5, "op": "SCMP_CMP_EQ"},
                               {"index": 2, "value": 1, "op": "SCMP_CMP_EQ"}]}],
    });
    let outcome = bundle.run(&RAN);
    let (errno, subject) = refused(&outcome, Stage::Ceilings);
    assert_eq!((errno, subject), (1, "sys/user/max_user_namespaces"));
}

#[test]
fn landlock_with_a_path_that_is_absent() {
    let mut bundle = Bundle::new();
    let rules = &mut bundle.plan.landlock.as_mut().unwrap().rules;
    rules.push(rule("/absent", &[]));
    assert_eq!(refused(&bundle.run(&RAN), Stage::Landlock), (2, "/absent"));
}

#[test]
fn no_new_privs_missing_where_a_filter_needs_it() {
    let mut bundle = Bundle::new();
    bundle.plan.no_new_privs = false;
    bundle.plan.landlock = None;
    assert_eq!(refused(&bundle.run(&RAN), Stage::Seccomp).0, 13);
}

#[test]
fn a_program_that_the_kernel_does_not_take() {
    let mut bundle = Bundle::new();
    bundle.plan.seccomp.program = vec!["0005000000000009".to_owned()];
    assert_eq!(refused(&bundle.run(&RAN), Stage::Seccomp).0, 22);
}

#[test]
fn ids_without_the_capability() {
    let mut bundle = Bundle::new();
    bundle.plan.uid = 1000;
    bundle.plan.gid = 1000;
    let outcome = bundle.run(&RAN);
    assert_eq!(
        refused(&outcome, Stage::Ids),
        (1, "setresgid(1000, 1000, 1000)")
    );
}

#[test]
fn nothing_is_left_of_a_refused_bundle() {
    let mut bundle = Bundle::new();
    bundle.plan.cwd = "/absent".to_owned();
    let cgroup = PathBuf::from("/sys/fs/cgroup/pids").join(bundle.id());
    let outcome = bundle.run(&RAN);
    refused(&outcome, Stage::Cwd);
    assert!(std::fs::metadata(&cgroup).is_err(), "{}", cgroup.display());
}
