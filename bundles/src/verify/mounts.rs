//! `mounts` of `config.json`: the allow-list view, resolved through the clones of the stage plan
//! to what is on the host.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::Facts;
use super::rule::{Rule, Violation, broken, require};
use super::stage::{CloneOf, Clones};
use crate::explain::OciMount;
use crate::{IdMapLine, LimitSupport, ProjectionKind, Slice};

/// What is expected at a target.
#[derive(Debug)]
struct Expected {
    kind: &'static str,
    source: Source,
    options: Vec<String>,
}

/// Where a mount comes from.
#[derive(Debug)]
enum Source {
    /// A name or path as it is written.
    Plain(String),
    /// A clone of a tree of the host.
    Clone {
        host: String,
        kind: ProjectionKind,
        id_map: Vec<IdMapLine>,
        writable: bool,
    },
}

type Table = BTreeMap<String, Expected>;

pub(super) fn check(
    mounts: &[OciMount],
    clones: &Clones<'_>,
    facts: &Facts<'_>,
) -> Result<(), Violation> {
    order(mounts)?;
    let mut expected = table(facts);
    let mut used = BTreeSet::new();
    for mount in mounts {
        let Some(entry) = expected.remove(mount.destination.as_str()) else {
            return Err(broken(
                Rule::MountTarget,
                format!("nothing is planned at {}", mount.destination),
            ));
        };
        one(mount, &entry, clones, &mut used)?;
    }
    if let Some(target) = expected.keys().next() {
        return Err(broken(
            Rule::MountTarget,
            format!("nothing is mounted at {target}"),
        ));
    }
    require(used.len() == clones.len(), Rule::StageSource, || {
        "a clone below the stage is not mounted".to_owned()
    })
}

/// Each target once, and no mount before one of its ancestors, which would cover it.
fn order(mounts: &[OciMount]) -> Result<(), Violation> {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for mount in mounts.iter().rev() {
        let target = mount.destination.as_str();
        require(!seen.contains(target), Rule::MountTarget, || {
            format!("{target} is mounted twice")
        })?;
        require(target != "/", Rule::MountTarget, || {
            "the root is mounted over".to_owned()
        })?;
        seen.insert(target);
    }
    let mut later: BTreeSet<&str> = seen;
    for mount in mounts {
        later.remove(mount.destination.as_str());
        let mut above = mount.destination.as_str();
        while let Some((parent, _name)) = above.rsplit_once('/')
            && !parent.is_empty()
        {
            require(!later.contains(parent), Rule::MountOrder, || {
                format!("{} is mounted before {parent}", mount.destination)
            })?;
            above = parent;
        }
    }
    Ok(())
}

fn one<'a>(
    mount: &'a OciMount,
    expected: &Expected,
    clones: &Clones<'_>,
    used: &mut BTreeSet<&'a str>,
) -> Result<(), Violation> {
    let target = &mount.destination;
    require(mount.kind == expected.kind, Rule::MountType, || {
        format!("{target} is {:?}", mount.kind)
    })?;
    let propagates = mount.options.iter().any(|option| {
        ["shared", "slave", "unbindable"]
            .iter()
            .any(|word| option.trim_start_matches('r') == *word)
    });
    require(!propagates, Rule::Propagation, || {
        format!("{target} has a propagation of its own")
    })?;
    require(mount.options == expected.options, Rule::MountFlag, || {
        format!(
            "{target} has {:?}, not {:?}",
            mount.options, expected.options
        )
    })?;
    match &expected.source {
        Source::Plain(source) => require(mount.source == *source, Rule::MountSource, || {
            format!("{target} comes from somewhere else than planned")
        }),
        Source::Clone {
            host,
            kind,
            id_map,
            writable,
        } => {
            let Some(clone) = clones.get(mount.source.as_str()) else {
                return Err(broken(
                    Rule::MountSource,
                    format!("{target} does not come from a clone below the stage"),
                ));
            };
            require(used.insert(&mount.source), Rule::MountSource, || {
                format!("the clone of {target} is mounted twice")
            })?;
            clone_is(clone, (host, *kind), id_map, *writable, target.as_str())
        }
    }
}

fn clone_is(
    clone: &CloneOf<'_>,
    (host, kind): (&str, ProjectionKind),
    id_map: &[IdMapLine],
    writable: bool,
    target: &str,
) -> Result<(), Violation> {
    require(
        clone.source.as_str() == host && clone.kind == kind,
        Rule::StageSource,
        || format!("the clone for {target} is of something else"),
    )?;
    require(clone.id_map == id_map, Rule::StageIdMap, || {
        format!("the clone for {target} has the map {:?}", clone.id_map)
    })?;
    require(clone.read_only != writable, Rule::WritableSet, || {
        format!("the clone for {target} has read_only {}", clone.read_only)
    })
}

fn table(facts: &Facts<'_>) -> Table {
    let mut table = Table::new();
    kernel(facts, &mut table);
    init(facts, &mut table);
    workspace(facts, &mut table);
    run(facts, &mut table);
    table
}

fn put(
    table: &mut Table,
    target: impl Into<String>,
    kind: &'static str,
    source: impl Into<String>,
    options: &str,
) {
    table.insert(
        target.into(),
        Expected {
            kind,
            source: Source::Plain(source.into()),
            options: options.split(',').map(str::to_owned).collect(),
        },
    );
}

fn kernel(facts: &Facts<'_>, table: &mut Table) {
    put(table, "/proc", "proc", "proc", "nosuid,nodev,noexec");
    put(
        table,
        "/dev",
        "tmpfs",
        "tmpfs",
        "nosuid,noexec,mode=0755,size=1048576",
    );
    put(
        table,
        "/dev/pts",
        "devpts",
        "devpts",
        "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5",
    );
    let size = facts.limits.map_or_else(
        || "50%".to_owned(),
        |limits| limits.memory.get().to_string(),
    );
    put(
        table,
        "/dev/shm",
        "tmpfs",
        "tmpfs",
        &format!("nosuid,nodev,noexec,mode=1777,size={size}"),
    );
    put(
        table,
        "/dev/mqueue",
        "mqueue",
        "mqueue",
        "nosuid,nodev,noexec",
    );
    if facts.class.is_admin() {
        let own = "bind,rw,nosuid,noexec";
        if facts.host.fuse {
            put(table, "/dev/fuse", "bind", facts.staged("dev/fuse"), own);
        }
        if facts.host.tun {
            put(table, "/dev/net/tun", "bind", facts.staged("dev/tun"), own);
        }
    }
    if facts.host_network {
        put(
            table,
            "/sys",
            "bind",
            facts.staged("sys"),
            "rbind,rro,nosuid,nodev,noexec",
        );
        return;
    }
    put(table, "/sys", "sysfs", "sysfs", "nosuid,nodev,noexec,ro");
    if matches!(facts.host.limits, LimitSupport::V2) {
        put(
            table,
            "/sys/fs/cgroup",
            "cgroup",
            "cgroup",
            "nosuid,nodev,noexec,ro",
        );
    }
}

fn init(facts: &Facts<'_>, table: &mut Table) {
    put(
        table,
        "/run/casemate",
        "tmpfs",
        "tmpfs",
        "nosuid,nodev,noexec,mode=0700,size=65536",
    );
    put(
        table,
        "/run/casemate/init",
        "bind",
        facts.placement.init.as_str(),
        "bind,ro,nosuid,nodev",
    );
    put(
        table,
        "/run/casemate/plan",
        "bind",
        facts.staged("bundle/guard.json"),
        "bind,ro,nosuid,nodev,noexec",
    );
    put(
        table,
        "/run/casemate/report",
        "bind",
        facts.staged("bundle/report"),
        "bind,rw,nosuid,nodev,noexec",
    );
}

/// A tree of the host at a target.
fn tree(
    table: &mut Table,
    target: String,
    (host, kind): (String, ProjectionKind),
    id_map: Vec<IdMapLine>,
    writable: bool,
) {
    let options = match (kind, writable) {
        (ProjectionKind::Directory, true) => ["rbind", "rw", "nosuid", "nodev"],
        (ProjectionKind::Directory, false) => ["rbind", "rro", "nosuid", "nodev"],
        (ProjectionKind::File, true) => ["bind", "rw", "nosuid", "nodev"],
        (ProjectionKind::File, false) => ["bind", "ro", "nosuid", "nodev"],
    };
    table.insert(
        target,
        Expected {
            kind: "bind",
            source: Source::Clone {
                host,
                kind,
                id_map,
                writable,
            },
            options: options.map(str::to_owned).to_vec(),
        },
    );
}

fn workspace(facts: &Facts<'_>, table: &mut Table) {
    let Some(view) = facts.workspace else {
        return;
    };
    let root = view.root.as_str();
    put(
        table,
        root,
        "bind",
        facts.staged("view"),
        "rbind,rro,nosuid,nodev,noexec",
    );
    let service = IdMapLine {
        disk: view.service,
        kernel: facts.placement.ids.first(),
        count: 1,
    };
    let of = |slice: Slice| {
        let others = IdMapLine {
            disk: slice.first() + 1,
            kernel: facts.placement.ids.first() + 1,
            count: 65_535,
        };
        vec![service, others]
    };
    let mut directory = |below: String, slice: Slice, writable: bool| {
        let path = format!("{root}/{below}");
        let what = (path.clone(), ProjectionKind::Directory);
        tree(table, path, what, of(slice), writable);
    };
    for tile in &view.readable {
        directory(tile.id.to_string(), tile.slice, false);
    }
    directory(
        view.own.id.to_string(),
        view.own.slice,
        facts.tile_writable(),
    );
    if let Some(home) = &view.home {
        directory(format!("homes/{}", home.id), home.slice, true);
    }
    for file in &view.root_files {
        let path = format!("{root}/{file}");
        let what = (path.clone(), ProjectionKind::File);
        tree(table, path, what, vec![service], false);
    }
    for extra in &view.extra_ro {
        let what = (extra.to_string(), ProjectionKind::Directory);
        tree(table, extra.to_string(), what, Vec::new(), false);
    }
}

fn run(facts: &Facts<'_>, table: &mut Table) {
    let Some(run) = facts.run else {
        return;
    };
    put(
        table,
        "/tmp",
        "tmpfs",
        "tmpfs",
        &format!("nosuid,nodev,mode=1777,size={}", run.scratch_bytes),
    );
    if run.output {
        let changes = match &facts.placement.upper {
            crate::Upper::Memory(_) => facts.staged("upper"),
            crate::Upper::Disk(dir) => dir.to_string(),
        };
        put(
            table,
            "/output",
            "bind",
            format!("{changes}/output"),
            "rbind,rw,nosuid,nodev",
        );
    }
    for projection in &run.projections {
        let owner = IdMapLine {
            disk: projection.owner,
            kernel: facts.placement.ids.first(),
            count: 1,
        };
        let what = (projection.source.to_string(), projection.kind);
        tree(
            table,
            projection.target.to_string(),
            what,
            vec![owner],
            false,
        );
    }
}
