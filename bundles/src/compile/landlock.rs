//! The Landlock ruleset of each tier (`landlock(7)`).
//!
//! Landlock is the second line: the view and its lock carry the promise, this ruleset also forbids
//! every mount and keeps a mistake in a mount flag from becoming a write.

use casemate_guard_plan::{FsRight, GuardTier, Landlock, LandlockRule, LandlockScope};

use super::profile::{self, OwnTile, View};
use crate::{LaunchPlan, Network, WorkspaceView};

/// Handles `truncate`: below it a read-only file can be emptied.
const ABI_FS: u32 = 3;
/// Handles the abstract-socket scope.
const ABI_SCOPE: u32 = 6;

const READ: [FsRight; 2] = [FsRight::ReadFile, FsRight::ReadDir];
/// `refer` has to be granted wherever a rename may start; read-only mounts still refuse it.
const READ_EXECUTE: [FsRight; 4] = [
    FsRight::Execute,
    FsRight::ReadFile,
    FsRight::ReadDir,
    FsRight::Refer,
];
const EXECUTE: [FsRight; 3] = [FsRight::Execute, FsRight::ReadFile, FsRight::ReadDir];
/// Existing devices and kernel files, nothing new.
const USE: [FsRight; 5] = [
    FsRight::WriteFile,
    FsRight::ReadFile,
    FsRight::ReadDir,
    FsRight::Truncate,
    FsRight::IoctlDev,
];

/// Directories of a base that packages, services and people write to. Those that hold the
/// workspace are taken out where nothing else needs them.
const WRITABLE: [&str; 18] = [
    "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/media",
    "/mnt", "/opt", "/root", "/run", "/sbin", "/srv", "/tmp", "/usr",
];
/// Those of them that a system cannot do without, even where the workspace lies below; its
/// read-only parts then rest on their mount flags alone.
const NEEDED: [&str; 10] = [
    "/bin", "/dev", "/etc", "/lib", "/lib64", "/run", "/sbin", "/tmp", "/usr", "/var",
];
/// Where a command run may execute from.
const PROGRAMS: [&str; 9] = [
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/runtime",
    "/sbin",
    "/usr",
    "/workspace",
];

/// Returns the Landlock ABI that the tier needs; 0 where it needs none.
pub(super) const fn needs(tier: GuardTier, network: Network) -> u32 {
    match (tier, network) {
        (_, Network::Host) => ABI_SCOPE,
        (GuardTier::AdminNesting, Network::None) => 0,
        (
            GuardTier::Admin | GuardTier::Restricted | GuardTier::Backend | GuardTier::Process,
            Network::None,
        ) => ABI_FS,
    }
}

/// Returns the ruleset; `None` where nothing is restricted or the host cannot.
pub(super) fn ruleset(plan: &LaunchPlan, abi: u32) -> Option<Landlock> {
    let scoped: Vec<LandlockScope> = match profile::network(&plan.profile) {
        // A network namespace of its own has abstract names of its own.
        Network::Host if abi >= ABI_SCOPE => vec![LandlockScope::AbstractUnixSocket],
        Network::Host | Network::None => Vec::new(),
    };
    let handled: Vec<FsRight> = match profile::tier(&plan.profile) {
        // Any handled right would forbid nested mounts.
        GuardTier::AdminNesting => Vec::new(),
        GuardTier::Admin | GuardTier::Restricted | GuardTier::Backend | GuardTier::Process => {
            handled(abi)
        }
    };
    if scoped.is_empty() && handled.is_empty() {
        return None;
    }
    let rules = if handled.is_empty() {
        Vec::new()
    } else {
        rules(plan, &handled)
    };
    Some(Landlock {
        handled_fs: handled,
        handled_net: Vec::new(),
        scoped,
        rules,
    })
}

fn handled(abi: u32) -> Vec<FsRight> {
    if abi < ABI_FS {
        return Vec::new();
    }
    FsRight::ALL
        .into_iter()
        .filter(|right| abi >= 5 || *right != FsRight::IoctlDev)
        .collect()
}

fn rules(plan: &LaunchPlan, handled: &[FsRight]) -> Vec<LandlockRule> {
    let mut rules = Rules {
        handled,
        list: Vec::new(),
    };
    match profile::view(&plan.profile) {
        View::Workspace(view, own) => rules.workspace(view, own),
        View::Process(view) => rules.process(view.output),
    }
    rules.list
}

struct Rules<'a> {
    handled: &'a [FsRight],
    list: Vec<LandlockRule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Required,
    Optional,
}

impl Rules<'_> {
    fn add(&mut self, path: impl Into<String>, rights: &[FsRight], presence: Presence) {
        self.list.push(LandlockRule {
            path: path.into(),
            allow: rights
                .iter()
                .copied()
                .filter(|right| self.handled.contains(right))
                .collect(),
            optional: presence == Presence::Optional,
        });
    }

    /// All may be read and executed: the view holds nothing else. Written may be what the base's
    /// layer holds, the own home and, in a terminal, the own tile.
    fn workspace(&mut self, view: &WorkspaceView, own: OwnTile) {
        let root = view.root.as_str();
        self.add("/", &READ_EXECUTE, Presence::Required);
        self.add("/proc", &USE, Presence::Required);
        for path in WRITABLE.into_iter().chain(["/var"]) {
            let holds = root
                .strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            if !holds || NEEDED.contains(&path) {
                self.add(path, &FsRight::ALL, Presence::Optional);
            }
        }
        match own {
            OwnTile::Writable => self.add(
                format!("{root}/{}", view.own.id),
                &FsRight::ALL,
                Presence::Required,
            ),
            OwnTile::ReadOnly => {}
        }
        if let Some(home) = &view.home {
            self.add(
                format!("{root}/homes/{}", home.id),
                &FsRight::ALL,
                Presence::Required,
            );
        }
    }

    fn process(&mut self, output: bool) {
        self.add("/", &READ, Presence::Required);
        for path in PROGRAMS {
            self.add(path, &EXECUTE, Presence::Optional);
        }
        self.add("/dev", &USE, Presence::Required);
        let data: Vec<FsRight> = FsRight::ALL
            .into_iter()
            .filter(|right| *right != FsRight::Execute)
            .collect();
        self.add("/dev/mqueue", &data, Presence::Required);
        self.add("/dev/shm", &data, Presence::Required);
        if output {
            self.add("/output", &data, Presence::Required);
        }
        self.add("/tmp", &data, Presence::Required);
    }
}
