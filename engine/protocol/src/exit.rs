//! How a sandbox ended. An exit is a result, never an error.

use serde::{Deserialize, Serialize};

/// How a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case", deny_unknown_fields)]
pub enum ExitReason {
    /// The payload called `exit`.
    Exited {
        /// Its status.
        code: u8,
    },
    /// The payload died by a signal that the engine did not send.
    Signaled {
        /// Its number.
        signal: i32,
    },
    /// The deadline passed.
    TimedOut,
    /// Nobody used it for too long.
    IdleTimedOut,
    /// Somebody ended it.
    Cancelled {
        /// Who.
        by: CancelledBy,
    },
    /// The kernel killed it at its memory limit.
    OutOfMemory,
    /// Another limit ended it.
    Limit,
    /// Its keeper died or the host restarted.
    Lost,
}

impl ExitReason {
    /// Returns the exit status of a command line that shows this run (`128 + n` by signal, 124
    /// timed out, 130 cancelled, 137 out of memory, 70 limit and lost).
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Exited { code } => code,
            Self::Signaled { signal } => u8::try_from(128 + signal).unwrap_or(255),
            Self::TimedOut | Self::IdleTimedOut => 124,
            Self::Cancelled { .. } => 130,
            Self::OutOfMemory => 137,
            Self::Limit | Self::Lost => 70,
        }
    }
}

/// Who ended a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelledBy {
    /// Whoever started it.
    User,
    /// An administrator.
    Admin,
    /// Its layer was reset.
    Reset,
    /// A right was taken away.
    Revoked,
    /// The service was told to end everything.
    Shutdown,
}

/// All that is known of an ended sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExitRecord {
    /// How.
    pub reason: ExitReason,
    /// Processes that were alive when the payload had ended, and were killed.
    pub leftovers_killed: u32,
    /// From start to end of the payload.
    pub duration_ms: u64,
    /// What it took.
    pub usage: Usage,
    /// Standard output, or the terminal.
    pub stdout: StreamTotals,
    /// Standard error; empty for a terminal.
    pub stderr: StreamTotals,
}

/// What a sandbox took; `None` where the host does not count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Processor time.
    pub cpu_ms: Option<u64>,
    /// Most memory at once.
    pub memory_peak_bytes: Option<u64>,
    /// Most tasks at once.
    pub pids_peak: Option<u64>,
}

/// How much a stream carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamTotals {
    /// Bytes written by the sandbox.
    pub bytes: u64,
    /// What was not kept, with [`crate::OutputPolicy::Retain`].
    pub truncated: Option<Truncation>,
}

/// Where a kept stream has a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truncation {
    /// Bytes before the hole.
    pub kept_head: u64,
    /// Bytes in the hole.
    pub dropped: u64,
}
