//! Seccomp: one program for each tier, by number, and the one outer profile, by name.
//!
//! An allow-list with ENOSYS for everything else: C libraries fall back, and a new system call
//! never appears by itself. EPERM where programs expect it. The first instructions refuse what is
//! not this architecture: a foreign one kills, an x32 number is ENOSYS.

mod bpf;
mod policy;

use std::sync::OnceLock;

use casemate_guard_plan::{GuardTier, Seccomp};
use serde::Serialize;

use self::bpf::{Block, offset};
use self::policy::{Action, Condition};
use crate::{Network, syscalls};

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// Numbers from here on are x32 calls.
const X32_BIT: u32 = 0x4000_0000;

/// Programs differ by tier and, for command runs, by network scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    AdminNesting,
    Admin,
    Restricted,
    Backend,
    ProcessHost,
    ProcessNone,
}

impl Variant {
    const fn of(tier: GuardTier, network: Network) -> Self {
        match (tier, network) {
            (GuardTier::AdminNesting, _) => Self::AdminNesting,
            (GuardTier::Admin, _) => Self::Admin,
            (GuardTier::Restricted, _) => Self::Restricted,
            (GuardTier::Backend, _) => Self::Backend,
            (GuardTier::Process, Network::Host) => Self::ProcessHost,
            (GuardTier::Process, Network::None) => Self::ProcessNone,
        }
    }
}

/// Returns the program of a tier; assembled once in a process.
pub(super) fn program(tier: GuardTier, network: Network) -> &'static Seccomp {
    static PROGRAMS: [OnceLock<Seccomp>; 6] = [const { OnceLock::new() }; 6];
    let variant = Variant::of(tier, network);
    let [nesting, admin, restricted, backend, host, none] = &PROGRAMS;
    let cell = match variant {
        Variant::AdminNesting => nesting,
        Variant::Admin => admin,
        Variant::Restricted => restricted,
        Variant::Backend => backend,
        Variant::ProcessHost => host,
        Variant::ProcessNone => none,
    };
    cell.get_or_init(|| Seccomp {
        arch: "AUDIT_ARCH_X86_64".to_owned(),
        program: assemble(variant)
            .into_iter()
            .map(bpf::Instruction::hex)
            .collect(),
    })
}

fn assemble(variant: Variant) -> Block {
    let calls = tree(&runs(variant));
    let native = bpf::load(
        offset::NR,
        bpf::if_at_least(X32_BIT, bpf::ret(bpf::errno(policy::ENOSYS)), calls),
    );
    bpf::load(
        offset::ARCH,
        bpf::if_equal(AUDIT_ARCH_X86_64, native, bpf::ret(bpf::KILL_PROCESS)),
    )
}

/// Neighbouring numbers with one action, by their first number; the last run has no end.
fn runs(variant: Variant) -> Vec<(u32, Action)> {
    let mut runs: Vec<(u32, Action)> = Vec::new();
    let mut number = 0;
    for name in syscalls::NAMES {
        let action = name.map_or(Action::Errno(policy::ENOSYS), |name| {
            policy::action(variant, name)
        });
        push(&mut runs, number, action);
        number += 1;
    }
    push(&mut runs, number, Action::Errno(policy::ENOSYS));
    runs
}

fn push(runs: &mut Vec<(u32, Action)>, number: u32, action: Action) {
    if runs.last().is_none_or(|(_first, last)| *last != action) {
        runs.push((number, action));
    }
}

/// A balanced decision tree over the runs.
fn tree(runs: &[(u32, Action)]) -> Block {
    match runs {
        [] => bpf::ret(bpf::errno(policy::ENOSYS)),
        [(_first, action)] => leaf(*action),
        _ => {
            let (lower, upper) = runs.split_at(runs.len() / 2);
            let border = upper.first().map_or(0, |(first, _action)| *first);
            bpf::if_at_least(border, tree(upper), tree(lower))
        }
    }
}

fn leaf(action: Action) -> Block {
    match action {
        Action::Allow => bpf::ret(bpf::ALLOW),
        Action::Errno(number) => bpf::ret(bpf::errno(number)),
        Action::If(condition) => check(condition),
    }
}

/// Argument checks load the low word only: the kernel takes 32 bits of these arguments, and a
/// 64-bit comparison is passed by setting the others.
fn check(condition: Condition) -> Block {
    let allow = || bpf::ret(bpf::ALLOW);
    match condition {
        Condition::NoneOf { arg, values, errno } => {
            let chain = values.iter().rev().fold(allow(), |rest, &value| {
                bpf::if_equal(value, bpf::ret(bpf::errno(errno)), rest)
            });
            bpf::load(offset::arg(arg), chain)
        }
        Condition::OneOf {
            arg,
            mask,
            values,
            errno,
        } => {
            let refuse = bpf::ret(bpf::errno(errno));
            let chain = values
                .iter()
                .rev()
                .fold(refuse, |rest, &value| bpf::if_equal(value, allow(), rest));
            let chain = if mask == u32::MAX {
                chain
            } else {
                bpf::masked(mask, chain)
            };
            bpf::load(offset::arg(arg), chain)
        }
        Condition::NoBits { arg, bits, errno } => bpf::load(
            offset::arg(arg),
            bpf::if_any_bit(bits, bpf::ret(bpf::errno(errno)), allow()),
        ),
        Condition::Family { denied } => {
            let netfilter = bpf::load(
                offset::arg(2),
                bpf::if_equal(
                    policy::NETLINK_NETFILTER,
                    bpf::ret(bpf::errno(policy::EAFNOSUPPORT)),
                    allow(),
                ),
            );
            let chain = bpf::if_equal(policy::AF_NETLINK, netfilter, allow());
            let chain = denied.iter().rev().fold(chain, |rest, &family| {
                bpf::if_equal(family, bpf::ret(bpf::errno(policy::EAFNOSUPPORT)), rest)
            });
            bpf::load(offset::arg(0), chain)
        }
    }
}

/// The outer profile: what no payload ever needs, for a runtime that loads it before the init's
/// own program. Consistent with that program, and only names that libseccomp 2.5.4 knows: others
/// it drops in silence.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OuterProfile {
    architectures: &'static [&'static str],
    default_action: &'static str,
    syscalls: [OuterRule; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OuterRule {
    action: &'static str,
    errno_ret: u32,
    names: &'static [&'static str],
}

/// Returns the outer profile.
pub(super) const fn outer() -> OuterProfile {
    OuterProfile {
        // With x32 absent libseccomp kills its numbers; the init's program answers ENOSYS.
        architectures: &["SCMP_ARCH_X86_64", "SCMP_ARCH_X32"],
        default_action: "SCMP_ACT_ALLOW",
        syscalls: [OuterRule {
            action: "SCMP_ACT_ERRNO",
            errno_ret: policy::ENOSYS,
            names: &policy::OUTER,
        }],
    }
}
