//! Ids of runs and sessions.

use std::fmt;

use casemate_bundles::{ContainerId, IdError};

/// What an id names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdKind {
    /// A command run.
    Run,
    /// A terminal session.
    Session,
    /// A record of the audit.
    Audit,
}

/// An id: a prefix and a `UUIDv7`, so that ids sort by time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunId {
    text: String,
    container: ContainerId,
}

impl RunId {
    /// Makes a new id.
    pub fn new(kind: IdKind) -> Result<Self, IdError> {
        let uuid = uuid::Uuid::now_v7().to_string();
        let prefix = match kind {
            IdKind::Run => "run",
            IdKind::Session => "ses",
            IdKind::Audit => "aud",
        };
        let container = uuid.rsplit('-').next().unwrap_or_default();
        Ok(Self {
            container: ContainerId::parse(container)?,
            text: format!("{prefix}_{uuid}"),
        })
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the name of its sandbox: the last 12 characters.
    pub const fn container(&self) -> &ContainerId {
        &self.container
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
