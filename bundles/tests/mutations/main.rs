//! One changed field of a golden bundle at a time: each is refused, by the rule that it breaks.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod change;
#[path = "../fixtures/mod.rs"]
mod fixtures;
mod guard;
mod linux;
mod mounts;
mod process;
mod stage;

use std::collections::BTreeSet;

use casemate_bundles::{Rule, verify};
use change::{A, In, Mutation, P, R, mutate, seal};

fn fixture(name: &str) -> fixtures::Case {
    fixtures::find(name).unwrap()
}

/// Every mutation, by the part of a bundle that it changes.
fn mutations() -> impl Iterator<Item = &'static Mutation> {
    [
        mounts::MUTATIONS,
        process::MUTATIONS,
        linux::MUTATIONS,
        guard::MUTATIONS,
        stage::MUTATIONS,
    ]
    .into_iter()
    .flatten()
}

#[test]
fn each_mutation_is_refused_by_its_rule() {
    for (name, what, which, change, rule) in mutations() {
        let case = fixture(name);
        let bundle = case.compile().unwrap();
        let mutated = mutate(&bundle, *which, *change);
        assert_ne!(mutated.digest, bundle.digest, "{what}: nothing was changed");
        let violation =
            verify(&mutated, &case.plan, &case.placement, &fixtures::host()).expect_err(what);
        assert_eq!(violation.rule, *rule, "{what}: {violation}");
    }
}

#[test]
fn an_unchanged_bundle_passes_the_same_way() {
    for name in [R, P, A] {
        let case = fixture(name);
        let bundle = case.compile().unwrap();
        let same = mutate(&bundle, In::Guard, |_guard| {});
        verify(&same, &case.plan, &case.placement, &fixtures::host()).unwrap();
    }
}

#[test]
fn the_required_fields_are_all_covered() {
    let rules: BTreeSet<Rule> = mutations().map(|(.., rule)| *rule).collect();
    for rule in [
        Rule::MountSource,
        Rule::MountTarget,
        Rule::MountFlag,
        Rule::MountOrder,
        Rule::Propagation,
        Rule::CapabilityBounding,
        Rule::CapabilityEffective,
        Rule::CapabilityPermitted,
        Rule::CapabilityInheritable,
        Rule::CapabilityAmbient,
        Rule::IdMap,
        Rule::Namespaces,
        Rule::OuterSeccomp,
        Rule::SeccompProgram,
        Rule::GuardTier,
        Rule::GuardLandlock,
        Rule::Environment,
        Rule::InitArgument,
        Rule::Cwd,
        Rule::CgroupsPath,
        Rule::Hooks,
        Rule::Annotations,
        Rule::Rlimits,
        Rule::Devices,
    ] {
        assert!(rules.contains(&rule), "no mutation breaks {rule}");
    }
}

#[test]
fn a_swapped_document_breaks_the_seal() {
    let case = fixture(R);
    let other = fixture(A).compile().unwrap();
    let mut bundle = case.compile().unwrap();
    bundle.guard = other.guard;
    let violation = verify(&bundle, &case.plan, &case.placement, &fixtures::host()).unwrap_err();
    assert_eq!(violation.rule, Rule::BundleDigest);
}

#[test]
fn a_document_that_is_not_canonical_is_refused() {
    let case = fixture(R);
    let bundle = case.compile().unwrap();
    let twice = String::from_utf8(bundle.config.clone()).unwrap().replacen(
        r#""hostname":"notes""#,
        r#""hostname":"notes","hostname":"notes""#,
        1,
    );
    let spaced = String::from_utf8(bundle.config.clone())
        .unwrap()
        .replacen(':', ": ", 1);
    for config in [
        twice.into_bytes(),
        spaced.into_bytes(),
        b"{}".to_vec(),
        Vec::new(),
    ] {
        let sealed = seal(config, bundle.guard.clone(), bundle.stage.clone(), &bundle);
        let violation =
            verify(&sealed, &case.plan, &case.placement, &fixtures::host()).unwrap_err();
        assert_eq!(violation.rule, Rule::Document);
    }
}

#[test]
fn a_bundle_of_another_plan_is_refused() {
    let plans = fixtures::cases().unwrap();
    for a in &plans {
        let bundle = a.compile().unwrap();
        for b in &plans {
            let same = a.name == b.name;
            let verdict = verify(&bundle, &b.plan, &b.placement, &fixtures::host());
            assert_eq!(verdict.is_ok(), same, "{} as {}", a.name, b.name);
        }
    }
}
