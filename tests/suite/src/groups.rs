//! Control groups of one suite, so that engines make theirs where nobody else does.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Hierarchies in which an engine makes groups.
const HIERARCHIES: [&str; 5] = ["unified", "memory", "pids", "cpu", "freezer"];

/// The groups; at the end this process leaves them and they are removed.
#[derive(Debug)]
pub struct OwnGroups(Vec<PathBuf>);

impl OwnGroups {
    /// Moves this process into new groups below those that it is in. On a host with version 2
    /// alone the one hierarchy is used.
    pub fn enter() -> Result<Self> {
        let mut made = Self(Vec::new());
        for line in fs::read_to_string("/proc/self/cgroup")?.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(names), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            let name = if names.is_empty() { "unified" } else { names };
            let mount = Path::new("/sys/fs/cgroup").join(name);
            let mount = match (name, mount.is_dir()) {
                ("unified", false) => PathBuf::from("/sys/fs/cgroup"),
                (_, true) if HIERARCHIES.contains(&name) => mount,
                _ => continue,
            };
            let own = mount.join(path.trim_start_matches('/'));
            let group = own.join(format!("cm-suite-{}", std::process::id()));
            fs::create_dir(&group).with_context(|| group.display().to_string())?;
            made.0.push(group.clone());
            fs::write(group.join("cgroup.procs"), std::process::id().to_string())?;
        }
        Ok(made)
    }
}

impl Drop for OwnGroups {
    fn drop(&mut self) {
        for group in &self.0 {
            if let Some(parent) = group.parent() {
                // A group that cannot be left cannot be removed either; the next line shows it.
                let _left = fs::write(parent.join("cgroup.procs"), std::process::id().to_string());
            }
            remove(group);
        }
    }
}

fn remove(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    if let Err(error) = fs::remove_dir(group) {
        crate::case::report(&format!("{} is left: {error}", group.display()));
    }
}
