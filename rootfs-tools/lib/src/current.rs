//! The base that new layers are built on, and the bases that old ones were built on.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::files::{self, FileError};
use crate::format::Format;
use crate::layer::StampedBase;
use crate::name::BaseName;
use crate::staging::Staging;
use crate::store::{ResolvedBase, Store, StoreError};

/// `<root>/current.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Current {
    #[serde(flatten)]
    format: Format,
    name: BaseName,
}

impl Store {
    /// Makes a base the one that new layers are built on. Layers on another one are outdated from
    /// now on, and stay as they are.
    pub fn set_current(&self, name: &BaseName) -> Result<ResolvedBase, StoreError> {
        self.require_write()?;
        let staging = Staging::create(self)?;
        let lock = self.lock_index()?;
        let base = self
            .bases()?
            .into_iter()
            .find(|base| base.name == *name)
            .ok_or_else(|| StoreError::UnknownBase(name.clone()))?;
        drop(self.snapshot_meta(&base.chain)?);
        let current = Current {
            format: Format::current(),
            name: name.clone(),
        };
        files::replace_json(&staging, &self.root().join("current.json"), &current)?;
        drop(lock);
        Ok(base)
    }

    /// Returns the name of the base that new layers are built on; `None` where none was chosen.
    pub fn current_name(&self) -> Result<Option<BaseName>, FileError> {
        let current: Option<Current> = files::read_json(&self.root().join("current.json"))?;
        Ok(current.map(|current| current.name))
    }

    /// Returns the base that new layers are built on: the chosen one, else the only one there is.
    pub fn current(&self) -> Result<Option<ResolvedBase>, StoreError> {
        let mut bases = self.bases()?;
        if let Some(name) = self.current_name()? {
            return Ok(bases.into_iter().find(|base| base.name == name));
        }
        let mut chains: Vec<&Digest> = bases.iter().map(|base| &base.chain).collect();
        chains.sort();
        chains.dedup();
        Ok((chains.len() == 1).then(|| bases.swap_remove(0)))
    }

    /// Returns the base that a layer was built on, if its snapshot is whole: by its digest, or by
    /// the label that an older program gave it, which is a base's name or what its name ends with
    /// after `-` (BASE-13).
    pub fn resolve_stamped(&self, base: &StampedBase) -> Result<Option<ResolvedBase>, StoreError> {
        let found = if let Some(chain) = &base.chain_id {
            let name = match &base.name {
                Some(name) => name.clone(),
                None => match BaseName::parse(base.version.as_str()) {
                    Ok(name) => name,
                    Err(_no_name) => return Ok(None),
                },
            };
            Some(ResolvedBase {
                name,
                manifest: base
                    .manifest_digest
                    .clone()
                    .unwrap_or_else(|| chain.clone()),
                fs: self.snapshot_dir(chain).join("fs"),
                chain: chain.clone(),
            })
        } else {
            self.labelled(&base.version)?
        };
        let Some(found) = found else {
            return Ok(None);
        };
        if !found.fs.is_dir() {
            return Ok(None);
        }
        match self.snapshot_meta(&found.chain) {
            Ok(_whole) => Ok(Some(found)),
            Err(StoreError::UnknownSnapshot(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the one base with a label of an older program.
    fn labelled(&self, label: &str) -> Result<Option<ResolvedBase>, StoreError> {
        let suffix = format!("-{label}");
        let mut found: Vec<ResolvedBase> = self
            .bases()?
            .into_iter()
            .filter(|base| base.name.as_str() == label || base.name.as_str().ends_with(&suffix))
            .collect();
        found.dedup_by(|a, b| a.chain == b.chain);
        // Two bases with one label: none of them is the exact one.
        Ok(if found.len() == 1 { found.pop() } else { None })
    }
}
