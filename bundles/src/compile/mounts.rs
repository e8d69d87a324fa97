//! The mounts of `config.json`, ancestors first.

use casemate_guard_plan::{INIT_PATH, PLAN_PATH, REPORT_PATH, RUN_DIR};
use serde::{Serialize, Serializer};

use super::config::Input;
use super::layout::{Layout, Tree};
use super::profile::{self, View};
use crate::{HostSupport, LaunchPlan, LimitSupport, Network, Placement, ProjectionKind};

/// One OCI mount; `source` is always written: libcontainer refuses a mount without.
#[derive(Debug, Serialize)]
pub(super) struct Mount<'a> {
    destination: &'a str,
    options: Options,
    source: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
}

/// Options; the size of a tmpfs comes last.
#[derive(Debug)]
struct Options {
    fixed: &'static [&'static str],
    size: Option<String>,
}

impl Serialize for Options {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.fixed.iter().copied().chain(self.size.as_deref()))
    }
}

fn mount<'a>(
    kind: &'static str,
    source: &'a str,
    destination: &'a str,
    options: &'static [&'static str],
) -> Mount<'a> {
    Mount {
        destination,
        options: Options {
            fixed: options,
            size: None,
        },
        source,
        kind,
    }
}

/// A tmpfs of a size.
fn sized(
    destination: &'static str,
    fixed: &'static [&'static str],
    size: String,
) -> Mount<'static> {
    Mount {
        destination,
        options: Options {
            fixed,
            size: Some(size),
        },
        source: "tmpfs",
        kind: "tmpfs",
    }
}

/// Returns the mounts in the order in which a runtime makes them.
pub(super) fn list<'a>(input: &Input<'a>) -> Vec<Mount<'a>> {
    let Input {
        plan,
        placement,
        host,
        layout,
        guard: _,
    } = *input;
    let mut mounts = Vec::with_capacity(16 + layout.trees.len());
    kernel(plan, &mut mounts);
    for device in &layout.devices {
        mounts.push(mount(
            "bind",
            device.node.as_str(),
            device.target,
            &["bind", "rw", "nosuid", "noexec"],
        ));
    }
    sys(host, layout, profile::network(&plan.profile), &mut mounts);
    init(placement, layout, &mut mounts);
    scratch(plan, layout, &mut mounts);
    if let Some(skeleton) = &layout.skeleton {
        mounts.push(mount(
            "bind",
            skeleton.view.as_str(),
            skeleton.workspace.as_str(),
            &["rbind", "rro", "nosuid", "nodev", "noexec"],
        ));
    }
    mounts.extend(layout.trees.iter().map(tree));
    mounts
}

fn kernel(plan: &LaunchPlan, mounts: &mut Vec<Mount<'_>>) {
    mounts.push(mount(
        "proc",
        "proc",
        "/proc",
        &["nosuid", "nodev", "noexec"],
    ));
    mounts.push(mount(
        "tmpfs",
        "tmpfs",
        "/dev",
        &["nosuid", "noexec", "mode=0755", "size=1048576"],
    ));
    mounts.push(mount(
        "devpts",
        "devpts",
        "/dev/pts",
        &[
            "nosuid",
            "noexec",
            "newinstance",
            "ptmxmode=0666",
            "mode=0620",
            "gid=5",
        ],
    ));
    let size = match profile::limits(&plan.profile) {
        Some(limits) => format!("size={}", limits.memory.get()),
        // An administrator has no limit; this is what the kernel would take by itself.
        None => "size=50%".to_owned(),
    };
    mounts.push(sized(
        "/dev/shm",
        &["nosuid", "nodev", "noexec", "mode=1777"],
        size,
    ));
    mounts.push(mount(
        "mqueue",
        "mqueue",
        "/dev/mqueue",
        &["nosuid", "nodev", "noexec"],
    ));
}

fn sys<'a>(host: &HostSupport, layout: &'a Layout, network: Network, mounts: &mut Vec<Mount<'a>>) {
    match (&layout.sys, network) {
        (Some(empty), Network::Host) => mounts.push(mount(
            "bind",
            empty.as_str(),
            "/sys",
            &["rbind", "rro", "nosuid", "nodev", "noexec"],
        )),
        (Some(_) | None, Network::None | Network::Host) => {
            mounts.push(mount(
                "sysfs",
                "sysfs",
                "/sys",
                &["nosuid", "nodev", "noexec", "ro"],
            ));
            match host.limits {
                LimitSupport::V2 => mounts.push(mount(
                    "cgroup",
                    "cgroup",
                    "/sys/fs/cgroup",
                    &["nosuid", "nodev", "noexec", "ro"],
                )),
                // A v1 hierarchy in the view has a release_agent.
                LimitSupport::V1 | LimitSupport::Missing => {}
            }
        }
    }
}

fn init<'a>(placement: &'a Placement, layout: &'a Layout, mounts: &mut Vec<Mount<'a>>) {
    mounts.push(mount(
        "tmpfs",
        "tmpfs",
        RUN_DIR,
        &["nosuid", "nodev", "noexec", "mode=0700", "size=65536"],
    ));
    mounts.push(mount(
        "bind",
        placement.init.as_str(),
        INIT_PATH,
        &["bind", "ro", "nosuid", "nodev"],
    ));
    mounts.push(mount(
        "bind",
        layout.guard.as_str(),
        PLAN_PATH,
        &["bind", "ro", "nosuid", "nodev", "noexec"],
    ));
    mounts.push(mount(
        "bind",
        layout.report.as_str(),
        REPORT_PATH,
        &["bind", "rw", "nosuid", "nodev", "noexec"],
    ));
}

fn scratch<'a>(plan: &LaunchPlan, layout: &'a Layout, mounts: &mut Vec<Mount<'a>>) {
    match profile::view(&plan.profile) {
        View::Workspace(..) => {}
        View::Process(view) => mounts.push(sized(
            "/tmp",
            &["nosuid", "nodev", "mode=1777"],
            format!("size={}", view.scratch_bytes),
        )),
    }
    if let Some(output) = &layout.output {
        mounts.push(mount(
            "bind",
            output.as_str(),
            "/output",
            &["rbind", "rw", "nosuid", "nodev"],
        ));
    }
}

fn tree(tree: &Tree) -> Mount<'_> {
    let options: &'static [&'static str] = match (tree.kind, tree.writable) {
        (ProjectionKind::Directory, true) => &["rbind", "rw", "nosuid", "nodev"],
        // `ro` alone leaves what is mounted below writable.
        (ProjectionKind::Directory, false) => &["rbind", "rro", "nosuid", "nodev"],
        (ProjectionKind::File, true) => &["bind", "rw", "nosuid", "nodev"],
        // crun fails on `rro` for a file.
        (ProjectionKind::File, false) => &["bind", "ro", "nosuid", "nodev"],
    };
    mount("bind", tree.clone.as_str(), tree.target.as_str(), options)
}
