//! The rules that a bundle has to obey.

use std::fmt;

/// A bundle that does not obey its plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bundle breaks the rule {rule}: {detail}")]
pub struct Violation {
    /// Which rule.
    pub rule: Rule,
    /// What was found where.
    pub detail: String,
}

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// A rule; printed by its name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $($(#[$doc])* $name,)*
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }

        impl fmt::Display for Rule {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)*
                })
            }
        }
    };
}

rules! {
    /// The documents are canonical JSON of the known shape; no unknown key.
    Document => "document",
    /// The digest covers the three documents.
    BundleDigest => "bundle-digest",
    /// `ociVersion` is the one this build writes.
    OciVersion => "oci-version",
    /// `root` is the overlay's mount point.
    Root => "root",
    /// Mount targets are absolute, unique and have ancestors first.
    MountOrder => "mount-order",
    /// The set of mount targets is what the plan allows.
    MountTarget => "mount-target",
    /// Each mount's source is what the plan names.
    MountSource => "mount-source",
    /// Each mount's type is what the target needs.
    MountType => "mount-type",
    /// Each mount's options: `nosuid`, `nodev`, recursive read-only where it is not writable.
    MountFlag => "mount-flag",
    /// Root and mounts take nothing from and give nothing to the host.
    Propagation => "propagation",
    /// `process.args[0]` is the guard init; the rest is the plan's argv.
    InitArgument => "init-argument",
    /// The payload's argv is the plan's.
    Argv => "argv",
    /// Working directory of the init and of the payload.
    Cwd => "cwd",
    /// The environment is the fixed one and what the plan adds.
    Environment => "environment",
    /// User and group of the init.
    User => "user",
    /// Bounding set of the init.
    CapabilityBounding => "capability-bounding",
    /// Effective set of the init.
    CapabilityEffective => "capability-effective",
    /// Permitted set of the init.
    CapabilityPermitted => "capability-permitted",
    /// Inheritable set is empty.
    CapabilityInheritable => "capability-inheritable",
    /// Ambient set is empty.
    CapabilityAmbient => "capability-ambient",
    /// One id extent, to the sandbox's slice, never to host root.
    IdMap => "id-map",
    /// The list of namespaces.
    Namespaces => "namespaces",
    /// `cgroupsPath` is the placement's.
    CgroupsPath => "cgroups-path",
    /// Limits are the plan's.
    Resources => "resources",
    /// Device rules are deny-all and the tier's list.
    Devices => "devices",
    /// Resource limits by `setrlimit`.
    Rlimits => "rlimits",
    /// Masked and read-only kernel files.
    MaskedPaths => "masked-paths",
    /// The outer seccomp profile.
    OuterSeccomp => "outer-seccomp",
    /// `noNewPrivileges` is the init's affair.
    NoNewPrivileges => "no-new-privileges",
    /// No hooks.
    Hooks => "hooks",
    /// Annotations describe the plan and the guard plan.
    Annotations => "annotations",
    /// Host name of the sandbox.
    Hostname => "hostname",
    /// A terminal exactly where the plan has one.
    Terminal => "terminal",
    /// Tier of the guard plan.
    GuardTier => "guard-tier",
    /// The payload's ids.
    GuardIds => "guard-ids",
    /// The payload's capabilities.
    GuardCapabilities => "guard-capabilities",
    /// Ceilings of namespaces.
    GuardCeilings => "guard-ceilings",
    /// The payload's `no_new_privs`.
    GuardNoNewPrivs => "guard-no-new-privs",
    /// The payload's Landlock ruleset.
    GuardLandlock => "guard-landlock",
    /// The payload's seccomp program, evaluated number by number.
    SeccompProgram => "seccomp-program",
    /// Steps of the stage plan: targets below the stage, owners, modes.
    StageStep => "stage-step",
    /// Sources of the stage plan are the plan's.
    StageSource => "stage-source",
    /// Maps of ID-mapped mounts.
    StageIdMap => "stage-id-map",
    /// The root overlay.
    StageOverlay => "stage-overlay",
    /// Nothing secret can be reached.
    SecretPath => "secret-path",
    /// Everything that can be written is in the plan's writable set.
    WritableSet => "writable-set",
    /// The enforcement report lists what the host lacks.
    Enforcement => "enforcement",
    /// The host has what is never optional.
    HostSupport => "host-support",
}

/// Returns a violation.
pub(super) fn broken(rule: Rule, detail: impl Into<String>) -> Violation {
    Violation {
        rule,
        detail: detail.into(),
    }
}

/// Refuses what is not as it has to be.
pub(super) fn require(
    holds: bool,
    rule: Rule,
    detail: impl FnOnce() -> String,
) -> Result<(), Violation> {
    if holds {
        Ok(())
    } else {
        Err(broken(rule, detail()))
    }
}
