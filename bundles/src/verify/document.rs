//! The three documents as the verifier reads them: every key known, none left over.

use std::collections::BTreeMap;

use casemate_guard_plan::{GuardTier, Landlock};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::rule::{Rule, Violation, broken};
use super::scan;
use crate::explain::{OciMount, StageText};
use crate::text::Text;
use crate::{Bundle, Digest};

/// Largest document that is read, in bytes.
const MAX_BYTES: usize = 8 << 20;

/// The parsed documents.
#[derive(Debug)]
pub(super) struct Documents<'a> {
    pub(super) config: Config<'a>,
    pub(super) guard: Guard<'a>,
    pub(super) stage: StageText<'a>,
}

impl<'a> Documents<'a> {
    pub(super) fn parse(bundle: &'a Bundle) -> Result<Self, Violation> {
        Ok(Self {
            config: read("config.json", &bundle.config)?,
            guard: read("guard.json", &bundle.guard)?,
            stage: read("stage.json", &bundle.stage)?,
        })
    }
}

fn read<'de, T: Deserialize<'de>>(name: &str, bytes: &'de [u8]) -> Result<T, Violation> {
    if bytes.len() > MAX_BYTES {
        return Err(broken(Rule::Document, format!("{name} is too large")));
    }
    if let Some(fault) = scan::fault(bytes) {
        return Err(broken(Rule::Document, format!("{name}: {fault}")));
    }
    let refused =
        |error: &dyn std::error::Error| broken(Rule::Document, format!("{name}: {error}"));
    // Once for the whole: otherwise the parser does it for each text.
    let text = std::str::from_utf8(bytes).map_err(|error| refused(&error))?;
    serde_json::from_str(text).map_err(|error| refused(&error))
}

/// Checks the bundle's digest: over each document, preceded by its length in eight bytes.
pub(super) fn seal(bundle: &Bundle) -> Result<Digest, Violation> {
    let length = |document: &[u8]| (document.len() as u64).to_be_bytes();
    let digest = Digest::of_parts(&[
        &length(&bundle.config),
        &bundle.config,
        &length(&bundle.guard),
        &bundle.guard,
        &length(&bundle.stage),
        &bundle.stage,
    ]);
    if digest != bundle.digest {
        return Err(broken(
            Rule::BundleDigest,
            format!(
                "the documents have {digest}, the bundle says {}",
                bundle.digest
            ),
        ));
    }
    Ok(digest)
}

/// `guard.json` (see [`GuardPlan`](casemate_guard_plan::GuardPlan)).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(super) struct Guard<'a> {
    pub(super) capabilities: Vec<Text<'a>>,
    pub(super) cwd: Text<'a>,
    pub(super) gid: u32,
    pub(super) landlock: Option<Landlock>,
    pub(super) namespace_ceilings: bool,
    pub(super) no_new_privs: bool,
    pub(super) seccomp: Program<'a>,
    pub(super) tier: GuardTier,
    pub(super) uid: u32,
    pub(super) version: u32,
}

/// The payload's seccomp program.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(super) struct Program<'a> {
    pub(super) arch: Text<'a>,
    pub(super) program: Vec<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    bound(deserialize = "'de: 'a")
)]
pub(super) struct Config<'a> {
    pub(super) annotations: BTreeMap<Text<'a>, Text<'a>>,
    pub(super) hostname: Text<'a>,
    #[serde(default)]
    pub(super) hooks: Option<IgnoredAny>,
    pub(super) linux: Linux<'a>,
    pub(super) mounts: Vec<OciMount<'a>>,
    pub(super) oci_version: Text<'a>,
    pub(super) process: Process<'a>,
    pub(super) root: Root<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(super) struct Root<'a> {
    pub(super) path: Text<'a>,
    pub(super) readonly: bool,
}

#[derive(Debug, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    bound(deserialize = "'de: 'a")
)]
pub(super) struct Process<'a> {
    pub(super) args: Vec<Text<'a>>,
    pub(super) capabilities: Capabilities<'a>,
    pub(super) cwd: Text<'a>,
    pub(super) env: Vec<Text<'a>>,
    #[serde(default)]
    pub(super) no_new_privileges: Option<bool>,
    pub(super) rlimits: Vec<Rlimit<'a>>,
    pub(super) terminal: bool,
    pub(super) user: User,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(super) struct Capabilities<'a> {
    pub(super) ambient: Vec<Text<'a>>,
    pub(super) bounding: Vec<Text<'a>>,
    pub(super) effective: Vec<Text<'a>>,
    pub(super) inheritable: Vec<Text<'a>>,
    pub(super) permitted: Vec<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(super) struct Rlimit<'a> {
    pub(super) hard: u64,
    pub(super) soft: u64,
    #[serde(rename = "type")]
    pub(super) kind: Text<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct User {
    pub(super) additional_gids: Vec<u32>,
    pub(super) gid: u32,
    pub(super) uid: u32,
}

#[derive(Debug, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    bound(deserialize = "'de: 'a")
)]
pub(super) struct Linux<'a> {
    pub(super) cgroups_path: Text<'a>,
    pub(super) gid_mappings: Vec<IdMapping>,
    pub(super) masked_paths: Vec<Text<'a>>,
    pub(super) namespaces: Vec<Namespace<'a>>,
    pub(super) readonly_paths: Vec<Text<'a>>,
    pub(super) resources: Resources<'a>,
    pub(super) rootfs_propagation: Text<'a>,
    pub(super) seccomp: Seccomp<'a>,
    pub(super) uid_mappings: Vec<IdMapping>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(super) struct Namespace<'a> {
    #[serde(rename = "type")]
    pub(super) kind: Text<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IdMapping {
    #[serde(rename = "containerID")]
    pub(super) container: u32,
    #[serde(rename = "hostID")]
    pub(super) host: u32,
    pub(super) size: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(super) struct Resources<'a> {
    #[serde(default)]
    pub(super) cpu: Option<Cpu>,
    pub(super) devices: Vec<DeviceRule<'a>>,
    #[serde(default)]
    pub(super) memory: Option<Memory>,
    #[serde(default)]
    pub(super) pids: Option<Pids>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cpu {
    pub(super) period: u64,
    pub(super) quota: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Memory {
    pub(super) limit: u64,
    pub(super) swap: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pids {
    pub(super) limit: u64,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(super) struct DeviceRule<'a> {
    pub(super) access: Text<'a>,
    pub(super) allow: bool,
    #[serde(default)]
    pub(super) major: Option<u32>,
    #[serde(default)]
    pub(super) minor: Option<u32>,
    #[serde(rename = "type", default)]
    pub(super) kind: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    bound(deserialize = "'de: 'a")
)]
pub(super) struct Seccomp<'a> {
    pub(super) architectures: Vec<Text<'a>>,
    pub(super) default_action: Text<'a>,
    pub(super) syscalls: Vec<SeccompRule<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    bound(deserialize = "'de: 'a")
)]
pub(super) struct SeccompRule<'a> {
    pub(super) action: Text<'a>,
    pub(super) errno_ret: u32,
    pub(super) names: Vec<Text<'a>>,
}
