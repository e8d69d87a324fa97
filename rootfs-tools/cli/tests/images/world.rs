//! A store with a base, and the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

pub(crate) struct World {
    temp: tempfile::TempDir,
}

impl World {
    /// Makes a tree with something of each kind that matters, 2 MiB of it not compressible.
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // podman takes no path with capital letters for a name.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temp = tempfile::Builder::new()
            .prefix(&format!("images-{}-{number}", std::process::id()))
            .rand_bytes(0)
            .tempdir()
            .unwrap();
        let tree = temp.path().join("tree");
        fs::create_dir_all(tree.join("etc")).unwrap();
        fs::create_dir_all(tree.join("usr/bin")).unwrap();
        fs::write(tree.join("etc/release"), "one\n").unwrap();
        fs::write(tree.join("usr/bin/big"), noise(2 << 20)).unwrap();
        fs::copy("/bin/true", tree.join("usr/bin/true")).unwrap();
        std::os::unix::fs::symlink("usr/bin", tree.join("bin")).unwrap();
        Self { temp }
    }

    /// Makes the store too, with the base `d`.
    pub(crate) fn with_base() -> Self {
        let world = Self::new();
        world.ours("root", &["import", "--name", "d", "tree"]);
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// The program with the store `root`, without the credentials of whoever runs the tests.
    pub(crate) fn command(&self, root: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rootfs-tools"));
        command
            .arg("--json")
            .args(arguments)
            .env("CASEMATE_ROOT", self.path(root))
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .env_remove("REGISTRY_AUTH_FILE")
            .env_remove("DOCKER_CONFIG")
            .env_remove("SSL_CERT_FILE")
            .stdin(Stdio::null())
            .current_dir(self.temp.path());
        command
    }

    /// Runs the program, which succeeds. Returns its result.
    pub(crate) fn ours(&self, root: &str, arguments: &[&str]) -> Value {
        let output = self.command(root, arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs the program, which fails in this way. Returns its error.
    pub(crate) fn fails(&self, root: &str, arguments: &[&str], exit: i32, says: &str) -> String {
        failed(&self.command(root, arguments).output().unwrap(), exit, says)
    }

    /// Runs another program, which succeeds. Returns its output.
    pub(crate) fn tool(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program)
            .args(arguments)
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .stdin(Stdio::null())
            .current_dir(self.temp.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the bases of a store.
    pub(crate) fn bases(&self, root: &str) -> Vec<Value> {
        let listed = self.ours(root, &["list"]);
        listed.as_array().unwrap().clone()
    }

    /// Returns the tree of a base.
    pub(crate) fn fs(&self, root: &str, name: &str) -> PathBuf {
        let shown = self.ours(root, &["show", name]);
        PathBuf::from(shown["path"].as_str().unwrap())
    }
}

/// Checks an error. Returns its text.
pub(crate) fn failed(output: &Output, exit: i32, says: &str) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit), "{stderr}");
    let last: Value = serde_json::from_str(stderr.lines().last().unwrap()).unwrap();
    let error = last["error"].as_str().unwrap();
    assert!(error.contains(says), "{error:?} does not say {says:?}");
    assert!(output.stdout.is_empty());
    error.to_owned()
}

/// Returns bytes that nothing compresses, always the same.
pub(crate) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes / 8).flat_map(|_| step()).collect()
}

/// Returns the names of what is in a directory, without hidden ones.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
