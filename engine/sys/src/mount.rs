//! The mount API by descriptor (`mount(7)`, `fsopen(2)`, `open_tree(2)`): a tree is made detached,
//! gets its flags and ids, and is then put onto an open target.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, StatVfsMountFlags, fstatvfs};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount_change, move_mount, open_tree, unmount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::{Error, Result};

/// Flags of one mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags {
    /// Refuses writes.
    pub read_only: bool,
    /// Ignores set-user-id bits and file capabilities.
    pub nosuid: bool,
    /// Refuses to open devices.
    pub nodev: bool,
}

impl Flags {
    const fn attributes(self) -> u64 {
        let mut bits = 0;
        if self.read_only {
            bits |= libc::MOUNT_ATTR_RDONLY;
        }
        if self.nosuid {
            bits |= libc::MOUNT_ATTR_NOSUID;
        }
        if self.nodev {
            bits |= libc::MOUNT_ATTR_NODEV;
        }
        bits
    }
}

/// How far a change or a clone reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// One mount.
    Single,
    /// It and everything mounted below it.
    Recursive,
}

/// Gives the calling process a mount namespace of its own. Changes in it stay in it; those of the
/// host still arrive, so that an unmount there is not held up. The process must have one thread.
pub fn private_namespace() -> Result<()> {
    // SAFETY: CLONE_NEWNS changes the calling process's view of paths only; no descriptor or memory
    // is affected, and there is no other thread that could share the file-system state.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
        .map_err(Error::of("unshare", || "CLONE_NEWNS".to_owned()))?;
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", flags).map_err(Error::of("mount", || "\"/\", MS_SLAVE|MS_REC".to_owned()))
}

/// Clones the mount tree at an open path; the clone is detached and goes away with the descriptor.
pub fn clone_tree(source: impl AsFd, depth: Depth) -> Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if depth == Depth::Recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(source.as_fd(), "", flags).map_err(Error::of("open_tree", || format!("{flags:?}")))
}

/// Makes a detached tree private, sets flags, and maps its ids through a user namespace
/// (`mount_setattr(2)`, see [`crate::idmap`]).
pub fn set_attributes(
    tree: impl AsFd,
    flags: Flags,
    depth: Depth,
    ids: Option<&OwnedFd>,
) -> Result<()> {
    let mut attributes = libc::mount_attr {
        attr_set: flags.attributes(),
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    if let Some(ids) = ids {
        attributes.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attributes.userns_fd = u64::try_from(ids.as_raw_fd()).unwrap_or(u64::MAX);
    }
    let mut at = libc::AT_EMPTY_PATH;
    if depth == Depth::Recursive {
        at |= libc::AT_RECURSIVE;
    }
    // SAFETY: the descriptors are open for the length of the call, the path is a NUL-terminated
    // constant, and the structure is initialised and passed with its own size.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            at,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        let arguments = format!("{flags:?}, {depth:?}, ids {}", ids.is_some());
        Err(Error::last("mount_setattr", arguments))
    }
}

/// Makes a detached tmpfs whose root has the given permission bits.
pub fn tmpfs(bytes: u64, mode: u32, flags: Flags) -> Result<OwnedFd> {
    let size = bytes.to_string();
    let mode = format!("{mode:o}");
    file_system("tmpfs", &[("size", &size), ("mode", &mode)], &[], flags)
}

/// Makes a detached file system. `strings` are `key=value` options, `words` those without a value.
pub fn file_system(
    kind: &str,
    strings: &[(&str, &str)],
    words: &[&str],
    flags: Flags,
) -> Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(Error::of("fsopen", || kind.to_owned()))?;
    let fail = |key: &str, value: &str| format!("{kind}, {key:?}, {value:?}");
    fsconfig_set_string(&context, "source", kind)
        .map_err(Error::of("fsconfig", || fail("source", kind)))?;
    for (key, value) in strings {
        fsconfig_set_string(&context, *key, *value)
            .map_err(Error::of("fsconfig", || fail(key, value)))?;
    }
    for word in words {
        fsconfig_set_flag(&context, *word).map_err(Error::of("fsconfig", || fail(word, "")))?;
    }
    fsconfig_create(&context).map_err(Error::of("fsconfig", || {
        format!("{kind}, FSCONFIG_CMD_CREATE")
    }))?;
    let mut attributes = MountAttrFlags::empty();
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, flags.read_only);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, flags.nosuid);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, flags.nodev);
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(Error::of("fsmount", || format!("{kind}, {flags:?}")))
}

/// Puts a detached tree onto an open directory or file.
pub fn attach(tree: impl AsFd, target: impl AsFd) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree.as_fd(), "", target.as_fd(), "", flags)
        .map_err(Error::of("move_mount", || format!("{flags:?}")))
}

/// Reads the flags of the mount that an open file is on.
pub fn flags(file: impl AsFd) -> Result<Flags> {
    let found = fstatvfs(file).map_err(Error::of("fstatfs", String::new))?;
    Ok(Flags {
        read_only: found.f_flag.contains(StatVfsMountFlags::RDONLY),
        nosuid: found.f_flag.contains(StatVfsMountFlags::NOSUID),
        nodev: found.f_flag.bits() & libc::ST_NODEV != 0,
    })
}

/// Detaches the mount at a path with everything below it, at once (`MNT_DETACH`).
pub fn detach(path: &Path) -> Result<()> {
    unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        .map_err(Error::of("umount2", || format!("{path:?}, MNT_DETACH")))
}

/// Binds a directory over another one, both by a path that the engine has made or knows.
pub fn bind(source: &Path, target: &Path) -> Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, source, flags)
        .map_err(Error::of("open_tree", || format!("{source:?}, {flags:?}")))?;
    let moved = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&tree, "", CWD, target, moved)
        .map_err(Error::of("move_mount", || format!("{target:?}, {moved:?}")))
}
