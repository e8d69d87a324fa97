use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

use super::*;
use crate::store::Store;

/// Whom the test workspaces belong to: anybody but root.
const OWNER: u32 = 54_321;

struct Fixture {
    directory: tempfile::TempDir,
    path: HostPath,
}

impl Fixture {
    /// Makes a workspace; needs root, as every test of the program.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = HostPath::parse(directory.path().to_str().unwrap()).unwrap();
        let fixture = Self { directory, path };
        for name in ["apps", "data", ".xbin"] {
            fs::create_dir(fixture.directory.path().join(name)).unwrap();
        }
        fixture.write("xbin.json", "{}");
        fixture.write("AGENTS.md", "read me");
        fixture.write(".hidden", "no");
        fixture.tile("apps/a", "{\"name\": \"A\", \"future\": [1]}");
        fixture.tile("apps/group/b", "{}");
        chown(fixture.directory.path(), Some(OWNER), Some(OWNER)).unwrap();
        fixture
    }

    fn write(&self, below: &str, text: &str) {
        fs::write(self.directory.path().join(below), text).unwrap();
    }

    fn tile(&self, below: &str, manifest: &str) {
        fs::create_dir_all(self.directory.path().join(below)).unwrap();
        self.write(&format!("{below}/xbin.json"), manifest);
    }

    fn open(&self) -> Workspace {
        Workspace::open(&self.path).unwrap()
    }
}

fn tile(id: &str) -> TileId {
    TileId::parse(id).unwrap()
}

fn names(tiles: &[TileId]) -> Vec<&str> {
    tiles.iter().map(TileId::as_str).collect()
}

#[test]
fn finds_tiles_and_keeps_unknown_keys() {
    let fixture = Fixture::new();
    let workspace = fixture.open();
    assert_eq!(
        names(&workspace.tiles().unwrap()),
        ["apps/a", "apps/group/b"]
    );
    let manifest = workspace.tile(&tile("apps/a")).unwrap().manifest;
    assert_eq!(manifest.name.as_deref(), Some("A"));
    let written = serde_json::to_value(&manifest).unwrap();
    assert_eq!(written["future"], serde_json::json!([1]));
}

#[test]
fn passes_over_hostile_names_and_symlinks() {
    let fixture = Fixture::new();
    let root = fixture.directory.path();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("xbin.json"), "{}").unwrap();
    symlink(outside.path(), root.join("apps/link")).unwrap();
    fixture.tile("apps/.hidden", "{}");
    fixture.tile("apps/back\\slash", "{}");
    fixture.tile("apps/new\nline", "{}");
    fixture.tile("apps/a/inner", "{}");
    fs::create_dir(root.join("apps/fake")).unwrap();
    symlink(
        outside.path().join("xbin.json"),
        root.join("apps/fake/xbin.json"),
    )
    .unwrap();
    fs::create_dir_all(root.join("apps/dir/xbin.json")).unwrap();
    symlink("/etc/passwd", root.join("passwd")).unwrap();
    let workspace = fixture.open();
    assert_eq!(
        names(&workspace.tiles().unwrap()),
        ["apps/a", "apps/group/b"]
    );
    for id in [
        "apps/link",
        "apps/fake",
        "apps/dir",
        "apps/a/inner",
        "apps/no",
    ] {
        let error = workspace.tile(&tile(id)).unwrap_err();
        assert!(
            matches!(error, WorkspaceError::NoTile { .. }),
            "{id}: {error}"
        );
    }
    let files = workspace.root_files().unwrap();
    let files: Vec<_> = files.iter().map(FileName::as_str).collect();
    assert_eq!(files, ["AGENTS.md", "xbin.json"]);
}

#[test]
fn refuses_malformed_and_endless_manifests() {
    let fixture = Fixture::new();
    fixture.tile("apps/array", "[]");
    fixture.tile("apps/cut", "{");
    fixture.tile("apps/type", "{\"backend\": {\"command\": \"sh -c x\"}}");
    fixture.tile("apps/long", &" ".repeat(70_000));
    let workspace = fixture.open();
    for id in ["apps/array", "apps/cut", "apps/type", "apps/long"] {
        let error = workspace.tile(&tile(id)).unwrap_err();
        assert!(
            matches!(error, WorkspaceError::Manifest { .. }),
            "{id}: {error}"
        );
    }
}

#[test]
fn refuses_a_workspace_behind_a_symlink_or_of_root() {
    let fixture = Fixture::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("link");
    symlink(fixture.directory.path(), &link).unwrap();
    let link = HostPath::parse(link.to_str().unwrap()).unwrap();
    let error = Workspace::open(&link).unwrap_err();
    assert!(matches!(error, WorkspaceError::Open { .. }), "{error}");
    let own = HostPath::parse(elsewhere.path().to_str().unwrap()).unwrap();
    let error = Workspace::open(&own).unwrap_err();
    assert!(
        matches!(error, WorkspaceError::Owner { uid: 0, .. }),
        "{error}"
    );
}

#[test]
fn seeds_a_new_home_once_and_never_touches_files() {
    let fixture = Fixture::new();
    let workspace = fixture.open();
    let user = UserId::parse("owner").unwrap();
    workspace.ensure_home(&user).unwrap();
    let home = fixture.directory.path().join("homes/owner");
    let made = fs::metadata(&home).unwrap();
    assert_eq!((made.uid(), made.gid()), (OWNER, OWNER));
    assert_eq!(made.permissions().mode() & 0o7777, 0o700);
    let bashrc = home.join(".bashrc");
    assert_eq!(fs::metadata(&bashrc).unwrap().uid(), OWNER);
    fs::write(&bashrc, "mine").unwrap();
    fs::remove_file(home.join(".profile")).unwrap();
    workspace.ensure_home(&user).unwrap();
    assert_eq!(fs::read_to_string(&bashrc).unwrap(), "mine");
    fs::metadata(home.join(".profile")).unwrap_err();
}

#[test]
fn a_home_that_is_a_symlink_is_refused() {
    let fixture = Fixture::new();
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(fixture.directory.path().join("homes")).unwrap();
    symlink(outside.path(), fixture.directory.path().join("homes/owner")).unwrap();
    let user = UserId::parse("owner").unwrap();
    fixture.open().ensure_home(&user).unwrap_err();
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn the_database_belongs_to_the_workspace_and_is_no_symlink() {
    let fixture = Fixture::new();
    drop(Store::open(&fixture.open()).unwrap());
    let path = fixture.directory.path().join("data/casemate.db");
    let made = fs::metadata(&path).unwrap();
    assert_eq!(
        (made.uid(), made.permissions().mode() & 0o777),
        (OWNER, 0o600)
    );
    fs::remove_file(&path).unwrap();
    let outside = tempfile::NamedTempFile::new().unwrap();
    symlink(outside.path(), &path).unwrap();
    Store::open(&fixture.open()).unwrap_err();
    assert_eq!(outside.as_file().metadata().unwrap().len(), 0);
}

#[test]
fn is_closed_by_itself_or_by_a_directory_above_it() {
    let outer = tempfile::tempdir().unwrap();
    let middle = outer.path().join("middle");
    let path = middle.join("workspace");
    fs::create_dir_all(&path).unwrap();
    chown(&path, Some(OWNER), Some(OWNER)).unwrap();
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let host = HostPath::parse(path.to_str().unwrap()).unwrap();
    let closed = || Workspace::open(&host).unwrap().is_closed().unwrap();
    for (above, own, expected) in [
        (0o755, 0o755, false),
        (0o711, 0o701, false),
        (0o750, 0o755, false),
        (0o700, 0o755, true),
        (0o755, 0o700, true),
        // The group of the service has the number of the user.
        (0o755, 0o750, true),
    ] {
        open(outer.path(), 0o755);
        open(&middle, above);
        open(&path, own);
        assert_eq!(closed(), expected, "{above:o} {own:o}");
    }
    // Closed by somebody who can enter it himself.
    open(&path, 0o755);
    open(&middle, 0o700);
    chown(&middle, Some(OWNER + 1), Some(OWNER + 1)).unwrap();
    assert!(!closed());
}

#[test]
fn only_the_opened_tile_and_its_home_get_a_slice() {
    let fixture = Fixture::new();
    for n in 0..600 {
        fixture.tile(&format!("apps/flood/{n}"), "{}");
    }
    let workspace = fixture.open();
    let store = Store::open(&workspace).unwrap();
    let planner = Planner {
        workspace: &workspace,
        store: &store,
        ids: casemate_engine::IdBlock {
            first: 1 << 24,
            slices: 8,
        },
        extra_ro: &[],
    };
    let open = |own: &str| {
        let request = TerminalRequest {
            tile: tile(own),
            user: UserId::parse("owner").unwrap(),
            tier: casemate_bundles::Tier::Admin {
                nesting: casemate_bundles::Nesting::Off,
                network: casemate_bundles::Network::None,
            },
            visible: Visible::All,
        };
        let payload = Payload {
            id: RunId::new(IdKind::Session).unwrap().container().clone(),
            base: casemate_bundles::Digest::parse(format!("sha256:{}", "0".repeat(64))).unwrap(),
            argv: casemate_bundles::Argv::parse(vec!["sh".to_owned()]).unwrap(),
            cwd: None,
            environment: casemate_bundles::Environment::empty(),
            stdio: casemate_bundles::Stdio::Pipes,
        };
        let (plan, slice) = planner.terminal(&request, payload).unwrap();
        let casemate_bundles::Profile::Terminal { view, .. } = plan.profile else {
            panic!("a terminal");
        };
        (view, slice)
    };
    let (b, b_slice) = open("apps/group/b");
    assert_eq!(b.readable.len(), 512);
    assert!(b.readable.iter().all(|tile| tile.slice == b_slice));
    let (a, a_slice) = open("apps/a");
    assert_ne!(a_slice, b_slice);
    // What has been opened is shown whatever there is besides.
    let seen = a.readable.iter().find(|one| one.id == tile("apps/group/b"));
    assert_eq!(seen.unwrap().slice, b_slice);
    assert_eq!(store.slices().unwrap().len(), 3, "two tiles and a home");
}
