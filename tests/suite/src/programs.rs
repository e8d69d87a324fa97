//! Where the built programs are.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

/// The programs under test, side by side in `$CASEMATE_BIN`.
#[derive(Debug, Clone)]
pub struct Programs {
    dir: PathBuf,
}

impl Programs {
    /// Finds them: `$CASEMATE_BIN`, or what `deploy/programs debug probe` built.
    pub fn find() -> Result<Self> {
        let dir = match std::env::var_os("CASEMATE_BIN") {
            Some(dir) => PathBuf::from(dir),
            None => target_dir().join("dist/debug"),
        };
        for name in [
            "casemate",
            "casemate-runtime",
            "casemate-init",
            "casemate-probe",
        ] {
            ensure!(
                dir.join(name).is_file(),
                "{} is missing: run deploy/programs debug probe, or set CASEMATE_BIN",
                dir.join(name).display()
            );
        }
        Ok(Self { dir })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of one.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A command of one, with an environment of its own.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.path(name));
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CASEMATE_LIBEXEC", &self.dir);
        command
    }
}

/// The repository.
pub fn repository() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_owned()
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}
