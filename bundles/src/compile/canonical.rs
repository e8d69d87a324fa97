//! Canonical JSON: sorted keys at every level, no white space, same value, same bytes.

use serde::Serialize;
use serde_json::Value;

use crate::Digest;

/// Writes a document.
///
/// Keys are sorted here and not by `serde_json`'s map, whose order depends on a feature that any
/// crate of the workspace may switch on.
pub(super) fn to_bytes<T: Serialize>(document: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(8192);
    match serde_json::to_value(document) {
        Ok(value) => write(&value, &mut out),
        // The documents are structs with text keys, which always become a value; an empty document
        // is refused by every reader.
        Err(_impossible) => out.clear(),
    }
    out
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _value)| *key);
            out.push(b'{');
            for (index, (key, value)) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_scalar(key, out);
                out.push(b':');
                write(value, out);
            }
            out.push(b'}');
        }
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            write_scalar(value, out);
        }
    }
}

fn write_scalar<T: Serialize>(scalar: T, out: &mut Vec<u8>) {
    // Writing a text, a number or a truth value to memory cannot fail.
    let _written = serde_json::to_writer(out, &scalar);
}

/// Returns the digest over the three documents, each preceded by its length.
pub(super) fn bundle_digest(config: &[u8], guard: &[u8], stage: &[u8]) -> Digest {
    let mut all = Vec::with_capacity(config.len() + guard.len() + stage.len() + 24);
    for document in [config, guard, stage] {
        all.extend_from_slice(&(document.len() as u64).to_be_bytes());
        all.extend_from_slice(document);
    }
    Digest::of(&all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_sorted_at_every_level() {
        let value = json!({"b": [{"z": 1, "a": null}], "a": "\u{e9}\n", "B": true});
        assert_eq!(
            String::from_utf8(to_bytes(&value)).unwrap(),
            r#"{"B":true,"a":"é\n","b":[{"a":null,"z":1}]}"#
        );
    }

    #[test]
    fn lengths_keep_documents_apart() {
        assert_ne!(
            bundle_digest(b"ab", b"c", b""),
            bundle_digest(b"a", b"bc", b"")
        );
    }
}
