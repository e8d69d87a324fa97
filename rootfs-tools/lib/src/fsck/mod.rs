//! Checks the store, and repairs what it can from what is there.

mod compare;
mod repair;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use casemate_sys::error::chain;
use serde::Serialize;

use crate::blob::{Blob, BlobError};
use crate::digest::Digest;
use crate::files::{self, FileError};
use crate::hold::Hold;
use crate::image::Parts;
use crate::name::BaseName;
use crate::store::{Pin, ResolvedBase, Store, StoreError};

/// How much is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Records, and sizes of blobs.
    Records,
    /// Also every byte: blobs against their digests, snapshots against their layers.
    Content,
}

/// What becomes of what is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// It is reported.
    No,
    /// What can be, is made good; what cannot is moved to quarantine or reported.
    Yes,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What and why, one line.
    pub problem: String,
    /// What was done about it; `None` where nothing was.
    pub repair: Option<String>,
}

/// What a check found.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// What is wrong, or was.
    pub findings: Vec<Finding>,
    /// What an interrupted import left, which does no harm.
    pub notes: Vec<String>,
    /// Blobs that were looked at.
    pub blobs: u64,
    /// Snapshots that were looked at.
    pub snapshots: u64,
}

impl Checked {
    /// Tells whether nothing is wrong any more.
    pub fn is_clean(&self) -> bool {
        self.findings.iter().all(|finding| finding.repair.is_some())
    }
}

/// A check under way.
struct Check<'a> {
    store: &'a Store,
    hold: Hold,
    depth: Depth,
    repair: Repair,
    found: Checked,
    /// Blobs that are missing or damaged.
    bad: BTreeSet<Digest>,
}

impl Store {
    /// Checks the store. Collections wait meanwhile; imports do not.
    pub fn check(&self, depth: Depth, repair: Repair) -> Result<Checked, StoreError> {
        self.require_write()?;
        let hold = self.hold()?;
        let publish = self.lock_publish()?;
        let lock = self.lock_index()?;
        let mut check = Check {
            store: self,
            hold,
            depth,
            repair,
            found: Checked::default(),
            bad: BTreeSet::new(),
        };
        check.index()?;
        let bases = check.pins()?;
        // Nothing is changed any more that has a name.
        let lock = (repair == Repair::Yes).then_some(lock);
        check.blobs()?;
        check.images(&bases)?;
        check.snapshots(&bases)?;
        drop((lock, publish));
        Ok(check.found)
    }
}

impl Check<'_> {
    fn report(&mut self, problem: String, repair: Option<&str>) {
        self.found.findings.push(Finding {
            problem,
            repair: repair.map(ToOwned::to_owned),
        });
    }

    /// Reports a problem that `repair` makes good.
    fn mend(
        &mut self,
        problem: String,
        done: &str,
        repair: impl FnOnce(&Store, &Hold) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        if self.repair == Repair::No {
            self.report(problem, None);
            return Ok(());
        }
        repair(self.store, &self.hold)?;
        self.report(problem, Some(done));
        Ok(())
    }

    fn index(&mut self) -> Result<(), FileError> {
        let layout = self.store.root().join("store/oci-layout");
        let read = files::read_json::<serde_json::Value>(&layout);
        let version = read
            .ok()
            .flatten()
            .and_then(|document| Some(document.get("imageLayoutVersion")?.as_str()? == "1.0.0"));
        if version != Some(true) {
            let problem = format!("{} is missing or damaged", layout.display());
            self.mend(problem, "written anew", |_, hold| {
                files::replace_json(hold.staging(), &layout, &crate::store::layout_document())
            })?;
        }
        if let Some(damage) = self.store.index_damage()? {
            let problem = damage.to_string();
            self.mend(problem, "restored from its copy", |store, hold| {
                let index = store.index()?;
                store.write_index(hold.staging(), &index)
            })?;
        }
        Ok(())
    }

    fn blobs(&mut self) -> Result<(), FileError> {
        for path in files::entries(&self.store.blobs())? {
            let Some(digest) = digest_of(&path) else {
                self.stray(&path)?;
                continue;
            };
            self.found.blobs += 1;
            if self.depth == Depth::Content
                && let Err(error) = read_blob(self.store, &digest)
            {
                self.damaged_blob(&digest, &format!("blob {digest} is damaged: {error}"))?;
            }
        }
        Ok(())
    }

    fn damaged_blob(&mut self, digest: &Digest, problem: &str) -> Result<(), FileError> {
        self.bad.insert(digest.clone());
        let done = "moved to quarantine; import its base again";
        self.mend(problem.to_owned(), done, |store, _| {
            store.quarantine(&store.blob_path(digest)).map(drop)
        })
    }

    fn stray(&mut self, path: &Path) -> Result<(), FileError> {
        let problem = format!("{} does not belong there", path.display());
        self.mend(problem, "moved to quarantine", |store, _| {
            store.quarantine(path).map(drop)
        })
    }

    /// Checks the pins against the index. Returns all bases by their manifests.
    fn pins(&mut self) -> Result<Bases, FileError> {
        let mut bases = Bases::new();
        for path in files::entries(&self.store.root().join("pins"))? {
            match files::read_json::<Pin>(&path) {
                Ok(Some(pin)) => self.pin(&pin, &mut bases)?,
                Ok(None) => {}
                Err(error) => {
                    let problem = format!("pin {} is damaged: {}", path.display(), error.source);
                    self.mend(problem, "moved to quarantine", |store, _| {
                        store.quarantine(&path).map(drop)
                    })?;
                }
            }
        }
        let index = self.store.index()?;
        for entry in &index.manifests {
            if let Some(base) = entry
                .name()
                .and_then(|name| self.store.resolved(&name, entry))
            {
                bases.insert(base.name.clone(), base);
            }
        }
        Ok(bases)
    }

    fn pin(&mut self, pin: &Pin, bases: &mut Bases) -> Result<(), FileError> {
        let index = self.store.index()?;
        let listed = index.manifests.iter().any(|entry| {
            entry.digest == pin.manifest.as_str() && entry.chain().as_ref() == Some(&pin.chain)
        });
        if !listed {
            let problem = format!("pinned base {} is not in the index", pin.name);
            match self.repair {
                Repair::No => self.found.notes.push(problem),
                Repair::Yes => self.mend(problem, "entered", |store, hold| {
                    repair::enter_pinned(store, hold, pin)
                })?,
            }
        }
        bases.insert(
            pin.name.clone(),
            ResolvedBase {
                name: pin.name.clone(),
                manifest: pin.manifest.clone(),
                fs: self.store.snapshot_dir(&pin.chain).join("fs"),
                chain: pin.chain.clone(),
            },
        );
        Ok(())
    }

    /// Checks that the blobs of the bases are there.
    fn images(&mut self, bases: &Bases) -> Result<(), FileError> {
        for base in bases.values() {
            if self.bad.contains(&base.manifest) {
                continue;
            }
            let parts = match Parts::read(self.store, &base.manifest) {
                Ok(parts) => parts,
                Err(error) => {
                    self.bad.insert(base.manifest.clone());
                    let problem = format!("base {}: {}", base.name, chain(&error));
                    self.report(problem, None);
                    continue;
                }
            };
            if crate::image::chain_id(&parts.diff_ids).as_ref() != Some(&base.chain) {
                let problem = format!("base {}: its image makes another snapshot", base.name);
                self.report(problem, None);
            }
            for blob in [&parts.config].into_iter().chain(&parts.layers) {
                self.size(&base.name, blob)?;
            }
        }
        Ok(())
    }

    fn size(&mut self, name: &BaseName, blob: &Blob) -> Result<(), FileError> {
        if self.bad.contains(&blob.digest) {
            return Ok(());
        }
        match self.store.blob(&blob.digest) {
            Ok(file) if file.size() == blob.size => {}
            Ok(file) => {
                let digest = &blob.digest;
                let problem = format!(
                    "blob {digest} of base {name} has {} bytes instead of {}",
                    file.size(),
                    blob.size
                );
                self.damaged_blob(digest, &problem)?;
            }
            Err(error) => {
                self.bad.insert(blob.digest.clone());
                self.report(format!("base {name}: {}", chain(&error)), None);
            }
        }
        Ok(())
    }

    fn snapshots(&mut self, bases: &Bases) -> Result<(), FileError> {
        let mut known: BTreeMap<Digest, &ResolvedBase> = BTreeMap::new();
        for base in bases.values() {
            known.insert(base.chain.clone(), base);
        }
        for path in files::entries(&self.store.root().join("snapshots/sha256"))? {
            let Some(digest) = digest_of(&path) else {
                self.stray(&path)?;
                continue;
            };
            if !known.contains_key(&digest)
                && let Some(problem) = self.records(&digest)?
            {
                self.report(format!("snapshot {digest} {problem}"), None);
            }
        }
        for (chain, base) in known {
            self.found.snapshots += 1;
            let problem = match self.records(&chain)? {
                Some(problem) => Some(problem),
                None if self.depth == Depth::Content => self.content(base)?,
                None => None,
            };
            if let Some(problem) = problem {
                self.snapshot(base, &problem)?;
            }
        }
        Ok(())
    }

    /// Checks the records of a snapshot. Returns what is wrong.
    fn records(&self, chain: &Digest) -> Result<Option<String>, FileError> {
        let dir = self.store.snapshot_dir(chain);
        let meta = match self.store.snapshot_meta(chain) {
            Ok(meta) => meta,
            Err(StoreError::UnknownSnapshot(_)) => return Ok(Some("is missing".to_owned())),
            Err(error) => return Ok(Some(format!("has no record: {error}"))),
        };
        if meta.chain != *chain || crate::image::chain_id(&meta.diff_ids).as_ref() != Some(chain) {
            return Ok(Some("has the record of another one".to_owned()));
        }
        for (name, is_dir) in [("fs", true), ("use", false)] {
            match dir.join(name).symlink_metadata() {
                Ok(metadata) if metadata.is_dir() == is_dir => {}
                Ok(_) => return Ok(Some(format!("has a {name} of the wrong kind"))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Some(format!("has no {name}")));
                }
                Err(error) => return Err(files::failed("examine", &dir)(error)),
            }
        }
        Ok(None)
    }

    /// Compares a snapshot with its layers. Returns what is wrong.
    fn content(&mut self, base: &ResolvedBase) -> Result<Option<String>, FileError> {
        let unpacked = match repair::unpack(self.store, &self.hold, base) {
            Ok(unpacked) => unpacked,
            Err(error) => {
                let problem = format!(
                    "base {} cannot be compared with its layers: {}",
                    base.name,
                    chain(&error)
                );
                self.report(problem, None);
                return Ok(None);
            }
        };
        let difference = compare::difference(&base.fs, &unpacked.path().join("fs"))?;
        unpacked.remove()?;
        Ok(difference.map(|path| format!("differs from its layers at {}", path.display())))
    }

    fn snapshot(&mut self, base: &ResolvedBase, problem: &str) -> Result<(), FileError> {
        let problem = format!("snapshot {} of base {} {problem}", base.chain, base.name);
        if self.repair == Repair::No {
            self.report(problem, None);
            return Ok(());
        }
        match repair::unpack(self.store, &self.hold, base) {
            Ok(unpacked) => {
                let done = repair::put_in_place(self.store, &base.chain, &unpacked)?;
                self.report(problem, done);
            }
            Err(error) => {
                let problem = format!("{problem}, and cannot be unpacked anew: {}", chain(&error));
                self.report(problem, None);
            }
        }
        Ok(())
    }
}

type Bases = BTreeMap<BaseName, ResolvedBase>;

fn digest_of(path: &Path) -> Option<Digest> {
    let hex = path.file_name()?.to_str()?;
    Digest::parse(format!("sha256:{hex}")).ok()
}

fn read_blob(store: &Store, digest: &Digest) -> Result<(), BlobError> {
    let mut blob = store.blob(digest)?;
    io::copy(&mut blob, &mut io::sink()).map_err(BlobError::Read)?;
    Ok(())
}

/// A tree in staging.
struct Unpacked {
    path: PathBuf,
}

impl Unpacked {
    fn path(&self) -> &Path {
        &self.path
    }

    fn remove(self) -> Result<(), FileError> {
        std::fs::remove_dir_all(&self.path).map_err(files::failed("remove", &self.path))
    }
}
