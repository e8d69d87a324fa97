//! Control groups of one sandbox: one in the version 2 hierarchy, which kills the tree, and where
//! the controllers are on version 1 one each for memory, pids and cpu.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use casemate_bundles::{LimitSupport, Limits};
use casemate_protocol::Usage;
use casemate_sys::cgroup::{Group, Hierarchy, hierarchies};
use casemate_sys::{Error, Result, mount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Directory of all sandboxes below the engine's own group.
const PARENT: &str = "casemate";
/// Length of a processor period.
const PERIOD_US: u64 = 100_000;
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// The engine's own group in each hierarchy that is used, opened once by the spawner.
#[derive(Debug)]
pub(crate) struct Parents {
    unified: Group,
    unified_path: PathBuf,
    unified_mount: PathBuf,
    limits: Limiter,
    /// The spawner: while it lives, the directory of all sandboxes stays.
    spawner: u32,
}

#[derive(Debug)]
enum Limiter {
    V2,
    V1([Group; 3]),
    Missing,
}

impl Parents {
    /// Finds and opens the groups. Without a version 2 hierarchy there is nothing that kills a
    /// tree: `ENOENT`.
    pub(crate) fn open() -> Result<Self> {
        let all = hierarchies()?;
        let unified = all
            .iter()
            .find(|one| one.controllers.is_empty())
            .ok_or_else(|| Error::new("open", "cgroup2", Errno::NOENT))?;
        let own = Group::open(&unified.mount, &unified.own)?;
        let mut parents = Self {
            unified: own,
            unified_path: Path::new("/").join(&unified.own),
            unified_mount: unified.mount.clone(),
            limits: Limiter::Missing,
            spawner: std::process::id(),
        };
        let has = |one: &&Hierarchy, name| one.controllers.iter().any(|found| found == name);
        let v1 = CONTROLLERS.map(|name| all.iter().find(|one| has(one, name)));
        if let [Some(memory), Some(pids), Some(cpu)] = v1 {
            parents.limits = Limiter::V1([
                Group::open(&memory.mount, &memory.own)?,
                Group::open(&pids.mount, &pids.own)?,
                Group::open(&cpu.mount, &cpu.own)?,
            ]);
        } else if parents.delegate(unified)? {
            parents.limits = Limiter::V2;
        }
        Ok(parents)
    }

    /// Enables the controllers for sandboxes on version 2. A group other than the root cannot have
    /// both processes and controllers for its children: the engine then moves itself into a leaf;
    /// where others remain, sandboxes go below the hierarchy's root instead.
    fn delegate(&mut self, unified: &Hierarchy) -> Result<bool> {
        let enable = |group: &Group| group.write("cgroup.subtree_control", "+memory +pids +cpu");
        let mut enabled = enable(&self.unified);
        if is(&enabled, Errno::BUSY) {
            self.unified
                .ensure_child("casemate-engine")?
                .add(std::process::id())?;
            enabled = enable(&self.unified);
        }
        if is(&enabled, Errno::BUSY) {
            self.unified = Group::open(&unified.mount, Path::new(""))?;
            self.unified_path = PathBuf::from("/");
            enabled = enable(&self.unified);
        }
        match enabled {
            Ok(()) => {
                let parent = self.unified.ensure_child(PARENT)?;
                enable(&parent)?;
                Ok(true)
            }
            // Not delegated, or a controller that this host lacks.
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::ACCESS | Errno::PERM) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Which limits can be set.
    pub(crate) const fn support(&self) -> LimitSupport {
        match self.limits {
            Limiter::V2 => LimitSupport::V2,
            Limiter::V1(_) => LimitSupport::V1,
            Limiter::Missing => LimitSupport::Missing,
        }
    }

    /// Path of a sandbox's group below the version 2 hierarchy's root.
    pub(crate) fn path_of(&self, id: &str) -> PathBuf {
        self.unified_path.join(PARENT).join(id)
    }

    /// Tries `cgroup.kill` on an empty group.
    pub(crate) fn try_kill(&self) -> Result<()> {
        let name = format!("probe-{}", std::process::id());
        let killed = make_below(&self.unified, &name).and_then(|group| group.kill());
        self.remove(&name)?;
        killed
    }

    /// Makes the groups of a sandbox, without limits yet.
    pub(crate) fn make(&self, id: &str, limits: Option<&Limits>) -> Result<Groups> {
        let unified = make_below(&self.unified, id)?;
        let limiter = match (&self.limits, limits) {
            (_, None) | (Limiter::Missing, _) => GroupLimits::None,
            (Limiter::V2, Some(limits)) => GroupLimits::V2(*limits),
            (Limiter::V1([memory, pids, cpu]), Some(limits)) => GroupLimits::V1(
                [
                    make_below(memory, id)?,
                    make_below(pids, id)?,
                    make_below(cpu, id)?,
                ],
                *limits,
            ),
        };
        Ok(Groups { unified, limiter })
    }

    /// Kills whatever is in the group of a sandbox; what is returned says when that is gone. `None`
    /// where there is no group.
    pub(crate) fn kill(&self, id: &str) -> Result<Option<Events>> {
        kill(
            self.unified
                .open_child(PARENT)
                .and_then(|parent| parent.open_child(id)),
        )
    }

    /// The same by the path of the group below the hierarchy's root: an earlier engine may have
    /// begun in another one. A path that is not that of the sandbox's own group is refused with
    /// `EINVAL`.
    pub(crate) fn kill_at(&self, path: &Path, id: &str) -> Result<Option<Events>> {
        let below = path.strip_prefix("/").unwrap_or(path);
        if !is_sandbox(below, id) {
            let what = format!("{}: no sandbox's group", below.display());
            return Err(Error::new("cgroup.kill", what, Errno::INVAL));
        }
        kill(Group::open(&self.unified_mount, below))
    }

    /// Removes the groups of a sandbox; groups that are not there are no failure. A keeper that has
    /// outlived its spawner removes the parents as well, where they are empty.
    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        for own in self.owns() {
            match own.open_child(PARENT) {
                Ok(parent) => remove_soon(&parent, id)?,
                Err(error) if error.errno() == Errno::NOENT => {}
                Err(error) => return Err(error),
            }
        }
        let parent =
            rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        if std::process::id() == self.spawner || parent == Some(self.spawner) {
            return Ok(());
        }
        self.leave()
    }

    /// Removes the parents of all sandboxes where they are empty: making and removing them costs
    /// more than a group, so it is not done for each sandbox.
    pub(crate) fn leave(&self) -> Result<()> {
        for own in self.owns() {
            match own.remove_child(PARENT) {
                Err(error) if error.errno() != Errno::BUSY => return Err(error),
                _in_use_or_removed => {}
            }
        }
        Ok(())
    }

    fn owns(&self) -> impl Iterator<Item = &Group> {
        let limiting: &[Group] = match &self.limits {
            Limiter::V1(groups) => groups,
            Limiter::V2 | Limiter::Missing => &[],
        };
        std::iter::once(&self.unified).chain(limiting)
    }
}

/// Gives libcontainer, in a mount namespace of its caller's own, one hierarchy to see: it would read
/// nine of version 1. What it writes into the group at `path` goes nowhere: the process that it
/// would move is there already, and what it would kill after a failure is its own caller.
pub(crate) fn show_unified(parents: &Parents, path: &Path) -> Result<()> {
    const MOUNT: &str = "/sys/fs/cgroup";
    if parents.unified_mount != Path::new(MOUNT) {
        mount::bind(&parents.unified_mount, Path::new(MOUNT))?;
    }
    let below = path.strip_prefix("/").unwrap_or(path);
    let group = Path::new(MOUNT).join(below);
    ["cgroup.procs", "cgroup.kill"]
        .iter()
        .try_for_each(|file| mount::bind(Path::new("/dev/null"), &group.join(file)))
}

fn kill(group: Result<Group>) -> Result<Option<Events>> {
    let kill = |group: Group| {
        let events = Events::open(&group)?;
        group.kill().map(|()| events)
    };
    match group.and_then(kill) {
        Ok(events) => Ok(Some(events)),
        // Not there, or removed in between.
        Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a path below the hierarchy's root is that of a sandbox's own group.
fn is_sandbox(below: &Path, id: &str) -> bool {
    let plain = below
        .components()
        .all(|part| matches!(part, std::path::Component::Normal(_)));
    let name = !id.is_empty() && !id.contains('/');
    plain && name && below.ends_with(Path::new(PARENT).join(id))
}

fn is(result: &Result<()>, errno: Errno) -> bool {
    result.as_ref().is_err_and(|error| error.errno() == errno)
}

/// The parent may be removed by a sandbox that has just ended.
fn make_below(own: &Group, id: &str) -> Result<Group> {
    let mut attempts = 0;
    loop {
        match own
            .ensure_child(PARENT)
            .and_then(|parent| parent.make_child(id))
        {
            Err(error) if attempts < 8 && matches!(error.errno(), Errno::NOENT | Errno::NODEV) => {
                attempts += 1;
            }
            made => return made,
        }
    }
}

/// A group is busy for a moment after its last process was waited for.
fn remove_soon(parent: &Group, id: &str) -> Result<()> {
    let mut waited_us = 0;
    loop {
        match parent.remove_child(id) {
            Err(error) if error.errno() == Errno::BUSY && waited_us < 500_000 => {
                let pause = if waited_us < 1000 { 100 } else { 2000 };
                std::thread::sleep(Duration::from_micros(pause));
                waited_us += pause;
            }
            removed => return removed,
        }
    }
}

fn quota(limits: &Limits) -> u64 {
    limits.cpu.get() * (PERIOD_US / 1000)
}

fn set_v2(group: &Group, limits: &Limits) -> Result<()> {
    let memory = limits.memory.get().to_string();
    let pids = limits.pids.get().to_string();
    let cpu = format!("{} {PERIOD_US}", quota(limits));
    set(group, "memory.max", &memory)?;
    set_if_present(group, "memory.swap.max", "0")?;
    set_if_present(group, "memory.oom.group", "1")?;
    set(group, "pids.max", &pids)?;
    set(group, "cpu.max", &cpu)
}

fn set_v1([memory, pids, cpu]: &[Group; 3], limits: &Limits) -> Result<()> {
    let bytes = limits.memory.get().to_string();
    set(memory, "memory.limit_in_bytes", &bytes)?;
    set_if_present(memory, "memory.memsw.limit_in_bytes", &bytes)?;
    // What the engine has used to make the sandbox is not the sandbox's.
    memory.write("memory.max_usage_in_bytes", "0")?;
    set(pids, "pids.max", &limits.pids.get().to_string())?;
    set(cpu, "cpu.cfs_period_us", &PERIOD_US.to_string())?;
    set(cpu, "cpu.cfs_quota_us", &quota(limits).to_string())
}

/// Writes a limit and reads it back. Memory is counted in pages, so a little less may be read.
fn set(group: &Group, file: &str, value: &str) -> Result<()> {
    group.write(file, value)?;
    let found = group.read(file)?;
    let close = match (found.parse::<u64>(), value.parse::<u64>()) {
        (Ok(found), Ok(asked)) => found <= asked && asked - found < 4096,
        _ => found == value,
    };
    if close {
        Ok(())
    } else {
        Err(Error::new(
            "write",
            format!("{file}: {found:?} instead of {value:?}"),
            Errno::INVAL,
        ))
    }
}

/// Swap accounting may be off; then there is no swap to limit by this file.
fn set_if_present(group: &Group, file: &str, value: &str) -> Result<()> {
    match set(group, file, value) {
        Err(error) if error.errno() == Errno::NOENT => Ok(()),
        done => done,
    }
}

/// Tells when the last process of a group is gone: to be polled for `POLLPRI`.
#[derive(Debug)]
pub(crate) struct Events(OwnedFd);

impl Events {
    fn open(group: &Group) -> Result<Self> {
        group.watch("cgroup.events").map(Self)
    }

    /// Whether a process is in the group. Only a read through the polled descriptor rearms it.
    pub(crate) fn is_populated(&self) -> Result<bool> {
        let mut text = [0; 128];
        let length = match rustix::io::pread(&self.0, &mut text, 0) {
            Ok(length) => length,
            // Somebody has removed the group, so it was empty.
            Err(Errno::NODEV) => return Ok(false),
            Err(errno) => return Err(Error::new("pread64", "cgroup.events", errno)),
        };
        let text = text.get(..length).unwrap_or_default();
        Ok(!text
            .split(|byte| *byte == b'\n')
            .any(|line| line == b"populated 0"))
    }

    /// Waits until the group is empty; `EBUSY` where it is not by then.
    pub(crate) fn wait_empty(&self, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        while self.is_populated()? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new("cgroup.kill", "still populated", Errno::BUSY));
            }
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(&mut [PollFd::new(&self.0, PollFlags::PRI)], Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::new("ppoll", "cgroup.events", errno)),
            }
        }
        Ok(())
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The open groups of one sandbox.
#[derive(Debug)]
pub(crate) struct Groups {
    unified: Group,
    limiter: GroupLimits,
}

#[derive(Debug)]
enum GroupLimits {
    None,
    V2(Limits),
    V1([Group; 3], Limits),
}

impl Groups {
    /// Puts the calling thread into the version 1 groups: for one that moves itself the kernel
    /// needs no grace period.
    pub(crate) fn enter(&self) -> Result<()> {
        match &self.limiter {
            GroupLimits::None | GroupLimits::V2(_) => Ok(()),
            GroupLimits::V1(groups, _) => groups
                .iter()
                .try_for_each(|group| group.write("tasks", "0")),
        }
    }

    /// Sets the limits, reads them back, and checks that a process is in all groups.
    pub(crate) fn limit(&self, pid: u32, id: &str) -> Result<()> {
        // The version 2 group has no name; without it nothing could kill the tree.
        let mut wanted = vec![""];
        match &self.limiter {
            GroupLimits::None => {}
            GroupLimits::V2(limits) => set_v2(&self.unified, limits)?,
            GroupLimits::V1(groups, limits) => {
                set_v1(groups, limits)?;
                wanted.extend(CONTROLLERS);
            }
        }
        let path = format!("/proc/{pid}/cgroup");
        let text = std::fs::read_to_string(&path).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::new("read", path, errno)
        })?;
        let suffix = format!("/{PARENT}/{id}");
        let inside = |name: &str| {
            text.lines().any(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                fields
                    .next()
                    .is_some_and(|list| list.split(',').any(|one| one == name))
                    && fields.next().is_some_and(|path| path.ends_with(&suffix))
            })
        };
        match wanted.into_iter().find(|name| !inside(name)) {
            None => Ok(()),
            Some(name) => Err(Error::new("read", format!("not in {name:?}"), Errno::INVAL)),
        }
    }

    /// Tells when the tree is gone.
    pub(crate) fn events(&self) -> Result<Events> {
        Events::open(&self.unified)
    }

    /// The group that holds, and kills, the whole tree.
    pub(crate) const fn unified(&self) -> &Group {
        &self.unified
    }

    /// Whether the kernel has killed a process at the memory limit.
    pub(crate) fn out_of_memory(&self) -> Result<bool> {
        let kills = match &self.limiter {
            GroupLimits::None => 0,
            GroupLimits::V2(_) => self.unified.value("memory.events", "oom_kill")?,
            GroupLimits::V1([memory, ..], _) => memory.value("memory.oom_control", "oom_kill")?,
        };
        Ok(kills > 0)
    }

    /// What the sandbox has taken, as far as the host counts it.
    pub(crate) fn usage(&self) -> Usage {
        let (memory, pids) = match &self.limiter {
            GroupLimits::None => (None, None),
            GroupLimits::V2(_) => (
                counted(self.unified.number("memory.peak")),
                counted(self.unified.number("pids.peak")),
            ),
            GroupLimits::V1([memory, pids, _cpu], _) => (
                counted(memory.number("memory.max_usage_in_bytes")),
                counted(pids.number("pids.peak")),
            ),
        };
        Usage {
            cpu_ms: counted(self.unified.value("cpu.stat", "usage_usec")).map(|us| us / 1000),
            memory_peak_bytes: memory,
            pids_peak: pids,
        }
    }
}

/// A counter that this kernel does not have is `None` in the record.
fn counted(read: Result<u64>) -> Option<u64> {
    match read {
        Ok(number) => Some(number),
        Err(error) => {
            tracing::debug!(%error, "usage is not counted");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_group_of_a_sandbox_is_one() {
        let is = |path: &str, id: &str| is_sandbox(Path::new(path), id);
        assert!(is("casemate/a1", "a1"));
        assert!(is("user.slice/casemate/a1", "a1"));
        for (path, id) in [
            ("casemate", ""),
            ("casemate/a1", "a2"),
            ("system.slice/a1", "a1"),
            ("casemate/../a1", "a1"),
            ("casemate/a1/..", ".."),
            ("casemate/a1/b", "a1/b"),
        ] {
            assert!(!is(path, id), "{path} {id}");
        }
    }
}
