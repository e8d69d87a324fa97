//! Which bundles are run: ours, whose guard init brings the guards that libcontainer lacks.

use std::path::Path;

use casemate_guard_plan::INIT_PATH;
use oci_spec::runtime::{LinuxIdMapping, LinuxNamespaceType, Spec};

/// Why a bundle is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    /// It does not parse.
    #[error("config.json cannot be read")]
    Read(#[source] Box<oci_spec::OciSpecError>),
    /// A bundle of somebody else: its seccomp profile would be ignored.
    #[error("process.args does not begin with {INIT_PATH}")]
    ForeignInit,
    /// Without the five sets libcontainer leaves every capability.
    #[error("process.capabilities is absent")]
    Capabilities,
    /// It would run as a user of the host.
    #[error("there is no user namespace of its own")]
    UserNamespace,
    /// Host root would be inside (CVE class of `core_pattern`).
    #[error("host id 0 is mapped")]
    HostRoot,
    /// libcontainer runs newuidmap for these and ignores its failure.
    #[error("more or less than one extent of ids is mapped")]
    Extents,
    /// A relative one needs systemd.
    #[error("linux.cgroupsPath is not absolute")]
    CgroupsPath,
    /// Hooks run on the host.
    #[error("there are hooks")]
    Hooks,
}

/// Checks the bundle in a directory.
pub(crate) fn check(bundle: &Path) -> Result<(), BundleError> {
    let spec = Spec::load(bundle.join(casemate_bundles::file::CONFIG))
        .map_err(|error| BundleError::Read(Box::new(error)))?;
    let process = spec.process().as_ref().ok_or(BundleError::ForeignInit)?;
    let first = process.args().as_ref().and_then(|args| args.first());
    if first.map(String::as_str) != Some(INIT_PATH) {
        return Err(BundleError::ForeignInit);
    }
    if process.capabilities().is_none() {
        return Err(BundleError::Capabilities);
    }
    if spec.hooks().is_some() {
        return Err(BundleError::Hooks);
    }
    let linux = spec.linux().as_ref().ok_or(BundleError::UserNamespace)?;
    let own =
        linux.namespaces().iter().flatten().any(|namespace| {
            namespace.typ() == LinuxNamespaceType::User && namespace.path().is_none()
        });
    if !own {
        return Err(BundleError::UserNamespace);
    }
    for mappings in [linux.uid_mappings(), linux.gid_mappings()] {
        check_mappings(mappings.as_deref().unwrap_or_default())?;
    }
    match linux.cgroups_path() {
        Some(path) if path.is_absolute() => Ok(()),
        Some(_) | None => Err(BundleError::CgroupsPath),
    }
}

fn check_mappings(mappings: &[LinuxIdMapping]) -> Result<(), BundleError> {
    match mappings {
        [one] if one.host_id() == 0 => Err(BundleError::HostRoot),
        [_one] => Ok(()),
        [] | [_, _, ..] => Err(BundleError::Extents),
    }
}
