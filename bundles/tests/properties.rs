//! What holds for every plan that compiles.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod fixtures;

use std::collections::BTreeSet;

use casemate_bundles::{
    Access, FileName, HostPath, LimitSupport, Nesting, Network, Profile, SandboxPath, Slice,
    StagePlan, StageStep, Tier, TileId, TreeOwner, Upper, UserId, ViewRule, WorkspaceView, compile,
    explain, verify,
};
use fixtures::Case;
use proptest::prelude::*;
use serde_json::Value;

fn fixture(name: &str) -> Case {
    fixtures::find(name).unwrap()
}

const TILES: [&str; 8] = [
    "apps/a",
    "apps/ab",
    "apps/b/c",
    "apps/b/d",
    "apps/lib-x",
    "apps/zz",
    "apps/Ä",
    "apps/x y",
];
const USERS: [&str; 3] = ["ann", "bob", "owner"];
const FILES: [&str; 4] = ["xbin.json", "AGENTS.md", "go.work", "a b"];
const EXTRA: [&str; 4] = ["/opt/sdk", "/opt/sdk2", "/usr/share/doc", "/mnt/x"];
const ROOTS: [&str; 5] = ["/srv/team", "/home/x/ws", "/tmp/t/ws", "/var/lib/ws", "/w"];

fn slice(n: u32) -> Slice {
    Slice::parse((100 + n) * 65_536).unwrap()
}

prop_compose! {
    fn view()(
        root in 0..ROOTS.len(),
        order in Just(TILES.to_vec()).prop_shuffle(),
        visible in 1..TILES.len(),
        home in proptest::option::of(0..USERS.len()),
        files in proptest::sample::subsequence(FILES.to_vec(), 0..=FILES.len()).prop_shuffle(),
        extra in proptest::sample::subsequence(EXTRA.to_vec(), 0..=EXTRA.len()).prop_shuffle(),
        service in 1_u32..60_000,
    ) -> WorkspaceView {
        let owner = |index: usize| TreeOwner {
            id: TileId::parse(order[index]).unwrap(),
            slice: slice(u32::try_from(index).unwrap()),
        };
        WorkspaceView {
            root: HostPath::parse(ROOTS[root]).unwrap(),
            service,
            own: owner(0),
            readable: (1..visible).map(owner).collect(),
            home: home.map(|user| TreeOwner {
                id: UserId::parse(USERS[user]).unwrap(),
                slice: slice(50),
            }),
            root_files: files.iter().map(|name| FileName::parse(*name).unwrap()).collect(),
            extra_ro: extra.iter().map(|path| HostPath::parse(*path).unwrap()).collect(),
        }
    }
}

prop_compose! {
    fn case()(view in view(), kind in 0..6_usize, memory in any::<bool>()) -> Case {
        let name = [
            "terminal-admin-nesting-none", "terminal-admin-nesting-host", "terminal-admin-none",
            "terminal-admin-host", "terminal-restricted-none", "backend-none",
        ][kind];
        let mut case = fixture(name);
        case.plan.cwd = SandboxPath::parse(format!("{}/{}", view.root, view.own.id)).unwrap();
        if memory {
            case.placement.upper = Upper::Memory(1 << 20);
        }
        case.plan.profile = match case.plan.profile {
            Profile::Terminal { tier, .. } => Profile::Terminal { tier, view },
            Profile::Backend { limits, .. } => {
                Profile::Backend { limits, view: WorkspaceView { home: None, ..view } }
            }
            process @ Profile::Process { .. } => process,
        };
        case
    }
}

fn view_of(case: &Case) -> &WorkspaceView {
    match &case.plan.profile {
        Profile::Terminal { view, .. } | Profile::Backend { view, .. } => view,
        Profile::Process { .. } => unreachable!("only workspaces are made here"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn same_plan_same_bytes_in_any_order(case in case()) {
        let one = case.compile().unwrap();
        let mut shuffled = fixture("backend-none");
        shuffled.plan = case.plan.clone();
        shuffled.placement = case.placement.clone();
        if let Profile::Terminal { view, .. } | Profile::Backend { view, .. } =
            &mut shuffled.plan.profile
        {
            view.readable.reverse();
            view.root_files.reverse();
            view.extra_ro.reverse();
        }
        prop_assert_eq!(&one, &case.compile().unwrap());
        prop_assert_eq!(&one, &shuffled.compile().unwrap());
    }

    #[test]
    fn every_compiled_bundle_is_verified(case in case(), v2 in any::<bool>(), abi in 0_u32..8) {
        let mut host = fixtures::host();
        host.landlock_abi = abi;
        if v2 {
            host.limits = LimitSupport::V2;
        }
        if let Ok(bundle) = compile(&case.plan, &case.placement, &host) {
            let verdict = verify(&bundle, &case.plan, &case.placement, &host);
            prop_assert!(verdict.is_ok(), "{:?}", verdict);
        } else {
            let backend = matches!(case.plan.profile, Profile::Backend { .. });
            prop_assert!(backend);
        }
    }

    #[test]
    fn ancestors_are_mounted_first(case in case()) {
        let bundle = case.compile().unwrap();
        let config: Value = serde_json::from_slice(&bundle.config).unwrap();
        let targets: Vec<SandboxPath> = config["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mount| SandboxPath::parse(mount["destination"].as_str().unwrap()).unwrap())
            .collect();
        for (index, target) in targets.iter().enumerate() {
            for later in &targets[index + 1..] {
                prop_assert!(!target.is_within(later), "{later} covers {target}");
            }
        }
    }

    #[test]
    fn nothing_is_writable_outside_the_writable_set(case in case()) {
        let bundle = case.compile().unwrap();
        let view = view_of(&case);
        let terminal = matches!(case.plan.profile, Profile::Terminal { .. });
        let mut writable: BTreeSet<String> = [
            "/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/fuse", "/dev/net/tun",
            "/run/casemate", "/run/casemate/report",
        ].map(str::to_owned).into();
        if terminal {
            writable.insert(format!("{}/{}", view.root, view.own.id));
        }
        if let Some(home) = &view.home {
            writable.insert(format!("{}/homes/{}", view.root, home.id));
        }
        let config: Value = serde_json::from_slice(&bundle.config).unwrap();
        for mount in config["mounts"].as_array().unwrap() {
            let options = mount["options"].as_array().unwrap();
            let read_only = options.iter().any(|option| option == "ro" || option == "rro");
            let target = mount["destination"].as_str().unwrap();
            prop_assert!(read_only || writable.contains(target), "{target}");
            prop_assert!(options.iter().any(|option| option == "nosuid"), "{target}");
        }
        let stage: StagePlan = serde_json::from_slice(&bundle.stage).unwrap();
        for step in &stage.steps {
            if let StageStep::Bind { source, read_only, .. } = step {
                prop_assert!(*read_only || writable.contains(source.as_str()), "{source}");
            }
        }
    }

    #[test]
    fn no_secret_can_be_reached(case in case()) {
        let bundle = case.compile().unwrap();
        let view = view_of(&case);
        let root = &view.root;
        let visible: BTreeSet<&str> = [&view.own]
            .into_iter()
            .chain(&view.readable)
            .map(|tile| tile.id.as_str())
            .collect();
        let mut secret = vec![
            format!("{root}/.xbin/token"), format!("{root}/data/casemate.db"),
            format!("{root}/files/ann/uploads"), format!("{root}/.git/config"),
        ];
        for tile in TILES.iter().filter(|tile| !visible.contains(*tile)) {
            secret.push(format!("{root}/{tile}/main.go"));
            secret.push(format!("{root}/{tile}"));
        }
        for user in USERS {
            if view.home.as_ref().is_none_or(|home| home.id.as_str() != user) {
                secret.push(format!("{root}/homes/{user}"));
                secret.push(format!("{root}/homes/{user}/.ssh/id"));
            }
        }
        for path in secret {
            let path = SandboxPath::parse(path).unwrap();
            let found = explain(&bundle.config, &bundle.stage, &path).unwrap();
            prop_assert_eq!(found.access, Access::Absent, "{} by {}", path, found.rule);
            prop_assert_eq!(found.rule, ViewRule::Skeleton);
            prop_assert_eq!(found.source, None);
        }
        // No source holds a secret either.
        let stage: StagePlan = serde_json::from_slice(&bundle.stage).unwrap();
        for step in &stage.steps {
            if let StageStep::Bind { source, .. } = step {
                for secret in [".xbin", "data", "files"] {
                    let secret = root.join(secret).unwrap();
                    prop_assert!(!secret.is_within(source) && !source.is_within(&secret));
                }
            }
        }
    }

    #[test]
    fn what_is_visible_resolves_to_its_host_path(case in case()) {
        let bundle = case.compile().unwrap();
        let view = view_of(&case);
        let ask = |path: String| {
            let path = SandboxPath::parse(path).unwrap();
            explain(&bundle.config, &bundle.stage, &path).unwrap()
        };
        let own = ask(format!("{}/{}/src/x", view.root, view.own.id));
        prop_assert_eq!(own.rule, ViewRule::OwnTile);
        let host = HostPath::parse(format!("{}/{}/src/x", view.root, view.own.id)).unwrap();
        prop_assert_eq!(own.source, Some(host));
        let terminal = matches!(case.plan.profile, Profile::Terminal { .. });
        prop_assert_eq!(own.access == Access::ReadWrite, terminal);
        for tile in &view.readable {
            let found = ask(format!("{}/{}/y", view.root, tile.id));
            prop_assert_eq!(found.rule, ViewRule::ReadableTile);
            prop_assert_eq!(found.access, Access::ReadOnly);
        }
        for name in &view.root_files {
            let found = ask(format!("{}/{name}", view.root));
            prop_assert_eq!(found.rule, ViewRule::RootFile);
            prop_assert_eq!(found.access, Access::ReadOnly);
        }
        for (path, rule, access) in [
            ("/etc/passwd", ViewRule::Base, Access::ReadWrite),
            ("/proc/1/environ", ViewRule::Kernel, Access::ReadWrite),
            ("/proc/sys/kernel/core_pattern", ViewRule::Kernel, Access::ReadOnly),
            ("/proc/kcore", ViewRule::Masked, Access::ReadOnly),
            ("/dev/null", ViewRule::Device, Access::ReadWrite),
            ("/dev/sda", ViewRule::Device, Access::Absent),
            ("/run/casemate/plan", ViewRule::Init, Access::ReadOnly),
        ] {
            let found = ask(path.to_owned());
            prop_assert_eq!((found.rule, found.access), (rule, access), "{}", path);
        }
    }

    #[test]
    fn bytes_that_are_no_bundle_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let case = fixture("process-none");
        let mut bundle = case.compile().unwrap();
        prop_assert!(explain(&bytes, &bundle.stage, &case.plan.cwd).is_err());
        bundle.config = bytes;
        let verdict = verify(&bundle, &case.plan, &case.placement, &fixtures::host());
        prop_assert!(verdict.is_err());
    }
}

#[test]
fn a_command_run_sees_its_roots_and_nothing_else() {
    let case = fixture("process-none");
    let bundle = case.compile().unwrap();
    for (path, rule, access) in [
        ("/workspace/src/a", ViewRule::Projection, Access::ReadOnly),
        ("/input/task.json", ViewRule::Projection, Access::ReadOnly),
        ("/input/task.json/x", ViewRule::Projection, Access::Absent),
        ("/runtime/bin", ViewRule::Projection, Access::ReadOnly),
        ("/output/x", ViewRule::Output, Access::ReadWrite),
        ("/tmp/x", ViewRule::Scratch, Access::ReadWrite),
        ("/srv/team", ViewRule::Base, Access::ReadOnly),
        ("/etc/passwd", ViewRule::Base, Access::ReadOnly),
    ] {
        let path = SandboxPath::parse(path).unwrap();
        let found = explain(&bundle.config, &bundle.stage, &path).unwrap();
        assert_eq!((found.rule, found.access), (rule, access), "{path}");
    }
}

#[test]
fn a_tier_cannot_be_restricted_and_on_the_hosts_network() {
    // The type has no field for it; this pins what the names of the golden files rely on.
    let tier = Tier::Restricted {
        limits: fixtures::limits().unwrap(),
    };
    let text = serde_json::to_value(tier).unwrap();
    assert_eq!(
        text["restricted"]
            .as_object()
            .unwrap()
            .keys()
            .collect::<Vec<_>>(),
        ["limits"]
    );
    let admin = Tier::Admin {
        nesting: Nesting::On,
        network: Network::Host,
    };
    assert_ne!(admin, tier);
}
