//! The upgrade of `/ws/term`.

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::HeaderMap;
use axum::http::header::SEC_WEBSOCKET_PROTOCOL;
use axum::response::Response;

use super::caller::caller_of;
use super::gate::origin_of;
use super::{App, TERM_ROUTE};
use crate::auth::{Principal, Secret, TicketTarget};
use crate::error::ApiError;
use crate::term::TermSocket;
use crate::term::control::SUBPROTOCOL;

/// Largest message, in bytes.
const MAX_MESSAGE: usize = 1 << 20;

/// `GET /ws/term`. The gate has checked Host and Origin.
pub(super) async fn upgrade(
    State(app): State<App>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let (principal, ticket) = credential(&app, &headers)?;
    let upgrade = upgrade.map_err(|error| ApiError::invalid(error.body_text()))?;
    if !protocols(&headers).any(|protocol| protocol == SUBPROTOCOL) {
        return Err(ApiError::invalid(format!(
            "offer the WebSocket sub-protocol {SUBPROTOCOL}"
        )));
    }
    let socket = TermSocket {
        sessions: app.sessions().clone(),
        places: app.places().clone(),
        principal,
        ticket,
        stopping: app.stopping(),
    };
    Ok(upgrade
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
        .max_write_buffer_size(4 * MAX_MESSAGE)
        .protocols([SUBPROTOCOL])
        .on_upgrade(|websocket| socket.serve(websocket)))
}

/// Returns the items of `Sec-WebSocket-Protocol`.
fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// Returns who calls, by ticket, bearer token or cookie. A ticket that is offered has to be good,
/// and is used up.
fn credential(
    app: &App,
    headers: &HeaderMap,
) -> Result<(Principal, Option<TicketTarget>), ApiError> {
    let ticket = protocols(headers).find_map(|item| item.strip_prefix("ticket."));
    if let Some(ticket) = ticket {
        return app
            .auth()
            .redeem_ticket(
                &Secret::new(ticket.to_owned()),
                TERM_ROUTE,
                origin_of(headers),
            )
            .map(|(principal, target)| (principal, Some(target)))
            .ok_or_else(ApiError::unauthenticated);
    }
    caller_of(headers, app)?
        .map(|principal| (principal, None))
        .ok_or_else(ApiError::unauthenticated)
}
