//! A guard plan in words: what `casemate bundle show` prints beside `config.json`.

use std::fmt;

use casemate_guard_plan::{GuardPlan, Landlock};
use serde::Serialize;

use crate::syscalls;
use crate::verify::bpf::{self, Answer, Call, ProgramError};

const X86_64: u32 = 0xc000_003e;

/// A guard plan in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GuardSummary {
    /// The tier, working directory, ids and switches, as `name: value`.
    pub settings: Vec<(&'static str, String)>,
    /// What the payload keeps, as `CAP_…`.
    pub capabilities: Vec<String>,
    /// The ruleset, one line each; empty where there is none.
    pub landlock: Vec<String>,
    /// Instructions in the program.
    pub instructions: usize,
    /// Each known call with what happens to it, by number.
    pub syscalls: Vec<SyscallVerdict>,
}

/// What happens to a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SyscallVerdict {
    /// Number on x86-64.
    pub number: u32,
    /// Name.
    pub name: &'static str,
    /// Verdict.
    pub verdict: Verdict,
}

/// What a filter does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It goes to the kernel.
    Allow,
    /// Its arguments decide.
    Conditional,
    /// It fails with this errno.
    Errno(u32),
    /// It kills the process.
    Kill,
    /// Another `SECCOMP_RET_*`, which no plan of ours has.
    Other(u32),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow => f.write_str("allow"),
            Self::Conditional => f.write_str("conditional"),
            Self::Errno(1) => f.write_str("EPERM"),
            Self::Errno(38) => f.write_str("ENOSYS"),
            Self::Errno(97) => f.write_str("EAFNOSUPPORT"),
            Self::Errno(number) => write!(f, "errno {number}"),
            Self::Kill => f.write_str("kill"),
            Self::Other(action) => write!(f, "{action:#010x}"),
        }
    }
}

/// Describes a guard plan.
///
/// # Errors
///
/// Where its seccomp program cannot be read.
pub fn describe_guard(plan: &GuardPlan) -> Result<GuardSummary, ProgramError> {
    let program = bpf::parse(&plan.seccomp.program)?;
    let mut calls = Vec::with_capacity(syscalls::NAMES.len());
    for (number, name) in (0..).zip(syscalls::NAMES) {
        let Some(name) = name else { continue };
        let call = Call {
            number,
            arch: X86_64,
            args: None,
        };
        calls.push(SyscallVerdict {
            number,
            name,
            verdict: verdict(bpf::evaluate(&program, &call)?),
        });
    }
    Ok(GuardSummary {
        settings: vec![
            ("tier", format!("{:?}", plan.tier)),
            ("cwd", plan.cwd.clone()),
            ("user", format!("{}:{}", plan.uid, plan.gid)),
            ("no_new_privs", plan.no_new_privs.to_string()),
            ("namespace_ceilings", plan.namespace_ceilings.to_string()),
        ],
        capabilities: plan.capabilities.clone(),
        landlock: plan.landlock.as_ref().map(landlock).unwrap_or_default(),
        instructions: program.len(),
        syscalls: calls,
    })
}

const fn verdict(answer: Answer) -> Verdict {
    match answer {
        Answer::Arguments => Verdict::Conditional,
        Answer::Action(0x7fff_0000) => Verdict::Allow,
        Answer::Action(0x8000_0000) => Verdict::Kill,
        Answer::Action(action) if action >> 16 == 5 => Verdict::Errno(action & 0xffff),
        Answer::Action(action) => Verdict::Other(action),
    }
}

fn landlock(ruleset: &Landlock) -> Vec<String> {
    let mut lines = vec![
        format!("handled: {}", names(&ruleset.handled_fs)),
        format!("scoped: {}", names(&ruleset.scoped)),
    ];
    for rule in &ruleset.rules {
        let rights = if rule.allow == ruleset.handled_fs {
            "everything handled".to_owned()
        } else {
            names(&rule.allow)
        };
        let optional = if rule.optional { " (if present)" } else { "" };
        lines.push(format!("{}{optional}: {rights}", rule.path));
    }
    lines
}

fn names<T: fmt::Debug>(items: &[T]) -> String {
    let names: Vec<String> = items.iter().map(|item| format!("{item:?}")).collect();
    if names.is_empty() {
        "nothing".to_owned()
    } else {
        names.join(", ")
    }
}

impl fmt::Display for GuardSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.settings {
            writeln!(f, "{name}: {value}")?;
        }
        writeln!(f, "capabilities: {}", self.capabilities.join(" "))?;
        writeln!(f, "landlock:")?;
        for line in &self.landlock {
            writeln!(f, "  {line}")?;
        }
        writeln!(
            f,
            "seccomp ({} instructions; foreign architecture: kill; x32 and unknown: ENOSYS):",
            self.instructions
        )?;
        for call in &self.syscalls {
            writeln!(f, "  {:3} {:24} {}", call.number, call.name, call.verdict)?;
        }
        Ok(())
    }
}
