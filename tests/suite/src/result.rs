//! The result of a run, as `casemate run --json` and the exec API print it.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::command::{self, Output};

/// The result of a run. Fields that a suite does not look at are not listed.
#[derive(Debug, Clone, Deserialize)]
pub struct RunResult {
    /// How it ended.
    pub outcome: String,
    /// Status, when it exited.
    pub exit_code: Option<i32>,
    /// Signal, when it was signaled.
    pub signal: Option<Value>,
    /// What was kept of standard output.
    pub stdout: String,
    /// What was kept of standard error.
    pub stderr: String,
    /// `utf-8` or `base64`.
    pub encoding: String,
    /// Bytes written.
    pub stdout_bytes: u64,
    /// Bytes written.
    pub stderr_bytes: u64,
    /// Hole in standard output.
    pub stdout_truncated: Option<Truncated>,
    /// Hole in standard error.
    pub stderr_truncated: Option<Truncated>,
    /// Processes that were killed after the end.
    pub leftovers_killed: u64,
    /// Milliseconds.
    pub duration_ms: u64,
    /// What it took.
    pub usage: Value,
}

/// A hole in a kept stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Truncated {
    /// Bytes before it.
    pub kept_head: u64,
    /// Bytes in it.
    pub dropped: u64,
}

impl RunResult {
    /// Runs the command, which prints a result, to its end.
    pub fn of(command: &mut Command, deadline: Duration) -> Result<(Self, Output)> {
        let output = command::run(command, deadline)?;
        let result = output.json().context("result of the run")?;
        Ok((result, output))
    }

    /// Bytes that were kept of standard output.
    pub fn kept(&self) -> Result<Vec<u8>> {
        use base64::Engine as _;
        match self.encoding.as_str() {
            "utf-8" => Ok(self.stdout.clone().into_bytes()),
            "base64" => Ok(base64::engine::general_purpose::STANDARD.decode(&self.stdout)?),
            other => anyhow::bail!("encoding {other}"),
        }
    }
}
