//! How the server is: alive, ready, and in figures.

use crate::app::App;
use crate::reply::{json, refusal, with_type};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use lily_api::error::Api;
use serde_json::json;
use std::sync::Arc;

/// Alive: answers as long as the process does.
pub(crate) async fn health() -> Response {
    json(StatusCode::OK, &json!({"status": "ok"}))
}

/// Ready for requests: loaded, warmed up and not ending.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response {
    match app.model_for_work() {
        Ok(_) => json(StatusCode::OK, &json!({"status": "ready"})),
        Err(error) => refusal(&error, Api::Chat),
    }
}

/// Figures for Prometheus.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    if let Ok(model) = app.model() {
        model.measure(&app.metrics);
    }
    with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", app.metrics.render())
}
