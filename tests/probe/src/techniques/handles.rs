//! Opening files by handle: a guessed inode number instead of a path.

use std::path::Path;

use super::{Scratch, Technique};
use crate::attempt::{Row, Targets, contains_mark};
use crate::raw::{Errno, addr, at_cwd, int, ptr, ptr_mut, sys, text, word};

/// `FILEID_INO32_GEN`; ext4 takes generation 0 as "any".
const INO32_GEN: i32 = 1;

pub(super) const ALL: &[(&str, Technique)] = &[
    ("handle/known-inode", known_inode),
    ("handle/sweep", sweep),
    ("handle/name_to_handle", name_to_handle),
];

/// `struct file_handle` with room for every kind.
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    data: [u8; 128],
}

impl FileHandle {
    fn inode(number: u64) -> Self {
        let mut data = [0; 128];
        let low = u32::try_from(number).unwrap_or(u32::MAX).to_ne_bytes();
        for (slot, byte) in data.iter_mut().zip(low) {
            *slot = byte;
        }
        Self {
            bytes: 8,
            kind: INO32_GEN,
            data,
        }
    }
}

/// A descriptor for each mount that the targets lie on, and the root.
fn mounts(targets: &Targets) -> Vec<u64> {
    let mut paths = targets.mount_points();
    paths.push(targets.workspace.clone());
    paths.push("/".into());
    paths.sort();
    paths.dedup();
    let open = |path: &std::path::PathBuf| {
        let name = text(path);
        sys(
            libc::SYS_openat,
            &[at_cwd(), addr(&name), int(libc::O_RDONLY)],
        )
    };
    paths.iter().filter_map(|path| open(path).ok()).collect()
}

fn open_handle(mount: u64, handle: &FileHandle, flags: i32) -> Result<u64, Errno> {
    sys(
        libc::SYS_open_by_handle_at,
        &[mount, ptr(handle), int(flags)],
    )
}

fn read_fd(fd: u64) -> Row {
    let mut buffer = [0_u8; 4096];
    let read = sys(libc::SYS_read, &[fd, ptr_mut(&mut buffer), 4096]);
    let mut row = Row::default();
    // A directory cannot be read, but it is a way to everything below it.
    row.reached();
    if read.is_ok() && contains_mark(&buffer) {
        "REVEALED".clone_into(&mut row.read);
    }
    let _closed = sys(libc::SYS_close, &[fd]);
    row
}

fn try_inode(mounts: &[u64], number: u64) -> Row {
    let mut row = Row::default();
    let handle = FileHandle::inode(number);
    for mount in mounts {
        let opened = open_handle(*mount, &handle, libc::O_RDONLY | libc::O_NONBLOCK);
        row.note("open_by_handle_at", word(&opened));
        if let Ok(fd) = opened {
            row.merge(read_fd(fd));
        }
    }
    row
}

fn known_inode(targets: &Targets, _scratch: &Scratch) -> Row {
    let mounts = mounts(targets);
    let mut row = Row::default();
    for number in &targets.inodes {
        row.merge(try_inode(&mounts, *number));
    }
    row
}

fn sweep(targets: &Targets, _scratch: &Scratch) -> Row {
    let mounts = mounts(targets);
    let mut row = Row::default();
    for inode in &targets.inodes {
        let first = inode.saturating_sub(targets.sweep);
        for number in first..=inode.saturating_add(targets.sweep) {
            row.merge(try_inode(&mounts, number));
        }
    }
    row
}

fn name_to_handle(targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = Row::default();
    let mut handle = FileHandle {
        bytes: 128,
        kind: 0,
        data: [0; 128],
    };
    let mut mount_id = 0_i32;
    for path in [Path::new("/"), &targets.workspace] {
        let name = text(path);
        let args = [
            at_cwd(),
            addr(&name),
            ptr_mut(&mut handle),
            ptr_mut(&mut mount_id),
            0,
        ];
        row.note(
            "name_to_handle_at",
            word(&sys(libc::SYS_name_to_handle_at, &args)),
        );
        for mount in mounts(targets) {
            let opened = open_handle(mount, &handle, libc::O_RDONLY);
            row.note("open_by_handle_at", word(&opened));
        }
    }
    row
}
