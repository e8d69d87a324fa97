//! A layer that nobody else changes: generations are begun, made current and discarded.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use casemate_sys::dir::{Dir, Owner};
use casemate_sys::mount::{self, Flags};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::key::TileKey;
use super::layers::{
    self, CURRENT, GENERATIONS, LABEL, LOCK, STAMP, UPPER, WORK, current, numbers,
};
use super::stamp::{OVERLAY_OPTIONS, Stamp, StampedBase};
use super::{LayerError, call, disk, owner};

const ROOT: Owner = Owner { uid: 0, gid: 0 };
/// What the names of directories that are being deleted begin with.
const TRASH: &str = "trash-";
/// Record of who mounts the layer.
const HOLDER: &str = "holder";
/// Overlayfs' mark on an upper: the handle of the lower's root.
const ORIGIN: &str = "trusted.overlay.origin";

/// What a layer is built on when it is used for the first time.
#[derive(Debug, Clone)]
pub struct NewLayer {
    /// The base.
    pub base: StampedBase,
    /// The tile, by its path.
    pub tile: Option<String>,
    /// The host id that inner id 0 has in the upper.
    pub first_id: u32,
}

/// A locked layer. The lock goes with it, or with [`Held::into_lock`]'s descriptor.
#[derive(Debug)]
pub struct Held {
    dir: Dir,
    path: PathBuf,
    key: TileKey,
    lock: OwnedFd,
}

/// A generation of a locked layer.
#[derive(Debug)]
pub struct Generation {
    number: u32,
    stamp: Stamp,
    path: PathBuf,
    key: TileKey,
    dir: Dir,
}

impl Generation {
    /// Its number, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What it is built on.
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// Its directory, which holds `upper` and `work`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens what was changed.
    pub fn upper(&self) -> casemate_sys::Result<Dir> {
        self.dir.open_dir(Path::new(UPPER))
    }

    /// Says that the base's directory below is this one. When it is another one than before, a
    /// restored copy, the handles that point into the old one are forgotten.
    pub fn put_on(&mut self, base: &Path) -> Result<(), LayerError> {
        let fail = call("prepare the mount", &self.key);
        let base = Dir::open_trusted(base).map_err(&fail)?;
        let identity = disk::identity(&base).map_err(&fail)?;
        if self.stamp.lower.as_ref() == Some(&identity) {
            return Ok(());
        }
        if self.stamp.lower.is_some() {
            self.forget_handles().map_err(&fail)?;
        }
        self.stamp.lower = Some(identity);
        write_stamp(&self.dir, &self.stamp).map_err(fail)
    }

    /// Says which base of the store a label of an older program means.
    pub fn set_base(&mut self, base: StampedBase) -> Result<(), LayerError> {
        self.stamp.base = base;
        write_stamp(&self.dir, &self.stamp).map_err(call("write the stamp", &self.key))
    }

    /// Gives the content to the ids that begin at `first`. Interrupted, it is done again.
    pub fn give_to(&mut self, first: u32) -> Result<(), LayerError> {
        if self.stamp.first_id == Some(first) {
            return Ok(());
        }
        let fail = call("change the owner", &self.key);
        let from = self.stamp.first_id.unwrap_or(0);
        for name in [UPPER, WORK] {
            owner::shift(&self.dir, Path::new(name), (from, first)).map_err(&fail)?;
        }
        disk::sync_file_system(&self.dir).map_err(&fail)?;
        self.stamp.first_id = Some(first);
        write_stamp(&self.dir, &self.stamp).map_err(fail)
    }

    /// Removes what binds the upper to one directory: its origin, and the index in the work
    /// directory.
    fn forget_handles(&self) -> casemate_sys::Result<()> {
        let upper = self.upper()?;
        match rustix::fs::fremovexattr(&upper, ORIGIN) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => return Err(casemate_sys::Error::new("fremovexattr", ORIGIN, errno)),
        }
        let work = self.dir.open_dir(Path::new(WORK))?;
        for name in work.names()? {
            work.remove_tree(&name)?;
        }
        Ok(())
    }
}

fn write_stamp(dir: &Dir, stamp: &Stamp) -> casemate_sys::Result<()> {
    let text = serde_json::to_vec_pretty(stamp)
        .map_err(|_ours| casemate_sys::Error::new("write", STAMP, Errno::INVAL))?;
    disk::replace(dir, STAMP, &text)
}

impl Held {
    pub(super) fn new(
        dir: Dir,
        path: PathBuf,
        key: TileKey,
        lock: OwnedFd,
    ) -> Result<Self, LayerError> {
        let held = Self {
            dir,
            path,
            key,
            lock,
        };
        held.settle()?;
        Ok(held)
    }

    /// The layer's directory name.
    pub fn key(&self) -> &TileKey {
        &self.key
    }

    /// Returns what the last holder has said about itself.
    pub fn holder(&self) -> Result<Option<Vec<u8>>, LayerError> {
        disk::read(&self.dir, HOLDER).map_err(call("read the holder", &self.key))
    }

    /// Says who mounts the layer, so that what is left of a holder that died can be found.
    pub fn set_holder(&self, holder: &[u8]) -> Result<(), LayerError> {
        disk::replace(&self.dir, HOLDER, holder).map_err(call("record the holder", &self.key))
    }

    /// Gives the lock away, which whoever mounts the layer keeps until it is unmounted.
    pub fn into_lock(self) -> OwnedFd {
        self.lock
    }

    /// Returns the current generation; `None` where the layer has no content.
    pub fn current(&self) -> Result<Option<Generation>, LayerError> {
        match current(&self.dir, &self.path, &self.key)? {
            Some(number) => self.generation(number).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the current generation, or a first one on the base that is given.
    pub fn ensure(&self, new: &NewLayer) -> Result<Generation, LayerError> {
        if let Some(found) = self.current()? {
            return Ok(found);
        }
        let stamp = Stamp::new(new.base.clone(), new.tile.clone(), Some(new.first_id));
        let begun = self.begin(stamp)?;
        self.make_current(&begun)?;
        Ok(begun)
    }

    /// Makes a new generation, which nothing uses until it is made current.
    pub fn begin(&self, stamp: Stamp) -> Result<Generation, LayerError> {
        let fail = call("begin a generation", &self.key);
        let number = numbers(&self.dir)
            .map_err(&fail)?
            .last()
            .map_or(1, |last| last.saturating_add(1));
        let name = format!("{GENERATIONS}/{number}");
        let owner = stamp.first_id.map_or(ROOT, |id| Owner { uid: id, gid: id });
        let make = || {
            self.dir.ensure_dirs(Path::new(GENERATIONS), 0o755, ROOT)?;
            self.dir.make_dir(Path::new(&name), 0o755, ROOT)?;
            let dir = self.dir.open_dir(Path::new(&name))?;
            write_stamp(&dir, &stamp)?;
            for (name, mode) in [(UPPER, 0o755), (WORK, 0o700)] {
                dir.make_dir(Path::new(name), mode, owner)?;
                // The mode of the plan, whatever the mask.
                let made = dir.open(Path::new(name), OFlags::RDONLY | OFlags::DIRECTORY)?;
                rustix::fs::fchmod(&made, rustix::fs::Mode::from_raw_mode(mode))
                    .map_err(casemate_sys::Error::of("fchmod", || name.to_owned()))?;
            }
            disk::sync(&dir)?;
            disk::sync(&self.dir.open_dir(Path::new(GENERATIONS))?)?;
            disk::sync(&self.dir)?;
            Ok(dir)
        };
        Ok(Generation {
            number,
            path: self.path.join(&name),
            key: self.key.clone(),
            dir: make().map_err(fail)?,
            stamp,
        })
    }

    /// Lets everybody use a generation, in one step. What is in it has to be durable.
    pub fn make_current(&self, generation: &Generation) -> Result<(), LayerError> {
        let target = format!("{GENERATIONS}/{}", generation.number);
        disk::replace_link(&self.dir, CURRENT, &target)
            .map_err(call("change the current generation", &self.key))
    }

    /// Makes the content of a generation durable.
    pub fn sync(&self) -> Result<(), LayerError> {
        disk::sync_file_system(&self.dir).map_err(call("sync the content", &self.key))
    }

    /// Removes generations below the current one but the last `keep`, and those above it.
    pub fn prune(&self, keep: usize) -> Result<(), LayerError> {
        let Some(current) = current(&self.dir, &self.path, &self.key)? else {
            return Ok(());
        };
        let all = numbers(&self.dir).map_err(call("list the generations", &self.key))?;
        let older: Vec<u32> = all.iter().copied().filter(|n| *n < current).collect();
        let dead = older.len().saturating_sub(keep);
        for number in older.into_iter().take(dead) {
            self.discard(number)?;
        }
        for number in all.into_iter().filter(|number| *number > current) {
            self.discard(number)?;
        }
        Ok(())
    }

    /// Goes back to the generation before the current one, which is discarded.
    pub fn roll_back(&self) -> Result<Generation, LayerError> {
        let current = current(&self.dir, &self.path, &self.key)?
            .ok_or_else(|| LayerError::Absent(self.key.clone()))?;
        let all = numbers(&self.dir).map_err(call("list the generations", &self.key))?;
        let older = all.into_iter().filter(|number| *number < current).max();
        let older = older.ok_or_else(|| LayerError::NoOlder(self.key.clone()))?;
        self.refuse_mounted(current)?;
        let generation = self.generation(older)?;
        self.make_current(&generation)?;
        self.prune(usize::MAX)?;
        Ok(generation)
    }

    /// Takes the content away: afterwards the layer is new. Interrupted at any point, it is whole
    /// or empty. Something that is still mounted is left as it is (LAYER-16).
    pub fn reset(&self) -> Result<(), LayerError> {
        let fail = call("remove the content", &self.key);
        let all = numbers(&self.dir).map_err(&fail)?;
        for number in &all {
            self.refuse_mounted(*number)?;
        }
        match self.dir.remove_file(Path::new(CURRENT)) {
            Err(error) if !disk::is_absent(&error) => return Err(fail(error)),
            _gone => disk::sync(&self.dir).map_err(&fail)?,
        }
        for number in all {
            self.discard(number)?;
        }
        Ok(())
    }

    fn generation(&self, number: u32) -> Result<Generation, LayerError> {
        generation(&self.dir, &self.path, &self.key, number)
    }

    /// Completes or removes what an interrupted change has left.
    fn settle(&self) -> Result<(), LayerError> {
        let fail = call("settle the content", &self.key);
        self.empty_trash().map_err(&fail)?;
        let current = current(&self.dir, &self.path, &self.key)?;
        let all = numbers(&self.dir).map_err(&fail)?;
        // A generation above the current one may be mounted by a rebase that was killed.
        let left: Vec<u32> = match current {
            Some(current) => all.into_iter().filter(|number| *number > current).collect(),
            None => all,
        };
        for number in left {
            if self.is_free(number).map_err(&fail)? {
                self.discard(number)?;
            }
        }
        self.convert(current)
    }

    /// Makes a generation of the form of older programs. Its stamp comes first, then the link, so
    /// that the content has a record at every moment.
    fn convert(&self, current: Option<u32>) -> Result<(), LayerError> {
        let fail = call("adopt the content", &self.key);
        if disk::is_empty(&self.dir, UPPER).map_err(&fail)? {
            return Ok(());
        }
        let base = layers::label(&self.dir).map_err(&fail)?;
        let number = if let Some(number) = current {
            number
        } else {
            // The upper moves in with all that it has.
            let begun = self.begin(Stamp::new(base, None, None))?;
            self.make_current(&begun)?;
            begun.number
        };
        let move_in = || {
            let name = format!("{GENERATIONS}/{number}");
            let generation = self.dir.open_dir(Path::new(&name))?;
            match generation.remove_dir(Path::new(UPPER)) {
                Err(error) if !disk::is_absent(&error) => return Err(error),
                _empty => {}
            }
            disk::move_to(&self.dir, UPPER, &generation, UPPER)?;
            disk::sync(&generation)?;
            disk::sync(&self.dir)?;
            self.dir.remove_tree(Path::new(WORK))?;
            self.dir.remove_tree(Path::new(LABEL))
        };
        move_in().map_err(fail)
    }

    /// Waits until nobody has a generation mounted that is being built.
    pub fn wait_free(&self, number: u32, wait: Duration) -> Result<(), LayerError> {
        let until = std::time::Instant::now().checked_add(wait);
        let fail = call("wait for the end of a mount", &self.key);
        while !self.is_free(number).map_err(&fail)? {
            if until.is_some_and(|until| std::time::Instant::now() >= until) {
                return Err(LayerError::Mounted(self.key.clone()));
            }
            std::thread::sleep(layers::TICK);
        }
        Ok(())
    }

    /// Whether nobody has the lock of a generation.
    fn is_free(&self, number: u32) -> casemate_sys::Result<bool> {
        let name = format!("{GENERATIONS}/{number}/{LOCK}");
        let lock = self.dir.open(Path::new(&name), OFlags::RDWR);
        match disk::optional(lock)? {
            Some(lock) => Ok(layers::take(&lock, Duration::ZERO)?.is_some()),
            None => Ok(true),
        }
    }

    /// Refuses to go on while a generation is mounted: overlayfs takes an upper once only
    /// (`index=on`), so a mount that is never attached finds out.
    fn refuse_mounted(&self, number: u32) -> Result<(), LayerError> {
        let fail = call("look for mounts", &self.key);
        let probe = Path::new(".probe");
        match self.dir.make_dir(probe, 0o700, ROOT) {
            Err(error) if error.errno() != Errno::EXIST => return Err(fail(error)),
            _there => {}
        }
        let base = self.path.join(format!("{GENERATIONS}/{number}"));
        let (lower, upper, work) = (self.path.join(probe), base.join(UPPER), base.join(WORK));
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let (lower, upper, work) = (text(&lower), text(&upper), text(&work));
        let mut options: Vec<(&str, &str)> = vec![
            ("lowerdir", &lower),
            ("upperdir", &upper),
            ("workdir", &work),
        ];
        options.extend(OVERLAY_OPTIONS.iter().filter_map(|one| one.split_once('=')));
        let flags = Flags {
            read_only: false,
            nosuid: true,
            nodev: true,
        };
        let mounted = match mount::file_system("overlay", &options, &[], flags) {
            Err(error) => error.errno() == Errno::BUSY,
            Ok(_not_in_use) => false,
        };
        self.dir.remove_dir(probe).map_err(fail)?;
        if mounted {
            return Err(LayerError::Mounted(self.key.clone()));
        }
        Ok(())
    }

    /// Removes a generation: by one rename, then piece by piece.
    fn discard(&self, number: u32) -> Result<(), LayerError> {
        let fail = call("remove a generation", &self.key);
        let remove = || {
            let Some(generations) = disk::dir(&self.dir, GENERATIONS)? else {
                return Ok(());
            };
            let name = format!("{TRASH}{}", uuid::Uuid::now_v7());
            disk::move_to(&generations, &number.to_string(), &self.dir, &name)?;
            disk::sync(&generations)?;
            disk::sync(&self.dir)?;
            self.dir.remove_tree(Path::new(&name))
        };
        remove().map_err(fail)
    }

    fn empty_trash(&self) -> casemate_sys::Result<()> {
        for name in self.dir.names()? {
            if name.to_str().is_some_and(|name| name.starts_with(TRASH)) {
                self.dir.remove_tree(&name)?;
            }
        }
        Ok(())
    }
}

/// Opens a generation; one that has lost its stamp is built on `v0`.
pub(super) fn generation(
    dir: &Dir,
    path: &Path,
    key: &TileKey,
    number: u32,
) -> Result<Generation, LayerError> {
    let fail = call("open a generation", key);
    let name = format!("{GENERATIONS}/{number}");
    let stamp = layers::stamp(dir, path, key, number)?;
    let opened = dir.open_dir(Path::new(&name)).map_err(&fail)?;
    let stamp = if let Some(stamp) = stamp {
        stamp
    } else {
        let stamp = Stamp::new(StampedBase::labelled(""), None, None);
        write_stamp(&opened, &stamp).map_err(&fail)?;
        stamp
    };
    Ok(Generation {
        number,
        stamp,
        path: path.join(name),
        key: key.clone(),
        dir: opened,
    })
}

/// Opens a generation above the current one and takes its own lock.
pub(super) fn open_unfinished(
    dir: &Dir,
    path: &Path,
    key: &TileKey,
    (number, current): (u32, Option<u32>),
) -> Result<(Generation, OwnedFd), LayerError> {
    let absent = || LayerError::NoGeneration {
        key: key.clone(),
        number,
    };
    let fail = call("open a generation", key);
    let there = numbers(dir).map_err(&fail)?.contains(&number);
    if !there || current.is_some_and(|current| number <= current) {
        return Err(absent());
    }
    let generation = generation(dir, path, key, number)?;
    let lock = generation
        .dir
        .open(Path::new(LOCK), OFlags::RDWR | OFlags::CREATE)
        .map_err(&fail)?;
    layers::take(&lock, Duration::ZERO)
        .map_err(&fail)?
        .ok_or_else(|| LayerError::Busy(key.clone()))?;
    Ok((generation, lock))
}
