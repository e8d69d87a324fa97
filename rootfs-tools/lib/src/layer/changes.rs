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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::{AsRawFd as _, OwnedFd};
    use std::os::unix::fs::symlink;

    use casemate_sys::dir::Dir;
    use casemate_sys::mount::{self, Flags};

    use super::*;

    /// A mounted overlay, never attached, with its directories.
    struct Mounted {
        temp: tempfile::TempDir,
        tree: OwnedFd,
    }

    impl Mounted {
        fn new() -> Self {
            let temp = tempfile::tempdir().unwrap();
            let dir = |name: &str| temp.path().join(name);
            for name in [
                "base/etc/sub",
                "base/opt/app/bin",
                "base/srv",
                "upper",
                "work",
            ] {
                fs::create_dir_all(dir(name)).unwrap();
            }
            for name in [
                "etc/a",
                "etc/b",
                "etc/sub/c",
                "opt/app/bin/x",
                "opt/app/y",
                "srv/z",
            ] {
                fs::write(dir("base").join(name), name).unwrap();
            }
            let text = |name: &str| dir(name).to_string_lossy().into_owned();
            let (base, upper, work) = (text("base"), text("upper"), text("work"));
            let options = [
                ("lowerdir", base.as_str()),
                ("upperdir", &upper),
                ("workdir", &work),
                ("redirect_dir", "on"),
                ("index", "on"),
                ("metacopy", "off"),
            ];
            let flags = Flags {
                read_only: false,
                nosuid: true,
                nodev: true,
            };
            let tree = mount::file_system("overlay", &options, &[], flags).unwrap();
            Self { temp, tree }
        }

        fn path(&self, name: &str) -> PathBuf {
            PathBuf::from(format!("/proc/self/fd/{}/{name}", self.tree.as_raw_fd()))
        }

        fn merged(&self) -> Merged {
            let open = |name| Dir::open_trusted(&self.temp.path().join(name)).unwrap();
            Merged::new(open("base"), Some(open("upper")))
        }

        /// Every path that the kernel shows, with what it holds.
        fn seen(&self) -> Vec<(PathBuf, String)> {
            let mut found = Vec::new();
            kernel(&self.path(""), Path::new(""), &mut found);
            found.sort();
            found
        }
    }

    fn kernel(root: &Path, below: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(root.join(below)).unwrap() {
            let entry = entry.unwrap();
            let path = below.join(entry.file_name());
            let kind = entry.file_type().unwrap();
            let content = if kind.is_symlink() {
                fs::read_link(entry.path()).unwrap().display().to_string()
            } else if kind.is_dir() {
                kernel(root, &path, found);
                "dir".to_owned()
            } else {
                fs::read_to_string(entry.path()).unwrap()
            };
            found.push((path, content));
        }
    }

    fn ours(tree: &Merged, dir: &Node, below: &Path, found: &mut Vec<(PathBuf, String)>) {
        for name in tree.names(dir).unwrap() {
            let Some(node) = tree.child(dir, &name).unwrap() else {
                continue;
            };
            let path = below.join(&name);
            let content = match node.kind() {
                FileType::Symlink => tree.read_link(&node).unwrap().display().to_string(),
                FileType::Directory => {
                    ours(tree, &node, &path, found);
                    "dir".to_owned()
                }
                FileType::RegularFile
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => {
                    String::from_utf8(tree.read_node(&node, 99).unwrap()).unwrap()
                }
            };
            found.push((path, content));
        }
    }

    #[test]
    fn what_is_read_is_what_the_kernel_shows() {
        let world = Mounted::new();
        let path = |name: &str| world.path(name);
        fs::write(path("etc/a"), "changed").unwrap();
        fs::write(path("etc/new"), "new").unwrap();
        fs::remove_file(path("etc/b")).unwrap();
        // Made again: what the base has in it stays hidden.
        fs::remove_dir_all(path("srv")).unwrap();
        fs::create_dir(path("srv")).unwrap();
        fs::write(path("srv/fresh"), "fresh").unwrap();
        // Renamed, in one directory and across, and changed inside.
        fs::rename(path("etc/sub"), path("etc/moved")).unwrap();
        fs::rename(path("opt/app"), path("application")).unwrap();
        fs::write(path("application/bin/x"), "changed").unwrap();
        fs::create_dir(path("opt/app")).unwrap();
        symlink("/etc/passwd", path("link")).unwrap();
        let kernel = world.seen();
        let tree = world.merged();
        let mut read = Vec::new();
        ours(&tree, &tree.root().unwrap(), Path::new(""), &mut read);
        read.sort();
        assert_eq!(read, kernel);

        let found: Vec<(String, bool)> = changes(&tree)
            .unwrap()
            .into_iter()
            .map(|one| (one.path.display().to_string(), one.node.is_some()))
            .collect();
        let expected = [
            ("application", true),
            ("application/bin", true),
            ("application/bin/x", true),
            ("application/y", true),
            ("etc/a", true),
            ("etc/b", false),
            ("etc/moved", true),
            ("etc/moved/c", true),
            ("etc/new", true),
            ("etc/sub", false),
            ("link", true),
            ("opt/app/bin", false),
            ("opt/app/y", false),
            ("srv/fresh", true),
            ("srv/z", false),
        ];
        let expected = expected.map(|(path, there)| (path.to_owned(), there));
        assert_eq!(found, expected);
    }
}
