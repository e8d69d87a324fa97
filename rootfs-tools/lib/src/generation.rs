//! `index.json` and its last two generations.
//!
//! `index/<number>-<digest>.json` is a copy of the index, named by its digest. It is durable before
//! `store/index.json` is replaced, so the index on disk is always one of the copies: one that is
//! none was truncated, zeroed or written by somebody else, and the newest copy stands in for it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::digest::Digest;
use crate::files::{self, FileError, failed};
use crate::oci::Index;
use crate::staging::Staging;
use crate::store::Store;

/// Copies that are kept: of the index that is there, and of the one before.
const KEPT: usize = 2;

/// The index is not what this program wrote last.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} {}; its copy {} is used instead; `rootfs-tools fsck --repair` restores it",
    index.display(),
    if *.missing { "is missing" } else { "is damaged, or another program wrote it" },
    copy.display()
)]
pub struct IndexDamage {
    /// The index.
    pub index: PathBuf,
    /// Whether there is no such file.
    pub missing: bool,
    /// The copy that stands in for it.
    pub copy: PathBuf,
}

/// A copy of the index.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Copy {
    number: u64,
    digest: Digest,
    path: PathBuf,
}

impl Store {
    /// Tells whether the index is damaged. What has a name is then read from a copy.
    pub fn index_damage(&self) -> Result<Option<IndexDamage>, FileError> {
        read(self).map(|(_, damage)| damage)
    }

    pub(crate) fn index(&self) -> Result<Index, FileError> {
        read(self).map(|(index, _)| index)
    }

    pub(crate) fn index_path(&self) -> PathBuf {
        self.root().join("store/index.json")
    }

    /// Replaces the index. The caller has its lock. An index that is damaged is kept aside.
    pub(crate) fn write_index(&self, staging: &Staging, index: &Index) -> Result<(), FileError> {
        let path = self.index_path();
        let dir = directory(self);
        files::make_dir(&dir, 0o755)?;
        let copies = copies(&dir)?;
        if !copies.is_empty() && self.index_damage()?.is_some_and(|damage| !damage.missing) {
            self.quarantine(&path)?;
        }
        let mut content = files::to_json(index, &path)?;
        content.push(b'\n');
        let number = copies.last().map_or(0, |copy| copy.number) + 1;
        let name = format!("{number:010}-{}.json", Digest::of(&content).hex());
        files::replace(staging, &dir.join(name), &content)?;
        files::replace(staging, &path, &content)?;
        let old = (copies.len() + 1).saturating_sub(KEPT);
        for copy in copies.iter().take(old) {
            fs::remove_file(&copy.path).map_err(failed("remove", &copy.path))?;
        }
        Ok(())
    }

    /// Moves a file out of the way, for people to look at. Returns where it is now.
    pub(crate) fn quarantine(&self, file: &Path) -> Result<PathBuf, FileError> {
        let dir = self.root().join("quarantine");
        files::make_dir(&dir, 0o700)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let place = dir.join(format!("{}-{name}", uuid::Uuid::now_v7()));
        match fs::rename(file, &place) {
            // A file of a workspace may be on another file system.
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                fs::copy(file, &place).map_err(failed("copy", file))?;
                fs::remove_file(file).map_err(failed("remove", file))?;
            }
            moved => moved.map_err(failed("move aside", file))?,
        }
        files::sync_dir(&dir)?;
        if let Some(parent) = file.parent() {
            files::sync_dir(parent)?;
        }
        Ok(place)
    }
}

fn directory(store: &Store) -> PathBuf {
    store.root().join("index")
}

fn read(store: &Store) -> Result<(Index, Option<IndexDamage>), FileError> {
    // A writer replaces the index between the two looks at most a few times in a row.
    for _ in 0..8 {
        if let Some(found) = try_read(store)? {
            return Ok(found);
        }
    }
    let path = store.index_path();
    Err(failed("read", &path)(io::Error::from(
        io::ErrorKind::InvalidData,
    )))
}

/// Returns `None` where a writer was in between.
fn try_read(store: &Store) -> Result<Option<(Index, Option<IndexDamage>)>, FileError> {
    let path = store.index_path();
    let content = files::read_whole(&path)?;
    let copies = copies(&directory(store))?;
    if copies.is_empty() {
        // Written before there were copies.
        let content = content
            .ok_or(io::ErrorKind::NotFound)
            .map_err(|kind| failed::<io::Error>("open", &path)(kind.into()))?;
        return parse(&content, &path).map(|index| Some((index, None)));
    }
    let digest = content.as_deref().map(Digest::of);
    if let Some(content) = &content
        && copies
            .iter()
            .any(|copy| Some(&copy.digest) == digest.as_ref())
    {
        return parse(content, &path).map(|index| Some((index, None)));
    }
    for copy in copies.iter().rev() {
        let Some(content) = files::read_whole(&copy.path)? else {
            return Ok(None);
        };
        if Digest::of(&content) == copy.digest {
            if files::read_whole(&path)?.as_deref().map(Digest::of) != digest {
                return Ok(None);
            }
            let damage = IndexDamage {
                index: path,
                missing: digest.is_none(),
                copy: copy.path.clone(),
            };
            return Ok(Some((parse(&content, &copy.path)?, Some(damage))));
        }
    }
    Err(failed("use", &path)(io::Error::from(
        io::ErrorKind::InvalidData,
    )))
}

fn parse(content: &[u8], path: &Path) -> Result<Index, FileError> {
    serde_json::from_slice(content).map_err(failed("parse", path))
}

/// Returns the copies by their number. What has another name is no copy.
fn copies(dir: &Path) -> Result<Vec<Copy>, FileError> {
    let mut copies: Vec<_> = files::entries_if_any(dir)?
        .into_iter()
        .filter_map(|path| {
            let (number, hex) = path
                .file_name()?
                .to_str()?
                .strip_suffix(".json")?
                .split_once('-')?;
            Some(Copy {
                number: number.parse().ok()?,
                digest: Digest::parse(format!("sha256:{hex}")).ok()?,
                path: path.clone(),
            })
        })
        .collect();
    copies.sort();
    Ok(copies)
}
