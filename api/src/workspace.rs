//! A workspace: the user's directory with its tiles, homes and plain files, and the one place that
//! turns a request into a launch plan.
//!
//! Everything is opened below one directory handle and never through a symlink. The directory and
//! its files belong to the service user; its group has the same number, because ID-mapped mounts
//! show both by one map.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use casemate_bundles::{FileName, HostPath, TileId, UserId};
use casemate_sys::dir::{Dir, Owner};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;

mod home;
mod plan;
mod run_id;
mod tile;

pub use plan::{
    BackendRequest, Payload, PlanError, Planner, ProcessRequest, TerminalRequest, Visible,
    process_plan,
};
pub use run_id::{IdKind, RunId};
pub use tile::{Manifest, ManifestBackend, Tile};

/// Directory of the tiles.
const APPS: &str = "apps";
/// Directory of the homes.
const HOMES: &str = "homes";
/// The service's own directory.
const PRIVATE: &str = ".xbin";
/// Directory of the database.
const DATA: &str = "data";

/// An open workspace.
#[derive(Debug)]
pub struct Workspace {
    path: HostPath,
    dir: Dir,
    owner: Owner,
}

/// Why a workspace does not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// The directory cannot be opened.
    #[error("cannot open the workspace; name a directory by its real path, without symlinks")]
    Open {
        /// Why.
        #[source]
        source: casemate_sys::Error,
    },
    /// The directory belongs to host root, or to a user and a group of different numbers.
    #[error(
        "the workspace belongs to {uid}:{gid}; it must belong to the service user and a group of \
         the same number, not to root: chown it"
    )]
    Owner {
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
    },
    /// There is no such tile.
    #[error(
        "there is no tile {id}: it has to be a directory with xbin.json, and not inside another tile"
    )]
    NoTile {
        /// Which.
        id: TileId,
    },
    /// A tile's `xbin.json` is not one.
    #[error("{id}/xbin.json is malformed: {reason}")]
    Manifest {
        /// Whose.
        id: TileId,
        /// The parser's words.
        reason: String,
    },
    /// Something of the workspace cannot be read or made.
    #[error("cannot {operation} in the workspace")]
    Access {
        /// What.
        operation: &'static str,
        /// Why.
        #[source]
        source: casemate_sys::Error,
    },
}

impl Workspace {
    /// Opens a workspace.
    pub fn open(path: &HostPath) -> Result<Self, WorkspaceError> {
        let open = || {
            let below = path.as_str().trim_start_matches('/');
            let dir = Dir::open_trusted(Path::new("/"))?.open_dir(Path::new(below))?;
            let stat = dir.stat(Path::new(""))?;
            Ok((dir, stat))
        };
        let (dir, stat) = open().map_err(|source| WorkspaceError::Open { source })?;
        let owner = Owner {
            uid: stat.st_uid,
            gid: stat.st_gid,
        };
        if owner.uid == 0 || owner.uid != owner.gid {
            return Err(WorkspaceError::Owner {
                uid: owner.uid,
                gid: owner.gid,
            });
        }
        Ok(Self {
            path: path.clone(),
            dir,
            owner,
        })
    }

    /// Returns where it is.
    pub const fn path(&self) -> &HostPath {
        &self.path
    }

    /// Returns the host id, user and group alike, that owns its files.
    pub const fn service(&self) -> u32 {
        self.owner.uid
    }

    /// Returns whether host users other than root and the service user are kept out, by the
    /// directory itself or one that it lies in. Root of a sandbox is the service user on disk: it
    /// can leave set-user-id programs here, which nobody else may reach.
    pub fn is_closed(&self) -> io::Result<bool> {
        let path: &Path = self.path.as_ref();
        for directory in path.ancestors() {
            let found = std::fs::symlink_metadata(directory)?;
            let service = self.service();
            let owned = found.uid() == 0 || found.uid() == service;
            let group = found.mode() & 0o010 == 0 || found.gid() == service;
            if owned && group && found.mode() & 0o001 == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Opens the service's own directory, which no sandbox sees, makes it where there is none, and
    /// closes it to everybody else.
    pub(crate) fn private_dir(&self) -> Result<Dir, WorkspaceError> {
        let open = || {
            self.ensure_dir(Path::new(PRIVATE), 0o700)?;
            let private = self.dir.open_dir(Path::new(PRIVATE))?;
            let refuse = |call, errno| casemate_sys::Error::new(call, PRIVATE, errno);
            if private.stat(Path::new(""))?.st_uid != self.owner.uid {
                return Err(refuse("fstat", Errno::PERM));
            }
            rustix::fs::fchmod(&private, Mode::from_raw_mode(0o700))
                .map_err(|errno| refuse("fchmod", errno))?;
            Ok(private)
        };
        open().map_err(access("open the service's directory"))
    }

    /// Returns the plain visible files of the root directory, sorted.
    pub fn root_files(&self) -> Result<Vec<FileName>, WorkspaceError> {
        let list = || {
            let mut files = Vec::new();
            for name in self.dir.names()? {
                // A name that is not UTF-8 or has control characters is none of ours.
                let Some(Ok(name)) = name.to_str().map(FileName::parse) else {
                    continue;
                };
                let stat = match self.dir.stat(Path::new(name.as_str())) {
                    Ok(stat) => stat,
                    // Gone since, or a symlink.
                    Err(error) if is_absent(&error) => continue,
                    Err(error) => return Err(error),
                };
                if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                    files.push(name);
                }
            }
            Ok(files)
        };
        list().map_err(access("list the root directory"))
    }

    /// Makes the database's file where there is none, owned by the workspace's owner and closed to
    /// everybody else, and returns its path.
    pub(crate) fn database(&self) -> Result<HostPath, WorkspaceError> {
        let make = || {
            self.ensure_dir(Path::new(DATA), 0o700)?;
            let data = self.dir.open_dir(Path::new(DATA))?;
            match data.make_file(Path::new("casemate.db"), 0o600, self.owner) {
                Err(error) if error.errno() == Errno::EXIST => Ok(()),
                made => made,
            }
        };
        make().map_err(access("make the database"))?;
        Ok(self.join("data/casemate.db"))
    }

    fn ensure_dir(&self, below: &Path, mode: u32) -> casemate_sys::Result<()> {
        match self.dir.make_dir(below, mode, self.owner) {
            Err(error) if error.errno() == Errno::EXIST => Ok(()),
            made => made,
        }
    }

    /// Returns the path of something whose relative path is normalised.
    fn join(&self, below: &str) -> HostPath {
        self.path.join(below).unwrap_or_else(|_| self.path.clone())
    }

    /// Returns where a tile is.
    pub fn tile_path(&self, id: &TileId) -> HostPath {
        self.join(id.as_str())
    }

    /// Returns where a home is.
    pub fn home_path(&self, user: &UserId) -> HostPath {
        self.join(&format!("{HOMES}/{user}"))
    }
}

/// Whether there is nothing usable by that name.
fn is_absent(error: &casemate_sys::Error) -> bool {
    matches!(
        error.errno(),
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV
    )
}

fn access(operation: &'static str) -> impl FnOnce(casemate_sys::Error) -> WorkspaceError {
    move |source| WorkspaceError::Access { operation, source }
}

#[cfg(test)]
mod tests;
