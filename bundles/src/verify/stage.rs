//! `stage.json`: every step below the stage (or in the placement's directory for changes), every
//! source and map the plan's, everything made before it is used.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::Facts;
use super::rule::{Rule, Violation, broken, require};
use crate::{
    HostOwner, HostPath, IdMapLine, ProjectionKind, SandboxPath, StagePlan, StageStep, Upper,
};

/// Clones by where they are below the stage.
pub(super) type Clones<'a> = BTreeMap<&'a str, CloneOf<'a>>;

/// What a clone is of.
#[derive(Debug, Clone, Copy)]
pub(super) struct CloneOf<'a> {
    pub(super) source: &'a HostPath,
    pub(super) kind: ProjectionKind,
    pub(super) id_map: &'a [IdMapLine],
    pub(super) read_only: bool,
}

/// Checks the plan and returns its clones.
pub(super) fn check<'a>(stage: &'a StagePlan, facts: &Facts<'a>) -> Result<Clones<'a>, Violation> {
    let mut walk = Walk {
        facts,
        allowed: allowed(facts),
        skeleton: skeleton(facts),
        made: BTreeSet::new(),
        clones: BTreeMap::new(),
        overlaid: false,
        targets: BTreeSet::new(),
    };
    for step in &stage.steps {
        walk.step(step)?;
    }
    walk.finish()
}

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
fn allowed(facts: &Facts<'_>) -> BTreeMap<String, Make> {
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
        Upper::Disk(dir) => dir.to_string(),
    };
    allowed.insert(format!("{changes}/upper"), Make::Directory(owner, 0o755));
    allowed.insert(format!("{changes}/work"), Make::Directory(owner, 0o700));
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
}

/// The skeleton of the workspace: what it holds, by path; nothing else may be in it.
fn skeleton(facts: &Facts<'_>) -> BTreeMap<String, ProjectionKind> {
    let mut skeleton = BTreeMap::new();
    let Some(view) = facts.workspace else {
        return skeleton;
    };
    let mut directory = |below: &str| {
        let mut path = facts.staged("view");
        skeleton.insert(path.clone(), ProjectionKind::Directory);
        for part in below.split('/').filter(|part| !part.is_empty()) {
            path.push('/');
            path.push_str(part);
            skeleton.insert(path.clone(), ProjectionKind::Directory);
        }
    };
    for below in [".xbin", "data", "homes", "apps", view.own.id.as_str()] {
        directory(below);
    }
    for tile in &view.readable {
        directory(tile.id.as_str());
    }
    if let Some(home) = &view.home {
        directory(&format!("homes/{}", home.id));
    }
    for file in &view.root_files {
        let path = facts.staged("view") + "/" + file.as_str();
        skeleton.insert(path, ProjectionKind::File);
    }
    skeleton
}

struct Walk<'a, 'f> {
    facts: &'f Facts<'a>,
    allowed: BTreeMap<String, Make>,
    skeleton: BTreeMap<String, ProjectionKind>,
    made: BTreeSet<&'a str>,
    clones: Clones<'a>,
    overlaid: bool,
    targets: BTreeSet<&'a str>,
}

impl<'a> Walk<'a, '_> {
    fn step(&mut self, step: &'a StageStep) -> Result<(), Violation> {
        match step {
            StageStep::Directory { path, owner, mode } => self.make(
                path,
                Make::Directory(*owner, *mode),
                ProjectionKind::Directory,
            ),
            StageStep::File { path, owner, mode } => {
                let sealed = *owner == HostOwner { uid: 0, gid: 0 } && *mode == 0o444;
                require(sealed, Rule::StageStep, || {
                    "a file is not host root's with mode 444".to_owned()
                })?;
                self.placeholder(path, ProjectionKind::File)
            }
            StageStep::Fifo { path, owner, mode } => {
                let sandbox = self.facts.placement.ids.first();
                let own = owner.uid == sandbox && owner.gid == sandbox && *mode == 0o600;
                require(own, Rule::StageStep, || {
                    "the report is not the sandbox root's alone".to_owned()
                })?;
                self.make(path, Make::Fifo, ProjectionKind::File)
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
                self.make(path, Make::Device(*major, *minor), ProjectionKind::File)
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
            } => self.target(root, path, *kind, *owner),
        }
    }

    /// Something with a fixed name, or a placeholder.
    fn make(
        &mut self,
        path: &'a HostPath,
        what: Make,
        kind: ProjectionKind,
    ) -> Result<(), Violation> {
        if let Some(expected) = self.allowed.get(path.as_str()) {
            require(*expected == what, Rule::StageStep, || {
                format!("{path} is made as {what:?}, not as {expected:?}")
            })?;
            return self.once(path);
        }
        let sealed = what == Make::Directory(HostOwner { uid: 0, gid: 0 }, 0o555);
        require(sealed, Rule::StageStep, || {
            format!("{path} is no part of the stage")
        })?;
        self.placeholder(path, kind)
    }

    /// An empty directory or file of host root: a part of the skeleton, or what a clone is put on.
    fn placeholder(&mut self, path: &'a HostPath, kind: ProjectionKind) -> Result<(), Violation> {
        let known = self.skeleton.get(path.as_str()) == Some(&kind) || self.ordinal(path);
        require(known, Rule::StageStep, || {
            format!("{path} is no part of the stage")
        })?;
        self.once(path)
    }

    /// Whether the path is `<stage>/mounts/<number>`: other names would leak into `mountinfo`.
    fn ordinal(&self, path: &HostPath) -> bool {
        path.as_str()
            .strip_prefix(self.facts.placement.stage.as_str())
            .and_then(|rest| rest.strip_prefix("/mounts/"))
            .is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()))
    }

    fn once(&mut self, path: &'a HostPath) -> Result<(), Violation> {
        require(self.made.insert(path.as_str()), Rule::StageStep, || {
            format!("{path} is made twice")
        })?;
        // The stage and the directory for changes are there; everything else has to be made.
        let given = self.facts.placement.stage.as_str();
        let parent = path
            .as_str()
            .rsplit_once('/')
            .map_or("", |(parent, _)| parent);
        let disk = match &self.facts.placement.upper {
            Upper::Disk(dir) => parent == dir.as_str(),
            Upper::Memory(_) => false,
        };
        require(
            parent == given || disk || self.made.contains(parent),
            Rule::StageStep,
            || format!("{path} is made before its directory"),
        )
    }

    fn tmpfs(&self, path: &HostPath, bytes: u64, devices: bool) -> Result<(), Violation> {
        let is = |below: &str| path.as_str() == self.facts.staged(below);
        let expected = match &self.facts.placement.upper {
            Upper::Memory(size) if is("upper") => Some((*size, false)),
            Upper::Memory(_) | Upper::Disk(_) if is("dev") => Some((4096, true)),
            Upper::Memory(_) | Upper::Disk(_) => None,
        };
        let fresh = self.made.contains(path.as_str())
            && !self
                .made
                .iter()
                .any(|made| made.starts_with(&format!("{path}/")));
        require(
            expected == Some((bytes, devices)) && bytes > 0 && fresh,
            Rule::StageStep,
            || format!("the tmpfs at {path} is not the placement's"),
        )
    }

    fn bind(&mut self, target: &'a HostPath, clone: CloneOf<'a>) -> Result<(), Violation> {
        let ready = self.ordinal(target) && self.made.contains(target.as_str());
        require(ready, Rule::StageStep, || {
            format!("a clone is put on {target}, which is not made for it")
        })?;
        let twice = self.clones.insert(target.as_str(), clone).is_some();
        require(!twice, Rule::StageStep, || {
            format!("two clones are put on {target}")
        })
    }

    fn overlay(&mut self, step: &StageStep) -> Result<(), Violation> {
        let changes = match &self.facts.placement.upper {
            Upper::Memory(_) => self.facts.staged("upper"),
            Upper::Disk(dir) => dir.to_string(),
        };
        let parse = |path: String| {
            HostPath::parse(path).map_err(|error| broken(Rule::StageOverlay, error.to_string()))
        };
        let expected = StageStep::Overlay {
            lower: self.facts.placement.base.clone(),
            lower_map: vec![IdMapLine {
                disk: 0,
                kernel: self.facts.placement.ids.first(),
                count: 65_536,
            }],
            upper: parse(format!("{changes}/upper"))?,
            work: parse(format!("{changes}/work"))?,
            target: parse(self.facts.staged("bundle/rootfs"))?,
            options: [
                "redirect_dir=on",
                "index=off",
                "metacopy=off",
                "xino=off",
                "volatile",
            ]
            .map(str::to_owned)
            .to_vec(),
        };
        require(
            *step == expected && !self.overlaid,
            Rule::StageOverlay,
            || "the root is not one ephemeral overlay over the base".to_owned(),
        )?;
        self.overlaid = true;
        Ok(())
    }

    fn target(
        &mut self,
        root: &HostPath,
        path: &'a SandboxPath,
        kind: ProjectionKind,
        owner: HostOwner,
    ) -> Result<(), Violation> {
        let sandbox = self.facts.placement.ids.first();
        let own = root.as_str() == self.facts.staged("bundle/rootfs")
            && owner.uid == sandbox
            && owner.gid == sandbox;
        require(own && self.overlaid, Rule::StageStep, || {
            format!("the target {path} is not made in the mounted root for the sandbox")
        })?;
        let expected = self.expected_target(path);
        require(expected == Some(kind), Rule::StageStep, || {
            format!("{path} is no mount target of the root")
        })?;
        self.targets.insert(path.as_str());
        Ok(())
    }

    fn expected_target(&self, path: &SandboxPath) -> Option<ProjectionKind> {
        let directory = Some(ProjectionKind::Directory);
        match path.as_str() {
            "/dev" | "/proc" | "/sys" | "/run/casemate" => return directory,
            "/tmp" if self.facts.run.is_some() => return directory,
            "/output" if self.facts.run.is_some_and(|run| run.output) => return directory,
            _ => {}
        }
        if let Some(view) = self.facts.workspace {
            let known = path.as_str() == view.root.as_str()
                || view
                    .extra_ro
                    .iter()
                    .any(|extra| extra.as_str() == path.as_str());
            return known.then_some(ProjectionKind::Directory);
        }
        let run = self.facts.run?;
        run.projections
            .iter()
            .find(|projection| projection.target == *path)
            .map(|projection| projection.kind)
    }

    /// Everything that has to be there is there.
    fn finish(self) -> Result<Clones<'a>, Violation> {
        let missing = self
            .allowed
            .keys()
            .chain(self.skeleton.keys())
            .find(|path| !self.made.contains(path.as_str()));
        if let Some(path) = missing {
            return Err(broken(Rule::StageStep, format!("{path} is not made")));
        }
        require(self.overlaid, Rule::StageOverlay, || {
            "there is no root overlay".to_owned()
        })?;
        let mut targets = vec!["/dev", "/proc", "/sys", "/run/casemate"];
        if let Some(view) = self.facts.workspace {
            targets.push(view.root.as_str());
            targets.extend(view.extra_ro.iter().map(HostPath::as_str));
        }
        if let Some(run) = self.facts.run {
            targets.push("/tmp");
            targets.extend(run.output.then_some("/output"));
            targets.extend(run.projections.iter().map(|one| one.target.as_str()));
        }
        for target in targets {
            require(self.targets.contains(target), Rule::StageStep, || {
                format!("the target {target} is not made")
            })?;
        }
        Ok(self.clones)
    }
}
