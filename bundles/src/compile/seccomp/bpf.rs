//! A small assembler for classic BPF as `seccomp(2)` loads it.

/// Where a field of `struct seccomp_data` is; of the 64-bit arguments the low word (little endian).
pub(super) mod offset {
    pub(in super::super) const NR: u32 = 0;
    pub(in super::super) const ARCH: u32 = 4;

    pub(in super::super) const fn arg(index: u32) -> u32 {
        16 + 8 * index
    }
}

/// `SECCOMP_RET_*`.
pub(super) const ALLOW: u32 = 0x7fff_0000;
pub(super) const KILL_PROCESS: u32 = 0x8000_0000;

/// `SECCOMP_RET_ERRNO` with a number.
pub(super) const fn errno(number: u32) -> u32 {
    0x0005_0000 | number
}

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

/// One instruction (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

impl Instruction {
    /// Writes the instruction as a guard plan has it.
    pub(super) fn hex(self) -> String {
        format!(
            "{:04x}{:02x}{:02x}{:08x}",
            self.code, self.jt, self.jf, self.k
        )
    }
}

/// Instructions that end in a return on every way; they may be joined by [`either`].
pub(super) type Block = Vec<Instruction>;

const fn statement(code: u16, k: u32) -> Instruction {
    Instruction {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Returns an action.
pub(super) fn ret(action: u32) -> Block {
    vec![statement(RETURN, action)]
}

/// Loads a word, then goes on.
pub(super) fn load(offset: u32, mut then: Block) -> Block {
    then.insert(0, statement(LOAD, offset));
    then
}

/// Masks the loaded word, then goes on.
pub(super) fn masked(mask: u32, mut then: Block) -> Block {
    then.insert(0, statement(AND, mask));
    then
}

/// Compares for equality.
pub(super) fn if_equal(k: u32, yes: Block, no: Block) -> Block {
    either(IF_EQUAL, k, yes, no)
}

/// Compares for at least, unsigned.
pub(super) fn if_at_least(k: u32, yes: Block, no: Block) -> Block {
    either(IF_AT_LEAST, k, yes, no)
}

/// Tests whether any of the bits is set.
pub(super) fn if_any_bit(k: u32, yes: Block, no: Block) -> Block {
    either(IF_ANY_BIT, k, yes, no)
}

/// `no` comes first, so that `yes` is what a jump skips to.
fn either(code: u16, k: u32, yes: Block, no: Block) -> Block {
    let mut block = Vec::with_capacity(yes.len() + no.len() + 2);
    if let Ok(jt) = u8::try_from(no.len()) {
        block.push(Instruction { code, jt, jf: 0, k });
    } else {
        // Too far for eight bits: yes falls on a long jump, no steps over it.
        block.push(Instruction {
            code,
            jt: 0,
            jf: 1,
            k,
        });
        let distance = u32::try_from(no.len()).unwrap_or(u32::MAX);
        block.push(statement(JUMP, distance));
    }
    block.extend(no);
    block.extend(yes);
    block
}
