//! The guard plan: what the guard init does to the payload after the OCI runtime has built the
//! outer stage.
//!
//! `config.json` shows the capabilities that the *init* needs; this document, bound read-only into
//! the bundle beside it, shows what the *payload* is left with. It is written by the compiler and
//! read once by the guard init.

use serde::{Deserialize, Serialize};

/// Directory inside the sandbox that holds init, plan and report until the init hides them.
pub const RUN_DIR: &str = "/run/casemate";
/// The guard init's own binary; `process.args[0]` of every bundle.
pub const INIT_PATH: &str = "/run/casemate/init";
/// Where the plan is bound.
pub const PLAN_PATH: &str = "/run/casemate/plan";
/// Where the report FIFO is bound; absent under a runtime that does not listen.
pub const REPORT_PATH: &str = "/run/casemate/report";
/// The only plan version that this build reads and writes.
pub const VERSION: u32 = 1;
/// Largest plan that the init reads, in bytes.
pub const MAX_PLAN_BYTES: usize = 256 * 1024;

/// Which set of guards a payload runs under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuardTier {
    /// Administrator's terminal whose nested mounts and namespaces work.
    AdminNesting,
    /// Administrator's terminal with the mount guard and the read guard on.
    Admin,
    /// Anybody else's terminal.
    Restricted,
    /// A tile's service.
    Backend,
    /// A command run.
    Process,
}

/// Everything the init enforces. Fields stand in the order of their keys: written as they are, the
/// text is canonical.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuardPlan {
    /// Capabilities in bounding, permitted and effective set, sorted, as `CAP_…`; inheritable and
    /// ambient are always empty (`capabilities(7)`).
    pub capabilities: Vec<String>,
    /// Absolute working directory of the payload.
    pub cwd: String,
    /// The payload's group id in the sandbox.
    pub gid: u32,
    /// The Landlock ruleset; `None` where the tier restricts nothing by it (an administrator with
    /// nesting and a network of their own) or the host lacks Landlock and the profile may go on.
    pub landlock: Option<Landlock>,
    /// Whether `user.max_user_namespaces` and `user.max_mnt_namespaces` become 0
    /// (`namespaces(7)`, `/proc/sys/user`).
    pub namespace_ceilings: bool,
    /// Whether `PR_SET_NO_NEW_PRIVS` is set.
    pub no_new_privs: bool,
    /// The seccomp program.
    pub seccomp: Seccomp,
    /// The tier; also selects nothing by itself: every consequence is written out below.
    pub tier: GuardTier,
    /// The payload's user id in the sandbox.
    pub uid: u32,
    /// Always [`VERSION`].
    pub version: u32,
}

/// A Landlock ruleset (`landlock(7)`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Landlock {
    /// Handled file-system rights; empty means that the file system is not restricted.
    pub handled_fs: Vec<FsRight>,
    /// Handled TCP rights; with no rule for them every bind or connect is denied.
    pub handled_net: Vec<NetRight>,
    /// What is allowed below which path, in order; a path that does not exist is skipped only when
    /// `optional`.
    pub rules: Vec<LandlockRule>,
    /// Scopes.
    pub scoped: Vec<LandlockScope>,
}

/// One allow rule below one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LandlockRule {
    /// Rights; directory-only rights are dropped by the init where the path is a file.
    pub allow: Vec<FsRight>,
    /// Whether an absent path is skipped instead of refused.
    pub optional: bool,
    /// Absolute path inside the sandbox.
    pub path: String,
}

/// `LANDLOCK_ACCESS_FS_*`, in bit order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the kernel's names, see landlock(7)")]
pub enum FsRight {
    Execute,
    WriteFile,
    ReadFile,
    ReadDir,
    RemoveDir,
    RemoveFile,
    MakeChar,
    MakeDir,
    MakeReg,
    MakeSock,
    MakeFifo,
    MakeBlock,
    MakeSym,
    Refer,
    Truncate,
    IoctlDev,
}

impl FsRight {
    /// Every right up to Landlock ABI 5, in bit order.
    pub const ALL: [Self; 16] = [
        Self::Execute,
        Self::WriteFile,
        Self::ReadFile,
        Self::ReadDir,
        Self::RemoveDir,
        Self::RemoveFile,
        Self::MakeChar,
        Self::MakeDir,
        Self::MakeReg,
        Self::MakeSock,
        Self::MakeFifo,
        Self::MakeBlock,
        Self::MakeSym,
        Self::Refer,
        Self::Truncate,
        Self::IoctlDev,
    ];

    /// The bit in `landlock_ruleset_attr.handled_access_fs`.
    pub const fn bit(self) -> u64 {
        1 << (self as u64)
    }

    /// Whether the kernel accepts the right on a rule for something that is not a directory.
    pub const fn applies_to_files(self) -> bool {
        matches!(
            self,
            Self::Execute | Self::WriteFile | Self::ReadFile | Self::Truncate | Self::IoctlDev
        )
    }
}

/// `LANDLOCK_ACCESS_NET_*`, in bit order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the kernel's names, see landlock(7)")]
pub enum NetRight {
    BindTcp,
    ConnectTcp,
}

impl NetRight {
    /// The bit in `landlock_ruleset_attr.handled_access_net`.
    pub const fn bit(self) -> u64 {
        1 << (self as u64)
    }
}

/// `LANDLOCK_SCOPE_*`. The signal scope is never used: it breaks kill between two shells of one
/// sandbox and adds nothing inside a pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LandlockScope {
    /// `LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET`.
    AbstractUnixSocket,
}

impl LandlockScope {
    /// The bit in `landlock_ruleset_attr.scoped`.
    pub const fn bit(self) -> u64 {
        1 << (self as u64)
    }
}

/// A classic-BPF program for `SECCOMP_SET_MODE_FILTER` (`seccomp(2)`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seccomp {
    /// The only architecture that is not killed, as `AUDIT_ARCH_X86_64` or `AUDIT_ARCH_AARCH64`.
    pub arch: String,
    /// Instructions, 16 lower-case hexadecimal digits each: code (4), jt (2), jf (2), k (8).
    pub program: Vec<String>,
}

/// A step of the init; names the failure when it cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names of the steps, in their order")]
pub enum Stage {
    Dumpable,
    Pid,
    Descriptors,
    Report,
    Plan,
    Hide,
    SpareProc,
    Propagation,
    Terminal,
    Lock,
    Maps,
    Fork,
    Keyring,
    Session,
    Cwd,
    Groups,
    Ceilings,
    Capabilities,
    NoNewPrivs,
    Landlock,
    Seccomp,
    Ids,
    CloseOnExec,
    Signals,
    Exec,
    /// `casemate-init enter` could not join the namespaces of the sandbox.
    Join,
}

/// One line on the report FIFO.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// The payload is about to be executed; every guard is on.
    Ready,
    /// A step could not be done; the init exits with 125.
    Failed {
        /// Which.
        stage: Stage,
        /// The kernel's errno; 0 where the refusal is the init's own.
        errno: i32,
        /// What it was done to: a path, a descriptor, a capability.
        subject: String,
    },
    /// The payload called `exit`.
    Exited {
        /// Its status, 0…255.
        code: u8,
    },
    /// The payload died by a signal.
    Signaled {
        /// The signal's number.
        signal: i32,
        /// Whether it dumped core.
        core: bool,
    },
}

/// Exit status of the init when a step failed.
pub const EXIT_INIT_FAILED: u8 = 125;
