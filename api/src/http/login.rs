//! `/v1/auth/…`: login links, cookies, tickets.

use std::time::Duration;

use axum::extract::State;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use casemate_bundles::TileId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::answer::{JsonBody, json, ok};
use super::caller::{COOKIE_NAME, Caller, cookie_of, login_of};
use super::gate::origin_of;
use super::{App, TERM_ROUTE};
use crate::audit::{AuditId, Decision, Event, Happened};
use crate::auth::{LOGIN_LIFETIME, LoginsError, Principal, Secret, TicketScope, TicketTarget};
use crate::error::{ApiError, ErrorKind};

/// Longest name of a session that is kept with a ticket, in bytes.
const LONGEST_SESSION: usize = 64;
/// Logins that may fail in one second. More are refused without a record: who has no credential
/// must not fill the audit log or its queue, without which nothing is started.
static FAILURES: Semaphore = Semaphore::const_new(16);

/// An empty object.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// A login code.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LoginCode {
    code: String,
    /// To append to the service's address.
    path: String,
    expires_in_s: u64,
}

/// `POST /v1/auth/login-codes`: mints a login link, for `casemate login`.
pub(super) async fn mint_code(
    State(app): State<App>,
    Caller(principal): Caller,
    JsonBody(Nothing {}): JsonBody<Nothing>,
) -> Result<Response, ApiError> {
    let (code, lifetime) = app
        .auth()
        .mint_code(&principal)
        .map_err(ApiError::internal)?;
    record(
        &app,
        subject(&principal),
        Happened::LoginCode,
        Decision::Allow,
    )
    .await?;
    Ok(ok(&LoginCode {
        path: format!("/login#{}", code.expose()),
        code: code.expose().to_owned(),
        expires_in_s: lifetime.as_secs(),
    }))
}

/// What `POST /v1/auth/login` takes.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginRequest {
    code: String,
}

/// Who somebody is.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Me {
    user: String,
    role: &'static str,
}

impl Me {
    fn of(principal: &Principal) -> Self {
        Self {
            user: principal.user().to_string(),
            role: principal.role(),
        }
    }
}

/// `POST /v1/auth/login`: exchanges the code of a link for a cookie.
pub(super) async fn log_in(
    State(app): State<App>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<LoginRequest>,
) -> Result<Response, ApiError> {
    let entered = app
        .auth()
        .log_in(&Secret::new(request.code))
        .map_err(ApiError::internal)?;
    let Some((principal, cookie)) = entered else {
        return Err(refuse(&app).await?);
    };
    record(&app, subject(&principal), Happened::Login, Decision::Allow).await?;
    let mut response = ok(&Me::of(&principal));
    let secure = origin_of(&headers).is_some_and(|origin| origin.starts_with("https://"));
    set_cookie(
        &mut response,
        cookie.expose(),
        LOGIN_LIFETIME,
        secure.into(),
    )?;
    Ok(response)
}

/// Records a login that failed, while few do.
async fn refuse(app: &App) -> Result<ApiError, ApiError> {
    let Ok(turn) = FAILURES.try_acquire() else {
        return Ok(ApiError::new(
            ErrorKind::Busy,
            "BUSY",
            "too many logins fail; try again later",
        ));
    };
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(turn);
    });
    let subject = "anonymous".to_owned();
    record(app, subject, Happened::Login, Decision::Deny).await?;
    Ok(ApiError::unauthenticated())
}

/// `POST /v1/auth/logout`: ends the login of the cookie.
pub(super) async fn log_out(
    State(app): State<App>,
    Caller(principal): Caller,
    headers: HeaderMap,
    JsonBody(Nothing {}): JsonBody<Nothing>,
) -> Result<Response, ApiError> {
    if let Some(cookie) = cookie_of(&headers) {
        app.auth().log_out(&cookie).map_err(ApiError::internal)?;
    }
    record(&app, subject(&principal), Happened::Logout, Decision::Allow).await?;
    let mut response = json(StatusCode::OK, &serde_json::json!({}));
    set_cookie(&mut response, "", Duration::ZERO, Transport::Any)?;
    Ok(response)
}

/// `GET /v1/auth/me`.
pub(super) async fn me(Caller(principal): Caller) -> Response {
    ok(&Me::of(&principal))
}

/// What `POST /v1/auth/ticket` takes: a route, and one of tile and session.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TicketRequest {
    route: String,
    #[serde(default)]
    tile: Option<String>,
    #[serde(default)]
    session: Option<String>,
}

/// A ticket for one upgrade.
#[derive(Serialize, JsonSchema)]
pub(super) struct Ticket {
    ticket: String,
    expires_in_s: u64,
}

/// `POST /v1/auth/ticket`.
pub(super) async fn mint_ticket(
    State(app): State<App>,
    Caller(principal): Caller,
    headers: HeaderMap,
    JsonBody(request): JsonBody<TicketRequest>,
) -> Result<Response, ApiError> {
    if request.route != TERM_ROUTE {
        return Err(ApiError::invalid(format!(
            "route: only {TERM_ROUTE} takes tickets"
        )));
    }
    let target = match (request.tile, request.session) {
        (Some(tile), None) => TicketTarget::Tile(
            TileId::parse(tile).map_err(|error| ApiError::invalid(error.to_string()))?,
        ),
        (None, Some(session)) if session.len() > LONGEST_SESSION => {
            return Err(ApiError::invalid("session: longer than any session's name"));
        }
        (None, Some(session)) => TicketTarget::Session(session),
        (Some(_), Some(_)) | (None, None) => {
            return Err(ApiError::invalid("name a tile or a session, and not both"));
        }
    };
    let scope = TicketScope {
        route: request.route,
        target,
        origin: origin_of(&headers).map(str::to_owned),
        login: login_of(&headers),
    };
    let minted: Result<_, LoginsError> = app.auth().mint_ticket(&principal, scope);
    let (ticket, lifetime) = minted.map_err(ApiError::internal)?;
    Ok(ok(&Ticket {
        ticket: ticket.expose().to_owned(),
        expires_in_s: lifetime.as_secs(),
    }))
}

/// Over what a cookie may travel.
#[derive(Debug, Clone, Copy)]
enum Transport {
    Encrypted,
    Any,
}

impl From<bool> for Transport {
    fn from(secure: bool) -> Self {
        if secure { Self::Encrypted } else { Self::Any }
    }
}

fn set_cookie(
    response: &mut Response,
    value: &str,
    lifetime: Duration,
    transport: Transport,
) -> Result<(), ApiError> {
    let secure = match transport {
        Transport::Encrypted => "; Secure",
        Transport::Any => "",
    };
    let cookie = format!(
        "{COOKIE_NAME}={value}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict{secure}",
        lifetime.as_secs()
    );
    let mut cookie = HeaderValue::from_str(&cookie).map_err(ApiError::internal)?;
    cookie.set_sensitive(true);
    response.headers_mut().insert(SET_COOKIE, cookie);
    Ok(())
}

fn subject(principal: &Principal) -> String {
    format!("user:{}", principal.user())
}

async fn record(
    app: &App,
    subject: String,
    event: Happened,
    decision: Decision,
) -> Result<(), ApiError> {
    app.audit()
        .record(Event {
            id: AuditId::fresh(),
            event,
            subject,
            capability: "engine:auth.login@1",
            decision,
            object: None,
            argv: None,
            detail: serde_json::Value::Null,
        })
        .await
        .map_err(ApiError::internal)
}
