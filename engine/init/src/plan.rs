//! The guard plan, read whole and checked before anything is changed.

use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;

use casemate_guard_plan::{
    FsRight, GuardPlan, Landlock, LandlockRule, LandlockScope, MAX_PLAN_BYTES, NetRight, Seccomp,
    Stage, VERSION,
};
use casemate_sys::capability::Capabilities;
use casemate_sys::landlock::Handled;
use casemate_sys::seccomp::{Instruction, MAX_INSTRUCTIONS};

use crate::failure::Failure;

#[cfg(target_arch = "x86_64")]
const ARCH: &str = "AUDIT_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCH: &str = "AUDIT_ARCH_AARCH64";

/// A plan whose every value the kernel can be given.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Guards {
    /// Absolute working directory.
    pub(crate) cwd: CString,
    /// The payload's user id in the sandbox.
    pub(crate) uid: u32,
    /// The payload's group id in the sandbox.
    pub(crate) gid: u32,
    /// Whether no user or mount namespace may be made below B.
    pub(crate) namespace_ceilings: bool,
    /// Bounding, permitted and effective set.
    pub(crate) capabilities: Capabilities,
    /// Whether exec may grant nothing.
    pub(crate) no_new_privs: bool,
    /// `None` when nothing is handled.
    pub(crate) landlock: Option<Rules>,
    /// The system-call filter.
    pub(crate) program: Vec<Instruction>,
}

/// A Landlock ruleset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) handled: Handled,
    pub(crate) beneath: Vec<Beneath>,
}

/// What is allowed below one path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Beneath {
    pub(crate) path: CString,
    /// Rights where the path is a directory.
    pub(crate) on_directory: u64,
    /// Rights where it is not.
    pub(crate) on_file: u64,
    /// Whether an absent path is skipped.
    pub(crate) optional: bool,
}

/// Why a plan is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("larger than {MAX_PLAN_BYTES} bytes")]
    Size,
    #[error("not a plan: line {line}, column {column}")]
    Syntax { line: usize, column: usize },
    #[error("version {0}, expected {VERSION}")]
    Version(u32),
    #[error("{0}: not an absolute path without NUL")]
    Path(&'static str),
    #[error("capability {0:?} is unknown")]
    Capability(String),
    #[error("landlock rule {0} allows what is not handled")]
    Unhandled(usize),
    #[error("seccomp architecture {0:?}, expected {ARCH:?}")]
    Architecture(String),
    #[error("seccomp program of {0} instructions")]
    ProgramLength(usize),
    #[error("seccomp instruction {0} is not 16 lower-case hexadecimal digits")]
    Instruction(usize),
}

impl Guards {
    /// Reads and checks a plan.
    pub(crate) fn read(file: File, name: &str) -> Result<Self, Failure> {
        let mut text = Vec::new();
        let limit = u64::try_from(MAX_PLAN_BYTES).map_or(u64::MAX, |limit| limit + 1);
        file.take(limit)
            .read_to_end(&mut text)
            .map_err(Failure::io(Stage::Plan, name))?;
        Self::parse(&text).map_err(|refusal| Failure::refused(Stage::Plan, refusal.to_string()))
    }

    fn parse(text: &[u8]) -> Result<Self, Refusal> {
        if text.len() > MAX_PLAN_BYTES {
            return Err(Refusal::Size);
        }
        let GuardPlan {
            version,
            tier: _,
            cwd,
            uid,
            gid,
            namespace_ceilings,
            capabilities,
            no_new_privs,
            landlock,
            seccomp,
        } = serde_json::from_slice(text).map_err(|error| Refusal::Syntax {
            line: error.line(),
            column: error.column(),
        })?;
        if version != VERSION {
            return Err(Refusal::Version(version));
        }
        let mut kept = Capabilities::NONE;
        for name in capabilities {
            kept = kept.with(&name).ok_or(Refusal::Capability(name))?;
        }
        Ok(Self {
            cwd: absolute(cwd, "cwd")?,
            uid,
            gid,
            namespace_ceilings,
            capabilities: kept,
            no_new_privs,
            landlock: landlock.map(rules).transpose()?.flatten(),
            program: program(&seccomp)?,
        })
    }
}

fn absolute(path: String, what: &'static str) -> Result<CString, Refusal> {
    if !path.starts_with('/') {
        return Err(Refusal::Path(what));
    }
    CString::new(path).map_err(|_nul| Refusal::Path(what))
}

fn rules(landlock: Landlock) -> Result<Option<Rules>, Refusal> {
    let Landlock {
        handled_fs,
        handled_net,
        scoped,
        rules,
    } = landlock;
    let handled = Handled {
        fs: bits(&handled_fs, FsRight::bit),
        net: bits(&handled_net, NetRight::bit),
        scoped: bits(&scoped, LandlockScope::bit),
    };
    let beneath = rules
        .into_iter()
        .enumerate()
        .map(|(index, rule)| rule_beneath(index, rule, handled.fs))
        .collect::<Result<_, _>>()?;
    let nothing = handled.fs | handled.net | handled.scoped == 0;
    Ok((!nothing).then_some(Rules { handled, beneath }))
}

fn rule_beneath(index: usize, rule: LandlockRule, handled: u64) -> Result<Beneath, Refusal> {
    let LandlockRule {
        path,
        allow,
        optional,
    } = rule;
    let on_directory = bits(&allow, FsRight::bit);
    if on_directory & !handled != 0 {
        return Err(Refusal::Unhandled(index));
    }
    Ok(Beneath {
        path: absolute(path, "landlock rule")?,
        on_directory,
        on_file: on_directory & bits(&FsRight::ALL, file_bit),
        optional,
    })
}

const fn file_bit(right: FsRight) -> u64 {
    if right.applies_to_files() {
        right.bit()
    } else {
        0
    }
}

fn bits<T: Copy>(rights: &[T], bit: impl Fn(T) -> u64) -> u64 {
    rights.iter().fold(0, |bits, &right| bits | bit(right))
}

fn program(seccomp: &Seccomp) -> Result<Vec<Instruction>, Refusal> {
    let Seccomp { arch, program } = seccomp;
    if arch != ARCH {
        return Err(Refusal::Architecture(arch.clone()));
    }
    if program.is_empty() || program.len() > MAX_INSTRUCTIONS {
        return Err(Refusal::ProgramLength(program.len()));
    }
    program
        .iter()
        .enumerate()
        .map(|(index, digits)| instruction(digits).ok_or(Refusal::Instruction(index)))
        .collect()
}

/// `code` (4 digits), `jt` (2), `jf` (2), `k` (8).
fn instruction(digits: &str) -> Option<Instruction> {
    const DIGITS: usize = 16;
    let digits = digits.as_bytes();
    if digits.len() != DIGITS {
        return None;
    }
    let mut value: u64 = 0;
    for digit in digits {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        value = value << 4 | u64::from(digit);
    }
    let [c0, c1, jt, jf, k0, k1, k2, k3] = value.to_be_bytes();
    Some(Instruction {
        code: u16::from_be_bytes([c0, c1]),
        jt,
        jf,
        k: u32::from_be_bytes([k0, k1, k2, k3]),
    })
}
