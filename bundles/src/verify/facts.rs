//! What the plan says, read a second time.

use crate::{
    HostSupport, LaunchPlan, Limits, Nesting, Network, Placement, ProcessView, Profile, Tier,
    WorkspaceView,
};

/// The class of a sandbox, as `security.md` names the columns of its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    AdminNesting,
    Admin,
    Restricted,
    Backend,
    Process,
}

impl Class {
    /// Whether an administrator sits behind it.
    pub(super) const fn is_admin(self) -> bool {
        match self {
            Self::AdminNesting | Self::Admin => true,
            Self::Restricted | Self::Backend | Self::Process => false,
        }
    }

    /// Whether a person sits behind it, who may go on with a gap.
    pub(super) const fn is_terminal(self) -> bool {
        match self {
            Self::AdminNesting | Self::Admin | Self::Restricted => true,
            Self::Backend | Self::Process => false,
        }
    }
}

/// The plan in the terms of the rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) plan: &'a LaunchPlan,
    pub(super) placement: &'a Placement,
    pub(super) host: &'a HostSupport,
    pub(super) class: Class,
    /// Whether the host's network is shared.
    pub(super) host_network: bool,
    pub(super) limits: Option<&'a Limits>,
    pub(super) workspace: Option<&'a WorkspaceView>,
    pub(super) run: Option<&'a ProcessView>,
}

impl<'a> Facts<'a> {
    pub(super) fn new(
        plan: &'a LaunchPlan,
        placement: &'a Placement,
        host: &'a HostSupport,
    ) -> Self {
        let (class, network, limits, workspace, run) = match &plan.profile {
            Profile::Terminal { tier, view } => match tier {
                Tier::Admin { nesting, network } => {
                    let class = match nesting {
                        Nesting::On => Class::AdminNesting,
                        Nesting::Off => Class::Admin,
                    };
                    (class, *network, None, Some(view), None)
                }
                Tier::Restricted { limits } => (
                    Class::Restricted,
                    Network::None,
                    Some(limits),
                    Some(view),
                    None,
                ),
            },
            Profile::Backend { limits, view } => (
                Class::Backend,
                Network::None,
                Some(limits),
                Some(view),
                None,
            ),
            Profile::Process {
                limits,
                network,
                view,
            } => (Class::Process, *network, Some(limits), None, Some(view)),
        };
        Self {
            plan,
            placement,
            host,
            class,
            host_network: matches!(network, Network::Host),
            limits,
            workspace,
            run,
        }
    }

    /// A path below the stage.
    pub(super) fn staged(&self, below: &str) -> String {
        format!("{}/{below}", self.placement.stage)
    }

    /// Whether the own tile may be written.
    pub(super) const fn tile_writable(&self) -> bool {
        self.class.is_terminal()
    }
}
