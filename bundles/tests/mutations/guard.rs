//! The guard plan.

use casemate_bundles::Rule;
use serde_json::json;

use crate::change::{A, In, Mutation, R, push, rule};

pub(crate) const MUTATIONS: &[Mutation] = &[
    (
        R,
        "an administrator's tier",
        In::Guard,
        |g| g["tier"] = json!("admin-nesting"),
        Rule::GuardTier,
    ),
    (
        R,
        "another working directory",
        In::Guard,
        |g| g["cwd"] = json!("/"),
        Rule::Cwd,
    ),
    (
        R,
        "another payload user",
        In::Guard,
        |g| g["uid"] = json!(1000),
        Rule::GuardIds,
    ),
    (
        R,
        "no ceilings of namespaces",
        In::Guard,
        |g| g["namespace_ceilings"] = json!(false),
        Rule::GuardCeilings,
    ),
    (
        R,
        "no no_new_privs",
        In::Guard,
        |g| g["no_new_privs"] = json!(false),
        Rule::GuardNoNewPrivs,
    ),
    (
        R,
        "SYS_ADMIN for the payload",
        In::Guard,
        |g| {
            push(&mut g["capabilities"], json!("CAP_SYS_ADMIN"));
        },
        Rule::GuardCapabilities,
    ),
    (
        R,
        "no ruleset",
        In::Guard,
        |g| g["landlock"] = json!(null),
        Rule::GuardLandlock,
    ),
    (
        R,
        "a right that is not handled",
        In::Guard,
        |g| {
            g["landlock"]["handled_fs"]
                .as_array_mut()
                .unwrap()
                .retain(|right| right != "make_reg");
        },
        Rule::GuardLandlock,
    ),
    (
        R,
        "writing everywhere",
        In::Guard,
        |g| {
            push(&mut rule(g, "/")["allow"], json!("write_file"));
        },
        Rule::GuardLandlock,
    ),
    (
        R,
        "a rule for the whole workspace",
        In::Guard,
        |g| {
            rule(g, "/srv/team/apps/notes")["path"] = json!("/srv/team");
        },
        Rule::GuardLandlock,
    ),
    (
        R,
        "a required rule made optional",
        In::Guard,
        |g| {
            rule(g, "/srv/team/homes/ann")["optional"] = json!(true);
        },
        Rule::GuardLandlock,
    ),
    (
        A,
        "no scope of abstract sockets on the host's network",
        In::Guard,
        |g| {
            g["landlock"]["scoped"] = json!([]);
        },
        Rule::GuardLandlock,
    ),
    (
        R,
        "a filter that allows everything",
        In::Guard,
        |g| {
            g["seccomp"]["program"] = json!(["060000007fff0000"]);
        },
        Rule::SeccompProgram,
    ),
    (
        R,
        "a filter without its x32 check",
        In::Guard,
        |g| {
            for instruction in g["seccomp"]["program"].as_array_mut().unwrap() {
                if instruction.as_str().unwrap().ends_with("40000000") {
                    *instruction =
                        json!("3500ffffffffffff".replace("ffffffffffff", "0000ffffffff"));
                }
            }
        },
        Rule::SeccompProgram,
    ),
    (
        R,
        "a filter for another architecture",
        In::Guard,
        |g| {
            g["seccomp"]["arch"] = json!("AUDIT_ARCH_AARCH64");
        },
        Rule::SeccompProgram,
    ),
    (
        R,
        "one call more",
        In::Guard,
        |g| {
            // The first refusal in the tree becomes a permission.
            let program = g["seccomp"]["program"].as_array_mut().unwrap();
            let at = program
                .iter()
                .rposition(|one| one == "0006000000050026")
                .unwrap();
            program[at] = json!("000600007fff0000");
        },
        Rule::SeccompProgram,
    ),
];
