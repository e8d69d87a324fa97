//! The promise itself: no secret is reachable, and nothing outside the writable set is writable.
//! Asked of the explained view, not of the tables that the mounts were compared with.

use std::collections::HashSet;
use std::ptr;

use super::document::Documents;
use super::facts::Facts;
use super::rule::{Rule, Violation, require};
use crate::explain::{Facts as ViewFacts, OciMount, View};
use crate::{Access, StageStep, ViewRule, WorkspaceView, path};

pub(super) fn check(documents: &Documents<'_>, facts: &Facts<'_>) -> Result<(), Violation> {
    let config = &documents.config;
    let view = View::new(
        &ViewFacts {
            mounts: &config.mounts,
            masked: &config.linux.masked_paths,
            read_only: &config.linux.readonly_paths,
            read_only_root: config.root.readonly,
            workspace: facts.workspace.map(|view| view.root.as_str()),
            tile: facts.workspace.map(|view| view.own.id.as_str()),
        },
        &documents.stage,
    );
    for mount in &config.mounts {
        reachable(&view, mount)?;
    }
    if let Some(workspace) = facts.workspace {
        unreachable(&view, workspace)?;
        let tiles: HashSet<&str> = [&workspace.own]
            .into_iter()
            .chain(&workspace.readable)
            .map(|tile| tile.id.as_str())
            .collect();
        for step in &documents.stage.steps {
            if let StageStep::Bind { source, .. } = step {
                holds_no_secret(source, workspace, &tiles)?;
            }
        }
    }
    Ok(())
}

/// No mount covers another. What may be written is the own tile, the own home, scratch, output,
/// devices and what the kernel and the init keep for the sandbox alone.
fn reachable(view: &View<'_>, mount: &OciMount<'_>) -> Result<(), Violation> {
    let path = &mount.destination;
    let found = view.decide(path);
    let covered = !found.mount.is_some_and(|deciding| ptr::eq(deciding, mount));
    require(!covered, Rule::MountOrder, || {
        format!("{path} is mounted before what covers it")
    })?;
    let fits = match found.access {
        Access::Absent => false,
        Access::ReadOnly => found.rule != ViewRule::Foreign,
        Access::ReadWrite => match found.rule {
            ViewRule::OwnTile
            | ViewRule::Home
            | ViewRule::Output
            | ViewRule::Scratch
            | ViewRule::Kernel
            | ViewRule::Device
            | ViewRule::Init => true,
            ViewRule::ReadableTile
            | ViewRule::RootFile
            | ViewRule::Skeleton
            | ViewRule::ExtraReadOnly
            | ViewRule::Projection
            | ViewRule::Base
            | ViewRule::Masked
            | ViewRule::Foreign => false,
        },
    };
    require(fits, Rule::WritableSet, || {
        format!("{path} is {} by the rule {}", found.access, found.rule)
    })
}

/// Names that exist in every workspace, and names that no user and no tile can have, which stand
/// for all that are not in the view.
fn unreachable(view: &View<'_>, workspace: &WorkspaceView) -> Result<(), Violation> {
    for (below, access) in [
        (".xbin", Access::ReadOnly),
        (".xbin/token", Access::Absent),
        ("data", Access::ReadOnly),
        ("data/casemate.db", Access::Absent),
        ("homes", Access::ReadOnly),
        ("homes/.other", Access::Absent),
        ("apps", Access::ReadOnly),
        ("apps/.hidden", Access::Absent),
        ("files", Access::Absent),
    ] {
        let path = format!("{}/{below}", workspace.root);
        let found = view.decide(&path);
        require(
            found.rule == ViewRule::Skeleton && found.access == access,
            Rule::SecretPath,
            || format!("{path} is {} by the rule {}", found.access, found.rule),
        )?;
    }
    Ok(())
}

/// No clone is, holds or lies in what is secret.
fn holds_no_secret(
    source: &str,
    workspace: &WorkspaceView,
    tiles: &HashSet<&str>,
) -> Result<(), Violation> {
    let Some(below) = path::below(source, workspace.root.as_str()) else {
        let holds = path::below(workspace.root.as_str(), source).is_some();
        return require(!holds, Rule::SecretPath, || {
            "a clone holds the whole workspace".to_owned()
        });
    };
    let mut parts = below.split('/');
    let given = match (parts.next(), parts.next()) {
        (Some("apps"), Some(_)) => tiles.contains(below),
        (Some("homes"), Some(user)) => {
            parts.next().is_none()
                && workspace
                    .home
                    .as_ref()
                    .is_some_and(|home| home.id.as_str() == user)
        }
        (Some(file), None) => workspace
            .root_files
            .iter()
            .any(|name| name.as_str() == file),
        (Some(_) | None, _) => false,
    };
    require(given, Rule::SecretPath, || {
        format!("a clone is of {below:?} of the workspace, which is not in the view")
    })
}
