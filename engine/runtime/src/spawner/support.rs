//! What the host supports, found by trying.

use std::path::Path;

use casemate_bundles::{Arch, HostSupport};
use casemate_sys::{Result, landlock, probe};

use crate::keeper::groups::Parents;

/// Tries everything that a sandbox needs. `scratch` is a directory of the engine's own, `first` the
/// first id of a slice.
pub(crate) fn probe(scratch: &Path, first: u32, parents: &Parents) -> HostSupport {
    HostSupport {
        arch: Arch::X86_64,
        landlock_abi: match landlock::abi() {
            Ok(abi) => abi,
            Err(error) => {
                tracing::warn!(%error, "no Landlock");
                0
            }
        },
        limits: parents.support(),
        user_namespaces: works("userns", probe::user_namespace(first)),
        id_mapped_mounts: works("idmap", probe::id_mapped_mount(scratch, first)),
        overlay: works("overlay", probe::overlay(scratch, first)),
        seccomp: works("seccomp", probe::seccomp_filter()),
        openat2: works("openat2", probe::beneath()),
        cgroup_kill: works("cgroup.kill", parents.try_kill()),
        fuse: probe::device(Path::new("/dev/fuse"), 10, 229),
        tun: probe::device(Path::new("/dev/net/tun"), 10, 200),
        nofile: probe::open_files(),
    }
}

fn works(component: &str, tried: Result<()>) -> bool {
    match tried {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(component, %error, "the host lacks a component");
            false
        }
    }
}
