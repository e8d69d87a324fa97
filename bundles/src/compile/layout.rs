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
    /// Its placeholder in the skeleton of the workspace, where it is put on one.
    pub(super) placeholder: Option<HostPath>,
    /// How ids on disk are seen.
    pub(super) id_map: IdMap,
    /// Whether the payload may write it.
    pub(super) writable: bool,
}

/// How ids on disk are seen in the sandbox.
#[derive(Debug, Clone, Copy)]
pub(super) enum IdMap {
    /// As they are.
    AsIs,
    /// One id as the sandbox's root.
    Single(u32),
    /// The service as the sandbox's root, the tree's other ids as the sandbox's.
    Owned(u32, Slice),
}

impl IdMap {
    /// Returns the lines for a sandbox.
    pub(super) fn lines(self, ids: Slice) -> Vec<IdMapLine> {
        let single = |disk| IdMapLine {
            disk,
            kernel: ids.first(),
            count: 1,
        };
        match self {
            Self::AsIs => Vec::new(),
            Self::Single(disk) => vec![single(disk)],
            Self::Owned(service, tree) => vec![
                single(service),
                IdMapLine {
                    disk: tree.first() + 1,
                    kernel: ids.first() + 1,
                    count: Slice::LEN - 1,
                },
            ],
        }
    }
}

/// The skeleton of a workspace.
#[derive(Debug)]
pub(super) struct Skeleton {
    /// The workspace's path.
    pub(super) workspace: SandboxPath,
    /// Where it lies below the stage.
    pub(super) view: HostPath,
    /// What every workspace has in it, though nothing may be mounted there.
    pub(super) fixed: [HostPath; 4],
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
    /// The skeleton of the workspace.
    pub(super) skeleton: Option<Skeleton>,
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
            Upper::Disk(dir) | Upper::Layer(dir) => dir.clone(),
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
                let path = below(stage, "view")?;
                trees.workspace(view, own, &path)?;
                skeleton = Some(Skeleton {
                    workspace: inside(view.root.as_str())?,
                    fixed: [
                        below(&path, ".xbin")?,
                        below(&path, "apps")?,
                        below(&path, "data")?,
                        below(&path, "homes")?,
                    ],
                    view: path,
                });
            }
            View::Process(view) => {
                trees.process(view)?;
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
        skeleton: &HostPath,
    ) -> Result<(), CompileError> {
        for path in sorted(&view.extra_ro) {
            let place = Place {
                source: path.clone(),
                target: inside(path.as_str())?,
                placeholder: None,
            };
            self.add(place, ProjectionKind::Directory, IdMap::AsIs, false)?;
        }
        let place = |relative: &str| {
            let source = below(&view.root, relative)?;
            Ok::<_, CompileError>(Place {
                target: inside(source.as_str())?,
                source,
                placeholder: Some(below(skeleton, relative)?),
            })
        };
        for name in sorted(&view.root_files) {
            let map = IdMap::Single(view.service);
            self.add(place(name.as_str())?, ProjectionKind::File, map, false)?;
        }
        let mut tiles: Vec<_> = view.readable.iter().map(|tile| (tile, false)).collect();
        tiles.push((&view.own, own == OwnTile::Writable));
        tiles.sort_unstable();
        for (tile, writable) in tiles {
            let map = IdMap::Owned(view.service, tile.slice);
            let place = place(tile.id.as_str())?;
            self.add(place, ProjectionKind::Directory, map, writable)?;
        }
        if let Some(home) = &view.home {
            let map = IdMap::Owned(view.service, home.slice);
            let place = place(&format!("homes/{}", home.id))?;
            self.add(place, ProjectionKind::Directory, map, true)?;
        }
        Ok(())
    }

    fn process(&mut self, view: &ProcessView) -> Result<(), CompileError> {
        let mut projections: Vec<_> = view.projections.iter().collect();
        projections.sort_unstable_by_key(|projection| &projection.target);
        for projection in projections {
            let place = Place {
                source: projection.source.clone(),
                target: projection.target.clone(),
                placeholder: None,
            };
            let map = IdMap::Single(projection.owner);
            self.add(place, projection.kind, map, false)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        place: Place,
        kind: ProjectionKind,
        id_map: IdMap,
        writable: bool,
    ) -> Result<(), CompileError> {
        let clone = below(self.mounts, &self.list.len().to_string())?;
        self.list.push(Tree {
            source: place.source,
            clone,
            target: place.target,
            kind,
            placeholder: place.placeholder,
            id_map,
            writable,
        });
        Ok(())
    }
}

/// Where a tree comes from and goes to.
struct Place {
    source: HostPath,
    target: SandboxPath,
    placeholder: Option<HostPath>,
}

fn sorted<T: Ord>(items: &[T]) -> Vec<&T> {
    let mut sorted: Vec<&T> = items.iter().collect();
    sorted.sort_unstable();
    sorted
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
