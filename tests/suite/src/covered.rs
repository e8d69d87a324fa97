//! Which ids the tests cover.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::programs::repository;

/// Ids that the delivered groups consist of, with the group's name.
const DELIVERED: &str = "tests/expected/delivered.tsv";

/// Reads the delivered ids: id and group.
pub fn delivered() -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(repository().join(DELIVERED)).context(DELIVERED)?;
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (id, group) = line
                .split_once('\t')
                .with_context(|| format!("{DELIVERED}: {line}"))?;
            Ok((id.to_owned(), group.to_owned()))
        })
        .collect()
}

/// Every id that stands in a `covers("ID")` of a file of the repository.
pub fn covered() -> Result<BTreeSet<String>> {
    let mut ids = BTreeSet::new();
    for file in tracked(&["*.rs", "*.ts", "*.tsx", "*.mjs", "*.py"])? {
        let Ok(text) = fs::read_to_string(repository().join(&file)) else {
            continue;
        };
        for part in text.split("covers(").skip(1) {
            let inside = part.split(')').next().unwrap_or_default();
            for id in inside.split(',') {
                let id = id.trim().trim_matches(['"', '\'', '`', '[', ']', '&']);
                if id.contains('-') {
                    ids.insert(id.to_owned());
                }
            }
        }
    }
    Ok(ids)
}

/// Files of the repository that match the patterns, also those that are not committed yet.
pub fn tracked(patterns: &[&str]) -> Result<Vec<String>> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "--",
        ])
        .args(patterns)
        .current_dir(repository())
        .output()?;
    if listed.status.success() {
        let text = String::from_utf8(listed.stdout)?;
        return Ok(text.lines().map(ToOwned::to_owned).collect());
    }
    // An unpacked archive has no index.
    let mut found = Vec::new();
    let endings: Vec<&str> = patterns
        .iter()
        .map(|pattern| pattern.trim_start_matches('*'))
        .collect();
    walk(&repository(), &mut |path| {
        let name = path
            .strip_prefix(repository())
            .unwrap_or(path)
            .display()
            .to_string();
        if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(name);
        }
    })?;
    ensure!(!found.is_empty(), "no file matches {patterns:?}");
    Ok(found)
}

fn walk(dir: &Path, visit: &mut impl FnMut(&Path)) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let skipped = name == "target" || name == "node_modules" || name == ".git";
        if entry.file_type()?.is_dir() {
            if !skipped {
                walk(&entry.path(), visit)?;
            }
        } else {
            visit(&entry.path());
        }
    }
    Ok(())
}
