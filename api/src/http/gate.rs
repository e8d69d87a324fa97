//! What every request passes first: Host, Origin, content type, and what every answer carries.

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN, UPGRADE,
};
use axum::http::{HeaderName, Method};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument as _;

use super::App;
use super::connections::Door;
use crate::error::{ApiError, ErrorKind};

/// Policy of everything that is no page: nothing may be loaded, framed or run.
const NO_CONTENT: &str = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; \
                          form-action 'none'; sandbox";
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The exact hosts and origins that are served.
#[derive(Debug, Clone)]
pub struct Gate {
    hosts: Vec<String>,
    origins: Vec<String>,
}

/// An allow-list that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{key} has {value:?}; write {form}")]
pub struct GateError {
    key: &'static str,
    value: String,
    form: &'static str,
}

impl Gate {
    /// Makes the lists: what `listen` makes, `localhost` on loopback, and what is configured.
    pub fn new(
        listen: std::net::SocketAddr,
        hosts: &[String],
        origins: &[String],
    ) -> Result<Self, GateError> {
        let mut own = vec![listen.to_string()];
        if listen.ip().is_loopback() {
            own.push(format!("localhost:{}", listen.port()));
        }
        for host in hosts {
            let plain = !host.is_empty() && !host.contains(['/', '@', '*', ' ', ',']);
            if !plain {
                return Err(GateError {
                    key: "allowed_hosts",
                    value: host.clone(),
                    form: "host or host:port, as browsers send it in Host",
                });
            }
        }
        for origin in origins {
            let rest = origin
                .strip_prefix("https://")
                .or_else(|| origin.strip_prefix("http://"));
            let plain = rest
                .is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '@', '*', ' ', ',']));
            if !plain {
                return Err(GateError {
                    key: "allowed_origins",
                    value: origin.clone(),
                    form: "scheme://host or scheme://host:port, without a path",
                });
            }
        }
        let own_origins = own.iter().map(|host| format!("http://{host}"));
        Ok(Self {
            origins: own_origins.chain(origins.iter().cloned()).collect(),
            hosts: own.iter().cloned().chain(hosts.iter().cloned()).collect(),
        })
    }

    /// Checks the host that the client believes to speak to (DNS rebinding).
    fn check_host(&self, request: &Request) -> Result<(), ApiError> {
        let refused = || {
            ApiError::new(
                ErrorKind::Denied,
                "HOST_NOT_ALLOWED",
                "this host name is not served; add it to allowed_hosts if it should be",
            )
        };
        let named = |host: &str| {
            self.hosts
                .iter()
                .any(|known| known.eq_ignore_ascii_case(host))
        };
        let mut hosts = request.headers().get_all(HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        let authority = request
            .uri()
            .authority()
            .map(axum::http::uri::Authority::as_str);
        let valid =
            host.is_some_and(named) && hosts.next().is_none() && authority.is_none_or(named);
        if valid { Ok(()) } else { Err(refused()) }
    }

    /// Returns the Origin where there is one that is allowed.
    fn check_origin<'a>(&self, headers: &'a HeaderMap) -> Result<Option<&'a str>, ApiError> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(origin) = origins.next() else {
            return Ok(None);
        };
        // `null` is in no list.
        match origin.to_str() {
            Ok(origin)
                if origins.next().is_none() && self.origins.iter().any(|known| known == origin) =>
            {
                Ok(Some(origin))
            }
            Ok(_) | Err(_) => Err(foreign()),
        }
    }

    /// Checks a request of the port.
    fn check(&self, request: &Request) -> Result<(), ApiError> {
        self.check_host(request)?;
        let headers = request.headers();
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        if reads && !headers.contains_key(UPGRADE) {
            return Ok(());
        }
        // A program has no Origin, but it has a bearer token, which no foreign page has.
        if self.check_origin(headers)?.is_none() && !headers.contains_key(AUTHORIZATION) {
            return Err(foreign());
        }
        check_content_type(request)
    }
}

/// Checks a request of the socket. No page reaches it, so that Host and Origin say nothing; the
/// owner token is needed for every route.
fn check_private(app: &App, request: &Request) -> Result<(), ApiError> {
    if super::caller::bearer_of(request.headers(), app).is_none() {
        return Err(ApiError::unauthenticated());
    }
    check_content_type(request)
}

fn foreign() -> ApiError {
    ApiError::new(
        ErrorKind::Denied,
        "ORIGIN_NOT_ALLOWED",
        "this Origin is not served; add it to allowed_origins if it should be",
    )
}

fn check_content_type(request: &Request) -> Result<(), ApiError> {
    if *request.method() != Method::POST {
        return Ok(());
    }
    let kind = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .and_then(|kind| kind.split(';').next())
        .map(str::trim);
    if kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        Ok(())
    } else {
        Err(ApiError::invalid("send Content-Type: application/json"))
    }
}

/// Returns the Origin of a request that has passed the gate.
pub(super) fn origin_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(ORIGIN).and_then(|origin| origin.to_str().ok())
}

/// The outermost layer: names the request, lets it through the gate, writes errors down once, and
/// closes the answer up.
pub(super) async fn layer(State(app): State<App>, request: Request, next: Next) -> Response {
    let request_id = uuid::Uuid::now_v7().to_string();
    let method = request.method().clone();
    // The path of an unknown route is the client's text; only known ones are logged.
    let route = super::route_of(request.uri().path());
    let span = tracing::info_span!("http.request", %method, route, request_id);
    let checked = match request.extensions().get() {
        Some(Door::Socket) => check_private(&app, &request),
        Some(Door::Port) | None => app.gate().check(&request),
    };
    let mut response = match checked {
        Ok(()) => next.run(request).instrument(span.clone()).await,
        Err(error) => axum::response::IntoResponse::into_response(error),
    };
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        span.in_scope(|| log(&error));
        response = super::answer::json(error.kind.status(), &error.body(&request_id));
        if error.kind == ErrorKind::Unauthenticated {
            let challenge = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(axum::http::header::WWW_AUTHENTICATE, challenge);
        }
    } else if response.status() == axum::http::StatusCode::METHOD_NOT_ALLOWED {
        let error = ApiError::new(
            ErrorKind::Method,
            "METHOD_NOT_ALLOWED",
            "this route has other methods",
        );
        response = super::answer::json(error.kind.status(), &error.body(&request_id));
    }
    close_up(response.headers_mut(), &request_id);
    response
}

fn log(error: &ApiError) {
    match error.kind {
        ErrorKind::Internal => {
            tracing::error!(code = error.code, error = error.chain(), "request failed");
            tracing::debug!(detail = error.detail(), "why it failed");
        }
        ErrorKind::Unavailable => {
            tracing::warn!(
                code = error.code,
                component = error.component,
                "request refused"
            );
        }
        ErrorKind::InvalidInput
        | ErrorKind::Refused
        | ErrorKind::Unauthenticated
        | ErrorKind::Denied
        | ErrorKind::NotFound
        | ErrorKind::Method
        | ErrorKind::TooLarge
        | ErrorKind::Conflict
        | ErrorKind::Busy => tracing::info!(code = error.code, "request refused"),
    }
}

fn close_up(headers: &mut HeaderMap, request_id: &str) {
    let fixed = [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("x-frame-options", "DENY"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        (
            "permissions-policy",
            "camera=(), microphone=(), geolocation=()",
        ),
    ];
    for (name, value) in fixed {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    for (name, value) in [
        ("content-security-policy", NO_CONTENT),
        ("cache-control", "no-store"),
    ] {
        headers
            .entry(HeaderName::from_static(name))
            .or_insert(HeaderValue::from_static(value));
    }
    if let Ok(value) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, value);
    }
}
