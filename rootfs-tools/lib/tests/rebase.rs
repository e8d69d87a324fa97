//! The move of a layer to another base: what is carried over, what a crash leaves, and the way
//! back. The sandbox is not needed for files; the suite runs the whole with real packages.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use casemate_rootfs::layer::{LayerError, Layers, NewLayer, StampedBase, TileKey};
use casemate_rootfs::rebase::{Loss, Ran, Rebase, RebaseError, Report, Was};
use casemate_rootfs::{BaseName, ResolvedBase, Source, Store};

const TILE: &str = "apps/notes";
/// First host id of the layer.
const FIRST: u32 = 0x5300_0000;
/// Says to a child of the test what to do, and where.
const CHILD: &str = "CASEMATE_REBASE_CHILD";

const STATUS: &str = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\nEssential: yes\nConffiles:\n /etc/dpkg.cfg d41d8cd98f00b204e9800998ecf8427e\n\n";

/// A small root file system that looks like Debian's.
fn tree(dir: &Path, release: &str) {
    for sub in [
        "etc/apt",
        "usr/bin",
        "usr/local/bin",
        "root",
        "srv",
        "var/lib/dpkg/info",
    ] {
        fs::create_dir_all(dir.join(sub)).unwrap();
    }
    symlink("usr/bin", dir.join("bin")).unwrap();
    fs::write(dir.join("var/lib/dpkg/status"), STATUS).unwrap();
    let list = "/.\n/bin/dpkg\n/etc\n/etc/dpkg.cfg\n/usr\n/usr/bin\n";
    fs::write(dir.join("var/lib/dpkg/info/dpkg.list"), list).unwrap();
    fs::write(dir.join("usr/bin/dpkg"), release).unwrap();
    fs::write(dir.join("etc/dpkg.cfg"), "").unwrap();
    fs::write(dir.join("etc/same"), "same").unwrap();
    fs::write(dir.join("etc/moved"), release).unwrap();
    fs::write(dir.join("etc/edited"), "same").unwrap();
    fs::write(dir.join("etc/both"), release).unwrap();
    fs::write(dir.join("etc/gone"), "same").unwrap();
    fs::write(dir.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
    let os = format!("VERSION_CODENAME={release}\n");
    fs::write(dir.join("etc/os-release"), os).unwrap();
    let sources = format!("deb http://mirror/debian {release} main\n");
    fs::write(dir.join("etc/apt/sources.list"), sources).unwrap();
}

struct World {
    dir: PathBuf,
    store: Store,
}

impl World {
    fn create(dir: &Path) -> Self {
        fs::create_dir_all(dir.join("ws")).unwrap();
        let world = Self {
            dir: dir.to_owned(),
            store: Store::create(dir.join("root")).unwrap(),
        };
        for release in ["old", "new"] {
            let root = dir.join(release);
            tree(&root, release);
            let name = BaseName::parse(release).unwrap();
            let source = Source::Directory(&root);
            world.store.import(&name, source, &mut |_| {}).unwrap();
        }
        world
    }

    fn open(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            store: Store::open(dir.join("root")).unwrap(),
        }
    }

    fn base(&self, name: &str) -> ResolvedBase {
        self.store.resolve(name).unwrap()
    }

    fn layers(&self) -> Layers {
        Layers::create(&self.dir.join("ws")).unwrap()
    }

    fn generation(&self, number: u32) -> PathBuf {
        let key = key();
        self.layers()
            .path()
            .join(format!("{key}/gen/{number}/upper"))
    }

    fn current(&self) -> PathBuf {
        let link = self.layers().path().join(key().as_str()).join("current");
        let target = fs::read_link(&link).unwrap();
        link.with_file_name(target).join("upper")
    }

    /// Makes the layer as a terminal would have left it.
    fn use_layer(&self) {
        let new = NewLayer {
            base: StampedBase::of(&self.base("old")),
            tile: Some(TILE.to_owned()),
            first_id: FIRST,
        };
        let held = self.layers().lock(&key(), Duration::ZERO).unwrap();
        let upper = held.ensure(&new).unwrap().path().join("upper");
        for (path, text) in [
            ("etc/edited", "mine"),
            ("etc/both", "mine"),
            ("etc/own", "mine"),
            ("etc/dpkg.cfg", "mine"),
            ("etc/moved", "old"),
            (
                "etc/apt/sources.list",
                "deb http://mirror/debian old main contrib\n",
            ),
            (
                "etc/passwd",
                "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n",
            ),
            ("usr/local/bin/tool", "#!/bin/sh\n"),
            ("usr/bin/by-product", "x"),
            ("srv/data/deep/file", "data"),
            ("var/cache/x", "x"),
        ] {
            let path = upper.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
        }
        let mode = fs::Permissions::from_mode(0o4755);
        give(&upper);
        fs::set_permissions(upper.join("usr/local/bin/tool"), mode).unwrap();
        chown(
            upper.join("srv/data/deep/file"),
            Some(FIRST + 1000),
            Some(FIRST + 1000),
        )
        .unwrap();
        whiteout(&upper.join("etc/gone"));
    }

    fn rebase(&self) -> Result<Report, RebaseError> {
        let to = self.base("new");
        let mut commands = Vec::new();
        let mut sandbox = |_: u32, argv: &[String]| {
            commands.push(argv.join(" "));
            Ok(Ran {
                status: 0,
                stdout: String::new(),
                stderr: String::new(),
            })
        };
        Rebase::plan(&self.store, &self.layers(), &key(), &to)?.execute(
            &mut sandbox,
            Loss::Refused,
            1,
        )
    }
}

fn key() -> TileKey {
    TileKey::of(TILE)
}

fn give(path: &Path) {
    std::os::unix::fs::lchown(path, Some(FIRST), Some(FIRST)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
    }
}

fn whiteout(path: &Path) {
    let status = Command::new("mknod")
        .arg(path)
        .args(["c", "0", "0"])
        .status();
    assert!(status.unwrap().success());
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn files_are_carried_over_and_the_way_back_is_open() {
    let temp = tempfile::tempdir().unwrap();
    let world = World::create(temp.path());
    world.use_layer();
    let rebase = Rebase::plan(&world.store, &world.layers(), &key(), &world.base("new")).unwrap();
    let plan = rebase.steps().clone();
    drop(rebase);
    assert_eq!(plan.left, ["/usr/bin/by-product"]);
    let removed: Vec<_> = plan
        .etc
        .iter()
        .filter(|one| one.was == Was::Removed)
        .collect();
    assert_eq!(removed.len(), 1, "{removed:?}");
    assert!(plan.accounts.contains(&"passwd: me".to_owned()));
    assert!(!world.generation(2).is_dir(), "a plan changes nothing");

    let report = world.rebase().unwrap();
    assert_eq!(report.generation, 2);
    assert_eq!(report.conflicts, ["/etc/apt/sources.list", "/etc/both"]);
    let upper = world.current();
    assert_eq!(upper, world.generation(2));
    assert_eq!(text(upper.join("etc/edited")), "mine");
    assert_eq!(text(upper.join("etc/own")), "mine");
    assert_eq!(text(upper.join("etc/dpkg.cfg")), "mine");
    assert_eq!(text(upper.join("etc/both")), "mine");
    assert_eq!(text(upper.join("etc/both.dpkg-dist")), "new");
    let sources = text(upper.join("etc/apt/sources.list"));
    assert_eq!(sources, "deb http://mirror/debian new main contrib\n");
    assert!(text(upper.join("etc/passwd")).contains("me:x:1000:"));
    assert_eq!(upper.join("etc/gone").symlink_metadata().unwrap().rdev(), 0);
    for absent in ["etc/moved", "usr/bin/by-product", "var/cache/x"] {
        assert!(!upper.join(absent).is_file(), "{absent}");
    }
    let tool = upper.join("usr/local/bin/tool").metadata().unwrap();
    assert_eq!((tool.mode() & 0o7777, tool.uid()), (0o4755, FIRST));
    let data = upper.join("srv/data/deep/file").metadata().unwrap();
    assert_eq!((data.uid(), data.gid()), (FIRST + 1000, FIRST + 1000));
    assert!(matches!(world.rebase(), Err(RebaseError::Already(_))));

    let held = world.layers().lock(&key(), Duration::ZERO).unwrap();
    let back = held.roll_back().unwrap();
    assert_eq!(back.stamp().base, StampedBase::of(&world.base("old")));
    assert_eq!(text(world.current().join("etc/both")), "mine");
}

#[test]
fn a_failed_check_leaves_the_layer_as_it_was() {
    let temp = tempfile::tempdir().unwrap();
    let world = World::create(temp.path());
    world.use_layer();
    let mut sandbox = |_: u32, argv: &[String]| {
        let audit = argv.contains(&"--audit".to_owned());
        Ok(Ran {
            status: 0,
            stdout: if audit { "broken" } else { "" }.to_owned(),
            stderr: String::new(),
        })
    };
    let rebase = Rebase::plan(&world.store, &world.layers(), &key(), &world.base("new")).unwrap();
    let failed = rebase.execute(&mut sandbox, Loss::Refused, 1);
    assert!(matches!(failed, Err(RebaseError::Verify(_))), "{failed:?}");
    assert_eq!(world.current(), world.generation(1));
    assert!(!world.generation(2).is_dir());
}

#[test]
fn a_layer_in_use_and_one_without_its_base_are_not_moved() {
    let temp = tempfile::tempdir().unwrap();
    let world = World::create(temp.path());
    assert!(matches!(
        world.rebase(),
        Err(RebaseError::Layer(LayerError::Absent(_)))
    ));
    world.use_layer();
    let held = world.layers().lock(&key(), Duration::ZERO).unwrap();
    assert!(matches!(
        world.rebase(),
        Err(RebaseError::Layer(LayerError::Busy(_)))
    ));
    drop(held);
    let snapshot = world.base("old").fs;
    fs::rename(&snapshot, snapshot.with_extension("away")).unwrap();
    // A child that another test has just forked has the lock until it executes its program.
    let until = std::time::Instant::now() + Duration::from_secs(5);
    let mut refused = world.rebase();
    while matches!(&refused, Err(RebaseError::Layer(LayerError::Busy(_))))
        && std::time::Instant::now() < until
    {
        refused = world.rebase();
    }
    assert!(
        matches!(
            &refused,
            Err(RebaseError::Layer(LayerError::MissingBase { .. }))
        ),
        "{refused:?}"
    );
}

/// What the crash tests run in a process of its own; nothing without its variable.
#[test]
fn child() {
    let Some(order) = std::env::var_os(CHILD) else {
        return;
    };
    let order = order.into_string().unwrap();
    let (what, dir) = order.split_once(' ').unwrap();
    let world = World::open(Path::new(dir));
    match what {
        "rebase" => drop(world.rebase().unwrap()),
        "reset" => {
            let held = world.layers().lock(&key(), Duration::ZERO).unwrap();
            held.reset().unwrap();
        }
        other => panic!("{other}"),
    }
}

/// Runs the child; with `kill`, it is killed at that call of its kind. Returns whether it ended by
/// itself.
fn run_child(dir: &Path, what: &str, kill: Option<(&str, u32)>) -> bool {
    let exe = std::env::current_exe().unwrap();
    let mut command = match kill {
        None => Command::new(exe),
        Some((calls, at)) => {
            let mut command = Command::new("strace");
            command.args(["-f", "-qqq", "-o", "/dev/null", "-e"]);
            command.arg(format!("trace={calls}"));
            command.arg("-e");
            command.arg(format!("inject={calls}:signal=KILL:when={at}"));
            command.arg(exe);
            command
        }
    };
    command.args(["--exact", "child", "--test-threads", "1", "--quiet"]);
    command.env(CHILD, format!("{what} {}", dir.display()));
    let output = command.output().unwrap();
    output.status.success()
}

/// The steps between kills: every call in a soak, some otherwise.
fn step(some: usize) -> usize {
    if std::env::var_os("CASEMATE_SOAK").is_some_and(|value| value == "1") {
        1
    } else {
        some
    }
}

const CALLS: [&str; 4] = [
    "renameat,renameat2,rename",
    "fsync,syncfs",
    "openat,openat2",
    "mkdirat,symlinkat,unlinkat,fchownat",
];

#[test]
fn a_killed_rebase_leaves_the_old_generation() {
    let mut kills = 0;
    for calls in CALLS {
        for at in (1..).step_by(step(71)) {
            let temp = tempfile::tempdir().unwrap();
            let world = World::create(temp.path());
            world.use_layer();
            let ended = run_child(temp.path(), "rebase", Some((calls, at)));
            kills += u32::from(!ended);
            let current = world.current();
            assert_eq!(text(current.join("etc/edited")), "mine", "{calls} {at}");
            let first = world.generation(1);
            assert!(first.join("srv/data/deep/file").is_file(), "{calls} {at}");
            if current == first {
                assert_eq!(world.rebase().unwrap().conflicts.len(), 2, "{calls} {at}");
            }
            let roots = casemate_rootfs::layer::stamps(&temp.path().join("ws")).unwrap();
            assert_eq!(roots.len(), 2, "{calls} {at}: {roots:?}");
            world.layers().lock(&key(), Duration::ZERO).unwrap();
            assert_eq!(text(world.current().join("srv/data/deep/file")), "data");
            if ended {
                break;
            }
        }
    }
    assert!(kills > 5, "only {kills} kills");
}

#[test]
fn a_killed_reset_leaves_the_layer_whole_or_empty() {
    let mut kills = 0;
    for calls in CALLS {
        for at in (1..).step_by(step(9)) {
            let temp = tempfile::tempdir().unwrap();
            let world = World::create(temp.path());
            world.use_layer();
            let ended = run_child(temp.path(), "reset", Some((calls, at)));
            kills += u32::from(!ended);
            // Before anybody settles what is left.
            let look = world.layers().look(&key()).unwrap();
            if look.is_some() {
                let upper = world.current();
                assert_eq!(
                    text(upper.join("srv/data/deep/file")),
                    "data",
                    "{calls} {at}"
                );
                assert_eq!(text(upper.join("etc/own")), "mine", "{calls} {at}");
            }
            let held = world.layers().lock(&key(), Duration::ZERO).unwrap();
            assert_eq!(held.current().unwrap().is_some(), look.is_some());
            held.reset().unwrap();
            let left = fs::read_dir(world.layers().path().join(key().as_str())).unwrap();
            let names: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names.len(), 2, "{calls} {at}: {names:?}");
            if ended {
                break;
            }
        }
    }
    assert!(kills > 5, "only {kills} kills");
}
