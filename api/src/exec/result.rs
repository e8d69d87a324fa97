//! From an exit record to the result that a client gets.

use casemate_bundles::{Digest, Enforcement};
use casemate_protocol::{ExitReason, ExitRecord, StreamTotals, Usage};

use super::text::{Kept, encode};
use super::wire::{ExecResult, Outcome};

/// What is known of an ended run.
#[derive(Debug)]
pub struct Ended {
    /// Name of the run.
    pub exec_id: String,
    /// Its audit records; `None` without a service.
    pub audit_id: Option<String>,
    /// Digest of its bundle.
    pub bundle: Digest,
    /// What was enforced.
    pub enforcement: Enforcement,
    /// How it ended.
    pub record: ExitRecord,
    /// What was kept of standard output.
    pub stdout: Vec<u8>,
    /// What was kept of standard error.
    pub stderr: Vec<u8>,
}

/// The record of a run whose keeper left none.
pub(crate) const fn lost(duration_ms: u64) -> ExitRecord {
    const NOTHING: StreamTotals = StreamTotals {
        bytes: 0,
        truncated: None,
    };
    ExitRecord {
        reason: ExitReason::Lost,
        leftovers_killed: 0,
        duration_ms,
        usage: Usage {
            cpu_ms: None,
            memory_peak_bytes: None,
            pids_peak: None,
        },
        stdout: NOTHING,
        stderr: NOTHING,
    }
}

impl Outcome {
    /// Returns the outcome of an exit, with status and signal.
    pub(crate) const fn of(reason: ExitReason) -> (Self, Option<u8>, Option<i32>) {
        match reason {
            ExitReason::Exited { code } => (Self::Exited, Some(code), None),
            ExitReason::Signaled { signal } => (Self::Signaled, None, Some(signal)),
            ExitReason::TimedOut => (Self::TimedOut, None, None),
            ExitReason::IdleTimedOut => (Self::IdleTimedOut, None, None),
            ExitReason::Cancelled { .. } => (Self::Cancelled, None, None),
            ExitReason::OutOfMemory => (Self::OutOfMemory, None, None),
            ExitReason::Limit => (Self::Limit, None, None),
            ExitReason::Lost => (Self::Lost, None, None),
        }
    }
}

impl Ended {
    /// Returns the result: whole characters, exact counts.
    pub fn result(self) -> ExecResult {
        let (outcome, exit_code, signal) = Outcome::of(self.record.reason);
        let encoded = encode(
            &Kept::new(self.stdout, self.record.stdout.truncated),
            &Kept::new(self.stderr, self.record.stderr.truncated),
        );
        ExecResult {
            exec_id: self.exec_id,
            outcome,
            exit_code,
            signal,
            stdout: encoded.stdout.0,
            stderr: encoded.stderr.0,
            encoding: encoded.encoding,
            stdout_bytes: self.record.stdout.bytes,
            stderr_bytes: self.record.stderr.bytes,
            stdout_truncated: encoded.stdout.1,
            stderr_truncated: encoded.stderr.1,
            leftovers_killed: self.record.leftovers_killed,
            duration_ms: self.record.duration_ms,
            usage: self.record.usage,
            denials: Vec::new(),
            commit: None,
            bundle: self.bundle,
            enforcement: self.enforcement,
            audit_id: self.audit_id,
        }
    }
}
