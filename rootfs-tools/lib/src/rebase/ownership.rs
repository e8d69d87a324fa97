//! Which paths belong to packages, and what becomes of those that do not.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::layer::merged::Merged;
use crate::packages::MAX_STATUS;

/// Where dpkg's lists of files are.
pub(super) const INFO: &str = "var/lib/dpkg/info";

/// State of the package tools, and what is made anew: replayed or dropped, never copied.
const STATE: [&str; 14] = [
    "dev",
    "proc",
    "run",
    "sys",
    "tmp",
    "var/cache",
    "var/lib/apt",
    "var/lib/dpkg",
    "var/lib/pam",
    "var/lib/ucf",
    "var/lib/systemd/deb-systemd-helper-enabled",
    "var/log",
    "var/run",
    "var/tmp",
];
/// Files below `/etc` that tools make from others.
const GENERATED: [&str; 12] = [
    "etc/.pwd.lock",
    "etc/alternatives",
    "etc/group-",
    "etc/gshadow-",
    "etc/ld.so.cache",
    "etc/mtab",
    "etc/passwd-",
    "etc/shadow-",
    "etc/ssl/certs",
    "etc/subgid-",
    "etc/subuid-",
    "etc/resolv.conf",
];
/// apt's configuration and keys: they have to be there before a package can be asked for.
const FIRST: [&str; 2] = ["etc/apt", "usr/share/keyrings"];

/// What becomes of a changed path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It comes with its package, or is made anew.
    Replayed,
    /// Needed by apt: merged before the replay.
    First,
    /// One of the account files: merged before the replay.
    Account,
    /// Merged after the replay.
    Merged,
    /// Copied after the replay.
    Copied,
    /// Below /usr, of no package, and not in /usr/local: a by-product of a package.
    Left,
}

/// The paths that packages own.
#[derive(Debug, Default)]
pub(super) struct Owned {
    paths: BTreeSet<PathBuf>,
    /// `bin` → `usr/bin` and the like.
    aliases: BTreeMap<OsString, PathBuf>,
}

impl Owned {
    pub(super) fn read(tree: &Merged) -> casemate_sys::Result<Self> {
        let mut owned = Self {
            aliases: aliases(tree)?,
            ..Self::default()
        };
        let Some(info) = tree.find(Path::new(INFO))? else {
            return Ok(owned);
        };
        for name in tree.names(&info)? {
            if Path::new(&name).extension().is_none_or(|end| end != "list") {
                continue;
            }
            let Some(node) = tree.child(&info, &name)? else {
                continue;
            };
            if node.kind() != FileType::RegularFile {
                continue;
            }
            let list = tree.read_node(&node, MAX_STATUS)?;
            for line in list.split(|byte| *byte == b'\n') {
                let path = Path::new(std::ffi::OsStr::from_bytes(line));
                if let Ok(path) = path.strip_prefix("/") {
                    owned.paths.insert(owned.real(path));
                }
            }
        }
        Ok(owned)
    }

    /// The path with a merged top directory by its real name.
    fn real(&self, path: &Path) -> PathBuf {
        let mut components = path.components();
        let first = components.next().map(|first| first.as_os_str().to_owned());
        match first.and_then(|first| self.aliases.get(&first)) {
            Some(real) => real.join(components.as_path()),
            None => path.to_owned(),
        }
    }

    pub(super) fn has(&self, path: &Path) -> bool {
        self.paths.contains(path)
    }

    pub(super) fn fate(&self, path: &Path) -> Fate {
        let in_any = |list: &[&str]| list.iter().any(|dir| path.starts_with(dir));
        if in_any(&STATE) || in_any(&GENERATED) {
            return Fate::Replayed;
        }
        if super::accounts::FILES
            .iter()
            .any(|(file, _)| path == Path::new(file))
        {
            return Fate::Account;
        }
        if in_any(&FIRST) && (path.starts_with("etc") || !self.has(path)) {
            return Fate::First;
        }
        if path.starts_with("etc") {
            return Fate::Merged;
        }
        if self.has(path)
            || path
                .components()
                .any(|part| part.as_os_str() == "__pycache__")
        {
            return Fate::Replayed;
        }
        if path.starts_with("usr") && !path.starts_with("usr/local") {
            return Fate::Left;
        }
        Fate::Copied
    }
}

/// Returns the links of the root directory into /usr.
fn aliases(tree: &Merged) -> casemate_sys::Result<BTreeMap<OsString, PathBuf>> {
    let root = tree.root()?;
    let mut aliases = BTreeMap::new();
    for name in tree.names(&root)? {
        let Some(node) = tree.child(&root, &name)? else {
            continue;
        };
        if node.kind() == FileType::Symlink {
            let target = tree.read_link(&node)?;
            let target = target.strip_prefix("/").unwrap_or(&target).to_owned();
            if target.starts_with("usr") {
                aliases.insert(name, target);
            }
        }
    }
    Ok(aliases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_one_fate() {
        let mut owned = Owned::default();
        owned.paths.insert(PathBuf::from("usr/bin/jq"));
        owned.paths.insert(PathBuf::from("etc/jq.conf"));
        for (path, fate) in [
            ("usr/bin/jq", Fate::Replayed),
            ("usr/bin/mine", Fate::Left),
            ("usr/lib/python3/__pycache__/x.pyc", Fate::Replayed),
            ("usr/local/bin/mine", Fate::Copied),
            ("opt/x", Fate::Copied),
            ("root/.bashrc", Fate::Copied),
            ("var/lib/dpkg/status", Fate::Replayed),
            ("var/lib/postgresql/x", Fate::Copied),
            ("etc/jq.conf", Fate::Merged),
            ("etc/mine", Fate::Merged),
            ("etc/passwd", Fate::Account),
            ("etc/apt/sources.list", Fate::First),
            ("usr/share/keyrings/x.gpg", Fate::First),
        ] {
            assert_eq!(owned.fate(Path::new(path)), fate, "{path}");
        }
    }
}
