//! What lies between clients and a model's text, as pure functions and state machines.
//!
//! A body becomes a [`request::Request`] ([`parse`]); the bytes a model writes become [`output::Delta`]s (reasoning, answer, tool
//! calls; [`output`]); deltas become the events or the JSON of the API that the client speaks ([`encode`]). Bytes in, values
//! out: no I/O, no clock, no model knowledge beyond the family's markup.
#![forbid(unsafe_code)]

pub mod chat;
mod common;
pub mod completions;
mod conversation;
pub mod encode;
pub mod error;
pub mod event;
mod fields;
pub mod finish;
pub mod fold;
pub mod history;
pub mod messages;
pub mod output;
pub mod request;
pub mod responses;
mod schema;
pub mod stop;
#[cfg(test)]
mod tests;

pub use error::{Api, ApiError, ErrorKind};
pub use event::SseEvent;
pub use schema::schema;

/// Parses the body of a request to `api`.
///
/// # Errors
/// A body that is malformed, or that asks for what cannot be done; the field is named.
pub fn parse(api: Api, body: &[u8]) -> Result<request::Request, ApiError> {
    match api {
        Api::Chat => chat::parse(body),
        Api::Completions => completions::parse(body),
        Api::Messages => messages::parse(body),
        Api::Responses => responses::parse(body),
    }
}
