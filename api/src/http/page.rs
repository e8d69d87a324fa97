//! The page, which is part of the program.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use super::App;
use crate::auth::Secret;
use crate::error::ApiError;

// `file`, and whether the page was there when the program was built: `BUILT`.
include!(concat!(env!("OUT_DIR"), "/page.rs"));

const INDEX: &str = "index.html";
const NONCE: &str = "{{nonce}}";

/// `GET /` and `GET /login`: the page, with a nonce of its own.
pub(super) async fn index(State(_app): State<App>) -> Result<Response, ApiError> {
    let bytes = file(INDEX).ok_or_else(missing)?;
    let text = std::str::from_utf8(bytes).map_err(ApiError::internal)?;
    let nonce = Secret::random(16).map_err(ApiError::internal)?;
    let nonce = nonce.expose();
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; style-src-attr \
         'unsafe-inline'; connect-src 'self'; img-src 'self' blob:; font-src 'self'; base-uri \
         'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    );
    let mut response = Response::new(Body::from(text.replace(NONCE, nonce)));
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/html; charset=utf-8"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let policy = HeaderValue::from_str(&policy).map_err(ApiError::internal)?;
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    Ok(response)
}

/// `GET /assets/{name}`: a file whose name has its digest, so that it never changes.
pub(super) async fn asset(
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let plain = !name.contains(['/', '\\']) && !name.starts_with('.');
    let kind = content_type(&name);
    let (Some(kind), true) = (kind, plain) else {
        return Err(missing());
    };
    let bytes = file(&format!("assets/{name}")).ok_or_else(missing)?;
    let tag = format!("\"{}\"", URL_SAFE_NO_PAD.encode(Sha256::digest(bytes)));
    let known = headers
        .get(IF_NONE_MATCH)
        .is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = if known {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        Response::new(Body::from(bytes))
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("public, max-age=31536000, immutable"),
    );
    headers.insert(
        ETAG,
        HeaderValue::from_str(&tag).map_err(ApiError::internal)?,
    );
    Ok(response)
}

fn missing() -> ApiError {
    if !BUILT {
        return ApiError::unavailable(
            &"page",
            "this program was built without the page: run `make build` and start it again",
        );
    }
    ApiError::not_found("there is no such page")
}

fn content_type(name: &str) -> Option<&'static str> {
    Some(match name.rsplit_once('.')?.1 {
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "woff2" => "font/woff2",
        "png" => "image/png",
        "txt" => "text/plain; charset=utf-8",
        "json" => "application/json",
        _ => return None,
    })
}
