//! Ways out of a view. Each is tried in a child of its own, from three footings: as the payload
//! is, in a user namespace of its own, and in a user and a mount namespace of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::attempt::{Row, Targets};
use crate::child;
use crate::raw::{Errno, addr, sys, text, word};

mod handles;
mod kernel;
mod mount;
mod mount_api;
mod process;
mod root;
mod terminal;

/// How long one technique may take.
const PATIENCE_MS: u32 = 20_000;

/// A technique: gets the targets and an empty directory of its own.
pub(crate) type Technique = fn(&Targets, &Scratch) -> Row;

/// An empty directory that a technique may use.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    fn create(name: &str) -> Result<Self, Errno> {
        let path = PathBuf::from("/tmp/.probe").join(name.replace('/', "-"));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// Makes a directory in it; the attempt itself shows it when that fails.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        let _shown_by_the_attempt = fs::create_dir_all(&path);
        path
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

#[derive(Debug, Clone, Copy)]
enum Footing {
    Direct,
    User,
    UserMount,
}

impl Footing {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Direct, ""),
        (Self::User, "userns/"),
        (Self::UserMount, "userns+mntns/"),
    ];

    fn take(self) -> Result<(), String> {
        match self {
            Self::Direct => Ok(()),
            Self::User => new_user_namespace(0),
            Self::UserMount => new_user_namespace(0x2_0000),
        }
    }
}

/// Tries everything and returns one row for each technique and footing.
pub(crate) fn sweep(targets: &Targets) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for (footing, prefix) in Footing::ALL {
        for (name, technique) in mount::ALL.iter().chain(mount_api::ALL).chain(root::ALL) {
            let name = format!("{prefix}{name}");
            rows.insert(name.clone(), attempt(&name, footing, *technique, targets));
        }
    }
    for (name, technique) in process::ALL
        .iter()
        .chain(handles::ALL)
        .chain(kernel::ALL)
        .chain(terminal::ALL)
    {
        rows.insert(
            (*name).to_owned(),
            attempt(name, Footing::Direct, *technique, targets),
        );
    }
    let _best_effort = fs::remove_dir_all("/tmp/.probe");
    rows
}

fn attempt(name: &str, footing: Footing, technique: Technique, targets: &Targets) -> Row {
    let ended = child::run(PATIENCE_MS, || {
        let row = match (Scratch::create(name), footing.take()) {
            (Err(errno), _) => Row::step("scratch", errno.name()),
            (_, Err(why)) => Row::step("footing", why),
            (Ok(scratch), Ok(())) => {
                if matches!(footing, Footing::Direct) {
                    // Keeps this technique's mounts from the next one where that is allowed.
                    let _shown_by_nothing = sys(libc::SYS_unshare, &[0x2_0000]);
                }
                technique(targets, &scratch)
            }
        };
        serde_json::to_string(&row).unwrap_or_default()
    });
    let word = ended.word();
    serde_json::from_str(&word).unwrap_or_else(|_| Row::step("died", word))
}

/// Enters a user namespace that maps the caller's ids to 0, and those of `extra` with it.
fn new_user_namespace(extra: u64) -> Result<(), String> {
    let uid = sys(libc::SYS_getuid, &[]).unwrap_or(0);
    let gid = sys(libc::SYS_getgid, &[]).unwrap_or(0);
    let made = sys(libc::SYS_unshare, &[0x1000_0000 | extra]);
    if made.is_err() {
        return Err(word(&made));
    }
    for (file, line) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {uid} 1")),
        ("gid_map", format!("0 {gid} 1")),
    ] {
        fs::write(format!("/proc/self/{file}"), line)
            .map_err(|error| format!("{file}:{}", Errno::from(error).name()))?;
    }
    Ok(())
}

/// `mount(2)`.
fn mount(
    source: &str,
    target: &std::path::Path,
    kind: &str,
    flags: u64,
    data: &str,
) -> Result<u64, Errno> {
    let (source, target, kind, data) = (text(source), text(target), text(kind), text(data));
    sys(
        libc::SYS_mount,
        &[
            addr(&source),
            addr(&target),
            addr(&kind),
            flags,
            addr(&data),
        ],
    )
}
