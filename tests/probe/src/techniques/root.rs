//! Changing the root, and links and handles that a check by path would miss.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::{Scratch, Technique, mount};
use crate::attempt::{Row, Targets};
use crate::raw::{Errno, addr, at_cwd, int, sys, text, word};

pub(super) const ALL: &[(&str, Technique)] = &[
    ("pivot_root", pivot),
    ("chroot/dotdot", chroot_dotdot),
    ("chroot/fd", chroot_fd),
    ("link/hard", hard_link),
    ("link/symbolic", symbolic_link),
    ("rename/exchange", exchange),
    ("rename/over", rename_over),
    ("chmod", change_mode),
];

fn pivot(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    let new = scratch.dir("new");
    let source = targets.workspace.display().to_string();
    row.note("bind", word(&mount(&source, &new, "", libc::MS_BIND, "")));
    let name = text(&new);
    let pivoted = sys(libc::SYS_pivot_root, &[addr(&name), addr(&name)]);
    row.note("pivot_root", word(&pivoted));
    if pivoted.is_ok() {
        row.merge(targets.look_at(&targets.workspace, Path::new("/")));
        let here = text(".");
        row.note("umount2", word(&sys(libc::SYS_umount2, &[addr(&here), 2])));
        row.merge(targets.look_at(&targets.workspace, Path::new("/")));
    }
    row
}

fn chroot(path: &Path) -> Result<u64, Errno> {
    let name = text(path);
    sys(libc::SYS_chroot, &[addr(&name)])
}

/// Leaves a chroot by a working directory outside of it.
fn chroot_dotdot(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    let below = scratch.dir("below");
    row.note("chroot", word(&chroot(&below)));
    for _ in 0..64 {
        if std::env::set_current_dir("..").is_err() {
            break;
        }
    }
    row.note("chroot", word(&chroot(Path::new("."))));
    row.merge(targets.look());
    row
}

fn chroot_fd(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    let slash = text("/");
    let opened = sys(
        libc::SYS_openat,
        &[
            at_cwd(),
            addr(&slash),
            int(libc::O_RDONLY | libc::O_DIRECTORY),
        ],
    );
    row.note("open", word(&opened));
    row.note("chroot", word(&chroot(&scratch.dir("below"))));
    if let Ok(fd) = opened {
        row.note("fchdir", word(&sys(libc::SYS_fchdir, &[fd])));
        for _ in 0..64 {
            if std::env::set_current_dir("..").is_err() {
                break;
            }
        }
    }
    let relative = |path: &PathBuf| PathBuf::from(".").join(path.strip_prefix("/").unwrap_or(path));
    let shifted = Targets {
        secrets: targets.secrets.iter().map(relative).collect(),
        read_only: targets.read_only.iter().map(relative).collect(),
        ..targets.clone()
    };
    row.merge(shifted.look_at(Path::new("."), Path::new(".")));
    row
}

fn io(result: Result<(), std::io::Error>) -> String {
    word(&result.map_err(Errno::from))
}

fn hard_link(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for (index, path) in targets.read_only.iter().chain(&targets.secrets).enumerate() {
        let alias = scratch.path(&format!("hard{index}"));
        row.note("link", io(fs::hard_link(path, &alias)));
        row.merge(targets.look_at(path, &alias));
    }
    row
}

fn symbolic_link(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for (index, path) in targets.read_only.iter().chain(&targets.secrets).enumerate() {
        let alias = scratch.path(&format!("soft{index}"));
        row.note("symlink", io(symlink(path, &alias)));
        row.merge(targets.look_at(path, &alias));
    }
    row
}

fn exchange(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    let mine = scratch.path("mine");
    row.note("create", io(fs::write(&mine, "x")));
    for path in &targets.read_only {
        let (from, to) = (text(&mine), text(path));
        let swapped = sys(
            libc::SYS_renameat2,
            &[at_cwd(), addr(&from), at_cwd(), addr(&to), 2],
        );
        row.note("renameat2", word(&swapped));
        if swapped.is_ok() {
            "WRITTEN".clone_into(&mut row.write);
        }
    }
    row
}

fn rename_over(targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for path in &targets.read_only {
        let away = scratch.path("away");
        let moved = fs::rename(path, &away);
        if moved.is_ok() {
            "WRITTEN".clone_into(&mut row.write);
            let _put_back = fs::rename(&away, path);
        }
        row.note("rename", io(moved));
    }
    row
}

fn change_mode(targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for path in &targets.read_only {
        let name = text(path);
        row.note("chmod", word(&sys(libc::SYS_chmod, &[addr(&name), 0o666])));
        row.note("chown", word(&sys(libc::SYS_lchown, &[addr(&name), 0, 0])));
        row.note(
            "truncate",
            word(&sys(libc::SYS_truncate, &[addr(&name), 1 << 20])),
        );
    }
    if row.steps.iter().any(|step| step.ends_with(":ok")) {
        "WRITTEN".clone_into(&mut row.write);
    }
    row
}
