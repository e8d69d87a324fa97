//! Commands in the view of a tile, through `casemate run`.

use std::time::Duration;

use anyhow::Result;

use crate::command::{Output, run};
use crate::workspace::{OTHER, OWN};
use crate::world::World;

/// How long a command in a tile may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A profile with a workspace, as the command line names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

impl Tile {
    /// Runs `argv` on the own tile; the other tile is visible, the hidden one is not.
    pub fn run(self, world: &World, argv: &[&str]) -> Result<Output> {
        let workspace = world.workspace.root().display().to_string();
        let (profile, network) = match self {
            Self::Admin | Self::AdminGuarded => ("terminal-admin", "none"),
            Self::AdminHost => ("terminal-admin", "host"),
            Self::Restricted => ("terminal-restricted", "none"),
            Self::Backend => ("backend", "none"),
        };
        let mut args = vec![
            "--profile",
            profile,
            "--workspace",
            &workspace,
            "--tile",
            OWN,
        ];
        args.extend([
            "--visible",
            OTHER,
            "--net",
            network,
            "--timeout",
            "110s",
            "--",
        ]);
        args.extend(argv);
        let mut command = world.casemate_run(&args);
        if self == Self::AdminGuarded {
            command.env("CASEMATE_TERMINAL_NESTING", "false");
        }
        run(&mut command, PATIENCE)
    }

    /// Runs a script of the shell.
    pub fn script(self, world: &World, script: &str) -> Result<Output> {
        self.run(world, &["sh", "-c", script])
    }
}
