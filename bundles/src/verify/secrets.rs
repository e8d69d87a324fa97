//! The promise itself: no secret is reachable, and nothing outside the writable set is writable.
//! Asked of the explained view, not of the tables that the mounts were compared with.

use std::collections::BTreeSet;

use super::document::Documents;
use super::facts::Facts;
use super::rule::{Rule, Violation, broken, require};
use crate::explain::{Facts as ViewFacts, View};
use crate::{Access, HostPath, SandboxPath, StageStep, ViewRule, WorkspaceView};

pub(super) fn check(documents: &Documents, facts: &Facts<'_>) -> Result<(), Violation> {
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
        writable(&view, &mount.destination)?;
    }
    if let Some(workspace) = facts.workspace {
        unreachable(&view, workspace)?;
        let tiles: BTreeSet<&str> = [&workspace.own]
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

/// What may be written is the own tile, the own home, scratch, output, devices and what the kernel
/// and the init keep for the sandbox alone.
fn writable(view: &View<'_>, path: &SandboxPath) -> Result<(), Violation> {
    let found = view.resolve(path);
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
        let path = SandboxPath::parse(format!("{}/{below}", workspace.root))
            .map_err(|error| broken(Rule::SecretPath, error.to_string()))?;
        let found = view.resolve(&path);
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
    source: &HostPath,
    workspace: &WorkspaceView,
    tiles: &BTreeSet<&str>,
) -> Result<(), Violation> {
    let Some(below) = source.below(&workspace.root) else {
        return require(!workspace.root.is_within(source), Rule::SecretPath, || {
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
