//! Seccomp: the program of the guard plan is run, call by call, against the table in
//! [`calls`](super::calls).

use std::sync::OnceLock;

use casemate_guard_plan::Seccomp;

use super::calls::{self, Variant};
use super::facts::Facts;
use super::rule::{Rule, Violation, broken, require};

/// Longest program that the kernel takes (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;
/// Highest number that is tried; beyond the last known one.
const LAST_NUMBER: u32 = 600;

const X86_64: u32 = 0xc000_003e;
/// i386, AArch64 and nonsense.
const FOREIGN: [u32; 3] = [0x4000_0003, 0xc000_00b7, 0];
const X32: u32 = 0x4000_0000;

const KILL_PROCESS: u32 = 0x8000_0000;
const ENOSYS: u32 = 0x0005_0026;

/// What a filter sees of a call (`struct seccomp_data`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) number: u32,
    pub(super) arch: u32,
    pub(super) args: [u64; 6],
}

/// One instruction.
#[derive(Debug, Clone, Copy)]
struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

pub(super) fn check(seccomp: &Seccomp, facts: &Facts<'_>) -> Result<(), Violation> {
    let variant = Variant::of(facts.class, facts.host_network);
    // What was run once need not be run again: the same text gives the same answers.
    static RUN: [OnceLock<Vec<String>>; 6] = [const { OnceLock::new() }; 6];
    let cell = RUN.get(variant.index());
    require(
        seccomp.arch == "AUDIT_ARCH_X86_64",
        Rule::SeccompProgram,
        || format!("it is for {}", seccomp.arch),
    )?;
    if cell.and_then(OnceLock::get) == Some(&seccomp.program) {
        return Ok(());
    }
    run(&parse(&seccomp.program)?, variant)?;
    if let Some(cell) = cell {
        cell.get_or_init(|| seccomp.program.clone());
    }
    Ok(())
}

fn run(program: &[Instruction], variant: Variant) -> Result<(), Violation> {
    let answer = |call: &Call, expected: u32| {
        let found = evaluate(program, call)?;
        require(found == expected, Rule::SeccompProgram, || {
            format!(
                "call {} with {:x?} on {:#x} is {found:#x}, not {expected:#x}",
                call.number, call.args, call.arch
            )
        })
    };
    for number in (0..=LAST_NUMBER).chain([u32::MAX, X32 - 1]) {
        for arch in FOREIGN {
            let call = Call {
                number,
                arch,
                args: [0; 6],
            };
            answer(&call, KILL_PROCESS)?;
        }
        let x32 = Call {
            number: number | X32,
            arch: X86_64,
            args: [0; 6],
        };
        answer(&x32, ENOSYS)?;
        for (args, expected) in calls::cases(variant, number) {
            let call = Call {
                number,
                arch: X86_64,
                args,
            };
            // u32::MAX has the x32 bit.
            answer(&call, if number >= X32 { ENOSYS } else { expected })?;
        }
    }
    Ok(())
}

fn parse(program: &[String]) -> Result<Vec<Instruction>, Violation> {
    require(
        !program.is_empty() && program.len() <= MAX_INSTRUCTIONS,
        Rule::SeccompProgram,
        || format!("it has {} instructions", program.len()),
    )?;
    program
        .iter()
        .map(|text| {
            instruction(text)
                .ok_or_else(|| broken(Rule::SeccompProgram, format!("{text:?} is no instruction")))
        })
        .collect()
}

fn instruction(text: &str) -> Option<Instruction> {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 16 || !text.bytes().all(hex) {
        return None;
    }
    Some(Instruction {
        code: u16::from_str_radix(text.get(0..4)?, 16).ok()?,
        yes: u8::from_str_radix(text.get(4..6)?, 16).ok()?,
        no: u8::from_str_radix(text.get(6..8)?, 16).ok()?,
        k: u32::from_str_radix(text.get(8..16)?, 16).ok()?,
    })
}

/// Runs a program as the kernel does; jumps only lead forward, so it ends.
fn evaluate(program: &[Instruction], call: &Call) -> Result<u32, Violation> {
    let mut accumulator = 0;
    let mut at = 0;
    while let Some(instruction) = program.get(at) {
        let Instruction { code, yes, no, k } = *instruction;
        let skip = |holds: bool| usize::from(if holds { yes } else { no });
        at += 1;
        match code {
            // ld [k]
            0x20 => accumulator = word(call, k)?,
            // and #k
            0x54 => accumulator &= k,
            // ja
            0x05 => at = at.saturating_add(usize::try_from(k).unwrap_or(usize::MAX)),
            // jeq, jgt, jge, jset
            0x15 => at += skip(accumulator == k),
            0x25 => at += skip(accumulator > k),
            0x35 => at += skip(accumulator >= k),
            0x45 => at += skip(accumulator & k != 0),
            // ret #k
            0x06 => return Ok(k),
            _ => {
                return Err(broken(
                    Rule::SeccompProgram,
                    format!("instruction {code:#06x} is not one that is used"),
                ));
            }
        }
    }
    Err(broken(Rule::SeccompProgram, "it leaves its end"))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the halves of a 64-bit word are what is asked for"
)]
fn word(call: &Call, offset: u32) -> Result<u32, Violation> {
    let index = offset.checked_sub(16).map(|rest| (rest / 8, rest % 8));
    match (offset, index) {
        (0, _) => Ok(call.number),
        (4, _) => Ok(call.arch),
        (_, Some((argument, part @ (0 | 4)))) => {
            let value = usize::try_from(argument)
                .ok()
                .and_then(|argument| call.args.get(argument))
                .ok_or_else(|| broken(Rule::SeccompProgram, "it loads past the arguments"))?;
            Ok(if part == 0 {
                *value as u32
            } else {
                (*value >> 32) as u32
            })
        }
        _ => Err(broken(
            Rule::SeccompProgram,
            format!("it loads from {offset}"),
        )),
    }
}
