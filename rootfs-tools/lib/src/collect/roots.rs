//! What keeps blobs and snapshots.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use super::{Action, CollectError, Collection, same_file, workspace};
use crate::digest::Digest;
use crate::files::{self, FileError, failed};
use crate::hold;
use crate::layer::{self, LayerError, StampedBase};
use crate::name::BaseName;
use crate::oci::Index;
use crate::store::{Pin, Store};

/// One thing that keeps others.
#[derive(Debug, Clone)]
pub(super) struct Root {
    pub(super) kind: RootKind,
    /// Manifests, with all they refer to.
    pub(super) manifests: Vec<(Digest, Missing)>,
    /// Blobs.
    pub(super) blobs: BTreeSet<Digest>,
    /// Snapshots.
    pub(super) snapshots: Vec<Digest>,
}

/// What it means that a manifest is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// There is nothing to keep.
    Fine,
    /// What else it would keep is not known.
    Refused,
}

/// What it is, by its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RootKind {
    /// A pin.
    Pin(PathBuf),
    /// An entry of the index: its tag.
    Index(PathBuf, String),
    /// The base that new layers are built on.
    Current(PathBuf),
    /// A layer.
    Layer(PathBuf),
    /// A process under way.
    Hold(PathBuf),
}

impl RootKind {
    /// Returns its file.
    pub(super) fn file(&self) -> &Path {
        match self {
            Self::Pin(file)
            | Self::Index(file, _)
            | Self::Current(file)
            | Self::Layer(file)
            | Self::Hold(file) => file,
        }
    }
}

impl fmt::Display for RootKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pin(file) => write!(f, "pin {}", file.display()),
            Self::Index(file, tag) => write!(f, "entry {tag} of {}", file.display()),
            Self::Current(file) => write!(f, "current base, {}", file.display()),
            Self::Layer(file) => write!(f, "layer, {}", file.display()),
            Self::Hold(file) => write!(f, "import under way, {}", file.display()),
        }
    }
}

impl Root {
    pub(super) fn new(kind: RootKind) -> Self {
        Self {
            kind,
            manifests: Vec::new(),
            blobs: BTreeSet::new(),
            snapshots: Vec::new(),
        }
    }

    pub(super) fn file(&self) -> &Path {
        self.kind.file()
    }
}

/// All roots but the entries of the index, which are roots only as long as they have a name.
pub(super) struct Roots {
    pub(super) list: Vec<Root>,
    pub(super) index: Index,
    /// Whether the index is read from a copy.
    pub(super) index_damaged: bool,
    pub(super) pinned: BTreeSet<BaseName>,
    pub(super) quarantined: Vec<PathBuf>,
    /// What the caller wanted to leave out and was in the way.
    left_out: Vec<PathBuf>,
    stale_holds: Vec<PathBuf>,
}

impl Roots {
    /// Reads all roots. The caller has the locks of collection and of the index.
    pub(super) fn read(store: &Store, collection: &Collection) -> Result<Self, CollectError> {
        let mut roots = Self {
            list: Vec::new(),
            index: Index::empty(),
            index_damaged: false,
            pinned: BTreeSet::new(),
            quarantined: Vec::new(),
            left_out: Vec::new(),
            stale_holds: Vec::new(),
        };
        roots.read_index(store, collection)?;
        roots.read_pins(store, collection)?;
        roots.read_current(store, collection)?;
        roots.read_holds(store, collection)?;
        roots.read_layers(store, collection)?;
        Ok(roots)
    }

    /// Something is in the way: it is moved aside if the caller said so, and the end otherwise.
    pub(super) fn obstacle(
        &mut self,
        store: &Store,
        collection: &Collection,
        file: &Path,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Result<(), CollectError> {
        let wanted = collection
            .quarantine
            .iter()
            .find(|wanted| same_file(wanted, file));
        let Some(wanted) = wanted else {
            return Err(CollectError::Root {
                file: file.to_owned(),
                source: source.into(),
            });
        };
        self.left_out.push(wanted.clone());
        if collection.action == Action::Remove {
            self.quarantined.push(store.quarantine(file)?);
        }
        Ok(())
    }

    /// Checks that all that was to be left out was in the way.
    pub(super) fn check_quarantine(&self, collection: &Collection) -> Result<(), CollectError> {
        let idle = collection
            .quarantine
            .iter()
            .find(|wanted| !self.left_out.contains(wanted));
        match idle {
            Some(file) => Err(CollectError::NoObstacle(file.clone())),
            None => Ok(()),
        }
    }

    pub(super) fn forget_hold(&mut self, path: &Path) {
        self.list.retain(|root| root.file() != path);
    }

    pub(super) fn remove_stale_holds(&self) -> Result<(), FileError> {
        for path in &self.stale_holds {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove", path)(error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn read_index(&mut self, store: &Store, collection: &Collection) -> Result<(), CollectError> {
        let path = store.index_path();
        let unusable = |source: FileError| CollectError::Root {
            file: path.clone(),
            source: source.into(),
        };
        if let Some(damage) = store.index_damage().map_err(unusable)? {
            self.index_damaged = true;
            if damage.missing {
                // There is nothing to move aside, and the copy is what it was.
                self.index = store.index()?;
                return Ok(());
            }
            let index = store.index()?;
            self.obstacle(store, collection, &path, damage)?;
            self.index = index;
            return Ok(());
        }
        self.index = store.index().map_err(unusable)?;
        Ok(())
    }

    fn read_pins(&mut self, store: &Store, collection: &Collection) -> Result<(), CollectError> {
        for path in files::entries(&store.root().join("pins"))? {
            match files::read_json::<Pin>(&path) {
                Ok(Some(pin)) => {
                    let mut root = Root::new(RootKind::Pin(path));
                    root.manifests.push((pin.manifest, Missing::Refused));
                    root.snapshots.push(pin.chain);
                    self.pinned.insert(pin.name);
                    self.list.push(root);
                }
                Ok(None) => {}
                Err(error) => self.obstacle(store, collection, &path, error)?,
            }
        }
        Ok(())
    }

    fn read_current(&mut self, store: &Store, collection: &Collection) -> Result<(), CollectError> {
        let path = store.root().join("current.json");
        let name = match store.current_name() {
            Ok(Some(name)) => name,
            Ok(None) => return Ok(()),
            Err(error) => return self.obstacle(store, collection, &path, error),
        };
        if let Some(entry) = self.index.find(&name)
            && let Some(base) = store.resolved(&name, entry)
        {
            let mut root = Root::new(RootKind::Current(path));
            root.manifests.push((base.manifest, Missing::Fine));
            root.snapshots.push(base.chain);
            self.list.push(root);
        }
        Ok(())
    }

    fn read_holds(&mut self, store: &Store, collection: &Collection) -> Result<(), CollectError> {
        for path in hold::files(store)? {
            match hold::look(&path) {
                Ok(hold::State::Held(digests)) => {
                    let mut root = Root::new(RootKind::Hold(path));
                    root.snapshots.extend(digests.iter().cloned());
                    root.blobs = digests;
                    self.list.push(root);
                }
                Ok(hold::State::Stale) => self.stale_holds.push(path),
                Ok(hold::State::Gone) => {}
                Err(error) => self.obstacle(store, collection, &path, error)?,
            }
        }
        Ok(())
    }

    fn read_layers(&mut self, store: &Store, collection: &Collection) -> Result<(), CollectError> {
        let mut workspaces: Vec<_> = collection
            .workspaces
            .iter()
            .map(|path| (path.clone(), path.clone()))
            .collect();
        for path in workspace::records(store)? {
            match workspace::read(&path) {
                Ok(workspace) => workspaces.push((path, workspace)),
                Err(error) => self.obstacle(store, collection, &path, error)?,
            }
        }
        for (record, workspace) in workspaces {
            self.read_workspace(store, collection, (&record, &workspace))?;
        }
        Ok(())
    }

    fn read_workspace(
        &mut self,
        store: &Store,
        collection: &Collection,
        (record, workspace): (&Path, &Path),
    ) -> Result<(), CollectError> {
        loop {
            match layer::stamps(workspace) {
                Ok(stamped) => {
                    for stamped in stamped {
                        self.add_layer(store, stamped.path, &stamped.base)?;
                    }
                    return Ok(());
                }
                Err(error) => {
                    let file = culprit(&error).unwrap_or(record).to_owned();
                    let again = file != record && collection.action == Action::Remove;
                    self.obstacle(store, collection, &file, error)?;
                    if !again {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// A layer keeps the snapshot it is stacked on, and the image as long as there is one.
    fn add_layer(
        &mut self,
        store: &Store,
        path: PathBuf,
        base: &StampedBase,
    ) -> Result<(), CollectError> {
        let mut root = Root::new(RootKind::Layer(path));
        let manifests = base.manifest_digest.iter();
        root.manifests
            .extend(manifests.map(|digest| (digest.clone(), Missing::Fine)));
        root.snapshots.extend(base.chain_id.clone());
        if base.chain_id.is_none()
            && let Some(found) = store.resolve_stamped(base)?
        {
            root.manifests.push((found.manifest, Missing::Fine));
            root.snapshots.push(found.chain);
        }
        self.list.push(root);
        Ok(())
    }
}

/// Returns the file that an error of a layer names.
fn culprit(error: &LayerError) -> Option<&Path> {
    match error {
        LayerError::Stamp { path, .. }
        | LayerError::NewerStamp(path)
        | LayerError::Current(path) => Some(path),
        LayerError::Call { .. }
        | LayerError::Busy(_)
        | LayerError::Mounted(_)
        | LayerError::MissingBase { .. }
        | LayerError::Absent(_)
        | LayerError::NoOlder(_)
        | LayerError::NoGeneration { .. }
        | LayerError::Store(_) => None,
    }
}
