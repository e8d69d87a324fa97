//! `mounts` of `config.json`: the allow-list view, resolved through the clones of the stage plan
//! to what is on the host.

use std::borrow::Cow;
use std::collections::HashMap;

use super::facts::Facts;
use super::rule::{Rule, Violation, broken, require};
use super::stage::{CloneOf, Clones};
use crate::explain::OciMount;
use crate::{IdMapLine, LimitSupport, ProjectionKind, Slice};

/// What is expected at a target.
#[derive(Debug)]
struct Expected<'a> {
    kind: &'static str,
    source: Source<'a>,
    /// Options, joined by commas.
    options: Cow<'static, str>,
}

/// Where a mount comes from.
#[derive(Debug)]
enum Source<'a> {
    /// A name or path as it is written.
    Plain(Cow<'a, str>),
    /// A clone of a tree of the host.
    Clone(Tree<'a>),
}

/// A tree or file of the host.
#[derive(Debug)]
struct Tree<'a> {
    /// Where on the host; `None` for where it is in the sandbox.
    host: Option<&'a str>,
    kind: ProjectionKind,
    id_map: IdMap,
    writable: bool,
}

/// How the ids of a tree are seen.
#[derive(Debug)]
enum IdMap {
    AsIs,
    /// One id, as the sandbox's root.
    Single(u32),
    /// The service as the sandbox's root, all of a slice but its root as itself.
    Owned(u32, Slice),
}

impl IdMap {
    fn is(&self, found: &[IdMapLine], facts: &Facts<'_>) -> bool {
        let kernel = facts.placement.ids.first();
        let root = |disk| IdMapLine {
            disk,
            kernel,
            count: 1,
        };
        match self {
            Self::AsIs => found.is_empty(),
            Self::Single(disk) => found == [root(*disk)],
            Self::Owned(service, slice) => {
                let others = IdMapLine {
                    disk: slice.first() + 1,
                    kernel: kernel + 1,
                    count: 65_535,
                };
                found == [root(*service), others]
            }
        }
    }
}

/// By target; what lies in the workspace, by its path there.
type Table<'a> = HashMap<Cow<'a, str>, Expected<'a>>;

pub(super) fn check(
    mounts: &[OciMount<'_>],
    clones: &Clones<'_>,
    facts: &Facts<'_>,
) -> Result<(), Violation> {
    let mut expected = table(facts);
    let mut used = vec![false; clones.len()];
    for mount in mounts {
        let target = &*mount.destination;
        let inside = facts.workspace.and_then(|view| {
            let below = target.strip_prefix(view.root.as_str())?;
            below.strip_prefix('/')
        });
        let Some(entry) = expected.remove(inside.unwrap_or(target)) else {
            return Err(broken(
                Rule::MountTarget,
                format!("nothing, or nothing more, is planned at {target}"),
            ));
        };
        one(mount, &entry)?;
        if let Source::Clone(tree) = &entry.source {
            let Some((clone, used)) = clones
                .find(&mount.source)
                .and_then(|(index, clone)| Some((clone, used.get_mut(index)?)))
            else {
                return Err(broken(
                    Rule::MountSource,
                    format!("{target} does not come from a clone below the stage"),
                ));
            };
            require(!*used, Rule::MountSource, || {
                format!("the clone of {target} is mounted twice")
            })?;
            *used = true;
            clone_is(clone, tree, target, facts)?;
        }
    }
    if let Some(target) = expected.keys().next() {
        return Err(broken(
            Rule::MountTarget,
            format!("nothing is mounted at {target}"),
        ));
    }
    require(used.iter().all(|used| *used), Rule::StageSource, || {
        "a clone below the stage is not mounted".to_owned()
    })
}

fn one(mount: &OciMount<'_>, expected: &Expected<'_>) -> Result<(), Violation> {
    let target = &mount.destination;
    require(mount.kind == expected.kind, Rule::MountType, || {
        format!("{target} is {:?}", mount.kind)
    })?;
    let same = mount.options.iter().map(|option| &**option);
    if !same.eq(expected.options.split(',')) {
        let propagates = mount.options.iter().any(|option| {
            matches!(
                option.trim_start_matches('r'),
                "shared" | "slave" | "unbindable"
            )
        });
        return Err(if propagates {
            broken(
                Rule::Propagation,
                format!("{target} has a propagation of its own"),
            )
        } else {
            broken(
                Rule::MountFlag,
                format!("{target} has {:?}, not {}", mount.options, expected.options),
            )
        });
    }
    match &expected.source {
        Source::Plain(source) => require(mount.source == **source, Rule::MountSource, || {
            format!("{target} comes from somewhere else than planned")
        }),
        Source::Clone(_) => Ok(()),
    }
}

fn clone_is(
    clone: &CloneOf<'_>,
    tree: &Tree<'_>,
    target: &str,
    facts: &Facts<'_>,
) -> Result<(), Violation> {
    require(
        clone.source == tree.host.unwrap_or(target) && clone.kind == tree.kind,
        Rule::StageSource,
        || format!("the clone for {target} is of something else"),
    )?;
    require(
        tree.id_map.is(clone.id_map, facts),
        Rule::StageIdMap,
        || format!("the clone for {target} has the map {:?}", clone.id_map),
    )?;
    require(clone.read_only != tree.writable, Rule::WritableSet, || {
        format!("the clone for {target} has read_only {}", clone.read_only)
    })
}

fn table<'a>(facts: &Facts<'a>) -> Table<'a> {
    let trees = facts.workspace.map_or(0, |view| view.readable.len());
    let mut table = Table::with_capacity(32 + trees);
    kernel(facts, &mut table);
    init(facts, &mut table);
    workspace(facts, &mut table);
    run(facts, &mut table);
    table
}

fn put<'a>(
    table: &mut Table<'a>,
    target: &'a str,
    kind: &'static str,
    source: impl Into<Cow<'a, str>>,
    options: impl Into<Cow<'static, str>>,
) {
    table.insert(
        target.into(),
        Expected {
            kind,
            source: Source::Plain(source.into()),
            options: options.into(),
        },
    );
}

fn kernel(facts: &Facts<'_>, table: &mut Table<'_>) {
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
        format!("nosuid,nodev,noexec,mode=1777,size={size}"),
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

fn init<'a>(facts: &Facts<'a>, table: &mut Table<'a>) {
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
fn tree<'a>(table: &mut Table<'a>, target: impl Into<Cow<'a, str>>, tree: Tree<'a>) {
    let options = match (tree.kind, tree.writable) {
        (ProjectionKind::Directory, true) => "rbind,rw,nosuid,nodev",
        (ProjectionKind::Directory, false) => "rbind,rro,nosuid,nodev",
        (ProjectionKind::File, true) => "bind,rw,nosuid,nodev",
        (ProjectionKind::File, false) => "bind,ro,nosuid,nodev",
    };
    table.insert(
        target.into(),
        Expected {
            kind: "bind",
            source: Source::Clone(tree),
            options: options.into(),
        },
    );
}

fn workspace<'a>(facts: &Facts<'a>, table: &mut Table<'a>) {
    let Some(view) = facts.workspace else {
        return;
    };
    put(
        table,
        view.root.as_str(),
        "bind",
        facts.staged("view"),
        "rbind,rro,nosuid,nodev,noexec",
    );
    let directory = |slice: Slice, writable: bool| Tree {
        host: None,
        kind: ProjectionKind::Directory,
        id_map: IdMap::Owned(view.service, slice),
        writable,
    };
    for tile in &view.readable {
        tree(table, tile.id.as_str(), directory(tile.slice, false));
    }
    let own = directory(view.own.slice, facts.tile_writable());
    tree(table, view.own.id.as_str(), own);
    if let Some(home) = &view.home {
        let path = format!("homes/{}", home.id);
        tree(table, path, directory(home.slice, true));
    }
    for file in &view.root_files {
        let what = Tree {
            host: None,
            kind: ProjectionKind::File,
            id_map: IdMap::Single(view.service),
            writable: false,
        };
        tree(table, file.as_str(), what);
    }
    for extra in &view.extra_ro {
        let what = Tree {
            host: None,
            kind: ProjectionKind::Directory,
            id_map: IdMap::AsIs,
            writable: false,
        };
        tree(table, extra.as_str(), what);
    }
}

fn run<'a>(facts: &Facts<'a>, table: &mut Table<'a>) {
    let Some(run) = facts.run else {
        return;
    };
    put(
        table,
        "/tmp",
        "tmpfs",
        "tmpfs",
        format!("nosuid,nodev,mode=1777,size={}", run.scratch_bytes),
    );
    if run.output {
        let changes = match &facts.placement.upper {
            crate::Upper::Memory(_) => facts.staged("upper"),
            crate::Upper::Disk(dir) | crate::Upper::Layer(dir) => dir.to_string(),
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
        let what = Tree {
            host: Some(projection.source.as_str()),
            kind: projection.kind,
            id_map: IdMap::Single(projection.owner),
            writable: false,
        };
        tree(table, projection.target.as_str(), what);
    }
}
