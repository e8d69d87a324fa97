//! A service on a workspace of its own, without a spawner that could start anything: its peer
//! says what the host supports and refuses every launch. Tests that run sandboxes are elsewhere.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use casemate::audit::Audit;
use casemate::auth::Auth;
use casemate::config::{Config, Sources};
use casemate::http::{App, Gate, Places};
use casemate::store::Store;
use casemate::workspace::Workspace;
use casemate_bundles::{Arch, Component, HostPath, HostSupport, LimitSupport};
use casemate_engine::{Engine, IdBlock};
use casemate_protocol::{FromSpawner, LaunchError, ToSpawner};
use casemate_sys::socket::{Wait, pair, receive, send};

pub(crate) const HOST: &str = "127.0.0.1:8642";
pub(crate) const ORIGIN: &str = "http://127.0.0.1:8642";

pub(crate) struct TestService {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) app: App,
    pub(crate) token: String,
}

pub(crate) async fn service() -> TestService {
    let directory = tempfile::tempdir().unwrap();
    let workspace = make_workspace(directory.path());
    let mut flags = BTreeMap::new();
    flags.insert("root", directory.path().join("root").display().to_string());
    let config = Config::load(&Sources {
        flags,
        environment: BTreeMap::new(),
        file: Some("/dev/null".into()),
    })
    .unwrap();
    casemate_rootfs::Store::create(config.root.as_str()).unwrap();
    let (ours, theirs) = pair().unwrap();
    std::thread::spawn(move || refuse_everything(&theirs));
    let engine = Engine::from_socket(ours).await.unwrap();
    let workspace = Arc::new(Workspace::open(&workspace).unwrap());
    let store = Arc::new(Store::open(&workspace).unwrap());
    let path = Path::new(workspace.path().as_str()).to_owned();
    let auth = Auth::open(&path, Arc::clone(&store)).unwrap();
    let token = std::fs::read_to_string(path.join(".xbin/token")).unwrap();
    let ids = IdBlock {
        first: 1 << 24,
        slices: 16,
    };
    let listen: SocketAddr = HOST.parse().unwrap();
    let app = App::new(
        Gate::new(listen, &["casemate.example".to_owned()], &[]).unwrap(),
        auth,
        Audit::open(&path).unwrap(),
        engine,
        Places::new(&config, workspace, store, ids),
    );
    TestService {
        directory,
        app,
        token: token.trim().to_owned(),
    }
}

impl TestService {
    pub(crate) fn workspace(&self) -> std::path::PathBuf {
        self.directory.path().join("workspace")
    }

    /// Listens in the service's own directory, as the program does.
    #[allow(dead_code, reason = "not every test has a running service")]
    pub(crate) fn socket(&self) -> tokio::net::UnixListener {
        let path = HostPath::parse(self.workspace().to_str().unwrap()).unwrap();
        App::listen_privately(&Workspace::open(&path).unwrap()).unwrap()
    }

    /// Every line of the audit log.
    #[allow(dead_code, reason = "not every test reads it")]
    pub(crate) fn audit(&self) -> Vec<serde_json::Value> {
        let mut lines = Vec::new();
        for file in std::fs::read_dir(self.workspace().join(".xbin/audit")).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            lines.extend(text.lines().map(|line| serde_json::from_str(line).unwrap()));
        }
        lines
    }
}

fn make_workspace(parent: &Path) -> HostPath {
    let path = parent.join("workspace");
    for below in ["", "apps", "apps/hello", ".xbin", "data"] {
        let made = path.join(below);
        std::fs::create_dir(&made).unwrap();
        std::os::unix::fs::chown(&made, Some(64_000), Some(64_000)).unwrap();
    }
    std::fs::write(path.join("apps/hello/xbin.json"), r#"{"name":"hello"}"#).unwrap();
    HostPath::parse(path.to_str().unwrap()).unwrap()
}

fn refuse_everything(socket: &OwnedFd) {
    let say = |message: &FromSpawner| {
        let packet = serde_json::to_vec(message).unwrap();
        send(socket, &packet, &[], Wait::Block)
    };
    say(&FromSpawner::Hello { support: support() }).unwrap();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match receive(socket, &mut buffer, Wait::Block) {
            Ok(received) if received.bytes > 0 => {
                let message = serde_json::from_slice(&buffer[..received.bytes]).unwrap();
                let answer = match message {
                    ToSpawner::List { request } => FromSpawner::Keepers {
                        request,
                        ids: Vec::new(),
                    },
                    ToSpawner::Launch { request } | ToSpawner::Connect { request, .. } => {
                        FromSpawner::Refused {
                            request,
                            error: LaunchError::Unavailable {
                                component: Component::Seccomp,
                                hint: "this host has no seccomp".to_owned(),
                            },
                        }
                    }
                };
                if say(&answer).is_err() {
                    return;
                }
            }
            Ok(_) | Err(_) => return,
        }
    }
}

fn support() -> HostSupport {
    HostSupport {
        arch: Arch::X86_64,
        landlock_abi: 7,
        limits: LimitSupport::V1,
        user_namespaces: true,
        id_mapped_mounts: true,
        overlay: true,
        seccomp: false,
        openat2: true,
        cgroup_kill: true,
        fuse: true,
        tun: true,
        nofile: 1024,
    }
}
