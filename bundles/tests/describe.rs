//! The guard plan in words.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod fixtures;

use casemate_bundles::{Verdict, describe_guard, parse_guard};

fn fixture(name: &str) -> fixtures::Case {
    fixtures::find(name).unwrap()
}

fn verdict(case: &str, name: &str) -> Verdict {
    let bundle = fixture(case).compile().unwrap();
    let summary = describe_guard(&parse_guard(&bundle.guard).unwrap()).unwrap();
    summary
        .syscalls
        .iter()
        .find(|call| call.name == name)
        .unwrap_or_else(|| panic!("{name}"))
        .verdict
}

#[test]
fn calls_are_named_with_their_verdict() {
    for (case, name, expected) in [
        ("terminal-admin-nesting-none", "mount", Verdict::Allow),
        (
            "terminal-admin-nesting-none",
            "io_uring_setup",
            Verdict::Errno(38),
        ),
        ("terminal-admin-nesting-none", "ioctl", Verdict::Conditional),
        ("terminal-admin-none", "mount", Verdict::Conditional),
        ("terminal-admin-none", "umount2", Verdict::Errno(1)),
        ("terminal-restricted-none", "mount", Verdict::Errno(1)),
        (
            "terminal-restricted-none",
            "open_tree_attr",
            Verdict::Errno(38),
        ),
        ("terminal-restricted-none", "clone3", Verdict::Errno(38)),
        ("terminal-restricted-none", "clone", Verdict::Conditional),
        ("backend-none", "ptrace", Verdict::Errno(1)),
        ("process-none", "setuid", Verdict::Errno(1)),
        ("process-none", "read", Verdict::Allow),
    ] {
        assert_eq!(verdict(case, name), expected, "{case} {name}");
    }
}

#[test]
fn programs_are_short() {
    for case in fixtures::cases().unwrap() {
        let bundle = case.compile().unwrap();
        let plan = parse_guard(&bundle.guard).unwrap();
        let summary = describe_guard(&plan).unwrap();
        println!("{}: {} instructions", case.name, summary.instructions);
        assert!(summary.instructions < 400, "{}", case.name);
        assert!(bundle.guard.len() < casemate_guard_plan::MAX_PLAN_BYTES / 8);
        let text = summary.to_string();
        assert!(text.contains("seccomp") && text.contains("landlock"));
    }
}
