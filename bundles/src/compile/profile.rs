//! What differs from profile to profile, one `match` for each question.

use casemate_guard_plan::GuardTier;

use crate::{Limits, Nesting, Network, ProcessView, Profile, Tier, TileId, WorkspaceView};

/// Returns the guard tier.
pub(super) const fn tier(profile: &Profile) -> GuardTier {
    match profile {
        Profile::Terminal {
            tier: Tier::Admin { nesting, .. },
            ..
        } => match nesting {
            Nesting::On => GuardTier::AdminNesting,
            Nesting::Off => GuardTier::Admin,
        },
        Profile::Terminal {
            tier: Tier::Restricted { .. },
            ..
        } => GuardTier::Restricted,
        Profile::Backend { .. } => GuardTier::Backend,
        Profile::Process { .. } => GuardTier::Process,
    }
}

/// Returns the name that annotations and the command line use.
pub(super) const fn name(profile: &Profile) -> &'static str {
    match profile {
        Profile::Terminal {
            tier: Tier::Admin { .. },
            ..
        } => "terminal-admin",
        Profile::Terminal {
            tier: Tier::Restricted { .. },
            ..
        } => "terminal-restricted",
        Profile::Backend { .. } => "backend",
        Profile::Process { .. } => "process",
    }
}

/// Returns the network scope. Backends have no egress (TERM-09), nor have restricted terminals.
pub(super) const fn network(profile: &Profile) -> Network {
    match profile {
        Profile::Terminal {
            tier: Tier::Admin { network, .. },
            ..
        }
        | Profile::Process { network, .. } => *network,
        Profile::Terminal {
            tier: Tier::Restricted { .. },
            ..
        }
        | Profile::Backend { .. } => Network::None,
    }
}

/// Returns the name of a network scope.
pub(super) const fn network_name(network: Network) -> &'static str {
    match network {
        Network::None => "none",
        Network::Host => "host",
    }
}

/// Returns the limits; administrators have none.
pub(super) const fn limits(profile: &Profile) -> Option<&Limits> {
    match profile {
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

/// The two kinds of view.
#[derive(Debug, Clone, Copy)]
pub(super) enum View<'a> {
    /// A part of a workspace; whether the own tile may be written.
    Workspace(&'a WorkspaceView, OwnTile),
    /// The roots of a command run.
    Process(&'a ProcessView),
}

/// What may be done with the own tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnTile {
    /// A terminal edits it.
    Writable,
    /// A backend runs from it (FS-15).
    ReadOnly,
}

/// Returns the view.
pub(super) const fn view(profile: &Profile) -> View<'_> {
    match profile {
        Profile::Terminal { view, .. } => View::Workspace(view, OwnTile::Writable),
        Profile::Backend { view, .. } => View::Workspace(view, OwnTile::ReadOnly),
        Profile::Process { view, .. } => View::Process(view),
    }
}

/// Returns the own tile; a command run has none.
pub(super) const fn tile(profile: &Profile) -> Option<&TileId> {
    match view(profile) {
        View::Workspace(view, _) => Some(&view.own.id),
        View::Process(_) => None,
    }
}
