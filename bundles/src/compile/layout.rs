//! What lies where below the stage, and which trees become which mounts.
//!
//! Names below the stage are ordinals: the payload sees them in `mountinfo` (E-56).
//!
//! ```text
//! <stage>/bundle/{config.json,guard.json,stage.json,report,rootfs/}
//!         upper/{upper,work,output}   memory, or the placement's directory on disk
//!         view/                       the skeleton of the workspace
//!         sys/                        an empty /sys, where sysfs cannot be mounted
//!         dev/{fuse,tun}              an administrator's devices
//!         mounts/0, 1, …              ID-mapped clones
//! ```

use super::profile::{self, OwnTile, View};
use crate::{
    CompileError, HostPath, HostSupport, IdMapLine, LaunchPlan, Network, Placement, PlanCode,
    PlanRefusal, ProcessView, ProjectionKind, SandboxPath, Slice, Tier, Upper, WorkspaceView,
    bundle,
};

/// A tree or file of the host that the payload sees.
#[derive(Debug)]
pub(super) struct Tree {
    /// What.
    pub(super) source: HostPath,
    /// Its clone below the stage.
    pub(super) clone: HostPath,
    /// Where the payload sees it.
    pub(super) target: SandboxPath,
    /// What it must be.
    pub(super) kind: ProjectionKind,
    /// How ids on disk are seen.
    pub(super) id_map: Vec<IdMapLine>,
    /// Whether the payload may write it.
    pub(super) writable: bool,
}

/// A device of its own that an administrator's terminal gets.
#[derive(Debug, Clone)]
pub(super) struct OwnDevice {
    /// Its node below the stage.
    pub(super) node: HostPath,
    /// Where the payload sees it.
    pub(super) target: &'static str,
    /// Major number.
    pub(super) major: u32,
    /// Minor number.
    pub(super) minor: u32,
}

/// Names of everything that is made for one sandbox.
#[derive(Debug)]
pub(super) struct Layout {
    /// Directory of the bundle.
    pub(super) bundle: HostPath,
    /// Where the root overlay is mounted.
    pub(super) rootfs: HostPath,
    /// The guard plan.
    pub(super) guard: HostPath,
    /// The report FIFO.
    pub(super) report: HostPath,
    /// Holds `upper`, `work` and `output`.
    pub(super) changes: HostPath,
    /// The overlay's upper.
    pub(super) upper: HostPath,
    /// The overlay's own directory.
    pub(super) work: HostPath,
    /// The run's output directory.
    pub(super) output: Option<HostPath>,
    /// The workspace's path and its skeleton below the stage.
    pub(super) skeleton: Option<(SandboxPath, HostPath)>,
    /// An empty `/sys`.
    pub(super) sys: Option<HostPath>,
    /// Where devices are.
    pub(super) devices_dir: HostPath,
    /// An administrator's devices.
    pub(super) devices: Vec<OwnDevice>,
    /// Where clones are.
    pub(super) mounts: HostPath,
    /// Every tree, ancestors first.
    pub(super) trees: Vec<Tree>,
}

impl Layout {
    /// Lays out a plan that was checked.
    pub(super) fn new(
        plan: &LaunchPlan,
        placement: &Placement,
        host: &HostSupport,
    ) -> Result<Self, CompileError> {
        let stage = &placement.stage;
        let bundle = below(stage, bundle::BUNDLE_DIR)?;
        let changes = match &placement.upper {
            Upper::Memory(_) => below(stage, "upper")?,
            Upper::Disk(dir) => dir.clone(),
        };
        let mounts = below(stage, "mounts")?;
        let devices_dir = below(stage, "dev")?;
        let mut trees = Trees {
            mounts: &mounts,
            list: Vec::new(),
        };
        let mut output = None;
        let mut skeleton = None;
        match profile::view(&plan.profile) {
            View::Workspace(view, own) => {
                trees.workspace(view, own, placement.ids)?;
                skeleton = Some((inside(view.root.as_str())?, below(stage, "view")?));
            }
            View::Process(view) => {
                trees.process(view, placement.ids)?;
                if view.output {
                    output = Some(below(&changes, "output")?);
                }
            }
        }
        let list = trees.list;
        let sys = match profile::network(&plan.profile) {
            // A user namespace that does not own the network namespace cannot mount sysfs.
            Network::Host => Some(below(stage, "sys")?),
            Network::None => None,
        };
        Ok(Self {
            rootfs: below(&bundle, bundle::file::ROOTFS)?,
            guard: below(&bundle, bundle::file::GUARD)?,
            report: below(&bundle, bundle::file::REPORT)?,
            upper: below(&changes, "upper")?,
            work: below(&changes, "work")?,
            devices: devices(plan, host, &devices_dir)?,
            trees: list,
            bundle,
            changes,
            output,
            skeleton,
            sys,
            devices_dir,
            mounts,
        })
    }
}

fn devices(
    plan: &LaunchPlan,
    host: &HostSupport,
    dir: &HostPath,
) -> Result<Vec<OwnDevice>, CompileError> {
    match &plan.profile {
        crate::Profile::Terminal {
            tier: Tier::Admin { .. },
            ..
        } => {}
        crate::Profile::Terminal {
            tier: Tier::Restricted { .. },
            ..
        }
        | crate::Profile::Backend { .. }
        | crate::Profile::Process { .. } => return Ok(Vec::new()),
    }
    let mut devices = Vec::new();
    if host.fuse {
        devices.push(OwnDevice {
            node: below(dir, "fuse")?,
            target: "/dev/fuse",
            major: 10,
            minor: 229,
        });
    }
    if host.tun {
        devices.push(OwnDevice {
            node: below(dir, "tun")?,
            target: "/dev/net/tun",
            major: 10,
            minor: 200,
        });
    }
    Ok(devices)
}

struct Trees<'a> {
    mounts: &'a HostPath,
    list: Vec<Tree>,
}

impl Trees<'_> {
    fn workspace(
        &mut self,
        view: &WorkspaceView,
        own: OwnTile,
        ids: Slice,
    ) -> Result<(), CompileError> {
        let root = &view.root;
        for path in sorted(&view.extra_ro) {
            let tree = (path.clone(), inside(path.as_str())?);
            self.add(tree, ProjectionKind::Directory, Vec::new(), false)?;
        }
        for name in sorted(&view.root_files) {
            let map = vec![single(view.service, ids)];
            self.add(both(root, name.as_str())?, ProjectionKind::File, map, false)?;
        }
        let mut tiles: Vec<_> = view.readable.iter().map(|tile| (tile, false)).collect();
        tiles.push((&view.own, own == OwnTile::Writable));
        tiles.sort_unstable();
        for (tile, writable) in tiles {
            let map = owned(view.service, tile.slice, ids);
            self.add(
                both(root, tile.id.as_str())?,
                ProjectionKind::Directory,
                map,
                writable,
            )?;
        }
        if let Some(home) = &view.home {
            let map = owned(view.service, home.slice, ids);
            self.add(
                both(root, &format!("homes/{}", home.id))?,
                ProjectionKind::Directory,
                map,
                true,
            )?;
        }
        Ok(())
    }

    fn process(&mut self, view: &ProcessView, ids: Slice) -> Result<(), CompileError> {
        let mut projections: Vec<_> = view.projections.iter().collect();
        projections.sort_unstable_by_key(|projection| &projection.target);
        for projection in projections {
            self.add(
                (projection.source.clone(), projection.target.clone()),
                projection.kind,
                vec![single(projection.owner, ids)],
                false,
            )?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        (source, target): (HostPath, SandboxPath),
        kind: ProjectionKind,
        id_map: Vec<IdMapLine>,
        writable: bool,
    ) -> Result<(), CompileError> {
        let clone = below(self.mounts, &self.list.len().to_string())?;
        self.list.push(Tree {
            source,
            clone,
            target,
            kind,
            id_map,
            writable,
        });
        Ok(())
    }
}

fn sorted<T: Ord>(items: &[T]) -> Vec<&T> {
    let mut sorted: Vec<&T> = items.iter().collect();
    sorted.sort_unstable();
    sorted
}

/// One id on disk, seen as the sandbox's root.
const fn single(disk: u32, ids: Slice) -> IdMapLine {
    IdMapLine {
        disk,
        kernel: ids.first(),
        count: 1,
    }
}

/// The service as the sandbox's root, the tree's other ids as the sandbox's.
fn owned(service: u32, tree: Slice, ids: Slice) -> Vec<IdMapLine> {
    vec![
        single(service, ids),
        IdMapLine {
            disk: tree.first() + 1,
            kernel: ids.first() + 1,
            count: Slice::LEN - 1,
        },
    ]
}

/// The same relative path below the workspace on the host and in the sandbox.
fn both(root: &HostPath, relative: &str) -> Result<(HostPath, SandboxPath), CompileError> {
    let source = below(root, relative)?;
    let target = inside(source.as_str())?;
    Ok((source, target))
}

fn below(path: &HostPath, relative: &str) -> Result<HostPath, CompileError> {
    path.join(relative).map_err(invalid)
}

fn inside(path: &str) -> Result<SandboxPath, CompileError> {
    SandboxPath::parse(path).map_err(invalid)
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the shape that map_err wants"
)]
fn invalid(error: crate::PathError) -> CompileError {
    let message = match error {
        // The only one that joining parts that are valid already can give.
        crate::PathError::TooLong(bytes) => {
            format!("a mount path of the sandbox would be {bytes} bytes long")
        }
        crate::PathError::NotAbsolute(_)
        | crate::PathError::NotNormalised(_)
        | crate::PathError::ControlCharacter(_) => "a mount path is not valid".to_owned(),
    };
    PlanRefusal::new(PlanCode::InvalidMount, message).into()
}
