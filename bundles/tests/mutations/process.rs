//! The process of `config.json`.

use casemate_bundles::Rule;
use serde_json::json;

use crate::change::{In, Mutation, R, push};

pub(crate) const MUTATIONS: &[Mutation] = &[
    (
        R,
        "a capability more in the bounding set",
        In::Config,
        |c| {
            push(
                &mut c["process"]["capabilities"]["bounding"],
                json!("CAP_SYS_MODULE"),
            );
        },
        Rule::CapabilityBounding,
    ),
    (
        R,
        "a capability more in the effective set",
        In::Config,
        |c| {
            push(
                &mut c["process"]["capabilities"]["effective"],
                json!("CAP_SYS_PTRACE"),
            );
        },
        Rule::CapabilityEffective,
    ),
    (
        R,
        "a capability less in the permitted set",
        In::Config,
        |c| {
            c["process"]["capabilities"]["permitted"]
                .as_array_mut()
                .unwrap()
                .pop();
        },
        Rule::CapabilityPermitted,
    ),
    (
        R,
        "an inheritable capability",
        In::Config,
        |c| {
            c["process"]["capabilities"]["inheritable"] = json!(["CAP_SYS_ADMIN"]);
        },
        Rule::CapabilityInheritable,
    ),
    (
        R,
        "an ambient capability",
        In::Config,
        |c| {
            c["process"]["capabilities"]["ambient"] = json!(["CAP_SYS_ADMIN"]);
        },
        Rule::CapabilityAmbient,
    ),
    (
        R,
        "a set left out, which some runtimes take for all",
        In::Config,
        |c| {
            c["process"]["capabilities"]
                .as_object_mut()
                .unwrap()
                .remove("bounding");
        },
        Rule::Document,
    ),
    (
        R,
        "no capabilities at all written",
        In::Config,
        |c| {
            c["process"].as_object_mut().unwrap().remove("capabilities");
        },
        Rule::Document,
    ),
    (
        R,
        "the payload without the init",
        In::Config,
        |c| {
            c["process"]["args"] = json!(["bash", "-l"]);
        },
        Rule::InitArgument,
    ),
    (
        R,
        "another command",
        In::Config,
        |c| {
            c["process"]["args"][1] = json!("sh");
        },
        Rule::Argv,
    ),
    (
        R,
        "another directory for the init",
        In::Config,
        |c| {
            c["process"]["cwd"] = json!("/proc/self/fd/7");
        },
        Rule::Cwd,
    ),
    (
        R,
        "a variable more",
        In::Config,
        |c| {
            push(&mut c["process"]["env"], json!("LD_PRELOAD=/tmp/x.so"));
        },
        Rule::Environment,
    ),
    (
        R,
        "another PATH",
        In::Config,
        |c| {
            let env = c["process"]["env"].as_array_mut().unwrap();
            let path = env
                .iter_mut()
                .find(|line| line.as_str().unwrap().starts_with("PATH="));
            *path.unwrap() = json!("PATH=/tmp:/usr/bin");
        },
        Rule::Environment,
    ),
    (
        R,
        "another user",
        In::Config,
        |c| c["process"]["user"]["uid"] = json!(1),
        Rule::User,
    ),
    (
        R,
        "a supplementary group",
        In::Config,
        |c| {
            c["process"]["user"]["additionalGids"] = json!([5]);
        },
        Rule::User,
    ),
    (
        R,
        "no_new_privs set too early",
        In::Config,
        |c| {
            c["process"]["noNewPrivileges"] = json!(true);
        },
        Rule::NoNewPrivileges,
    ),
    (
        R,
        "core files",
        In::Config,
        |c| {
            c["process"]["rlimits"][0]["hard"] = json!(1 << 30);
        },
        Rule::Rlimits,
    ),
    (
        R,
        "no limit of open files",
        In::Config,
        |c| {
            c["process"]["rlimits"].as_array_mut().unwrap().pop();
        },
        Rule::Rlimits,
    ),
    (
        R,
        "pipes where a terminal belongs",
        In::Config,
        |c| {
            c["process"]["terminal"] = json!(false);
        },
        Rule::Terminal,
    ),
];
