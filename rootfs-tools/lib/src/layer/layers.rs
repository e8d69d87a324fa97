//! The layers of a workspace, looked at without a lock.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use casemate_sys::dir::{Dir, Owner};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::held::{self, Generation, Held};
use super::key::TileKey;
use super::stamp::{Stamp, StampedBase};
use super::{LayerError, call, disk};

/// The service's own directory in a workspace.
const PRIVATE: &str = ".xbin";
/// Where the layers are in a workspace.
const BELOW: &str = ".xbin/term";
/// Link to the current generation.
pub(super) const CURRENT: &str = "current";
/// Directory of the generations.
pub(super) const GENERATIONS: &str = "gen";
/// Record of a generation.
pub(super) const STAMP: &str = "stamp.json";
/// Changes of a generation, and of the layers of older programs.
pub(super) const UPPER: &str = "upper";
/// Overlayfs' own directory.
pub(super) const WORK: &str = "work";
/// Version line of older programs.
pub(super) const LABEL: &str = "base";
/// Lock of a layer, and of a generation that is being built.
pub(super) const LOCK: &str = "lock";

const ROOT: Owner = Owner { uid: 0, gid: 0 };
/// How often a held lock is tried again.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// The layers of a workspace.
#[derive(Debug)]
pub struct Layers {
    dir: Dir,
    path: PathBuf,
}

/// A layer with content, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Its directory name.
    pub key: TileKey,
    /// The tile, where it is known.
    pub tile: Option<String>,
    /// The current generation; none for the form of older programs.
    pub generation: Option<u32>,
    /// On what it is built.
    pub base: StampedBase,
    /// When it was made, where that is known.
    pub created: Option<String>,
}

/// A generation of a layer with content: a root for the collection of bases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamped {
    /// The layer.
    pub key: TileKey,
    /// The file that says so, or the directory that has none.
    pub path: PathBuf,
    /// The base that has to stay.
    pub base: StampedBase,
}

/// Returns what every generation of every layer of a workspace is built on: all of these bases
/// have to stay. A record that cannot be read is an error that names it.
pub fn stamps(workspace: &Path) -> Result<Vec<Stamped>, LayerError> {
    match Layers::open(workspace)? {
        Some(layers) => layers.stamps(),
        None => Ok(Vec::new()),
    }
}

fn all(operation: &'static str) -> impl Fn(casemate_sys::Error) -> LayerError {
    move |source| LayerError::Call {
        operation,
        layer: "*".to_owned(),
        source,
    }
}

impl Layers {
    /// Opens the layers of a workspace; `None` where it never had one.
    pub fn open(workspace: &Path) -> Result<Option<Self>, LayerError> {
        let path = workspace.join(BELOW);
        let opened = Dir::open_trusted(workspace).and_then(|dir| disk::dir(&dir, BELOW));
        let dir = opened.map_err(all("open the directory"))?;
        Ok(dir.map(|dir| Self { dir, path }))
    }

    /// Opens the layers of a workspace; makes their directory, which is the host root's.
    pub fn create(workspace: &Path) -> Result<Self, LayerError> {
        let path = workspace.join(BELOW);
        let open = || {
            let dir = Dir::open_trusted(workspace)?;
            let found = dir.stat(Path::new(""))?;
            let service = Owner {
                uid: found.st_uid,
                gid: found.st_gid,
            };
            dir.ensure_dirs(Path::new(PRIVATE), 0o700, service)?;
            dir.ensure_dirs(Path::new(BELOW), 0o755, ROOT)?;
            dir.open_dir(Path::new(BELOW))
        };
        let dir = open().map_err(all("make the directory"))?;
        Ok(Self { dir, path })
    }

    /// Returns where the layers are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the keys of the layers, sorted. Other names are passed over: no layer is counted
    /// that is none.
    pub fn keys(&self) -> Result<Vec<TileKey>, LayerError> {
        let names = self.dir.names().map_err(all("list the directory"))?;
        Ok(names
            .iter()
            .filter_map(|name| TileKey::parse(name.to_str()?))
            .collect())
    }

    /// Returns every layer that has content.
    pub fn list(&self) -> Result<Vec<Look>, LayerError> {
        let mut list = Vec::new();
        for key in self.keys()? {
            list.extend(self.look(&key)?);
        }
        Ok(list)
    }

    /// Looks at a layer; `None` where it has no content.
    pub fn look(&self, key: &TileKey) -> Result<Option<Look>, LayerError> {
        let Some(dir) = self.layer(key)? else {
            return Ok(None);
        };
        let path = self.path.join(key.as_str());
        if let Some(number) = current(&dir, &path, key)? {
            return look_at(&dir, &path, key, number);
        }
        let read = call("read the version", key);
        if disk::is_empty(&dir, UPPER).map_err(&read)? {
            return Ok(None);
        }
        Ok(Some(Look {
            key: key.clone(),
            tile: None,
            generation: None,
            base: label(&dir).map_err(&read)?,
            created: None,
        }))
    }

    /// Locks a layer, whose directory is made where there is none, and settles what an interrupted
    /// change has left. A layer that stays in somebody's hands for `wait` is [`LayerError::Busy`].
    pub fn lock(&self, key: &TileKey, wait: Duration) -> Result<Held, LayerError> {
        let fail = call("lock the directory", key);
        self.dir
            .ensure_dirs(Path::new(key.as_str()), 0o755, ROOT)
            .map_err(&fail)?;
        let dir = self.dir.open_dir(Path::new(key.as_str())).map_err(&fail)?;
        let lock = dir
            .open(Path::new(LOCK), OFlags::RDWR | OFlags::CREATE)
            .map_err(&fail)?;
        take(&lock, wait)
            .map_err(&fail)?
            .ok_or_else(|| LayerError::Busy(key.clone()))?;
        Held::new(dir, self.path.join(key.as_str()), key.clone(), lock)
    }

    /// Opens a generation that is being built above the current one, with the lock that whoever
    /// mounts it keeps. The layer's own lock is its builder's.
    pub fn unfinished(
        &self,
        key: &TileKey,
        number: u32,
    ) -> Result<(Generation, std::os::fd::OwnedFd), LayerError> {
        let dir = self
            .layer(key)?
            .ok_or_else(|| LayerError::Absent(key.clone()))?;
        let path = self.path.join(key.as_str());
        let current = current(&dir, &path, key)?;
        held::open_unfinished(&dir, &path, key, (number, current))
    }

    fn stamps(&self) -> Result<Vec<Stamped>, LayerError> {
        let mut found = Vec::new();
        for key in self.keys()? {
            let Some(dir) = self.layer(&key)? else {
                continue;
            };
            let path = self.path.join(key.as_str());
            let read = call("list the generations", &key);
            for number in numbers(&dir).map_err(&read)? {
                if let Some(look) = look_at(&dir, &path, &key, number)? {
                    found.push(Stamped {
                        key: key.clone(),
                        path: path.join(format!("{GENERATIONS}/{number}/{STAMP}")),
                        base: look.base,
                    });
                }
            }
            if !disk::is_empty(&dir, UPPER).map_err(&read)? {
                found.push(Stamped {
                    base: label(&dir).map_err(&read)?,
                    path: path.join(LABEL),
                    key,
                });
            }
        }
        Ok(found)
    }

    fn layer(&self, key: &TileKey) -> Result<Option<Dir>, LayerError> {
        disk::dir(&self.dir, key.as_str()).map_err(call("open the directory", key))
    }
}

/// Takes a lock before the time is over; `None` where it stays in other hands.
pub(super) fn take(
    lock: &std::os::fd::OwnedFd,
    wait: Duration,
) -> casemate_sys::Result<Option<()>> {
    let until = Instant::now().checked_add(wait);
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(())),
            Err(Errno::AGAIN) if until.is_some_and(|until| Instant::now() >= until) => {
                return Ok(None);
            }
            Err(Errno::AGAIN) => std::thread::sleep(TICK),
            Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(casemate_sys::Error::new("flock", LOCK, errno));
            }
        }
    }
}

/// Returns the number of the current generation.
pub(super) fn current(dir: &Dir, path: &Path, key: &TileKey) -> Result<Option<u32>, LayerError> {
    let target = disk::link(dir, CURRENT).map_err(call("read the current generation", key))?;
    let Some(target) = target else {
        return Ok(None);
    };
    let number = target
        .to_str()
        .and_then(|text| number(text.strip_prefix(GENERATIONS)?.strip_prefix('/')?));
    match number {
        Some(number) => Ok(Some(number)),
        None => Err(LayerError::Current(path.join(CURRENT))),
    }
}

/// Returns the numbers of the generations, ascending.
pub(super) fn numbers(dir: &Dir) -> casemate_sys::Result<Vec<u32>> {
    let Some(dir) = disk::dir(dir, GENERATIONS)? else {
        return Ok(Vec::new());
    };
    let mut numbers: Vec<u32> = dir
        .names()?
        .iter()
        .filter_map(|name| number(name.to_str()?))
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn number(text: &str) -> Option<u32> {
    text.parse()
        .ok()
        .filter(|number: &u32| *number > 0 && number.to_string() == text)
}

/// Reads the stamp of a generation.
pub(super) fn stamp(
    dir: &Dir,
    path: &Path,
    key: &TileKey,
    number: u32,
) -> Result<Option<Stamp>, LayerError> {
    let name = format!("{GENERATIONS}/{number}/{STAMP}");
    let Some(bytes) = disk::read(dir, &name).map_err(call("read the stamp", key))? else {
        return Ok(None);
    };
    let path = path.join(name);
    match serde_json::from_slice::<Stamp>(&bytes) {
        Ok(stamp) if stamp.is_known() => Ok(Some(stamp)),
        Ok(_newer) => Err(LayerError::NewerStamp(path)),
        Err(source) => Err(LayerError::Stamp { path, source }),
    }
}

/// Looks at a generation; one without a stamp counts as `v0` when it has content (BASE-03).
fn look_at(dir: &Dir, path: &Path, key: &TileKey, number: u32) -> Result<Option<Look>, LayerError> {
    let look = |base, tile, created| Look {
        key: key.clone(),
        tile,
        generation: Some(number),
        base,
        created,
    };
    if let Some(stamp) = stamp(dir, path, key, number)? {
        return Ok(Some(look(stamp.base, stamp.tile, Some(stamp.created))));
    }
    let upper = format!("{GENERATIONS}/{number}/{UPPER}");
    let empty = disk::is_empty(dir, &upper).map_err(call("list the content", key))?;
    Ok((!empty).then(|| look(StampedBase::labelled(""), None, None)))
}

/// Returns what the version line of an older program says.
pub(super) fn label(dir: &Dir) -> casemate_sys::Result<StampedBase> {
    let line = disk::read(dir, LABEL)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&line);
    Ok(StampedBase::labelled(
        text.lines().next().unwrap_or_default(),
    ))
}
