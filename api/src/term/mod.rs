//! The terminal: `casemate.term.v1` on `/ws/term`.

pub mod code;
pub mod control;
mod exit;
pub mod frame;
mod open;
mod relay;
mod session;
mod socket;

pub use open::SessionTimes;
pub use session::{Session, SessionSummary, Sessions};
pub(crate) use session::{SessionLabel, attach_to_end};
pub(crate) use socket::TermSocket;
