//! The file-descriptor based mount calls (`open_tree(2)`, `move_mount(2)`, `fsopen(2)`,
//! `mount_setattr(2)`, and `open_tree_attr`, which libseccomp 2.5 does not know).

use std::path::{Path, PathBuf};

use super::{Scratch, Technique};
use crate::attempt::{Row, Targets};
use crate::raw::{Errno, addr, at_cwd, int, ptr, sys, text, word};

const SYS_OPEN_TREE_ATTR: i64 = 467;
const OPEN_TREE_CLONE: u64 = 1;
const AT_EMPTY_PATH: u64 = 0x1000;
const AT_RECURSIVE: u64 = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: u64 = 4;
const FSCONFIG_SET_FLAG: u64 = 0;
const FSCONFIG_SET_STRING: u64 = 1;
const FSCONFIG_CMD_CREATE: u64 = 6;
const FSCONFIG_CMD_RECONFIGURE: u64 = 7;

pub(super) const ALL: &[(&str, Technique)] = &[
    ("open_tree/one", open_tree_one),
    ("open_tree/recursive", open_tree_recursive),
    ("open_tree/rw", open_tree_rw),
    ("open_tree_attr/one", open_tree_attr_one),
    ("open_tree_attr/recursive", open_tree_attr_recursive),
    ("mount_setattr/one", setattr_one),
    ("mount_setattr/recursive", setattr_recursive),
    ("mount_setattr/propagation", setattr_propagation),
    ("move_mount/away", move_away),
    ("move_mount/beneath", move_beneath),
    ("fsopen/overlay", fsopen_overlay),
    ("fspick/rw", fspick_rw),
];

/// `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Clears `MOUNT_ATTR_RDONLY`.
const WRITABLE: MountAttr = MountAttr {
    set: 0,
    clear: 1,
    propagation: 0,
    user_namespace: 0,
};
const ATTR_BYTES: u64 = 32;

fn at(fd: u64) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{fd}"))
}

fn open_tree(source: &Path, flags: u64) -> Result<u64, Errno> {
    let name = text(source);
    sys(
        libc::SYS_open_tree,
        &[at_cwd(), addr(&name), flags | int(libc::O_CLOEXEC)],
    )
}

fn setattr(dir: u64, path: &Path, flags: u64, attr: &MountAttr) -> Result<u64, Errno> {
    let name = text(path);
    sys(
        libc::SYS_mount_setattr,
        &[dir, addr(&name), flags, ptr(attr), ATTR_BYTES],
    )
}

fn attach(tree: u64, target: &Path) -> Result<u64, Errno> {
    let (empty, target) = (text(""), text(target));
    sys(
        libc::SYS_move_mount,
        &[
            tree,
            addr(&empty),
            at_cwd(),
            addr(&target),
            MOVE_MOUNT_F_EMPTY_PATH,
        ],
    )
}

/// Tries the targets through a tree's descriptor and, attached, at a path.
fn look_through(targets: &Targets, scratch: &Scratch, source: &Path, tree: u64) -> Row {
    let mut row = targets.look_at(source, &at(tree));
    let copy = scratch.dir("attached");
    row.note("move_mount", word(&attach(tree, &copy)));
    row.merge(targets.look_at(source, &copy));
    row
}

fn open_tree_each(targets: &Targets, scratch: &Scratch, flags: u64, writable: bool) -> Row {
    let mut row = Row::default();
    let mut sources = targets.sources();
    sources.extend(targets.mount_points());
    for source in sources {
        let tree = open_tree(&source, OPEN_TREE_CLONE | flags);
        row.note("open_tree", word(&tree));
        if let Ok(tree) = tree {
            if writable {
                let cleared = setattr(tree, Path::new(""), AT_EMPTY_PATH | AT_RECURSIVE, &WRITABLE);
                row.note("mount_setattr", word(&cleared));
            }
            row.merge(look_through(targets, scratch, &source, tree));
        }
    }
    row
}

fn open_tree_one(targets: &Targets, scratch: &Scratch) -> Row {
    open_tree_each(targets, scratch, 0, false)
}

fn open_tree_recursive(targets: &Targets, scratch: &Scratch) -> Row {
    open_tree_each(targets, scratch, AT_RECURSIVE, false)
}

fn open_tree_rw(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = open_tree_each(targets, scratch, 0, true);
    row.merge(open_tree_each(targets, scratch, AT_RECURSIVE, true));
    row
}

fn open_tree_attr_each(targets: &Targets, scratch: &Scratch, flags: u64) -> Row {
    let mut row = Row::default();
    let mut sources = targets.sources();
    sources.extend(targets.mount_points());
    for source in sources {
        let name = text(&source);
        let flags = OPEN_TREE_CLONE | flags | int(libc::O_CLOEXEC);
        let tree = sys(
            SYS_OPEN_TREE_ATTR,
            &[at_cwd(), addr(&name), flags, ptr(&WRITABLE), ATTR_BYTES],
        );
        row.note("open_tree_attr", word(&tree));
        if let Ok(tree) = tree {
            row.merge(look_through(targets, scratch, &source, tree));
        }
    }
    row
}

fn open_tree_attr_one(targets: &Targets, scratch: &Scratch) -> Row {
    open_tree_attr_each(targets, scratch, 0)
}

fn open_tree_attr_recursive(targets: &Targets, scratch: &Scratch) -> Row {
    open_tree_attr_each(targets, scratch, AT_RECURSIVE)
}

fn setattr_each(targets: &Targets, flags: u64, attr: &MountAttr) -> Row {
    let mut row = Row::default();
    for point in targets.mount_points() {
        row.note(
            "mount_setattr",
            word(&setattr(at_cwd(), &point, flags, attr)),
        );
        row.merge(targets.look());
    }
    row
}

fn setattr_one(targets: &Targets, _scratch: &Scratch) -> Row {
    setattr_each(targets, 0, &WRITABLE)
}

fn setattr_recursive(targets: &Targets, _scratch: &Scratch) -> Row {
    setattr_each(targets, AT_RECURSIVE, &WRITABLE)
}

fn setattr_propagation(targets: &Targets, _scratch: &Scratch) -> Row {
    let private = MountAttr {
        set: 0,
        clear: 1,
        propagation: libc::MS_PRIVATE,
        user_namespace: 0,
    };
    setattr_each(targets, AT_RECURSIVE, &private)
}

fn move_away(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for (index, point) in targets.mount_points().into_iter().enumerate() {
        let away = scratch.dir(&index.to_string());
        let tree = open_tree(&point, 0);
        row.note("open_tree", word(&tree));
        if let Ok(tree) = tree {
            row.note("move_mount", word(&attach(tree, &away)));
        }
        row.merge(targets.look());
        row.merge(targets.look_at(&point, &away));
    }
    row
}

/// Slides a copy of the root under each mount and then takes the mount on top off.
fn move_beneath(targets: &Targets, _scratch: &Scratch) -> Row {
    const MOVE_MOUNT_BENEATH: u64 = 0x200;
    let mut row = Row::default();
    for point in targets.mount_points() {
        let Ok(tree) = open_tree(Path::new("/tmp"), OPEN_TREE_CLONE) else {
            continue;
        };
        let (empty, name) = (text(""), text(&point));
        let moved = sys(
            libc::SYS_move_mount,
            &[
                tree,
                addr(&empty),
                at_cwd(),
                addr(&name),
                MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_BENEATH,
            ],
        );
        row.note("move_mount", word(&moved));
        row.note("umount2", word(&sys(libc::SYS_umount2, &[addr(&name), 2])));
        row.merge(targets.look());
    }
    row
}

fn configure(context: u64, command: u64, key: &str, value: &str) -> Result<u64, Errno> {
    let (key_text, value_text) = (text(key), text(value));
    let pick = |word: &str, address| if word.is_empty() { 0 } else { address };
    sys(
        libc::SYS_fsconfig,
        &[
            context,
            command,
            pick(key, addr(&key_text)),
            pick(value, addr(&value_text)),
            0,
        ],
    )
}

fn fsopen_overlay(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    let empty = scratch.dir("empty");
    for source in targets.sources() {
        let kind = text("overlay");
        let context = sys(libc::SYS_fsopen, &[addr(&kind), 1]);
        row.note("fsopen", word(&context));
        let Ok(context) = context else { continue };
        let lower = format!("{}:{}", source.display(), empty.display());
        row.note(
            "lowerdir",
            word(&configure(context, FSCONFIG_SET_STRING, "lowerdir", &lower)),
        );
        row.note(
            "create",
            word(&configure(context, FSCONFIG_CMD_CREATE, "", "")),
        );
        let tree = sys(libc::SYS_fsmount, &[context, 1, 0]);
        row.note("fsmount", word(&tree));
        if let Ok(tree) = tree {
            row.merge(targets.read_at(&source, &at(tree)));
        }
    }
    row
}

fn fspick_rw(targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for point in targets.mount_points() {
        let name = text(&point);
        let context = sys(libc::SYS_fspick, &[at_cwd(), addr(&name), 1]);
        row.note("fspick", word(&context));
        if let Ok(context) = context {
            row.note("rw", word(&configure(context, FSCONFIG_SET_FLAG, "rw", "")));
            row.note(
                "reconfigure",
                word(&configure(context, FSCONFIG_CMD_RECONFIGURE, "", "")),
            );
        }
        row.merge(targets.look());
    }
    row
}
