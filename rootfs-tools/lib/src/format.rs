//! Format version and feature flags of what is on disk.
//!
//! The three classes are ext4's: a reader that does not know a `compat` feature may read and
//! write, one that does not know a `ro_compat` feature may only read, one that does not know an
//! `incompat` feature must not touch anything.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The format that this version writes.
const VERSION: u32 = 1;

/// What is on disk is not for this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Another format altogether.
    #[error("its format is {0}, this version knows {VERSION}; use a newer version")]
    Version(u32),
    /// Features that change the meaning of what is there.
    #[error("it needs features that this version does not know: {}; use a newer version", .0.join(", "))]
    Incompatible(Vec<String>),
    /// Features that a writer must know.
    #[error("writing needs features that this version does not know: {}; use a newer version", .0.join(", "))]
    WriteNeeds(Vec<String>),
}

/// What this version may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    /// The features that forbid to write.
    ReadOnly(Vec<String>),
}

/// Head of each document of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Format {
    #[serde(rename = "format")]
    version: u32,
    #[serde(default)]
    compat: BTreeSet<String>,
    #[serde(default)]
    ro_compat: BTreeSet<String>,
    #[serde(default)]
    incompat: BTreeSet<String>,
}

impl Format {
    /// Returns what this version writes: no feature yet.
    pub(crate) fn current() -> Self {
        Self {
            version: VERSION,
            compat: BTreeSet::new(),
            ro_compat: BTreeSet::new(),
            incompat: BTreeSet::new(),
        }
    }

    /// Decides what this version, which knows no feature, may do.
    pub(crate) fn access(&self) -> Result<Access, FormatError> {
        if self.version != VERSION {
            return Err(FormatError::Version(self.version));
        }
        if !self.incompat.is_empty() {
            return Err(FormatError::Incompatible(
                self.incompat.iter().cloned().collect(),
            ));
        }
        if !self.ro_compat.is_empty() {
            return Ok(Access::ReadOnly(self.ro_compat.iter().cloned().collect()));
        }
        Ok(Access::ReadWrite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_feature_limits_by_its_class() {
        let access = |text: &str| serde_json::from_str::<Format>(text).unwrap().access();
        assert_eq!(
            access(r#"{"format":1,"compat":["x"]}"#),
            Ok(Access::ReadWrite)
        );
        assert_eq!(
            access(r#"{"format":1,"ro_compat":["x"]}"#),
            Ok(Access::ReadOnly(vec!["x".to_owned()]))
        );
        assert_eq!(
            access(r#"{"format":1,"ro_compat":["x"],"incompat":["y"]}"#),
            Err(FormatError::Incompatible(vec!["y".to_owned()]))
        );
        assert_eq!(access(r#"{"format":2}"#), Err(FormatError::Version(2)));
    }
}
