//! What is different between two bases, from their cached lists.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::packages::{Contents, ContentsError, Privileged};
use crate::store::{ResolvedBase, Store};

/// The difference between two bases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The first.
    pub from: Side,
    /// The second.
    pub to: Side,
    /// Packages that only the second has, with their versions.
    pub added: BTreeMap<String, String>,
    /// Packages that only the first has, with their versions.
    pub removed: BTreeMap<String, String>,
    /// Packages of which both have another version.
    pub changed: BTreeMap<String, Change<String>>,
    /// Programs that get privileges by being run: set-user-id, set-group-id, capabilities. Those
    /// that are the same in both are left out.
    pub privileged: BTreeMap<String, Change<Option<Privileged>>>,
}

/// One of the bases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Its name.
    pub name: String,
    /// Its version.
    pub manifest: String,
    /// Number of packages.
    pub packages: usize,
    /// Number of regular files.
    pub files: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

/// What it was and what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change<T> {
    /// In the first.
    pub from: T,
    /// In the second.
    pub to: T,
}

impl Store {
    /// Compares two bases. Nothing is mounted, and neither is read again that was read before.
    pub fn diff(
        &self,
        from: &ResolvedBase,
        to: &ResolvedBase,
    ) -> Result<Difference, ContentsError> {
        let (old, new) = (self.contents(&from.chain)?, self.contents(&to.chain)?);
        Ok(Difference {
            from: side(from, &old),
            to: side(to, &new),
            added: only_in(&new, &old),
            removed: only_in(&old, &new),
            changed: changed(&old, &new),
            privileged: privileged(&old, &new),
        })
    }
}

fn side(base: &ResolvedBase, contents: &Contents) -> Side {
    Side {
        name: base.name.to_string(),
        manifest: base.manifest.to_string(),
        packages: contents.packages.len(),
        files: contents.files,
        bytes: contents.bytes,
    }
}

fn only_in(these: &Contents, those: &Contents) -> BTreeMap<String, String> {
    let own = these.packages.iter();
    own.filter(|(name, _)| !those.packages.contains_key(*name))
        .map(|(name, package)| (name.clone(), package.version.clone()))
        .collect()
}

fn changed(old: &Contents, new: &Contents) -> BTreeMap<String, Change<String>> {
    let both = old.packages.iter().filter_map(|(name, package)| {
        let other = new.packages.get(name)?;
        (other.version != package.version).then(|| {
            let change = Change {
                from: package.version.clone(),
                to: other.version.clone(),
            };
            (name.clone(), change)
        })
    });
    both.collect()
}

fn privileged(old: &Contents, new: &Contents) -> BTreeMap<String, Change<Option<Privileged>>> {
    let paths = old.privileged.keys().chain(new.privileged.keys());
    paths
        .filter_map(|path| {
            let change = Change {
                from: old.privileged.get(path).cloned(),
                to: new.privileged.get(path).cloned(),
            };
            (change.from != change.to).then(|| (path.clone(), change))
        })
        .collect()
}
