//! The three documents as the verifier reads them: every key known, none left over.

use std::collections::BTreeMap;

use casemate_guard_plan::GuardPlan;
use serde::Deserialize;

use super::rule::{Rule, Violation, broken};
use super::scan;
use crate::explain::OciMount;
use crate::{Bundle, Digest, StagePlan};

/// Largest document that is read, in bytes.
const MAX_BYTES: usize = 8 << 20;

/// The parsed documents.
#[derive(Debug)]
pub(super) struct Documents {
    pub(super) config: Config,
    pub(super) guard: GuardPlan,
    pub(super) stage: StagePlan,
}

impl Documents {
    pub(super) fn parse(bundle: &Bundle) -> Result<Self, Violation> {
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
    serde_json::from_slice(bytes)
        .map_err(|error| broken(Rule::Document, format!("{name}: {error}")))
}

/// Checks the bundle's digest: over each document, preceded by its length in eight bytes.
pub(super) fn seal(bundle: &Bundle) -> Result<Digest, Violation> {
    let mut sealed = Vec::new();
    for document in [&bundle.config, &bundle.guard, &bundle.stage] {
        sealed.extend((document.len() as u64).to_be_bytes());
        sealed.extend(document);
    }
    let digest = Digest::of(&sealed);
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

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Config {
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) hostname: String,
    #[serde(default)]
    pub(super) hooks: Option<serde_json::Value>,
    pub(super) linux: Linux,
    pub(super) mounts: Vec<OciMount>,
    pub(super) oci_version: String,
    pub(super) process: Process,
    pub(super) root: Root,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Root {
    pub(super) path: String,
    pub(super) readonly: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Process {
    pub(super) args: Vec<String>,
    pub(super) capabilities: Capabilities,
    pub(super) cwd: String,
    pub(super) env: Vec<String>,
    #[serde(default)]
    pub(super) no_new_privileges: Option<bool>,
    pub(super) rlimits: Vec<Rlimit>,
    pub(super) terminal: bool,
    pub(super) user: User,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Capabilities {
    pub(super) ambient: Vec<String>,
    pub(super) bounding: Vec<String>,
    pub(super) effective: Vec<String>,
    pub(super) inheritable: Vec<String>,
    pub(super) permitted: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rlimit {
    pub(super) hard: u64,
    pub(super) soft: u64,
    #[serde(rename = "type")]
    pub(super) kind: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct User {
    pub(super) additional_gids: Vec<u32>,
    pub(super) gid: u32,
    pub(super) uid: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Linux {
    pub(super) cgroups_path: String,
    pub(super) gid_mappings: Vec<IdMapping>,
    pub(super) masked_paths: Vec<String>,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) readonly_paths: Vec<String>,
    pub(super) resources: Resources,
    pub(super) rootfs_propagation: String,
    pub(super) seccomp: Seccomp,
    pub(super) uid_mappings: Vec<IdMapping>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Namespace {
    #[serde(rename = "type")]
    pub(super) kind: String,
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
#[serde(deny_unknown_fields)]
pub(super) struct Resources {
    #[serde(default)]
    pub(super) cpu: Option<Cpu>,
    pub(super) devices: Vec<DeviceRule>,
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
#[serde(deny_unknown_fields)]
pub(super) struct DeviceRule {
    pub(super) access: String,
    pub(super) allow: bool,
    #[serde(default)]
    pub(super) major: Option<u32>,
    #[serde(default)]
    pub(super) minor: Option<u32>,
    #[serde(rename = "type", default)]
    pub(super) kind: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Seccomp {
    pub(super) architectures: Vec<String>,
    pub(super) default_action: String,
    pub(super) syscalls: Vec<SeccompRule>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SeccompRule {
    pub(super) action: String,
    pub(super) errno_ret: u32,
    pub(super) names: Vec<String>,
}
