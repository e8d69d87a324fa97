//! `mount(2)` and `umount2(2)`.

use std::path::Path;

use super::{Scratch, Technique, mount};
use crate::attempt::{Row, Targets};
use crate::raw::{addr, sys, text, word};

const RDONLY: u64 = libc::MS_RDONLY;
const REMOUNT: u64 = libc::MS_REMOUNT;
const BIND: u64 = libc::MS_BIND;
const MOVE: u64 = libc::MS_MOVE;
const REC: u64 = libc::MS_REC;
const DETACH: u64 = 2;

pub(super) const ALL: &[(&str, Technique)] = &[
    ("plain", plain),
    ("umount/plain", umount_plain),
    ("umount/detach", umount_detach),
    ("umount/all", umount_all),
    ("propagation/private+umount", private_then_umount),
    ("propagation/shared+umount", shared_then_umount),
    ("bind/one", bind_one),
    ("bind/recursive", bind_recursive),
    ("bind/remount-rw", bind_remount),
    ("move", move_mounts),
    ("remount/rw", remount_rw),
    ("remount/bind-rw", remount_bind_rw),
    ("remount/toggle", remount_toggle),
    ("overlay/mount", overlay),
    ("mount/filesystems", filesystems),
];

fn plain(targets: &Targets, _scratch: &Scratch) -> Row {
    targets.look()
}

fn umount_each(targets: &Targets, flags: u64, again: u32) -> Row {
    let mut row = Row::default();
    for point in targets.mount_points() {
        if point == Path::new("/") {
            continue;
        }
        let name = text(&point);
        for _ in 0..again {
            let result = sys(libc::SYS_umount2, &[addr(&name), flags]);
            row.note("umount2", word(&result));
            if result.is_err() {
                break;
            }
        }
        row.merge(targets.look());
    }
    row
}

fn umount_plain(targets: &Targets, _scratch: &Scratch) -> Row {
    umount_each(targets, 0, 1)
}

fn umount_detach(targets: &Targets, _scratch: &Scratch) -> Row {
    umount_each(targets, DETACH, 8)
}

fn umount_all(targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for point in crate::mounts::targets()
        .into_iter()
        .rev()
        .filter(|point| point != "/")
    {
        let name = text(&point);
        row.note(
            "umount2",
            word(&sys(libc::SYS_umount2, &[addr(&name), DETACH])),
        );
    }
    row.merge(targets.look());
    row
}

fn private_then_umount(targets: &Targets, _scratch: &Scratch) -> Row {
    let made = mount("none", Path::new("/"), "", libc::MS_PRIVATE | REC, "");
    let mut row = umount_each(targets, DETACH, 2);
    row.note("private", word(&made));
    row
}

fn shared_then_umount(targets: &Targets, _scratch: &Scratch) -> Row {
    let made = mount("none", Path::new("/"), "", libc::MS_SHARED | REC, "");
    let mut row = umount_each(targets, DETACH, 2);
    row.note("shared", word(&made));
    row
}

fn bind_each(targets: &Targets, scratch: &Scratch, recursive: u64, remount: bool) -> Row {
    let mut row = Row::default();
    for (index, source) in targets.sources().into_iter().enumerate() {
        let copy = scratch.dir(&index.to_string());
        let source_text = source.display().to_string();
        row.note(
            "bind",
            word(&mount(&source_text, &copy, "", BIND | recursive, "")),
        );
        if remount {
            remount_copy(&mut row, &copy);
        }
        row.merge(targets.look_at(&source, &copy));
    }
    row
}

/// Without its flags, and with those that are locked where the source is the host's.
fn remount_copy(row: &mut Row, copy: &Path) {
    for flags in [0, libc::MS_NOSUID | libc::MS_NODEV] {
        row.note(
            "remount",
            word(&mount("none", copy, "", REMOUNT | BIND | flags, "")),
        );
    }
}

fn bind_one(targets: &Targets, scratch: &Scratch) -> Row {
    bind_each(targets, scratch, 0, false)
}

fn bind_recursive(targets: &Targets, scratch: &Scratch) -> Row {
    bind_each(targets, scratch, REC, false)
}

fn bind_remount(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = bind_each(targets, scratch, 0, true);
    let mut recursive = Row::default();
    for (index, point) in targets.mount_points().into_iter().enumerate() {
        let copy = scratch.dir(&format!("m{index}"));
        let source = point.display().to_string();
        recursive.note("bind", word(&mount(&source, &copy, "", BIND | REC, "")));
        remount_copy(&mut recursive, &copy);
        recursive.merge(targets.look_at(&point, &copy));
    }
    row.merge(recursive);
    row
}

fn move_mounts(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for (index, point) in targets.mount_points().into_iter().enumerate() {
        let away = scratch.dir(&index.to_string());
        let source = point.display().to_string();
        row.note("move", word(&mount(&source, &away, "", MOVE, "")));
        row.merge(targets.look());
        row.merge(targets.look_at(&point, &away));
    }
    row
}

fn remount_each(targets: &Targets, flags: &[u64]) -> Row {
    let mut row = Row::default();
    for point in targets.mount_points() {
        for flags in flags {
            row.note(
                "remount",
                word(&mount("none", &point, "", REMOUNT | flags, "")),
            );
        }
        row.merge(targets.look());
    }
    row
}

fn remount_rw(targets: &Targets, _scratch: &Scratch) -> Row {
    remount_each(targets, &[0])
}

fn remount_bind_rw(targets: &Targets, _scratch: &Scratch) -> Row {
    let kept = libc::MS_NOSUID | libc::MS_NODEV;
    remount_each(
        targets,
        &[BIND, BIND | kept, BIND | kept | libc::MS_RELATIME],
    )
}

fn remount_toggle(targets: &Targets, _scratch: &Scratch) -> Row {
    let kept = BIND | libc::MS_NOSUID | libc::MS_NODEV;
    remount_each(targets, &[kept | RDONLY, kept])
}

fn overlay(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    let store = scratch.dir("store");
    row.note(
        "tmpfs",
        word(&mount("tmpfs", &store, "tmpfs", 0, "size=64k")),
    );
    let merged = scratch.dir("merged");
    for (index, source) in targets.sources().into_iter().enumerate() {
        let [upper, work] =
            ["upper", "work"].map(|name| scratch.dir(&format!("store/{name}{index}")));
        let lower = source.display();
        let options = format!(
            "lowerdir={lower},upperdir={},workdir={}",
            upper.display(),
            work.display()
        );
        row.note(
            "overlay",
            word(&mount("overlay", &merged, "overlay", 0, &options)),
        );
        let read_only = format!("lowerdir={lower}:{}", upper.display());
        row.note(
            "overlay-ro",
            word(&mount("overlay", &merged, "overlay", RDONLY, &read_only)),
        );
        row.merge(targets.read_at(&source, &merged));
    }
    row
}

/// Which file systems a payload can mount at all; a device's one would be reached.
fn filesystems(_targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    let point = scratch.dir("point");
    for kind in [
        "proc",
        "sysfs",
        "tmpfs",
        "ramfs",
        "devpts",
        "devtmpfs",
        "mqueue",
        "cgroup",
        "cgroup2",
        "debugfs",
        "tracefs",
        "securityfs",
        "configfs",
        "bpf",
        "hugetlbfs",
        "binfmt_misc",
        "pstore",
        "efivarfs",
        "fusectl",
        "nfs",
        "9p",
        "virtiofs",
        "ext4",
    ] {
        let mounted = mount("none", &point, kind, 0, "");
        row.note(kind, word(&mounted));
        if mounted.is_ok() {
            // Namespaced: a mount shows only what the mounter's own namespaces own.
            let harmless = [
                "proc",
                "sysfs",
                "tmpfs",
                "ramfs",
                "devpts",
                "mqueue",
                "cgroup2",
                "binfmt_misc",
                "fusectl",
            ];
            if !harmless.contains(&kind) {
                row.reached();
            }
            let name = text(&point);
            let _undone = sys(libc::SYS_umount2, &[addr(&name), DETACH]);
        }
    }
    row
}
