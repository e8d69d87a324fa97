//! Exit records as `casemate.term.v1` says them.

use casemate_protocol::{CancelledBy, ExitReason};

use super::control::{ExitBy, ExitKind, ServerMessage};

/// Returns the exit message of a record.
pub(super) const fn message(reason: ExitReason) -> ServerMessage {
    let (kind, code, signal, by) = match reason {
        ExitReason::Exited { code } => (ExitKind::Exited, Some(code), None, None),
        ExitReason::Signaled { signal } => (ExitKind::Signaled, None, Some(signal), None),
        ExitReason::TimedOut => (ExitKind::TimedOut, None, None, None),
        ExitReason::IdleTimedOut => (ExitKind::IdleTimedOut, None, None, None),
        ExitReason::Cancelled { by } => (ExitKind::Cancelled, None, None, Some(ended_by(by))),
        ExitReason::OutOfMemory => (ExitKind::OutOfMemory, None, None, None),
        ExitReason::Limit => (ExitKind::Limit, None, None, None),
        ExitReason::Lost => (ExitKind::Lost, None, None, None),
    };
    ServerMessage::Exit {
        code,
        signal,
        reason: kind,
        by,
    }
}

const fn ended_by(by: CancelledBy) -> ExitBy {
    match by {
        CancelledBy::User => ExitBy::User,
        CancelledBy::Admin => ExitBy::Admin,
        CancelledBy::Reset => ExitBy::Reset,
        CancelledBy::Revoked => ExitBy::Revoked,
        CancelledBy::Shutdown => ExitBy::Shutdown,
    }
}
