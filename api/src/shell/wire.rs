//! `POST /shell/run` on the wire: camelCase, unknown fields refused.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exec::wire::Stdin;

/// A command of the Shell. The vector is never one string: there is nothing that would be parsed.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShellRequest {
    /// Verb, noun and arguments.
    pub argv: Vec<String>,
    /// Form of the data; over HTTP it is always JSON.
    #[serde(default)]
    pub output_mode: Option<OutputMode>,
    /// Working directory, for commands that have one.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Variables, for commands that take them.
    #[serde(default)]
    pub environment: Option<BTreeMap<String, String>>,
    /// Input, for commands that take it.
    #[serde(default)]
    pub stdin: Option<Stdin>,
}

/// Form of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum OutputMode {
    Json,
    Human,
}

/// What a command gives.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShellOutput {
    /// 0 done, 1 failed, 2 usage or unknown, 5 denied, 124 timed out, 130 cancelled.
    pub exit_code: u8,
    /// By the command's schema; null where it gives nothing.
    pub data: Value,
    /// Its audit record.
    pub audit_id: String,
    /// Why it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denial: Option<Denial>,
    /// What else is to be said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<Diagnostic>,
}

/// Why a command was not done.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Denial {
    /// Its audit record.
    pub audit_id: String,
    /// Who asked.
    pub subject: String,
    /// What would have been used; null for an unknown command.
    pub capability: Option<&'static str>,
    /// Always `default` so far.
    pub environment: &'static str,
    /// `deny`.
    pub decision: &'static str,
    /// Why.
    pub reasons: Vec<Reason>,
    /// What to do.
    pub suggestions: Vec<String>,
}

/// One reason.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Reason {
    /// From a closed list.
    pub code: &'static str,
    /// For people.
    pub detail: String,
}

/// Something to be said.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Diagnostic {
    /// For programs.
    pub code: String,
    /// For people.
    pub message: String,
}
