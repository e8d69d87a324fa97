//! From the credential of a request to the one who calls.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, COOKIE};
use axum::http::request::Parts;

use super::App;
use crate::auth::{Principal, Secret, SecretDigest};
use crate::error::ApiError;

/// Name of the login cookie.
pub(super) const COOKIE_NAME: &str = "casemate";

/// A request with a valid credential.
#[derive(Debug)]
pub(super) struct Caller(pub(super) Principal);

impl FromRequestParts<App> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        caller_of(&parts.headers, app)?
            .map(Self)
            .ok_or_else(ApiError::unauthenticated)
    }
}

/// Returns who calls; `None` without a valid credential. A bad bearer token is not made good by a
/// cookie.
pub(super) fn caller_of(headers: &HeaderMap, app: &App) -> Result<Option<Principal>, ApiError> {
    if headers.contains_key(AUTHORIZATION) {
        return Ok(bearer_of(headers, app));
    }
    match cookie_of(headers) {
        Some(cookie) => app.auth().cookie(&cookie).map_err(ApiError::internal),
        None => Ok(None),
    }
}

/// Returns whose bearer token it is.
pub(super) fn bearer_of(headers: &HeaderMap, app: &App) -> Option<Principal> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    app.auth().bearer(&Secret::new(token.to_owned()))
}

/// Returns the login of a caller who was found by [`caller_of`]; `None` where it was the owner
/// token.
pub(super) fn login_of(headers: &HeaderMap) -> Option<SecretDigest> {
    if headers.contains_key(AUTHORIZATION) {
        return None;
    }
    cookie_of(headers).map(|cookie| cookie.digest())
}

/// Returns the login cookie.
pub(super) fn cookie_of(headers: &HeaderMap) -> Option<Secret> {
    headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == COOKIE_NAME)
        .map(|(_, value)| Secret::new(value.to_owned()))
}
