//! From the credential of a request to the one who calls.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, COOKIE};
use axum::http::request::Parts;

use super::App;
use crate::auth::{Principal, Secret};
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
    if let Some(value) = headers.get(AUTHORIZATION) {
        let token = value.to_str().ok().and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token)
        });
        return Ok(token.and_then(|token| app.auth().bearer(&Secret::new(token.to_owned()))));
    }
    match cookie_of(headers) {
        Some(cookie) => app.auth().cookie(&cookie).map_err(ApiError::internal),
        None => Ok(None),
    }
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
