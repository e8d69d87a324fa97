//! A bundle made by hand around the guard init: the host's `/usr` read-only as root, an id range of
//! its own, run by Debian's runc. Everything it makes is below one temporary directory.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use casemate_guard_plan::{
    FsRight, GuardPlan, GuardTier, INIT_PATH, Landlock, LandlockRule, PLAN_PATH, REPORT_PATH,
    RUN_DIR, Report, Seccomp, VERSION,
};
use casemate_sys::process;
use serde_json::{Value, json};
use tempfile::TempDir;

/// First id of the slice that namespace A maps; no user of the machine has it.
pub(crate) const FIRST_ID: u32 = 1_900_000_000;

/// Capabilities that the init needs in namespace A.
pub(crate) const OUTER: [&str; 5] = [
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_SYS_ADMIN",
];

static COUNT: AtomicU32 = AtomicU32::new(0);

const O_NONBLOCK: i32 = 0o4000;
const DEADLINE: Duration = Duration::from_mins(1);

/// The static guard init: from `CASEMATE_LIBEXEC`, or built here once.
pub(crate) fn init() -> &'static Path {
    static INIT: OnceLock<PathBuf> = OnceLock::new();
    INIT.get_or_init(|| match std::env::var_os("CASEMATE_LIBEXEC") {
        Some(directory) => {
            let path = PathBuf::from(directory).join("casemate-init");
            assert!(
                path.is_file(),
                "CASEMATE_LIBEXEC has no casemate-init: run deploy/programs debug"
            );
            path
        }
        None => build(),
    })
}

fn build() -> PathBuf {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("init");
    eprintln!("building the static casemate-init (set CASEMATE_LIBEXEC to use one that is built)");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "-p", "casemate-init"])
        .args(["--target", &triple])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env("CARGO_TARGET_DIR", &target)
        .status()
        .unwrap();
    assert!(status.success(), "the static casemate-init does not build");
    target.join(triple).join("debug/casemate-init")
}

/// A bundle that is not running.
pub(crate) struct Bundle {
    directory: TempDir,
    id: String,
    /// `config.json`, changed freely by a test.
    pub(crate) config: Value,
    /// The guard plan, changed freely by a test.
    pub(crate) plan: GuardPlan,
    /// What is bound as the plan instead of `plan`, when given.
    pub(crate) plan_text: Option<String>,
    /// Whether the caller's session keyring holds the key `casemate-test`.
    pub(crate) with_secret_key: bool,
    /// Whether descriptor 3 is open in the runtime.
    pub(crate) with_extra_descriptor: bool,
    /// Flags of `runc run` or `runc create`.
    pub(crate) flags: Vec<&'static str>,
    /// The value of the last flag, where that is `--pid-file`.
    pid_file: Option<PathBuf>,
    report: File,
}

/// What a payload left behind.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) reports: Vec<Report>,
}

/// A payload that lives.
pub(crate) struct Running {
    bundle: Bundle,
    runc: Child,
}

impl Bundle {
    /// A restricted payload: no capability, `no_new_privs`, Landlock, a filter that refuses `acct`.
    pub(crate) fn new() -> Self {
        assert!(
            Command::new("runc").arg("--version").output().is_ok(),
            "these tests need Debian's runc: apt-get install runc"
        );
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("casemate-init-{}-{count}", std::process::id());
        let directory = tempfile::Builder::new().prefix(&id).tempdir().unwrap();
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        make_root(&directory.path().join("rootfs"));
        let report = make_report(&directory.path().join("report"));
        let config = config(directory.path(), &id);
        Self {
            directory,
            id,
            config,
            plan: plan(),
            plan_text: None,
            with_secret_key: false,
            with_extra_descriptor: false,
            flags: Vec::new(),
            pid_file: None,
            report,
        }
    }

    /// The same with everything an administrator's nesting terminal keeps.
    pub(crate) fn admin() -> Self {
        let mut bundle = Self::new();
        bundle.plan.tier = GuardTier::AdminNesting;
        bundle.plan.namespace_ceilings = false;
        bundle.plan.capabilities = ALL_CAPABILITIES.map(str::to_owned).to_vec();
        bundle.plan.no_new_privs = false;
        bundle.plan.landlock = None;
        bundle
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Runs the payload without the init: a positive control.
    pub(crate) fn without_init(mut self, argv: &[&str]) -> Outcome {
        self.config["process"]["args"] = json!(argv);
        self.finish(Stdio::null())
    }

    /// Runs a shell script as payload.
    pub(crate) fn shell(self, script: &str) -> Outcome {
        self.run(&["sh", "-c", script])
    }

    /// Runs a perl program as payload.
    pub(crate) fn perl(self, program: &str) -> Outcome {
        self.run(&["perl", "-e", program])
    }

    /// Runs the payload to its end.
    pub(crate) fn run(mut self, argv: &[&str]) -> Outcome {
        self.set_argv(argv);
        self.finish(Stdio::null())
    }

    /// Runs the payload with this very descriptor as standard input: without `--detach`, runc puts
    /// pipes of its own between.
    pub(crate) fn run_detached(mut self, argv: &[&str], input: Stdio) -> Outcome {
        self.set_argv(argv);
        self.finish_detached(input)
    }

    /// Runs the payload under a terminal that `script(1)` makes for runc.
    pub(crate) fn run_on_terminal(mut self, argv: &[&str]) -> Outcome {
        self.set_argv(argv);
        let command = self.command("run");
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(|word| word.to_str().unwrap()).collect();
        let output = Command::new("script")
            .args([
                "--quiet",
                "--return",
                "--command",
                &words.join(" "),
                "/dev/null",
            ])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Outcome {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            reports: self.reports(),
        }
    }

    fn finish_detached(mut self, input: Stdio) -> Outcome {
        process::become_subreaper().unwrap();
        let (mut stdout, out) = std::io::pipe().unwrap();
        let (mut stderr, err) = std::io::pipe().unwrap();
        let pid_file = self.path().join("pid");
        self.flags.extend(["--detach", "--pid-file"]);
        self.pid_file = Some(pid_file.clone());
        let mut command = self.command("run");
        let status = command.stdin(input).stdout(out).stderr(err).status();
        drop(command);
        assert!(status.unwrap().success(), "runc does not start the bundle");
        let pid: i32 = std::fs::read_to_string(pid_file).unwrap().parse().unwrap();
        let ended = process::wait(process::Pid::from_raw(pid).unwrap()).unwrap();
        let mut outcome = Outcome {
            code: Some(i32::from(ended.exit_status())),
            stdout: String::new(),
            stderr: String::new(),
            reports: self.reports(),
        };
        stdout.read_to_string(&mut outcome.stdout).unwrap();
        stderr.read_to_string(&mut outcome.stderr).unwrap();
        outcome
    }

    /// Starts the payload and leaves it running.
    pub(crate) fn start(mut self, argv: &[&str]) -> Running {
        self.set_argv(argv);
        let runc = self.command("run").stdin(Stdio::null()).spawn().unwrap();
        Running { bundle: self, runc }
    }

    /// Creates the container, whose init waits in namespace A for `start`.
    pub(crate) fn create(mut self, argv: &[&str]) -> Running {
        self.set_argv(argv);
        let mut command = self.command("create");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut runc = command.spawn().unwrap();
        assert!(runc.wait().unwrap().success());
        Running { bundle: self, runc }
    }

    fn set_argv(&mut self, argv: &[&str]) {
        let mut args = vec![INIT_PATH];
        args.extend(argv);
        self.config["process"]["args"] = json!(args);
    }

    fn finish(mut self, input: Stdio) -> Outcome {
        let child = self.command("run").stdin(input).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        Outcome {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            reports: self.reports(),
        }
    }

    /// Writes the bundle and prepares `runc <verb>`.
    pub(crate) fn command(&self, verb: &str) -> Command {
        let config = serde_json::to_vec(&self.config).unwrap();
        std::fs::write(self.path().join("config.json"), config).unwrap();
        let plan = match &self.plan_text {
            Some(text) => text.clone(),
            None => serde_json::to_string(&self.plan).unwrap(),
        };
        std::fs::write(self.path().join("plan"), plan).unwrap();
        let mut command = if self.with_secret_key {
            wrapped(&["perl", "-e", ADD_KEY])
        } else if self.with_extra_descriptor {
            wrapped(&["sh", "-c", "exec \"$@\" 3< /dev/null", "sh"])
        } else {
            Command::new("runc")
        };
        command
            .arg("--root")
            .arg(self.path().join("state"))
            .arg(verb)
            .args(&self.flags)
            .args(&self.pid_file)
            .arg("--bundle")
            .arg(self.path())
            .arg(&self.id)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `runc` with this bundle's state directory.
    pub(crate) fn runc(&self) -> Command {
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.path().join("state"));
        command
    }

    /// The report lines so far.
    pub(crate) fn reports(&mut self) -> Vec<Report> {
        let mut lines = String::new();
        // Ends with EAGAIN when the FIFO is empty.
        drop(self.report.read_to_string(&mut lines));
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Waits for the next report lines.
    pub(crate) fn next_reports(&mut self) -> Vec<Report> {
        wait_until("a report", || {
            let reports = self.reports();
            (!reports.is_empty()).then_some(reports)
        })
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        // Fails where runc has removed the container itself.
        drop(self.runc().args(["delete", "--force", &self.id]).output());
    }
}

impl Running {
    /// Starts a created container.
    pub(crate) fn start(&self) {
        let status = self.bundle.runc().args(["start", &self.bundle.id]).status();
        assert!(status.unwrap().success());
    }

    /// Waits until every guard is on.
    pub(crate) fn ready(&mut self) {
        assert_eq!(self.bundle.next_reports(), [Report::Ready]);
    }

    pub(crate) fn bundle(&mut self) -> &mut Bundle {
        &mut self.bundle
    }

    /// The host's number of PID 1.
    pub(crate) fn init_pid(&self) -> u32 {
        let state = self.bundle.runc().args(["state", &self.bundle.id]).output();
        let state: Value = serde_json::from_slice(&state.unwrap().stdout).unwrap();
        u32::try_from(state["pid"].as_u64().unwrap()).unwrap()
    }

    /// The host's number of the payload: the only child of PID 1.
    pub(crate) fn payload_pid(&self) -> u32 {
        let init = self.init_pid();
        let children = std::fs::read_to_string(format!("/proc/{init}/task/{init}/children"));
        children.unwrap().trim().parse().unwrap()
    }

    /// Sends a signal to PID 1 from outside.
    pub(crate) fn signal(&self, signal: &str) {
        let status = self
            .bundle
            .runc()
            .args(["kill", &self.bundle.id, signal])
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits for the end.
    pub(crate) fn wait(mut self) -> Outcome {
        let status = wait_until("the end of the payload", || self.runc.try_wait().unwrap());
        self.outcome(status)
    }

    fn outcome(mut self, status: ExitStatus) -> Outcome {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.runc
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut stdout)
            .unwrap();
        self.runc
            .stderr
            .take()
            .unwrap()
            .read_to_end(&mut stderr)
            .unwrap();
        Outcome {
            code: status.code(),
            stdout: text(stdout),
            stderr: text(stderr),
            reports: self.bundle.reports(),
        }
    }
}

/// `runc` executed by another program.
fn wrapped(by: &[&str]) -> Command {
    let mut command = Command::new(by[0]);
    command.args(&by[1..]).arg("runc");
    command
}

/// Joins a new session keyring, adds a key to it, executes its arguments. `keyctl` and `add_key`
/// are 250 and 248 on `x86_64`, 219 and 217 on `aarch64`.
const ADD_KEY: &str = "my $x86 = `uname -m` =~ /x86/; \
    syscall($x86 ? 250 : 219, 1, 0) > 0 or die $!; \
    my ($type, $name, $secret) = ('user', 'casemate-test', 'secret'); \
    syscall($x86 ? 248 : 217, $type, $name, $secret, 6, -3) > 0 or die $!; \
    exec @ARGV";

/// A field of `/proc/<pid>/status`.
pub(crate) fn status_field(status: &str, name: &str) -> String {
    let prefix = format!("{name}:");
    let line = status.lines().find(|line| line.starts_with(&prefix));
    line.unwrap().split_once(':').unwrap().1.trim().to_owned()
}

/// Tries until there is an answer, with a deadline.
pub(crate) fn wait_until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(
            Instant::now() < end,
            "{what} did not come within {DEADLINE:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn make_root(root: &Path) {
    for directory in [
        "",
        "usr",
        "etc",
        "dev",
        "proc",
        "tmp",
        "run",
        "run/casemate",
        "kept",
    ] {
        std::fs::create_dir(root.join(directory)).unwrap();
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), root.join(name)).unwrap();
    }
    for path in [
        root.to_owned(),
        root.join("kept"),
        root.join("dev"),
        root.join("run"),
    ] {
        std::os::unix::fs::chown(path, Some(FIRST_ID), Some(FIRST_ID)).unwrap();
    }
}

fn make_report(path: &Path) -> File {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    std::os::unix::fs::chown(path, Some(FIRST_ID), Some(FIRST_ID)).unwrap();
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(O_NONBLOCK)
        .open(path)
        .unwrap()
}

fn config(bundle: &Path, id: &str) -> Value {
    let inert = ["nosuid", "nodev", "noexec"];
    let bind = |source: PathBuf, target: &str, mode: &str| {
        json!({"destination": target, "type": "bind", "source": source,
               "options": ["bind", mode, "nosuid", "nodev"]})
    };
    let ids = json!([{"containerID": 0, "hostID": FIRST_ID, "size": 65536}]);
    let kinds = ["user", "mount", "pid", "ipc", "uts", "network", "cgroup"];
    let namespaces: Vec<_> = kinds.map(|kind| json!({"type": kind})).to_vec();
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": [],
            "env": ["PATH=/usr/bin:/usr/sbin", "LANG=C"],
            "cwd": "/",
            "capabilities": {
                "bounding": OUTER, "effective": OUTER, "permitted": OUTER,
                "inheritable": [], "ambient": [],
            },
        },
        "root": {"path": "rootfs", "readonly": false},
        "hostname": "test",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": inert},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
             "options": ["nosuid", "mode=755", "size=64k"]},
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
             "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs",
             "options": ["nosuid", "nodev", "mode=1777", "size=16m"]},
            {"destination": "/usr", "type": "bind", "source": "/usr",
             "options": ["rbind", "rro", "nosuid", "nodev"]},
            {"destination": RUN_DIR, "type": "tmpfs", "source": "tmpfs",
             "options": ["nosuid", "nodev", "mode=755", "size=64k"]},
            bind(init().to_owned(), INIT_PATH, "ro"),
            bind(bundle.join("plan"), PLAN_PATH, "ro"),
            bind(bundle.join("report"), REPORT_PATH, "rw"),
        ],
        "linux": {
            "uidMappings": ids,
            "gidMappings": ids,
            "cgroupsPath": format!("/{id}"),
            "namespaces": namespaces,
            "rootfsPropagation": "private",
            "maskedPaths": ["/proc/kcore", "/proc/keys"],
            "readonlyPaths": ["/proc/sys"],
        },
    })
}

fn plan() -> GuardPlan {
    GuardPlan {
        version: VERSION,
        tier: GuardTier::Process,
        cwd: "/tmp".to_owned(),
        uid: 0,
        gid: 0,
        namespace_ceilings: true,
        capabilities: Vec::new(),
        no_new_privs: true,
        landlock: Some(Landlock {
            handled_fs: FsRight::ALL.to_vec(),
            handled_net: Vec::new(),
            scoped: Vec::new(),
            rules: vec![
                rule(
                    "/",
                    &[FsRight::Execute, FsRight::ReadFile, FsRight::ReadDir],
                ),
                rule("/tmp", &FsRight::ALL),
                rule(
                    "/dev",
                    &[FsRight::WriteFile, FsRight::ReadFile, FsRight::IoctlDev],
                ),
                rule(
                    "/proc",
                    &[FsRight::WriteFile, FsRight::ReadFile, FsRight::ReadDir],
                ),
            ],
        }),
        seccomp: filter(ENOSYS),
    }
}

/// One allow rule for a path that must be there.
pub(crate) fn rule(path: &str, allow: &[FsRight]) -> LandlockRule {
    LandlockRule {
        path: path.to_owned(),
        allow: allow.to_vec(),
        optional: false,
    }
}

const ENOSYS: u32 = 38;

/// A filter that answers `acct(2)` with this errno, kills foreign architectures, allows the rest.
/// Errno 0 still skips the call.
pub(crate) fn filter(errno: u32) -> Seccomp {
    let (arch, audit, acct) = match std::env::consts::ARCH {
        "x86_64" => ("AUDIT_ARCH_X86_64", 0xc000_003e_u32, 163),
        "aarch64" => ("AUDIT_ARCH_AARCH64", 0xc000_00b7, 89),
        other => panic!("no filter for {other}"),
    };
    let load = |offset| instruction(0x20, 0, 0, offset);
    let equal = |jt, jf, k| instruction(0x15, jt, jf, k);
    let answer = |k| instruction(0x06, 0, 0, k);
    Seccomp {
        arch: arch.to_owned(),
        program: vec![
            load(4),
            equal(1, 0, audit),
            answer(0x8000_0000),
            load(0),
            equal(0, 1, acct),
            answer(0x0005_0000 | errno),
            answer(0x7fff_0000),
        ],
    }
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> String {
    format!("{code:04x}{jt:02x}{jf:02x}{k:08x}")
}

/// Every capability of the kernel, `linux/capability.h`.
pub(crate) const ALL_CAPABILITIES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];
