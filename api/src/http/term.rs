//! The upgrade of `/ws/term`.

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::HeaderMap;
use axum::http::header::SEC_WEBSOCKET_PROTOCOL;
use axum::response::Response;

use super::caller::{caller_of, login_of};
use super::gate::origin_of;
use super::{App, TERM_ROUTE};
use crate::auth::{Principal, Secret, SecretDigest, TicketTarget};
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
    let Credential {
        principal,
        ticket,
        login,
    } = credential(&app, &headers)?;
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
        login: login.map(|login| app.auth().watch_login(login)),
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

/// Who opens a socket.
struct Credential {
    principal: Principal,
    /// What the ticket opens, where there was one.
    ticket: Option<TicketTarget>,
    /// The login with which the socket ends.
    login: Option<SecretDigest>,
}

/// Returns who calls, by ticket, bearer token or cookie. A ticket that is offered has to be good,
/// and is used up.
fn credential(app: &App, headers: &HeaderMap) -> Result<Credential, ApiError> {
    let ticket = protocols(headers).find_map(|item| item.strip_prefix("ticket."));
    if let Some(ticket) = ticket {
        let ticket = Secret::new(ticket.to_owned());
        let redeemed = app
            .auth()
            .redeem_ticket(&ticket, TERM_ROUTE, origin_of(headers));
        let (principal, scope) = redeemed.ok_or_else(ApiError::unauthenticated)?;
        return Ok(Credential {
            principal,
            ticket: Some(scope.target),
            login: scope.login,
        });
    }
    let principal = caller_of(headers, app)?.ok_or_else(ApiError::unauthenticated)?;
    Ok(Credential {
        principal,
        ticket: None,
        login: login_of(headers),
    })
}
