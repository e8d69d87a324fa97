//! Commands that are killed at a system call, that run out of space, and that meet.
//!
//! strace kills the command at its n-th call of a kind. Afterwards the store is clean, whatever was
//! pinned is whole, and the same command succeeds. `CASEMATE_SOAK=1` takes every n instead of a
//! sample.

#![expect(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by panicking and says how much it tried"
)]

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rootfs-tools");

/// The calls that change something or whose loss could.
const CALLS: [&str; 12] = [
    "openat",
    "openat2",
    "write",
    "fsync",
    "syncfs",
    "rename",
    "renameat2",
    "mkdir",
    "mkdirat",
    "unlink",
    "unlinkat",
    "flock",
];

struct World {
    temp: tempfile::TempDir,
}

fn soak() -> bool {
    std::env::var_os("CASEMATE_SOAK").is_some()
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

impl World {
    /// A store with the pinned base `kept`, an unpinned one `gone`, and a tree.
    fn new() -> Self {
        let world = Self {
            temp: tempfile::tempdir().unwrap(),
        };
        for base in ["kept", "gone", "tree"] {
            let tree = world.path(base);
            fs::create_dir_all(tree.join("usr/bin")).unwrap();
            for number in 0..12 {
                let file = tree.join(format!("usr/bin/{base}{number}"));
                fs::write(file, vec![number; 3000]).unwrap();
            }
        }
        world.succeeds(&["import", "--name", "kept", "kept"]);
        world.succeeds(&["import", "--name", "gone", "gone"]);
        world.succeeds(&["unpin", "gone"]);
        // A pristine copy to begin each try with.
        world.copy("root", "pristine");
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn copy(&self, from: &str, to: &str) {
        let copied = Command::new("cp")
            .arg("-a")
            .args([self.path(from), self.path(to)])
            .status()
            .unwrap();
        assert!(copied.success());
    }

    fn reset(&self) {
        fs::remove_dir_all(self.path("root")).unwrap();
        self.copy("pristine", "root");
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.temp.path());
        command.env("CASEMATE_ROOT", self.path("root"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(PROGRAM).args(arguments).output().unwrap()
    }

    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    /// Counts the calls of each kind that the command makes.
    fn calls(&self, arguments: &[&str]) -> Vec<(&'static str, usize)> {
        let log = self.path("trace");
        let traced = self
            .command("strace")
            .args(["-f", "-qq", "-e", "signal=none", "-e"])
            .arg(format!("trace={}", CALLS.join(",")))
            .arg("-o")
            .arg(&log)
            .arg(PROGRAM)
            .args(arguments)
            .output()
            .unwrap();
        assert!(traced.status.success(), "{}", text(&traced));
        let log = fs::read_to_string(log).unwrap();
        let count = |call: &str| {
            let named = format!(" {call}(");
            log.lines().filter(|line| line.contains(&named)).count()
        };
        CALLS.into_iter().map(|call| (call, count(call))).collect()
    }

    /// Runs the command and kills it at its n-th call. Returns whether it was killed.
    fn killed_at(&self, arguments: &[&str], call: &str, n: usize) -> bool {
        let output = self
            .command("strace")
            .args(["-f", "-qq", "-e", "signal=none", "-o", "/dev/null", "-e"])
            .arg(format!("trace={call}"))
            .arg("-e")
            .arg(format!("inject={call}:signal=KILL:when={n}"))
            .arg(PROGRAM)
            .args(arguments)
            .output()
            .unwrap();
        // strace ends as its program did.
        let killed = output.status.signal() == Some(9) || output.status.code() == Some(137);
        assert!(killed || output.status.success(), "{}", text(&output));
        killed
    }

    /// What holds whenever a command was interrupted.
    fn assert_sound(&self, at: &str) {
        let checked = self.run(&["fsck", "--deep"]);
        assert!(checked.status.success(), "{at}: {}", text(&checked));
        let shown = self.run(&["show", "kept"]);
        assert!(shown.status.success(), "{at}: {}", text(&shown));
        assert!(!text(&shown).contains("warning"), "{at}: {}", text(&shown));
        for dir in ["staging", "trash"] {
            let left = fs::read_dir(self.path("root").join(dir)).unwrap().count();
            assert_eq!(left, 0, "{at}: {dir}");
        }
    }

    /// Kills the command at a sample of its calls.
    fn survives(&self, arguments: &[&str]) {
        let mut tried = 0;
        for (call, count) in self.calls(arguments) {
            let points: Vec<usize> = if soak() {
                (1..=count).collect()
            } else {
                [count / 2, count].into_iter().filter(|n| *n > 0).collect()
            };
            for n in points {
                let at = format!("{arguments:?} at {call} {n} of {count}");
                self.reset();
                tried += usize::from(self.killed_at(arguments, call, n));
                self.assert_sound(&at);
                let again = self.run(arguments);
                assert!(again.status.success(), "{at}: {}", text(&again));
                self.assert_sound(&at);
            }
        }
        eprintln!("{arguments:?}: killed {tried} times");
        assert!(tried > 10, "only {tried} were killed");
        self.reset();
    }
}

#[test]
fn an_import_may_be_killed_anywhere() {
    World::new().survives(&["import", "--name", "tree", "tree"]);
}

#[test]
fn an_import_that_moves_a_name_may_be_killed_anywhere() {
    World::new().survives(&["import", "--name", "kept", "tree"]);
}

#[test]
fn a_collection_may_be_killed_anywhere() {
    World::new().survives(&["gc", "--min-age", "0"]);
}

#[test]
fn pinning_may_be_killed_anywhere() {
    let world = World::new();
    world.survives(&["pin", "gone"]);
}

/// A file system of this size, mounted as long as it lives.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf, kibibytes: u64) -> Self {
        fs::create_dir_all(&at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o"])
            .arg(format!("size={kibibytes}k"))
            .arg("casemate-test")
            .arg(&at)
            .status()
            .unwrap();
        assert!(mounted.success());
        Self(at)
    }

    fn resize(&self, kibibytes: u64) {
        let resized = Command::new("mount")
            .arg("-o")
            .arg(format!("remount,size={kibibytes}k"))
            .arg(&self.0)
            .status()
            .unwrap();
        assert!(resized.success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

/// Bytes in use of a file system, in KiB.
fn used(at: &Path) -> u64 {
    let stat = rustix::fs::statvfs(at).unwrap();
    (stat.f_blocks - stat.f_bfree) * stat.f_frsize / 1024
}

#[test]
fn an_import_without_space_fails_cleanly_at_every_tenth_and_succeeds_with_space() {
    let world = World::new();
    let tree = world.path("large");
    fs::create_dir_all(tree.join("data")).unwrap();
    let mut state = 1_u32;
    for number in 0..60 {
        let content: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(50_000)
        .collect();
        fs::write(tree.join(format!("data/{number}")), content).unwrap();
    }
    let small = Small::mount(world.path("small"), 64 * 1024);
    let root = world.path("small/root");
    let run = |arguments: &[&str]| {
        let mut command = world.command(PROGRAM);
        command.env("CASEMATE_ROOT", &root).args(arguments);
        command.output().unwrap()
    };
    assert!(run(&["import", "--name", "kept", "kept"]).status.success());
    let before = used(&small.0);
    assert!(
        run(&["import", "--name", "large", "large"])
            .status
            .success()
    );
    let needed = used(&small.0) - before;
    assert!(run(&["unpin", "large"]).status.success());
    assert!(run(&["gc", "--min-age", "0"]).status.success());
    for tenth in 0..10 {
        small.resize(before + needed * tenth / 10);
        let failed = run(&["import", "--name", "large", "large"]);
        assert_eq!(failed.status.code(), Some(74), "{tenth}: {}", text(&failed));
        assert!(text(&failed).contains("No space left"), "{}", text(&failed));
        let checked = run(&["fsck", "--deep"]);
        small.resize(64 * 1024);
        // The check itself needs space.
        let checked = if checked.status.success() {
            checked
        } else {
            run(&["fsck", "--deep"])
        };
        assert!(checked.status.success(), "{tenth}: {}", text(&checked));
        let listed = run(&["list"]);
        assert!(text(&listed).contains("kept") && !text(&listed).contains("large"));
        assert!(run(&["gc", "--min-age", "0"]).status.success());
        assert!(used(&small.0) <= before + 64, "{tenth}: something is left");
    }
    let again = run(&["import", "--name", "large", "large"]);
    assert!(again.status.success(), "{}", text(&again));
}

#[test]
fn imports_of_one_base_and_collections_at_once_lose_nothing() {
    let world = World::new();
    let until = Instant::now() + Duration::from_secs(if soak() { 60 } else { 5 });
    let imports = |name: &str| {
        let mut count = 0;
        while Instant::now() < until {
            world.succeeds(&["import", "--name", name, "tree"]);
            world.succeeds(&["unpin", name]);
            count += 1;
        }
        count
    };
    let (one, two, collected) = std::thread::scope(|scope| {
        let one = scope.spawn(|| imports("one"));
        let two = scope.spawn(|| imports("two"));
        let mut collected = 0;
        while Instant::now() < until {
            world.succeeds(&["gc", "--min-age", "0"]);
            collected += 1;
        }
        (one.join().unwrap(), two.join().unwrap(), collected)
    });
    eprintln!("{one} and {two} imports, {collected} collections");
    assert!(one > 0 && two > 0 && collected > 1);
    world.assert_sound("at the end");
    world.succeeds(&["gc", "--min-age", "0"]);
    assert!(!world.succeeds(&["list"]).contains("one "));
    world.succeeds(&["import", "--name", "one", "tree"]);
    world.assert_sound("after another import");
}
