//! One changed field of a golden bundle at a time: each is refused, by the rule that it breaks.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod fixtures;

use std::collections::BTreeSet;

use casemate_bundles::{Bundle, Digest, Rule, verify};
use serde_json::{Value, json};

fn fixture(name: &str) -> fixtures::Case {
    fixtures::find(name).unwrap()
}

/// Which document a mutation changes.
#[derive(Clone, Copy, PartialEq)]
enum In {
    Config,
    Guard,
    Stage,
}

type Change = fn(&mut Value);

/// Case, what is wrong, where, how, and the rule that says so.
type Mutation = (&'static str, &'static str, In, Change, Rule);

const R: &str = "terminal-restricted-none";
const P: &str = "process-none";
const A: &str = "terminal-admin-nesting-host";

fn mount<'a>(config: &'a mut Value, destination: &str) -> &'a mut Value {
    config["mounts"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .find(|mount| mount["destination"] == destination)
        .unwrap()
}

/// The first step of that action, or with that value.
fn step<'a>(stage: &'a mut Value, key: &str, value: &str) -> &'a mut Value {
    stage["steps"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .flat_map(|step| step.as_object_mut().unwrap())
        .find(|(action, step)| match key {
            "action" => *action == value,
            _ => step[key] == value,
        })
        .unwrap()
        .1
}

fn push(list: &mut Value, item: Value) {
    list.as_array_mut().unwrap().push(item);
}

fn rule<'a>(guard: &'a mut Value, path: &str) -> &'a mut Value {
    guard["landlock"]["rules"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .find(|rule| rule["path"] == path)
        .unwrap()
}

const MUTATIONS: &[Mutation] = &[
    // Mounts.
    (
        R,
        "another tile's clone at the own tile",
        In::Config,
        |c| {
            mount(c, "/srv/team/apps/notes")["source"] =
                json!("/run/casemate/k2v9c0a1b2d3/mounts/5");
        },
        Rule::StageSource,
    ),
    (
        R,
        "the workspace itself as a source",
        In::Config,
        |c| {
            mount(c, "/srv/team/apps/wiki")["source"] = json!("/srv/team");
        },
        Rule::MountSource,
    ),
    (
        R,
        "a source that is the skeleton's, for the init",
        In::Config,
        |c| {
            mount(c, "/run/casemate/init")["source"] = json!("/tmp/init");
        },
        Rule::MountSource,
    ),
    (
        R,
        "a target that nobody planned",
        In::Config,
        |c| {
            mount(c, "/srv/team/apps/wiki")["destination"] = json!("/srv/team/apps/secret");
        },
        Rule::MountTarget,
    ),
    (
        R,
        "one mount too many",
        In::Config,
        |c| {
            push(
                &mut c["mounts"],
                json!({"destination": "/host", "type": "bind", "source": "/",
            "options": ["rbind", "rro", "nosuid", "nodev"]}),
            );
        },
        Rule::MountTarget,
    ),
    (
        R,
        "a mount over the root",
        In::Config,
        |c| {
            mount(c, "/opt/sdk")["destination"] = json!("/");
        },
        Rule::MountTarget,
    ),
    (
        R,
        "a target twice",
        In::Config,
        |c| {
            let again = mount(c, "/opt/sdk").clone();
            push(&mut c["mounts"], again);
        },
        Rule::MountTarget,
    ),
    (
        R,
        "no /proc of its own",
        In::Config,
        |c| {
            c["mounts"]
                .as_array_mut()
                .unwrap()
                .retain(|mount| mount["destination"] != "/proc");
        },
        Rule::MountTarget,
    ),
    (
        R,
        "another tile writable",
        In::Config,
        |c| {
            mount(c, "/srv/team/apps/wiki")["options"] = json!(["rbind", "rw", "nosuid", "nodev"]);
        },
        Rule::MountFlag,
    ),
    (
        R,
        "ro instead of rro, which leaves sub-mounts writable",
        In::Config,
        |c| {
            mount(c, "/srv/team/apps/wiki")["options"] = json!(["rbind", "ro", "nosuid", "nodev"]);
        },
        Rule::MountFlag,
    ),
    (
        R,
        "set-user-id programs in the own tile",
        In::Config,
        |c| {
            mount(c, "/srv/team/apps/notes")["options"] = json!(["rbind", "rw", "nodev"]);
        },
        Rule::MountFlag,
    ),
    (
        R,
        "devices in the own home",
        In::Config,
        |c| {
            mount(c, "/srv/team/homes/ann")["options"] = json!(["rbind", "rw", "nosuid"]);
        },
        Rule::MountFlag,
    ),
    (
        R,
        "the host's terminals",
        In::Config,
        |c| {
            mount(c, "/dev/pts")["options"] =
                json!(["nosuid", "noexec", "ptmxmode=0666", "mode=0620", "gid=5"]);
        },
        Rule::MountFlag,
    ),
    (
        R,
        "a tmpfs where devpts belongs",
        In::Config,
        |c| {
            mount(c, "/dev/pts")["type"] = json!("tmpfs");
        },
        Rule::MountType,
    ),
    (
        R,
        "the skeleton after the tiles, which it would cover",
        In::Config,
        |c| {
            let mounts = c["mounts"].as_array_mut().unwrap();
            let at = mounts
                .iter()
                .position(|mount| mount["destination"] == "/srv/team")
                .unwrap();
            let skeleton = mounts.remove(at);
            mounts.push(skeleton);
        },
        Rule::MountOrder,
    ),
    (
        R,
        "a shared mount",
        In::Config,
        |c| {
            push(
                &mut mount(c, "/srv/team/apps/notes")["options"],
                json!("rshared"),
            );
        },
        Rule::Propagation,
    ),
    (
        R,
        "a shared root",
        In::Config,
        |c| {
            c["linux"]["rootfsPropagation"] = json!("shared");
        },
        Rule::Propagation,
    ),
    (
        P,
        "more scratch than planned",
        In::Config,
        |c| {
            mount(c, "/tmp")["options"] = json!(["nosuid", "nodev", "mode=1777", "size=0"]);
        },
        Rule::MountFlag,
    ),
    (
        P,
        "a writable projection",
        In::Config,
        |c| {
            mount(c, "/workspace/src")["options"] = json!(["rbind", "rw", "nosuid", "nodev"]);
        },
        Rule::MountFlag,
    ),
    (
        P,
        "a writable root",
        In::Config,
        |c| c["root"]["readonly"] = json!(false),
        Rule::Root,
    ),
    (
        R,
        "another root",
        In::Config,
        |c| c["root"]["path"] = json!("/"),
        Rule::Root,
    ),
    // Process.
    (
        R,
        "a capability more in the bounding set",
        In::Config,
        |c| {
            push(
                &mut c["process"]["capabilities"]["bounding"],
                json!("CAP_SYS_MODULE"),
            );
        },
        Rule::CapabilityBounding,
    ),
    (
        R,
        "a capability more in the effective set",
        In::Config,
        |c| {
            push(
                &mut c["process"]["capabilities"]["effective"],
                json!("CAP_SYS_PTRACE"),
            );
        },
        Rule::CapabilityEffective,
    ),
    (
        R,
        "a capability less in the permitted set",
        In::Config,
        |c| {
            c["process"]["capabilities"]["permitted"]
                .as_array_mut()
                .unwrap()
                .pop();
        },
        Rule::CapabilityPermitted,
    ),
    (
        R,
        "an inheritable capability",
        In::Config,
        |c| {
            c["process"]["capabilities"]["inheritable"] = json!(["CAP_SYS_ADMIN"]);
        },
        Rule::CapabilityInheritable,
    ),
    (
        R,
        "an ambient capability",
        In::Config,
        |c| {
            c["process"]["capabilities"]["ambient"] = json!(["CAP_SYS_ADMIN"]);
        },
        Rule::CapabilityAmbient,
    ),
    (
        R,
        "a set left out, which some runtimes take for all",
        In::Config,
        |c| {
            c["process"]["capabilities"]
                .as_object_mut()
                .unwrap()
                .remove("bounding");
        },
        Rule::Document,
    ),
    (
        R,
        "no capabilities at all written",
        In::Config,
        |c| {
            c["process"].as_object_mut().unwrap().remove("capabilities");
        },
        Rule::Document,
    ),
    (
        R,
        "the payload without the init",
        In::Config,
        |c| {
            c["process"]["args"] = json!(["bash", "-l"]);
        },
        Rule::InitArgument,
    ),
    (
        R,
        "another command",
        In::Config,
        |c| {
            c["process"]["args"][1] = json!("sh");
        },
        Rule::Argv,
    ),
    (
        R,
        "another directory for the init",
        In::Config,
        |c| {
            c["process"]["cwd"] = json!("/proc/self/fd/7");
        },
        Rule::Cwd,
    ),
    (
        R,
        "a variable more",
        In::Config,
        |c| {
            push(&mut c["process"]["env"], json!("LD_PRELOAD=/tmp/x.so"));
        },
        Rule::Environment,
    ),
    (
        R,
        "another PATH",
        In::Config,
        |c| {
            let env = c["process"]["env"].as_array_mut().unwrap();
            let path = env
                .iter_mut()
                .find(|line| line.as_str().unwrap().starts_with("PATH="));
            *path.unwrap() = json!("PATH=/tmp:/usr/bin");
        },
        Rule::Environment,
    ),
    (
        R,
        "another user",
        In::Config,
        |c| c["process"]["user"]["uid"] = json!(1),
        Rule::User,
    ),
    (
        R,
        "a supplementary group",
        In::Config,
        |c| {
            c["process"]["user"]["additionalGids"] = json!([5]);
        },
        Rule::User,
    ),
    (
        R,
        "no_new_privs set too early",
        In::Config,
        |c| {
            c["process"]["noNewPrivileges"] = json!(true);
        },
        Rule::NoNewPrivileges,
    ),
    (
        R,
        "core files",
        In::Config,
        |c| {
            c["process"]["rlimits"][0]["hard"] = json!(1 << 30);
        },
        Rule::Rlimits,
    ),
    (
        R,
        "no limit of open files",
        In::Config,
        |c| {
            c["process"]["rlimits"].as_array_mut().unwrap().pop();
        },
        Rule::Rlimits,
    ),
    (
        R,
        "pipes where a terminal belongs",
        In::Config,
        |c| {
            c["process"]["terminal"] = json!(false);
        },
        Rule::Terminal,
    ),
    // Linux.
    (
        R,
        "host root mapped",
        In::Config,
        |c| {
            c["linux"]["uidMappings"][0]["hostID"] = json!(0);
        },
        Rule::IdMap,
    ),
    (
        R,
        "another group slice",
        In::Config,
        |c| {
            c["linux"]["gidMappings"][0]["hostID"] = json!(720_896);
        },
        Rule::IdMap,
    ),
    (
        R,
        "a second extent",
        In::Config,
        |c| {
            push(
                &mut c["linux"]["uidMappings"],
                json!({"containerID": 65536, "hostID": 990, "size": 1}),
            );
        },
        Rule::IdMap,
    ),
    (
        R,
        "no user namespace",
        In::Config,
        |c| {
            c["linux"]["namespaces"]
                .as_array_mut()
                .unwrap()
                .retain(|ns| ns["type"] != "user");
        },
        Rule::Namespaces,
    ),
    (
        R,
        "the host's network",
        In::Config,
        |c| {
            c["linux"]["namespaces"]
                .as_array_mut()
                .unwrap()
                .retain(|ns| ns["type"] != "network");
        },
        Rule::Namespaces,
    ),
    (
        R,
        "somebody else's pid namespace",
        In::Config,
        |c| {
            c["linux"]["namespaces"][4]["path"] = json!("/proc/1/ns/pid");
        },
        Rule::Document,
    ),
    (
        R,
        "another cgroup",
        In::Config,
        |c| {
            c["linux"]["cgroupsPath"] = json!("/casemate");
        },
        Rule::CgroupsPath,
    ),
    (
        R,
        "a relative cgroup",
        In::Config,
        |c| {
            c["linux"]["cgroupsPath"] = json!("casemate/k2v9c0a1b2d3");
        },
        Rule::CgroupsPath,
    ),
    (
        R,
        "more memory",
        In::Config,
        |c| {
            c["linux"]["resources"]["memory"]["limit"] = json!(4_294_967_296_u64);
        },
        Rule::Resources,
    ),
    (
        R,
        "no limit of tasks",
        In::Config,
        |c| {
            c["linux"]["resources"]
                .as_object_mut()
                .unwrap()
                .remove("pids");
        },
        Rule::Resources,
    ),
    (
        R,
        "every device",
        In::Config,
        |c| {
            c["linux"]["resources"]["devices"][0]["allow"] = json!(true);
        },
        Rule::Devices,
    ),
    (
        R,
        "a disk",
        In::Config,
        |c| {
            push(
                &mut c["linux"]["resources"]["devices"],
                json!({"access": "rwm", "allow": true,
            "type": "b", "major": 8, "minor": 0}),
            );
        },
        Rule::Devices,
    ),
    (
        R,
        "an administrator's device for somebody else",
        In::Config,
        |c| {
            push(
                &mut c["linux"]["resources"]["devices"],
                json!({"access": "rwm", "allow": true,
            "type": "c", "major": 10, "minor": 229}),
            );
        },
        Rule::Devices,
    ),
    (
        R,
        "device nodes made by the runtime",
        In::Config,
        |c| {
            c["linux"]["devices"] =
                json!([{"path": "/dev/sda", "type": "b", "major": 8, "minor": 0}]);
        },
        Rule::Document,
    ),
    (
        R,
        "a kernel file unmasked",
        In::Config,
        |c| {
            c["linux"]["maskedPaths"]
                .as_array_mut()
                .unwrap()
                .retain(|path| path != "/proc/kcore");
        },
        Rule::MaskedPaths,
    ),
    (
        R,
        "writable kernel settings",
        In::Config,
        |c| {
            c["linux"]["readonlyPaths"]
                .as_array_mut()
                .unwrap()
                .retain(|path| path != "/proc/sys");
        },
        Rule::MaskedPaths,
    ),
    (
        R,
        "a kernel setting",
        In::Config,
        |c| {
            c["linux"]["sysctl"] = json!({"kernel.core_pattern": "|/tmp/x"});
        },
        Rule::Document,
    ),
    (
        R,
        "an outer profile that lets io_uring through",
        In::Config,
        |c| {
            c["linux"]["seccomp"]["syscalls"][0]["names"]
                .as_array_mut()
                .unwrap()
                .retain(|name| name != "io_uring_setup");
        },
        Rule::OuterSeccomp,
    ),
    (
        R,
        "no outer profile",
        In::Config,
        |c| {
            c["linux"].as_object_mut().unwrap().remove("seccomp");
        },
        Rule::Document,
    ),
    (
        R,
        "a notifying filter",
        In::Config,
        |c| {
            c["linux"]["seccomp"]["listenerPath"] = json!("/tmp/s");
        },
        Rule::Document,
    ),
    (
        R,
        "a hook",
        In::Config,
        |c| {
            c["hooks"] = json!({"prestart": [{"path": "/bin/true"}]});
        },
        Rule::Hooks,
    ),
    (
        R,
        "an annotation more",
        In::Config,
        |c| {
            c["annotations"]["run.oci.hooks.stdout"] = json!("/tmp/x");
        },
        Rule::Annotations,
    ),
    (
        R,
        "another tile's annotation",
        In::Config,
        |c| {
            c["annotations"]["io.casemate.tile"] = json!("apps/wiki");
        },
        Rule::Annotations,
    ),
    (
        R,
        "the annotation of another guard plan",
        In::Config,
        |c| {
            c["annotations"]["io.casemate.guard"] = json!(format!("sha256:{}", "0".repeat(64)));
        },
        Rule::Annotations,
    ),
    (
        R,
        "another host name",
        In::Config,
        |c| c["hostname"] = json!("host"),
        Rule::Hostname,
    ),
    (
        R,
        "another version",
        In::Config,
        |c| c["ociVersion"] = json!("1.0.0"),
        Rule::OciVersion,
    ),
    // Guard plan.
    (
        R,
        "an administrator's tier",
        In::Guard,
        |g| g["tier"] = json!("admin-nesting"),
        Rule::GuardTier,
    ),
    (
        R,
        "another working directory",
        In::Guard,
        |g| g["cwd"] = json!("/"),
        Rule::Cwd,
    ),
    (
        R,
        "another payload user",
        In::Guard,
        |g| g["uid"] = json!(1000),
        Rule::GuardIds,
    ),
    (
        R,
        "no ceilings of namespaces",
        In::Guard,
        |g| g["namespace_ceilings"] = json!(false),
        Rule::GuardCeilings,
    ),
    (
        R,
        "no no_new_privs",
        In::Guard,
        |g| g["no_new_privs"] = json!(false),
        Rule::GuardNoNewPrivs,
    ),
    (
        R,
        "SYS_ADMIN for the payload",
        In::Guard,
        |g| {
            push(&mut g["capabilities"], json!("CAP_SYS_ADMIN"));
        },
        Rule::GuardCapabilities,
    ),
    (
        R,
        "no ruleset",
        In::Guard,
        |g| g["landlock"] = json!(null),
        Rule::GuardLandlock,
    ),
    (
        R,
        "a right that is not handled",
        In::Guard,
        |g| {
            g["landlock"]["handled_fs"]
                .as_array_mut()
                .unwrap()
                .retain(|right| right != "make_reg");
        },
        Rule::GuardLandlock,
    ),
    (
        R,
        "writing everywhere",
        In::Guard,
        |g| {
            push(&mut rule(g, "/")["allow"], json!("write_file"));
        },
        Rule::GuardLandlock,
    ),
    (
        R,
        "a rule for the whole workspace",
        In::Guard,
        |g| {
            rule(g, "/srv/team/apps/notes")["path"] = json!("/srv/team");
        },
        Rule::GuardLandlock,
    ),
    (
        R,
        "a required rule made optional",
        In::Guard,
        |g| {
            rule(g, "/srv/team/homes/ann")["optional"] = json!(true);
        },
        Rule::GuardLandlock,
    ),
    (
        A,
        "no scope of abstract sockets on the host's network",
        In::Guard,
        |g| {
            g["landlock"]["scoped"] = json!([]);
        },
        Rule::GuardLandlock,
    ),
    (
        R,
        "a filter that allows everything",
        In::Guard,
        |g| {
            g["seccomp"]["program"] = json!(["060000007fff0000"]);
        },
        Rule::SeccompProgram,
    ),
    (
        R,
        "a filter without its x32 check",
        In::Guard,
        |g| {
            for instruction in g["seccomp"]["program"].as_array_mut().unwrap() {
                if instruction.as_str().unwrap().ends_with("40000000") {
                    *instruction =
                        json!("3500ffffffffffff".replace("ffffffffffff", "0000ffffffff"));
                }
            }
        },
        Rule::SeccompProgram,
    ),
    (
        R,
        "a filter for another architecture",
        In::Guard,
        |g| {
            g["seccomp"]["arch"] = json!("AUDIT_ARCH_AARCH64");
        },
        Rule::SeccompProgram,
    ),
    (
        R,
        "one call more",
        In::Guard,
        |g| {
            // The first refusal in the tree becomes a permission.
            let program = g["seccomp"]["program"].as_array_mut().unwrap();
            let at = program
                .iter()
                .rposition(|one| one == "0006000000050026")
                .unwrap();
            program[at] = json!("000600007fff0000");
        },
        Rule::SeccompProgram,
    ),
    // Stage plan.
    (
        R,
        "a clone of the secrets",
        In::Stage,
        |s| {
            step(s, "source", "/srv/team/apps/wiki")["source"] = json!("/srv/team/.xbin");
        },
        Rule::StageSource,
    ),
    (
        R,
        "a clone of the host's root",
        In::Stage,
        |s| {
            step(s, "source", "/opt/sdk")["source"] = json!("/");
        },
        Rule::StageSource,
    ),
    (
        R,
        "another tile's clone writable",
        In::Stage,
        |s| {
            step(s, "source", "/srv/team/apps/wiki")["read_only"] = json!(false);
        },
        Rule::WritableSet,
    ),
    (
        R,
        "host root mapped into a tile",
        In::Stage,
        |s| {
            step(s, "source", "/srv/team/apps/notes")["id_map"][0]["disk"] = json!(0);
        },
        Rule::StageIdMap,
    ),
    (
        R,
        "no map on a tile",
        In::Stage,
        |s| {
            step(s, "source", "/srv/team/apps/notes")["id_map"] = json!([]);
        },
        Rule::StageIdMap,
    ),
    (
        R,
        "another base",
        In::Stage,
        |s| step(s, "action", "overlay")["lower"] = json!("/"),
        Rule::StageOverlay,
    ),
    (
        R,
        "a base that is not mapped",
        In::Stage,
        |s| {
            step(s, "action", "overlay")["lower_map"] = json!([]);
        },
        Rule::StageOverlay,
    ),
    (
        R,
        "a directory outside the stage",
        In::Stage,
        |s| {
            push(
                &mut s["steps"],
                json!({"directory": {"path": "/etc/x",
            "owner": {"uid": 0, "gid": 0}, "mode": 365}}),
            );
        },
        Rule::StageStep,
    ),
    (
        R,
        "a name in the skeleton that nobody was given",
        In::Stage,
        |s| {
            push(
                &mut s["steps"],
                json!({"directory": {"path": "/run/casemate/k2v9c0a1b2d3/view/apps/secret",
            "owner": {"uid": 0, "gid": 0}, "mode": 365}}),
            );
        },
        Rule::StageStep,
    ),
    (
        R,
        "a skeleton that the sandbox owns",
        In::Stage,
        |s| {
            step(s, "path", "/run/casemate/k2v9c0a1b2d3/view")["owner"]["uid"] = json!(655_360);
        },
        Rule::StageStep,
    ),
    (
        R,
        "a bundle directory that everybody reads",
        In::Stage,
        |s| {
            step(s, "path", "/run/casemate/k2v9c0a1b2d3/bundle")["mode"] = json!(493);
        },
        Rule::StageStep,
    ),
    (
        R,
        "a device for somebody who is no administrator",
        In::Stage,
        |s| {
            push(
                &mut s["steps"],
                json!({"device": {"path": "/run/casemate/k2v9c0a1b2d3/bundle/sda", "major": 8, "minor": 0,
            "mode": 438}}),
            );
        },
        Rule::StageStep,
    ),
    (
        R,
        "a mount target that nobody planned",
        In::Stage,
        |s| {
            step(s, "path", "/srv/team")["path"] = json!("/etc/passwd");
        },
        Rule::StageStep,
    ),
    (
        R,
        "a second name for a clone's number",
        In::Stage,
        |s| {
            step(s, "path", "/run/casemate/k2v9c0a1b2d3/mounts/0")["path"] =
                json!("/run/casemate/k2v9c0a1b2d3/mounts/00");
        },
        Rule::StageStep,
    ),
    (
        R,
        "clones out of turn",
        In::Stage,
        |s| {
            step(s, "path", "/run/casemate/k2v9c0a1b2d3/mounts/0")["path"] =
                json!("/run/casemate/k2v9c0a1b2d3/mounts/9");
        },
        Rule::StageStep,
    ),
    (
        R,
        "a clone that nothing mounts",
        In::Stage,
        |s| {
            let path = "/run/casemate/k2v9c0a1b2d3/mounts/7";
            push(
                &mut s["steps"],
                json!({"directory": {"path": path, "owner": {"uid": 0, "gid": 0}, "mode": 365}}),
            );
            push(
                &mut s["steps"],
                json!({"bind": {"id_map": [], "kind": "directory", "read_only": true,
            "source": "/opt/sdk", "target": path}}),
            );
        },
        Rule::StageSource,
    ),
    (
        R,
        "a part of the skeleton twice",
        In::Stage,
        |s| {
            let again = step(s, "path", "/run/casemate/k2v9c0a1b2d3/view/apps/wiki").clone();
            push(&mut s["steps"], json!({"directory": again}));
        },
        Rule::StageStep,
    ),
    (
        R,
        "a part of the skeleton before its directory",
        In::Stage,
        |s| {
            let steps = s["steps"].as_array_mut().unwrap();
            let at = |path: &str| {
                let made = |step: &Value| step["directory"]["path"] == path;
                steps.iter().position(made).unwrap()
            };
            let parent = at("/run/casemate/k2v9c0a1b2d3/view/apps/lib");
            let part = at("/run/casemate/k2v9c0a1b2d3/view/apps/lib/core");
            steps.swap(parent, part);
        },
        Rule::StageStep,
    ),
    (
        P,
        "an upper without limit",
        In::Stage,
        |s| step(s, "action", "tmpfs")["bytes"] = json!(0),
        Rule::StageStep,
    ),
    (
        P,
        "devices in the upper",
        In::Stage,
        |s| step(s, "action", "tmpfs")["devices"] = json!(true),
        Rule::StageStep,
    ),
    (
        R,
        "a skeleton on the host's disk",
        In::Stage,
        |s| {
            s["steps"]
                .as_array_mut()
                .unwrap()
                .retain(|step| step.get("tmpfs").is_none());
        },
        Rule::StageStep,
    ),
    (
        R,
        "devices in the skeleton",
        In::Stage,
        |s| step(s, "action", "tmpfs")["devices"] = json!(true),
        Rule::StageStep,
    ),
    (
        P,
        "no root overlay",
        In::Stage,
        |s| {
            s["steps"]
                .as_array_mut()
                .unwrap()
                .retain(|step| step.get("overlay").is_none() && step.get("target").is_none());
        },
        Rule::StageOverlay,
    ),
];

fn mutate(bundle: &Bundle, which: In, change: Change) -> Bundle {
    let mut documents = [&bundle.config, &bundle.guard, &bundle.stage]
        .map(|bytes| serde_json::from_slice::<Value>(bytes).unwrap());
    match which {
        In::Config => change(&mut documents[0]),
        In::Guard => {
            change(&mut documents[1]);
            // The annotation goes along: otherwise only it would be noticed.
            let digest = Digest::of(&canonical(&documents[1]));
            documents[0]["annotations"]["io.casemate.guard"] = json!(digest.as_str());
        }
        In::Stage => change(&mut documents[2]),
    }
    let [config, guard, stage] = documents.map(|document| canonical(&document));
    seal(config, guard, stage, bundle)
}

fn seal(config: Vec<u8>, guard: Vec<u8>, stage: Vec<u8>, like: &Bundle) -> Bundle {
    let mut all = Vec::new();
    for document in [&config, &guard, &stage] {
        all.extend((document.len() as u64).to_be_bytes());
        all.extend(document);
    }
    Bundle {
        digest: Digest::of(&all),
        enforcement: like.enforcement.clone(),
        config,
        guard,
        stage,
    }
}

/// Sorted keys, whatever the map of `serde_json` does.
fn canonical(value: &Value) -> Vec<u8> {
    fn sorted(value: &Value) -> String {
        match value {
            Value::Object(map) => {
                let entries: std::collections::BTreeMap<_, _> = map.iter().collect();
                let parts: Vec<String> = entries
                    .into_iter()
                    .map(|(key, value)| format!("{}:{}", json!(key), sorted(value)))
                    .collect();
                format!("{{{}}}", parts.join(","))
            }
            Value::Array(list) => {
                let parts: Vec<String> = list.iter().map(sorted).collect();
                format!("[{}]", parts.join(","))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
        }
    }
    sorted(value).into_bytes()
}

#[test]
fn each_mutation_is_refused_by_its_rule() {
    for (name, what, which, change, rule) in MUTATIONS {
        let case = fixture(name);
        let bundle = case.compile().unwrap();
        let mutated = mutate(&bundle, *which, *change);
        assert_ne!(mutated.digest, bundle.digest, "{what}: nothing was changed");
        let violation =
            verify(&mutated, &case.plan, &case.placement, &fixtures::host()).expect_err(what);
        assert_eq!(violation.rule, *rule, "{what}: {violation}");
    }
}

#[test]
fn an_unchanged_bundle_passes_the_same_way() {
    for name in [R, P, A] {
        let case = fixture(name);
        let bundle = case.compile().unwrap();
        let same = mutate(&bundle, In::Guard, |_guard| {});
        verify(&same, &case.plan, &case.placement, &fixtures::host()).unwrap();
    }
}

#[test]
fn the_required_fields_are_all_covered() {
    let rules: BTreeSet<Rule> = MUTATIONS.iter().map(|(.., rule)| *rule).collect();
    for rule in [
        Rule::MountSource,
        Rule::MountTarget,
        Rule::MountFlag,
        Rule::MountOrder,
        Rule::Propagation,
        Rule::CapabilityBounding,
        Rule::CapabilityEffective,
        Rule::CapabilityPermitted,
        Rule::CapabilityInheritable,
        Rule::CapabilityAmbient,
        Rule::IdMap,
        Rule::Namespaces,
        Rule::OuterSeccomp,
        Rule::SeccompProgram,
        Rule::GuardTier,
        Rule::GuardLandlock,
        Rule::Environment,
        Rule::InitArgument,
        Rule::Cwd,
        Rule::CgroupsPath,
        Rule::Hooks,
        Rule::Annotations,
        Rule::Rlimits,
        Rule::Devices,
    ] {
        assert!(rules.contains(&rule), "no mutation breaks {rule}");
    }
}

#[test]
fn a_swapped_document_breaks_the_seal() {
    let case = fixture(R);
    let other = fixture(A).compile().unwrap();
    let mut bundle = case.compile().unwrap();
    bundle.guard = other.guard;
    let violation = verify(&bundle, &case.plan, &case.placement, &fixtures::host()).unwrap_err();
    assert_eq!(violation.rule, Rule::BundleDigest);
}

#[test]
fn a_document_that_is_not_canonical_is_refused() {
    let case = fixture(R);
    let bundle = case.compile().unwrap();
    let twice = String::from_utf8(bundle.config.clone()).unwrap().replacen(
        r#""hostname":"notes""#,
        r#""hostname":"notes","hostname":"notes""#,
        1,
    );
    let spaced = String::from_utf8(bundle.config.clone())
        .unwrap()
        .replacen(':', ": ", 1);
    for config in [
        twice.into_bytes(),
        spaced.into_bytes(),
        b"{}".to_vec(),
        Vec::new(),
    ] {
        let sealed = seal(config, bundle.guard.clone(), bundle.stage.clone(), &bundle);
        let violation =
            verify(&sealed, &case.plan, &case.placement, &fixtures::host()).unwrap_err();
        assert_eq!(violation.rule, Rule::Document);
    }
}

#[test]
fn a_bundle_of_another_plan_is_refused() {
    let plans = fixtures::cases().unwrap();
    for a in &plans {
        let bundle = a.compile().unwrap();
        for b in &plans {
            let same = a.name == b.name;
            let verdict = verify(&bundle, &b.plan, &b.placement, &fixtures::host());
            assert_eq!(verdict.is_ok(), same, "{} as {}", a.name, b.name);
        }
    }
}
