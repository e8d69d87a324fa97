//! Errors of `casemate.term.v1`: a closed set, each with one close code.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a socket or a message was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TermCode {
    /// No credential, or a bad or used ticket.
    #[serde(rename = "TERM_UNAUTHENTICATED")]
    Unauthenticated,
    /// Not allowed: tile level, root terminal, network scope, Origin.
    #[serde(rename = "TERM_FORBIDDEN")]
    Forbidden,
    /// Unknown or ended session, unknown tile.
    #[serde(rename = "TERM_NOT_FOUND")]
    NotFound,
    /// The resume token has expired: open anew.
    #[serde(rename = "TERM_RESUME_GONE")]
    ResumeGone,
    /// Another client took the writer role.
    #[serde(rename = "TERM_TAKEN_OVER")]
    TakenOver,
    /// Bad type, length, JSON or order.
    #[serde(rename = "TERM_INVALID_FRAME")]
    InvalidFrame,
    /// A size outside 1…1000 × 1…500; nothing was changed.
    #[serde(rename = "TERM_INVALID_SIZE")]
    InvalidSize,
    /// Too many sessions, or too much input queued.
    #[serde(rename = "TERM_LIMIT")]
    Limit,
    /// More than the window unacknowledged for 60 s; the session lives on.
    #[serde(rename = "TERM_TOO_SLOW")]
    TooSlow,
    /// A piece of the sandbox is missing.
    #[serde(rename = "TERM_UNAVAILABLE")]
    Unavailable,
    /// A fault of the service; the message carries an id.
    #[serde(rename = "TERM_INTERNAL")]
    Internal,
}

impl TermCode {
    /// Every code.
    pub const ALL: [Self; 11] = [
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::ResumeGone,
        Self::TakenOver,
        Self::InvalidFrame,
        Self::InvalidSize,
        Self::Limit,
        Self::TooSlow,
        Self::Unavailable,
        Self::Internal,
    ];

    /// Returns the WebSocket close code; `None` where the socket stays open.
    pub const fn close(self) -> Option<u16> {
        match self {
            Self::Unauthenticated => Some(4401),
            Self::Forbidden => Some(4403),
            Self::NotFound => Some(4404),
            Self::ResumeGone => Some(4410),
            Self::TakenOver => Some(4409),
            Self::InvalidFrame => Some(4400),
            Self::InvalidSize => None,
            Self::Limit => Some(4429),
            Self::TooSlow => Some(4408),
            Self::Unavailable => Some(4503),
            Self::Internal => Some(4500),
        }
    }
}
