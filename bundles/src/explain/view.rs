//! The view that the mounts of a bundle make, indexed for questions.

use std::collections::{BTreeMap, BTreeSet};

use super::{Access, OciMount, Resolution, ViewRule};
use crate::{HostPath, ProjectionKind, SandboxPath, StagePlan, StageStep};

/// What decides a view.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) mounts: &'a [OciMount],
    pub(crate) masked: &'a [String],
    pub(crate) read_only: &'a [String],
    pub(crate) read_only_root: bool,
    pub(crate) workspace: Option<&'a str>,
    pub(crate) tile: Option<&'a str>,
}

/// A clone that the stage plan puts below the stage.
#[derive(Debug, Clone, Copy)]
struct Clone<'a> {
    source: &'a HostPath,
    kind: ProjectionKind,
}

/// A view, indexed.
#[derive(Debug)]
pub(crate) struct View<'a> {
    facts: Facts<'a>,
    by_destination: BTreeMap<&'a str, usize>,
    clones: BTreeMap<&'a str, Clone<'a>>,
    made: BTreeSet<&'a str>,
    lower: Option<&'a HostPath>,
}

impl<'a> View<'a> {
    /// Indexes a view.
    pub(crate) fn new(facts: &Facts<'a>, stage: &'a StagePlan) -> Self {
        let mut view = Self {
            facts: *facts,
            by_destination: BTreeMap::new(),
            clones: BTreeMap::new(),
            made: BTreeSet::new(),
            lower: None,
        };
        for (index, mount) in facts.mounts.iter().enumerate() {
            view.by_destination
                .insert(mount.destination.as_str(), index);
        }
        for step in &stage.steps {
            match step {
                StageStep::Directory { path, .. }
                | StageStep::File { path, .. }
                | StageStep::Fifo { path, .. }
                | StageStep::Device { path, .. } => {
                    view.made.insert(path.as_str());
                }
                StageStep::Bind {
                    source,
                    target,
                    kind,
                    ..
                } => {
                    let clone = Clone {
                        source,
                        kind: *kind,
                    };
                    view.clones.insert(target.as_str(), clone);
                }
                StageStep::Overlay { lower, .. } => view.lower = Some(lower),
                StageStep::Tmpfs { .. } | StageStep::Target { .. } => {}
            }
        }
        view
    }

    /// Says what a path resolves to.
    pub(crate) fn resolve(&self, path: &SandboxPath) -> Resolution {
        let Some(mount) = self.mount(path) else {
            return self.base(path);
        };
        let below = path.below(&mount.destination).unwrap_or_default();
        let (rule, source, access) = match mount.kind.as_str() {
            "bind" => self.bind(mount, path, below),
            "tmpfs" => Self::memory(mount, path, below),
            _ => self.kernel(mount, path),
        };
        Resolution {
            path: path.clone(),
            rule,
            mount: mount.destination.clone(),
            source,
            access,
        }
    }

    /// The mount that was made last of those at or above the path: it covers the others.
    fn mount(&self, path: &SandboxPath) -> Option<&'a OciMount> {
        let mut above = path.as_str();
        let mut last: Option<usize> = None;
        loop {
            last = last.max(self.by_destination.get(above).copied());
            match above.rfind('/') {
                Some(0) if above.len() > 1 => above = "/",
                Some(at) if at > 0 => above = above.get(..at).unwrap_or("/"),
                Some(_) | None => break,
            }
        }
        self.facts.mounts.get(last?)
    }

    fn base(&self, path: &SandboxPath) -> Resolution {
        Resolution {
            path: path.clone(),
            rule: ViewRule::Base,
            mount: SandboxPath::root(),
            source: self
                .lower
                .and_then(|lower| below(lower, path.as_str().trim_start_matches('/'))),
            access: if self.facts.read_only_root {
                Access::ReadOnly
            } else {
                Access::ReadWrite
            },
        }
    }

    fn kernel(&self, mount: &OciMount, path: &SandboxPath) -> Answer {
        if covers(self.facts.masked, path) {
            return (ViewRule::Masked, None, Access::ReadOnly);
        }
        let access = if mount.is_read_only() || covers(self.facts.read_only, path) {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        (ViewRule::Kernel, None, access)
    }

    fn memory(mount: &OciMount, path: &SandboxPath, below: &str) -> Answer {
        let rule = match mount.destination.as_str() {
            "/dev" if path.as_str() == "/dev" => ViewRule::Kernel,
            "/dev" => ViewRule::Device,
            "/run/casemate" => ViewRule::Init,
            "/dev/shm" | "/tmp" => ViewRule::Scratch,
            _ => ViewRule::Foreign,
        };
        let device = [
            "fd", "full", "null", "ptmx", "random", "stderr", "stdin", "stdout", "tty", "urandom",
            "zero", "console", "pts", "shm", "mqueue", "net",
        ];
        let access = if rule == ViewRule::Device && !device.contains(&below) {
            Access::Absent
        } else if mount.is_read_only() {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        (rule, None, access)
    }

    fn bind(&self, mount: &OciMount, path: &SandboxPath, below_mount: &str) -> Answer {
        let access = if mount.is_read_only() {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        if let Some(clone) = self.clones.get(mount.source.as_str()) {
            let rule = self.tree_rule(&mount.destination, clone.kind, access);
            return match (clone.kind, below_mount) {
                (ProjectionKind::File, below) if !below.is_empty() => (rule, None, Access::Absent),
                (ProjectionKind::File | ProjectionKind::Directory, _) => {
                    (rule, below(clone.source, below_mount), access)
                }
            };
        }
        let host = HostPath::parse(mount.source.clone())
            .ok()
            .and_then(|source| below(&source, below_mount));
        let exists = host
            .as_ref()
            .is_some_and(|host| self.made.contains(host.as_str()));
        let destination = mount.destination.as_str();
        if self.facts.workspace == Some(destination) {
            let access = if exists { access } else { Access::Absent };
            return (ViewRule::Skeleton, host.filter(|_| exists), access);
        }
        match destination {
            "/sys" => {
                let access = if below_mount.is_empty() {
                    access
                } else {
                    Access::Absent
                };
                (ViewRule::Kernel, None, access)
            }
            "/output" => (ViewRule::Output, host, access),
            _ if path.as_str().starts_with("/dev/") => (ViewRule::Device, host, access),
            _ if path.as_str().starts_with("/run/casemate/") => (ViewRule::Init, host, access),
            _ => (ViewRule::Foreign, host, access),
        }
    }

    fn tree_rule(
        &self,
        destination: &SandboxPath,
        kind: ProjectionKind,
        access: Access,
    ) -> ViewRule {
        let Some(workspace) = self.facts.workspace else {
            return match destination.components().next() {
                Some("workspace" | "input" | "runtime") => ViewRule::Projection,
                _ => ViewRule::Foreign,
            };
        };
        let Some(below) = destination
            .as_str()
            .strip_prefix(workspace)
            .and_then(|rest| rest.strip_prefix('/'))
        else {
            return match access {
                Access::ReadOnly => ViewRule::ExtraReadOnly,
                Access::ReadWrite | Access::Absent => ViewRule::Foreign,
            };
        };
        match (kind, below.split_once('/')) {
            (ProjectionKind::Directory, Some(("apps", _))) if self.facts.tile == Some(below) => {
                ViewRule::OwnTile
            }
            (ProjectionKind::Directory, Some(("apps", _))) => ViewRule::ReadableTile,
            (ProjectionKind::Directory, Some(("homes", _))) => ViewRule::Home,
            (ProjectionKind::File, None) => ViewRule::RootFile,
            (ProjectionKind::Directory | ProjectionKind::File, _) => ViewRule::Foreign,
        }
    }
}

type Answer = (ViewRule, Option<HostPath>, Access);

fn below(path: &HostPath, relative: &str) -> Option<HostPath> {
    if relative.is_empty() {
        return Some(path.clone());
    }
    path.join(relative).ok()
}

fn covers(list: &[String], path: &SandboxPath) -> bool {
    list.iter().any(|covered| {
        path.as_str()
            .strip_prefix(covered.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}
