//! What a technique is after, and how its success is seen.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::raw::Errno;

/// Every secret contains these bytes.
pub(crate) const MARK: &[u8] = b"CASEMATE-SECRET";
/// Result of a read technique that found a secret.
const REVEALED: &str = "REVEALED";
/// Result of a write technique that changed a file.
const WRITTEN: &str = "WRITTEN";

/// The targets, from the command line.
#[derive(Debug, Clone)]
pub(crate) struct Targets {
    /// The directory whose parts are hidden or read-only.
    pub(crate) workspace: PathBuf,
    /// Files that must not be read; absolute.
    pub(crate) secrets: Vec<PathBuf>,
    /// Files that must not be written; absolute.
    pub(crate) read_only: Vec<PathBuf>,
    /// Inode numbers of the secrets, as a spy outside would tell.
    pub(crate) inodes: Vec<u64>,
    /// How far around each inode the sweep goes.
    pub(crate) sweep: u64,
    /// Name of an abstract socket of the host, if one listens.
    pub(crate) abstract_socket: Option<String>,
}

/// What one technique achieved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// `REVEALED`, `reached`, or why not.
    pub(crate) read: String,
    /// `WRITTEN`, or why not.
    pub(crate) write: String,
    /// How the calls of the technique ended, as `call:word`, sorted.
    pub(crate) steps: BTreeSet<String>,
}

impl Row {
    /// A row of one step and nothing seen.
    pub(crate) fn step(name: &str, word: impl AsRef<str>) -> Self {
        let mut row = Self::default();
        row.note(name, word);
        row
    }

    /// Adds how a call ended.
    pub(crate) fn note(&mut self, name: &str, word: impl AsRef<str>) {
        self.steps.insert(format!("{name}:{}", word.as_ref()));
    }

    /// Marks that something behind the border was reached.
    pub(crate) fn reached(&mut self) {
        if self.read != REVEALED {
            "reached".clone_into(&mut self.read);
        }
    }

    /// Adds what was seen elsewhere; a success is never forgotten.
    pub(crate) fn merge(&mut self, other: Self) {
        if other.read == REVEALED || self.read.is_empty() {
            self.read = other.read;
        }
        if other.write == WRITTEN || self.write.is_empty() {
            self.write = other.write;
        }
        self.steps.extend(other.steps);
    }

    fn saw(&mut self, result: Result<bool, Errno>) {
        match result {
            Ok(true) => REVEALED.clone_into(&mut self.read),
            Ok(false) if self.read.is_empty() => "other content".clone_into(&mut self.read),
            Err(errno) if self.read.is_empty() => self.read = errno.name(),
            Ok(false) | Err(_) => {}
        }
    }

    fn wrote(&mut self, result: Result<(), Errno>) {
        match result {
            Ok(()) => WRITTEN.clone_into(&mut self.write),
            Err(errno) if self.write.is_empty() => self.write = errno.name(),
            Err(_) => {}
        }
    }
}

impl Targets {
    /// Tries every target at its own path.
    pub(crate) fn look(&self) -> Row {
        self.look_at(Path::new("/"), Path::new("/"))
    }

    /// Tries every target below `from` at its place below `to`.
    pub(crate) fn look_at(&self, from: &Path, to: &Path) -> Row {
        let mut row = self.read_at(from, to);
        for path in &self.read_only {
            if let Ok(rest) = path.strip_prefix(from) {
                row.wrote(append(&below(to, rest)));
            }
        }
        row
    }

    /// As [`Self::look_at`], for views whose writes go elsewhere.
    pub(crate) fn read_at(&self, from: &Path, to: &Path) -> Row {
        let mut row = Row::default();
        for path in &self.secrets {
            if let Ok(rest) = path.strip_prefix(from) {
                row.saw(reveals(&below(to, rest)));
            }
        }
        row
    }

    /// Directories worth copying: the workspace, its parent, the root, and every mount point at
    /// or below the workspace.
    pub(crate) fn sources(&self) -> Vec<PathBuf> {
        let mut all = vec![self.workspace.clone()];
        all.extend(self.workspace.parent().map(Path::to_owned));
        all.push(PathBuf::from("/"));
        for target in crate::mounts::targets() {
            let target = PathBuf::from(target);
            if target.starts_with(&self.workspace) && !all.contains(&target) {
                all.push(target);
            }
        }
        all
    }

    /// Mount points at, above and below the targets, innermost first.
    pub(crate) fn mount_points(&self) -> Vec<PathBuf> {
        let relevant = |target: &PathBuf| {
            target.starts_with(&self.workspace)
                || self.workspace.starts_with(target)
                || self.read_only.iter().any(|path| path.starts_with(target))
        };
        let all = crate::mounts::targets();
        all.into_iter()
            .map(PathBuf::from)
            .filter(relevant)
            .rev()
            .collect()
    }
}

/// `to/rest`, without the slash at the end that an empty rest would leave.
fn below(to: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() {
        to.to_owned()
    } else {
        to.join(rest)
    }
}

/// Whether the file holds a secret.
pub(crate) fn reveals(path: &Path) -> Result<bool, Errno> {
    let mut content = Vec::new();
    fs::File::open(path)?
        .take(1 << 16)
        .read_to_end(&mut content)?;
    Ok(contains_mark(&content))
}

/// Whether the bytes hold a secret.
pub(crate) fn contains_mark(bytes: &[u8]) -> bool {
    bytes.windows(MARK.len()).any(|window| window == MARK)
}

fn append(path: &Path) -> Result<(), Errno> {
    let mut file = fs::OpenOptions::new().append(true).open(path)?;
    file.write_all(b"x")?;
    Ok(())
}
