//! Seccomp: the program of the guard plan is run, call by call, against the table in
//! [`calls`](super::calls).

use std::sync::OnceLock;

use super::bpf::{self, Answer, Call, Instruction, ProgramError};
use super::calls::{self, Variant};
use super::document::Program;
use super::facts::Facts;
use super::rule::{Rule, Violation, broken, require};

/// Highest number that is tried; beyond the last known one.
const LAST_NUMBER: u32 = 600;

const X86_64: u32 = 0xc000_003e;
/// `i386`, `aarch64` and nonsense.
const FOREIGN: [u32; 3] = [0x4000_0003, 0xc000_00b7, 0];
const X32: u32 = 0x4000_0000;

const KILL_PROCESS: u32 = 0x8000_0000;
const ENOSYS: u32 = 0x0005_0026;

pub(super) fn check(seccomp: &Program<'_>, facts: &Facts<'_>) -> Result<(), Violation> {
    // What was run once need not be run again: the same text gives the same answers.
    static RUN: [OnceLock<Vec<String>>; 6] = [const { OnceLock::new() }; 6];
    let variant = Variant::of(facts.class, facts.host_network);
    let cell = RUN.get(variant.index());
    require(
        seccomp.arch == "AUDIT_ARCH_X86_64",
        Rule::SeccompProgram,
        || format!("it is for {}", seccomp.arch),
    )?;
    let known = cell.and_then(OnceLock::get);
    if known.is_some_and(|known| seccomp.program == *known) {
        return Ok(());
    }
    run(&bpf::parse(&seccomp.program).map_err(unreadable)?, variant)?;
    if let Some(cell) = cell {
        cell.get_or_init(|| seccomp.program.iter().map(ToString::to_string).collect());
    }
    Ok(())
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the shape that map_err wants"
)]
fn unreadable(error: ProgramError) -> Violation {
    broken(Rule::SeccompProgram, error.to_string())
}

fn run(program: &[Instruction], variant: Variant) -> Result<(), Violation> {
    for number in (0..=LAST_NUMBER).chain([u32::MAX, X32 - 1]) {
        // A foreign architecture and an x32 number are refused whatever the arguments.
        for arch in FOREIGN {
            let args = None;
            let call = Call { number, arch, args };
            answer(program, call, KILL_PROCESS)?;
        }
        let x32 = Call {
            number: number | X32,
            arch: X86_64,
            args: None,
        };
        answer(program, x32, ENOSYS)?;
        if number >= X32 {
            continue;
        }
        for (args, expected) in calls::cases(variant, number) {
            let call = Call {
                number,
                arch: X86_64,
                args: Some(args),
            };
            answer(program, call, expected)?;
        }
    }
    Ok(())
}

fn answer(program: &[Instruction], call: Call, expected: u32) -> Result<(), Violation> {
    let found = bpf::evaluate(program, &call).map_err(unreadable)?;
    require(
        found == Answer::Action(expected),
        Rule::SeccompProgram,
        || format!("{call:x?} is {found:x?}, not {expected:#x}"),
    )
}
