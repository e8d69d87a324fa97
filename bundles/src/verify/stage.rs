//! `stage.json`: every step below the stage (or in the placement's directory for changes), every
//! source and map the plan's, everything made before it is used.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use super::facts::Facts;
use super::rule::{Rule, Violation, broken, require};
use crate::explain::StageText;
use crate::text::PathText;
use crate::{HostOwner, HostPath, IdMapLine, ProjectionKind, StageStep, Upper};

/// The clones below the stage, by ordinal.
pub(super) struct Clones<'a> {
    /// The directory that holds them, with a slash at its end.
    directory: String,
    list: Vec<Option<CloneOf<'a>>>,
}

/// What a clone is of.
#[derive(Debug, Clone, Copy)]
pub(super) struct CloneOf<'a> {
    pub(super) source: &'a str,
    pub(super) kind: ProjectionKind,
    pub(super) id_map: &'a [IdMapLine],
    pub(super) read_only: bool,
}

impl Clones<'_> {
    /// Returns how many there are.
    pub(super) const fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the clone at a path.
    pub(super) fn find(&self, path: &str) -> Option<(usize, &CloneOf<'_>)> {
        let ordinal = self.ordinal(path)?;
        Some((ordinal, self.list.get(ordinal)?.as_ref()?))
    }

    /// The number at the end of `<stage>/mounts/<number>`: other names would leak into
    /// `mountinfo`. One number has one name.
    fn ordinal(&self, path: &str) -> Option<usize> {
        let name = path.strip_prefix(self.directory.as_str())?;
        let plain = !name.is_empty()
            && name.len() <= 9
            && (name == "0" || !name.starts_with('0'))
            && name.bytes().all(|byte| byte.is_ascii_digit());
        let digits = name.bytes().map(|byte| usize::from(byte - b'0'));
        plain.then(|| digits.fold(0, |number, digit| number * 10 + digit))
    }
}

/// Checks the plan and returns its clones.
pub(super) fn check<'a>(
    stage: &'a StageText<'a>,
    facts: &Facts<'_>,
) -> Result<Clones<'a>, Violation> {
    let mut walk = Walk {
        facts,
        allowed: allowed(facts),
        view: facts.staged("view"),
        skeleton: skeleton(facts),
        in_memory: false,
        clones: Clones {
            directory: facts.staged("mounts/"),
            list: Vec::with_capacity(stage.steps.len() / 2),
        },
        overlaid: false,
        targets: targets(facts),
    };
    for step in &stage.steps {
        walk.step(step)?;
    }
    walk.finish()
}

/// Something that has to be made once.
#[derive(Debug, Clone, Copy)]
struct Due<T> {
    what: T,
    made: bool,
}

impl<T> Due<T> {
    const fn new(what: T) -> Self {
        Self { what, made: false }
    }
}

const ROOT: HostOwner = HostOwner { uid: 0, gid: 0 };

/// Options of an ephemeral root.
const OVERLAY: [&str; 5] = [
    "redirect_dir=on",
    "index=off",
    "metacopy=off",
    "xino=off",
    "volatile",
];

/// Options of a root whose changes are kept.
const KEPT: [&str; 4] = ["redirect_dir=on", "index=on", "metacopy=off", "xino=off"];

/// What a step may make, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Make {
    /// A directory of an owner with a mode.
    Directory(HostOwner, u32),
    /// The report FIFO.
    Fifo,
    /// A device of an administrator.
    Device(u32, u32),
}

/// Everything with a fixed name that has to be made, by path.
fn allowed(facts: &Facts<'_>) -> BTreeMap<String, Due<Make>> {
    let sandbox = facts.placement.ids.first();
    let owner = HostOwner {
        uid: sandbox,
        gid: sandbox,
    };
    let passage = Make::Directory(
        HostOwner {
            uid: 0,
            gid: sandbox,
        },
        0o710,
    );
    let sealed = Make::Directory(HostOwner { uid: 0, gid: 0 }, 0o555);
    let mut allowed = BTreeMap::from([
        (facts.staged("bundle"), passage),
        (facts.staged("bundle/rootfs"), passage),
        (facts.staged("bundle/report"), Make::Fifo),
    ]);
    let changes = match &facts.placement.upper {
        Upper::Memory(_) => {
            allowed.insert(facts.staged("upper"), passage);
            facts.staged("upper")
        }
        Upper::Disk(dir) | Upper::Layer(dir) => dir.to_string(),
    };
    match &facts.placement.upper {
        Upper::Memory(_) | Upper::Disk(_) => {
            allowed.insert(format!("{changes}/upper"), Make::Directory(owner, 0o755));
            allowed.insert(format!("{changes}/work"), Make::Directory(owner, 0o700));
        }
        // A layer's own are there already.
        Upper::Layer(_) => {}
    }
    if facts.run.is_some_and(|run| run.output) {
        allowed.insert(format!("{changes}/output"), Make::Directory(owner, 0o755));
    }
    if facts.host_network {
        allowed.insert(facts.staged("sys"), sealed);
    }
    if facts.class.is_admin() && (facts.host.fuse || facts.host.tun) {
        allowed.insert(facts.staged("dev"), passage);
        if facts.host.fuse {
            allowed.insert(facts.staged("dev/fuse"), Make::Device(10, 229));
        }
        if facts.host.tun {
            allowed.insert(facts.staged("dev/tun"), Make::Device(10, 200));
        }
    }
    let trees = facts.run.map_or(1, |run| run.projections.len());
    if trees > 0 {
        allowed.insert(facts.staged("mounts"), passage);
    }
    allowed
        .into_iter()
        .map(|(path, make)| (path, Due::new(make)))
        .collect()
}

/// The skeleton of the workspace: what it holds, by path in it; nothing else may be in it.
type Skeleton<'a> = HashMap<Cow<'a, str>, Due<ProjectionKind>>;

fn skeleton<'a>(facts: &Facts<'a>) -> Skeleton<'a> {
    let Some(view) = facts.workspace else {
        return Skeleton::new();
    };
    let mut skeleton = Skeleton::with_capacity(16 + view.readable.len());
    let directory = Due::new(ProjectionKind::Directory);
    for fixed in ["", ".xbin", "data", "homes", "apps"] {
        skeleton.insert(fixed.into(), directory);
    }
    for tile in [&view.own].into_iter().chain(&view.readable) {
        let mut path = tile.id.as_str();
        // Up to the first directory that is there already.
        while skeleton.insert(path.into(), directory).is_none() {
            path = path.rsplit_once('/').map_or("", |(parent, _name)| parent);
        }
    }
    if let Some(home) = &view.home {
        skeleton.insert(format!("homes/{}", home.id).into(), directory);
    }
    for file in &view.root_files {
        skeleton.insert(file.as_str().into(), Due::new(ProjectionKind::File));
    }
    skeleton
}

/// The mount targets inside the root, by path.
fn targets<'a>(facts: &Facts<'a>) -> HashMap<&'a str, Due<ProjectionKind>> {
    let mut targets = vec!["/dev", "/proc", "/sys", "/run/casemate"];
    if let Some(view) = facts.workspace {
        targets.push(view.root.as_str());
        targets.extend(view.extra_ro.iter().map(HostPath::as_str));
    }
    if let Some(run) = facts.run {
        targets.push("/tmp");
        targets.extend(run.output.then_some("/output"));
    }
    let directories = targets
        .into_iter()
        .map(|path| (path, Due::new(ProjectionKind::Directory)));
    let projections = facts.run.into_iter().flat_map(|run| &run.projections);
    directories
        .chain(projections.map(|one| (one.target.as_str(), Due::new(one.kind))))
        .collect()
}

struct Walk<'a, 'f> {
    facts: &'f Facts<'f>,
    allowed: BTreeMap<String, Due<Make>>,
    /// Where the skeleton is.
    view: String,
    skeleton: Skeleton<'f>,
    /// Whether the skeleton has its own tmpfs: a directory of the host's would show its disk.
    in_memory: bool,
    clones: Clones<'a>,
    overlaid: bool,
    targets: HashMap<&'f str, Due<ProjectionKind>>,
}

impl<'a> Walk<'a, '_> {
    fn step(&mut self, step: &'a StageStep<PathText<'a>, PathText<'a>>) -> Result<(), Violation> {
        match step {
            StageStep::Directory { path, owner, mode } => {
                self.make(path, Make::Directory(*owner, *mode))
            }
            StageStep::File { path, owner, mode } => {
                let sealed = *owner == ROOT && *mode == 0o444;
                require(sealed, Rule::StageStep, || {
                    "a file is not host root's with mode 444".to_owned()
                })?;
                self.placeholder(path, ProjectionKind::File)
            }
            StageStep::Fifo { path, owner, mode } => {
                let own = *owner == self.sandbox() && *mode == 0o600;
                require(own, Rule::StageStep, || {
                    "the report is not the sandbox root's alone".to_owned()
                })?;
                self.make(path, Make::Fifo)
            }
            StageStep::Device {
                path,
                major,
                minor,
                mode,
            } => {
                require(*mode == 0o666, Rule::StageStep, || {
                    format!("a device has mode {mode:o}")
                })?;
                self.make(path, Make::Device(*major, *minor))
            }
            StageStep::Tmpfs {
                path,
                bytes,
                devices,
            } => self.tmpfs(path, *bytes, *devices),
            StageStep::Bind {
                source,
                target,
                kind,
                id_map,
                read_only,
            } => {
                let clone = CloneOf {
                    source,
                    kind: *kind,
                    id_map,
                    read_only: *read_only,
                };
                self.bind(target, clone)
            }
            StageStep::Overlay { .. } => self.overlay(step),
            StageStep::Target {
                root,
                path,
                kind,
                owner,
            } => {
                let own = **root == *self.facts.staged("bundle/rootfs") && *owner == self.sandbox();
                require(own && self.overlaid, Rule::StageStep, || {
                    format!("the target {path} is not made in the mounted root for the sandbox")
                })?;
                self.target(path, *kind)
            }
        }
    }

    const fn sandbox(&self) -> HostOwner {
        let sandbox = self.facts.placement.ids.first();
        HostOwner {
            uid: sandbox,
            gid: sandbox,
        }
    }

    /// Something with a fixed name, or a placeholder.
    fn make(&mut self, path: &str, what: Make) -> Result<(), Violation> {
        if what == Make::Directory(ROOT, 0o555) && !self.allowed.contains_key(path) {
            return self.placeholder(path, ProjectionKind::Directory);
        }
        let Some(due) = self.allowed.get_mut(path) else {
            return Err(foreign(path));
        };
        require(due.what == what, Rule::StageStep, || {
            format!("{path} is made as {what:?}, not as {:?}", due.what)
        })?;
        once(due, path)?;
        // The stage and the directory for changes are there; everything else has to be made.
        let parent = path.rsplit_once('/').map_or("", |(parent, _name)| parent);
        let given = parent == self.facts.placement.stage.as_str()
            || match &self.facts.placement.upper {
                Upper::Disk(dir) => parent == dir.as_str(),
                Upper::Memory(_) | Upper::Layer(_) => false,
            };
        in_order(path, given || self.is_made(parent))
    }

    /// An empty directory or file of host root: a part of the skeleton, or what a clone is put on.
    fn placeholder(&mut self, path: &str, kind: ProjectionKind) -> Result<(), Violation> {
        if let Some(ordinal) = self.clones.ordinal(path) {
            require(ordinal == self.clones.len(), Rule::StageStep, || {
                format!("{path} is made twice or out of turn")
            })?;
            self.clones.list.push(None);
            return in_order(
                path,
                ordinal > 0 || self.is_made(&self.facts.staged("mounts")),
            );
        }
        let below = path.strip_prefix(self.view.as_str());
        let Some(below) = below.and_then(|rest| match rest.strip_prefix('/') {
            Some("") => None,
            None => rest.is_empty().then_some(""),
            below => below,
        }) else {
            return Err(foreign(path));
        };
        match self.skeleton.get_mut(below) {
            Some(due) if due.what == kind => once(due, path)?,
            Some(_) | None => return Err(foreign(path)),
        }
        let parent = below.rsplit_once('/').map_or("", |(parent, _name)| parent);
        let ready = below.is_empty()
            || (self.in_memory && self.skeleton.get(parent).is_some_and(|due| due.made));
        in_order(path, ready)
    }

    fn is_made(&self, path: &str) -> bool {
        self.allowed.get(path).is_some_and(|due| due.made)
    }

    fn tmpfs(&mut self, path: &str, bytes: u64, devices: bool) -> Result<(), Violation> {
        if path == self.view {
            let made = self.skeleton.get("").is_some_and(|due| due.made);
            let due = made && !self.in_memory;
            self.in_memory = true;
            return require(
                due && (bytes, devices) == (4096, false),
                Rule::StageStep,
                || "the skeleton's tmpfs is not as it has to be".to_owned(),
            );
        }
        let is = |below: &str| path == self.facts.staged(below);
        let expected = match &self.facts.placement.upper {
            Upper::Memory(size) if is("upper") => Some((*size, false)),
            Upper::Memory(_) | Upper::Disk(_) | Upper::Layer(_) if is("dev") => Some((4096, true)),
            Upper::Memory(_) | Upper::Disk(_) | Upper::Layer(_) => None,
        };
        let used = self.allowed.iter().any(|(other, due)| {
            let below = other.strip_prefix(path);
            due.made && below.is_some_and(|below| below.starts_with('/'))
        });
        require(
            expected == Some((bytes, devices)) && bytes > 0 && self.is_made(path) && !used,
            Rule::StageStep,
            || format!("the tmpfs at {path} is not the placement's"),
        )
    }

    fn bind(&mut self, target: &str, clone: CloneOf<'a>) -> Result<(), Violation> {
        let ordinal = self.clones.ordinal(target);
        let Some(slot) = ordinal.and_then(|ordinal| self.clones.list.get_mut(ordinal)) else {
            return Err(broken(
                Rule::StageStep,
                format!("a clone is put on {target}, which is not made for it"),
            ));
        };
        require(slot.replace(clone).is_none(), Rule::StageStep, || {
            format!("two clones are put on {target}")
        })
    }

    fn overlay(&mut self, step: &StageStep<PathText<'_>, PathText<'_>>) -> Result<(), Violation> {
        let (changes, expected): (_, &[&str]) = match &self.facts.placement.upper {
            Upper::Memory(_) => (self.facts.staged("upper"), &OVERLAY),
            Upper::Disk(dir) => (dir.to_string(), &OVERLAY),
            Upper::Layer(dir) => {
                let term = self.facts.workspace.is_some_and(|view| {
                    dir.below(&view.root)
                        .is_some_and(|below| below.starts_with(".xbin/term/"))
                });
                require(
                    term && self.facts.class.is_terminal(),
                    Rule::StageOverlay,
                    || "a layer is not a terminal's, or not where layers are".to_owned(),
                )?;
                (dir.to_string(), &KEPT)
            }
        };
        let map = IdMapLine {
            disk: 0,
            kernel: self.facts.placement.ids.first(),
            count: 65_536,
        };
        let same = match step {
            StageStep::Overlay {
                lower,
                lower_map,
                options,
                target,
                upper,
                work,
            } => {
                **lower == *self.facts.placement.base.as_str()
                    && *lower_map == [map]
                    && *options == expected
                    && **target == *self.facts.staged("bundle/rootfs")
                    && **upper == *format!("{changes}/upper")
                    && **work == *format!("{changes}/work")
            }
            StageStep::Directory { .. }
            | StageStep::File { .. }
            | StageStep::Fifo { .. }
            | StageStep::Device { .. }
            | StageStep::Tmpfs { .. }
            | StageStep::Bind { .. }
            | StageStep::Target { .. } => false,
        };
        require(same && !self.overlaid, Rule::StageOverlay, || {
            "the root is not one overlay over the base with the changes where they belong"
                .to_owned()
        })?;
        self.overlaid = true;
        Ok(())
    }

    fn target(&mut self, path: &str, kind: ProjectionKind) -> Result<(), Violation> {
        match self.targets.get_mut(path) {
            Some(due) if due.what == kind => {
                due.made = true;
                Ok(())
            }
            Some(_) | None => Err(broken(
                Rule::StageStep,
                format!("{path} is no mount target of the root"),
            )),
        }
    }

    /// Everything that has to be there is there.
    fn finish(self) -> Result<Clones<'a>, Violation> {
        let fixed = self.allowed.iter().find(|(_path, due)| !due.made);
        if let Some((path, _due)) = fixed {
            return Err(broken(Rule::StageStep, format!("{path} is not made")));
        }
        let part = self.skeleton.iter().find(|(_path, due)| !due.made);
        if let Some((path, _due)) = part {
            return Err(broken(
                Rule::StageStep,
                format!("{path:?} of the skeleton is not made"),
            ));
        }
        require(self.overlaid, Rule::StageOverlay, || {
            "there is no root overlay".to_owned()
        })?;
        let target = self.targets.iter().find(|(_path, due)| !due.made);
        if let Some((path, _due)) = target {
            return Err(broken(
                Rule::StageStep,
                format!("the target {path} is not made"),
            ));
        }
        Ok(self.clones)
    }
}

fn foreign(path: &str) -> Violation {
    broken(Rule::StageStep, format!("{path} is no part of the stage"))
}

fn once<T>(due: &mut Due<T>, path: &str) -> Result<(), Violation> {
    require(!due.made, Rule::StageStep, || {
        format!("{path} is made twice")
    })?;
    due.made = true;
    Ok(())
}

fn in_order(path: &str, ready: bool) -> Result<(), Violation> {
    require(ready, Rule::StageStep, || {
        format!("{path} is made before its directory")
    })
}
