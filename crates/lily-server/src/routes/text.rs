//! Text and tokens without generating: tokenize, detokenize, apply-template, and Anthropic's count of tokens.
//!
//! Field names of the first three are those of llama-server and of vLLM both; answers have each under both names.

use crate::app::App;
use crate::prepare;
use crate::reply::{json, refusal};
use crate::routes::generate::{blocking, parse};
use crate::{body, model::ServedModel};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use lily_api::error::{Api, ApiError};
use lily_api::request::Input;
use lily_engine::tokenizer::ControlTokens;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Tokens of a text (`content` or `prompt`) or of a chat's prompt (`messages` and what goes with them).
pub(crate) async fn tokenize(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response {
    reply(Api::Chat, with_body(&app, &headers, body, tokens_of).await)
}

/// Text of `tokens`.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response {
    reply(Api::Chat, with_body(&app, &headers, body, text_of).await)
}

/// The prompt of a chat, as text.
pub(crate) async fn apply_template(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response {
    reply(Api::Chat, with_body(&app, &headers, body, prompt_of).await)
}

/// How many tokens the prompt of a Messages request has.
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response {
    reply(Api::Messages, with_body(&app, &headers, body, count_of).await)
}

/// What a route makes of a body.
type Work = fn(&App, &ServedModel, &[u8]) -> Result<Value, ApiError>;

async fn with_body(app: &Arc<App>, headers: &HeaderMap, body: Body, work: Work) -> Result<Value, ApiError> {
    app.model()?;
    let body = body::read(app, headers, body).await?;
    blocking(app, move |app, model| work(app, model, &body)).await
}

fn reply(api: Api, answer: Result<Value, ApiError>) -> Response {
    match answer {
        Ok(value) => json(StatusCode::OK, &value),
        Err(error) => refusal(&error, api),
    }
}

fn count_of(app: &App, model: &ServedModel, body: &[u8]) -> Result<Value, ApiError> {
    let request = parse(app, Api::Messages, body)?;
    Ok(lily_api::messages::token_count(prepare::prompt(model, &request)?.tokens.len()))
}

fn tokens_of(app: &App, model: &ServedModel, body: &[u8]) -> Result<Value, ApiError> {
    let fields = fields(body)?;
    let tokens = if fields.contains_key("messages") {
        prepare::prompt(model, &parse(app, Api::Chat, body)?)?.tokens
    } else {
        let text = ["content", "prompt"].iter().find_map(|name| fields.get(*name)?.as_str());
        let text = text.ok_or_else(|| ApiError::field("content", "`content` must be there: the text to tokenize."))?;
        let plain = fields.get("parse_special").and_then(Value::as_bool) == Some(false);
        let control = if plain { ControlTokens::AsText } else { ControlTokens::Recognise };
        let encoded = model.prompter.tokenizer().encode(text, control);
        encoded.map_err(|error| ApiError::field("content", error.to_string()))?
    };
    let mut answer = json!({"tokens": tokens, "count": tokens.len(), "max_model_len": model.context_tokens});
    let asked = |name: &str| fields.get(name).and_then(Value::as_bool) == Some(true);
    if asked("with_pieces") {
        answer["tokens"] = tokens.iter().map(|&id| json!({"id": id, "piece": piece(model, id)})).collect();
    }
    if asked("return_token_strs") {
        answer["token_strs"] = tokens.iter().map(|&id| model.prompter.tokenizer().id_to_token(id)).collect();
    }
    Ok(answer)
}

/// Text of a token, or its bytes where it is a part of a character.
fn piece(model: &ServedModel, id: u32) -> Value {
    let bytes = model.prompter.tokenizer().token_bytes(id);
    std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text))
}

fn text_of(_: &App, model: &ServedModel, body: &[u8]) -> Result<Value, ApiError> {
    let fields = fields(body)?;
    let vocab = model.vocab;
    let id = |value: &Value| value.as_u64().filter(|&id| id < vocab as u64).map(|id| id as u32);
    let tokens = fields.get("tokens").and_then(Value::as_array);
    let tokens: Option<Vec<u32>> = tokens.and_then(|tokens| tokens.iter().map(id).collect());
    let tokens = tokens.ok_or_else(|| {
        ApiError::field("tokens", format!("`tokens` must be a list of token ids from 0 to {}.", vocab - 1))
    })?;
    let text = model.prompter.tokenizer().decode(&tokens);
    Ok(json!({"content": text, "prompt": text}))
}

fn prompt_of(app: &App, model: &ServedModel, body: &[u8]) -> Result<Value, ApiError> {
    let request = parse(app, Api::Chat, body)?;
    let text = match &request.input {
        Input::Chat(chat) => prepare::chat_text(model, chat)?,
        Input::Text { .. } => return Err(ApiError::field("messages", "`messages` must be there.")),
    };
    Ok(json!({"prompt": text}))
}

fn fields(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let wrong = |e| ApiError::new(lily_api::error::ErrorKind::Invalid, format!("The body is no JSON object: {e}."));
    serde_json::from_slice(body).map_err(wrong)
}
