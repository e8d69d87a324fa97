//! JSON answers, and bodies that are JSON.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{ApiError, ErrorKind};

/// Largest body, in bytes.
pub(super) const MAX_BODY: usize = 1 << 20;
/// How long a body may take.
const MAX_TIME: Duration = Duration::from_secs(10);

/// Returns a JSON answer.
pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    // Our own types make JSON always; where one did not, the answer is empty rather than half.
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns a JSON answer with status 200.
pub(super) fn ok(body: &impl Serialize) -> Response {
    json(StatusCode::OK, body)
}

/// A body of JSON, at most [`MAX_BODY`] bytes; the gate has checked its content type.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let bytes = axum::body::to_bytes(request.into_body(), MAX_BODY);
        let bytes = tokio::time::timeout(MAX_TIME, bytes)
            .await
            .map_err(|_elapsed| ApiError::invalid("the body did not come in time"))?
            .map_err(|_too_large_or_gone| {
                ApiError::new(
                    ErrorKind::TooLarge,
                    "TOO_LARGE",
                    format!("the body is longer than {MAX_BODY} bytes, or was cut short"),
                )
            })?;
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| ApiError::invalid(format!("body: {error}")))
    }
}
