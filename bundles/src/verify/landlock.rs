//! The Landlock ruleset: which rights below which path, by class.

use std::collections::BTreeMap;

use casemate_guard_plan::{FsRight, Landlock, LandlockScope};

use super::facts::{Class, Facts};
use super::rule::{Rule, Violation, broken, require};

/// Rights as bits (`LANDLOCK_ACCESS_FS_*`).
mod bits {
    pub(super) const EXECUTE: u64 = 1;
    pub(super) const WRITE_FILE: u64 = 1 << 1;
    pub(super) const READ_FILE: u64 = 1 << 2;
    pub(super) const READ_DIR: u64 = 1 << 3;
    pub(super) const REFER: u64 = 1 << 13;
    pub(super) const TRUNCATE: u64 = 1 << 14;
    pub(super) const IOCTL_DEV: u64 = 1 << 15;
    pub(super) const ALL: u64 = (1 << 16) - 1;
    /// Reading and listing.
    pub(super) const READ: u64 = READ_FILE | READ_DIR;
    /// What is there may be used, nothing can be made.
    pub(super) const USE: u64 = READ | WRITE_FILE | TRUNCATE | IOCTL_DEV;
}

pub(super) fn check(found: Option<&Landlock>, facts: &Facts<'_>) -> Result<(), Violation> {
    let abi = facts.host.landlock_abi;
    let scoped = facts.host_network && abi >= 6;
    let fs = !matches!(facts.class, Class::AdminNesting) && abi >= 3;
    let Some(found) = found else {
        return require(!scoped && !fs, Rule::GuardLandlock, || {
            "there is no ruleset".to_owned()
        });
    };
    require(scoped || fs, Rule::GuardLandlock, || {
        "there is a ruleset that the host cannot load".to_owned()
    })?;
    let scopes: &[LandlockScope] = if scoped {
        &[LandlockScope::AbstractUnixSocket]
    } else {
        &[]
    };
    require(
        found.scoped == scopes && found.handled_net.is_empty(),
        Rule::GuardLandlock,
        || format!("scopes are {:?}", found.scoped),
    )?;
    let handled = match (fs, abi) {
        (false, _) => 0,
        (true, 3 | 4) => bits::ALL & !bits::IOCTL_DEV,
        (true, _) => bits::ALL,
    };
    require(
        mask(&found.handled_fs) == handled,
        Rule::GuardLandlock,
        || format!("handled are {:?}", found.handled_fs),
    )?;
    rules(found, handled, facts)
}

fn rules(found: &Landlock, handled: u64, facts: &Facts<'_>) -> Result<(), Violation> {
    let mut expected = if handled == 0 {
        BTreeMap::new()
    } else if let Some(run) = facts.run {
        of_run(run.output)
    } else {
        of_workspace(facts)
    };
    for rule in &found.rules {
        let Some((rights, optional)) = expected.remove(&rule.path) else {
            return Err(broken(
                Rule::GuardLandlock,
                format!("there is a rule for {}", rule.path),
            ));
        };
        require(
            mask(&rule.allow) == rights & handled && rule.optional == optional,
            Rule::GuardLandlock,
            || format!("the rule for {} allows {:?}", rule.path, rule.allow),
        )?;
    }
    match expected.keys().next() {
        Some(path) => Err(broken(
            Rule::GuardLandlock,
            format!("there is no rule for {path}"),
        )),
        None => Ok(()),
    }
}

/// Rights and whether the path may be absent, by path.
type Expected = BTreeMap<String, (u64, bool)>;

/// A command run reads everything of its view, executes what is installed or given, and writes
/// scratch, output and shared memory.
fn of_run(output: bool) -> Expected {
    let data = bits::ALL & !bits::EXECUTE;
    let mut expected = Expected::from([
        ("/".to_owned(), (bits::READ, false)),
        ("/dev".to_owned(), (bits::USE, false)),
        ("/dev/mqueue".to_owned(), (data, false)),
        ("/dev/shm".to_owned(), (data, false)),
        ("/tmp".to_owned(), (data, false)),
    ]);
    if output {
        expected.insert("/output".to_owned(), (data, false));
    }
    for programs in [
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/runtime",
        "/workspace",
    ] {
        expected.insert(programs.to_owned(), (bits::READ | bits::EXECUTE, true));
    }
    expected
}

/// A workspace's sandbox reads and executes all of its view and writes the layer of its root, the
/// own home and, where it is a terminal, the own tile.
fn of_workspace(facts: &Facts<'_>) -> Expected {
    let mut expected = Expected::from([
        (
            "/".to_owned(),
            (bits::READ | bits::EXECUTE | bits::REFER, false),
        ),
        ("/proc".to_owned(), (bits::USE, false)),
    ]);
    let Some(view) = facts.workspace else {
        return expected;
    };
    let root = view.root.as_str();
    // A system cannot do without the first; the others are writable unless the workspace is there.
    for path in [
        "/bin", "/dev", "/etc", "/lib", "/lib64", "/run", "/sbin", "/tmp", "/usr", "/var",
    ] {
        expected.insert(path.to_owned(), (bits::ALL, true));
    }
    for path in [
        "/boot", "/home", "/lib32", "/libx32", "/media", "/mnt", "/opt", "/root", "/srv",
    ] {
        if root != path && !root.starts_with(&format!("{path}/")) {
            expected.insert(path.to_owned(), (bits::ALL, true));
        }
    }
    if facts.tile_writable() {
        expected.insert(format!("{root}/{}", view.own.id), (bits::ALL, false));
    }
    if let Some(home) = &view.home {
        expected.insert(format!("{root}/homes/{}", home.id), (bits::ALL, false));
    }
    expected
}

fn mask(rights: &[FsRight]) -> u64 {
    rights.iter().fold(0, |mask, right| mask | right.bit())
}
