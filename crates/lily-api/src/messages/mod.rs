//! Anthropic Messages: `/v1/messages` and `/v1/messages/count_tokens`.

mod encode;
mod parse;

pub use encode::MessagesEncoder;
pub(crate) use parse::TABLES;
pub use parse::parse;

use serde_json::{Value, json};

/// The answer of `count_tokens`. Its body is parsed as one of `/v1/messages`, whose other fields it may leave out.
pub fn token_count(tokens: usize) -> Value {
    json!({"input_tokens": tokens})
}
