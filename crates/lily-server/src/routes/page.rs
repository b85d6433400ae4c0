//! The chat page at `/`: one file, part of the binary, that asks nothing of any other server.

use crate::reply::with_type;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

const PAGE: &str = include_str!("../../page/index.html");
/// The page runs its own script and talks to this server; nothing else may run, load or frame it.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page.
pub(crate) async fn page() -> Response {
    let mut response = with_type(StatusCode::OK, "text/html; charset=utf-8", PAGE);
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    headers.extend(fixed.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}
