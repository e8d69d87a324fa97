//! Bundles on disk, for runtimes that are not ours, and for changes that tests make to them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::command::{Output, run};
use crate::terminal::Tile;
use crate::world::World;

/// How long one run may take.
const PATIENCE: Duration = Duration::from_mins(3);

/// A compiled bundle; its stage is unmounted and its directory removed at the end.
#[derive(Debug)]
pub struct Bundle<'a> {
    world: &'a World,
    dir: PathBuf,
    name: String,
    mounted: bool,
}

impl<'a> Bundle<'a> {
    /// Compiles a bundle with `casemate bundle compile`.
    pub fn compile(world: &'a World, tile: Tile, argv: &[&str]) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "b{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let dir = world.path(&name);
        let mut command = world.command("casemate");
        command
            .args(["bundle", "compile"])
            .args(tile.flags(world))
            .arg("--to")
            .arg(&dir);
        command.arg("--").args(argv);
        run(&mut command, PATIENCE)?
            .success()
            .context("bundle compile")?;
        Ok(Self {
            world,
            dir,
            name,
            mounted: false,
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory that runtimes are given.
    pub fn runnable(&self) -> PathBuf {
        self.dir.join("bundle")
    }

    /// Mounts root and projections with `casemate bundle mount`.
    pub fn mount(mut self) -> Result<Self> {
        let mut command = self.world.command("casemate");
        command.args(["bundle", "mount"]).arg(&self.dir);
        command.arg("--workspace").arg(self.world.workspace.root());
        run(&mut command, PATIENCE)?
            .success()
            .context("bundle mount")?;
        self.mounted = true;
        Ok(self)
    }

    /// Changes one document of the mounted bundle.
    pub fn change(self, file: &str, change: impl FnOnce(&mut Value)) -> Result<Self> {
        let path = self.runnable().join(file);
        let mut document: Value = serde_json::from_slice(&fs::read(&path)?)?;
        change(&mut document);
        // In place: the guard plan is bound by its inode.
        fs::write(&path, serde_json::to_vec(&document)?)?;
        Ok(self)
    }

    /// Runs it under runc.
    pub fn runc(&self) -> Result<Output> {
        run(&mut self.runc_command(Command::new("runc"), &[]), PATIENCE)
    }

    /// Runs it under runc, which is told to hand on descriptor 3: `file`, open for reading.
    pub fn runc_with_descriptor(&self, file: &Path) -> Result<Output> {
        let mut shell = Command::new("sh");
        let script = "exec 3<\"$0\"; exec runc \"$@\"";
        shell.args(["-c", script]).arg(file);
        run(
            &mut self.runc_command(shell, &["--preserve-fds", "1"]),
            PATIENCE,
        )
    }

    fn runc_command(&self, mut command: Command, flags: &[&str]) -> Command {
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .arg("--root")
            .arg(self.world.path("runc"))
            .arg("run")
            .args(flags)
            .arg("--bundle")
            .arg(self.runnable())
            .arg(&self.name);
        command
    }

    /// Runs it under our OCI command line.
    pub fn ours(&self) -> Result<Output> {
        let mut command = self.world.command("casemate-runtime");
        command
            .arg("--root")
            .arg(self.world.path("oci"))
            .args(["run", "--bundle"])
            .arg(self.runnable())
            .arg(&self.name);
        run(&mut command, PATIENCE)
    }
}

impl Drop for Bundle<'_> {
    fn drop(&mut self) {
        if self.mounted {
            let mut command = self.world.command("casemate");
            command.args(["bundle", "unmount"]).arg(&self.dir);
            command.arg("--workspace").arg(self.world.workspace.root());
            // The private mount namespace ends with the suite in any case.
            let _undone = run(&mut command, PATIENCE);
        }
        let _removed = fs::remove_dir_all(&self.dir);
    }
}
