//! Bases that an attacker has prepared.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::programs::Programs;

/// A root whose directory was replaced by a link to a victim outside.
#[derive(Debug)]
pub struct Hostile {
    /// The root.
    pub root: PathBuf,
    /// The host's directory that a careless runtime writes to.
    pub victim: PathBuf,
}

impl Hostile {
    /// Makes a root in which `name`, a path from its top, is a link to the victim; everything
    /// else that a bundle mounts onto exists as a plain directory.
    pub fn create(programs: &Programs, dir: &Path, name: &str) -> Result<Self> {
        let (root, victim) = (dir.join("root"), dir.join("victim"));
        fs::create_dir_all(&victim)?;
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o777))?;
        for part in [
            "dev",
            "proc",
            "sys",
            "tmp",
            "run",
            "etc",
            "root",
            "var",
            "usr/bin",
            "workspace",
        ] {
            if part != name {
                fs::create_dir_all(root.join(part))?;
            }
        }
        symlink("usr/bin", root.join("bin"))?;
        let probe = root.join("usr/bin/casemate-probe");
        fs::copy(programs.path("casemate-probe"), &probe)?;
        fs::set_permissions(&probe, fs::Permissions::from_mode(0o755))?;
        let link = root.join(name);
        if let Some(parent) = link.parent() {
            fs::create_dir_all(parent)?;
        }
        symlink(&victim, link)?;
        Ok(Self { root, victim })
    }

    /// Names in the victim directory.
    pub fn damage(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.victim)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }
}
