//! What a client is told when its request is not answered, in the shape of the API it spoke.
//!
//! An [`ApiError`] is made where the fault is found, by a parser here or by the server, and rendered once. Mapping errors of
//! the engine to one is the server's work.

use serde_json::{Value, json};

/// Which API a client speaks; it decides the shape of answers and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// OpenAI chat completions.
    Chat,
    /// OpenAI completions of plain text.
    Completions,
    /// OpenAI Responses.
    Responses,
    /// Anthropic Messages.
    Messages,
}

/// Kinds of failures that clients tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is malformed, or asks for what cannot be done.
    Invalid,
    /// No key, or a wrong one.
    Unauthenticated,
    /// The key or the origin does not permit this.
    Forbidden,
    /// No such route, model or object.
    NotFound,
    /// The body is larger than the server reads.
    TooLarge,
    /// The queue is full.
    Busy,
    /// Loading, draining, or out of memory for now.
    Unavailable,
    /// It failed here; trying again gives the same.
    Internal,
    /// The client took too long.
    Timeout,
}

impl ErrorKind {
    fn openai(self) -> &'static str {
        match self {
            Self::Invalid | Self::NotFound | Self::TooLarge | Self::Timeout => "invalid_request_error",
            Self::Unauthenticated => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::Busy => "rate_limit_error",
            Self::Unavailable => "unavailable_error",
            Self::Internal => "server_error",
        }
    }

    fn anthropic(self) -> &'static str {
        match self {
            Self::Invalid => "invalid_request_error",
            Self::Unauthenticated => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::NotFound => "not_found_error",
            Self::TooLarge => "request_too_large",
            Self::Busy => "rate_limit_error",
            Self::Unavailable => "overloaded_error",
            Self::Internal => "api_error",
            Self::Timeout => "timeout_error",
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Timeout => 408,
            Self::TooLarge => 413,
            Self::Busy => 429,
            Self::Internal => 500,
            Self::Unavailable => 503,
        }
    }
}

/// A failure as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status; means nothing once a stream has begun.
    pub status: u16,
    /// What kind of failure.
    pub kind: ErrorKind,
    /// What was expected, what was found, what to do.
    pub message: String,
    /// The field of the request at fault, such as `messages[2].content`.
    pub param: Option<String>,
    /// A word for programs, such as `context_length_exceeded`.
    pub code: Option<&'static str>,
    /// Seconds after which trying again makes sense; the server sends `Retry-After`.
    pub retry_after: Option<u64>,
}

impl ApiError {
    /// A failure of a kind, with its usual status.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { status: kind.status(), kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// A wrong field of the request.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(ErrorKind::Invalid, message) }
    }

    /// A field that asks for what lily cannot do.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::field(param, message) }
    }

    /// The prompt, with the room the answer needs, is longer than the context.
    pub fn too_long(prompt_tokens: usize, context_tokens: usize) -> Self {
        // Agents recognise these words and compact their conversation.
        let message = format!(
            "This model's maximum context length is {context_tokens} tokens. However, your messages resulted in \
             {prompt_tokens} tokens; prompt is too long: {prompt_tokens} tokens > {context_tokens} maximum. Shorten \
             the conversation, or start the server with a longer context."
        );
        Self { code: Some("context_length_exceeded"), ..Self::field("messages", message) }
    }

    /// A model that is not served here.
    pub fn unknown_model(model: &str, served: &[&str]) -> Self {
        let message = format!("The model `{model}` is not served here; this server has: {}.", served.join(", "));
        let error = Self { param: Some("model".into()), ..Self::new(ErrorKind::NotFound, message) };
        Self { code: Some("model_not_found"), ..error }
    }

    /// The queue is full.
    pub fn busy(waiting: usize, limit: usize, retry_after: u64) -> Self {
        let message = format!("{waiting} requests are waiting and {limit} may; try again in {retry_after} s.");
        let error = Self { code: Some("queue_full"), ..Self::new(ErrorKind::Busy, message) };
        Self { retry_after: Some(retry_after), ..error }
    }

    /// Whether the official clients should repeat the request; the server says so in `x-should-retry`.
    pub fn should_retry(&self) -> bool {
        matches!(self.kind, ErrorKind::Busy | ErrorKind::Unavailable)
    }

    /// The body of the answer, in the shape of `api`.
    pub fn body(&self, api: Api) -> Value {
        match api {
            Api::Messages => {
                json!({"type": "error", "error": {"type": self.kind.anthropic(), "message": self.message}})
            }
            _ => json!({"error": self.openai()}),
        }
    }

    /// The object under `error` in OpenAI's shape. `code` is text or null, as its clients type it so.
    pub(crate) fn openai(&self) -> Value {
        json!({"message": self.message, "type": self.kind.openai(), "param": self.param, "code": self.code})
    }
}
