//! The block of host ids that sandboxes may have.

use std::path::{Path, PathBuf};

use casemate_bundles::Slice;
use casemate_engine::IdBlock;

use super::Config;

/// Fewest slices that are of use: one for a tile, one for a command run.
const FEWEST: u32 = 2;

/// Why there are no ids; the answer is `Unavailable{ids}`.
#[derive(Debug, thiserror::Error)]
pub enum IdsError {
    /// One of the two files cannot be read.
    #[error("cannot read {}; name ids.first in the configuration, or make the file", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Nobody has given the service user ids.
    #[error(
        "{} has no entry for {user}; add the line {user}:1073741824:268435456 to /etc/subuid and \
         to /etc/subgid, or name ids.first in the configuration", path.display()
    )]
    NoEntry {
        /// Which file.
        path: PathBuf,
        /// Whose entry.
        user: String,
    },
    /// The two files give the service user different ids, or several blocks.
    #[error(
        "/etc/subuid and /etc/subgid must each give {user} one block, the same in both; make the \
         lines equal"
    )]
    Differ {
        /// Whose entry.
        user: String,
    },
    /// A block that cannot be cut into slices.
    #[error(
        "ids {first} and {slices} slices of 65536 do not lie between 65536 and 4294901760, or are \
         fewer than {FEWEST} slices; give a block of at least 131072 ids"
    )]
    Block {
        /// First id.
        first: u32,
        /// Slices.
        slices: u32,
    },
}

/// Returns the block: `ids.first` where it is set, else the service user's entry in `/etc/subuid`
/// and `/etc/subgid`, which must agree (`subuid(5)`).
pub fn id_block(config: &Config) -> Result<IdBlock, IdsError> {
    let block = match config.ids_first {
        Some(first) => IdBlock {
            first,
            slices: config.ids_slices,
        },
        None => delegated(&config.service_user, config.ids_slices)?,
    };
    check(block)
}

fn delegated(user: &str, most: u32) -> Result<IdBlock, IdsError> {
    let uids = entry(Path::new("/etc/subuid"), user)?;
    let gids = entry(Path::new("/etc/subgid"), user)?;
    if uids != gids {
        return Err(IdsError::Differ {
            user: user.to_owned(),
        });
    }
    let (first, count) = uids;
    Ok(IdBlock {
        first,
        slices: most.min(count / Slice::LEN),
    })
}

fn entry(path: &Path, user: &str) -> Result<(u32, u32), IdsError> {
    let text = std::fs::read_to_string(path).map_err(|source| IdsError::Read {
        path: path.to_owned(),
        source,
    })?;
    let mut entries = text.lines().filter_map(|line| parse_entry(line, user));
    let first = entries.next().ok_or_else(|| IdsError::NoEntry {
        path: path.to_owned(),
        user: user.to_owned(),
    })?;
    if entries.next().is_some() {
        return Err(IdsError::Differ {
            user: user.to_owned(),
        });
    }
    Ok(first)
}

/// Parses `user:first:count` of one user.
fn parse_entry(line: &str, user: &str) -> Option<(u32, u32)> {
    let mut parts = line.trim().split(':');
    let (name, first, count) = (parts.next()?, parts.next()?, parts.next()?);
    if name != user || parts.next().is_some() {
        return None;
    }
    first.parse().ok().zip(count.parse().ok())
}

fn check(block: IdBlock) -> Result<IdBlock, IdsError> {
    let refuse = || IdsError::Block {
        first: block.first,
        slices: block.slices,
    };
    let last = block
        .slices
        .checked_sub(1)
        .and_then(|more| more.checked_mul(Slice::LEN))
        .and_then(|offset| block.first.checked_add(offset))
        .ok_or_else(refuse)?;
    let fits = Slice::parse(block.first).is_ok() && Slice::parse(last).is_ok();
    if block.slices < FEWEST || !fits {
        return Err(refuse());
    }
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_only_whole_slices_above_host_root() {
        for (first, slices) in [
            (0, 2),
            (65_535, 2),
            (100_000, 1),
            (u32::MAX - 131_072, 4096),
        ] {
            check(IdBlock { first, slices }).expect_err("out of range");
        }
        let block = IdBlock {
            first: 100_000,
            slices: 2,
        };
        assert_eq!(check(block).unwrap(), block);
    }

    #[test]
    fn reads_entries_of_the_user_alone() {
        assert_eq!(parse_entry("a:1:2", "a"), Some((1, 2)));
        for line in ["b:1:2", "a:1", "a:1:2:3", "a:x:2", "a:-1:2", "", "#a:1:2"] {
            assert_eq!(parse_entry(line, "a"), None, "{line}");
        }
    }
}
