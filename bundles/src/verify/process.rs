//! `process` of `config.json`: the init, its arguments and its environment.

use std::collections::BTreeMap;

use super::document::{Process, Rlimit};
use super::facts::Facts;
use super::rule::{Rule, Violation, require};
use crate::Stdio;
use crate::text::Text;

const INIT: &str = "/run/casemate/init";

/// What the init uses before it gives everything up, sorted.
const INIT_SET: [&str; 5] = [
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
];

pub(super) fn check(process: &Process<'_>, facts: &Facts<'_>) -> Result<(), Violation> {
    let (init, argv) = match process.args.split_first() {
        Some((init, argv)) => (&**init, argv),
        None => ("", [].as_slice()),
    };
    require(init == INIT, Rule::InitArgument, || {
        format!("args[0] is {init:?}")
    })?;
    require(argv == facts.plan.argv.as_slice(), Rule::Argv, || {
        "the arguments after the init are not the plan's".to_owned()
    })?;
    require(process.cwd == "/", Rule::Cwd, || {
        format!("the init starts in {:?}", process.cwd)
    })?;
    capabilities(process)?;
    require(
        process.no_new_privileges.is_none(),
        Rule::NoNewPrivileges,
        || "noNewPrivileges is written out".to_owned(),
    )?;
    let user = &process.user;
    require(
        user.uid == 0 && user.gid == 0 && user.additional_gids.is_empty(),
        Rule::User,
        || "the init is not the sandbox's root alone".to_owned(),
    )?;
    let terminal = matches!(facts.plan.stdio, Stdio::Terminal(_));
    require(process.terminal == terminal, Rule::Terminal, || {
        format!("terminal is {}", process.terminal)
    })?;
    rlimits(&process.rlimits, facts.host.nofile)?;
    environment(&process.env, facts)
}

fn capabilities(process: &Process<'_>) -> Result<(), Violation> {
    let sets = &process.capabilities;
    for (rule, set, expected) in [
        (
            Rule::CapabilityBounding,
            &sets.bounding,
            INIT_SET.as_slice(),
        ),
        (Rule::CapabilityEffective, &sets.effective, &INIT_SET),
        (Rule::CapabilityPermitted, &sets.permitted, &INIT_SET),
        (Rule::CapabilityInheritable, &sets.inheritable, &[]),
        (Rule::CapabilityAmbient, &sets.ambient, &[]),
    ] {
        require(set == expected, rule, || format!("the set is {set:?}"))?;
    }
    Ok(())
}

/// No core file, and never more open files than the engine itself may have.
fn rlimits(limits: &[Rlimit<'_>], nofile: u64) -> Result<(), Violation> {
    let hard = nofile.min(65_536);
    let expected = [
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_NOFILE", hard.min(4096), hard),
    ];
    let found = limits
        .iter()
        .map(|limit| (&*limit.kind, limit.soft, limit.hard));
    require(found.eq(expected), Rule::Rlimits, || {
        format!("expected {expected:?} (type, soft, hard)")
    })
}

fn environment(lines: &[Text<'_>], facts: &Facts<'_>) -> Result<(), Violation> {
    let expected = variables(facts);
    require(lines.len() == expected.len(), Rule::Environment, || {
        format!("{} variables, not {}", lines.len(), expected.len())
    })?;
    for (line, (name, value)) in lines.iter().zip(&expected) {
        let same = line
            .split_once('=')
            .is_some_and(|(left, right)| left == *name && right == value);
        require(same, Rule::Environment, || {
            format!("{name} is not what the profile sets")
        })?;
    }
    Ok(())
}

fn variables<'a>(facts: &Facts<'a>) -> BTreeMap<&'a str, String> {
    let mut set: BTreeMap<&'a str, String> = BTreeMap::new();
    let mut put = |name: &'a str, value: &str| {
        set.insert(name, value.to_owned());
    };
    put("LANG", "C.UTF-8");
    if matches!(facts.plan.stdio, Stdio::Terminal(_)) {
        put("TERM", "xterm-256color");
        put("COLORTERM", "truecolor");
    }
    for (name, value) in facts.plan.environment.variables() {
        put(name, value);
    }
    // After the caller's: what he may not replace.
    put(
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    );
    put("HOME", "/tmp");
    if let Some(view) = facts.workspace {
        if let Some(home) = &view.home {
            put("HOME", &format!("{}/homes/{}", view.root, home.id));
        }
        put("IN_SANDBOX", "1");
        put("IS_SANDBOX", "1");
        put("XBIN_COMPONENT", view.own.id.as_str());
        put("XBIN_WORKSPACE", view.root.as_str());
    }
    if let Some(run) = facts.run {
        put("TMPDIR", "/tmp");
        for projection in &run.projections {
            match projection.target.components().next() {
                Some("workspace") => put("XAGENT_WORKSPACE", "/workspace"),
                Some("input") => put("XAGENT_INPUT", "/input"),
                Some(_) | None => {}
            }
        }
        if run.output {
            put("XAGENT_OUTPUT", "/output");
        }
    }
    set
}
