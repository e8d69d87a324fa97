//! Sandboxes by tier, as the command line names them.

use std::time::Duration;

use anyhow::Result;

use crate::command::{Output, run};
use crate::workspace::{OTHER, OWN};
use crate::world::World;

/// How long a command in a tile may take.
const PATIENCE: Duration = Duration::from_mins(2);

/// A tier with a network scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tile {
    /// An administrator's terminal.
    Admin,
    /// An administrator's terminal without nesting.
    AdminGuarded,
    /// An administrator's terminal in the host's network.
    AdminHost,
    /// Anybody else's terminal.
    Restricted,
    /// A tile's service.
    Backend,
    /// A command run that sees the tile.
    Process,
}

impl Tile {
    /// One for each tier.
    pub const TIERS: [Self; 5] = [
        Self::Admin,
        Self::AdminGuarded,
        Self::Restricted,
        Self::Backend,
        Self::Process,
    ];

    /// Name of the tier, as in the tables of expected answers.
    pub const fn tier(self) -> &'static str {
        match self {
            Self::Admin | Self::AdminHost => "admin-nesting",
            Self::AdminGuarded => "admin",
            Self::Restricted => "restricted",
            Self::Backend => "backend",
            Self::Process => "process",
        }
    }

    /// Flags of `casemate run` and `casemate bundle compile`. The other tile is visible, the
    /// hidden one is not.
    pub fn flags(self, world: &World) -> Vec<String> {
        let workspace = world.workspace.root().display().to_string();
        let more: &[&str] = match self {
            Self::Admin => &["terminal-admin", "--nesting", "on", "--visible", OTHER],
            Self::AdminGuarded => &["terminal-admin", "--nesting", "off", "--visible", OTHER],
            Self::AdminHost => &["terminal-admin", "--net", "host", "--visible", OTHER],
            Self::Restricted => &["terminal-restricted", "--visible", OTHER],
            Self::Backend => &["backend"],
            Self::Process => &["process"],
        };
        let mut flags = vec![
            "--workspace".to_owned(),
            workspace,
            "--tile".to_owned(),
            OWN.to_owned(),
        ];
        flags.push("--profile".to_owned());
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        flags
    }

    /// Runs `argv` under our engine.
    pub fn run(self, world: &World, argv: &[&str]) -> Result<Output> {
        let mut command = world.command("casemate");
        command
            .arg("run")
            .args(self.flags(world))
            .args(["--timeout", "110s", "--"])
            .args(argv);
        run(&mut command, PATIENCE)
    }

    /// Runs a script of the shell.
    pub fn script(self, world: &World, script: &str) -> Result<Output> {
        self.run(world, &["sh", "-c", script])
    }
}
