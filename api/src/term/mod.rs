//! The terminal: `casemate.term.v1` on `/ws/term`.

pub mod code;
pub mod control;
pub mod frame;
