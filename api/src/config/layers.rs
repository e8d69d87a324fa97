//! The sources of the configuration, laid over each other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::{ConfigError, DEFAULT_FILE, Origin, Shown, Sources};

/// How a value of the environment or a flag becomes one of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Switch,
    List,
}

/// Every key, with its kind and its default as TOML; an empty default is no value.
const KEYS: [(&str, Kind, &str); 17] = [
    ("root", Kind::Text, "\"/var/lib/casemate\""),
    ("run_dir", Kind::Text, "\"/run/casemate\""),
    ("workspace", Kind::Text, ""),
    ("listen", Kind::Text, "\"127.0.0.1:8642\""),
    ("allowed_origins", Kind::List, "[]"),
    ("allowed_hosts", Kind::List, "[]"),
    ("service_user", Kind::Text, "\"casemate\""),
    ("ring_bytes", Kind::Number, "1048576"),
    ("grace_s", Kind::Number, "300"),
    ("idle_s", Kind::Number, "86400"),
    ("base", Kind::Text, ""),
    ("extra_ro", Kind::List, "[]"),
    ("terminal.nesting", Kind::Switch, "true"),
    ("ids.first", Kind::Number, ""),
    ("ids.slices", Kind::Number, "4096"),
    ("log.format", Kind::Text, "\"json\""),
    ("log.level", Kind::Text, "\"info\""),
];

/// The value of each key that has one, from the strongest source.
pub(super) struct Layers {
    values: BTreeMap<&'static str, (Value, Origin)>,
}

impl Layers {
    pub(super) fn read(sources: &Sources) -> Result<Self, ConfigError> {
        let file = File::read(sources.file.as_deref())?;
        let mut values = BTreeMap::new();
        for (key, kind, default) in KEYS {
            let variable = format!("CASEMATE_{}", key.replace('.', "_").to_uppercase());
            let (value, origin) = if let Some(text) = sources.flags.get(key) {
                (parse(key, kind, text, &Origin::Flag)?, Origin::Flag)
            } else if let Some(text) = sources.environment.get(&variable) {
                let origin = Origin::Variable(variable);
                (parse(key, kind, text, &origin)?, origin)
            } else if let Some(found) = file.get(key) {
                found
            } else if default.is_empty() {
                continue;
            } else {
                (toml_value(key, default)?, Origin::Default)
            };
            values.insert(key, (value, origin));
        }
        Ok(Self { values })
    }

    pub(super) fn value<T: DeserializeOwned>(
        &self,
        key: &'static str,
    ) -> Result<Option<T>, ConfigError> {
        let Some((value, origin)) = self.values.get(key) else {
            return Ok(None);
        };
        value
            .clone()
            .try_into()
            .map(Some)
            .map_err(|error: toml::de::Error| ConfigError::Value {
                key,
                origin: origin.clone(),
                reason: one_line(error.message()),
            })
    }

    pub(super) fn required<T: DeserializeOwned>(
        &self,
        key: &'static str,
    ) -> Result<T, ConfigError> {
        self.value(key)?.ok_or_else(|| ConfigError::Value {
            key,
            origin: Origin::Default,
            reason: "a value is needed".to_owned(),
        })
    }

    pub(super) fn shown(&self) -> Vec<Shown> {
        let show = |key: &'static str| match self.values.get(key) {
            Some((value, origin)) => Shown {
                key,
                value: value.to_string(),
                origin: origin.clone(),
            },
            None => Shown {
                key,
                value: String::new(),
                origin: Origin::Default,
            },
        };
        KEYS.into_iter().map(|(key, _, _)| show(key)).collect()
    }
}

/// The configuration file with its known keys, flattened.
struct File {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

impl File {
    fn read(named: Option<&Path>) -> Result<Self, ConfigError> {
        let path = named.unwrap_or_else(|| Path::new(DEFAULT_FILE)).to_owned();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                String::new()
            }
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        let table: Table = match text.parse() {
            Ok(table) => table,
            Err(error) => {
                let error: toml::de::Error = error;
                let line = error.span().map_or(1, |span| {
                    1 + text
                        .bytes()
                        .take(span.start)
                        .filter(|b| *b == b'\n')
                        .count()
                });
                let reason = format!("line {line}: {}", one_line(error.message()));
                return Err(ConfigError::Syntax { path, reason });
            }
        };
        let mut values = BTreeMap::new();
        flatten("", table, &mut values);
        if let Some(key) = values
            .keys()
            .find(|key| !KEYS.iter().any(|(known, _, _)| known == key))
        {
            return Err(ConfigError::UnknownKey {
                path,
                key: key.clone(),
            });
        }
        Ok(Self { path, values })
    }

    fn get(&self, key: &str) -> Option<(Value, Origin)> {
        let value = self.values.get(key)?;
        Some((value.clone(), Origin::File(self.path.clone())))
    }
}

fn flatten(prefix: &str, table: Table, into: &mut BTreeMap<String, Value>) {
    for (key, value) in table {
        let key = format!("{prefix}{key}");
        if let Value::Table(below) = value {
            if below.is_empty() {
                into.insert(key, Value::Table(below));
            } else {
                flatten(&format!("{key}."), below, into);
            }
        } else {
            into.insert(key, value);
        }
    }
}

/// Turns the text of a flag or a variable into a value; a list is separated by commas.
fn parse(key: &'static str, kind: Kind, text: &str, origin: &Origin) -> Result<Value, ConfigError> {
    let refuse = |reason: &str| ConfigError::Value {
        key,
        origin: origin.clone(),
        reason: reason.to_owned(),
    };
    match kind {
        Kind::Text => Ok(Value::String(text.to_owned())),
        Kind::Number => text
            .parse()
            .map(Value::Integer)
            .map_err(|_error| refuse("a whole number is needed")),
        Kind::Switch => text
            .parse()
            .map(Value::Boolean)
            .map_err(|_error| refuse("true or false is needed")),
        Kind::List => Ok(Value::Array(
            text.split(',')
                .filter(|part| !part.is_empty())
                .map(|part| Value::String(part.to_owned()))
                .collect(),
        )),
    }
}

/// Parses a default.
fn toml_value(key: &'static str, text: &str) -> Result<Value, ConfigError> {
    text.parse()
        .map_err(|error: toml::de::Error| ConfigError::Value {
            key,
            origin: Origin::Default,
            reason: one_line(error.message()),
        })
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
