//! `stage.json`: what is made and mounted before an OCI runtime starts.

use super::layout::{Layout, Skeleton, Tree};
use super::profile::{self, View};
use crate::{
    HostOwner, HostPath, IdMapLine, LaunchPlan, Placement, ProjectionKind, Slice, StagePlan,
    StageStep, Upper,
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

/// Of a layer, which is kept: the upper is bound to its base and used once at a time.
const LAYER_OPTIONS: [&str; 4] = ["redirect_dir=on", "index=on", "metacopy=off", "xino=off"];

/// Targets that a runtime mounts on and that a hostile base must not have replaced by a symlink
/// (E-11).
const KERNEL_TARGETS: [&str; 4] = ["/dev", "/proc", "/run/casemate", "/sys"];

/// Returns the steps.
pub(super) fn plan<'a>(
    layout: &'a Layout,
    plan: &LaunchPlan,
    placement: &'a Placement,
) -> StagePlan<&'a str, &'a str> {
    let mut stage = Steps {
        ids: placement.ids,
        sandbox: HostOwner {
            uid: placement.ids.first(),
            gid: placement.ids.first(),
        },
        list: Vec::with_capacity(32 + 4 * layout.trees.len()),
    };
    stage.bundle(layout);
    stage.changes(layout, placement);
    if let Some(skeleton) = &layout.skeleton {
        stage.skeleton(layout, skeleton);
    }
    if let Some(sys) = &layout.sys {
        stage.directory(sys.as_str(), ROOT, 0o555);
    }
    stage.devices(layout);
    stage.clones(layout);
    stage.overlay(layout, placement);
    stage.targets(layout, plan);
    StagePlan { steps: stage.list }
}

struct Steps<'a> {
    ids: Slice,
    sandbox: HostOwner,
    list: Vec<StageStep<&'a str, &'a str>>,
}

impl<'a> Steps<'a> {
    fn directory(&mut self, path: &'a str, owner: HostOwner, mode: u32) {
        self.list.push(StageStep::Directory { path, owner, mode });
    }

    /// A mount target outside the root: an empty directory or file of host root.
    fn placeholder(&mut self, path: &'a HostPath, kind: ProjectionKind) {
        let path = path.as_str();
        match kind {
            ProjectionKind::Directory => self.directory(path, ROOT, 0o555),
            ProjectionKind::File => self.list.push(StageStep::File {
                path,
                owner: ROOT,
                mode: 0o444,
            }),
        }
    }

    /// A directory that the sandbox's root may pass through but neither list nor change.
    fn passage(&mut self, path: &'a HostPath) {
        let owner = HostOwner {
            uid: 0,
            gid: self.sandbox.gid,
        };
        self.directory(path.as_str(), owner, 0o710);
    }

    fn bundle(&mut self, layout: &'a Layout) {
        self.passage(&layout.bundle);
        self.passage(&layout.rootfs);
        self.list.push(StageStep::Fifo {
            path: layout.report.as_str(),
            owner: self.sandbox,
            mode: 0o600,
        });
    }

    fn changes(&mut self, layout: &'a Layout, placement: &'a Placement) {
        match &placement.upper {
            Upper::Memory(bytes) => {
                self.passage(&layout.changes);
                self.list.push(StageStep::Tmpfs {
                    path: layout.changes.as_str(),
                    bytes: *bytes,
                    devices: false,
                });
            }
            // Made empty by the spawner.
            Upper::Disk(_) => {}
            // All there, with what earlier sessions have changed.
            Upper::Layer(_) => return,
        }
        let sandbox = self.sandbox;
        self.directory(layout.upper.as_str(), sandbox, 0o755);
        self.directory(layout.work.as_str(), sandbox, 0o700);
        if let Some(output) = &layout.output {
            self.directory(output.as_str(), sandbox, 0o755);
        }
    }

    fn skeleton(&mut self, layout: &'a Layout, skeleton: &'a Skeleton) {
        let view = skeleton.view.as_str();
        self.directory(view, ROOT, 0o555);
        // Mount points only; a directory of the host's would show which disk it is on.
        self.list.push(StageStep::Tmpfs {
            path: view,
            bytes: 4096,
            devices: false,
        });
        for path in &skeleton.fixed {
            self.directory(path.as_str(), ROOT, 0o555);
        }
        // Trees are sorted, so those with a parent in common stand together.
        let mut last = "";
        for tree in &layout.trees {
            let Some(path) = &tree.placeholder else {
                continue;
            };
            let text = path.as_str();
            // The first level is fixed.
            let parents = text
                .match_indices('/')
                .filter(|(at, _slash)| *at > view.len())
                .skip(1);
            for (at, _slash) in parents {
                let made = text
                    .get(..=at)
                    .is_some_and(|parent| last.starts_with(parent));
                if let (false, Some(parent)) = (made, text.get(..at)) {
                    self.directory(parent, ROOT, 0o555);
                }
            }
            self.placeholder(path, tree.kind);
            last = text;
        }
    }

    fn devices(&mut self, layout: &'a Layout) {
        if layout.devices.is_empty() {
            return;
        }
        self.passage(&layout.devices_dir);
        self.list.push(StageStep::Tmpfs {
            path: layout.devices_dir.as_str(),
            bytes: 4096,
            devices: true,
        });
        for device in &layout.devices {
            self.list.push(StageStep::Device {
                path: device.node.as_str(),
                major: device.major,
                minor: device.minor,
                mode: 0o666,
            });
        }
    }

    fn clones(&mut self, layout: &'a Layout) {
        if layout.trees.is_empty() {
            return;
        }
        self.passage(&layout.mounts);
        for tree in &layout.trees {
            self.clone(tree);
        }
    }

    fn clone(&mut self, tree: &'a Tree) {
        self.placeholder(&tree.clone, tree.kind);
        self.list.push(StageStep::Bind {
            source: tree.source.as_str(),
            target: tree.clone.as_str(),
            kind: tree.kind,
            id_map: tree.id_map.lines(self.ids),
            read_only: !tree.writable,
        });
    }

    fn overlay(&mut self, layout: &'a Layout, placement: &'a Placement) {
        self.list.push(StageStep::Overlay {
            lower: placement.base.as_str(),
            // Stored 0-based.
            lower_map: vec![IdMapLine {
                disk: 0,
                kernel: placement.ids.first(),
                count: Slice::LEN,
            }],
            upper: layout.upper.as_str(),
            work: layout.work.as_str(),
            target: layout.rootfs.as_str(),
            options: match &placement.upper {
                Upper::Memory(_) | Upper::Disk(_) => OVERLAY_OPTIONS.map(str::to_owned).to_vec(),
                Upper::Layer(_) => LAYER_OPTIONS.map(str::to_owned).to_vec(),
            },
        });
    }

    fn targets(&mut self, layout: &'a Layout, plan: &LaunchPlan) {
        for path in KERNEL_TARGETS {
            self.target(layout, path, ProjectionKind::Directory);
        }
        if let Some(skeleton) = &layout.skeleton {
            let workspace = skeleton.workspace.as_str();
            self.target(layout, workspace, ProjectionKind::Directory);
            for tree in &layout.trees {
                if tree.placeholder.is_none() {
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

    fn target(&mut self, layout: &'a Layout, path: &'a str, kind: ProjectionKind) {
        self.list.push(StageStep::Target {
            root: layout.rootfs.as_str(),
            path,
            kind,
            owner: self.sandbox,
        });
    }
}
