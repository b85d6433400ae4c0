//! What every request passes before its route: an id, the draining check, where it comes from, its key.
//!
//! - *Host*: where no key is asked for, a page of a foreign site could reach a server on loopback through a name that its
//!   owner lets resolve to 127.0.0.1. Such a request has that name in `Host`, so only `localhost`, addresses and names that
//!   were allowed pass. With a key the page cannot know it, and any name passes.
//! - *Origin*: browsers say which site's page sends a request. Only the server's own page and origins that were allowed pass.
//! - *Key*: `Authorization: Bearer` or `x-api-key`; not for the page, health and readiness.

use crate::app::App;
use crate::options::ServerOptions;
use crate::reply::{api_of, refusal};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use lily_api::error::{ApiError, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Anthropic's name for it, which its client reads.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Longest id of a client that is taken over.
const REQUEST_ID_BYTES: usize = 128;
/// What anybody may read.
const PUBLIC: [&str; 3] = ["/", "/health", "/ready"];

/// What is known of a request before anything of its body has come.
#[derive(Clone, Debug)]
pub(crate) struct Passage {
    /// Its id, in its log lines and in the answer's headers.
    pub(crate) id: String,
    /// When its head had come.
    pub(crate) arrived: Instant,
}

/// Gives a request its id, counts and logs it. Nothing of a body, a query or a header is logged.
pub(crate) async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let arrived = Instant::now();
    let id = request_id(request.headers()).unwrap_or_else(|| app.ids.next("req_"));
    request.extensions_mut().insert(Passage { id: id.clone(), arrived });
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value.clone());
        response.headers_mut().insert(ANTHROPIC_REQUEST_ID, value);
    }
    let status = response.status().as_u16();
    app.metrics.answered(&route, status);
    let ms = arrived.elapsed().as_millis() as u64;
    tracing::info!(target: "lily::http", %id, %method, route, status, ms);
    response
}

/// Refuses requests that are not from where they should be, or without the key.
pub(crate) async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    match check(&app.options, path, request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => refusal(&error, api_of(path)),
    }
}

fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let plain = id.bytes().all(|b| b.is_ascii_graphic());
    (plain && (1..=REQUEST_ID_BYTES).contains(&id.len())).then(|| id.to_owned())
}

fn check(options: &ServerOptions, path: &str, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let host = host(uri, headers)?;
    check_origin(options, host, headers)?;
    if options.api_key.is_none() {
        return check_host(options, host);
    }
    if PUBLIC.contains(&path) { Ok(()) } else { check_key(options, headers) }
}

/// Name and port that the client thinks it talks to; HTTP/1.0 may leave it out.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Result<Option<&'a str>, ApiError> {
    let mut values = headers.get_all(header::HOST).iter();
    let unclear = || ApiError::new(ErrorKind::Invalid, "The header Host must be there once, and readable.");
    match (values.next(), values.next()) {
        (None, _) => Ok(uri.authority().map(|a| a.as_str())),
        (Some(_), Some(_)) => Err(unclear()),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| unclear()),
    }
}

fn check_host(options: &ServerOptions, host: Option<&str>) -> Result<(), ApiError> {
    let Some(host) = host else { return Ok(()) };
    let name = name_of(host);
    let local = name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost");
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    if local || address || options.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    let message = format!(
        "This server does not answer to the name {name:?}. If that name is yours, start it with --allow-host {name}, or \
         with a key (--api-key)."
    );
    Err(ApiError { code: Some("host_not_allowed"), ..ApiError::new(ErrorKind::Forbidden, message) })
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

fn check_origin(options: &ServerOptions, host: Option<&str>, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or("unreadable");
    let own = host.is_some_and(|host| {
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
    });
    if own || options.cors_origins.iter().any(|allowed| allowed == "*" || allowed == origin) {
        return Ok(());
    }
    let message = format!(
        "Pages of the origin {origin:?} may not use this server. If that page is yours, start it with --cors-origin {origin}."
    );
    Err(ApiError { code: Some("origin_not_allowed"), ..ApiError::new(ErrorKind::Forbidden, message) })
}

fn check_key(options: &ServerOptions, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = &options.api_key else { return Ok(()) };
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let value = value.as_bytes();
        let (scheme, token) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
    });
    let shown = [bearer, headers.get(API_KEY).map(HeaderValue::as_bytes)];
    if shown.iter().flatten().any(|shown| key.admits(shown)) {
        return Ok(());
    }
    let message = if shown.iter().all(Option::is_none) {
        "This server asks for a key; send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`."
    } else {
        "That is not this server's key."
    };
    Err(ApiError { code: Some("invalid_api_key"), ..ApiError::new(ErrorKind::Unauthenticated, message) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ApiKey;

    fn verdict(options: &ServerOptions, path: &str, headers: &[(&'static str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let uri = path.parse().unwrap();
        check(options, path, &uri, &map).map_or_else(|error| error.status, |()| 200)
    }

    #[test]
    fn names_that_only_resolve_here_are_refused() {
        let mut options = ServerOptions::new("m");
        let host = |options: &ServerOptions, host| verdict(options, "/health", &[("host", host)]);
        for fine in ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080", "192.168.1.7", "lily.localhost:1"] {
            assert_eq!(host(&options, fine), 200, "{fine}");
        }
        for foreign in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example:8080", "localhost.evil", "", "a:b"]
        {
            assert_eq!(host(&options, foreign), 403, "{foreign}");
        }
        assert_eq!(verdict(&options, "/health", &[]), 200, "HTTP/1.0");
        assert_eq!(verdict(&options, "/health", &[("host", "localhost"), ("host", "localhost")]), 400);
        options.allowed_hosts.push("host.docker.internal".into());
        assert_eq!(host(&options, "host.docker.internal:8080"), 200);
        options.api_key = Some(ApiKey::new("k"));
        assert_eq!(host(&options, "my-mac.local:8080"), 200, "with a key, a name alone gives nothing away");
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let mut options = ServerOptions::new("m");
        let from = |options: &ServerOptions, origin| {
            verdict(options, "/v1/models", &[("host", "127.0.0.1:8080"), ("origin", origin)])
        };
        assert_eq!(from(&options, "http://127.0.0.1:8080"), 200, "its own page");
        for foreign in ["http://127.0.0.1:3000", "https://evil.example", "null", "http://127.0.0.1:8080.evil.example"] {
            assert_eq!(from(&options, foreign), 403, "{foreign}");
        }
        options.cors_origins = vec!["https://chat.example".into()];
        assert_eq!(from(&options, "https://chat.example"), 200);
        assert_eq!(from(&options, "https://evil.example"), 403);
        options.cors_origins = vec!["*".into()];
        assert_eq!(from(&options, "https://evil.example"), 200);
    }

    #[test]
    fn a_key_is_asked_for_everywhere_but_on_the_doorstep() {
        let options = ServerOptions { api_key: Some(ApiKey::new("k-1")), ..ServerOptions::new("m") };
        let with = |path, headers: &[(&'static str, &str)]| verdict(&options, path, headers);
        for path in ["/v1/models", "/v1/chat/completions", "/metrics", "/nowhere", "/healthy"] {
            assert_eq!(with(path, &[]), 401, "{path}");
        }
        for path in PUBLIC {
            assert_eq!(with(path, &[]), 200, "{path}");
        }
        assert_eq!(with("/v1/models", &[("authorization", "Bearer k-1")]), 200);
        assert_eq!(with("/v1/models", &[("authorization", "bearer k-1")]), 200);
        assert_eq!(with("/v1/models", &[("x-api-key", "k-1")]), 200);
        assert_eq!(with("/v1/models", &[("x-api-key", "k-1"), ("authorization", "Bearer other")]), 200);
        for wrong in ["Bearer k-2", "Bearer ", "k-1", "Basic k-1", "Bearer k-1x", "Bearerk-1"] {
            assert_eq!(with("/v1/models", &[("authorization", wrong)]), 401, "{wrong}");
        }
    }

    #[test]
    fn sane_request_ids_are_taken_over() {
        let id = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, value.parse().unwrap());
            request_id(&headers)
        };
        assert_eq!(id("abc-123").as_deref(), Some("abc-123"));
        assert_eq!(id("two words"), None);
        assert_eq!(id(""), None);
        assert_eq!(id(&"x".repeat(REQUEST_ID_BYTES + 1)), None);
    }
}
