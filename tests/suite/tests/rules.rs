//! Rules of the workspace itself: arrows between crates, sizes, least versions.
#![expect(
    clippy::indexing_slicing,
    reason = "a panic fails the case, as it should"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use casemate_tests::covered::tracked;
use casemate_tests::programs::repository;
use casemate_tests::{Case, main as suite};
use serde_json::Value;

/// Most lines of a file that is not a test, and of a function in one.
const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 80;

/// What each crate may use directly of ours.
const ARROWS: [(&str, &[&str]); 11] = [
    ("casemate-guard-plan", &[]),
    ("casemate-sys", &[]),
    ("casemate-bundles", &["casemate-guard-plan"]),
    (
        "casemate-protocol",
        &["casemate-bundles", "casemate-guard-plan"],
    ),
    ("casemate-init", &["casemate-guard-plan", "casemate-sys"]),
    (
        "casemate-runtime",
        &[
            "casemate-bundles",
            "casemate-guard-plan",
            "casemate-protocol",
            "casemate-rootfs",
            "casemate-sys",
        ],
    ),
    (
        "casemate-engine",
        &[
            "casemate-bundles",
            "casemate-guard-plan",
            "casemate-protocol",
            "casemate-rootfs",
            "casemate-sys",
        ],
    ),
    ("casemate-rootfs", &["casemate-sys"]),
    ("casemate-registry", &["casemate-rootfs"]),
    ("rootfs-tools", &["casemate-registry", "casemate-rootfs"]),
    (
        "casemate",
        &[
            "casemate-bundles",
            "casemate-engine",
            "casemate-guard-plan",
            "casemate-protocol",
            "casemate-rootfs",
            "casemate-sys",
        ],
    ),
];

/// What must not be anywhere below a crate.
const ABSENT: [(&str, &[&str]); 11] = [
    (
        "casemate-guard-plan",
        &["tokio", "rustix", "nix", "oci-spec", "axum"],
    ),
    ("casemate-sys", &["casemate-bundles", "tokio", "oci-spec"]),
    (
        "casemate-bundles",
        &["tokio", "axum", "hyper", "rustix", "nix"],
    ),
    ("casemate-protocol", &["tokio", "axum", "hyper"]),
    ("casemate-init", &["tokio", "oci-spec", "libcontainer"]),
    ("casemate-runtime", &["tokio", "axum", "hyper", "rusqlite"]),
    (
        "casemate-engine",
        &["axum", "hyper", "rusqlite", "libcontainer"],
    ),
    (
        "casemate-rootfs",
        &[
            "tokio",
            "axum",
            "hyper",
            "ureq",
            "casemate-bundles",
            "libcontainer",
        ],
    ),
    (
        "casemate-registry",
        &["tokio", "hyper", "openssl-sys", "aws-lc-sys"],
    ),
    ("rootfs-tools", &["libcontainer"]),
    ("casemate", &["libcontainer", "libcgroups"]),
];

fn main() -> ExitCode {
    suite(|| {
        Ok(vec![
            Case::new("crates use only what lies below them").run(arrows),
            Case::new("crates are free of what they must not know").run(absent),
            Case::new("files and functions stay readable").run(sizes),
            Case::new("no dependency is older than its last advisory")
                .covers("E-62")
                .run(least_versions),
        ])
    })
}

/// The packages that a crate links, by name, for normal dependencies.
struct Graph {
    names: BTreeMap<String, String>,
    uses: BTreeMap<String, Vec<String>>,
}

impl Graph {
    fn read() -> Result<Self> {
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let output = Command::new("cargo")
            .args(["metadata", "--format-version", "1", "--locked", "--offline"])
            // What a dependency needs elsewhere was not fetched.
            .args(["--filter-platform", &platform])
            .current_dir(repository())
            .output()?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let names = list(&metadata["packages"])
            .iter()
            .map(|package| (text(package, "id"), text(package, "name")))
            .collect();
        let mut uses = BTreeMap::new();
        for node in list(&metadata["resolve"]["nodes"]) {
            let normal = list(&node["deps"])
                .iter()
                .filter(|dep| {
                    list(&dep["dep_kinds"])
                        .iter()
                        .any(|kind| kind["kind"].is_null())
                })
                .map(|dep| text(dep, "pkg"))
                .collect();
            uses.insert(text(&node, "id"), normal);
        }
        Ok(Self { names, uses })
    }

    fn id(&self, name: &str) -> Result<&str> {
        let found = self
            .names
            .iter()
            .find(|(id, n)| n.as_str() == name && id.contains("path+file"));
        found
            .map(|(id, _)| id.as_str())
            .with_context(|| format!("no crate {name}"))
    }

    fn direct(&self, name: &str) -> Result<BTreeSet<&str>> {
        let deps = self.uses.get(self.id(name)?).context("no node")?;
        Ok(deps
            .iter()
            .filter_map(|id| self.names.get(id))
            .map(String::as_str)
            .collect())
    }

    fn below(&self, name: &str) -> Result<BTreeSet<&str>> {
        let mut seen = BTreeSet::new();
        let mut open = vec![self.id(name)?];
        while let Some(id) = open.pop() {
            for dep in self.uses.get(id).into_iter().flatten() {
                if seen.insert(dep.as_str()) {
                    open.push(dep);
                }
            }
        }
        Ok(seen
            .iter()
            .filter_map(|id| self.names.get(*id))
            .map(String::as_str)
            .collect())
    }
}

fn arrows() -> Result<()> {
    let graph = Graph::read()?;
    for (name, allowed) in ARROWS {
        let ours = graph.direct(name)?;
        let ours = ours
            .iter()
            .filter(|dep| ARROWS.iter().any(|(ours, _)| ours == *dep));
        let wrong: Vec<_> = ours.filter(|dep| !allowed.contains(dep)).collect();
        ensure!(wrong.is_empty(), "{name} must not use {wrong:?}");
    }
    Ok(())
}

fn absent() -> Result<()> {
    let graph = Graph::read()?;
    for (name, banned) in ABSENT {
        let below = graph.below(name)?;
        let wrong: Vec<_> = banned.iter().filter(|dep| below.contains(*dep)).collect();
        ensure!(wrong.is_empty(), "{name} must not link {wrong:?}");
    }
    let below = graph.below("casemate-runtime")?;
    ensure!(
        below.contains("libcontainer"),
        "the graph misses what the runtime is made of"
    );
    Ok(())
}

fn rows(name: &str) -> Result<Vec<(String, String, String)>> {
    let text = fs::read_to_string(repository().join("tests/expected").join(name))?;
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let mut fields = line.split('\t').map(ToOwned::to_owned);
            let row = (fields.next(), fields.next(), fields.next());
            let (Some(a), Some(b), Some(c)) = row else {
                anyhow::bail!("{name}: {line:?} has not three fields");
            };
            Ok((a, b, c))
        })
        .collect()
}

fn sizes() -> Result<()> {
    let allowed = rows("long-functions.tsv")?;
    let mut wrong = Vec::new();
    for file in tracked(&["*.rs"])? {
        let is_test =
            file.contains("/tests/") || file.starts_with("tests/") || file.ends_with("tests.rs");
        let Ok(text) = fs::read_to_string(repository().join(&file)) else {
            continue;
        };
        let production = text
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        let count = production.lines().count();
        if count > FILE_LINES && !is_test {
            wrong.push(format!("{file} has {count} lines"));
        }
        for (function, lines) in functions(production) {
            let excused = allowed
                .iter()
                .any(|(path, name, _)| (path, name) == (&file, &function));
            if lines > FUNCTION_LINES && !is_test && !excused {
                wrong.push(format!("{file}: {function} has {lines} lines"));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Functions with their lengths, as rustfmt lays them out: the closing brace stands alone at the
/// indentation of the first line.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let Some(position) = line.find("fn ") else {
            continue;
        };
        let before = line[indent..position].trim();
        let words = [
            "pub",
            "pub(crate)",
            "pub(super)",
            "const",
            "async",
            "unsafe",
            "extern",
            "\"C\"",
        ];
        if !before.split_whitespace().all(|word| words.contains(&word)) {
            continue;
        }
        let name = line[position + 3..]
            .split(['(', '<'])
            .next()
            .unwrap_or_default();
        let end = format!("{}}}", &line[..indent]);
        if let Some(length) = lines[start..].iter().position(|line| **line == end) {
            found.push((name.to_owned(), length + 1));
        }
    }
    found
}

fn least_versions() -> Result<()> {
    let lock = fs::read_to_string(repository().join("Cargo.lock"))?;
    let least = rows("advisories.tsv")?;
    let mut wrong = Vec::new();
    let mut seen = 0;
    for package in lock.split("[[package]]").skip(1) {
        let field = |key: &str| {
            let line = package
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{key} = ")));
            line.map(|text| text.trim_matches('"').to_owned())
                .unwrap_or_default()
        };
        let (name, version) = (field("name"), field("version"));
        for (_, minimum, advisory) in least
            .iter()
            .filter(|(crate_name, _, _)| *crate_name == name)
        {
            seen += 1;
            if number(&version) < number(minimum) {
                wrong.push(format!(
                    "{name} {version} is older than {minimum}: {advisory}"
                ));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(
        seen >= 4,
        "only {seen} crates of the list are in the lock file"
    );
    Ok(())
}

fn number(version: &str) -> Vec<u64> {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    core.split('.')
        .map(|part| part.parse().unwrap_or(0))
        .collect()
}
