//! What a mutation is, and how it is made and sealed again.

use casemate_bundles::{Bundle, Digest, Rule};
use serde_json::{Value, json};

/// Which document a mutation changes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum In {
    Config,
    Guard,
    Stage,
}

pub(crate) type Change = fn(&mut Value);

/// Case, what is wrong, where, how, and the rule that says so.
pub(crate) type Mutation = (&'static str, &'static str, In, Change, Rule);

pub(crate) const R: &str = "terminal-restricted-none";
pub(crate) const P: &str = "process-none";
pub(crate) const A: &str = "terminal-admin-nesting-host";

pub(crate) fn mount<'a>(config: &'a mut Value, destination: &str) -> &'a mut Value {
    config["mounts"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .find(|mount| mount["destination"] == destination)
        .unwrap()
}

/// The first step of that action, or with that value.
pub(crate) fn step<'a>(stage: &'a mut Value, key: &str, value: &str) -> &'a mut Value {
    stage["steps"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .flat_map(|step| step.as_object_mut().unwrap())
        .find(|(action, step)| match key {
            "action" => *action == value,
            _ => step[key] == value,
        })
        .unwrap()
        .1
}

pub(crate) fn push(list: &mut Value, item: Value) {
    list.as_array_mut().unwrap().push(item);
}

pub(crate) fn rule<'a>(guard: &'a mut Value, path: &str) -> &'a mut Value {
    guard["landlock"]["rules"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .find(|rule| rule["path"] == path)
        .unwrap()
}

pub(crate) fn mutate(bundle: &Bundle, which: In, change: Change) -> Bundle {
    let mut documents = [&bundle.config, &bundle.guard, &bundle.stage]
        .map(|bytes| serde_json::from_slice::<Value>(bytes).unwrap());
    match which {
        In::Config => change(&mut documents[0]),
        In::Guard => {
            change(&mut documents[1]);
            // The annotation goes along: otherwise only it would be noticed.
            let digest = Digest::of(&canonical(&documents[1]));
            documents[0]["annotations"]["io.casemate.guard"] = json!(digest.as_str());
        }
        In::Stage => change(&mut documents[2]),
    }
    let [config, guard, stage] = documents.map(|document| canonical(&document));
    seal(config, guard, stage, bundle)
}

pub(crate) fn seal(config: Vec<u8>, guard: Vec<u8>, stage: Vec<u8>, like: &Bundle) -> Bundle {
    let mut all = Vec::new();
    for document in [&config, &guard, &stage] {
        all.extend((document.len() as u64).to_be_bytes());
        all.extend(document);
    }
    Bundle {
        digest: Digest::of(&all),
        enforcement: like.enforcement.clone(),
        config,
        guard,
        stage,
    }
}

/// Sorted keys, whatever the map of `serde_json` does.
fn canonical(value: &Value) -> Vec<u8> {
    fn sorted(value: &Value) -> String {
        match value {
            Value::Object(map) => {
                let entries: std::collections::BTreeMap<_, _> = map.iter().collect();
                let parts: Vec<String> = entries
                    .into_iter()
                    .map(|(key, value)| format!("{}:{}", json!(key), sorted(value)))
                    .collect();
                format!("{{{}}}", parts.join(","))
            }
            Value::Array(list) => {
                let parts: Vec<String> = list.iter().map(sorted).collect();
                format!("[{}]", parts.join(","))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
        }
    }
    sorted(value).into_bytes()
}
