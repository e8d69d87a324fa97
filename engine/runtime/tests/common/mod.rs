//! A spawner of its own in a temporary directory, with a base made of the host's basic commands.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    clippy::panic,
    clippy::panic_in_result_fn,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    clippy::partial_pub_fields,
    clippy::unused_trait_names,
    clippy::let_underscore_must_use,
    clippy::disallowed_methods,
    clippy::unnecessary_debug_formatting,
    missing_debug_implementations,
    missing_docs,
    unreachable_pub,
    unused_assignments,
    dead_code,
    reason = "test code: a failed step is a failed test, and each program uses its part"
)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio as ProcessStdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use casemate_bundles::{
    Argv, ContainerId, CpuMillis, Digest, Environment, HostSupport, Limits, MemoryBytes, Network,
    Pids, ProcessView, Profile, SandboxPath, Stdio, WindowSize,
};
use casemate_protocol::packet::{MAX_PACKET, Packet, Stream};
use casemate_protocol::{
    AttachMode, ExitRecord, FromKeeper, FromSpawner, IdChoice, LaunchError, LaunchRequest,
    OutputPolicy, Resume, Supervision, ToKeeper, ToSpawner,
};
use casemate_sys::{memfd, socket};

/// Nothing takes longer than this, on an emulated machine either.
pub const LIMIT: Duration = Duration::from_mins(2);

pub struct World {
    pub dir: tempfile::TempDir,
    pub spawner: Child,
    socket: OwnedFd,
    next: u64,
    queue: Vec<(FromSpawner, Vec<OwnedFd>)>,
    pub base: Digest,
    pub support: HostSupport,
    cgroups: PathBuf,
}

#[derive(Clone)]
pub struct Ask {
    pub argv: Vec<String>,
    pub stdio: Stdio,
    pub limits: Limits,
    pub supervision: Supervision,
    pub id: String,
}

impl Ask {
    pub fn new(argv: &[&str]) -> Self {
        Self {
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            stdio: Stdio::Pipes,
            limits: Limits {
                memory: MemoryBytes::parse(128 << 20).unwrap(),
                pids: Pids::parse(64).unwrap(),
                cpu: CpuMillis::parse(2000).unwrap(),
            },
            supervision: Supervision {
                timeout_ms: Some(20_000),
                idle_ms: None,
                grace_ms: 20_000,
                output: OutputPolicy::Retain {
                    stdout_bytes: 1 << 20,
                    stderr_bytes: 1 << 20,
                },
            },
            id: new_id(),
        }
    }

    pub fn sh(script: &str) -> Self {
        Self::new(&["sh", "-c", script])
    }

    pub fn stream(mut self) -> Self {
        self.supervision.output = OutputPolicy::Stream {
            ring_bytes: 1 << 20,
            window_bytes: 1 << 20,
        };
        self
    }

    pub fn terminal(mut self) -> Self {
        self.stdio = Stdio::Terminal(WindowSize::parse(80, 24).unwrap());
        self.stream()
    }

    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.supervision.timeout_ms = Some(timeout.as_millis().try_into().unwrap());
        self
    }

    pub fn memory(mut self, bytes: u64) -> Self {
        self.limits.memory = MemoryBytes::parse(bytes).unwrap();
        self
    }

    pub fn request(&self, base: &Digest) -> LaunchRequest {
        LaunchRequest {
            plan: casemate_bundles::LaunchPlan {
                id: ContainerId::parse(self.id.clone()).unwrap(),
                profile: Profile::Process {
                    limits: self.limits,
                    network: Network::None,
                    view: ProcessView {
                        projections: Vec::new(),
                        output: false,
                        scratch_bytes: 16 << 20,
                    },
                },
                base: base.clone(),
                argv: Argv::parse(self.argv.clone()).unwrap(),
                cwd: SandboxPath::parse("/tmp").unwrap(),
                environment: Environment::parse(BTreeMap::new()).unwrap(),
                stdio: self.stdio,
            },
            ids: IdChoice::Pool,
            layer: None,
            supervision: self.supervision,
            label: serde_json::json!({"test": true}),
        }
    }
}

/// A connection to a keeper.
pub struct Connection {
    socket: OwnedFd,
    iseq: u64,
}

#[derive(Debug)]
pub enum Event {
    Control(FromKeeper, Vec<OwnedFd>),
    Output(Stream, u64, Vec<u8>),
    Closed,
}

#[derive(Debug)]
pub struct Ended {
    pub record: ExitRecord,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

pub fn new_id() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("t{:06}{number:05}", std::process::id() % 1_000_000)
}

impl World {
    pub fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), false)
    }

    pub fn shared() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), true)
    }

    fn start_in(dir: tempfile::TempDir, shared: bool) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests need root"
        );
        let base = make_base(dir.path());
        let init = dir.path().join("init");
        std::fs::copy(init_binary(), &init).unwrap();
        let (spawner, socket) = spawn(dir.path(), shared);
        let support = hello(&socket);
        Self {
            dir,
            spawner,
            socket,
            next: 0,
            queue: Vec::new(),
            base,
            support,
            cgroups: own_unified().join("casemate"),
        }
    }

    /// Kills the spawner the hard way and starts another one.
    pub fn restart(&mut self) {
        self.spawner.kill().unwrap();
        self.spawner.wait().unwrap();
        (self.spawner, self.socket) = spawn(self.dir.path(), true);
        self.queue.clear();
        self.support = hello(&self.socket);
    }

    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub fn raw(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) {
        socket::send(&self.socket, packet, descriptors, socket::Wait::Block).unwrap();
    }

    pub fn receive(&mut self) -> (FromSpawner, Vec<OwnedFd>) {
        if !self.queue.is_empty() {
            return self.queue.remove(0);
        }
        self.receive_new()
    }

    fn receive_new(&mut self) -> (FromSpawner, Vec<OwnedFd>) {
        receive(&self.socket)
    }

    fn answer(&mut self, request: u64) -> (FromSpawner, Vec<OwnedFd>) {
        loop {
            let (message, descriptors) = self.receive_new();
            let found = match &message {
                FromSpawner::Launched { request, .. }
                | FromSpawner::Connected { request }
                | FromSpawner::Keepers { request, .. }
                | FromSpawner::Refused { request, .. } => *request,
                other => {
                    assert!(matches!(other, FromSpawner::Lost { .. }), "{other:?}");
                    self.queue.push((message, descriptors));
                    continue;
                }
            };
            assert_eq!(found, request);
            return (message, descriptors);
        }
    }

    pub fn try_launch(&mut self, ask: &Ask) -> Result<Connection, LaunchError> {
        let request = ask.request(&self.base);
        self.launch_document(&serde_json::to_vec(&request).unwrap())
    }

    pub fn launch_document(&mut self, document: &[u8]) -> Result<Connection, LaunchError> {
        let (ours, theirs) = socket::pair().unwrap();
        let memfd = memfd::sealed("launch", &[document]).unwrap();
        self.next += 1;
        let request = self.next;
        let packet = serde_json::to_vec(&ToSpawner::Launch { request }).unwrap();
        self.raw(&packet, &[memfd.as_fd(), theirs.as_fd()]);
        drop(theirs);
        match self.answer(request).0 {
            FromSpawner::Launched { .. } => Ok(Connection {
                socket: ours,
                iseq: 0,
            }),
            FromSpawner::Refused { error, .. } => Err(error),
            other => panic!("{other:?}"),
        }
    }

    pub fn launch(&mut self, ask: &Ask) -> Connection {
        self.try_launch(ask).unwrap()
    }

    /// Launches, closes standard input and waits for the end.
    pub fn run(&mut self, ask: &Ask) -> Ended {
        let mut connection = self.launch(ask);
        connection.attach(AttachMode::Write);
        connection.send(&ToKeeper::CloseInput);
        connection.end()
    }

    pub fn connect(&mut self, id: &str) -> Option<Connection> {
        self.next += 1;
        let request = self.next;
        let id = ContainerId::parse(id).unwrap();
        let packet = serde_json::to_vec(&ToSpawner::Connect { request, id }).unwrap();
        self.raw(&packet, &[]);
        match self.answer(request) {
            (FromSpawner::Connected { .. }, mut fds) => Some(Connection {
                socket: fds.remove(0),
                iseq: 0,
            }),
            (FromSpawner::Refused { error, .. }, _) => {
                assert_eq!(error, LaunchError::NotFound);
                None
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn list(&mut self) -> Vec<String> {
        self.next += 1;
        let request = self.next;
        let packet = serde_json::to_vec(&ToSpawner::List { request }).unwrap();
        self.raw(&packet, &[]);
        match self.answer(request).0 {
            FromSpawner::Keepers { ids, .. } => ids.into_iter().map(String::from).collect(),
            other => panic!("{other:?}"),
        }
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.spawner.id()))
            .unwrap()
            .count()
    }

    /// What of a sandbox is left on the host.
    pub fn leftovers(&self, id: &str) -> Vec<String> {
        let mut found = Vec::new();
        let stage = self.run_dir().join(id);
        if stage.exists() {
            found.push(format!("{stage:?}"));
        }
        for hierarchy in hierarchies() {
            for group in [hierarchy.join("casemate").join(id)] {
                if group.exists() {
                    found.push(format!("{group:?}"));
                }
            }
        }
        for line in std::fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .lines()
        {
            if line.contains(id) {
                found.push(line.to_owned());
            }
        }
        found
    }

    pub fn assert_nothing_left(&self, id: &str) {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let found = self.leftovers(id);
            if found.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "{found:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// First id of the slice of a sandbox.
    pub fn slice(&self, id: &str) -> u32 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(self.run_dir().join(id)).unwrap().gid()
    }

    /// Processes of a sandbox on the host.
    pub fn processes(&self, id: &str) -> Vec<u32> {
        std::fs::read_to_string(self.cgroups.join(id).join("cgroup.procs"))
            .unwrap_or_default()
            .lines()
            .map(|line| line.parse().unwrap())
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Keepers of failed tests would live on; the spawner cleans up after a killed one.
        let stages = || {
            std::fs::read_dir(self.run_dir())
                .into_iter()
                .flatten()
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| path.join("state.json").exists())
        };
        for stage in stages() {
            let state = std::fs::read(stage.join("state.json")).unwrap_or_default();
            let Ok(state) = serde_json::from_slice::<serde_json::Value>(&state) else {
                continue;
            };
            let name = std::fs::read(format!("/proc/{}/comm", state["pid"]));
            if name.is_ok_and(|name| name.starts_with(b"casemate-runtim")) {
                let mut kill = Command::new("kill");
                kill.args(["-9", &state["pid"].to_string()]);
                drop(kill.stderr(ProcessStdio::null()).status());
            }
        }
        let until = Instant::now() + Duration::from_secs(5);
        while stages().next().is_some() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(self.spawner.kill());
        drop(self.spawner.wait());
    }
}

impl Connection {
    pub fn send(&self, message: &ToKeeper) {
        let json = serde_json::to_vec(message).unwrap();
        self.send_packet(&Packet::Control(&json));
    }

    pub fn send_packet(&self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.write(&mut bytes);
        self.send_raw(&bytes);
    }

    pub fn send_raw(&self, bytes: &[u8]) {
        socket::send(&self.socket, bytes, &[], socket::Wait::Block).unwrap();
    }

    pub fn attach(&mut self, mode: AttachMode) {
        self.send(&ToKeeper::Attach {
            mode,
            resume: None,
            size: None,
        });
    }

    pub fn resume(&mut self, token: &str, seq: u64) {
        self.send(&ToKeeper::Attach {
            mode: AttachMode::Write,
            resume: Some(Resume {
                token: token.to_owned(),
                seq,
            }),
            size: None,
        });
    }

    pub fn input(&mut self, bytes: &[u8]) {
        self.send_packet(&Packet::Input {
            iseq: self.iseq,
            bytes,
        });
        self.iseq += bytes.len() as u64;
    }

    pub fn set_iseq(&mut self, iseq: u64) {
        self.iseq = iseq;
    }

    pub fn next(&mut self) -> Event {
        wait_readable(self.socket.as_fd(), LIMIT);
        let mut buffer = vec![0; MAX_PACKET + 1];
        let received = match socket::receive(&self.socket, &mut buffer, socket::Wait::Never) {
            Ok(received) => received,
            Err(error) if error.errno() == rustix::io::Errno::CONNRESET => return Event::Closed,
            Err(error) => panic!("{error}"),
        };
        if received.bytes == 0 {
            return Event::Closed;
        }
        assert!(!received.truncated);
        match Packet::parse(&buffer[..received.bytes]).unwrap() {
            Packet::Control(json) => {
                Event::Control(serde_json::from_slice(json).unwrap(), received.descriptors)
            }
            Packet::Output { stream, seq, bytes } => Event::Output(stream, seq, bytes.to_vec()),
            Packet::Input { .. } => panic!("input from a keeper"),
        }
    }

    /// Next control message that is not `Running` or an acknowledgement of input.
    pub fn control(&mut self) -> FromKeeper {
        loop {
            match self.next() {
                Event::Control(FromKeeper::Running | FromKeeper::InputAck { .. }, _)
                | Event::Output(..) => {}
                Event::Control(message, _) => return message,
                Event::Closed => panic!("the keeper is gone"),
            }
        }
    }

    /// Waits for `Attached`: token, first offset, whether it types.
    pub fn attached(&mut self) -> (String, u64, bool) {
        match self.control() {
            FromKeeper::Attached {
                resume_token,
                seq,
                writer,
                iseq,
                label,
                ..
            } => {
                assert_eq!(label, serde_json::json!({"test": true}));
                self.iseq = iseq;
                (resume_token, seq, writer)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the payload is being executed.
    pub fn running(&mut self) {
        match self.next() {
            Event::Control(FromKeeper::Running, _) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Reads output until it contains `text`; returns the offset after what was read.
    pub fn until(&mut self, text: &str) -> (String, u64) {
        let mut seen = Vec::new();
        let mut end = 0;
        loop {
            match self.next() {
                Event::Output(_, seq, bytes) => {
                    end = seq + bytes.len() as u64;
                    seen.extend(bytes);
                    self.send(&ToKeeper::Ack { offset: end });
                    let all = String::from_utf8_lossy(&seen).into_owned();
                    if all.contains(text) {
                        return (all, end);
                    }
                }
                Event::Control(FromKeeper::Exited { record }, _) => {
                    panic!("ended: {record:?} {}", String::from_utf8_lossy(&seen))
                }
                Event::Control(..) => {}
                Event::Closed => panic!("the keeper is gone"),
            }
        }
    }

    /// Waits for the end and says that it was noticed.
    pub fn end(&mut self) -> Ended {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match self.next() {
                Event::Output(stream, seq, bytes) => {
                    let offset = seq + bytes.len() as u64;
                    match stream {
                        Stream::Out => stdout.extend(bytes),
                        Stream::Err => stderr.extend(bytes),
                    }
                    self.send(&ToKeeper::Ack { offset });
                }
                Event::Control(FromKeeper::Exited { record }, descriptors) => {
                    self.send(&ToKeeper::Collected);
                    if let [out, err] = &descriptors[..] {
                        stdout = memfd::read(out, 1 << 30).unwrap();
                        stderr = memfd::read(err, 1 << 30).unwrap();
                    }
                    return Ended {
                        record,
                        stdout,
                        stderr,
                    };
                }
                Event::Control(FromKeeper::Failed { error }, _) => panic!("failed: {error}"),
                Event::Control(FromKeeper::Refused { error }, _) => panic!("refused: {error}"),
                Event::Control(..) => {}
                Event::Closed => panic!("the keeper is gone"),
            }
        }
    }
}

fn receive(socket: &OwnedFd) -> (FromSpawner, Vec<OwnedFd>) {
    wait_readable(socket.as_fd(), LIMIT);
    let mut buffer = vec![0; 65536];
    let received = socket::receive(socket, &mut buffer, socket::Wait::Never).unwrap();
    assert!(received.bytes > 0, "the spawner is gone");
    let message = serde_json::from_slice(&buffer[..received.bytes]).unwrap();
    (message, received.descriptors)
}

fn hello(socket: &OwnedFd) -> HostSupport {
    match receive(socket) {
        (FromSpawner::Hello { support }, _) => support,
        other => panic!("{other:?}"),
    }
}

/// Groups of a sandbox on the host, by controller; that of version 2 first.
pub fn groups(id: &str) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = casemate_sys::cgroup::hierarchies()
        .unwrap()
        .into_iter()
        .map(|one| {
            let group = one.mount.join(one.own).join("casemate").join(id);
            (one.controllers.join(","), group)
        })
        .filter(|(_, group)| group.exists())
        .collect();
    found.sort();
    found
}

fn wait_readable(fd: BorrowedFd<'_>, limit: Duration) {
    assert!(
        casemate_sys::descriptor::wait_readable(fd, limit).unwrap(),
        "nothing came within {limit:?}"
    );
}

fn spawn(dir: &Path, shared: bool) -> (Child, OwnedFd) {
    let (ours, theirs) = socket::pair().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_casemate-runtime"));
    command
        .args(["spawner", "--socket-fd", "0", "--ids", "1879048192:64"])
        .arg("--root")
        .arg(dir.join("root"))
        .arg("--run-dir")
        .arg(dir.join("run"))
        .arg("--init")
        .arg(dir.join("init"))
        .stdin(ProcessStdio::from(theirs));
    if shared {
        command.arg("--shared");
    }
    let child = command.spawn().unwrap();
    (child, ours)
}

/// The static guard init, built once.
fn init_binary() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(built) = std::env::var_os("CASEMATE_TEST_INIT") {
            return PathBuf::from(built);
        }
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = Path::new(env!("CARGO_BIN_EXE_casemate-runtime"))
            .parent()
            .and_then(Path::parent)
            .unwrap()
            .join("init");
        let built = Command::new(env!("CARGO"))
            .args(["build", "-q", "-p", "casemate-init", "--release"])
            .args(["--target", "x86_64-unknown-linux-gnu", "--target-dir"])
            .arg(&target)
            .env("RUSTFLAGS", "-C target-feature=+crt-static")
            .current_dir(workspace)
            .status()
            .unwrap();
        assert!(built.success(), "casemate-init does not build");
        target.join("x86_64-unknown-linux-gnu/release/casemate-init")
    })
}

/// Copies basic commands of the host with their libraries.
fn make_base(dir: &Path) -> Digest {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let base = Digest::of(b"test base");
    let snapshot = dir.join("root/snapshots/sha256").join(base.hex());
    let root = snapshot.join("fs");
    for below in ["usr/bin", "usr/lib", "usr/lib64", "etc", "tmp", "root"] {
        std::fs::create_dir_all(root.join(below)).unwrap();
    }
    for link in ["bin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{link}"), root.join(link)).unwrap();
    }
    std::fs::write(snapshot.join("use"), b"").unwrap();
    for file in base_files() {
        let mut below = file.strip_prefix("/").unwrap().to_owned();
        if !below.starts_with("usr") {
            below = Path::new("usr").join(below);
        }
        let target = root.join(below);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(file, &target).unwrap();
    }
    std::os::unix::fs::symlink("dash", root.join("usr/bin/sh")).unwrap();
    base
}

/// Basic commands and the libraries that they load, looked up once.
fn base_files() -> &'static [PathBuf] {
    static FOUND: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut files: Vec<PathBuf> = [
            "dash", "bash", "true", "false", "cat", "echo", "sleep", "id", "head", "tail", "yes",
            "stty", "setsid", "wc", "ls", "env", "tr", "dd", "seq", "printf", "kill", "readlink",
        ]
        .map(|name| Path::new("/usr/bin").join(name))
        .into_iter()
        .filter(|path| path.exists())
        .collect();
        let listed = Command::new("ldd").args(&files).output().unwrap();
        for word in String::from_utf8(listed.stdout).unwrap().split_whitespace() {
            if word.starts_with('/') && !word.ends_with(':') {
                files.push(PathBuf::from(word));
            }
        }
        files
    })
}

fn own_unified() -> PathBuf {
    casemate_sys::cgroup::hierarchies()
        .unwrap()
        .into_iter()
        .find(|one| one.controllers.is_empty())
        .map(|one| one.mount.join(one.own))
        .unwrap()
}

fn hierarchies() -> Vec<PathBuf> {
    casemate_sys::cgroup::hierarchies()
        .unwrap()
        .into_iter()
        .map(|one| one.mount.join(one.own))
        .collect()
}
