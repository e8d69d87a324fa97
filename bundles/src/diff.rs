//! Differences between two documents, by JSON pointer.

use serde::Serialize;
use serde_json::Value;

/// One difference.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// Only the second document has it.
    Added {
        /// Where (RFC 6901).
        pointer: String,
        /// What.
        value: Value,
    },
    /// Only the first document has it.
    Removed {
        /// Where (RFC 6901).
        pointer: String,
        /// What.
        value: Value,
    },
    /// Both have it with different values.
    Changed {
        /// Where (RFC 6901).
        pointer: String,
        /// In the first.
        before: Value,
        /// In the second.
        after: Value,
    },
}

/// Returns how `after` differs from `before`, in document order.
pub fn diff(before: &Value, after: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    compare(String::new(), before, after, &mut changes);
    changes
}

fn compare(pointer: String, before: &Value, after: &Value, changes: &mut Vec<Change>) {
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let below = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
                compare_entry(below, a.get(key), b.get(key), changes);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for index in 0..a.len().max(b.len()) {
                compare_entry(
                    format!("{pointer}/{index}"),
                    a.get(index),
                    b.get(index),
                    changes,
                );
            }
        }
        _ if before == after => {}
        _ => changes.push(Change::Changed {
            pointer,
            before: before.clone(),
            after: after.clone(),
        }),
    }
}

fn compare_entry(
    pointer: String,
    before: Option<&Value>,
    after: Option<&Value>,
    changes: &mut Vec<Change>,
) {
    match (before, after) {
        (Some(a), Some(b)) => compare(pointer, a, b, changes),
        (None, Some(b)) => changes.push(Change::Added {
            pointer,
            value: b.clone(),
        }),
        (Some(a), None) => changes.push(Change::Removed {
            pointer,
            value: a.clone(),
        }),
        (None, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_each_difference_by_its_pointer() {
        let before = json!({"a": [1, 2], "b/c": {"d": true}, "gone": null});
        let after = json!({"a": [1, 3, 4], "b/c": {"d": false}, "new": 0});
        let changes = diff(&before, &after);
        let pointers: Vec<String> = changes
            .iter()
            .map(|change| match change {
                Change::Added { pointer, .. } => format!("+{pointer}"),
                Change::Removed { pointer, .. } => format!("-{pointer}"),
                Change::Changed { pointer, .. } => format!("~{pointer}"),
            })
            .collect();
        assert_eq!(pointers, ["~/a/1", "+/a/2", "~/b~1c/d", "-/gone", "+/new"]);
        assert_eq!(diff(&before, &before), []);
    }
}
