//! The effective configuration: what libcontainer gets instead of the portable `config.json`.
//!
//! The whole list of differences is [`derive`]: the limits are taken out, because the keeper has
//! applied them itself. Nothing else is changed; the result is written beside the bundle and is
//! not part of its digest.

use serde_json::Value;

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
    document
        .get_mut("linux")
        .and_then(Value::as_object_mut)
        .ok_or(EffectiveError::NoLinux)?
        .remove("resources");
    Ok(serde_json::to_vec(&document)?)
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
