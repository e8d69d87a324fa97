//! `stage.json`: what is made and mounted before an OCI runtime starts.

use std::collections::BTreeSet;

use super::layout::{Layout, Tree};
use super::profile::{self, View};
use crate::{
    HostOwner, HostPath, IdMapLine, LaunchPlan, Placement, ProjectionKind, SandboxPath, Slice,
    StagePlan, StageStep, Upper,
};

const ROOT: HostOwner = HostOwner { uid: 0, gid: 0 };

/// Of an ephemeral root; mounted in the initial user namespace.
const OVERLAY_OPTIONS: [&str; 5] = [
    "redirect_dir=on",
    "index=off",
    "metacopy=off",
    "xino=off",
    "volatile",
];

/// Targets that a runtime mounts on and that a hostile base must not have replaced by a symlink
/// (E-11).
const KERNEL_TARGETS: [&str; 4] = ["/dev", "/proc", "/run/casemate", "/sys"];

/// Returns the steps.
pub(super) fn plan(layout: &Layout, plan: &LaunchPlan, placement: &Placement) -> StagePlan {
    let mut stage = Steps {
        sandbox: HostOwner {
            uid: placement.ids.first(),
            gid: placement.ids.first(),
        },
        steps: Vec::with_capacity(24 + 4 * layout.trees.len()),
    };
    stage.bundle(layout);
    stage.changes(layout, placement);
    if let Some((workspace, view)) = &layout.skeleton {
        stage.skeleton(layout, workspace, view);
    }
    if let Some(sys) = &layout.sys {
        stage.directory(sys, ROOT, 0o555);
    }
    stage.devices(layout);
    stage.clones(layout);
    stage.overlay(layout, placement);
    stage.targets(layout, plan);
    StagePlan { steps: stage.steps }
}

struct Steps {
    sandbox: HostOwner,
    steps: Vec<StageStep>,
}

impl Steps {
    fn directory(&mut self, path: &HostPath, owner: HostOwner, mode: u32) {
        self.steps.push(StageStep::Directory {
            path: path.clone(),
            owner,
            mode,
        });
    }

    /// A directory that the sandbox's root may pass through but neither list nor change.
    fn passage(&mut self, path: &HostPath) {
        let owner = HostOwner {
            uid: 0,
            gid: self.sandbox.gid,
        };
        self.directory(path, owner, 0o710);
    }

    fn bundle(&mut self, layout: &Layout) {
        self.passage(&layout.bundle);
        self.passage(&layout.rootfs);
        self.steps.push(StageStep::Fifo {
            path: layout.report.clone(),
            owner: self.sandbox,
            mode: 0o600,
        });
    }

    fn changes(&mut self, layout: &Layout, placement: &Placement) {
        match &placement.upper {
            Upper::Memory(bytes) => {
                self.passage(&layout.changes);
                self.steps.push(StageStep::Tmpfs {
                    path: layout.changes.clone(),
                    bytes: *bytes,
                    devices: false,
                });
            }
            // Made empty by the spawner.
            Upper::Disk(_) => {}
        }
        let sandbox = self.sandbox;
        self.directory(&layout.upper, sandbox, 0o755);
        self.directory(&layout.work, sandbox, 0o700);
        if let Some(output) = &layout.output {
            self.directory(output, sandbox, 0o755);
        }
    }

    fn skeleton(&mut self, layout: &Layout, workspace: &SandboxPath, view: &HostPath) {
        self.directory(view, ROOT, 0o555);
        let mut made = BTreeSet::new();
        for name in [".xbin", "apps", "data", "homes"] {
            self.skeleton_directory(view, name, &mut made);
        }
        for tree in &layout.trees {
            let Some(below) = tree.target.below(workspace) else {
                continue;
            };
            let mut parents = below.match_indices('/').map(|(at, _slash)| at);
            for end in parents.by_ref() {
                let parent = below.get(..end).unwrap_or(below);
                self.skeleton_directory(view, parent, &mut made);
            }
            match tree.kind {
                ProjectionKind::Directory => self.skeleton_directory(view, below, &mut made),
                ProjectionKind::File => {
                    if let Ok(path) = view.join(below) {
                        self.steps.push(StageStep::File {
                            path,
                            owner: ROOT,
                            mode: 0o444,
                        });
                    }
                }
            }
        }
    }

    fn skeleton_directory(&mut self, view: &HostPath, below: &str, made: &mut BTreeSet<String>) {
        if made.insert(below.to_owned())
            && let Ok(path) = view.join(below)
        {
            self.directory(&path, ROOT, 0o555);
        }
    }

    fn devices(&mut self, layout: &Layout) {
        if layout.devices.is_empty() {
            return;
        }
        self.passage(&layout.devices_dir);
        self.steps.push(StageStep::Tmpfs {
            path: layout.devices_dir.clone(),
            bytes: 4096,
            devices: true,
        });
        for device in &layout.devices {
            self.steps.push(StageStep::Device {
                path: device.node.clone(),
                major: device.major,
                minor: device.minor,
                mode: 0o666,
            });
        }
    }

    fn clones(&mut self, layout: &Layout) {
        if layout.trees.is_empty() {
            return;
        }
        self.passage(&layout.mounts);
        for tree in &layout.trees {
            self.clone(tree);
        }
    }

    fn clone(&mut self, tree: &Tree) {
        match tree.kind {
            ProjectionKind::Directory => self.directory(&tree.clone, ROOT, 0o555),
            ProjectionKind::File => self.steps.push(StageStep::File {
                path: tree.clone.clone(),
                owner: ROOT,
                mode: 0o444,
            }),
        }
        self.steps.push(StageStep::Bind {
            source: tree.source.clone(),
            target: tree.clone.clone(),
            kind: tree.kind,
            id_map: tree.id_map.clone(),
            read_only: !tree.writable,
        });
    }

    fn overlay(&mut self, layout: &Layout, placement: &Placement) {
        self.steps.push(StageStep::Overlay {
            lower: placement.base.clone(),
            // Stored 0-based.
            lower_map: vec![IdMapLine {
                disk: 0,
                kernel: placement.ids.first(),
                count: Slice::LEN,
            }],
            upper: layout.upper.clone(),
            work: layout.work.clone(),
            target: layout.rootfs.clone(),
            options: OVERLAY_OPTIONS.map(str::to_owned).to_vec(),
        });
    }

    fn targets(&mut self, layout: &Layout, plan: &LaunchPlan) {
        for path in KERNEL_TARGETS {
            self.target(layout, path, ProjectionKind::Directory);
        }
        if let Some((workspace, _view)) = &layout.skeleton {
            self.target(layout, workspace.as_str(), ProjectionKind::Directory);
            for tree in &layout.trees {
                if !tree.target.is_within(workspace) {
                    self.target(layout, tree.target.as_str(), tree.kind);
                }
            }
        }
        match profile::view(&plan.profile) {
            View::Workspace(..) => {}
            View::Process(view) => {
                self.target(layout, "/tmp", ProjectionKind::Directory);
                if view.output {
                    self.target(layout, "/output", ProjectionKind::Directory);
                }
                for tree in &layout.trees {
                    self.target(layout, tree.target.as_str(), tree.kind);
                }
            }
        }
    }

    fn target(&mut self, layout: &Layout, path: &str, kind: ProjectionKind) {
        if let Ok(path) = SandboxPath::parse(path) {
            self.steps.push(StageStep::Target {
                root: layout.rootfs.clone(),
                path,
                kind,
                owner: self.sandbox,
            });
        }
    }
}
