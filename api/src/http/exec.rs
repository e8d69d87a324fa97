//! `/v1/exec`.

use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;

use super::App;
use super::answer::{JsonBody, json, ok};
use super::caller::Caller;
use crate::auth::Principal;
use crate::error::{ApiError, ErrorKind};
use crate::exec::plan::RunPlan;
use crate::exec::wire::ExecRequest;
use crate::exec::{Answer, Collected, RunHandle, RunRequest};

/// Longest wait for a result in one request.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// How long a client wants to wait for a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// To the end; one that goes away cancels the run.
    ToTheEnd,
    /// This long; the run goes on without it.
    For(Duration),
}

/// Cancels a run whose client has gone.
struct CancelOnDrop {
    handle: Option<RunHandle>,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.cancel();
        }
    }
}

/// `POST /v1/exec`.
pub(super) async fn start(
    State(app): State<App>,
    Caller(principal): Caller,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ExecRequest>,
) -> Result<Response, ApiError> {
    let patience = patience_of(&headers)?;
    let answered = match patience {
        Patience::ToTheEnd => Answer::AtItsEnd,
        Patience::For(_) => Answer::Earlier,
    };
    let mut handle = start_run(&app, &principal, request, answered).await?;
    match patience {
        Patience::ToTheEnd => {
            let collected = wait_or_cancel(&app, handle).await?;
            Ok(ok(collected.as_ref()))
        }
        Patience::For(wait) => answer(&mut handle, wait).await,
    }
}

/// Starts what a request asks for.
pub(crate) async fn start_run(
    app: &App,
    principal: &Principal,
    request: ExecRequest,
    answer: Answer,
) -> Result<RunHandle, ApiError> {
    let plan = RunPlan::parse(request)?;
    let base = app.places().base(plan.base.as_deref()).await?;
    let granted = principal.grant_run(RunRequest {
        plan,
        base: base.chain,
    });
    app.runs().start(granted, answer).await
}

/// Waits to the end; when the wait itself is given up, the run is cancelled.
pub(crate) async fn wait_or_cancel(app: &App, handle: RunHandle) -> Collected {
    let mut guard = CancelOnDrop {
        handle: Some(handle),
    };
    let Some(handle) = guard.handle.as_mut() else {
        return Err(ApiError::not_found("there is no such run"));
    };
    let collected = handle.wait().await;
    if let Some(handle) = guard.handle.take() {
        // It was handed over; nobody asks for it again.
        app.runs().forget(handle.id());
    }
    collected
}

async fn answer(handle: &mut RunHandle, wait: Duration) -> Result<Response, ApiError> {
    match tokio::time::timeout(wait, handle.wait()).await {
        Ok(collected) => Ok(ok(collected?.as_ref())),
        Err(_elapsed) => Ok(json(
            StatusCode::ACCEPTED,
            &serde_json::json!({ "exec_id": handle.id(), "state": "running" }),
        )),
    }
}

/// Reads `Prefer`, and refuses what is not offered.
fn patience_of(headers: &HeaderMap) -> Result<Patience, ApiError> {
    let refused = |message: &str| {
        Err(ApiError::new(
            ErrorKind::Refused,
            "PLAN_NOT_SUPPORTED",
            message,
        ))
    };
    if headers.contains_key("idempotency-key") {
        return refused("Idempotency-Key is not supported; send the request without it");
    }
    let events = headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/event-stream"));
    if events {
        return refused("event streams are not supported; accept application/json");
    }
    let Some(prefer) = headers.get("prefer") else {
        return Ok(Patience::ToTheEnd);
    };
    let prefer = prefer.to_str().unwrap_or_default().trim();
    if prefer.eq_ignore_ascii_case("respond-async") {
        return Ok(Patience::For(Duration::ZERO));
    }
    match prefer.strip_prefix("wait=").map(str::parse) {
        Some(Ok(seconds)) => Ok(Patience::For(Duration::from_secs(seconds).min(MAX_WAIT))),
        Some(Err(_)) | None => Err(ApiError::invalid("Prefer is respond-async or wait=SECONDS")),
    }
}

fn find(app: &App, principal: &Principal, exec_id: &str) -> Result<RunHandle, ApiError> {
    let handle = app
        .runs()
        .find(exec_id)
        .ok_or_else(|| ApiError::not_found("there is no such session or run"))?;
    let user = handle.user().clone();
    Ok(principal.grant_owned(&user, handle)?.into_parts().1)
}

/// Query of `GET /v1/exec/{id}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitQuery {
    #[serde(default)]
    wait_ms: u64,
}

/// `GET /v1/exec/{id}`: the result, or that it is running.
pub(super) async fn show(
    State(app): State<App>,
    Caller(principal): Caller,
    Path(exec_id): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, ApiError> {
    let mut handle = find(&app, &principal, &exec_id)?;
    let wait = Duration::from_millis(query.wait_ms).min(MAX_WAIT);
    answer(&mut handle, wait).await
}

/// `DELETE /v1/exec/{id}`: ends the run and answers when its tree is gone.
pub(super) async fn cancel(
    State(app): State<App>,
    Caller(principal): Caller,
    Path(exec_id): Path<String>,
) -> Result<Response, ApiError> {
    let mut handle = find(&app, &principal, &exec_id)?;
    handle.cancel();
    answer(&mut handle, MAX_WAIT).await
}
