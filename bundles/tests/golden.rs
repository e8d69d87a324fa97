//! Golden documents of every profile × tier × scope that the types allow.

mod fixtures;

use std::collections::BTreeSet;
use std::path::Path;

use casemate_bundles::{Nesting, Network, Profile, Tier, verify};

/// Every combination that the types allow, by exhaustive matches: a new variant does not compile
/// until it is counted here.
fn combinations() -> BTreeSet<String> {
    let networks = [Network::None, Network::Host];
    let mut names = BTreeSet::new();
    for network in networks {
        let scope = match network {
            Network::None => "none",
            Network::Host => "host",
        };
        for nesting in [Nesting::On, Nesting::Off] {
            let tier = match nesting {
                Nesting::On => "admin-nesting",
                Nesting::Off => "admin",
            };
            names.insert(format!("terminal-{tier}-{scope}"));
        }
        names.insert(format!("process-{scope}"));
    }
    names.insert("terminal-restricted-none".to_owned());
    names.insert("backend-none".to_owned());
    names
}

fn name(profile: &Profile) -> String {
    let scope = |network: &Network| match network {
        Network::None => "none",
        Network::Host => "host",
    };
    match profile {
        Profile::Terminal { tier, view: _ } => match tier {
            Tier::Admin { nesting, network } => match nesting {
                Nesting::On => format!("terminal-admin-nesting-{}", scope(network)),
                Nesting::Off => format!("terminal-admin-{}", scope(network)),
            },
            Tier::Restricted { limits: _ } => "terminal-restricted-none".to_owned(),
        },
        Profile::Backend { limits: _, view: _ } => "backend-none".to_owned(),
        Profile::Process {
            limits: _,
            network,
            view: _,
        } => format!("process-{}", scope(network)),
    }
}

#[test]
fn every_combination_has_a_case() {
    let cases = fixtures::cases().unwrap();
    let found: BTreeSet<String> = cases.iter().map(|case| name(&case.plan.profile)).collect();
    assert_eq!(found, combinations());
    for case in &cases {
        assert_eq!(case.name, name(&case.plan.profile));
    }
}

#[test]
fn documents_are_the_golden_ones() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let mut expected = BTreeSet::new();
    for (file, text) in fixtures::golden_files().unwrap() {
        let path = directory.join(&file);
        let golden = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{file}: {error}; see examples/golden.rs"));
        assert_eq!(
            golden, text,
            "{file} changed; a meant change is reviewed and written by `cargo run -p \
             casemate-bundles --example golden`"
        );
        expected.insert(file);
    }
    let found: BTreeSet<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, expected, "a golden file without a case");
}

#[test]
fn every_golden_bundle_is_verified() {
    for case in fixtures::cases().unwrap() {
        let bundle = case.compile().unwrap();
        let proof = verify(&bundle, &case.plan, &case.placement, &fixtures::host())
            .unwrap_or_else(|violation| panic!("{}: {violation}", case.name));
        assert_eq!(*proof.digest(), bundle.digest);
    }
}

/// `oci-spec` knows every key that we write and drops none.
#[test]
fn config_is_an_oci_document_without_loss() {
    for case in fixtures::cases().unwrap() {
        let bundle = case.compile().unwrap();
        let ours: serde_json::Value = serde_json::from_slice(&bundle.config).unwrap();
        let spec: oci_spec::runtime::Spec = serde_json::from_slice(&bundle.config).unwrap();
        let theirs = serde_json::to_value(&spec).unwrap();
        lossless("", &ours, &theirs);
    }
}

/// Lists and texts have to come back as they are; of objects every key of ours. Sets of
/// capabilities come back in any order.
fn lossless(at: &str, ours: &serde_json::Value, theirs: &serde_json::Value) {
    use serde_json::Value;
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                let below = format!("{at}/{key}");
                let empty = value.as_array().is_some_and(Vec::is_empty);
                match b.get(key) {
                    Some(other) => lossless(&below, value, other),
                    None => assert!(empty, "{below} is lost"),
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if at.starts_with("/process/capabilities") => {
            let set = |list: &[Value]| -> BTreeSet<String> {
                list.iter().map(ToString::to_string).collect()
            };
            assert_eq!(set(a), set(b), "{at}");
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{at}");
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                lossless(&format!("{at}/{index}"), a, b);
            }
        }
        (a, b) => assert_eq!(a, b, "{at}"),
    }
}
