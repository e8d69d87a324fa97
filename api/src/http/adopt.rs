//! Sandboxes of an earlier service: found by their keepers, known by their labels.

use casemate_bundles::ContainerId;
use casemate_engine::Engine;

use super::App;
use crate::audit::Happened;
use crate::error::ApiError;
use crate::exec::AdoptedRun;
use crate::label::Label;
use crate::term::attach_to_end;

/// Takes up every sandbox that lives. One that cannot be taken up is left to its own grace time.
pub(super) async fn adopt_all(app: &App) -> Result<(), ApiError> {
    for id in app.engine().keepers().await? {
        match adopt(app, app.engine(), &id).await {
            Ok(()) => tracing::info!(sandbox = %id, "sandbox adopted"),
            Err(error) => {
                tracing::warn!(sandbox = %id, error = error.chain(), "a sandbox is not adopted");
                tracing::debug!(sandbox = %id, detail = error.detail(), "why it is not adopted");
            }
        }
    }
    Ok(())
}

async fn adopt(app: &App, engine: &Engine, id: &ContainerId) -> Result<(), ApiError> {
    let connection = engine.connect(id).await?;
    let attached = attach_to_end(&connection).await?;
    match Label::parse(attached.label) {
        Some(Label::Run(label)) => app.runs().adopt(
            label,
            AdoptedRun {
                connection,
                digest: attached.digest,
                enforcement: attached.enforcement,
            },
        ),
        Some(Label::Session(label)) => {
            let sessions = app.sessions();
            if !app.audit().knows_end_of(&label.audit_id) {
                sessions.note(&label, Happened::SessionAdopted, serde_json::Value::Null)?;
            }
            sessions.watch(label, connection).map(drop)
        }
        None => Err(ApiError::not_found(
            "the sandbox has no label of the service",
        )),
    }
}
