//! Tiles: directories below `apps/` with `xbin.json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use casemate_bundles::TileId;
use rustix::fs::FileType;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{APPS, Workspace, WorkspaceError, access, is_absent};

/// The file that makes a directory a tile.
const MANIFEST: &str = "xbin.json";
/// Longest manifest, in bytes.
const MAX_MANIFEST: usize = 64 * 1024;
/// Most directories that a search looks at.
const MAX_SEARCH: usize = 20_000;
/// Deepest tile: `apps/a/b/c/d`.
const MAX_DEPTH: usize = 5;

/// A tile.
#[derive(Debug, Clone, PartialEq)]
pub struct Tile {
    /// Its id.
    pub id: TileId,
    /// What its `xbin.json` says.
    pub manifest: Manifest,
}

/// The contents of `xbin.json`. Access levels live only in the database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Script that sets up its environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
    /// Its service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<ManifestBackend>,
    /// What this program does not know, kept as it is.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A tile's service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ManifestBackend {
    /// Its argument vector.
    pub command: Vec<String>,
    /// What is added to its environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What this program does not know, kept as it is.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Workspace {
    /// Opens a tile.
    pub fn tile(&self, id: &TileId) -> Result<Tile, WorkspaceError> {
        let mut outer = PathBuf::from(id.as_str());
        let mut wanted = true;
        while outer != Path::new(APPS) && !outer.as_os_str().is_empty() {
            if self.is_tile(&outer)? != wanted {
                return Err(WorkspaceError::NoTile { id: id.clone() });
            }
            wanted = false;
            outer.pop();
        }
        let path = Path::new(id.as_str()).join(MANIFEST);
        let bytes = match self.dir.read(&path, MAX_MANIFEST) {
            Ok(bytes) => bytes,
            Err(error) if is_absent(&error) => {
                return Err(WorkspaceError::NoTile { id: id.clone() });
            }
            Err(error) if error.errno() == Errno::TOOBIG => {
                return Err(malformed(id, format!("longer than {MAX_MANIFEST} bytes")));
            }
            Err(error) => return Err(access("read xbin.json")(error)),
        };
        match serde_json::from_slice(&bytes) {
            Ok(manifest) => Ok(Tile {
                id: id.clone(),
                manifest,
            }),
            Err(error) => Err(malformed(id, error.to_string())),
        }
    }

    /// Lists the tiles, sorted. What is inside a tile is no tile of its own; a hidden name, a
    /// symlink and a name that is no tile id are passed over. After 20,000 entries the search ends.
    pub fn tiles(&self) -> Result<Vec<TileId>, WorkspaceError> {
        let mut found = Vec::new();
        let mut left = vec![PathBuf::from(APPS)];
        let mut looked = 0;
        'search: while let Some(path) = left.pop() {
            let dir = match self.dir.open_dir(&path) {
                Ok(dir) => dir,
                Err(error) if is_absent(&error) => continue,
                Err(error) => return Err(access("list tiles")(error)),
            };
            for name in dir.names().map_err(access("list tiles"))? {
                looked += 1;
                if looked > MAX_SEARCH {
                    // What runs in a tile can make as many: that closes no other tile.
                    tracing::warn!(
                        limit = MAX_SEARCH,
                        "apps has more entries than are searched"
                    );
                    break 'search;
                }
                let below = path.join(&name);
                let Some(Ok(id)) = below.to_str().map(TileId::parse) else {
                    continue;
                };
                if !self.has_kind(&below, FileType::Directory)? {
                    continue;
                }
                if self.is_tile(&below)? {
                    found.push(id);
                } else if below.components().count() < MAX_DEPTH {
                    left.push(below);
                }
            }
        }
        found.sort();
        Ok(found)
    }

    fn is_tile(&self, below: &Path) -> Result<bool, WorkspaceError> {
        self.has_kind(&below.join(MANIFEST), FileType::RegularFile)
    }

    fn has_kind(&self, below: &Path, kind: FileType) -> Result<bool, WorkspaceError> {
        match self.dir.stat(below) {
            Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == kind),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(access("look for tiles")(error)),
        }
    }
}

fn malformed(id: &TileId, reason: String) -> WorkspaceError {
    WorkspaceError::Manifest {
        id: id.clone(),
        reason,
    }
}
