//! Takes over the bases and layers of older programs: `<rootfs>`, `<rootfs>-<version>` and the
//! version lines of layers.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::import::{ImportError, Source, Step};
use crate::layer::{LayerError, Layers, StampedBase, UNSTAMPED};
use crate::name::{BaseName, NameError};
use crate::store::{Store, StoreError};

/// Where a root file system says which version it is.
const VERSION: &str = "etc/xbin-base-version";
/// Longest version line that is read, in bytes.
const MAX_VERSION: u64 = 4096;

/// Why something could not be adopted. What was adopted before stays.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The directory cannot be looked at.
    #[error("cannot look at {}", path.display())]
    Look {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its name and version make no name of a base.
    #[error("{} cannot be named; name the bases with --name", path.display())]
    Name {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: NameError,
    },
    /// It cannot be imported.
    #[error("cannot import {}", path.display())]
    Import {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<ImportError>,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A layer.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// A directory that became a base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdoptedBase {
    /// The directory, which is not needed any more.
    pub path: PathBuf,
    /// Its version.
    pub version: String,
    /// The base's name: the directory's, `-` and the version.
    pub name: String,
    /// Whether new layers are built on it.
    pub current: bool,
}

/// A layer that has a stamp now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdoptedLayer {
    /// Its directory name.
    pub layer: String,
    /// What it is built on.
    pub base: String,
    /// Whether that is installed; if not, the layer is locked until it is, or until it is reset.
    pub installed: bool,
}

impl Store {
    /// Imports a root file system and those that stand beside it as `<rootfs>-<version>` and say
    /// their version themselves. The first becomes the current base. Doing it again changes
    /// nothing.
    pub fn adopt_bases(
        &self,
        rootfs: &Path,
        name: Option<&BaseName>,
        progress: &mut dyn FnMut(&Path, Step),
    ) -> Result<Vec<AdoptedBase>, AdoptError> {
        let own = rootfs.file_name().unwrap_or_default().to_owned();
        let prefix = name.map_or_else(|| own.to_string_lossy().to_lowercase(), BaseName::to_string);
        let mut adopted = Vec::new();
        for path in siblings(rootfs, &own)? {
            adopted.push(self.adopt_base(&path, &prefix, false, progress)?);
        }
        let current = self.adopt_base(rootfs, &prefix, true, progress)?;
        adopted.push(current);
        Ok(adopted)
    }

    fn adopt_base(
        &self,
        path: &Path,
        prefix: &str,
        current: bool,
        progress: &mut dyn FnMut(&Path, Step),
    ) -> Result<AdoptedBase, AdoptError> {
        let version = version(path)?.unwrap_or_else(|| UNSTAMPED.to_owned());
        let name =
            BaseName::parse(format!("{prefix}-{version}")).map_err(|source| AdoptError::Name {
                path: path.to_owned(),
                source,
            })?;
        self.import(&name, Source::Directory(path), &mut |step| {
            progress(path, step);
        })
        .map_err(|source| AdoptError::Import {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        if current {
            self.set_current(&name)?;
        }
        Ok(AdoptedBase {
            path: path.to_owned(),
            version,
            name: name.to_string(),
            current,
        })
    }

    /// Turns every layer of a workspace into generations with stamps (BASE-03, BASE-13), and
    /// resolves the version lines of older programs.
    pub fn adopt_layers(&self, workspace: &Path) -> Result<Vec<AdoptedLayer>, AdoptError> {
        let Some(layers) = Layers::open(workspace)? else {
            return Ok(Vec::new());
        };
        self.register_workspace(workspace)?;
        let mut adopted = Vec::new();
        for look in layers.list()? {
            let held = layers.lock(&look.key, Duration::ZERO)?;
            let Some(mut generation) = held.current()? else {
                continue;
            };
            let stamped = generation.stamp().base.clone();
            let found = self.resolve_stamped(&stamped)?;
            if let (None, Some(base)) = (&stamped.chain_id, &found) {
                generation.set_base(StampedBase {
                    version: stamped.version.clone(),
                    ..StampedBase::of(base)
                })?;
            }
            adopted.push(AdoptedLayer {
                layer: look.key.to_string(),
                base: generation.stamp().base.to_string(),
                installed: found.is_some(),
            });
        }
        Ok(adopted)
    }
}

/// Returns the preserved root file systems beside one: `<rootfs>-…` with a version of their own.
fn siblings(rootfs: &Path, own: &std::ffi::OsStr) -> Result<Vec<PathBuf>, AdoptError> {
    let parent = match rootfs.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let failed = |source| AdoptError::Look {
        path: parent.to_owned(),
        source,
    };
    let mut prefix: OsString = own.to_owned();
    prefix.push("-");
    let mut found = Vec::new();
    for entry in parent.read_dir().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let named = entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(prefix.as_encoded_bytes());
        if named && entry.file_type().map_err(failed)?.is_dir() && version(&entry.path())?.is_some()
        {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the version that a root file system says it has; `None` where it says nothing.
fn version(rootfs: &Path) -> Result<Option<String>, AdoptError> {
    let path = rootfs.join(VERSION);
    let read = || {
        use std::io::Read as _;
        let mut text = String::new();
        std::fs::File::open(&path)?
            .take(MAX_VERSION)
            .read_to_string(&mut text)?;
        Ok(text)
    };
    match read() {
        Ok(text) => {
            let line = text.lines().next().unwrap_or_default().trim().to_owned();
            Ok((!line.is_empty()).then_some(line))
        }
        Err(error) => {
            let error: io::Error = error;
            if error.kind() == io::ErrorKind::NotFound {
                Ok(None)
            } else {
                Err(AdoptError::Look {
                    path,
                    source: error,
                })
            }
        }
    }
}
