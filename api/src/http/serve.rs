//! `casemate serve`: as root the spawner, then the service user, then everything else.

use std::io;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;

use casemate_engine::{Engine, EngineError, SpawnerMode, SpawnerProcess};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};

use super::layers::{self, BrokenLayers, LayersError};
use super::{App, Gate, GateError, Places, PrivateSocketError, PrivilegeError, ServiceUser};
use crate::audit::{Audit, AuditError};
use crate::auth::{Auth, AuthError};
use crate::config::{Config, IdsError};
use crate::error::ApiError;
use crate::store::{Store, StoreError};
use crate::workspace::{Workspace, WorkspaceError};

/// The service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No workspace is configured.
    #[error("the service needs a workspace; set `workspace` in the configuration")]
    NoWorkspace,
    /// Host ids.
    #[error(transparent)]
    Ids(#[from] IdsError),
    /// The service user.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    /// The workspace belongs to somebody else.
    #[error("the workspace belongs to {owner}, the service runs as {uid}; chown the workspace")]
    Owner {
        /// Who owns it.
        owner: u32,
        /// The service user.
        uid: u32,
    },
    /// Host users reach the workspace.
    #[error(
        "other users of this host can enter the workspace, where a sandbox can leave programs that \
         run as the service user; close it or a directory above it: chmod 0700"
    )]
    Reachable,
    /// Layers without their bases.
    #[error(transparent)]
    Layers(#[from] LayersError),
    /// The allow-lists.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The spawner.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The workspace.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Credentials.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The audit log.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The listener.
    #[error("cannot listen on {address}; is another service running?")]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The socket for the commands of this program.
    #[error(transparent)]
    Socket(#[from] PrivateSocketError),
    /// Sandboxes of an earlier service.
    #[error("cannot list the living sandboxes")]
    Adopt(#[source] ApiError),
    /// Threads, signals or sockets.
    #[error("cannot {what}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> ServeError {
    move |source| ServeError::System { what, source }
}

/// Runs the service until SIGTERM or SIGINT. The process has to have one thread.
pub fn serve(config: &Config, broken: BrokenLayers) -> Result<(), ServeError> {
    let workspace = config.workspace.clone().ok_or(ServeError::NoWorkspace)?;
    if casemate_sys::process::ids().0 != 0 {
        return Err(PrivilegeError::NotRoot {
            user: config.service_user.clone(),
        }
        .into());
    }
    let user = ServiceUser::find(&config.service_user)?;
    let gate = Gate::new(
        config.listen,
        &config.allowed_hosts,
        &config.allowed_origins,
    )?;
    let engine = config.engine(SpawnerMode::Shared, Some(workspace.clone()))?;
    let opened = Workspace::open(&workspace)?;
    let owner = opened.service();
    if owner != user.uid {
        return Err(ServeError::Owner {
            owner,
            uid: user.uid,
        });
    }
    if !opened
        .is_closed()
        .map_err(failed("look at the workspace"))?
    {
        return Err(ServeError::Reachable);
    }
    layers::check(config, &workspace, broken)?;
    let ids = engine.ids;
    let spawner = SpawnerProcess::start(&engine)?;
    user.assume()?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(failed("start the threads of the service"))?;
    let SpawnerProcess { socket, child } = spawner;
    let result = runtime.block_on(async {
        let engine = Engine::from_socket(socket).await?;
        let workspace = Arc::new(Workspace::open(&workspace)?);
        let store = Arc::new(Store::open(&workspace)?);
        let directory = Path::new(workspace.path().as_str());
        let socket = App::listen_privately(&workspace)?;
        let auth = Auth::open(directory, Arc::clone(&store))?;
        let audit = Audit::open(directory)?;
        let places = Places::new(config, Arc::clone(&workspace), store, ids);
        let app = App::new(gate, auth, audit, engine, places);
        app.adopt().await.map_err(ServeError::Adopt)?;
        listen(config, &app, socket).await
    });
    // Requests that are still under way end with their threads; their sandboxes live on.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    reap(child);
    result
}

async fn listen(config: &Config, app: &App, socket: UnixListener) -> Result<(), ServeError> {
    let address = config.listen;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| ServeError::Listen { address, source })?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed("wait for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed("wait for SIGINT"))?;
    tracing::info!(%address, version = env!("CARGO_PKG_VERSION"), "service started");
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    app.run(listener, socket, stop).await;
    tracing::info!("service stopped; sessions live on");
    Ok(())
}

/// The spawner exits when its socket closes; a child that is waited for leaves nothing behind.
fn reap(mut child: Child) {
    if let Err(error) = child.wait() {
        tracing::debug!(error = %error, "the spawner was not waited for");
    }
}
