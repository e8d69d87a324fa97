//! Two bases of different releases and the packages that a layer has: made once below cargo's
//! target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::command::run;
use crate::programs::{Programs, target_dir};

/// The releases with the names of their bases.
pub const RELEASES: [(&str, &str); 2] = [("bookworm", "debian12"), ("trixie", "debian13")];
/// What is installed in a layer, with what it needs.
const PACKAGES: [&str; 3] = ["jq", "libjq1", "libonig5"];
/// How long one step of the making may take.
const PATIENCE: Duration = Duration::from_mins(15);

/// Where both are.
#[derive(Debug)]
pub struct Upgrade {
    /// A store with both bases.
    pub root: PathBuf,
    /// Directories of packages by release, flat repositories.
    pub packages: PathBuf,
}

impl Upgrade {
    /// Finds them, or makes them from the machine's mirror.
    pub fn prepare(programs: &Programs) -> Result<Self> {
        let dir = target_dir().join("test-base/upgrade");
        let upgrade = Self {
            root: dir.join("root"),
            packages: dir.join("packages"),
        };
        // Workspaces of earlier tests, which are gone.
        match fs::remove_dir_all(upgrade.root.join("workspaces")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _none_left => {}
        }
        for (release, name) in RELEASES {
            if !upgrade
                .root
                .join("pins")
                .join(format!("{name}.json"))
                .is_file()
            {
                base(programs, &upgrade.root, (release, name), &dir)
                    .with_context(|| format!("make the base {name}"))?;
            }
            let repository = upgrade.packages.join(release);
            if !repository.join("Packages").is_file() {
                download(release, &repository, &dir.join("apt"))
                    .with_context(|| format!("download packages of {release}"))?;
            }
        }
        Ok(upgrade)
    }
}

/// The smallest root that apt works in.
fn base(programs: &Programs, root: &Path, (release, name): (&str, &str), dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let tar = dir.join(format!("{release}.tar"));
    // `deploy/test` may have made it.
    if !tar.is_file() {
        let unfinished = dir.join(format!("{release}.new.tar"));
        let mut command = Command::new("mmdebstrap");
        command
            .args(["--variant=minbase", release])
            .arg(&unfinished);
        run(&mut command, PATIENCE)?.success()?;
        fs::rename(unfinished, &tar)?;
    }
    let mut command = programs.command("rootfs-tools");
    command.arg("--root").arg(root);
    command.args(["import", "--name", name]).arg(&tar);
    run(&mut command, PATIENCE)?.success()?;
    Ok(fs::remove_file(tar)?)
}

/// Fetches packages of a release with an apt that has a state of its own.
fn download(release: &str, repository: &Path, state: &Path) -> Result<()> {
    for below in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(state.join(release).join(below))?;
    }
    fs::create_dir_all(repository)?;
    let state = state.join(release);
    fs::write(state.join("status"), "")?;
    let source = format!("deb http://deb.debian.org/debian {release} main\n");
    fs::write(state.join("sources.list"), source)?;
    let apt = |arguments: &[&str]| -> Result<()> {
        let mut command = Command::new("apt-get");
        let set = |key: &str, path: PathBuf| format!("{key}={}", path.display());
        for option in [
            set("Dir::State", state.clone()),
            set("Dir::State::lists", state.join("lists")),
            set("Dir::State::status", state.join("status")),
            set("Dir::Cache", state.join("cache")),
            set("Dir::Etc::sourcelist", state.join("sources.list")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command.arg("-q").args(arguments).current_dir(repository);
        run(&mut command, PATIENCE)?.success()?;
        Ok(())
    };
    apt(&["update"])?;
    apt(&[&["download"][..], &PACKAGES].concat())?;
    let mut command = Command::new("dpkg-scanpackages");
    command.arg(".").current_dir(repository);
    let index = run(&mut command, PATIENCE)?.success()?;
    Ok(fs::write(repository.join("Packages"), index.stdout)?)
}
