//! Namespaces for ID-mapped mounts, kept because each costs a fork.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use casemate_bundles::{StagePlan, StageStep};
use casemate_sys::idmap::{Extent, user_namespace};
use casemate_sys::{Error, Result};

use crate::keeper::stage::{IdMaps, extents};

/// Most namespaces that are kept.
const MAX: usize = 128;

/// Namespaces by their map, least recently used first.
#[derive(Debug, Default)]
pub(crate) struct Cache(Vec<(Vec<Extent>, OwnedFd)>);

impl Cache {
    /// Returns the namespaces that the steps of a plan need.
    pub(crate) fn of(&mut self, plan: &StagePlan) -> Result<IdMaps> {
        let needed: BTreeSet<Vec<Extent>> = plan
            .steps
            .iter()
            .filter_map(|step| match step {
                StageStep::Bind { id_map, .. } => Some(id_map),
                StageStep::Overlay { lower_map, .. } => Some(lower_map),
                StageStep::Directory { .. }
                | StageStep::File { .. }
                | StageStep::Fifo { .. }
                | StageStep::Device { .. }
                | StageStep::Tmpfs { .. }
                | StageStep::Target { .. } => None,
            })
            .filter(|map| !map.is_empty())
            .map(|map| extents(map))
            .collect();
        let mut maps = IdMaps::new();
        for map in needed {
            let namespace = self.get(&map)?;
            maps.push((map, namespace));
        }
        Ok(maps)
    }

    fn get(&mut self, map: &[Extent]) -> Result<OwnedFd> {
        let entry = match self.0.iter().position(|(known, _)| known == map) {
            Some(at) => self.0.remove(at),
            None => (map.to_vec(), user_namespace(map)?),
        };
        let copy = rustix::io::fcntl_dupfd_cloexec(&entry.1, 3)
            .map_err(Error::of("fcntl", || "F_DUPFD_CLOEXEC".to_owned()))?;
        self.0.push(entry);
        if self.0.len() > MAX {
            self.0.remove(0);
        }
        Ok(copy)
    }
}
