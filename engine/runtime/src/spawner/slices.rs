//! Ids of sandboxes: the tiles' own slices in the lower half of the block, a pool in the upper.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use casemate_bundles::{Component, Slice};
use casemate_protocol::{IdChoice, LaunchError};
use casemate_sys::Error;
use casemate_sys::dir::{Dir, Owner};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// The block of ids that belongs to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    first: u32,
    count: u32,
}

impl FromStr for Block {
    type Err = String;

    /// Parses `FIRST:COUNT`, the first host id and the number of slices.
    fn from_str(text: &str) -> Result<Self, String> {
        let (first, count) = text
            .split_once(':')
            .ok_or("write it as FIRST:COUNT, for example 1000000:4096")?;
        let first: u32 = first
            .parse()
            .map_err(|_error| format!("{first:?} is no id"))?;
        let count: u32 = count
            .parse()
            .map_err(|_error| format!("{count:?} is no number of slices"))?;
        if count < 2 {
            return Err("at least 2 slices are needed".to_owned());
        }
        let fits = (count - 1)
            .checked_mul(Slice::LEN)
            .and_then(|offset| first.checked_add(offset))
            .is_some_and(|last| Slice::parse(last).is_ok());
        if Slice::parse(first).is_err() || !fits {
            return Err("the block must start at 65536 or above and end below 2^32".to_owned());
        }
        Ok(Self { first, count })
    }
}

impl Block {
    /// First id of a slice of the pool, for trials.
    pub(crate) const fn trial(self) -> u32 {
        self.first + (self.count - 1) * Slice::LEN
    }

    fn slice(self, index: u32) -> Option<Slice> {
        Slice::parse(self.first + index * Slice::LEN).ok()
    }

    /// Whether it is one of the tiles' own.
    pub(crate) fn fixed(self, slice: Slice) -> bool {
        self.index(slice)
            .is_some_and(|index| index < self.count / 2)
    }

    /// Whether it is one of the pool.
    pub(crate) fn pooled(self, slice: Slice) -> bool {
        self.index(slice)
            .is_some_and(|index| (self.count / 2..self.count).contains(&index))
    }

    fn index(self, slice: Slice) -> Option<u32> {
        let offset = slice.first().checked_sub(self.first)?;
        offset
            .is_multiple_of(Slice::LEN)
            .then_some(offset / Slice::LEN)
    }
}

/// Chooses and locks slices.
#[derive(Debug)]
pub(crate) struct Slices {
    block: Block,
    locks: Dir,
}

impl Slices {
    /// Uses `<run-dir>/slices` for the locks.
    pub(crate) fn open(run_dir: &Dir, block: Block) -> casemate_sys::Result<Self> {
        let name = Path::new("slices");
        run_dir.ensure_dirs(name, 0o700, Owner { uid: 0, gid: 0 })?;
        Ok(Self {
            block,
            locks: run_dir.open_dir(name)?,
        })
    }

    /// Returns a slice, with the lock that keeps it while it is from the pool.
    pub(crate) fn choose(
        &self,
        choice: IdChoice,
        stages: &Dir,
    ) -> Result<(Slice, Option<OwnedFd>), LaunchError> {
        match choice {
            IdChoice::Fixed(slice) if self.block.fixed(slice) => Ok((slice, None)),
            IdChoice::Fixed(_) => Err(LaunchError::Refused {
                code: "PLAN_IDS".to_owned(),
                message: "the slice is not one of the tiles' half of the block".to_owned(),
            }),
            IdChoice::Pool => self.take_pooled(stages),
        }
    }

    fn take_pooled(&self, stages: &Dir) -> Result<(Slice, Option<OwnedFd>), LaunchError> {
        let failed = |error: Error| {
            tracing::error!(%error, "a slice cannot be locked");
            LaunchError::Engine {
                step: "ids".to_owned(),
                errno: error.errno().raw_os_error(),
            }
        };
        let used = in_stages(stages).map_err(failed)?;
        for index in self.block.count / 2..self.block.count {
            let Some(slice) = self.block.slice(index) else {
                continue;
            };
            if used.contains(&slice.first()) {
                continue;
            }
            if let Some(lock) = self.lock(index).map_err(failed)? {
                return Ok((slice, Some(lock)));
            }
        }
        Err(LaunchError::Unavailable {
            component: Component::Ids,
            hint: "every slice of the pool is in use: end sandboxes or enlarge ids.slices"
                .to_owned(),
        })
    }

    fn lock(&self, index: u32) -> casemate_sys::Result<Option<OwnedFd>> {
        let name = PathBuf::from(index.to_string());
        let file = self.locks.open(&name, OFlags::RDWR | OFlags::CREATE)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(Error::new("flock", index.to_string(), errno)),
        }
    }
}

/// First ids of the slices of all stages, which their groups are. A keeper that was killed has lost
/// its lock before its sandbox has ended, and the stage goes last.
fn in_stages(stages: &Dir) -> casemate_sys::Result<Vec<u32>> {
    let mut found = Vec::new();
    for name in stages.names()? {
        match stages.stat(&name) {
            Ok(stat) if stat.st_gid != 0 => found.push(stat.st_gid),
            // A file of the engine's own.
            Ok(_) => {}
            // It has ended meanwhile.
            Err(error) if error.errno() == Errno::NOENT => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_parsed_or_explained() {
        assert_eq!(
            "100000:4".parse(),
            Ok(Block {
                first: 100_000,
                count: 4
            })
        );
        for bad in [
            "",
            "1",
            "a:2",
            "65536:1",
            "0:4",
            "65536:65535",
            "4294967295:2",
            "1:-1",
        ] {
            bad.parse::<Block>().expect_err(bad);
        }
    }

    #[test]
    fn the_pool_gives_each_slice_once_and_takes_it_back() {
        let temp = tempfile::tempdir().unwrap();
        let run_dir = Dir::open_trusted(temp.path()).unwrap();
        let slices = Slices::open(&run_dir, "100000:4".parse().unwrap()).unwrap();
        let (one, lock) = slices.choose(IdChoice::Pool, &run_dir).unwrap();
        let (two, _lock) = slices.choose(IdChoice::Pool, &run_dir).unwrap();
        assert_eq!(one.first(), 100_000 + 2 * 65_536);
        assert_eq!(two.first(), 100_000 + 3 * 65_536);
        let none = slices.choose(IdChoice::Pool, &run_dir).unwrap_err();
        assert!(matches!(
            none,
            LaunchError::Unavailable {
                component: Component::Ids,
                ..
            }
        ));
        drop(lock);
        let stage = temp.path().join("stage");
        std::fs::create_dir(&stage).unwrap();
        std::os::unix::fs::chown(&stage, None, Some(one.first())).unwrap();
        slices
            .choose(IdChoice::Pool, &run_dir)
            .expect_err("its sandbox is not gone");
        std::fs::remove_dir(stage).unwrap();
        assert_eq!(slices.choose(IdChoice::Pool, &run_dir).unwrap().0, one);
    }

    #[test]
    fn a_fixed_slice_lies_in_the_lower_half() {
        let temp = tempfile::tempdir().unwrap();
        let run_dir = Dir::open_trusted(temp.path()).unwrap();
        let slices = Slices::open(&run_dir, "100000:4".parse().unwrap()).unwrap();
        let fixed = |first| slices.choose(IdChoice::Fixed(Slice::parse(first).unwrap()), &run_dir);
        fixed(100_000).unwrap();
        fixed(165_536).unwrap();
        for wrong in [100_001, 231_072, 70_000] {
            fixed(wrong).expect_err("outside");
        }
    }

    #[test]
    fn each_slice_is_in_one_half() {
        let block: Block = "100000:4".parse().unwrap();
        let halves = |first| {
            let slice = Slice::parse(first).unwrap();
            (block.fixed(slice), block.pooled(slice))
        };
        assert_eq!(halves(165_536), (true, false));
        assert_eq!(halves(231_072), (false, true));
        for outside in [70_000, 100_001, 231_073, 100_000 + 4 * 65_536] {
            assert_eq!(halves(outside), (false, false));
        }
    }
}
