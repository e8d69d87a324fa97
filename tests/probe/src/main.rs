//! Runs inside a sandbox, tries everything that must not work, and prints one JSON document.
//!
//! `probe all|facts|syscalls|techniques [--workspace DIR] [--secret FILE]… [--readonly FILE]…
//! [--known-inode N]… [--sweep N] [--abstract NAME]`, or one of the verbs of [`verbs`].
#![expect(
    unsafe_code,
    reason = "the system call instruction itself; nothing else here is unsafe"
)]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use serde::Serialize;

mod attempt;
mod cases;
mod child;
mod facts;
mod mounts;
mod raw;
mod syscalls;
mod techniques;
mod verbs;

use attempt::{Row, Targets};

/// Everything that was asked for; absent parts were not.
#[derive(Serialize)]
struct Document {
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<facts::Facts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    syscalls: Option<syscalls::Answers>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cases: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    techniques: Option<BTreeMap<String, Row>>,
    #[serde(flatten)]
    varying: Option<facts::Varying>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((mode, rest)) = args.split_first() else {
        return usage();
    };
    if let Some(code) = verbs::run(mode, rest) {
        return ExitCode::from(code);
    }
    let Some(targets) = parse(rest) else {
        return usage();
    };
    let wants = |part: &str| mode == "all" || mode == part;
    if !["all", "facts", "syscalls", "techniques"].contains(&mode.as_str()) {
        return usage();
    }
    let (facts, varying) = wants("facts").then(facts::collect).unzip();
    let document = Document {
        facts,
        varying,
        syscalls: wants("syscalls").then(syscalls::sweep),
        cases: wants("syscalls").then(cases::sweep),
        techniques: wants("techniques").then(|| techniques::sweep(&targets)),
    };
    match serde_json::to_vec(&document) {
        Ok(json) if std::io::stdout().write_all(&json).is_ok() => ExitCode::SUCCESS,
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}

fn parse(args: &[String]) -> Option<Targets> {
    let mut targets = Targets {
        workspace: "/".into(),
        secrets: Vec::new(),
        read_only: Vec::new(),
        inodes: Vec::new(),
        sweep: 100,
        abstract_socket: None,
    };
    let mut rest = args.iter();
    while let Some(flag) = rest.next() {
        let value = rest.next()?;
        match flag.as_str() {
            "--workspace" => targets.workspace = value.into(),
            "--secret" => targets.secrets.push(value.into()),
            "--readonly" => targets.read_only.push(value.into()),
            "--known-inode" => targets.inodes.push(value.parse().ok()?),
            "--sweep" => targets.sweep = value.parse().ok()?,
            "--abstract" => targets.abstract_socket = Some(value.clone()),
            _ => return None,
        }
    }
    Some(targets)
}

fn usage() -> ExitCode {
    let _reader_may_be_gone = writeln!(
        std::io::stderr(),
        "usage: probe all|facts|syscalls|techniques [--workspace DIR] [--secret FILE]... \
         [--readonly FILE]... [--known-inode N]... [--sweep N] [--abstract NAME]"
    );
    ExitCode::from(64)
}
