//! What a sandbox has left behind; nothing, where all is well.

use std::fs;
use std::path::Path;

use casemate_bundles::{ContainerId, HostPath};

/// Deepest cgroup that is looked into.
const DEPTH: usize = 8;

/// Looks for everything that carries the sandbox's name.
pub(super) fn find(run_dir: &HostPath, id: &ContainerId) -> Vec<String> {
    let mut left = Vec::new();
    if fs::symlink_metadata(Path::new(run_dir.as_str()).join(id.as_str())).is_ok() {
        left.push("its directory".to_owned());
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let count = mounts
        .lines()
        .filter(|line| line.contains(id.as_str()))
        .count();
    if count > 0 {
        left.push(format!("{count} mounts"));
    }
    let groups = cgroups(Path::new("/sys/fs/cgroup"), id, DEPTH);
    if groups > 0 {
        left.push(format!("{groups} cgroups"));
    }
    let processes = processes(id);
    if processes > 0 {
        left.push(format!("{processes} processes"));
    }
    left
}

fn cgroups(dir: &Path, id: &ContainerId, depth: usize) -> usize {
    // A cgroup that vanishes while it is looked at is none that was left.
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| {
            let own = usize::from(entry.file_name().to_string_lossy().contains(id.as_str()));
            let below = if depth > 0 {
                cgroups(&entry.path(), id, depth - 1)
            } else {
                0
            };
            own + below
        })
        .sum()
}

fn processes(id: &ContainerId) -> usize {
    let Ok(entries) = fs::read_dir("/proc") else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_of(path, id))
        .count()
}

fn is_of(process: &Path, id: &ContainerId) -> bool {
    fs::read_to_string(process.join("cgroup")).is_ok_and(|groups| groups.contains(id.as_str()))
}
