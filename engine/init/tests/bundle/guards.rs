//! What the payload is left with, each next to a control in which the guard is absent.

use casemate_guard_plan::Report;

use crate::support::Bundle;

const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

/// A field of `/proc/self/status`.
fn field(status: &str, name: &str) -> String {
    let prefix = format!("{name}:");
    let line = status.lines().find(|line| line.starts_with(&prefix));
    line.unwrap().split_once(':').unwrap().1.trim().to_owned()
}

#[test]
fn a_payload_ends_with_its_own_code_and_is_reported() {
    let outcome = Bundle::new().shell("echo hello; exit 7");
    assert_eq!(outcome.stderr, "");
    assert_eq!(outcome.code, Some(7));
    assert_eq!(outcome.stdout, "hello\n");
    assert_eq!(outcome.reports, [Report::Ready, Report::Exited { code: 7 }]);
}

#[test]
fn all_five_capability_sets_are_those_of_the_plan() {
    let outcome = Bundle::new().shell("cat /proc/self/status");
    for set in SETS {
        assert_eq!(field(&outcome.stdout, set), "0000000000000000", "{set}");
    }
}
