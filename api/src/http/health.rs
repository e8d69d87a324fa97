//! `/healthz`, `/readyz` and `/v1/runtime`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
/// How long a failed one counts: who has no credential must not start sandboxes without end.
const BAD_FOR: Duration = Duration::from_secs(5);

/// When a probe ended, and how it went.
type Went = (Instant, Result<(), ApiError>);

/// How the last probe went, and a lock that lets one run at a time.
#[derive(Debug, Clone)]
pub(super) struct Probe {
    last: Arc<Mutex<Option<Went>>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Probe {
    pub(super) fn new() -> Self {
        Self {
            last: Arc::new(Mutex::new(None)),
            turn: Arc::new(tokio::sync::Mutex::new(())),
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Went>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how the last probe went, where that still counts.
    fn fresh(&self) -> Option<Result<(), ApiError>> {
        let last = self.last();
        let (at, went) = last.as_ref()?;
        let counts = if went.is_ok() { GOOD_FOR } else { BAD_FOR };
        (at.elapsed() < counts).then(|| went.clone())
    }

    /// Returns how the last probe went, however old it is, while another one runs.
    fn meanwhile(&self) -> Result<(), ApiError> {
        match self.last().as_ref() {
            Some((_, went)) => went.clone(),
            None => Err(ApiError::unavailable(
                &"probe",
                "the first probe sandbox runs; ask again",
            )),
        }
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
    match probe.fresh() {
        Some(went) => went?,
        None => match probe.turn.try_lock() {
            Ok(_turn) => {
                let went = try_sandbox(&app).await;
                *probe.last() = Some((Instant::now(), went.clone()));
                went?;
            }
            Err(_running) => probe.meanwhile()?,
        },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_probe_counts_for_a_while() {
        let probe = Probe::new();
        assert!(probe.fresh().is_none() && probe.meanwhile().is_err());
        let failed = || Err(ApiError::unavailable(&"seccomp", ""));
        *probe.last() = Some((Instant::now(), failed()));
        assert_eq!(
            probe.fresh().unwrap().unwrap_err().component.as_deref(),
            Some("seccomp")
        );
        let ago = |age| Instant::now().checked_sub(age).unwrap();
        *probe.last() = Some((ago(BAD_FOR), failed()));
        assert!(probe.fresh().is_none(), "tried again");
        *probe.last() = Some((ago(BAD_FOR), Ok(())));
        probe.fresh().unwrap().unwrap();
        *probe.last() = Some((ago(GOOD_FOR), Ok(())));
        assert!(probe.fresh().is_none() && probe.meanwhile().is_ok());
    }
}
