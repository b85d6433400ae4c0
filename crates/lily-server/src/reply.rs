//! Answers and errors as HTTP: the one place that turns a failure into a status, headers and a body.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use lily_api::error::{Api, ApiError, ErrorKind};
use serde::Serialize;

/// The API that a path belongs to, in whose shape its errors are told.
pub(crate) fn api_of(path: &str) -> Api {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    match path {
        "/completions" => Api::Completions,
        "/responses" => Api::Responses,
        _ if path == "/messages" || path.starts_with("/messages/") => Api::Messages,
        _ => Api::Chat,
    }
}

/// An error as an answer.
pub(crate) fn refusal(error: &ApiError, api: Api) -> Response {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(status, &error.body(api));
    let headers = response.headers_mut();
    if let Some(seconds) = error.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    // Clients otherwise try every 5xx and 408 three times.
    let retry = HeaderValue::from_static(if error.should_retry() { "true" } else { "false" });
    headers.insert("x-should-retry", retry);
    if error.kind == ErrorKind::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// A value as the body of an answer.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("answers have string keys");
    with_type(status, "application/json", body)
}

/// A body of some type.
pub(crate) fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_belong_to_apis() {
        let check = |path, api| assert_eq!(api_of(path), api, "{path}");
        check("/v1/messages", Api::Messages);
        check("/messages/count_tokens", Api::Messages);
        check("/v1/messagesx", Api::Chat);
        check("/v1/responses", Api::Responses);
        check("/completions", Api::Completions);
        check("/nowhere", Api::Chat);
    }

    #[test]
    fn refusals_say_when_to_come_back() {
        let response = refusal(&ApiError::busy(4, 4, 7), Api::Chat);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "7");
        assert_eq!(response.headers()["x-should-retry"], "true");
        let response = refusal(&ApiError::new(ErrorKind::Internal, "broken"), Api::Chat);
        assert_eq!(response.headers()["x-should-retry"], "false");
        assert!(!response.headers().contains_key(header::RETRY_AFTER));
    }
}
