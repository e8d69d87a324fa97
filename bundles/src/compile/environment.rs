//! The environment of the payload: fixed by the profile, then what the caller adds.

use std::collections::BTreeMap;

use super::profile::{self, View};
use crate::{LaunchPlan, PlanCode, PlanRefusal, ProcessView, Stdio, WorkspaceView};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names that say who and where the payload is; a caller may not replace them.
const IDENTITY: [&str; 4] = [
    "IN_SANDBOX",
    "IS_SANDBOX",
    "XBIN_COMPONENT",
    "XBIN_WORKSPACE",
];

/// Refuses variables that only the sandbox itself sets (PSBX-16).
pub(super) fn check(plan: &LaunchPlan) -> Result<(), PlanRefusal> {
    for name in plan.environment.variables().keys() {
        if IDENTITY.contains(&name.as_str()) {
            return Err(PlanRefusal::new(
                PlanCode::ReservedEnv,
                format!("the sandbox sets {name} itself"),
            ));
        }
    }
    Ok(())
}

/// Returns `NAME=value` lines, sorted, each name once.
pub(super) fn lines(plan: &LaunchPlan) -> Vec<String> {
    let mut variables: BTreeMap<&str, String> =
        BTreeMap::from([("LANG", "C.UTF-8".to_owned()), ("PATH", PATH.to_owned())]);
    match plan.stdio {
        Stdio::Terminal(_) => {
            variables.insert("COLORTERM", "truecolor".to_owned());
            variables.insert("TERM", "xterm-256color".to_owned());
        }
        Stdio::Pipes => {}
    }
    match profile::view(&plan.profile) {
        View::Workspace(view, _) => workspace(view, &mut variables),
        View::Process(view) => process(view, &mut variables),
    }
    for (name, value) in plan.environment.variables() {
        variables.insert(name, value.clone());
    }
    variables
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

fn workspace(view: &WorkspaceView, variables: &mut BTreeMap<&str, String>) {
    let home = match (&view.home, view.root.as_str()) {
        (Some(home), root) => format!("{root}/homes/{}", home.id),
        (None, _) => "/tmp".to_owned(),
    };
    variables.insert("HOME", home);
    variables.insert("IN_SANDBOX", "1".to_owned());
    variables.insert("IS_SANDBOX", "1".to_owned());
    variables.insert("XBIN_COMPONENT", view.own.id.to_string());
    variables.insert("XBIN_WORKSPACE", view.root.to_string());
}

fn process(view: &ProcessView, variables: &mut BTreeMap<&str, String>) {
    variables.insert("HOME", "/tmp".to_owned());
    variables.insert("TMPDIR", "/tmp".to_owned());
    for (name, root) in [
        ("XAGENT_WORKSPACE", "/workspace"),
        ("XAGENT_INPUT", "/input"),
    ] {
        let exists = view
            .projections
            .iter()
            .any(|projection| projection.target.components().next() == root.strip_prefix('/'));
        if exists {
            variables.insert(name, root.to_owned());
        }
    }
    if view.output {
        variables.insert("XAGENT_OUTPUT", "/output".to_owned());
    }
}
