//! The routes that generate: one flow for every API, which differ in their parsers and encoders only.

use crate::app::App;
use crate::guard::Passage;
use crate::model::ServedModel;
use crate::prepare::prepare;
use crate::reply::{json, refusal};
use crate::routes::models;
use crate::turn::{self, Message, Turn};
use crate::{body, refused, stream};
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use lily_api::encode::{Context, encoder};
use lily_api::error::{Api, ApiError, ErrorKind};
use lily_api::finish::{Finish, Usage};
use lily_api::request::Request;
use std::sync::Arc;

/// Says how many prompt tokens came from where.
const CACHE: HeaderName = HeaderName::from_static("x-lily-cache");

/// A handler for one API.
macro_rules! handler {
    ($name:ident, $api:expr, $doc:literal) => {
        #[doc = $doc]
        pub(crate) async fn $name(
            State(app): State<Arc<App>>,
            Extension(passage): Extension<Passage>,
            headers: HeaderMap,
            body: Body,
        ) -> Response {
            answer(app, $api, passage, &headers, body).await.unwrap_or_else(|error| refusal(&error, $api))
        }
    };
}

handler!(chat, Api::Chat, "OpenAI chat completions.");
handler!(completions, Api::Completions, "OpenAI completions of plain text.");
handler!(responses, Api::Responses, "OpenAI Responses.");
handler!(messages, Api::Messages, "Anthropic Messages.");

async fn answer(
    app: Arc<App>,
    api: Api,
    passage: Passage,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    app.model_for_work()?;
    let body = body::read(&app, headers, body).await?;
    refused::if_full(&app, app.model()?)?;
    let (request, context, prepared) = blocking(&app, move |app, model| {
        let request = parse(app, api, &body)?;
        let context = context(app, model, &request);
        let prepared = prepare(model, &request, format!("call_{}_", context.id))?;
        Ok((request, context, prepared))
    })
    .await?;
    let prompt = Usage { prompt_tokens: prepared.job.request.prompt.len(), ..Usage::default() };
    let turn = turn::start(&app, prepared, request.logprobs.is_some(), passage)?;
    let mut encoder = encoder(&request, context);
    if request.stream {
        encoder.prompt(&prompt);
        return Ok(stream::response(turn, encoder, app.options.limits.heartbeat));
    }
    let (pieces, finish) = whole(turn).await?;
    let mut response = json(StatusCode::OK, &encoder.whole(&pieces, &finish));
    if let Ok(value) = HeaderValue::from_str(&cache_line(&finish)) {
        response.headers_mut().insert(CACHE, value);
    }
    Ok(response)
}

/// Parses a body and checks that it is for this model.
pub(crate) fn parse(app: &App, api: Api, body: &[u8]) -> Result<Request, ApiError> {
    let request = lily_api::parse(api, body)?;
    check_model(app, &request.model)?;
    Ok(request)
}

/// Clients that name no model mean the only one.
fn check_model(app: &App, model: &str) -> Result<(), ApiError> {
    if model.is_empty() || models::names(app).any(|name| name == model) {
        Ok(())
    } else {
        Err(models::unknown(app, model))
    }
}

/// Does work with the model away from the threads that serve connections, as bodies may be long and grammars difficult.
pub(crate) async fn blocking<T: Send + 'static>(
    app: &Arc<App>,
    work: impl FnOnce(&App, &ServedModel) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let app = Arc::clone(app);
    let done = tokio::task::spawn_blocking(move || work(&app, app.model()?));
    done.await.unwrap_or_else(|_| Err(ApiError::new(ErrorKind::Internal, "The server broke down on this request.")))
}

fn context(app: &App, model: &ServedModel, request: &Request) -> Context {
    let name = if request.model.is_empty() { &app.options.model_id } else { &request.model };
    Context {
        id: app.ids.next(""),
        created: crate::app::unix_seconds(),
        model: name.clone(),
        fingerprint: model.fingerprint.clone(),
        reasoning_field: app.options.reasoning_field,
    }
}

/// Everything of an answer.
async fn whole(mut turn: Turn) -> Result<(Vec<lily_api::output::Piece>, Finish), ApiError> {
    let mut pieces = Vec::new();
    while let Some(message) = turn.messages.recv().await {
        match message {
            Message::Pieces(more) => pieces.extend(more),
            Message::End(end) => return Ok((pieces, end?)),
        }
    }
    Err(ApiError::new(ErrorKind::Internal, "The generation ended without a result."))
}

fn cache_line(finish: &Finish) -> String {
    let cache = finish.timings.map(|t| t.cache).unwrap_or_default();
    let computed = finish.usage.prompt_tokens.saturating_sub(finish.usage.cached_tokens);
    format!(
        "session={} memory={} disk={} computed={computed}",
        cache.session_tokens, cache.memory_tokens, cache.disk_tokens
    )
}
