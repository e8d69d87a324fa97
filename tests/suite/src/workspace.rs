//! A workspace with secrets in it.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::Result;

/// What every secret contains; the probe looks for it.
pub const MARK: &str = "CASEMATE-SECRET";
/// Host id that owns the workspace, as the service user does.
pub const SERVICE: u32 = 61_001;

/// The own tile of a sandbox.
pub const OWN: &str = "apps/own";
/// A tile that may be read.
pub const OTHER: &str = "apps/other";
/// A tile that has no name in the sandbox.
pub const HIDDEN: &str = "apps/hidden";

/// Files that no sandbox may read.
const SECRETS: [&str; 5] = [
    ".xbin/token",
    ".xbin/keys/signing",
    "data/notes.db",
    "homes/bob/diary",
    "apps/hidden/code.txt",
];
/// Files that a sandbox may read and not write.
const READ_ONLY: [&str; 3] = ["xbin.json", "AGENTS.md", "apps/other/code.txt"];
/// Files that belong to the sandbox.
const WRITABLE: [&str; 3] = [
    "apps/own/code.txt",
    "homes/owner/.profile",
    "homes/alice/.profile",
];

/// A workspace with secrets in it.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Makes one below `dir`. Its parent is closed to everybody but root, as in a real set-up.
    pub fn create(dir: &Path) -> Result<Self> {
        let parent = dir.join("w");
        fs::create_dir(&parent)?;
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o700))?;
        let root = parent.join("ws");
        fs::create_dir(&root)?;
        for name in SECRETS.iter().chain(&READ_ONLY).chain(&WRITABLE) {
            let path = root.join(name);
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)?;
            }
            let secret = SECRETS.contains(name);
            fs::write(
                &path,
                if secret {
                    format!("{MARK} {name}\n")
                } else {
                    format!("{name}\n")
                },
            )?;
        }
        for tile in [OWN, OTHER, HIDDEN] {
            fs::write(root.join(tile).join("xbin.json"), "{}\n")?;
        }
        fs::write(root.join("xbin.json"), "{}\n")?;
        give(&root)?;
        Ok(Self { root })
    }

    /// Its path, inside and outside.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Arguments that tell the probe what it is after.
    pub fn probe_args(&self) -> Result<Vec<String>> {
        let mut args = vec!["--workspace".to_owned(), self.root.display().to_string()];
        for name in SECRETS {
            args.extend(["--secret".to_owned(), self.path(name).display().to_string()]);
            let inode = fs::metadata(self.path(name))?.ino();
            args.extend(["--known-inode".to_owned(), inode.to_string()]);
        }
        for name in READ_ONLY {
            args.extend([
                "--readonly".to_owned(),
                self.path(name).display().to_string(),
            ]);
        }
        Ok(args)
    }

    /// Content, mode and owner of everything that no sandbox may change, in one text.
    pub fn protected(&self) -> Result<String> {
        let mut state = String::new();
        for name in SECRETS.iter().chain(&READ_ONLY) {
            let path = self.path(name);
            let found = fs::metadata(&path)?;
            writeln!(
                state,
                "{name} {:o} {}:{} {:?}",
                found.mode(),
                found.uid(),
                found.gid(),
                fs::read(&path)?
            )?;
        }
        Ok(state)
    }
}

/// Gives a tree to the service user.
pub fn give(path: &Path) -> Result<()> {
    if path.symlink_metadata()?.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path())?;
        }
    }
    Ok(chown(path, Some(SERVICE), Some(SERVICE))?)
}
