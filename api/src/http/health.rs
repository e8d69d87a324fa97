//! `/healthz`, `/readyz` and `/v1/runtime`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use casemate_protocol::ExitReason;

use super::App;
use super::answer::ok;
use super::caller::Caller;
use crate::error::{ApiError, ErrorKind};
use crate::exec::{probe_request, run_probe};

/// How long a good probe counts.
const GOOD_FOR: Duration = Duration::from_mins(1);

/// The last probe that went well, and a lock that lets one run at a time.
#[derive(Debug, Clone)]
pub(super) struct Probe {
    good: Arc<Mutex<Option<Instant>>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Probe {
    pub(super) fn new() -> Self {
        Self {
            good: Arc::new(Mutex::new(None)),
            turn: Arc::new(tokio::sync::Mutex::new(())),
        }
    }

    fn is_fresh(&self) -> bool {
        self.good
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some_and(|at| at.elapsed() < GOOD_FOR)
    }
}

/// `GET /healthz`: the process answers.
pub(super) async fn alive() -> Response {
    ok(&serde_json::json!({ "status": "ok" }))
}

/// `GET /readyz`: the spawner lives and a sandbox ran, start and clean-up.
pub(super) async fn ready(State(app): State<App>) -> Result<Response, ApiError> {
    app.engine().keepers().await?;
    let probe = app.probe();
    if !probe.is_fresh() {
        let _turn = probe.turn.lock().await;
        if !probe.is_fresh() {
            try_sandbox(&app).await?;
            *probe.good.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    }
    Ok(ok(&serde_json::json!({ "status": "ready" })))
}

async fn try_sandbox(app: &App) -> Result<(), ApiError> {
    let base = app.places().base(None).await?;
    let request = probe_request(base.chain)?;
    let record = run_probe(app.engine(), &request).await?;
    if record.reason == (ExitReason::Exited { code: 0 }) {
        return Ok(());
    }
    let mut error = ApiError::new(
        ErrorKind::Unavailable,
        "SANDBOX_UNAVAILABLE",
        "a probe sandbox did not end well; run `casemate doctor`",
    );
    error.component = Some("probe".to_owned());
    Err(error)
}

/// `GET /v1/runtime`: what the host supports, what is enforced, which bases there are.
pub(super) async fn runtime(
    State(app): State<App>,
    Caller(principal): Caller,
) -> Result<Response, ApiError> {
    let bases = app.places().bases().await?;
    let (_, bases) = principal.grant_admin(bases)?.into_parts();
    let support = app.engine().support();
    Ok(ok(&serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "host": support,
        "protections": {
            "locked_view": true,
            "capabilities": true,
            "seccomp": support.seccomp,
            "landlock": support.landlock_abi > 0,
            "limits": support.limits,
        },
        "bases": bases,
        "sessions": app.sessions().list().len(),
        "runs": app.runs().under_way(),
    })))
}
