//! Errors of the HTTP surface: one table from kind to status, and one place where they are logged.

use std::error::Error as StdError;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use casemate_engine::{ConnectionError, EngineError, RunError};
use casemate_protocol::LaunchError;
use serde::Serialize;

/// Who must act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The caller: what was sent cannot be parsed.
    InvalidInput,
    /// The caller: it parses and is refused.
    Refused,
    /// The caller: no or bad credential.
    Unauthenticated,
    /// The caller: known, not allowed.
    Denied,
    /// The caller: no such thing, or its existence is hidden.
    NotFound,
    /// The caller: wrong method for this route.
    Method,
    /// The caller: too large.
    TooLarge,
    /// The caller: clashes with what is under way.
    Conflict,
    /// The caller, later.
    Busy,
    /// The operator: a component of the isolation is missing.
    Unavailable,
    /// Us.
    Internal,
}

impl ErrorKind {
    /// Returns the HTTP status.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::InvalidInput => StatusCode::BAD_REQUEST,
            Self::Refused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Denied => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Conflict => StatusCode::CONFLICT,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// An error on its way to a client. The source is for the log only.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ApiError {
    /// Who must act.
    pub kind: ErrorKind,
    /// For programs.
    pub code: String,
    /// For people; no host paths, no tokens.
    pub message: String,
    /// Name of the missing piece, with [`ErrorKind::Unavailable`].
    pub component: Option<String>,
    /// What caused it.
    #[source]
    pub source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl ApiError {
    /// Makes an error without a cause.
    pub fn new(kind: ErrorKind, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind,
            code: code.into(),
            message: message.into(),
            component: None,
            source: None,
        }
    }

    /// A body, header or path that cannot be parsed.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, "INVALID_INPUT", message)
    }

    /// Something that is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, "NOT_FOUND", message)
    }

    /// A missing or bad credential.
    pub fn unauthenticated() -> Self {
        Self::new(
            ErrorKind::Unauthenticated,
            "UNAUTHENTICATED",
            "log in with a link of `casemate login`, or send `Authorization: Bearer` with the \
             owner token",
        )
    }

    /// A missing piece of the isolation.
    pub fn unavailable(component: &impl ToString, hint: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::Unavailable, "SANDBOX_UNAVAILABLE", hint);
        error.component = Some(component.to_string());
        error
    }

    /// A fault of ours; the client learns nothing but the request's id.
    pub fn internal(source: impl StdError + Send + Sync + 'static) -> Self {
        let mut error = Self::new(
            ErrorKind::Internal,
            "INTERNAL",
            "the service failed; its log has the cause under this request id",
        );
        error.source = Some(Arc::new(source));
        error
    }

    /// Returns the causes, outermost first, as one line for the log: what failed, of which kind
    /// and with which errno, without the paths of the host.
    pub fn chain(&self) -> String {
        self.causes(without_paths)
    }

    /// Returns the causes in full, for the debug log of an operator who looks for one.
    pub fn detail(&self) -> String {
        self.causes(str::to_owned)
    }

    fn causes(&self, shown: impl Fn(&str) -> String) -> String {
        let mut text = self.to_string();
        let mut cause = self.source.as_deref().map(|error| error as &dyn StdError);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&shown(&error.to_string()));
            cause = error.source();
        }
        text
    }

    /// Returns the body for this request.
    pub fn body(&self, request_id: &str) -> serde_json::Value {
        let mut error = serde_json::json!({
            "kind": self.kind,
            "code": self.code,
            "message": self.message,
            "request_id": request_id,
        });
        if let (Some(component), Some(object)) = (&self.component, error.as_object_mut()) {
            object.insert("component".to_owned(), component.as_str().into());
        }
        serde_json::json!({ "error": error })
    }
}

/// Replaces each absolute path in an error's text: in quotes to their end, else to the next colon
/// or comma with a space, since a path may hold spaces.
fn without_paths(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = ' ';
    while let Some(next) = rest.chars().next() {
        let tail = rest.get(next.len_utf8()..).unwrap_or_default();
        let begins = before.is_whitespace() || "\"'`(=[,:".contains(before);
        let path = next == '/' && begins && tail.chars().next().is_some_and(char::is_alphanumeric);
        let hidden = match before {
            _ if !path => next.len_utf8(),
            quote @ ('"' | '\'' | '`') => rest.find(quote).unwrap_or(rest.len()),
            _ => [": ", ", "]
                .iter()
                .filter_map(|end| rest.find(end))
                .min()
                .unwrap_or(rest.len()),
        };
        shown.push(if path { '…' } else { next });
        before = next;
        rest = rest.get(hidden..).unwrap_or_default();
    }
    shown
}

impl IntoResponse for ApiError {
    /// The body is written by the outermost layer, which knows the request's id.
    fn into_response(self) -> Response {
        let mut response = self.kind.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<LaunchError> for ApiError {
    fn from(error: LaunchError) -> Self {
        match &error {
            LaunchError::Unavailable { component, hint } => {
                Self::unavailable(component, hint.clone())
            }
            LaunchError::Refused { code, message } => {
                Self::new(ErrorKind::Refused, code.clone(), message.clone())
            }
            LaunchError::Busy { what } => Self::new(
                ErrorKind::Busy,
                "BUSY",
                format!("the engine is out of {what}"),
            ),
            LaunchError::NotFound => Self::not_found("there is no such sandbox"),
            LaunchError::Violation { .. }
            | LaunchError::Init { .. }
            | LaunchError::Engine { .. }
            | LaunchError::Malformed { .. } => Self::internal(error),
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Refused(error) => error.into(),
            EngineError::StartSpawner { .. }
            | EngineError::Prepare { .. }
            | EngineError::Deadline { .. }
            | EngineError::Answer => Self::internal(error),
        }
    }
}

impl From<RunError> for ApiError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Failed(error) => error.into(),
            RunError::Lost
            | RunError::Refused(_)
            | RunError::Connection { .. }
            | RunError::Kept { .. } => Self::internal(error),
        }
    }
}

impl From<ConnectionError> for ApiError {
    fn from(error: ConnectionError) -> Self {
        Self::internal(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_shows_errors_without_paths() {
        for (text, shown) in [
            ("cannot open /var/lib/a b/c", "cannot open …"),
            (
                "cannot read /srv/x: No such file (os error 2)",
                "cannot read …: No such file (os error 2)",
            ),
            (
                "openat2(\"/srv/a b\", \"x/y\", O_PATH) = -1 ELOOP",
                "openat2(\"…\", \"x/y\", O_PATH) = -1 ELOOP",
            ),
            ("read/write of apps/x / 2", "read/write of apps/x / 2"),
            ("/srv", "…"),
        ] {
            assert_eq!(without_paths(text), shown);
        }
        let hidden = std::io::Error::other("/srv/secret is full");
        let error = ApiError::internal(RunError::Kept { source: hidden });
        assert!(!error.chain().contains("/srv") && error.detail().contains("/srv/secret"));
    }

    #[test]
    fn a_chain_is_printed_once_each() {
        let source = RunError::Connection {
            source: ConnectionError::Transfer {
                source: std::io::Error::other("broken"),
            },
        };
        let error = ApiError::from(source);
        assert_eq!(
            error.chain(),
            "INTERNAL: the service failed; its log has the cause under this request id: cannot \
             talk to the sandbox's keeper: cannot carry a packet between client and keeper: broken"
        );
        assert!(!error.body("r").to_string().contains("keeper"));
    }
}
