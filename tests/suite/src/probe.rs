//! The probe's document.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Keys that differ between two runs of the same bundle.
const VARYING: [&str; 5] = [
    "pids",
    "mount_ids",
    "cgroup_path",
    "start_time",
    "session_id",
];

/// What the probe printed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Document {
    /// What the payload sees of itself.
    #[serde(default)]
    pub facts: Value,
    /// The answer to each number in each call form.
    #[serde(default)]
    pub syscalls: Option<Syscalls>,
    /// The answer to calls judged by an argument.
    #[serde(default)]
    pub cases: Option<BTreeMap<String, String>>,
    /// What each technique achieved.
    #[serde(default)]
    pub techniques: Option<BTreeMap<String, Row>>,
    /// What differs between two runs.
    #[serde(flatten)]
    pub varying: BTreeMap<String, Value>,
}

/// Answers by number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Syscalls {
    /// Through `syscall`.
    pub native: Vec<String>,
    /// Through `syscall` with bit 30.
    pub x32: Vec<String>,
    /// Through `int 0x80`.
    pub i386: Vec<String>,
    /// What was not tried, with reasons.
    pub skipped: Value,
}

/// What one technique achieved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// `REVEALED`, `reached`, or why not.
    pub read: String,
    /// `WRITTEN`, or why not.
    pub write: String,
    /// How its calls ended.
    pub steps: BTreeSet<String>,
}

impl Row {
    /// Whether a border was crossed.
    pub fn broke_out(&self) -> bool {
        self.read == "REVEALED" || self.write == "WRITTEN"
    }
}

impl Document {
    /// Reads what the probe printed.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes)
            .with_context(|| format!("probe said {:.300}", String::from_utf8_lossy(bytes)))
    }

    /// The techniques.
    pub fn rows(&self) -> Result<&BTreeMap<String, Row>> {
        let rows = self
            .techniques
            .as_ref()
            .context("the probe tried no technique")?;
        ensure!(
            rows.len() > 100,
            "the probe tried only {} techniques",
            rows.len()
        );
        Ok(rows)
    }

    /// Names of the techniques for which `test` holds.
    pub fn names(&self, test: impl Fn(&Row) -> bool) -> Result<BTreeSet<String>> {
        let rows = self.rows()?;
        Ok(rows
            .iter()
            .filter(|(_, row)| test(row))
            .map(|(name, _)| name.clone())
            .collect())
    }

    /// The steps of one technique.
    pub fn steps(&self, name: &str) -> Result<&BTreeSet<String>> {
        Ok(&self
            .rows()?
            .get(name)
            .with_context(|| format!("no technique {name}"))?
            .steps)
    }

    /// What has to be equal under two runtimes.
    pub fn comparable(&self) -> Result<Value> {
        let mut all = serde_json::to_value(self)?;
        if let Some(map) = all.as_object_mut() {
            for key in VARYING {
                map.remove(key);
            }
        }
        Ok(all)
    }

    /// One fact as text, by JSON pointer.
    pub fn fact(&self, pointer: &str) -> Result<String> {
        let value = self
            .facts
            .pointer(pointer)
            .with_context(|| format!("no fact {pointer}"))?;
        Ok(value
            .as_str()
            .map_or_else(|| value.to_string(), ToOwned::to_owned))
    }
}

/// Where two documents differ, as `pointer: left | right`, at most twenty.
pub fn differences(left: &Value, right: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", left, right, &mut found);
    found.truncate(20);
    found
}

fn compare(at: &str, left: &Value, right: &Value, found: &mut Vec<String>) {
    match (left, right) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let (a, b) = (a.get(key), b.get(key));
                let null = Value::Null;
                compare(
                    &format!("{at}/{key}"),
                    a.unwrap_or(&null),
                    b.unwrap_or(&null),
                    found,
                );
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{at}/{index}"), a, b, found);
            }
        }
        _ if left == right => {}
        _ => found.push(format!("{at}: {left} | {right}")),
    }
}
