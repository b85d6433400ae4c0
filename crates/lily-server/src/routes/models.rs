//! The model, in a form that OpenAI's and Anthropic's clients both read.

use crate::app::App;
use crate::reply::{api_of, json, refusal};
use axum::extract::{OriginalUri, Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use lily_api::error::ApiError;
use serde_json::{Value, json};
use std::sync::Arc;

/// Everything that is served: the model under each of its names.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    match described(&app) {
        Ok(models) => {
            let id = |model: Option<&Value>| model.map_or(Value::Null, |m| m["id"].clone());
            let (first, last) = (id(models.first()), id(models.last()));
            let body = json!({"object": "list", "data": models, "has_more": false, "first_id": first, "last_id": last});
            json(StatusCode::OK, &body)
        }
        Err(error) => refusal(&error, lily_api::error::Api::Chat),
    }
}

/// One of them.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    OriginalUri(uri): OriginalUri,
    Path(id): Path<String>,
) -> Response {
    let found = described(&app)
        .and_then(|models| models.into_iter().find(|m| m["id"] == id.as_str()).ok_or_else(|| unknown(&app, &id)));
    match found {
        Ok(model) => json(StatusCode::OK, &model),
        Err(error) => refusal(&error, api_of(uri.path())),
    }
}

/// The error for a model that is not served here.
pub(crate) fn unknown(app: &App, id: &str) -> ApiError {
    ApiError::unknown_model(id, &names(app).collect::<Vec<_>>())
}

/// The names that the model answers to.
pub(crate) fn names(app: &App) -> impl Iterator<Item = &str> {
    std::iter::once(&app.options.model_id).chain(&app.options.aliases).map(String::as_str)
}

fn described(app: &App) -> Result<Vec<Value>, ApiError> {
    let context_tokens = app.model()?.context_tokens;
    let describe = |id: &str| {
        json!({
            "id": id,
            "object": "model",
            "type": "model",
            "display_name": id,
            "created": app.started,
            "created_at": crate::time::rfc3339(app.started),
            "owned_by": "lily",
            "context_length": context_tokens,
            "max_model_len": context_tokens,
            "max_input_tokens": context_tokens,
        })
    };
    Ok(names(app).map(describe).collect())
}
