//! The stage plan.

use casemate_bundles::Rule;
use serde_json::{Value, json};

use crate::change::{In, Mutation, P, R, push, step};

pub(crate) const MUTATIONS: &[Mutation] = &[
    (
        R,
        "a clone of the secrets",
        In::Stage,
        |s| {
            step(s, "source", "/srv/team/apps/wiki")["source"] = json!("/srv/team/.xbin");
        },
        Rule::StageSource,
    ),
    (
        R,
        "a clone of the host's root",
        In::Stage,
        |s| {
            step(s, "source", "/opt/sdk")["source"] = json!("/");
        },
        Rule::StageSource,
    ),
    (
        R,
        "another tile's clone writable",
        In::Stage,
        |s| {
            step(s, "source", "/srv/team/apps/wiki")["read_only"] = json!(false);
        },
        Rule::WritableSet,
    ),
    (
        R,
        "host root mapped into a tile",
        In::Stage,
        |s| {
            step(s, "source", "/srv/team/apps/notes")["id_map"][0]["disk"] = json!(0);
        },
        Rule::StageIdMap,
    ),
    (
        R,
        "no map on a tile",
        In::Stage,
        |s| {
            step(s, "source", "/srv/team/apps/notes")["id_map"] = json!([]);
        },
        Rule::StageIdMap,
    ),
    (
        R,
        "another base",
        In::Stage,
        |s| step(s, "action", "overlay")["lower"] = json!("/"),
        Rule::StageOverlay,
    ),
    (
        R,
        "a base that is not mapped",
        In::Stage,
        |s| {
            step(s, "action", "overlay")["lower_map"] = json!([]);
        },
        Rule::StageOverlay,
    ),
    (
        R,
        "a directory outside the stage",
        In::Stage,
        |s| {
            push(
                &mut s["steps"],
                json!({"directory": {"path": "/etc/x",
            "owner": {"uid": 0, "gid": 0}, "mode": 365}}),
            );
        },
        Rule::StageStep,
    ),
    (
        R,
        "a name in the skeleton that nobody was given",
        In::Stage,
        |s| {
            push(
                &mut s["steps"],
                json!({"directory": {"path": "/run/casemate/k2v9c0a1b2d3/view/apps/secret",
            "owner": {"uid": 0, "gid": 0}, "mode": 365}}),
            );
        },
        Rule::StageStep,
    ),
    (
        R,
        "a skeleton that the sandbox owns",
        In::Stage,
        |s| {
            step(s, "path", "/run/casemate/k2v9c0a1b2d3/view")["owner"]["uid"] = json!(655_360);
        },
        Rule::StageStep,
    ),
    (
        R,
        "a bundle directory that everybody reads",
        In::Stage,
        |s| {
            step(s, "path", "/run/casemate/k2v9c0a1b2d3/bundle")["mode"] = json!(493);
        },
        Rule::StageStep,
    ),
    (
        R,
        "a device for somebody who is no administrator",
        In::Stage,
        |s| {
            push(
                &mut s["steps"],
                json!({"device": {"path": "/run/casemate/k2v9c0a1b2d3/bundle/sda", "major": 8, "minor": 0,
            "mode": 438}}),
            );
        },
        Rule::StageStep,
    ),
    (
        R,
        "a mount target that nobody planned",
        In::Stage,
        |s| {
            step(s, "path", "/srv/team")["path"] = json!("/etc/passwd");
        },
        Rule::StageStep,
    ),
    (
        R,
        "a second name for a clone's number",
        In::Stage,
        |s| {
            step(s, "path", "/run/casemate/k2v9c0a1b2d3/mounts/0")["path"] =
                json!("/run/casemate/k2v9c0a1b2d3/mounts/00");
        },
        Rule::StageStep,
    ),
    (
        R,
        "clones out of turn",
        In::Stage,
        |s| {
            step(s, "path", "/run/casemate/k2v9c0a1b2d3/mounts/0")["path"] =
                json!("/run/casemate/k2v9c0a1b2d3/mounts/9");
        },
        Rule::StageStep,
    ),
    (
        R,
        "a clone that nothing mounts",
        In::Stage,
        |s| {
            let path = "/run/casemate/k2v9c0a1b2d3/mounts/7";
            push(
                &mut s["steps"],
                json!({"directory": {"path": path, "owner": {"uid": 0, "gid": 0}, "mode": 365}}),
            );
            push(
                &mut s["steps"],
                json!({"bind": {"id_map": [], "kind": "directory", "read_only": true,
            "source": "/opt/sdk", "target": path}}),
            );
        },
        Rule::StageSource,
    ),
    (
        R,
        "a part of the skeleton twice",
        In::Stage,
        |s| {
            let again = step(s, "path", "/run/casemate/k2v9c0a1b2d3/view/apps/wiki").clone();
            push(&mut s["steps"], json!({"directory": again}));
        },
        Rule::StageStep,
    ),
    (
        R,
        "a part of the skeleton before its directory",
        In::Stage,
        |s| {
            let steps = s["steps"].as_array_mut().unwrap();
            let at = |path: &str| {
                let made = |step: &Value| step["directory"]["path"] == path;
                steps.iter().position(made).unwrap()
            };
            let parent = at("/run/casemate/k2v9c0a1b2d3/view/apps/lib");
            let part = at("/run/casemate/k2v9c0a1b2d3/view/apps/lib/core");
            steps.swap(parent, part);
        },
        Rule::StageStep,
    ),
    (
        P,
        "an upper without limit",
        In::Stage,
        |s| step(s, "action", "tmpfs")["bytes"] = json!(0),
        Rule::StageStep,
    ),
    (
        P,
        "devices in the upper",
        In::Stage,
        |s| step(s, "action", "tmpfs")["devices"] = json!(true),
        Rule::StageStep,
    ),
    (
        R,
        "a skeleton on the host's disk",
        In::Stage,
        |s| {
            s["steps"]
                .as_array_mut()
                .unwrap()
                .retain(|step| step.get("tmpfs").is_none());
        },
        Rule::StageStep,
    ),
    (
        R,
        "devices in the skeleton",
        In::Stage,
        |s| step(s, "action", "tmpfs")["devices"] = json!(true),
        Rule::StageStep,
    ),
    (
        P,
        "no root overlay",
        In::Stage,
        |s| {
            s["steps"]
                .as_array_mut()
                .unwrap()
                .retain(|step| step.get("overlay").is_none() && step.get("target").is_none());
        },
        Rule::StageOverlay,
    ),
];
