//! `/openapi.json`: the routes for machines. A test holds it to the router.

use crate::reply::json as reply;
use axum::http::StatusCode;
use axum::response::Response;
use lily_api::Api;
use serde_json::{Map, Value, json};

/// A route: path (those without a dot or a bare word are there without `/v1` too), method, what it does, how it may fail.
struct Operation {
    path: &'static str,
    method: &'static str,
    summary: &'static str,
    /// Fields that a body must have; `None` where there is no body.
    required: Option<&'static [&'static str]>,
    answer: &'static str,
    errors: &'static [u16],
}

const GENERATION_ERRORS: &[u16] = &[400, 401, 403, 404, 408, 413, 415, 429, 500, 503];
const TEXT_ERRORS: &[u16] = &[400, 401, 403, 404, 408, 413, 415, 503];
const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

/// Shorthand for a row.
const fn row(
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    required: Option<&'static [&'static str]>,
    answer: &'static str,
    errors: &'static [u16],
) -> Operation {
    Operation { path, method, summary, required, answer, errors }
}

/// Routes that are there with and without `/v1`.
const API: [Operation; 10] = [
    row("post", "/chat/completions", "OpenAI chat completions", Some(&["messages"]), EVENTS, GENERATION_ERRORS),
    row("post", "/completions", "OpenAI completions of plain text", Some(&["prompt"]), EVENTS, GENERATION_ERRORS),
    row("post", "/responses", "OpenAI Responses, without state", Some(&["input"]), EVENTS, GENERATION_ERRORS),
    row("post", "/messages", "Anthropic Messages", Some(&["messages", "max_tokens"]), EVENTS, GENERATION_ERRORS),
    row("post", "/messages/count_tokens", "Tokens of a Messages request", Some(&["messages"]), JSON, TEXT_ERRORS),
    row("get", "/models", "The model under each of its names", None, JSON, &[401, 403, 503]),
    row("get", "/models/{id}", "One of them", None, JSON, &[401, 403, 404, 503]),
    row("post", "/tokenize", "Tokens of `content`, or of the prompt of `messages`", Some(&[]), JSON, TEXT_ERRORS),
    row("post", "/detokenize", "Text of `tokens`", Some(&["tokens"]), JSON, TEXT_ERRORS),
    row("post", "/apply-template", "The prompt of a chat, as text", Some(&["messages"]), JSON, TEXT_ERRORS),
];

/// Bodies that the parsers describe: the route, the name of the schema, and whose it is.
const BODIES: [(&str, &str, Api); 5] = [
    ("/chat/completions", "ChatCompletion", Api::Chat),
    ("/completions", "Completion", Api::Completions),
    ("/responses", "Response", Api::Responses),
    ("/messages", "Message", Api::Messages),
    ("/messages/count_tokens", "Message", Api::Messages),
];

/// Routes about the server itself.
const SERVER: [Operation; 5] = [
    row("get", "/", "The chat page", None, "text/html", &[403]),
    row("get", "/health", "Alive", None, JSON, &[403]),
    row("get", "/ready", "Loaded, warmed up and not ending", None, JSON, &[403, 503]),
    row("get", "/metrics", "Figures for Prometheus", None, "text/plain", &[401, 403]),
    row("get", "/openapi.json", "This document", None, JSON, &[401, 403]),
];

/// The document.
pub(crate) async fn document() -> Response {
    reply(StatusCode::OK, &openapi())
}

fn openapi() -> Value {
    let mut paths = Map::new();
    for operation in SERVER {
        paths.insert(operation.path.into(), described(&operation));
    }
    for operation in API {
        paths.insert(format!("/v1{}", operation.path), described(&operation));
        paths.insert(operation.path.into(), described(&operation));
    }
    let schemas: Map<String, Value> =
        BODIES.iter().map(|(_, name, api)| ((*name).to_owned(), lily_api::schema(*api))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "lily",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "OpenAI's and Anthropic's APIs over one local model; docs/api.md lists the fields.",
        },
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": schemas,
            "responses": {"error": {
                "description": "In the shape of the API that was spoken to",
                "content": {JSON: {"schema": {"type": "object", "required": ["error"]}}},
            }},
        },
    })
}

fn described(operation: &Operation) -> Value {
    let mut content = Map::new();
    if operation.answer == EVENTS {
        content.insert(JSON.into(), json!({"schema": {"type": "object"}}));
    }
    let kind = if operation.answer == JSON { "object" } else { "string" };
    content.insert(operation.answer.into(), json!({"schema": {"type": kind}}));
    let mut responses = Map::new();
    responses.insert("200".into(), json!({"description": "OK", "content": content}));
    for status in operation.errors {
        responses.insert(status.to_string(), json!({"$ref": "#/components/responses/error"}));
    }
    let mut value = json!({"summary": operation.summary, "responses": responses});
    if let Some(required) = operation.required {
        let named = BODIES.iter().find(|(path, ..)| *path == operation.path);
        let schema = match named {
            Some((_, name, _)) => json!({"$ref": format!("#/components/schemas/{name}")}),
            None => json!({"type": "object", "required": required}),
        };
        value["requestBody"] = json!({"required": true, "content": {JSON: {"schema": schema}}});
    }
    if operation.path.contains('{') {
        value["parameters"] = json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]);
    }
    json!({operation.method: value})
}
