//! Plans that are refused, each with its code (E-46, PSBX-09, PSBX-12, PSBX-16, DEC-07).

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod fixtures;

use std::collections::BTreeMap;

use casemate_bundles::{
    Bundle, CompileError, Component, Digest, Environment, FileName, Gap, HostPath, HostSupport,
    LimitSupport, PlanCode, Profile, ProjectionKind, SandboxPath, Slice, TileId, TreeOwner, Upper,
    UserId, WorkspaceView, compile, verify,
};
use fixtures::Case;

fn fixture(name: &str) -> Case {
    fixtures::find(name).unwrap()
}

fn code(case: &Case) -> PlanCode {
    match case.compile().unwrap_err() {
        CompileError::Refused(refusal) => {
            let text = refusal.to_string();
            assert!(text.starts_with("PLAN_"), "{text}");
            refusal.code
        }
        CompileError::Unavailable { component } => panic!("unavailable: {component}"),
    }
}

fn terminal(change: impl FnOnce(&mut WorkspaceView)) -> Case {
    let mut case = fixture("terminal-restricted-none");
    if let Profile::Terminal { view, .. } = &mut case.plan.profile {
        change(view);
    }
    case
}

fn host_path(text: &str) -> HostPath {
    HostPath::parse(text).unwrap()
}

#[test]
fn mounts_that_collide_are_refused() {
    let extra = |path: &str| terminal(|view| view.extra_ro = vec![host_path(path)]);
    for path in [
        "/",
        "/proc",
        "/proc/1",
        "/sys",
        "/dev",
        "/dev/shm",
        "/run",
        "/run/casemate",
        "/run/casemate/x",
        "/etc",
        "/usr",
        "/bin",
        "/tmp",
        "/var",
    ] {
        assert_eq!(code(&extra(path)), PlanCode::InvalidMount, "{path}");
    }
    // A read-only directory that is, holds or lies in the workspace would show its secrets.
    for path in [
        "/srv",
        "/srv/team",
        "/srv/team/.xbin",
        "/srv/team/apps/notes",
    ] {
        assert_eq!(code(&extra(path)), PlanCode::TargetOverlap, "{path}");
    }
    let twice = terminal(|view| view.extra_ro = vec![host_path("/opt/a/b"), host_path("/opt/a")]);
    assert_eq!(code(&twice), PlanCode::TargetOverlap);
    // The engine's own directories.
    for path in [
        "/var/lib/casemate/scratch",
        "/var/lib/casemate/snapshots/sha256/ab/fs/etc",
    ] {
        assert_eq!(code(&extra(path)), PlanCode::InvalidMount, "{path}");
    }
    // A name that only starts like another is no collision.
    let near = terminal(|view| {
        view.extra_ro = vec![
            host_path("/srv/team2"),
            host_path("/opt/a"),
            host_path("/opt/a-b"),
        ];
    });
    near.compile().unwrap();
}

#[test]
fn workspaces_in_the_way_are_refused() {
    for root in [
        "/", "/usr", "/etc", "/proc/x", "/dev", "/run", "/tmp", "/var",
    ] {
        let case = terminal(|view| view.root = host_path(root));
        assert_eq!(code(&case), PlanCode::InvalidMount, "{root}");
    }
}

#[test]
fn tiles_and_files_that_overlap_are_refused() {
    let owner = |tile: &str| TreeOwner {
        id: TileId::parse(tile).unwrap(),
        slice: Slice::parse(300 * 65_536).unwrap(),
    };
    for tile in ["apps/notes", "apps/notes/sub"] {
        let case = terminal(|view| view.readable.push(owner(tile)));
        assert_eq!(code(&case), PlanCode::TargetOverlap, "{tile}");
    }
    // Sorted by bytes, `apps/lib-x` would stand between `apps/lib` and `apps/lib/core`.
    let case = terminal(|view| {
        view.readable.push(owner("apps/lib-x"));
        view.readable.push(owner("apps/lib"));
    });
    assert_eq!(code(&case), PlanCode::TargetOverlap);
    for file in ["apps", "homes", "data", "xbin.json"] {
        let case = terminal(|view| view.root_files.push(FileName::parse(file).unwrap()));
        assert_eq!(code(&case), PlanCode::TargetOverlap, "{file}");
    }
}

#[test]
fn ids_that_would_reach_the_host_are_refused() {
    let root = terminal(|view| view.service = 0);
    assert_eq!(code(&root), PlanCode::InvalidMount);
    for service in [
        10 * 65_536,
        10 * 65_536 + 65_535,
        101 * 65_536 + 5,
        201 * 65_536,
    ] {
        let case = terminal(|view| view.service = service);
        assert_eq!(code(&case), PlanCode::InvalidMount, "{service}");
    }
}

#[test]
fn a_backend_has_no_home() {
    let mut case = fixture("backend-none");
    if let Profile::Backend { view, .. } = &mut case.plan.profile {
        view.home = Some(TreeOwner {
            id: UserId::parse("ann").unwrap(),
            slice: Slice::parse(300 * 65_536).unwrap(),
        });
    }
    assert_eq!(code(&case), PlanCode::InvalidMount);
}

#[test]
fn projections_stay_in_their_roots_and_apart() {
    let with = |target: &str, kind: ProjectionKind| {
        let mut case = fixture("process-none");
        if let Profile::Process { view, .. } = &mut case.plan.profile {
            let mut one = view.projections[0].clone();
            one.target = SandboxPath::parse(target).unwrap();
            one.kind = kind;
            view.projections.push(one);
        }
        case
    };
    let directory = ProjectionKind::Directory;
    for target in [
        "/",
        "/etc",
        "/output",
        "/tmp/x",
        "/workspaces",
        "/proc",
        "/runtime2",
    ] {
        assert_eq!(
            code(&with(target, directory)),
            PlanCode::InvalidMount,
            "{target}"
        );
    }
    let file = with("/input", ProjectionKind::File);
    assert_eq!(code(&file), PlanCode::InvalidMount);
    for target in [
        "/workspace",
        "/workspace/src",
        "/workspace/src/a",
        "/input/task.json/x",
    ] {
        assert_eq!(
            code(&with(target, directory)),
            PlanCode::TargetOverlap,
            "{target}"
        );
    }
    with("/workspace/src2", directory).compile().unwrap();
}

#[test]
fn projections_never_show_the_engines_own_files() {
    for source in [
        "/",
        "/run",
        "/run/casemate/k2v9c0a1b2d3",
        "/run/casemate/k2v9c0a1b2d3/bundle",
        "/var/lib/casemate",
        "/var/lib/casemate/snapshots/sha256/ab/fs/etc/shadow",
    ] {
        let mut case = fixture("process-none");
        if let Profile::Process { view, .. } = &mut case.plan.profile {
            view.projections[0].source = host_path(source);
        }
        assert_eq!(code(&case), PlanCode::InvalidMount, "{source}");
    }
}

#[test]
fn working_directories_are_where_the_profile_allows() {
    let check = |name: &str, good: &[&str], bad: &[&str]| {
        for cwd in good {
            let mut case = fixture(name);
            case.plan.cwd = SandboxPath::parse(*cwd).unwrap();
            case.compile()
                .unwrap_or_else(|error| panic!("{name} {cwd}: {error}"));
        }
        for cwd in bad {
            let mut case = fixture(name);
            case.plan.cwd = SandboxPath::parse(*cwd).unwrap();
            assert_eq!(code(&case), PlanCode::BadCwd, "{name} {cwd}");
        }
    };
    check(
        "process-none",
        &[
            "/workspace",
            "/workspace/src",
            "/workspace/src/a/b",
            "/input",
            "/output",
            "/tmp",
        ],
        &[
            "/",
            "/runtime",
            "/runtime/bin",
            "/etc",
            "/workspace/other",
            "/input/task.json",
            "/tmp/x",
            "/output/x",
            "/proc/self/fd/3",
            "/tmpx",
        ],
    );
    check(
        "terminal-restricted-none",
        &[
            "/srv/team/apps/notes",
            "/srv/team/apps/notes/a",
            "/srv/team/homes/ann",
        ],
        &[
            "/",
            "/srv/team",
            "/srv/team/apps/wiki",
            "/srv/team/homes",
            "/root",
            "/tmp",
        ],
    );
    check(
        "backend-none",
        &["/srv/team/apps/notes"],
        &["/srv/team/homes/ann", "/tmp", "/srv/team/apps/notes2"],
    );
}

#[test]
fn variables_of_the_sandbox_are_reserved() {
    for name in [
        "XBIN_COMPONENT",
        "XBIN_WORKSPACE",
        "IN_SANDBOX",
        "IS_SANDBOX",
    ] {
        let mut case = fixture("terminal-restricted-none");
        case.plan.environment =
            Environment::parse(BTreeMap::from([(name.to_owned(), "x".to_owned())])).unwrap();
        assert_eq!(code(&case), PlanCode::ReservedEnv, "{name}");
    }
    let mut case = fixture("terminal-restricted-none");
    case.plan.environment =
        Environment::parse(BTreeMap::from([("TERM".to_owned(), "dumb".to_owned())])).unwrap();
    let bundle = case.compile().unwrap();
    let text = String::from_utf8(bundle.config).unwrap();
    assert!(text.contains("TERM=dumb") && !text.contains("TERM=xterm"));
}

#[test]
fn sizes_without_a_limit_are_refused() {
    for bytes in [0, 4095, (2 << 30) + 1] {
        let mut case = fixture("process-none");
        if let Profile::Process { view, .. } = &mut case.plan.profile {
            view.scratch_bytes = bytes;
        }
        assert_eq!(code(&case), PlanCode::LimitOutOfRange, "{bytes}");
    }
    let mut case = fixture("process-none");
    case.placement.upper = Upper::Memory(0);
    assert_eq!(code(&case), PlanCode::LimitOutOfRange);
}

/// A terminal on a layer of its workspace.
fn on_layer(below: &str) -> Case {
    let mut case = fixture("terminal-restricted-none");
    if let Profile::Terminal { view, .. } = &case.plan.profile {
        case.placement.upper = Upper::Layer(view.root.join(below).unwrap());
    }
    case
}

#[test]
fn a_layer_belongs_to_a_terminal_and_lies_where_no_view_reaches() {
    for below in [
        "apps/notes/gen/1",
        ".xbin/terms/k/gen/1",
        ".xbin/term",
        "homes/ann",
    ] {
        assert_eq!(code(&on_layer(below)), PlanCode::InvalidMount, "{below}");
    }
    let layer = on_layer(".xbin/term/k/gen/1").placement.upper;
    for other in ["process-none", "backend-none"] {
        let mut case = fixture(other);
        case.placement.upper = layer.clone();
        assert_eq!(code(&case), PlanCode::InvalidMount, "{other}");
    }
}

/// The bundle with another stage and the digest of that.
fn with_stage(bundle: &Bundle, stage: &str) -> Bundle {
    let mut changed = bundle.clone();
    changed.stage = stage.as_bytes().to_vec();
    let mut all = Vec::new();
    for document in [&changed.config, &changed.guard, &changed.stage] {
        all.extend((document.len() as u64).to_be_bytes());
        all.extend(document);
    }
    changed.digest = Digest::of(&all);
    changed
}

#[test]
fn a_layer_is_mounted_as_it_is_and_used_once_at_a_time() {
    let case = on_layer(".xbin/term/k/gen/1");
    let bundle = case.compile().unwrap();
    verify(&bundle, &case.plan, &case.placement, &fixtures::host()).unwrap();
    let stage = String::from_utf8(bundle.stage.clone()).unwrap();
    assert!(stage.contains("index=on") && !stage.contains("volatile"));
    assert_eq!(
        stage.matches(".xbin/term/k/gen/1/upper").count(),
        1,
        "mounted only"
    );
    // The verifier reads both for itself.
    for (what, with) in [
        ("index=on", "index=off"),
        ("gen/1/upper", "gen/2/upper"),
        ("gen/1/work", "gen/2/work"),
    ] {
        let changed = with_stage(&bundle, &stage.replace(what, with));
        let verdict = verify(&changed, &case.plan, &case.placement, &fixtures::host());
        assert_eq!(
            verdict.unwrap_err().rule.to_string(),
            "stage-overlay",
            "{with}"
        );
    }
    let mut elsewhere = case.placement.clone();
    elsewhere.upper = Upper::Layer(HostPath::parse("/var/lib/casemate/k").unwrap());
    let text = stage.replace("/srv/team/.xbin/term/k/gen/1", "/var/lib/casemate/k");
    let moved = with_stage(&bundle, &text);
    let verdict = verify(&moved, &case.plan, &elsewhere, &fixtures::host());
    assert_eq!(verdict.unwrap_err().rule.to_string(), "stage-overlay");
}

#[test]
fn a_missing_component_is_unavailable_or_a_gap() {
    type Change = fn(&mut HostSupport);
    let never: [(Change, Component); 6] = [
        (
            |host| host.user_namespaces = false,
            Component::UserNamespaces,
        ),
        (
            |host| host.id_mapped_mounts = false,
            Component::IdMappedMounts,
        ),
        (|host| host.overlay = false, Component::Overlay),
        (|host| host.seccomp = false, Component::Seccomp),
        (|host| host.openat2 = false, Component::Openat2),
        (|host| host.cgroup_kill = false, Component::CgroupKill),
    ];
    let optional: [(Change, Component, Gap); 3] = [
        (
            |host| host.landlock_abi = 0,
            Component::Landlock,
            Gap::Landlock,
        ),
        (
            |host| host.landlock_abi = 2,
            Component::Landlock,
            Gap::Landlock,
        ),
        (
            |host| host.limits = LimitSupport::Missing,
            Component::Limits,
            Gap::Limits,
        ),
    ];
    for case in fixtures::cases().unwrap() {
        for (change, component) in never {
            let mut host = fixtures::host();
            change(&mut host);
            let error = compile(&case.plan, &case.placement, &host).unwrap_err();
            assert_eq!(
                error,
                CompileError::Unavailable { component },
                "{}",
                case.name
            );
        }
        for (change, component, gap) in optional {
            let mut host = fixtures::host();
            change(&mut host);
            let terminal = case.name.starts_with("terminal");
            match compile(&case.plan, &case.placement, &host) {
                Ok(bundle) => {
                    verify(&bundle, &case.plan, &case.placement, &host).unwrap();
                    let limited = case.name.contains("restricted");
                    let confined = case.name != "terminal-admin-nesting-none";
                    let open = match gap {
                        Gap::Landlock => confined,
                        Gap::Limits => limited,
                    };
                    assert!(terminal, "{} goes on without {component}", case.name);
                    assert_eq!(
                        bundle.enforcement.gaps.contains(&gap),
                        open,
                        "{}",
                        case.name
                    );
                }
                Err(error) => {
                    assert!(!terminal, "{}: {error}", case.name);
                    assert_eq!(error, CompileError::Unavailable { component });
                }
            }
        }
    }
}

#[test]
fn the_digest_says_what_it_is_over() {
    let case = fixture("process-none");
    let bundle = case.compile().unwrap();
    let mut all = Vec::new();
    for document in [&bundle.config, &bundle.guard, &bundle.stage] {
        all.extend((document.len() as u64).to_be_bytes());
        all.extend(document);
    }
    assert_eq!(bundle.digest, Digest::of(&all));
}
