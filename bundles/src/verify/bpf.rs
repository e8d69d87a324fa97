//! Classic BPF as a guard plan writes it, read and run.

/// Longest program that the kernel takes (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;

/// Why a program cannot be read or run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// None or too many.
    #[error("the program has {0} instructions, not 1 to {MAX_INSTRUCTIONS}")]
    Length(usize),
    /// Not 16 hexadecimal digits.
    #[error("{0:?} is no instruction")]
    Instruction(String),
    /// An operation that no filter of ours uses.
    #[error("instruction {0:#06x} is not one that is used")]
    Operation(u16),
    /// Not a word of `struct seccomp_data`.
    #[error("the program loads from {0}")]
    Offset(u32),
    /// A jump past the last instruction.
    #[error("the program leaves its end")]
    End,
}

/// What a filter sees of a call (`struct seccomp_data`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) number: u32,
    pub(crate) arch: u32,
    /// `None` where the answer must not depend on the arguments.
    pub(crate) args: Option<[u64; 6]>,
}

/// What a filter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// `SECCOMP_RET_*`.
    Action(u32),
    /// Depends on arguments that were not given.
    Arguments,
}

/// One instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

/// Reads a program.
pub(crate) fn parse<T: AsRef<str>>(program: &[T]) -> Result<Vec<Instruction>, ProgramError> {
    if program.is_empty() || program.len() > MAX_INSTRUCTIONS {
        return Err(ProgramError::Length(program.len()));
    }
    program
        .iter()
        .map(|text| {
            let text = text.as_ref();
            instruction(text).ok_or_else(|| ProgramError::Instruction(text.to_owned()))
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
pub(crate) fn evaluate(program: &[Instruction], call: &Call) -> Result<Answer, ProgramError> {
    let mut accumulator = 0;
    let mut at: usize = 0;
    while let Some(instruction) = program.get(at) {
        let Instruction { code, yes, no, k } = *instruction;
        let skip = |holds: bool| usize::from(if holds { yes } else { no });
        at += 1;
        match code {
            // ld [k]
            0x20 => match word(call, k)? {
                Some(word) => accumulator = word,
                None => return Ok(Answer::Arguments),
            },
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
            0x06 => return Ok(Answer::Action(k)),
            _ => return Err(ProgramError::Operation(code)),
        }
    }
    Err(ProgramError::End)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the halves of a 64-bit word are what is asked for"
)]
fn word(call: &Call, offset: u32) -> Result<Option<u32>, ProgramError> {
    match offset {
        0 => return Ok(Some(call.number)),
        4 => return Ok(Some(call.arch)),
        _ => {}
    }
    let argument = offset.checked_sub(16).map(|rest| (rest / 8, rest % 8));
    let Some((index @ 0..6, half @ (0 | 4))) = argument else {
        return Err(ProgramError::Offset(offset));
    };
    Ok(call.args.and_then(|args| {
        let value = args.get(usize::try_from(index).ok()?)?;
        Some(if half == 0 {
            *value as u32
        } else {
            (*value >> 32) as u32
        })
    }))
}
