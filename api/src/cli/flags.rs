//! Flags that say what a sandbox is, shared by `run` and `bundle compile`; and what they mean,
//! without I/O.

use std::collections::{BTreeMap, BTreeSet};

use casemate_bundles::{
    Argv, CpuMillis, Environment, LimitError, Limits, MemoryBytes, Nesting, Network, Pids,
    SandboxPath, Tier, TileId, UserId,
};
use clap::ValueEnum;

use super::{CliError, parse};
use crate::workspace::Visible;

/// What a sandbox is.
#[derive(Debug, clap::Args)]
pub(super) struct SandboxFlags {
    /// What the sandbox is for
    #[arg(long, value_enum, default_value_t = ProfileName::Process)]
    profile: ProfileName,
    /// Name of the base image [default: the configured one, or the only one there is]
    #[arg(long, value_name = "NAME")]
    pub(super) base: Option<String>,
    /// The own tile; a command run sees it read-only at /workspace
    #[arg(long, value_name = "TILE")]
    tile: Option<String>,
    /// Other tiles that a terminal reads [default: all for an administrator, else none]
    #[arg(long, value_name = "TILES", value_delimiter = ',')]
    visible: Option<Vec<String>>,
    /// Whose home a terminal has
    #[arg(long, value_name = "USER", default_value = "owner")]
    user: String,
    /// What it reaches; `host` is for command runs and administrators
    #[arg(long, value_enum, default_value_t = NetName::None)]
    net: NetName,
    /// Memory with its tmpfs, as 512M or 2G
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    memory: Option<u64>,
    /// Tasks
    #[arg(long, value_name = "N")]
    pids: Option<u64>,
    /// Processors, as 2 or 0.5
    #[arg(long, value_name = "N", value_parser = parse::processors)]
    cpus: Option<u64>,
    /// Whether an administrator's mounts and namespaces work [default: as configured]
    #[arg(long, value_enum)]
    nesting: Option<Switch>,
    /// A variable for the command; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse::variable)]
    env: Vec<(String, String)>,
    /// Working directory inside the sandbox [default: the tile; /workspace or /tmp for a run]
    #[arg(long, value_name = "PATH")]
    cwd: Option<String>,
    /// The command and its arguments, after `--`; looked up in the sandbox
    #[arg(last = true, value_name = "ARGV", required = true)]
    argv: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProfileName {
    /// A command run: no workspace, no network
    Process,
    /// An administrator's shell on a tile
    TerminalAdmin,
    /// Anybody else's shell on a tile
    TerminalRestricted,
    /// A tile's service: its tile read-only, no home
    Backend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum NetName {
    /// Loopback only
    None,
    /// The host's network
    Host,
    /// Not available: use host or none
    Internet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    /// They do
    On,
    /// They do not
    Off,
}

/// What the flags mean.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) kind: Kind,
    pub(super) argv: Argv,
    pub(super) cwd: Option<SandboxPath>,
    pub(super) environment: Environment,
    pub(super) base: Option<String>,
}

/// What a sandbox is for, with all that differs.
#[derive(Debug)]
pub(super) enum Kind {
    Process {
        limits: Limits,
        network: Network,
        tile: Option<TileId>,
    },
    Terminal {
        tile: TileId,
        user: UserId,
        tier: Tier,
        visible: Visible,
    },
    Backend {
        tile: TileId,
        limits: Limits,
    },
}

impl Wanted {
    /// Whether it needs a workspace.
    pub(super) const fn has_tile(&self) -> bool {
        match &self.kind {
            Kind::Process { tile, .. } => tile.is_some(),
            Kind::Terminal { .. } | Kind::Backend { .. } => true,
        }
    }
}

fn usage(error: impl std::fmt::Display) -> CliError {
    CliError::Usage(error.to_string())
}

impl SandboxFlags {
    /// Parses the flags; `nesting` is what the configuration says.
    pub(super) fn parse(self, nesting: Nesting) -> Result<Wanted, CliError> {
        let kind = self.kind(nesting)?;
        let mut names = BTreeSet::new();
        if let Some((name, _)) = self.env.iter().find(|(name, _)| !names.insert(name)) {
            return Err(usage(format!("--env {name} is given twice")));
        }
        let variables: BTreeMap<String, String> = self.env.into_iter().collect();
        Ok(Wanted {
            kind,
            argv: Argv::parse(self.argv).map_err(usage)?,
            cwd: self
                .cwd
                .map(SandboxPath::parse)
                .transpose()
                .map_err(usage)?,
            environment: Environment::parse(variables).map_err(usage)?,
            base: self.base,
        })
    }

    fn kind(&self, nesting: Nesting) -> Result<Kind, CliError> {
        let profile = self.profile;
        let terminal = matches!(
            profile,
            ProfileName::TerminalAdmin | ProfileName::TerminalRestricted
        );
        if self.visible.is_some() && !terminal {
            return Err(usage("--visible is for terminals"));
        }
        if self.nesting.is_some() && profile != ProfileName::TerminalAdmin {
            return Err(usage("--nesting is for --profile terminal-admin"));
        }
        let network = self.network()?;
        match profile {
            ProfileName::Process => Ok(Kind::Process {
                limits: self.limits(Limits::RUN)?,
                network,
                tile: self
                    .tile
                    .as_ref()
                    .map(TileId::parse)
                    .transpose()
                    .map_err(usage)?,
            }),
            ProfileName::TerminalAdmin => {
                if self.memory.is_some() || self.pids.is_some() || self.cpus.is_some() {
                    return Err(usage(
                        "--memory, --pids and --cpus are not for terminal-admin, which is not limited",
                    ));
                }
                let nesting = match self.nesting {
                    Some(Switch::On) => Nesting::On,
                    Some(Switch::Off) => Nesting::Off,
                    None => nesting,
                };
                self.terminal(Tier::Admin { nesting, network }, Visible::All)
            }
            ProfileName::TerminalRestricted => {
                let limits = self.limits(Limits::TILE)?;
                self.terminal(Tier::Restricted { limits }, Visible::Only(Vec::new()))
            }
            ProfileName::Backend => Ok(Kind::Backend {
                tile: self.own_tile()?,
                limits: self.limits(Limits::TILE)?,
            }),
        }
    }

    fn terminal(&self, tier: Tier, otherwise: Visible) -> Result<Kind, CliError> {
        let visible = match &self.visible {
            Some(names) => Visible::Only(
                names
                    .iter()
                    .filter(|name| !name.is_empty())
                    .map(TileId::parse)
                    .collect::<Result<_, _>>()
                    .map_err(usage)?,
            ),
            None => otherwise,
        };
        Ok(Kind::Terminal {
            tile: self.own_tile()?,
            user: UserId::parse(&self.user).map_err(usage)?,
            tier,
            visible,
        })
    }

    fn own_tile(&self) -> Result<TileId, CliError> {
        match &self.tile {
            Some(tile) => TileId::parse(tile).map_err(usage),
            None => Err(usage("this profile needs --tile, as apps/NAME")),
        }
    }

    fn network(&self) -> Result<Network, CliError> {
        let only_none = match self.profile {
            ProfileName::Process | ProfileName::TerminalAdmin => false,
            ProfileName::TerminalRestricted | ProfileName::Backend => true,
        };
        match self.net {
            NetName::None => Ok(Network::None),
            NetName::Host if only_none => Err(usage(
                "--net host is for command runs and administrators; use none",
            )),
            NetName::Host => Ok(Network::Host),
            NetName::Internet => Err(CliError::Unavailable {
                component: casemate_bundles::Component::NetInternet,
                hint: if only_none {
                    "use --net none".to_owned()
                } else {
                    "use --net host or --net none".to_owned()
                },
            }),
        }
    }

    fn limits(&self, default: Limits) -> Result<Limits, CliError> {
        let bad = |error: LimitError| usage(error);
        let memory = self
            .memory
            .map(MemoryBytes::parse)
            .transpose()
            .map_err(bad)?;
        let pids = self.pids.map(Pids::parse).transpose().map_err(bad)?;
        let cpu = self.cpus.map(CpuMillis::parse).transpose().map_err(bad)?;
        Ok(Limits {
            memory: memory.unwrap_or(default.memory),
            pids: pids.unwrap_or(default.pids),
            cpu: cpu.unwrap_or(default.cpu),
        })
    }
}
