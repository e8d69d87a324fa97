//! What the kernel answers to every system call number, in the three forms of x86-64.

use serde::Serialize;

use crate::child;
use crate::raw::{self, BAD, X32_BIT};

/// Numbers tried: 0 up to and including this one.
const LAST: u64 = 500;
/// How long a call may block before it counts as `hung`.
const PATIENCE_MS: u32 = 400;

/// Numbers whose call with bad arguments would still do something to the whole host.
const SKIPPED: &[(Form, u64, &str)] = &[
    (
        Form::Native,
        162,
        "sync flushes every file system of the host",
    ),
    (Form::I386, 36, "sync flushes every file system of the host"),
];

/// Calls that answer ENOSYS themselves when an argument is bad, with arguments that they take.
const ARGUMENTS: &[(u64, [u64; 6])] = &[
    // futex: FUTEX_WAKE of an unaligned address is EINVAL.
    (202, [1, 1, 0, 0, 0, 0]),
    // modify_ldt: read of nothing.
    (154, [0, 0, 0, 0, 0, 0]),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Native,
    X32,
    I386,
}

/// One answer for each number from 0 to 500: `ok`, an errno's name, `killed` by a filter,
/// `crash`, `signal:N`, `exit:N`, `hung` or `skipped`.
#[derive(Debug, Serialize)]
pub(crate) struct Answers {
    native: Vec<String>,
    x32: Vec<String>,
    i386: Vec<String>,
    skipped: Vec<Skipped>,
}

#[derive(Debug, Serialize)]
struct Skipped {
    form: String,
    nr: u64,
    reason: &'static str,
}

/// Tries every number in every form, each in a child of its own.
pub(crate) fn sweep() -> Answers {
    Answers {
        native: sweep_form(Form::Native),
        x32: sweep_form(Form::X32),
        i386: sweep_form(Form::I386),
        skipped: SKIPPED
            .iter()
            .map(|(form, nr, reason)| Skipped {
                form: format!("{form:?}"),
                nr: *nr,
                reason,
            })
            .collect(),
    }
}

fn sweep_form(form: Form) -> Vec<String> {
    (0..=LAST).map(|nr| answer(form, nr)).collect()
}

fn answer(form: Form, nr: u64) -> String {
    if SKIPPED.iter().any(|(f, n, _)| (*f, *n) == (form, nr)) {
        return "skipped".to_owned();
    }
    let known = ARGUMENTS.iter().find(|(number, _)| *number == nr);
    let args = known.map_or([BAD; 6], |(_, args)| *args);
    child::run(PATIENCE_MS, || {
        raw::word(&match form {
            Form::Native => raw::call(nr, args),
            Form::X32 => raw::call(nr | X32_BIT, args),
            Form::I386 => raw::call_i386(nr),
        })
    })
    .word()
}
