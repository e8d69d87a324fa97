//! A world of one suite: directories, ids and a base that nobody else uses.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::command;
use crate::programs::{Programs, target_dir};
use crate::workspace::Workspace;

/// First id of the spare range; no machine's `/etc/subuid` hands these out.
const SPARE_FIRST: u32 = 0x5000_0000;
/// Slices of one world.
pub const SLICES: u32 = 64;
/// Worlds that can live at the same time.
const WORLDS: u32 = 128;
/// Name of the base.
pub const BASE: &str = "debian12";
/// What the base has beside Debian's minimum.
const PACKAGES: &str =
    "git,python3-minimal,bubblewrap,procps,iproute2,util-linux,gcc,libc6-dev,strace";
/// Where the probe lies in the base.
pub const PROBE: &str = "/usr/bin/casemate-probe";
/// How long building the base may take.
const BUILD_DEADLINE: Duration = Duration::from_mins(15);

/// Set in the process that is in its private mount namespace already.
const ENTERED: &str = "CASEMATE_TESTS_ENTERED";

/// Directories, ids and a base of one suite.
#[derive(Debug)]
pub struct World {
    /// The programs under test.
    pub programs: Programs,
    /// State that outlives a boot: the bases.
    pub root: PathBuf,
    /// State of living sandboxes.
    pub run_dir: PathBuf,
    /// A workspace with secrets.
    pub workspace: Workspace,
    /// First id of this world.
    pub first_id: u32,
    /// Goes, with everything in it, when the world does.
    pub dir: TempDir,
}

impl World {
    /// Makes a world. The base is shared by all worlds and only read.
    pub fn create() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let programs = Programs::find()?;
        let root = base_root(&programs)?;
        let dir = tempfile::Builder::new()
            .prefix("cm-")
            .tempdir_in("/var/tmp")?;
        // Slices are entered by their gid, so the way to the run directory is open to look-ups.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
        let run_dir = dir.path().join("run");
        fs::create_dir(&run_dir)?;
        let own = NEXT
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(std::process::id());
        let first_id = SPARE_FIRST + (own % WORLDS) * SLICES * 65_536;
        let workspace = Workspace::create(dir.path())?;
        Ok(Self {
            programs,
            root,
            run_dir,
            workspace,
            first_id,
            dir,
        })
    }

    /// A directory for whatever else a test needs.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command of one of the programs, in this world.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.programs.command(program);
        command
            .env("CASEMATE_ROOT", &self.root)
            .env("CASEMATE_RUN_DIR", &self.run_dir)
            .env("CASEMATE_BASE", BASE)
            .env("CASEMATE_IDS_FIRST", self.first_id.to_string())
            .env("CASEMATE_IDS_SLICES", SLICES.to_string());
        command
    }

    /// `casemate run` with these arguments.
    pub fn casemate_run(&self, args: &[&str]) -> Command {
        let mut command = self.command("casemate");
        command.arg("run").args(args);
        command
    }
}

/// The root with the base: `$CASEMATE_TEST_ROOT`, or one that is made once below cargo's target
/// directory, from `$CASEMATE_TEST_BASE_TAR` or with mmdebstrap.
fn base_root(programs: &Programs) -> Result<PathBuf> {
    let root = std::env::var_os("CASEMATE_TEST_ROOT")
        .map_or_else(|| target_dir().join("test-base/root"), PathBuf::from);
    if !root.join("pins").join(format!("{BASE}.json")).is_file() {
        fs::create_dir_all(&root)?;
        let mut command = programs.command("rootfs-tools");
        command.arg("--root").arg(&root);
        match std::env::var_os("CASEMATE_TEST_BASE_TAR") {
            Some(tar) => command.args(["import", "--name", BASE]).arg(tar),
            None => command
                .args(["build", "--suite", "bookworm", "--name", BASE])
                .args(["--include", PACKAGES]),
        };
        command::run(&mut command, BUILD_DEADLINE)?
            .success()
            .context("build the test base")?;
    }
    install_probe(programs, &root)?;
    Ok(root)
}

/// Puts the probe into every snapshot of the tests' own root.
fn install_probe(programs: &Programs, root: &Path) -> Result<()> {
    let probe = fs::read(programs.path("casemate-probe"))?;
    let mut found = false;
    for entry in fs::read_dir(root.join("snapshots/sha256"))? {
        let target = entry?.path().join("fs").join(PROBE.trim_start_matches('/'));
        found = true;
        if fs::read(&target).is_ok_and(|old| old == probe) {
            continue;
        }
        let fresh = target.with_extension("new");
        fs::write(&fresh, &probe)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
        fs::rename(&fresh, &target)?;
    }
    ensure!(found, "{} has no snapshot", root.display());
    Ok(())
}

/// Starts this program again in a mount namespace of its own, unless it is in one.
pub fn enter_private_mounts() -> Result<()> {
    if std::env::var_os(ENTERED).is_some() {
        return Ok(());
    }
    ensure!(
        rustix::process::geteuid().is_root(),
        "the suites make real sandboxes: run as root"
    );
    let error = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(ENTERED, "1")
        .exec();
    bail!("unshare: {error}")
}

/// Whether the full counts are asked for: `CASEMATE_SOAK=1`.
pub fn soak() -> bool {
    std::env::var_os("CASEMATE_SOAK").is_some_and(|value| value == "1")
}

/// A long count: the whole in a soak, a twentieth of it otherwise.
pub fn scaled(count: u64) -> u64 {
    if soak() { count } else { count / 20 }
}
