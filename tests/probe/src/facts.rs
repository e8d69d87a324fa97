//! What a process can see of itself and of its namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::mounts::{self, Mount};
use crate::raw::{Errno, addr, at_cwd, int, sys, text, word};

const NS_GET_USERNS: u64 = 0xb701;
const NS_GET_PARENT: u64 = 0xb702;
const NS_GET_OWNER_UID: u64 = 0xb704;

/// Facts that are equal under every runtime that keeps the bundle's promise.
#[derive(Debug, Serialize)]
pub(crate) struct Facts {
    capabilities: BTreeMap<String, String>,
    no_new_privs: String,
    seccomp: String,
    ids: BTreeMap<String, String>,
    uid_map: Vec<String>,
    gid_map: Vec<String>,
    setgroups: String,
    namespaces: BTreeMap<String, Namespace>,
    ceilings: BTreeMap<String, String>,
    mounts: Vec<Mount>,
    fds: BTreeMap<String, String>,
    processes: Vec<String>,
    environment: Vec<String>,
    cwd: String,
    hostname: String,
    dev: Vec<String>,
    root: Vec<String>,
    rlimits: Vec<String>,
    keyring: String,
}

/// Facts that may differ: between two runs, and between two runtimes.
#[derive(Debug, Serialize)]
pub(crate) struct Varying {
    pids: Vec<u32>,
    mount_ids: Vec<String>,
    cgroup_path: Vec<String>,
    start_time: String,
    session_id: u64,
}

/// Who owns a namespace, seen through `ioctl_nsfs(2)`.
#[derive(Debug, Serialize)]
struct Namespace {
    /// `own` where the caller's user namespace owns it, else the errno: EPERM for an outer owner.
    owner: String,
    /// Of hierarchical ones: `ok` or the errno.
    parent: String,
    /// Of user namespaces: the owner's uid as seen here.
    owner_uid: String,
}

/// Collects both kinds of facts.
pub(crate) fn collect() -> (Facts, Varying) {
    let status = status_lines();
    let of = |key: &str| status.get(key).cloned().unwrap_or_default();
    let (mounts, mount_ids) = mounts::describe();
    let pids = pids();
    let facts = Facts {
        capabilities: ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
            .map(|set| (set.to_owned(), of(set)))
            .into(),
        no_new_privs: of("NoNewPrivs"),
        seccomp: of("Seccomp"),
        ids: ["Uid", "Gid", "Groups"]
            .map(|key| (key.to_owned(), of(key)))
            .into(),
        uid_map: map_lines("/proc/self/uid_map"),
        gid_map: map_lines("/proc/self/gid_map"),
        setgroups: first_line("/proc/self/setgroups"),
        namespaces: namespaces(),
        ceilings: [
            "max_user_namespaces",
            "max_mnt_namespaces",
            "max_net_namespaces",
        ]
        .map(|name| {
            (
                name.to_owned(),
                first_line(&format!("/proc/sys/user/{name}")),
            )
        })
        .into(),
        mounts,
        fds: fds(),
        processes: pids
            .iter()
            .map(|pid| first_line(&format!("/proc/{pid}/comm")))
            .collect(),
        environment: std::env::vars_os()
            .map(|(name, _)| name.to_string_lossy().into_owned())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect(),
        cwd: std::env::current_dir()
            .map_or_else(|error| error.to_string(), |path| path.display().to_string()),
        hostname: first_line("/proc/sys/kernel/hostname"),
        dev: names("/dev"),
        root: names("/"),
        rlimits: lines("/proc/self/limits"),
        keyring: word(&sys(libc::SYS_keyctl, &[0, int(-3), 0])),
    };
    let varying = Varying {
        pids,
        mount_ids,
        cgroup_path: lines("/proc/self/cgroup"),
        start_time: start_time(),
        session_id: sys(libc::SYS_getsid, &[0]).unwrap_or(0),
    };
    (facts, varying)
}

/// Lines of `/proc/self/status` by key.
pub(crate) fn status_lines() -> BTreeMap<String, String> {
    lines("/proc/self/status")
        .iter()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| {
            (
                key.to_owned(),
                value.split_whitespace().collect::<Vec<_>>().join(" "),
            )
        })
        .collect()
}

/// The ids of all visible processes, ascending.
pub(crate) fn pids() -> Vec<u32> {
    let mut pids: Vec<u32> = names("/proc")
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    pids.sort_unstable();
    pids
}

/// The names in a directory, sorted; a single element with the errno where it cannot be read.
pub(crate) fn names(path: &str) -> Vec<String> {
    match fs::read_dir(path) {
        Ok(entries) => entries
            .filter_map(Result::ok)
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect(),
        Err(error) => vec![Errno::from(error).name()],
    }
}

fn lines(path: &str) -> Vec<String> {
    match fs::read_to_string(path) {
        Ok(text) => text.lines().map(ToOwned::to_owned).collect(),
        Err(error) => vec![Errno::from(error).name()],
    }
}

fn map_lines(path: &str) -> Vec<String> {
    lines(path)
        .iter()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// First line of a small file, or the errno's name.
pub(crate) fn first_line(path: &str) -> String {
    lines(path).into_iter().next().unwrap_or_default()
}

fn start_time() -> String {
    let stat = first_line("/proc/self/stat");
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name
        .split_whitespace()
        .nth(19)
        .unwrap_or_default()
        .to_owned()
}

fn fds() -> BTreeMap<String, String> {
    let mut open = BTreeMap::new();
    for name in names("/proc/self/fd") {
        // The directory that is being listed is gone by now.
        if let Ok(target) = fs::read_link(format!("/proc/self/fd/{name}")) {
            open.insert(name, kind(&target));
        }
    }
    open
}

/// A descriptor's target without numbers that differ between runs.
fn kind(target: &Path) -> String {
    let target = target.display().to_string();
    match target.split_once(":[") {
        Some((kind, _)) => kind.to_owned(),
        None => target,
    }
}

fn namespaces() -> BTreeMap<String, Namespace> {
    names("/proc/self/ns")
        .into_iter()
        .map(|name| (name.clone(), namespace(&name)))
        .collect()
}

fn namespace(name: &str) -> Namespace {
    let path = text(format!("/proc/self/ns/{name}"));
    let opened = sys(
        libc::SYS_openat,
        &[at_cwd(), addr(&path), int(libc::O_RDONLY)],
    );
    let Ok(fd) = opened else {
        let failed = word(&opened);
        return Namespace {
            owner: failed.clone(),
            parent: failed.clone(),
            owner_uid: failed,
        };
    };
    let mut uid = u32::MAX;
    let owner_uid = sys(
        libc::SYS_ioctl,
        &[fd, NS_GET_OWNER_UID, crate::raw::ptr_mut(&mut uid)],
    );
    let described = Namespace {
        owner: owner(fd),
        parent: word(&sys(libc::SYS_ioctl, &[fd, NS_GET_PARENT])),
        owner_uid: owner_uid.map_or_else(Errno::name, |_| uid.to_string()),
    };
    let _closed = sys(libc::SYS_close, &[fd]);
    described
}

fn owner(fd: u64) -> String {
    match sys(libc::SYS_ioctl, &[fd, NS_GET_USERNS]) {
        Ok(owner) => {
            let own = fs::read_link("/proc/self/ns/user");
            let found = fs::read_link(format!("/proc/self/fd/{owner}"));
            let _closed = sys(libc::SYS_close, &[owner]);
            let same = matches!((own, found), (Ok(own), Ok(found)) if own == found);
            if same {
                "own".to_owned()
            } else {
                "other".to_owned()
            }
        }
        Err(errno) => errno.name(),
    }
}
