//! Groups of a container that `run` keeps on a host with version 1 controllers: the keeper's own.
//!
//! libcontainer would make a group in every hierarchy of version 1, of which three limit anything.
//! As for a keeper, it sees version 2 only, and the bundle without its limits.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use casemate_bundles::{CpuMillis, LimitSupport, Limits, MemoryBytes, Pids, file};
use casemate_sys::process::{Pid, become_subreaper};
use casemate_sys::{Error, mount};
use libcontainer::container::Container;
use oci_spec::runtime::{LinuxMemory, LinuxPids, LinuxResources, Spec};
use rustix::io::Errno;

use super::lifecycle::init_of;
use super::{Create, Global, OciError};
use crate::keeper::groups::{Groups, Parents, show_unified};
use crate::keeper::{builder, effective};

/// The groups of one container, and their name.
#[derive(Debug)]
pub(super) struct Own {
    parents: Parents,
    groups: Groups,
    name: String,
}

impl Own {
    /// Makes the groups, and a view of the mounts in which libcontainer does not find others.
    /// `None` on a host without version 1 controllers, where libcontainer sets limits itself.
    pub(super) fn make(global: &Global, create: &Create) -> Result<Option<Self>, OciError> {
        let parents = Parents::open()?;
        if parents.support() != LimitSupport::V1 {
            return Ok(None);
        }
        let path = create.bundle.join(file::CONFIG);
        let spec = Spec::load(&path).map_err(|error| OciError::Spec(Box::new(error)))?;
        let linux = spec.linux().as_ref();
        let name = linux
            .and_then(|linux| linux.cgroups_path().as_ref()?.file_name()?.to_str())
            .ok_or(OciError::Limits)?
            .to_owned();
        let resources = linux.and_then(|linux| linux.resources().as_ref());
        let limits = resources.map_or(Ok(None), limits)?;
        mount::private_namespace()?;
        become_subreaper()?;
        let groups = match parents.make(&name, limits.as_ref()) {
            Ok(groups) => groups,
            // One that exists is another container's.
            Err(error) if error.errno() == Errno::EXIST => return Err(error.into()),
            Err(error) => {
                parents.remove(&name)?;
                return Err(error.into());
            }
        };
        let own = Self {
            parents,
            groups,
            name,
        };
        let path = own.parents.path_of(&own.name);
        let covered = show_unified(&own.parents, &path)
            .map_err(OciError::from)
            .and_then(|()| cover(global, create, &path));
        match covered {
            Ok(()) => Ok(Some(own)),
            Err(error) => {
                own.remove()?;
                Err(error)
            }
        }
    }

    /// Creates a container whose first process begins in the groups; returns that.
    pub(super) fn create(
        &self,
        make: impl FnOnce() -> Result<Container, OciError>,
    ) -> Result<Pid, OciError> {
        let pid = builder::build(&self.groups, || init_of(&make()?))?;
        Ok(pid)
    }

    /// Sets the limits and checks that the container's first process is in the groups.
    pub(super) fn limit(&self, init: Pid) -> Result<(), OciError> {
        let pid = init.as_raw_nonzero().get().unsigned_abs();
        Ok(self.groups.limit(pid, &self.name)?)
    }

    /// Removes the groups when the container is gone.
    pub(super) fn remove(self) -> Result<(), OciError> {
        drop(self.groups);
        self.parents.remove(&self.name)?;
        Ok(self.parents.leave()?)
    }
}

/// Puts the effective configuration over the bundle's, in this process's view alone.
fn cover(global: &Global, create: &Create, group: &Path) -> Result<(), OciError> {
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| {
            Error::new(
                "open",
                path,
                Errno::from_io_error(&error).unwrap_or(Errno::IO),
            )
        }
    };
    let target = create.bundle.join(file::CONFIG);
    let config = fs::read(&target).map_err(io(&target))?;
    let effective = effective::derive_in(&config, group)?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&global.root)
        .map_err(io(&global.root))?;
    let beside = global.root.join(format!(".{}.json", create.id));
    fs::write(&beside, effective).map_err(io(&beside))?;
    let bound = mount::bind(&beside, &target);
    fs::remove_file(&beside).map_err(io(&beside))?;
    Ok(bound?)
}

/// The limits of a bundle; `None` where it has none. A part of them is not ours.
fn limits(resources: &LinuxResources) -> Result<Option<Limits>, OciError> {
    let memory = resources.memory().as_ref().and_then(LinuxMemory::limit);
    let pids = resources.pids().as_ref().map(LinuxPids::limit);
    let cpu = resources.cpu().as_ref();
    let cpu = cpu.and_then(|cpu| Some((cpu.quota()?, cpu.period()?)));
    match (memory, pids, cpu) {
        (None, None, None) => Ok(None),
        (Some(memory), Some(pids), Some((quota, period))) => {
            parse(memory, pids, quota, period).map(Some)
        }
        _ => Err(OciError::Limits),
    }
}

fn parse(memory: i64, pids: i64, quota: i64, period: u64) -> Result<Limits, OciError> {
    let parsed = || {
        let millis = u64::try_from(quota)
            .ok()?
            .checked_mul(1000)?
            .checked_div(period)?;
        Some(Limits {
            memory: MemoryBytes::parse(memory.try_into().ok()?).ok()?,
            pids: Pids::parse(pids.try_into().ok()?).ok()?,
            cpu: CpuMillis::parse(millis).ok()?,
        })
    };
    parsed().ok_or(OciError::Limits)
}
