//! The application: what all requests share, and the table of routes.

use crate::body::{self, Budget};
use crate::guard;
use crate::metrics::Metrics;
use crate::model::ServedModel;
use crate::options::ServerOptions;
use crate::refused::Pace;
use crate::reply::{api_of, refusal};
use crate::routes::{generate, health, models, openapi, page, text};
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, Method};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use futures_util::FutureExt;
use lily_api::error::{ApiError, ErrorKind};
use std::hash::{BuildHasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Seconds after which a client may ask a server again that is loading or ending.
const COME_BACK_SECONDS: u64 = 5;

/// What all requests share.
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    pub(crate) metrics: Metrics,
    pub(crate) ids: Ids,
    pub(crate) pace: Pace,
    /// What bodies of requests may hold.
    pub(crate) bodies: Arc<Budget>,
    /// When the server started, in seconds since 1970.
    pub(crate) started: u64,
    model: OnceLock<ServedModel>,
    draining: AtomicBool,
}

impl App {
    pub(crate) fn new(options: ServerOptions) -> Self {
        Self {
            bodies: Budget::new(options.limits.bodies_bytes),
            options,
            metrics: Metrics::new(),
            ids: Ids::default(),
            pace: Pace::default(),
            started: unix_seconds(),
            model: OnceLock::new(),
            draining: AtomicBool::new(false),
        }
    }

    /// Takes the model, once it is loaded.
    pub(crate) fn serve_model(&self, model: ServedModel) {
        assert!(self.model.set(model).is_ok(), "a server has one model");
    }

    /// The model.
    ///
    /// # Errors
    /// It is still loading.
    pub(crate) fn model(&self) -> Result<&ServedModel, ApiError> {
        self.model.get().ok_or_else(|| unavailable("The model is still loading", "loading"))
    }

    /// The model, for something new.
    ///
    /// # Errors
    /// It is still loading, or the server is ending.
    pub(crate) fn model_for_work(&self) -> Result<&ServedModel, ApiError> {
        if self.is_draining() {
            return Err(unavailable("The server is ending", "draining"));
        }
        self.model()
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// The error where there is no place for a request now.
pub(crate) fn unavailable(what: &str, code: &'static str) -> ApiError {
    let message = format!("{what}; try again in {COME_BACK_SECONDS} s.");
    let error = ApiError::new(ErrorKind::Unavailable, message);
    ApiError { code: Some(code), retry_after: Some(COME_BACK_SECONDS), ..error }
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Names for requests and answers that nobody can guess and no two of which are alike.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    random: RandomState,
    count: AtomicU64,
}

impl Ids {
    /// A new one.
    pub(crate) fn next(&self, prefix: &str) -> String {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let [high, low] = [0, 1].map(|half: u8| self.random.hash_one((count, half)));
        format!("{prefix}{high:016x}{:08x}", low >> 32)
    }
}

/// Routes that are there with and without `/v1`.
fn api_routes() -> Vec<(&'static str, MethodRouter<Arc<App>>)> {
    vec![
        ("/chat/completions", post(generate::chat)),
        ("/completions", post(generate::completions)),
        ("/responses", post(generate::responses)),
        ("/messages", post(generate::messages)),
        ("/messages/count_tokens", post(text::count_tokens)),
        ("/models", get(models::list)),
        ("/models/{*id}", get(models::one)),
        ("/tokenize", post(text::tokenize)),
        ("/detokenize", post(text::detokenize)),
        ("/apply-template", post(text::apply_template)),
    ]
}

/// Routes about the server itself.
fn server_routes() -> Vec<(&'static str, MethodRouter<Arc<App>>)> {
    vec![
        ("/", get(page::page)),
        ("/health", get(health::health)),
        ("/ready", get(health::ready)),
        ("/metrics", get(health::metrics)),
        ("/openapi.json", get(openapi::document)),
    ]
}

/// The whole application.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (path, methods) in server_routes() {
        router = router.route(path, methods);
    }
    for (path, methods) in api_routes() {
        router = router.route(path, methods.clone()).route(&format!("/v1{path}"), methods);
    }
    let guarded = router
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn(survive))
        .layer(from_fn(body::refuse_encodings))
        .layer(from_fn_with_state(Arc::clone(&app), guard::admit));
    let cross_origin = match cors(&app.options) {
        Some(cors) => guarded.layer(cors),
        None => guarded,
    };
    cross_origin.layer(from_fn_with_state(Arc::clone(&app), guard::observe)).with_state(app)
}

/// What browsers are told of other origins; nothing unless somebody asked for it.
fn cors(options: &ServerOptions) -> Option<CorsLayer> {
    if options.cors_origins.is_empty() {
        return None;
    }
    let origin = if options.cors_origins.iter().any(|o| o == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(options.cors_origins.iter().filter_map(|o| HeaderValue::from_str(o).ok()))
    };
    let headers = AllowHeaders::mirror_request();
    let shown = ["x-request-id", "retry-after"].map(|name| name.parse().expect("a header's name"));
    let methods = [Method::GET, Method::POST];
    Some(CorsLayer::new().allow_origin(origin).allow_headers(headers).allow_methods(methods).expose_headers(shown))
}

async fn no_such_route(request: Request) -> Response {
    let path = request.uri().path();
    let advice = if path.starts_with("/v1/v1/") {
        "the base URL of this client goes without /v1"
    } else {
        "/openapi.json lists the routes"
    };
    let error = ApiError::new(ErrorKind::NotFound, format!("There is no route {path:?}; {advice}."));
    refusal(&ApiError { code: Some("not_found"), ..error }, api_of(path))
}

async fn no_such_method(request: Request) -> Response {
    let path = request.uri().path();
    let message = format!("{path:?} does not take {}; the header Allow says what it takes.", request.method());
    let error = ApiError::new(ErrorKind::Invalid, message);
    refusal(&ApiError { status: 405, code: Some("method_not_allowed"), ..error }, api_of(path))
}

/// Where a handler panics, its request fails, and nothing else.
async fn survive(request: Request, next: Next) -> Response {
    let api = api_of(request.uri().path());
    // What the handler had of the server is behind locks that outlive a panic, or is its own.
    let done = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    done.unwrap_or_else(|_| {
        let error = ApiError::new(ErrorKind::Internal, "The server broke down on this request; its log says where.");
        refusal(&error, api)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;
    use serde_json::{Value, json};

    #[test]
    fn a_panic_is_told_in_the_shape_of_its_api() {
        async fn breaks() -> Response {
            panic!("as planned")
        }
        let routes = Router::new().route("/v1/messages", get(breaks)).route("/v1/responses", get(breaks));
        let service = TowerToHyperService::new(routes.layer(from_fn(survive)));
        let ask = |path: &str| -> Value {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let response = runtime.block_on(service.call(request)).unwrap();
            assert_eq!(response.status(), 500);
            let body = runtime.block_on(axum::body::to_bytes(response.into_body(), 10_000)).unwrap();
            serde_json::from_slice(&body).unwrap()
        };
        let messages = ask("/v1/messages");
        assert_eq!((&messages["type"], &messages["error"]["type"]), (&json!("error"), &json!("api_error")));
        let responses = ask("/v1/responses");
        assert!(responses.get("type").is_none() && responses["error"]["code"].is_null(), "{responses}");
    }

    #[test]
    fn ids_differ() {
        let ids = Ids::default();
        let many: std::collections::HashSet<String> = (0..1000).map(|_| ids.next("x_")).collect();
        assert_eq!(many.len(), 1000);
        assert!(many.iter().all(|id| id.len() == 26));
    }
}
