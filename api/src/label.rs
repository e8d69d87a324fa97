//! What keepers keep for the service: all that a restarted one knows of living sandboxes.

use serde::{Deserialize, Serialize};

use crate::exec::RunLabel;
use crate::term::SessionLabel;

/// The label of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Label {
    /// A command run.
    Run(RunLabel),
    /// A terminal.
    Session(SessionLabel),
}

impl Label {
    /// Returns the label as the keeper keeps it.
    pub(crate) fn to_value(&self) -> Result<serde_json::Value, serde_json::Error> {
        serde_json::to_value(self)
    }

    /// Parses what a keeper gave back; `None` for a sandbox that is not the service's.
    pub(crate) fn parse(value: serde_json::Value) -> Option<Self> {
        serde_json::from_value(value).ok()
    }
}
