//! Counts of what a run may leave behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;

/// What is counted on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Lines of mountinfo of the suite's mount namespace.
    pub mounts: usize,
    /// Distinct namespaces of the processes that belong to the suite's world.
    pub namespaces: usize,
    /// Directories below cgroups of the engine.
    pub cgroups: usize,
    /// Processes whose command line names the world, and their descendants' groups.
    pub processes: usize,
}

/// Counts what belongs to the run directory of a world.
pub fn count(run_dir: &Path) -> Result<Counts> {
    let own = own_processes(run_dir);
    let mut namespaces = BTreeSet::new();
    for pid in &own {
        for kind in ["mnt", "user", "pid", "net", "ipc", "uts", "cgroup"] {
            if let Ok(link) = fs::read_link(format!("/proc/{pid}/ns/{kind}")) {
                namespaces.insert(link);
            }
        }
    }
    Ok(Counts {
        mounts: fs::read_to_string("/proc/self/mountinfo")?.lines().count(),
        namespaces: namespaces.len(),
        cgroups: cgroups().len(),
        processes: own.len(),
    })
}

/// Open descriptors of a process.
pub fn descriptors(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Child processes of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}

/// Directories that engines made below this process's own cgroups, in every hierarchy.
pub fn cgroups() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in fs::read_to_string("/proc/self/cgroup")
        .unwrap_or_default()
        .lines()
    {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(names), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let hierarchy = match names {
            "" => "unified",
            _ => names.trim_start_matches("name="),
        };
        let own = Path::new("/sys/fs/cgroup").join(hierarchy);
        directories(
            &own.join(path.trim_start_matches('/')).join("casemate"),
            &mut found,
        );
    }
    found
}

fn directories(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            directories(&entry.path(), found);
            found.push(entry.path());
        }
    }
}

/// Processes that were started with the world's run directory, and everything below them.
fn own_processes(run_dir: &Path) -> BTreeSet<u32> {
    let needle = run_dir.display().to_string();
    let mut own = BTreeSet::new();
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&arguments).contains(&needle) {
            own.insert(pid);
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1));
        parents.push((
            pid,
            parent
                .and_then(|text| text.parse::<u32>().ok())
                .unwrap_or(0),
        ));
    }
    loop {
        let more: Vec<u32> = parents
            .iter()
            .filter(|(pid, parent)| own.contains(parent) && !own.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return own;
        }
        own.extend(more);
    }
}
