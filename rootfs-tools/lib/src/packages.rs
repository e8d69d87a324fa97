//! What Debian packages a root file system has, and which programs get privileges by being run.
//!
//! Read from dpkg's and apt's own files, never by running a program of the base.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::files;
use crate::layer::merged::{Merged, Node, xattr};
use crate::staging::Staging;
use crate::store::{Store, StoreError};

/// dpkg's record of packages.
pub(crate) const STATUS: &str = "var/lib/dpkg/status";
/// apt's record of what it installed by itself.
const EXTENDED: &str = "var/lib/apt/extended_states";
/// Longest record that is read, in bytes.
pub(crate) const MAX_STATUS: usize = 256 << 20;
/// Form of the cached list.
const FORMAT: u32 = 1;
const CAPABILITY: &str = "security.capability";

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Its version.
    pub version: String,
    /// Whether it was asked for, and did not come as a dependency.
    pub manual: bool,
}

/// A program with a set-user-id or set-group-id bit, or with capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Privileged {
    /// Mode, octal.
    pub mode: String,
    /// Owner and group by number.
    pub owner: String,
    /// Value of `security.capability`, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
}

/// `pkgs.json` beside a snapshot: what a comparison of bases needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    pub(crate) format: u32,
    /// Packages by `name:architecture`.
    pub(crate) packages: BTreeMap<String, Package>,
    /// Programs with privileges by path.
    pub(crate) privileged: BTreeMap<String, Privileged>,
    /// Number of regular files.
    pub(crate) files: u64,
    /// Their size in bytes.
    pub(crate) bytes: u64,
}

/// What dpkg and apt know of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) architecture: String,
    pub(crate) version: String,
    pub(crate) installed: bool,
    /// Only configuration files are left.
    pub(crate) config_files: bool,
    pub(crate) held: bool,
    pub(crate) essential: bool,
    pub(crate) manual: bool,
    /// Digests (MD5) of configuration files as the package has them, by absolute path.
    pub(crate) conffiles: BTreeMap<String, String>,
}

/// The packages of a root file system by `name:architecture`; `all` counts as native.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Packages(pub(crate) BTreeMap<String, Known>);

impl Packages {
    /// Reads dpkg's and apt's records; a root without them has no packages.
    pub(crate) fn read(tree: &Merged) -> casemate_sys::Result<Self> {
        let status = tree
            .read(Path::new(STATUS), MAX_STATUS)?
            .unwrap_or_default();
        let extended = tree
            .read(Path::new(EXTENDED), MAX_STATUS)?
            .unwrap_or_default();
        Ok(Self::parse(
            &String::from_utf8_lossy(&status),
            &String::from_utf8_lossy(&extended),
        ))
    }

    pub(crate) fn parse(status: &str, extended: &str) -> Self {
        let automatic: BTreeSet<(String, String)> = stanzas(extended)
            .filter(|fields| fields.get("Auto-Installed").is_some_and(|auto| auto == "1"))
            .filter_map(|fields| {
                let name = fields.get("Package")?.clone();
                let architecture = fields.get("Architecture").cloned().unwrap_or_default();
                Some((name, architecture))
            })
            .collect();
        let mut packages = BTreeMap::new();
        let mut native = None;
        for fields in stanzas(status) {
            let Some(mut known) = known(&fields) else {
                continue;
            };
            // dpkg itself is native.
            if known.name == "dpkg" {
                native = Some(known.architecture.clone());
            }
            known.manual = known.installed
                && !automatic
                    .iter()
                    .any(|(name, arch)| *name == known.name && matches(arch, &known.architecture));
            packages.insert(format!("{}:{}", known.name, known.architecture), known);
        }
        let Some(native) = native else {
            return Self(packages);
        };
        Self(
            packages
                .into_values()
                .map(|mut known| {
                    if known.architecture == "all" {
                        known.architecture.clone_from(&native);
                    }
                    (format!("{}:{}", known.name, known.architecture), known)
                })
                .collect(),
        )
    }

    /// Returns the installed ones.
    pub(crate) fn installed(&self) -> impl Iterator<Item = (&String, &Known)> {
        self.0.iter().filter(|(_, known)| known.installed)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(|known| known.installed)
    }
}

/// apt records the native architecture for packages of architecture `all`.
fn matches(auto: &str, architecture: &str) -> bool {
    auto == architecture || architecture == "all" || auto.is_empty()
}

fn known(fields: &BTreeMap<String, String>) -> Option<Known> {
    let mut state = fields.get("Status")?.split(' ');
    let (want, _error, state) = (state.next()?, state.next()?, state.next()?);
    let conffiles = fields
        .get("Conffiles")
        .into_iter()
        .flat_map(|list| list.lines())
        .filter_map(|line| {
            let mut words = line.split(' ').filter(|word| !word.is_empty());
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        })
        .collect();
    Some(Known {
        name: fields.get("Package")?.clone(),
        architecture: fields.get("Architecture")?.clone(),
        version: fields.get("Version").cloned().unwrap_or_default(),
        installed: state == "installed",
        config_files: state == "config-files",
        held: want == "hold",
        essential: fields.get("Essential").is_some_and(|yes| yes == "yes"),
        manual: false,
        conffiles,
    })
}

/// Splits a control file into stanzas of fields (deb822).
fn stanzas(text: &str) -> impl Iterator<Item = BTreeMap<String, String>> {
    text.split("\n\n").map(|stanza| {
        let mut fields: BTreeMap<String, String> = BTreeMap::new();
        let mut last = None;
        for line in stanza.lines() {
            if let Some(more) = line.strip_prefix([' ', '\t']) {
                if let Some(value) = last.as_ref().and_then(|name| fields.get_mut(name)) {
                    value.push('\n');
                    value.push_str(more);
                }
            } else if let Some((name, value)) = line.split_once(':') {
                fields.insert(name.to_owned(), value.trim().to_owned());
                last = Some(name.to_owned());
            }
        }
        fields
    })
}

impl Contents {
    /// Reads a root file system.
    pub(crate) fn scan(tree: &Merged) -> casemate_sys::Result<Self> {
        let packages = Packages::read(tree)?;
        let mut contents = Self {
            format: FORMAT,
            packages: packages
                .installed()
                .map(|(key, known)| {
                    let package = Package {
                        version: known.version.clone(),
                        manual: known.manual,
                    };
                    (key.clone(), package)
                })
                .collect(),
            privileged: BTreeMap::new(),
            files: 0,
            bytes: 0,
        };
        contents.walk(tree, &tree.root()?, Path::new("/"))?;
        Ok(contents)
    }

    fn walk(&mut self, tree: &Merged, dir: &Node, path: &Path) -> casemate_sys::Result<()> {
        for name in tree.names(dir)? {
            let Some(node) = tree.child(dir, &name)? else {
                continue;
            };
            let path = path.join(&name);
            match node.kind() {
                FileType::Directory => self.walk(tree, &node, &path)?,
                FileType::RegularFile => self.file(tree, &node, &path)?,
                FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, tree: &Merged, node: &Node, path: &Path) -> casemate_sys::Result<()> {
        self.files += 1;
        self.bytes += u64::try_from(node.stat.st_size).unwrap_or(0);
        let mode = node.stat.st_mode & 0o7777;
        // Only what can be executed can have capabilities that matter.
        let capability = if mode & 0o111 == 0 {
            None
        } else {
            xattr(&tree.open(node)?, CAPABILITY)?
        };
        if mode & 0o6000 != 0 || capability.is_some() {
            let privileged = Privileged {
                mode: format!("{mode:04o}"),
                owner: format!("{}:{}", node.stat.st_uid, node.stat.st_gid),
                capability: capability.map(|value| {
                    use std::fmt::Write as _;
                    value.iter().fold(String::new(), |mut text, byte| {
                        // Writing to a string cannot fail.
                        let _written = write!(text, "{byte:02x}");
                        text
                    })
                }),
            };
            let shown = String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
            self.privileged.insert(shown, privileged);
        }
        Ok(())
    }
}

/// Why a base's contents are not known.
#[derive(Debug, thiserror::Error)]
pub enum ContentsError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The snapshot could not be read.
    #[error("cannot read the snapshot {chain}")]
    Snapshot {
        /// Which.
        chain: Digest,
        /// Why.
        #[source]
        source: casemate_sys::Error,
    },
}

impl Store {
    /// Returns what a snapshot contains: from `pkgs.json` beside it, which is written where there
    /// is none yet and the store may be changed.
    pub fn contents(&self, chain: &Digest) -> Result<Contents, ContentsError> {
        let dir = self.snapshot_dir(chain);
        let cache = dir.join("pkgs.json");
        let held = self.use_lock(chain)?;
        let cached: Option<Contents> = files::read_json(&cache).map_err(StoreError::from)?;
        if let Some(contents) = cached.filter(|cached| cached.format == FORMAT) {
            return Ok(contents);
        }
        let scan = || Contents::scan(&Merged::base(&dir.join("fs"))?);
        let contents = scan().map_err(|source| ContentsError::Snapshot {
            chain: chain.clone(),
            source,
        })?;
        if self.require_write().is_ok() {
            let staging = Staging::create(self).map_err(StoreError::from)?;
            files::replace_json(&staging, &cache, &contents).map_err(StoreError::from)?;
        }
        drop(held);
        Ok(contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\nEssential: yes\n\nPackage: jq\nStatus: hold ok installed\nArchitecture: amd64\nVersion: 1.6\nConffiles:\n /etc/jq 0123 obsolete\n /etc/jq2 4567\nDescription: x\n more: text\n\nPackage: tzdata\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 2\n\nPackage: libjq1\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.6\n\nPackage: doc\nStatus: install ok installed\nArchitecture: all\nVersion: 3\n";
    const EXTENDED: &str = "Package: libjq1\nArchitecture: amd64\nAuto-Installed: 1\n\nPackage: doc\nArchitecture: amd64\nAuto-Installed: 1\n\nPackage: jq\nArchitecture: amd64\nAuto-Installed: 0\n";

    #[test]
    fn what_was_asked_for_is_told_from_what_came_along() {
        let packages = Packages::parse(STATUS, EXTENDED).0;
        let manual: Vec<&str> = packages
            .values()
            .filter(|known| known.manual)
            .map(|known| known.name.as_str())
            .collect();
        assert_eq!(manual, ["dpkg", "jq"]);
        assert!(packages["jq:amd64"].held && packages["dpkg:amd64"].essential);
        assert_eq!(packages["jq:amd64"].conffiles["/etc/jq2"], "4567");
        assert!(packages["tzdata:amd64"].config_files && !packages["tzdata:amd64"].installed);
    }
}
