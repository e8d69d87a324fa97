//! `POST /v1/exec` on the wire: `snake_case`, unknown fields refused.

use std::collections::BTreeMap;

use casemate_bundles::{Digest, Enforcement};
use casemate_protocol::{Truncation, Usage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A command run that somebody asks for.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// The command; never one string.
    pub argv: Vec<String>,
    /// Name of the base; the configured one where absent.
    #[serde(default)]
    pub base: Option<String>,
    /// Working directory; `/workspace` if present, else `/tmp`, where absent.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Variables besides the fixed ones.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Standard input; `/dev/null` where absent.
    #[serde(default)]
    pub stdin: Option<Stdin>,
    /// Limits; the defaults where absent.
    #[serde(default)]
    pub limits: LimitsRequest,
    /// Network; none where absent.
    #[serde(default)]
    pub net: Option<NetRequest>,
    /// Refused: a terminal.
    #[serde(default)]
    #[schemars(skip)]
    pub tty: Option<Value>,
    /// Refused: projections.
    #[serde(default)]
    #[schemars(skip)]
    pub files: Option<Value>,
    /// Refused: commit policy.
    #[serde(default)]
    #[schemars(skip)]
    pub commit: Option<Value>,
    /// Refused: commit policy after a failure.
    #[serde(default)]
    #[schemars(skip)]
    pub on_failure: Option<Value>,
    /// Refused: runtime assets.
    #[serde(default)]
    #[schemars(skip)]
    pub assets: Option<Value>,
    /// Refused: a session's files.
    #[serde(default)]
    #[schemars(skip)]
    pub session: Option<Value>,
    /// Refused: early answers; use `Prefer: wait=N`.
    #[serde(default)]
    #[schemars(skip)]
    pub yield_time_ms: Option<Value>,
}

/// Standard input.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// As it stands.
    Text(String),
    /// Standard base64 with padding.
    Base64(String),
}

/// Limits that somebody asks for.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsRequest {
    /// From start to `timed_out`.
    pub timeout_ms: Option<u64>,
    /// Tasks, threads included.
    pub pids: Option<u64>,
    /// Memory, tmpfs included.
    pub memory_bytes: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u64>,
    /// Bytes kept of standard output.
    pub stdout_bytes: Option<u64>,
    /// Bytes kept of standard error.
    pub stderr_bytes: Option<u64>,
}

/// Network that somebody asks for.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetRequest {
    /// The scope; only `none` is given.
    pub scope: crate::term::control::Net,
    /// Refused: names that may be reached.
    #[serde(default)]
    #[schemars(skip)]
    pub allow: Option<Value>,
}

/// The result of a run. A failed command is a result, not an error.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ExecResult {
    /// Name of the run.
    pub exec_id: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Status, with `exited`.
    pub exit_code: Option<u8>,
    /// Number of the signal, with `signaled`.
    pub signal: Option<i32>,
    /// What is kept of standard output.
    pub stdout: String,
    /// What is kept of standard error.
    pub stderr: String,
    /// How both are written: `utf-8` or `base64`.
    pub encoding: &'static str,
    /// Bytes that the command wrote to standard output.
    pub stdout_bytes: u64,
    /// Bytes that the command wrote to standard error.
    pub stderr_bytes: u64,
    /// The hole in `stdout`, if there is one.
    #[schemars(with = "Option<TruncationSchema>")]
    pub stdout_truncated: Option<Truncation>,
    /// The hole in `stderr`, if there is one.
    #[schemars(with = "Option<TruncationSchema>")]
    pub stderr_truncated: Option<Truncation>,
    /// Processes that outlived the command and were killed.
    pub leftovers_killed: u32,
    /// From start to end of the command.
    pub duration_ms: u64,
    /// What it took.
    #[schemars(with = "UsageSchema")]
    pub usage: Usage,
    /// What it was refused, as far as that is observed.
    pub denials: Vec<Denial>,
    /// What became of its writable roots; null where it had none.
    pub commit: Option<Value>,
    /// Digest of its bundle.
    #[schemars(with = "String")]
    pub bundle: Digest,
    /// Protections that were missing.
    #[schemars(with = "EnforcementSchema")]
    pub enforcement: Enforcement,
    /// Its audit records; null without a service.
    pub audit_id: Option<String>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Outcome {
    Exited,
    Signaled,
    TimedOut,
    IdleTimedOut,
    Cancelled,
    OutOfMemory,
    Limit,
    Lost,
}

/// Something that a run was refused.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub struct Denial {
    /// `fs`, `net`, `syscall` or `limit`.
    pub kind: String,
    /// What.
    pub target: String,
    /// By which rule.
    pub rule: String,
    /// What to do.
    pub hint: String,
}

/// Schema of [`Truncation`].
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct TruncationSchema {
    kept_head: u64,
    dropped: u64,
}

/// Schema of [`Usage`].
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct UsageSchema {
    cpu_ms: Option<u64>,
    memory_peak_bytes: Option<u64>,
    pids_peak: Option<u64>,
}

/// Schema of [`Enforcement`].
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct EnforcementSchema {
    gaps: Vec<String>,
}

impl ExecRequest {
    /// Returns the request of a command with everything else as by default.
    pub(crate) fn of(argv: Vec<String>, limits: LimitsRequest) -> Self {
        Self {
            argv,
            base: None,
            cwd: None,
            env: BTreeMap::new(),
            stdin: None,
            limits,
            net: None,
            tty: None,
            files: None,
            commit: None,
            on_failure: None,
            assets: None,
            session: None,
            yield_time_ms: None,
        }
    }
}
