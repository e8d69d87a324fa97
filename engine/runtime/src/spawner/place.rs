//! Decides where a sandbox goes and what it may be made of.

use std::os::fd::OwnedFd;
use std::path::Path;

use casemate_bundles::{
    Component, Digest, HostPath, LaunchPlan, Limits, Placement, Profile, Slice, Tier, Upper,
    WorkspaceView,
};
use casemate_protocol::LaunchError;
use casemate_sys::dir::{Dir, Owner};
use rustix::fs::{FlockOperation, OFlags, flock};

use super::Spawner;

/// Parts of a workspace that may be a projection's source.
const PROJECTABLE: [&str; 3] = ["apps", "homes", "files"];

/// A placement with the lock on its base.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) placement: Placement,
    pub(crate) base_lock: OwnedFd,
}

/// Chooses the placement of a plan.
pub(crate) fn place(
    spawner: &Spawner,
    plan: &LaunchPlan,
    ids: Slice,
) -> Result<Placed, LaunchError> {
    let id = plan.id.as_str();
    let path = |joined: Result<HostPath, casemate_bundles::PathError>| {
        joined.map_err(|_too_long| engine("paths", 0))
    };
    let (base, base_lock) = base(spawner, &plan.base)?;
    let cgroup = spawner.parents.path_of(id);
    Ok(Placed {
        placement: Placement {
            stage: path(spawner.run_dir_path.join(id))?,
            init: spawner.init.clone(),
            base,
            upper: match &plan.profile {
                Profile::Process { limits, .. } => Upper::Memory(limits.memory.get()),
                Profile::Terminal { .. } | Profile::Backend { .. } => {
                    Upper::Disk(path(spawner.root.join(&format!("scratch/{id}")))?)
                }
            },
            ids,
            cgroup: path(HostPath::parse(cgroup.to_string_lossy()))?,
        },
        base_lock,
    })
}

/// Makes the directory on disk that takes the changes; one that is there already is a leftover.
pub(crate) fn make_changes(root: &Dir, placement: &Placement) -> casemate_sys::Result<()> {
    let Upper::Disk(path) = &placement.upper else {
        return Ok(());
    };
    let owner = Owner { uid: 0, gid: 0 };
    root.ensure_dirs(Path::new("scratch"), 0o700, owner)?;
    let scratch = root.open_dir(Path::new("scratch"))?;
    let name = Path::new(path.components().last().unwrap_or_default());
    scratch.remove_tree(name)?;
    scratch.make_dir(name, 0o700, owner)
}

/// What a profile may take; `None` for an administrator.
pub(crate) const fn limits(plan: &LaunchPlan) -> Option<&Limits> {
    match &plan.profile {
        Profile::Terminal {
            tier: Tier::Admin { .. },
            ..
        } => None,
        Profile::Terminal {
            tier: Tier::Restricted { limits },
            ..
        }
        | Profile::Backend { limits, .. }
        | Profile::Process { limits, .. } => Some(limits),
    }
}

fn base(spawner: &Spawner, chain: &Digest) -> Result<(HostPath, OwnedFd), LaunchError> {
    let missing = || LaunchError::Unavailable {
        component: Component::Base,
        hint: "the base snapshot is not in the store: import it with rootfs-tools".to_owned(),
    };
    let below = format!("snapshots/sha256/{}", chain.hex());
    let lock = spawner
        .root_dir
        .open(
            &Path::new(&below).join("use"),
            OFlags::RDWR | OFlags::CREATE,
        )
        .map_err(|error| {
            tracing::warn!(%error, "no base");
            missing()
        })?;
    flock(&lock, FlockOperation::NonBlockingLockShared).map_err(|_being_removed| missing())?;
    let below = base_below(chain);
    spawner
        .root_dir
        .open_dir(Path::new(&below))
        .map_err(|_absent| missing())?;
    let path = spawner
        .root
        .join(&below)
        .map_err(|_too_long| engine("paths", 0))?;
    Ok((path, lock))
}

/// Directories that the operator has named: the only ones that a sandbox may show parts of.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) workspace: Option<HostPath>,
    pub(crate) extra_ro: Vec<HostPath>,
}

impl Shown {
    /// Refuses a plan with sources elsewhere; says which, without host paths.
    pub(crate) fn check(&self, plan: &LaunchPlan) -> Result<(), String> {
        match &plan.profile {
            Profile::Terminal { view, .. } | Profile::Backend { view, .. } => self.check_view(view),
            Profile::Process { view, .. } => view.projections.iter().try_for_each(|projection| {
                let source = &projection.source;
                if self.is_projectable(source) || self.is_extra(source) {
                    Ok(())
                } else {
                    Err(format!(
                        "the source of {} is outside what this engine may show",
                        projection.target
                    ))
                }
            }),
        }
    }

    fn is_projectable(&self, source: &HostPath) -> bool {
        self.workspace.as_ref().is_some_and(|workspace| {
            source.below(workspace).is_some_and(|below| {
                let first = below.split('/').next().unwrap_or_default();
                PROJECTABLE.contains(&first)
                    || (!below.contains('/') && !below.is_empty() && is_root_file(below))
            })
        })
    }

    fn check_view(&self, view: &WorkspaceView) -> Result<(), String> {
        if self.workspace.as_ref() != Some(&view.root) {
            return Err("the workspace is not the one that this engine was started for".to_owned());
        }
        match view.extra_ro.iter().position(|path| !self.is_extra(path)) {
            None => Ok(()),
            Some(index) => Err(format!(
                "extra_ro[{index}] is outside what this engine may show"
            )),
        }
    }

    fn is_extra(&self, path: &HostPath) -> bool {
        self.extra_ro.iter().any(|root| path.is_within(root))
    }

    /// The directories, with that of the bases.
    pub(crate) fn roots(&self, root: &HostPath) -> Vec<HostPath> {
        [root]
            .into_iter()
            .chain(&self.workspace)
            .chain(&self.extra_ro)
            .cloned()
            .collect()
    }
}

fn is_root_file(name: &str) -> bool {
    !name.starts_with('.') && !["data", "apps", "homes", "files"].contains(&name)
}

/// Where the file system of a base is below the directory of the store.
pub(crate) fn base_below(chain: &Digest) -> String {
    format!("snapshots/sha256/{}/fs", chain.hex())
}

/// A failure of the engine, without host paths.
pub(crate) fn engine(step: &str, errno: i32) -> LaunchError {
    LaunchError::Engine {
        step: step.to_owned(),
        errno,
    }
}
