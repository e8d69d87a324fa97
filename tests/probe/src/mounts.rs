//! `/proc/self/mountinfo`, split into what a bundle decides and what differs between two runs.

use std::fs;

use serde::Serialize;

/// A mount as `proc_pid_mountinfo(5)` shows it, without ids.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Mount {
    pub(crate) target: String,
    flags: String,
    propagation: Vec<String>,
    fs_type: String,
    source: String,
    super_options: String,
}

/// Returns each mount by target, those on one target in their order, and beside it the ids and
/// device numbers. Runtimes make devices in an order of their own.
pub(crate) fn describe() -> (Vec<Mount>, Vec<String>) {
    let mut all = table();
    all.sort_by(|(a, _), (b, _)| a.target.cmp(&b.target));
    all.into_iter().unzip()
}

fn table() -> Vec<(Mount, String)> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(parse).collect()
}

/// Returns the mount points, innermost last.
pub(crate) fn targets() -> Vec<String> {
    table().into_iter().map(|(mount, _)| mount.target).collect()
}

fn parse(line: &str) -> Option<(Mount, String)> {
    let (fixed, variable) = line.split_once(" - ")?;
    let mut fields = fixed.split(' ');
    let mut ids: Vec<&str> = fields.by_ref().take(3).collect();
    // A path on the host: where the stage lies.
    ids.push(fields.next()?);
    let target = fields.next()?.replace("\\040", " ");
    let flags = fields.next()?.to_owned();
    // A slave has a master only as long as somebody keeps the outer mount namespace; and peer
    // groups have numbers.
    let (varying, decided): (Vec<&str>, Vec<&str>) =
        fields.partition(|tag| tag.starts_with("master:"));
    ids.extend(varying);
    let propagation = decided
        .iter()
        .map(|tag| {
            tag.split_once(':')
                .map_or(*tag, |(kind, _)| kind)
                .to_owned()
        })
        .collect();
    let mut rest = variable.splitn(3, ' ');
    let (fs_type, source) = (rest.next()?.to_owned(), rest.next()?.to_owned());
    // Owners of the sandbox's slice and descriptors of whoever mounted the root are numbers too.
    let (varying, decided): (Vec<&str>, Vec<&str>) = rest.next()?.split(',').partition(|option| {
        ["uid=", "gid=", "lowerdir=", "upperdir=", "workdir="]
            .iter()
            .any(|name| option.starts_with(name))
            // The mount's own flag decides; a runtime may set the file system's as well.
            || ["rw", "ro"].contains(option)
    });
    ids.extend(varying);
    let mount = Mount {
        target,
        flags,
        propagation,
        fs_type,
        source,
        super_options: decided.join(","),
    };
    Some((mount, ids.join(" ")))
}
