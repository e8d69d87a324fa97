//! The Linux part of `config.json`, and the document as a whole.

use casemate_bundles::Rule;
use serde_json::json;

use crate::change::{In, Mutation, R, push};

pub(crate) const MUTATIONS: &[Mutation] = &[
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
];
