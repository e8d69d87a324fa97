//! `/proc/self/mountinfo`, split into what a bundle decides and what differs between two runs.

use std::fs;

use serde::Serialize;

/// A mount as `proc_pid_mountinfo(5)` shows it, without ids.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Mount {
    pub(crate) target: String,
    root: String,
    flags: String,
    propagation: Vec<String>,
    fs_type: String,
    source: String,
    super_options: String,
}

/// Returns each mount in order, and beside it the ids and device numbers.
pub(crate) fn describe() -> (Vec<Mount>, Vec<String>) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(parse).unzip()
}

/// Returns the mount points, innermost last.
pub(crate) fn targets() -> Vec<String> {
    describe().0.into_iter().map(|mount| mount.target).collect()
}

fn parse(line: &str) -> Option<(Mount, String)> {
    let (fixed, variable) = line.split_once(" - ")?;
    let mut fields = fixed.split(' ');
    let ids: Vec<&str> = fields.by_ref().take(3).collect();
    let root = fields.next()?.to_owned();
    let target = fields.next()?.replace("\\040", " ");
    let flags = fields.next()?.to_owned();
    // Peer groups have numbers; only their kind is decided by a bundle.
    let propagation = fields
        .map(|tag| tag.split_once(':').map_or(tag, |(kind, _)| kind).to_owned())
        .collect();
    let mut rest = variable.splitn(3, ' ');
    let mount = Mount {
        target,
        root,
        flags,
        propagation,
        fs_type: rest.next()?.to_owned(),
        source: rest.next()?.to_owned(),
        super_options: rest.next()?.to_owned(),
    };
    Some((mount, ids.join(" ")))
}
