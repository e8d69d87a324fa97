//! `/v1/sessions` and `/v1/tiles`.

use axum::extract::{Path, State};
use axum::response::Response;
use casemate_protocol::CancelledBy;
use schemars::JsonSchema;
use serde::Serialize;

use super::App;
use super::answer::ok;
use super::caller::Caller;
use crate::error::ApiError;
use crate::exec::wire::Outcome;

/// A tile that the caller may open a terminal on.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TileSummary {
    tile: String,
    name: Option<String>,
    description: Option<String>,
}

/// `GET /v1/tiles`.
pub(super) async fn tiles(
    State(app): State<App>,
    Caller(principal): Caller,
) -> Result<Response, ApiError> {
    let tiles = app.places().tiles().await?;
    let (_, tiles) = principal.grant_admin(tiles)?.into_parts();
    let tiles: Vec<_> = tiles
        .into_iter()
        .map(|(id, manifest)| {
            let (name, description) = match manifest {
                Some(manifest) => (manifest.name, manifest.description),
                None => (None, None),
            };
            TileSummary {
                tile: id.to_string(),
                name,
                description,
            }
        })
        .collect();
    Ok(ok(&serde_json::json!({ "tiles": tiles })))
}

/// `GET /v1/sessions`.
pub(super) async fn list(State(app): State<App>, Caller(principal): Caller) -> Response {
    let sessions: Vec<_> = app
        .sessions()
        .list()
        .into_iter()
        .filter_map(|(user, summary)| principal.grant_owned(&user, summary).ok())
        .map(|granted| granted.into_parts().1)
        .collect();
    ok(&serde_json::json!({ "sessions": sessions }))
}

/// `DELETE /v1/sessions/{id}`: ends the session and answers when its tree is gone.
pub(super) async fn end(
    State(app): State<App>,
    Caller(principal): Caller,
    Path(session): Path<String>,
) -> Result<Response, ApiError> {
    let found = app
        .sessions()
        .find(&session)
        .ok_or_else(|| ApiError::not_found("there is no such session or run"))?;
    let user = found.user().clone();
    let by = if user == *principal.user() {
        CancelledBy::User
    } else {
        CancelledBy::Admin
    };
    let (_, found) = principal.grant_owned(&user, found)?.into_parts();
    let record = found.end(by).await?;
    let (outcome, exit_code, signal) = Outcome::of(record.reason);
    Ok(ok(&serde_json::json!({
        "session": session, "outcome": outcome, "exit_code": exit_code, "signal": signal,
        "leftovers_killed": record.leftovers_killed,
    })))
}
