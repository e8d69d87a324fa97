//! The view that the mounts of a bundle make, indexed for questions.

use std::collections::HashMap;

use super::{Access, OciMount, Resolution, StageText, ViewRule};
use crate::text::Text;
use crate::{HostPath, ProjectionKind, SandboxPath, StageStep, path};

/// What decides a view.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) mounts: &'a [OciMount<'a>],
    pub(crate) masked: &'a [Text<'a>],
    pub(crate) read_only: &'a [Text<'a>],
    pub(crate) read_only_root: bool,
    pub(crate) workspace: Option<&'a str>,
    pub(crate) tile: Option<&'a str>,
}

/// A clone that the stage plan puts below the stage.
#[derive(Debug, Clone, Copy)]
struct Clone<'a> {
    source: &'a str,
    kind: ProjectionKind,
}

/// A view, indexed.
#[derive(Debug)]
pub(crate) struct View<'a> {
    facts: Facts<'a>,
    by_destination: HashMap<&'a str, usize>,
    clones: HashMap<&'a str, Clone<'a>>,
    /// Asked about few paths, so it is not worth an index.
    made: Vec<&'a str>,
    lower: Option<&'a str>,
}

/// What decides a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decision<'a> {
    /// The deciding mount; none for the root.
    pub(crate) mount: Option<&'a OciMount<'a>>,
    /// The rule.
    pub(crate) rule: ViewRule,
    /// A path on the host and what of the path asked for lies below it.
    source: Option<(&'a str, &'a str)>,
    /// What the mount allows.
    pub(crate) access: Access,
}

impl<'a> View<'a> {
    /// Indexes a view.
    pub(crate) fn new(facts: &Facts<'a>, stage: &'a StageText<'a>) -> Self {
        let count = facts.mounts.len();
        let mut view = Self {
            facts: *facts,
            by_destination: HashMap::with_capacity(count),
            clones: HashMap::with_capacity(count),
            made: Vec::with_capacity(2 * count),
            lower: None,
        };
        for (index, mount) in facts.mounts.iter().enumerate() {
            view.by_destination.insert(&mount.destination, index);
        }
        for step in &stage.steps {
            match step {
                StageStep::Directory { path, .. }
                | StageStep::File { path, .. }
                | StageStep::Fifo { path, .. }
                | StageStep::Device { path, .. } => {
                    view.made.push(path);
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
                    view.clones.insert(target, clone);
                }
                StageStep::Overlay { lower, .. } => view.lower = Some(lower),
                StageStep::Tmpfs { .. } | StageStep::Target { .. } => {}
            }
        }
        view
    }

    /// Says what a path resolves to.
    pub(crate) fn resolve(&self, path: &SandboxPath) -> Resolution {
        let found = self.decide(path.as_str());
        let parse = |(source, below): (&str, &str)| {
            // A source that is no path is none.
            let source = HostPath::parse(source).ok()?;
            if below.is_empty() {
                return Some(source);
            }
            source.join(below).ok()
        };
        Resolution {
            path: path.clone(),
            rule: found.rule,
            mount: found
                .mount
                // The path itself lies there, so the destination is a path, too.
                .and_then(|mount| SandboxPath::parse(&*mount.destination).ok())
                .unwrap_or_else(SandboxPath::root),
            source: found.source.and_then(parse),
            access: found.access,
        }
    }

    /// Says what decides a path.
    pub(crate) fn decide<'p>(&'p self, path: &'p str) -> Decision<'p> {
        let Some(mount) = self.mount(path) else {
            return self.base(path);
        };
        let below = path::below(path, &mount.destination).unwrap_or_default();
        let (rule, source, access) = match &*mount.kind {
            "bind" => self.bind(mount, path, below),
            "tmpfs" => Self::memory(mount, path, below),
            _ => self.kernel(mount, path),
        };
        Decision {
            mount: Some(mount),
            rule,
            source,
            access,
        }
    }

    /// The mount that was made last of those at or above the path: it covers the others.
    fn mount(&self, path: &str) -> Option<&'a OciMount<'a>> {
        let mut above = path;
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

    fn base<'p>(&'p self, path: &'p str) -> Decision<'p> {
        Decision {
            mount: None,
            rule: ViewRule::Base,
            source: self
                .lower
                .map(|lower| (lower, path.trim_start_matches('/'))),
            access: if self.facts.read_only_root {
                Access::ReadOnly
            } else {
                Access::ReadWrite
            },
        }
    }

    fn kernel<'p>(&self, mount: &OciMount<'_>, path: &str) -> Answer<'p> {
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

    fn memory<'p>(mount: &OciMount<'_>, path: &str, below: &str) -> Answer<'p> {
        let rule = match &*mount.destination {
            "/dev" if path == "/dev" => ViewRule::Kernel,
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

    fn bind<'p>(&'p self, mount: &'p OciMount<'p>, path: &str, below: &'p str) -> Answer<'p> {
        let access = if mount.is_read_only() {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        let destination = &*mount.destination;
        if let Some(clone) = self.clones.get(&*mount.source) {
            let rule = self.tree_rule(destination, clone.kind, access);
            return match clone.kind {
                ProjectionKind::File if !below.is_empty() => (rule, None, Access::Absent),
                ProjectionKind::File | ProjectionKind::Directory => {
                    (rule, Some((clone.source, below)), access)
                }
            };
        }
        let host = (&*mount.source, below);
        if self.facts.workspace == Some(destination) {
            return if self.is_made(host) {
                (ViewRule::Skeleton, Some(host), access)
            } else {
                (ViewRule::Skeleton, None, Access::Absent)
            };
        }
        match destination {
            "/sys" => {
                let access = if below.is_empty() {
                    access
                } else {
                    Access::Absent
                };
                (ViewRule::Kernel, None, access)
            }
            "/output" => (ViewRule::Output, Some(host), access),
            _ if path.starts_with("/dev/") => (ViewRule::Device, Some(host), access),
            _ if path.starts_with("/run/casemate/") => (ViewRule::Init, Some(host), access),
            _ => (ViewRule::Foreign, Some(host), access),
        }
    }

    fn is_made(&self, (source, below): (&str, &str)) -> bool {
        if below.is_empty() {
            return self.made.contains(&source);
        }
        self.made.contains(&format!("{source}/{below}").as_str())
    }

    fn tree_rule(&self, destination: &str, kind: ProjectionKind, access: Access) -> ViewRule {
        let Some(workspace) = self.facts.workspace else {
            return match destination.split('/').nth(1) {
                Some("workspace" | "input" | "runtime") => ViewRule::Projection,
                _ => ViewRule::Foreign,
            };
        };
        let Some(below) = destination
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

type Answer<'p> = (ViewRule, Option<(&'p str, &'p str)>, Access);

fn covers(list: &[Text<'_>], path: &str) -> bool {
    list.iter()
        .any(|covered| path::below(path, covered).is_some())
}
