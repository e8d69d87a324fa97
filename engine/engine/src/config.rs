//! How a spawner is started.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use casemate_bundles::HostPath;

use crate::EngineError;

/// Everything a spawner is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// The `casemate-runtime` program.
    pub runtime: HostPath,
    /// The guard init's binary.
    pub init: HostPath,
    /// State that outlives the host's boot: bases and scratch.
    pub root: HostPath,
    /// State of living sandboxes.
    pub run_dir: HostPath,
    /// The only workspace whose parts may be projected.
    pub workspace: Option<HostPath>,
    /// Directories outside the workspace that may be projected read-only.
    pub extra_ro: Vec<HostPath>,
    /// Host ids that sandboxes may have.
    pub ids: IdBlock,
    /// Whose spawner it is.
    pub mode: SpawnerMode,
}

/// A block of host ids, in slices: the lower half belongs to tiles and homes, the upper half is
/// the pool of command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdBlock {
    /// First id, the same for users and groups.
    pub first: u32,
    /// Number of slices.
    pub slices: u32,
}

/// Whose spawner it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnerMode {
    /// Of one command line; adopts nothing.
    Private,
    /// Of the service: alone on its run directory, adopts living keepers, cleans up after dead ones.
    Shared,
}

/// A spawner that was started, for [`crate::Engine::from_socket`].
#[derive(Debug)]
pub struct SpawnerProcess {
    /// The service's end of the socket pair; when it closes, the spawner exits.
    pub socket: OwnedFd,
    /// To wait for.
    pub child: Child,
}

impl SpawnerProcess {
    /// Starts a spawner. Needs no async runtime, so that the service can do it before it gives up
    /// root.
    pub fn start(config: &EngineConfig) -> Result<Self, EngineError> {
        let (socket, mut command) = config.command()?;
        let child = command
            .spawn()
            .map_err(|source| EngineError::StartSpawner { source })?;
        Ok(Self { socket, child })
    }
}

impl EngineConfig {
    /// Returns our end of a new socket pair and the command that inherits the other one as its
    /// standard input. The spawner is in a process group of its own, so that a Ctrl-C at the
    /// terminal reaches only the command line, which decides what it means.
    pub(crate) fn command(&self) -> Result<(OwnedFd, Command), EngineError> {
        let (ours, theirs) = casemate_sys::socket::pair().map_err(EngineError::prepare)?;
        let mut command = Command::new(self.runtime.as_str());
        command
            .args(["spawner", "--socket-fd", "0"])
            .args(["--root", self.root.as_str()])
            .args(["--run-dir", self.run_dir.as_str()])
            .args(["--init", self.init.as_str()])
            .arg("--ids")
            .arg(format!("{}:{}", self.ids.first, self.ids.slices));
        if let Some(workspace) = &self.workspace {
            command.args(["--workspace", workspace.as_str()]);
        }
        for directory in &self.extra_ro {
            command.args(["--extra-ro", directory.as_str()]);
        }
        match self.mode {
            SpawnerMode::Private => {}
            SpawnerMode::Shared => {
                command.arg("--shared");
            }
        }
        command
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .current_dir(PathBuf::from("/"))
            .process_group(0);
        Ok((ours, command))
    }
}
