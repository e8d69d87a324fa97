//! The effective configuration: what libcontainer gets instead of the portable `config.json`.
//!
//! The whole list of differences is [`derive`]: the limits are taken out, because the keeper has
//! applied them itself. The command line names another group besides ([`derive_in`]). Nothing else
//! is changed; the result is written beside the bundle and is
//! not part of its digest.

use std::path::Path;

use serde_json::{Map, Value};

/// File name beside `config.json`.
pub(crate) const FILE: &str = "effective.json";

/// Why a configuration cannot be derived.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EffectiveError {
    /// It is not JSON.
    #[error("the bundle's configuration is not JSON")]
    Parse(#[from] serde_json::Error),
    /// It has no `linux` object.
    #[error("the bundle's configuration has no linux section")]
    NoLinux,
}

/// Returns the effective configuration of a bundle whose limits the keeper applies.
pub(crate) fn derive(config: &[u8]) -> Result<Vec<u8>, EffectiveError> {
    let mut document: Value = serde_json::from_slice(config)?;
    linux(&mut document)?.remove("resources");
    Ok(serde_json::to_vec(&document)?)
}

/// The same for a bundle that was not placed by a spawner: its group is `group`, a path below the
/// version 2 hierarchy's root.
pub(crate) fn derive_in(config: &[u8], group: &Path) -> Result<Vec<u8>, EffectiveError> {
    let mut document: Value = serde_json::from_slice(config)?;
    let linux = linux(&mut document)?;
    linux.remove("resources");
    linux.insert("cgroupsPath".to_owned(), group.to_string_lossy().into());
    Ok(serde_json::to_vec(&document)?)
}

fn linux(document: &mut Value) -> Result<&mut Map<String, Value>, EffectiveError> {
    document
        .get_mut("linux")
        .and_then(Value::as_object_mut)
        .ok_or(EffectiveError::NoLinux)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_limits_are_taken_out() {
        let config = br#"{"linux":{"namespaces":[{"type":"network"}],"resources":{"pids":{"limit":4}},"seccomp":{}},"process":{"args":["a"]}}"#;
        let effective: Value = serde_json::from_slice(&derive(config).unwrap()).unwrap();
        let mut expected: Value = serde_json::from_slice(config).unwrap();
        expected["linux"]
            .as_object_mut()
            .unwrap()
            .remove("resources");
        assert_eq!(effective, expected);
    }

    #[test]
    fn a_configuration_without_linux_is_refused() {
        assert!(matches!(derive(b"{}"), Err(EffectiveError::NoLinux)));
        assert!(matches!(derive(b"{"), Err(EffectiveError::Parse(_))));
    }
}
