//! What a layer changes of its base, path by path.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use casemate_sys::Result;
use rustix::fs::FileType;

use super::merged::{Merged, Node, Side, stat};

/// A path that the base has otherwise.
#[derive(Debug, Clone)]
pub(crate) struct Changed {
    /// The path, relative to the root.
    pub(crate) path: PathBuf,
    /// What is there now; `None` for a deletion.
    pub(crate) node: Option<Node>,
}

/// Returns what is different from the base at the same path, parents first. A directory that the
/// base has as well is no change, whatever its attributes are.
pub(crate) fn changes(tree: &Merged) -> Result<Vec<Changed>> {
    let mut found = Vec::new();
    walk(tree, &tree.root()?, Path::new(""), &mut found)?;
    Ok(found)
}

fn walk(tree: &Merged, dir: &Node, path: &Path, found: &mut Vec<Changed>) -> Result<()> {
    let Some(base) = tree.side(Side::Base) else {
        return Ok(());
    };
    let mut names: BTreeSet<_> = if dir.base.as_deref() == Some(path) {
        // What only the base has is as it was.
        let upper = dir.upper.clone();
        let above = Node {
            upper,
            base: None,
            stat: dir.stat,
        };
        tree.names(&above)?
    } else {
        tree.names(dir)?
    };
    if dir.base.as_deref() != Some(path) && is_dir(base, path)? {
        // What the base had here is gone, unless it is made again.
        let here = base.open_dir(path)?.names()?;
        names.extend(here.into_iter().map(PathBuf::into_os_string));
    }
    for name in names {
        let path = path.join(&name);
        let before = stat(base, &path)?;
        match tree.child(dir, &name)? {
            None => {
                if before.is_some() {
                    found.push(Changed { path, node: None });
                }
            }
            Some(node) if node.upper.is_none() && node.base.as_deref() == Some(&path) => {}
            Some(node) => {
                let was_dir = before.is_some_and(|stat| {
                    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
                });
                let into = node.is_dir().then(|| node.clone());
                if !(was_dir && node.is_dir()) {
                    found.push(Changed {
                        path: path.clone(),
                        node: Some(node),
                    });
                }
                if let Some(dir) = into {
                    walk(tree, &dir, &path, found)?;
                }
            }
        }
    }
    Ok(())
}

fn is_dir(dir: &casemate_sys::dir::Dir, path: &Path) -> Result<bool> {
    let found = stat(dir, path)?;
    Ok(found.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory))
}
