//! The workspaces whose layers are built on bases of the store.
//!
//! `workspaces/<digest>.json` names one. Without it, a collection would depend on whoever starts
//! it to know where layers are.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::files::{self, FileError, failed};
use crate::format::Format;
use crate::staging::Staging;
use crate::store::{Store, StoreError};

/// `workspaces/<digest>.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    format: Format,
    /// The absolute path, for people.
    path: String,
    /// Its bytes, where they are no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<Vec<u8>>,
}

impl Store {
    /// Makes the layers of a workspace protect the bases they are built on, from now on and for
    /// every collection. Before the first layer on a base of this store is stamped.
    pub fn register_workspace(&self, workspace: &Path) -> Result<(), StoreError> {
        let workspace = std::path::absolute(workspace).map_err(failed("find", workspace))?;
        let bytes = workspace.as_os_str().as_bytes();
        let name = format!("{}.json", Digest::of(bytes).hex());
        let dir = directory(self);
        let path = dir.join(name);
        if files::read_json::<Record>(&path)?.is_some() {
            return Ok(());
        }
        self.require_write()?;
        files::make_dir(&dir, 0o755)?;
        let record = Record {
            format: Format::current(),
            path: workspace.to_string_lossy().into_owned(),
            bytes: workspace.to_str().is_none().then(|| bytes.to_vec()),
        };
        let staging = Staging::create(self)?;
        let publish = self.lock_publish()?;
        files::replace_json(&staging, &path, &record)?;
        drop(publish);
        Ok(())
    }
}

/// Returns the records.
pub(super) fn records(store: &Store) -> Result<Vec<PathBuf>, FileError> {
    files::entries_if_any(&directory(store))
}

/// Returns the workspace that a record names.
pub(super) fn read(record: &Path) -> Result<PathBuf, FileError> {
    let read = files::read_json::<Record>(record)?.ok_or_else(|| {
        failed("open", record)(std::io::Error::from(std::io::ErrorKind::NotFound))
    })?;
    Ok(match read.bytes {
        Some(bytes) => std::ffi::OsString::from_vec(bytes).into(),
        None => read.path.into(),
    })
}

fn directory(store: &Store) -> PathBuf {
    store.root().join("workspaces")
}
