//! Control groups, version 1 and 2 (`cgroups(7)`): where this process is, and the files of a group.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::dir::{Dir, Owner};
use crate::{Error, Result};

/// A hierarchy that this host has mounted, and where this process is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its controllers; empty for version 2.
    pub controllers: Vec<String>,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// This process's group, relative to the mount; empty for the root.
    pub own: PathBuf,
}

/// Returns the hierarchies that are mounted with their root, version 2 last.
pub fn hierarchies() -> Result<Vec<Hierarchy>> {
    let own = read_proc("/proc/self/cgroup")?;
    let mounts = read_proc("/proc/self/mountinfo")?;
    let mut found = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let Some(mount) = mounts
            .lines()
            .find_map(|mount| mount_point(mount, controllers))
        else {
            continue;
        };
        found.push(Hierarchy {
            controllers: controllers
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            mount,
            own: PathBuf::from(path.trim_start_matches('/')),
        });
    }
    Ok(found)
}

/// The mount point in a line of `mountinfo` (`proc_pid_mountinfo(5)`) if it is the hierarchy of
/// these controllers, seen from its root.
fn mount_point(line: &str, controllers: &str) -> Option<PathBuf> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1)?);
    let is_it = if controllers.is_empty() {
        kind == "cgroup2"
    } else {
        kind == "cgroup"
            && controllers
                .split(',')
                .all(|name| options.split(',').any(|option| option == name))
    };
    (is_it && root == "/").then(|| PathBuf::from(point))
}

/// An open group.
#[derive(Debug)]
pub struct Group(Dir);

impl Group {
    /// Opens a group.
    pub fn open(hierarchy: &Path, below: &Path) -> Result<Self> {
        Dir::open_trusted(hierarchy)?.open_dir(below).map(Self)
    }

    /// Opens a group below this one.
    pub fn open_child(&self, name: &str) -> Result<Self> {
        self.0.open_dir(Path::new(name)).map(Self)
    }

    /// Makes a group below this one; one that exists is refused.
    pub fn make_child(&self, name: &str) -> Result<Self> {
        self.0
            .make_dir(Path::new(name), 0o755, Owner { uid: 0, gid: 0 })?;
        self.open_child(name)
    }

    /// Makes a group below this one, or opens it.
    pub fn ensure_child(&self, name: &str) -> Result<Self> {
        match self.make_child(name) {
            Err(error) if error.errno() == Errno::EXIST => self.open_child(name),
            made => made,
        }
    }

    /// Removes an empty group below this one; none there is no failure.
    pub fn remove_child(&self, name: &str) -> Result<()> {
        match self.0.remove_dir(Path::new(name)) {
            Err(error) if error.errno() == Errno::NOENT => Ok(()),
            removed => removed,
        }
    }

    /// Names of the groups below this one, sorted.
    pub fn children(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for name in self.0.names()? {
            let stat = self.0.stat(&name)?;
            if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory
            {
                names.extend(name.to_str().map(str::to_owned));
            }
        }
        Ok(names)
    }

    /// Writes a value to one of the group's files.
    pub fn write(&self, file: &str, value: &str) -> Result<()> {
        let fd = self.0.open(Path::new(file), OFlags::WRONLY)?;
        File::from(fd)
            .write_all_at(value.as_bytes(), 0)
            .map_err(|error| self.fail("write", &format!("{file}, {value:?}"), &error))
    }

    /// Reads one of the group's files, without the final newline.
    pub fn read(&self, file: &str) -> Result<String> {
        let fd = self.0.open(Path::new(file), OFlags::RDONLY)?;
        let mut text = String::new();
        File::from(fd)
            .read_to_string(&mut text)
            .map_err(|error| self.fail("read", file, &error))?;
        text.truncate(text.trim_end().len());
        Ok(text)
    }

    /// Reads a number from a file that holds one.
    pub fn number(&self, file: &str) -> Result<u64> {
        let text = self.read(file)?;
        text.parse()
            .map_err(|_error| Error::new("read", format!("{file}: {text:?}"), Errno::INVAL))
    }

    /// Reads a number from a line `key value` of a file.
    pub fn value(&self, file: &str, key: &str) -> Result<u64> {
        let text = self.read(file)?;
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
            .ok_or_else(|| Error::new("read", format!("{file}: no {key}"), Errno::NOENT))
    }

    /// Opens one of the group's files for reading, to be polled for `POLLPRI`.
    pub fn watch(&self, file: &str) -> Result<std::os::fd::OwnedFd> {
        self.0.open(Path::new(file), OFlags::RDONLY)
    }

    /// Puts a process into the group.
    pub fn add(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// The processes in the group itself, not below it; 0 for one of another pid namespace.
    pub fn processes(&self) -> Result<Vec<u32>> {
        let text = self.read("cgroup.procs")?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Kills every process in the group and below it (version 2).
    pub fn kill(&self) -> Result<()> {
        self.write("cgroup.kill", "1")
    }

    /// Whether a process is in the group or below it (version 2).
    pub fn populated(&self) -> Result<bool> {
        Ok(self.value("cgroup.events", "populated")? != 0)
    }

    fn fail(&self, call: &'static str, what: &str, error: &std::io::Error) -> Error {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        Error::new(call, format!("{:?}, {what}", self.0.path()), errno)
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn read_proc(path: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Error::new("read", path, errno)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hierarchy_is_found_by_all_its_controllers() {
        let v1 = "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
        let v2 = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let part = "41 31 0:38 /a /mnt rw - cgroup2 cgroup2 rw";
        assert_eq!(
            mount_point(v1, "cpu,cpuacct"),
            Some(PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"))
        );
        assert_eq!(mount_point(v1, "memory"), None);
        assert_eq!(mount_point(v1, ""), None);
        assert_eq!(
            mount_point(v2, ""),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        assert_eq!(mount_point(part, ""), None);
    }
}
