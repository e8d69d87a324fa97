//! The HTTP and WebSocket surface, and the life of the service.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{delete, get, post};
use casemate_engine::Engine;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

mod adopt;
mod answer;
mod caller;
mod connections;
mod exec;
mod gate;
mod health;
mod layers;
mod login;
mod page;
mod places;
mod privilege;
mod serve;
mod sessions;
mod term;

use answer::{JsonBody, ok};
use caller::Caller;
pub(crate) use connections::socket_path;
use connections::{Door, Entrance};
pub(crate) use exec::{start_run, wait_or_cancel};
pub use gate::{Gate, GateError};
pub use layers::{BrokenLayers, LayersError};
pub use places::{Base, Places};
pub use privilege::{PrivilegeError, ServiceUser};
pub use serve::{ServeError, serve};

use crate::audit::Audit;
use crate::auth::Auth;
use crate::error::ApiError;
use crate::exec::Runs;
use crate::shell::wire::ShellRequest;
use crate::term::Sessions;
use crate::workspace::{Workspace, WorkspaceError};

/// The terminal's route.
pub(crate) const TERM_ROUTE: &str = "/ws/term";

/// Everything that a request works on. Clones share it.
#[derive(Debug, Clone)]
pub struct App {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    gate: Gate,
    auth: Auth,
    audit: Audit,
    engine: Engine,
    places: Places,
    runs: Runs,
    sessions: Sessions,
    probe: health::Probe,
    stop: watch::Sender<bool>,
}

impl App {
    /// Puts the parts of a service together.
    pub fn new(gate: Gate, auth: Auth, audit: Audit, engine: Engine, places: Places) -> Self {
        Self {
            shared: Arc::new(Shared {
                gate,
                auth,
                runs: Runs::new(engine.clone(), audit.clone()),
                sessions: Sessions::new(engine.clone(), audit.clone()),
                audit,
                engine,
                places,
                probe: health::Probe::new(),
                stop: watch::channel(false).0,
            }),
        }
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.shared.gate
    }

    pub(crate) fn auth(&self) -> &Auth {
        &self.shared.auth
    }

    pub(crate) fn audit(&self) -> &Audit {
        &self.shared.audit
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    pub(crate) fn places(&self) -> &Places {
        &self.shared.places
    }

    pub(crate) fn runs(&self) -> &Runs {
        &self.shared.runs
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.shared.sessions
    }

    fn probe(&self) -> &health::Probe {
        &self.shared.probe
    }

    /// Becomes true when the service stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.shared.stop.subscribe()
    }

    /// Returns every route behind the gate.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/", get(page::index))
            .route("/login", get(page::index))
            .route("/assets/{name}", get(page::asset))
            .route("/healthz", get(health::alive))
            .route("/readyz", get(health::ready))
            .route("/v1/runtime", get(health::runtime))
            .route("/v1/auth/login-codes", post(login::mint_code))
            .route("/v1/auth/login", post(login::log_in))
            .route("/v1/auth/logout", post(login::log_out))
            .route("/v1/auth/me", get(login::me))
            .route("/v1/auth/ticket", post(login::mint_ticket))
            .route("/v1/exec", post(exec::start))
            .route("/v1/exec/{id}", get(exec::show).delete(exec::cancel))
            .route("/v1/tiles", get(sessions::tiles))
            .route("/v1/sessions", get(sessions::list))
            .route("/v1/sessions/{id}", delete(sessions::end))
            .route("/shell/run", post(shell_run))
            .route(TERM_ROUTE, get(term::upgrade))
            .fallback(async || ApiError::not_found("there is no such route"))
            .layer(axum::middleware::from_fn_with_state(
                self.clone(),
                gate::layer,
            ))
            .with_state(self.clone())
    }

    /// Listens in the service's own directory in the workspace, which [`App::run`] then serves: the
    /// door of the commands of this program, whose owner token goes to no port.
    pub fn listen_privately(workspace: &Workspace) -> Result<UnixListener, PrivateSocketError> {
        let private = workspace.private_dir()?;
        connections::listen_privately(&private).map_err(PrivateSocketError::Listen)
    }

    /// Serves until `stop` is done, then closes the listeners and gives requests a moment to end.
    /// Sessions and runs live on.
    pub async fn run(
        &self,
        port: TcpListener,
        socket: UnixListener,
        stop: impl Future<Output = ()> + Send,
    ) {
        let door = |door: Door| {
            let router = self.router().layer(axum::Extension(door));
            Entrance::new(router, self.stopping())
        };
        let served = async {
            tokio::join!(
                door(Door::Port).serve_port(port),
                door(Door::Socket).serve_socket(socket),
            );
        };
        let deadline = async {
            stop.await;
            self.shared.stop.send_replace(true);
            tokio::time::sleep(Duration::from_secs(5)).await;
        };
        tokio::select! {
            () = served => {}
            () = deadline => {}
        }
    }

    /// Takes up every sandbox of an earlier service.
    pub async fn adopt(&self) -> Result<(), ApiError> {
        adopt::adopt_all(self).await
    }
}

/// There is no socket for the commands of this program.
#[derive(Debug, thiserror::Error)]
pub enum PrivateSocketError {
    /// The service's own directory.
    #[error(transparent)]
    Directory(#[from] WorkspaceError),
    /// The socket.
    #[error("cannot listen in the service's directory in the workspace")]
    Listen(#[source] std::io::Error),
}

/// `POST /shell/run`.
async fn shell_run(
    State(app): State<App>,
    Caller(principal): Caller,
    JsonBody(request): JsonBody<ShellRequest>,
) -> Result<Response, ApiError> {
    let output = crate::shell::dispatch(&app, &principal, request).await?;
    Ok(ok(&output))
}

/// Returns the route of a path, for the log.
fn route_of(path: &str) -> &'static str {
    match path {
        "/" => "/",
        "/login" => "/login",
        "/healthz" => "/healthz",
        "/readyz" => "/readyz",
        "/v1/runtime" => "/v1/runtime",
        "/v1/exec" => "/v1/exec",
        "/v1/tiles" => "/v1/tiles",
        "/v1/sessions" => "/v1/sessions",
        "/shell/run" => "/shell/run",
        TERM_ROUTE => TERM_ROUTE,
        path if path.starts_with("/assets/") => "/assets/{name}",
        path if path.starts_with("/v1/auth/") => "/v1/auth/{verb}",
        path if path.starts_with("/v1/exec/") => "/v1/exec/{id}",
        path if path.starts_with("/v1/sessions/") => "/v1/sessions/{id}",
        _ => "unknown",
    }
}
