//! What a rebase will do, decided before anything is changed.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde::Serialize;

use super::accounts::{self, FILES};
use super::ownership::{Fate, Owned};
use super::sources;
use crate::layer::changes::{Changed, changes};
use crate::layer::merged::Merged;
use crate::packages::{MAX_STATUS, Packages};

/// Most paths that are listed where only their number matters.
const MOST_LISTED: usize = 100;
/// Where apt keeps the packages that it has fetched.
const ARCHIVES: &str = "var/cache/apt/archives";

/// What a rebase does, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The layer's directory name.
    pub layer: String,
    /// The tile, where it is known.
    pub tile: Option<String>,
    /// The base that the layer is built on.
    pub from: String,
    /// The base that it is moved to.
    pub to: String,
    /// Packages that were asked for in the layer: installed again.
    pub packages: Vec<Replayed>,
    /// Packages of the old base that were removed in the layer and that the new base has: removed
    /// again.
    pub removed: Vec<String>,
    /// Packages that are held at their version: held again, at the new one.
    pub held: Vec<String>,
    /// Architectures besides the native one.
    pub architectures: Vec<String>,
    /// apt's configuration, sources and keys: carried over first.
    pub sources: Vec<Carried>,
    /// Users and groups that were added or changed.
    pub accounts: Vec<String>,
    /// Files below /etc that were added, changed or removed: merged.
    pub etc: Vec<Carried>,
    /// Other files that belong to no package: copied, or removed again.
    pub files: Vec<Carried>,
    /// By-products of packages below /usr: left behind; at most a hundred are listed.
    pub left: Vec<String>,
    /// How many of these there are.
    pub left_count: usize,
    /// Alternatives that were chosen by hand.
    pub alternatives: Vec<Alternative>,
    /// What a person should look at.
    pub notices: Vec<String>,
}

/// A package that is installed again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// `name:architecture`.
    pub name: String,
    /// Version in the layer.
    pub version: String,
    /// Version that the new base has already.
    pub in_base: Option<String>,
    /// Whether apt's cache in the layer holds the package itself, for one that no source has.
    pub cached: bool,
}

/// A path that is carried over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Carried {
    /// The path.
    pub path: String,
    /// What the layer did to it.
    pub was: Was,
}

/// What a layer did to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Was {
    /// Made it.
    Added,
    /// Changed what the base has.
    Changed,
    /// Removed what the base has.
    Removed,
}

/// An alternative that was chosen by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alternative {
    /// Its name.
    pub name: String,
    /// The program.
    pub path: String,
}

/// The three trees of a rebase: the layer on its base, that base alone, and the new one.
#[derive(Debug)]
pub(super) struct Trees {
    pub(super) own: Merged,
    pub(super) old: Merged,
    pub(super) new: Merged,
}

/// The paths of a plan as they are on disk, and what the trees' packages are.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) first: Vec<Changed>,
    pub(super) etc: Vec<Changed>,
    pub(super) files: Vec<Changed>,
    pub(super) accounts: Vec<(PathBuf, String)>,
    pub(super) own_packages: Packages,
    pub(super) new_packages: Packages,
    pub(super) codenames: Option<(String, String)>,
    /// Packages in apt's cache: `name:architecture` and the file's path.
    pub(super) archives: BTreeMap<String, PathBuf>,
}

pub(super) fn make(trees: &Trees, plan: &mut Plan) -> casemate_sys::Result<Work> {
    let own = Packages::read(&trees.own)?;
    let old = Packages::read(&trees.old)?;
    let new = Packages::read(&trees.new)?;
    let mut work = Work {
        first: Vec::new(),
        etc: Vec::new(),
        files: Vec::new(),
        accounts: Vec::new(),
        codenames: codename(&trees.old)?.zip(codename(&trees.new)?),
        archives: archives(&trees.own)?,
        own_packages: own,
        new_packages: new,
    };
    packages(plan, &old, &work);
    plan.architectures = architectures(&trees.own)?;
    plan.alternatives = alternatives(&trees.own)?;
    let owned = Owned::read(&trees.own)?;
    for changed in changes(&trees.own)? {
        sort(plan, &mut work, &owned, (&trees.old, changed))?;
    }
    plan.left_count = plan.left.len();
    plan.left.truncate(MOST_LISTED);
    merge_accounts(plan, &mut work, trees)?;
    diversions(plan, trees)?;
    Ok(work)
}

fn packages(plan: &mut Plan, old: &Packages, work: &Work) {
    let (own, new) = (&work.own_packages, &work.new_packages);
    for (key, known) in own.installed().filter(|(_, known)| known.manual) {
        if old.0.get(key).is_some_and(|before| before.manual) {
            continue;
        }
        let in_base = new.0.get(key).filter(|known| known.installed);
        plan.packages.push(Replayed {
            name: key.clone(),
            version: known.version.clone(),
            in_base: in_base.map(|known| known.version.clone()),
            cached: work.archives.contains_key(key),
        });
    }
    for (key, _) in old.installed().filter(|(key, _)| !own.has(key)) {
        match new.0.get(key).filter(|known| known.installed) {
            Some(known) if known.essential => plan.notices.push(format!(
                "{key} was removed and is essential in the new base: it stays"
            )),
            Some(_) => plan.removed.push(key.clone()),
            None => {}
        }
    }
    plan.held = own
        .installed()
        .filter(|(_, known)| known.held)
        .map(|(key, _)| key.clone())
        .collect();
}

/// Puts one changed path where it belongs.
fn sort(
    plan: &mut Plan,
    work: &mut Work,
    owned: &Owned,
    (old, changed): (&Merged, Changed),
) -> casemate_sys::Result<()> {
    let path = &changed.path;
    let shown = String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
    let was = match (&changed.node, old.find(path)?) {
        (None, _) => Was::Removed,
        (Some(_), Some(_)) => Was::Changed,
        (Some(_), None) => Was::Added,
    };
    let carried = Carried {
        path: format!("/{shown}"),
        was,
    };
    // A directory alone says nothing to a reader.
    let tell = changed.node.as_ref().is_none_or(|node| !node.is_dir());
    let (list, paths) = match owned.fate(path) {
        Fate::Replayed | Fate::Account => return Ok(()),
        Fate::Left => {
            if tell && was != Was::Removed {
                plan.left.push(carried.path);
            }
            return Ok(());
        }
        Fate::First => (&mut plan.sources, &mut work.first),
        Fate::Merged => {
            // A configuration file as its package has it comes with the package.
            if is_pristine(work, &carried.path) && was == Was::Added {
                (&mut Vec::new(), &mut work.etc)
            } else {
                (&mut plan.etc, &mut work.etc)
            }
        }
        Fate::Copied => (&mut plan.files, &mut work.files),
    };
    if tell {
        list.push(carried);
    }
    paths.push(changed);
    Ok(())
}

/// Whether a path is a configuration file of an installed package; whether it was edited shows
/// later.
fn is_pristine(work: &Work, path: &str) -> bool {
    work.own_packages
        .installed()
        .any(|(_, known)| known.conffiles.contains_key(path))
}

fn text(tree: &Merged, path: &str) -> casemate_sys::Result<Option<String>> {
    let bytes = tree.read(Path::new(path), MAX_STATUS)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

fn codename(tree: &Merged) -> casemate_sys::Result<Option<String>> {
    for path in ["etc/os-release", "usr/lib/os-release"] {
        if let Some(text) = text(tree, path)? {
            return Ok(sources::codename(&text));
        }
    }
    Ok(None)
}

fn merge_accounts(plan: &mut Plan, work: &mut Work, trees: &Trees) -> casemate_sys::Result<()> {
    for (path, fields) in FILES {
        let [old, own, new] = [
            text(&trees.old, path)?,
            text(&trees.own, path)?,
            text(&trees.new, path)?,
        ]
        .map(Option::unwrap_or_default);
        let merged = accounts::merge(&old, &own, &new, fields);
        let file = path.trim_start_matches("etc/");
        let name = |name: &String| format!("{file}: {name}");
        plan.accounts.extend(merged.kept.iter().map(name));
        plan.notices.extend(merged.collisions.iter().map(name));
        if merged.text != new {
            work.accounts.push((PathBuf::from(path), merged.text));
        }
    }
    Ok(())
}

fn architectures(tree: &Merged) -> casemate_sys::Result<Vec<String>> {
    let text = text(tree, "var/lib/dpkg/arch")?.unwrap_or_default();
    Ok(text.lines().skip(1).map(str::to_owned).collect())
}

/// Alternatives whose first line says `manual`: the chosen path is where the link leads.
fn alternatives(tree: &Merged) -> casemate_sys::Result<Vec<Alternative>> {
    let dir = "var/lib/dpkg/alternatives";
    let mut found = Vec::new();
    let Some(node) = tree
        .find(Path::new(dir))?
        .filter(|node| node.upper.is_some())
    else {
        return Ok(found);
    };
    for name in tree.names(&node)? {
        let Some(name) = name.to_str() else { continue };
        let record = text(tree, &format!("{dir}/{name}"))?.unwrap_or_default();
        if record.lines().next() != Some("manual") {
            continue;
        }
        let link = tree.find(&Path::new("etc/alternatives").join(name))?;
        if let Some(link) = link.filter(|node| node.kind() == FileType::Symlink) {
            found.push(Alternative {
                name: name.to_owned(),
                path: tree.read_link(&link)?.to_string_lossy().into_owned(),
            });
        }
    }
    Ok(found)
}

/// Local diversions are told, not repeated: what they divert may be gone.
fn diversions(plan: &mut Plan, trees: &Trees) -> casemate_sys::Result<()> {
    let text = text(&trees.own, "var/lib/dpkg/diversions")?.unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    for entry in lines.chunks_exact(3) {
        if let [from, to, ":"] = entry {
            plan.notices.push(format!(
                "the local diversion of {from} to {to} is not repeated: use dpkg-divert"
            ));
        }
    }
    Ok(())
}

fn archives(tree: &Merged) -> casemate_sys::Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let Some(dir) = tree.find(Path::new(ARCHIVES))? else {
        return Ok(found);
    };
    for name in tree.names(&dir)? {
        // name_version_architecture.deb
        let Some(parts) = name.to_str().and_then(|name| name.strip_suffix(".deb")) else {
            continue;
        };
        let mut parts = parts.split('_');
        if let (Some(package), Some(_), Some(architecture)) =
            (parts.next(), parts.next(), parts.next())
        {
            let path = Path::new(ARCHIVES).join(&name);
            found.insert(format!("{package}:{architecture}"), path);
        }
    }
    Ok(found)
}
