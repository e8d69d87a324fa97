//! What a plan and a placement have to satisfy beyond what their types already say.

use std::collections::HashSet;

use super::environment;
use super::profile::{self, View};
use crate::{
    FileName, HostPath, LaunchPlan, Limits, Placement, PlanCode, PlanRefusal, ProcessView, Profile,
    ProjectionKind, SandboxPath, Slice, Upper, WorkspaceView,
};

/// Where no mount of a plan may be, nor above, nor below: the kernel's and the init's own.
const KERNEL: [&str; 4] = ["/dev", "/proc", "/run/casemate", "/sys"];

/// What no mount of a plan may cover: the base would not run without.
const SYSTEM: [&str; 13] = [
    "/bin", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/root", "/run", "/sbin", "/tmp",
    "/usr/bin", "/usr/lib", "/var",
];

/// Where the layers are in a workspace.
const LAYERS: &str = ".xbin/term/";

/// Names in the workspace's root directory that are not plain files.
const DIRECTORIES: [&str; 3] = ["apps", "data", "homes"];

/// Refuses a plan that cannot become a bundle.
pub(super) fn plan(plan: &LaunchPlan, placement: &Placement) -> Result<(), PlanRefusal> {
    environment::check(plan)?;
    if matches!(placement.upper, Upper::Memory(0)) {
        // For tmpfs, 0 means without limit.
        return Err(refusal(
            PlanCode::LimitOutOfRange,
            "an upper of 0 bytes cannot hold a mount target",
        ));
    }
    layer(plan, placement)?;
    match profile::view(&plan.profile) {
        View::Workspace(view, _) => workspace(plan, placement, view),
        View::Process(view) => process(plan, placement, view),
    }
}

/// A layer is a terminal's, and lies where no view of the workspace reaches.
fn layer(plan: &LaunchPlan, placement: &Placement) -> Result<(), PlanRefusal> {
    let Upper::Layer(dir) = &placement.upper else {
        return Ok(());
    };
    let hidden = match &plan.profile {
        Profile::Terminal { view, .. } => dir
            .below(&view.root)
            .is_some_and(|below| below.starts_with(LAYERS)),
        Profile::Backend { .. } | Profile::Process { .. } => false,
    };
    if hidden {
        Ok(())
    } else {
        Err(refusal(
            PlanCode::InvalidMount,
            "a layer belongs to a terminal and lies with the workspace's layers",
        ))
    }
}

fn refusal(code: PlanCode, message: impl Into<String>) -> PlanRefusal {
    PlanRefusal::new(code, message)
}

fn workspace(
    plan: &LaunchPlan,
    placement: &Placement,
    view: &WorkspaceView,
) -> Result<(), PlanRefusal> {
    if matches!(plan.profile, Profile::Backend { .. }) && view.home.is_some() {
        return Err(refusal(
            PlanCode::InvalidMount,
            "a backend has no home: a home is never seen by one (FS-18)",
        ));
    }
    target(view.root.as_str(), "the workspace")?;
    source(&view.root, placement, "the workspace")?;
    service(view, placement)?;
    let tiles: Vec<&str> = [&view.own]
        .into_iter()
        .chain(&view.readable)
        .map(|tile| tile.id.as_str())
        .collect();
    disjoint(&tiles, "tile")?;
    let mut files: Vec<&str> = view.root_files.iter().map(FileName::as_str).collect();
    files.extend(DIRECTORIES);
    disjoint(&files, "root file")?;
    let mut extra: Vec<&str> = vec![view.root.as_str()];
    for (index, path) in view.extra_ro.iter().enumerate() {
        let what = format!("extra_ro[{index}]");
        target(path.as_str(), &what)?;
        source(path, placement, &what)?;
        extra.push(path.as_str());
    }
    // Also keeps a read-only directory from holding the workspace, secrets and all.
    disjoint(&extra, "directory")?;
    workspace_cwd(plan, view)
}

/// The service's id is mapped to the sandbox's root on tile, home and root files, so it must be
/// neither host root (a set-user-id file of the sandbox would be host root's) nor an id that the
/// sandbox or a tree already has.
fn service(view: &WorkspaceView, placement: &Placement) -> Result<(), PlanRefusal> {
    if view.service == 0 {
        return Err(refusal(
            PlanCode::InvalidMount,
            "the workspace belongs to host root: give it to the service's user",
        ));
    }
    let slices = [Some(placement.ids), Some(view.own.slice)]
        .into_iter()
        .chain(view.readable.iter().map(|tile| Some(tile.slice)))
        .chain([view.home.as_ref().map(|home| home.slice)])
        .flatten();
    for slice in slices {
        if within_slice(view.service, slice) {
            return Err(refusal(
                PlanCode::InvalidMount,
                "the service's id lies in a slice of the sandboxes",
            ));
        }
    }
    Ok(())
}

const fn within_slice(id: u32, slice: Slice) -> bool {
    id >= slice.first() && id - slice.first() < Slice::LEN
}

fn workspace_cwd(plan: &LaunchPlan, view: &WorkspaceView) -> Result<(), PlanRefusal> {
    let own = format!("{}/{}", view.root, view.own.id);
    let home = view
        .home
        .as_ref()
        .map(|home| format!("{}/homes/{}", view.root, home.id));
    let allowed = is_within(plan.cwd.as_str(), &own)
        || home.is_some_and(|home| is_within(plan.cwd.as_str(), &home));
    if allowed {
        return Ok(());
    }
    Err(refusal(
        PlanCode::BadCwd,
        "the working directory must be in the own tile or in the own home",
    ))
}

fn process(
    plan: &LaunchPlan,
    placement: &Placement,
    view: &ProcessView,
) -> Result<(), PlanRefusal> {
    if let Profile::Process { limits, .. } = &plan.profile {
        scratch(view, limits)?;
    }
    let mut targets = Vec::with_capacity(view.projections.len());
    for projection in &view.projections {
        let root = projection.target.components().next();
        if !matches!(root, Some("workspace" | "input" | "runtime")) {
            return Err(refusal(
                PlanCode::InvalidMount,
                format!(
                    "{} is not at or below /workspace, /input or /runtime",
                    projection.target
                ),
            ));
        }
        if projection.kind == ProjectionKind::File && projection.target.depth() == 1 {
            return Err(refusal(
                PlanCode::InvalidMount,
                format!("{} is a directory, not a file", projection.target),
            ));
        }
        source(
            &projection.source,
            placement,
            &format!("the source of {}", projection.target),
        )?;
        targets.push(projection.target.as_str());
    }
    disjoint(&targets, "projection")?;
    process_cwd(&plan.cwd, view)
}

fn scratch(view: &ProcessView, limits: &Limits) -> Result<(), PlanRefusal> {
    // tmpfs counts pages, and 0 means without limit.
    if view.scratch_bytes < 4096 || view.scratch_bytes > limits.memory.get() {
        return Err(refusal(
            PlanCode::LimitOutOfRange,
            format!(
                "scratch_bytes {} is outside 4096 to the memory limit of {}",
                view.scratch_bytes,
                limits.memory.get()
            ),
        ));
    }
    Ok(())
}

/// PSBX-09. What a directory projection holds is not known here; the init refuses what is not
/// there.
fn process_cwd(cwd: &SandboxPath, view: &ProcessView) -> Result<(), PlanRefusal> {
    let root = cwd.components().next();
    if !matches!(root, Some("workspace" | "input" | "output" | "tmp")) {
        return Err(refusal(
            PlanCode::BadCwd,
            "the working directory must be under /workspace, /input, /output or /tmp",
        ));
    }
    let fresh = cwd.as_str() == "/tmp" || (view.output && cwd.as_str() == "/output");
    let projected = view.projections.iter().any(|projection| {
        projection.target.is_within(cwd) && projection.target != *cwd
            || projection.kind == ProjectionKind::Directory && cwd.is_within(&projection.target)
    });
    if fresh || projected {
        return Ok(());
    }
    Err(refusal(
        PlanCode::BadCwd,
        format!("the working directory {cwd} does not exist in this run"),
    ))
}

fn target(path: &str, what: &str) -> Result<(), PlanRefusal> {
    for reserved in KERNEL {
        if is_within(path, reserved) || is_within(reserved, path) {
            return Err(refusal(
                PlanCode::InvalidMount,
                format!("{what} collides with {reserved} of the sandbox"),
            ));
        }
    }
    for system in SYSTEM {
        if is_within(system, path) {
            return Err(refusal(
                PlanCode::InvalidMount,
                format!("{what} would cover {system} of the base"),
            ));
        }
    }
    Ok(())
}

/// Refuses a source that holds, or lies in, what the engine itself keeps for the sandbox.
fn source(path: &HostPath, placement: &Placement, what: &str) -> Result<(), PlanRefusal> {
    let mut own = vec![&placement.stage, &placement.base];
    match &placement.upper {
        Upper::Disk(dir) => own.push(dir),
        // A layer lies in the workspace, in the part that no view shows.
        Upper::Memory(_) | Upper::Layer(_) => {}
    }
    for ours in own {
        if path.is_within(ours) || ours.is_within(path) {
            return Err(refusal(
                PlanCode::InvalidMount,
                format!("{what} collides with the engine's own files on the host"),
            ));
        }
    }
    Ok(())
}

/// Refuses two paths of which one is or holds the other (PSBX-12, E-46).
fn disjoint(paths: &[&str], what: &str) -> Result<(), PlanRefusal> {
    let overlap = |below: &str, above: &str| {
        refusal(
            PlanCode::TargetOverlap,
            format!("{what} {below} is or lies in {above}"),
        )
    };
    let mut set = HashSet::with_capacity(paths.len());
    for path in paths {
        if !set.insert(*path) {
            return Err(overlap(path, path));
        }
    }
    for path in paths {
        let above = path
            .match_indices('/')
            .filter_map(|(end, _slash)| path.get(..end))
            .find(|above| set.contains(above));
        if let Some(above) = above {
            return Err(overlap(path, above));
        }
    }
    Ok(())
}

fn is_within(path: &str, directory: &str) -> bool {
    if directory == "/" {
        return true;
    }
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
