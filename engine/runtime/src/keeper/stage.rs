//! Executes a stage plan: what is made and mounted below the stage before libcontainer starts.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use casemate_bundles::{
    HostOwner, HostPath, IdMapLine, Placement, ProjectionKind, SandboxPath, StagePlan, StageStep,
    Upper,
};
use casemate_sys::dir::{Dir, Owner};
use casemate_sys::idmap::Extent;
use casemate_sys::mount::{self, Depth, Flags};
use casemate_sys::{Error, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::roots::{Roots, check_kind};

/// Directory below the stage where the ID-mapped lower of the root is attached.
const LOWER: &str = "lower";

/// Most bytes of a stage in memory: the documents of a bundle and the state of its runtime.
const MEMORY: u64 = 64 << 20;

/// What a stage is built on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ground {
    /// Its directory, where others find the bundle.
    Directory,
    /// A tmpfs over it, for a keeper's own view: there is nothing to remove in the end.
    Memory,
}

/// A step that could not be done.
#[derive(Debug, thiserror::Error)]
#[error("stage step {step} ({kind}) failed")]
pub(crate) struct StageError {
    /// Position in the plan, from 0.
    step: usize,
    /// Which kind.
    pub(crate) kind: &'static str,
    /// Why.
    #[source]
    pub(crate) source: Error,
}

/// Namespaces for ID-mapped mounts, made by the spawner for the maps of the plan.
pub(crate) type IdMaps = Vec<(Vec<Extent>, OwnedFd)>;

/// The map of an ID-mapped mount.
pub(crate) fn extents(lines: &[IdMapLine]) -> Vec<Extent> {
    lines
        .iter()
        .map(|line| Extent {
            disk: line.disk,
            kernel: line.kernel,
            count: line.count,
        })
        .collect()
}

/// A stage that is being built.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    path: &'a HostPath,
    dir: Dir,
    scratch: Option<(&'a HostPath, Dir)>,
    roots: &'a Roots,
    id_maps: &'a IdMaps,
}

impl<'a> Stage<'a> {
    /// Starts to build below the stage, which becomes a mount of its own, so that one detach takes
    /// everything away.
    pub(crate) fn begin(
        placement: &'a Placement,
        ground: Ground,
        roots: &'a Roots,
        id_maps: &'a IdMaps,
    ) -> Result<Self> {
        let path = &placement.stage;
        match ground {
            Ground::Directory => mount::bind(path.as_ref(), path.as_ref())?,
            Ground::Memory => {
                let group = placement.ids.first().to_string();
                let size = MEMORY.to_string();
                let options = [("size", size.as_str()), ("mode", "710"), ("gid", &group)];
                let flags = Flags {
                    read_only: false,
                    nosuid: true,
                    nodev: true,
                };
                let tree = mount::file_system("tmpfs", &options, &[], flags)?;
                mount::attach(&tree, Dir::open_trusted(path.as_ref())?)?;
            }
        }
        let scratch = match &placement.upper {
            Upper::Memory(_) => None,
            Upper::Disk(disk) => Some((disk, Dir::open_trusted(disk.as_ref())?)),
            // The workspace is the service's, which could have put a link there.
            Upper::Layer(layer) => Some((layer, roots.open_dir(layer)?)),
        };
        Ok(Self {
            path,
            dir: Dir::open_trusted(path.as_ref())?,
            scratch,
            roots,
            id_maps,
        })
    }

    /// The stage's directory, on its own mount.
    pub(crate) const fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Executes the steps in order.
    pub(crate) fn execute(&self, plan: &StagePlan) -> std::result::Result<(), StageError> {
        // Modes in the plan are exact.
        let mask = rustix::process::umask(rustix::fs::Mode::empty());
        let done = plan.steps.iter().enumerate().try_for_each(|(step, what)| {
            self.step(what).map_err(|source| StageError {
                step,
                kind: kind(what),
                source,
            })
        });
        rustix::process::umask(mask);
        done
    }

    fn step(&self, step: &StageStep) -> Result<()> {
        match step {
            StageStep::Directory { path, owner, mode } => {
                let (dir, below) = self.place(path)?;
                dir.make_dir(below, *mode, own(*owner))
            }
            StageStep::File { path, owner, mode } => {
                let (dir, below) = self.place(path)?;
                dir.make_file(below, *mode, own(*owner))
            }
            StageStep::Fifo { path, owner, mode } => {
                let (dir, below) = self.place(path)?;
                dir.make_fifo(below, *mode, own(*owner))
            }
            StageStep::Device {
                path,
                major,
                minor,
                mode,
            } => self
                .dir
                .make_device(self.below(path)?, *mode, *major, *minor),
            StageStep::Tmpfs {
                path,
                bytes,
                devices,
            } => self.tmpfs(path, *bytes, *devices),
            StageStep::Bind {
                source,
                target,
                kind,
                id_map,
                read_only,
            } => self.bind((source, *kind), target, id_map, *read_only),
            StageStep::Overlay {
                lower,
                lower_map,
                upper,
                work,
                target,
                options,
            } => {
                let lower = self.lower(lower, lower_map)?;
                self.overlay(&lower, (upper, work), target, options)
            }
            StageStep::Target {
                root,
                path,
                kind,
                owner,
            } => self.target(root, path, *kind, own(*owner)),
        }
    }

    fn tmpfs(&self, path: &HostPath, bytes: u64, devices: bool) -> Result<()> {
        let flags = Flags {
            read_only: false,
            nosuid: true,
            nodev: !devices,
        };
        let tree = mount::tmpfs(bytes, 0o755, flags)?;
        self.put(&tree, path, ProjectionKind::Directory, flags)
    }

    fn bind(
        &self,
        (source, kind): (&HostPath, ProjectionKind),
        target: &HostPath,
        id_map: &[IdMapLine],
        read_only: bool,
    ) -> Result<()> {
        let flags = Flags {
            read_only,
            nosuid: true,
            nodev: true,
        };
        let source = match source.below(self.path) {
            Some(below) => {
                let fd = self.dir.open(Path::new(below), OFlags::PATH)?;
                check_kind(&fd, source.as_ref(), kind)?;
                fd
            }
            None => self.roots.open(source, kind)?,
        };
        let tree = mount::clone_tree(&source, Depth::Recursive)?;
        mount::set_attributes(&tree, flags, Depth::Recursive, self.ids(id_map)?)?;
        self.put(&tree, target, kind, flags)
    }

    /// Attaches the ID-mapped lower inside the stage: older kernels take no detached mount as a
    /// layer. Returns it as a path that is short enough for a mount option.
    fn lower(&self, lower: &HostPath, map: &[IdMapLine]) -> Result<OwnedFd> {
        let flags = Flags {
            read_only: true,
            nosuid: true,
            nodev: true,
        };
        let source = self.roots.open(lower, ProjectionKind::Directory)?;
        let tree = mount::clone_tree(&source, Depth::Single)?;
        mount::set_attributes(&tree, flags, Depth::Single, self.ids(map)?)?;
        let name = Path::new(LOWER);
        self.dir.make_dir(name, 0o700, Owner { uid: 0, gid: 0 })?;
        let target = self.dir.open(name, OFlags::PATH | OFlags::DIRECTORY)?;
        mount::attach(&tree, &target)?;
        self.dir.open(name, OFlags::PATH | OFlags::DIRECTORY)
    }

    fn overlay(
        &self,
        lower: &OwnedFd,
        (upper, work): (&HostPath, &HostPath),
        target: &HostPath,
        options: &[String],
    ) -> Result<()> {
        let open = |path| {
            let (dir, below) = self.place(path)?;
            dir.open(below, OFlags::PATH | OFlags::DIRECTORY)
        };
        let (upper, work) = (open(upper)?, open(work)?);
        let by_descriptor = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        let (lower, upper, work) = (
            by_descriptor(lower),
            by_descriptor(&upper),
            by_descriptor(&work),
        );
        let mut strings: Vec<(&str, &str)> = vec![
            ("lowerdir", &lower),
            ("upperdir", &upper),
            ("workdir", &work),
        ];
        let mut words = Vec::new();
        for option in options {
            match option.split_once('=') {
                Some(pair) => strings.push(pair),
                None => words.push(option.as_str()),
            }
        }
        let flags = Flags {
            read_only: false,
            nosuid: false,
            nodev: true,
        };
        let tree = mount::file_system("overlay", &strings, &words, flags)?;
        self.put(&tree, target, ProjectionKind::Directory, flags)?;
        self.probe_write(target)
    }

    /// Overlayfs mounts read-only without an error where it cannot write its upper.
    fn probe_write(&self, target: &HostPath) -> Result<()> {
        let root = self.dir.open_dir(self.below(target)?)?;
        let name = Path::new(".casemate-write-probe");
        root.make_file(name, 0o600, Owner { uid: 0, gid: 0 })?;
        root.remove_file(name)
    }

    fn target(
        &self,
        root: &HostPath,
        path: &SandboxPath,
        kind: ProjectionKind,
        owner: Owner,
    ) -> Result<()> {
        let root = self.dir.open_dir(self.below(root)?)?;
        let below = Path::new(path.as_str().trim_start_matches('/'));
        let made = match kind {
            ProjectionKind::Directory => root.ensure_dirs(below, 0o755, owner),
            ProjectionKind::File => {
                root.ensure_dirs(
                    below.parent().unwrap_or_else(|| Path::new("")),
                    0o755,
                    owner,
                )?;
                root.make_file(below, 0o644, owner)
            }
        };
        match made {
            Err(error) if error.errno() != Errno::EXIST => return Err(error),
            _exists => {}
        }
        let fd = root.open(below, OFlags::PATH)?;
        check_kind(&fd, below, kind)
    }

    /// Puts a tree onto a target and reads its flags back.
    fn put(
        &self,
        tree: &OwnedFd,
        target: &HostPath,
        kind: ProjectionKind,
        flags: Flags,
    ) -> Result<()> {
        let below = self.below(target)?;
        let place = self.dir.open(below, OFlags::PATH)?;
        check_kind(&place, below, kind)?;
        mount::attach(tree, &place)?;
        let found = mount::flags(self.dir.open(below, OFlags::PATH)?.as_fd())?;
        if found == flags {
            Ok(())
        } else {
            let what = format!("{}: {found:?} instead of {flags:?}", below.display());
            Err(Error::new("statfs", what, Errno::INVAL))
        }
    }

    fn ids(&self, map: &[IdMapLine]) -> Result<Option<&OwnedFd>> {
        if map.is_empty() {
            return Ok(None);
        }
        let map = extents(map);
        self.id_maps
            .iter()
            .find(|(found, _)| *found == map)
            .map(|(_, namespace)| Some(namespace))
            .ok_or_else(|| Error::new("mount_setattr", format!("{map:?}"), Errno::NOENT))
    }

    /// Where something is made: below the stage, or in the scratch directory on disk.
    fn place<'p>(&self, path: &'p HostPath) -> Result<(&Dir, &'p Path)> {
        match &self.scratch {
            Some((scratch, dir)) if path.is_within(scratch) => {
                Ok((dir, Path::new(path.below(scratch).unwrap_or(""))))
            }
            _ => Ok((&self.dir, self.below(path)?)),
        }
    }

    fn below<'p>(&self, path: &'p HostPath) -> Result<&'p Path> {
        path.below(self.path).map(Path::new).ok_or_else(|| {
            let outside = PathBuf::from(path.as_str());
            Error::new(
                "openat2",
                format!("{}: outside", outside.display()),
                Errno::XDEV,
            )
        })
    }
}

const fn own(owner: HostOwner) -> Owner {
    Owner {
        uid: owner.uid,
        gid: owner.gid,
    }
}

const fn kind(step: &StageStep) -> &'static str {
    match step {
        StageStep::Directory { .. } => "directory",
        StageStep::File { .. } => "file",
        StageStep::Fifo { .. } => "fifo",
        StageStep::Device { .. } => "device",
        StageStep::Tmpfs { .. } => "tmpfs",
        StageStep::Bind { .. } => "bind",
        StageStep::Overlay { .. } => "overlay",
        StageStep::Target { .. } => "target",
    }
}
