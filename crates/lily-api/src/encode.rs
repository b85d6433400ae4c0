//! The interface of the encoders: deltas in, server-sent events or one JSON out.
//!
//! A stream is `start`, then `delta` and `heartbeat` in any order, then `finish` or `error`. An answer that is not streamed is
//! [`Encoder::whole`] of the same pieces.

use std::fmt::Debug;

use serde_json::Value;

use crate::chat;
use crate::error::{Api, ApiError};
use crate::event::SseEvent;
use crate::finish::Finish;
use crate::output::Piece;
use crate::request::Request;

/// Under which name reasoning goes to clients of chat completions, which disagree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningField {
    /// `reasoning_content`.
    #[default]
    ReasoningContent,
    /// `reasoning`.
    Reasoning,
    /// The same text under both names.
    Both,
    /// Not at all.
    None,
}

impl ReasoningField {
    /// The names to send.
    pub(crate) fn names(self) -> &'static [&'static str] {
        match self {
            Self::ReasoningContent => &["reasoning_content"],
            Self::Reasoning => &["reasoning"],
            Self::Both => &["reasoning_content", "reasoning"],
            Self::None => &[],
        }
    }
}

/// What an answer says of itself.
#[derive(Clone, Debug)]
pub struct Context {
    /// Letters and digits that no other answer has; the API's prefix is put before them.
    pub id: String,
    /// Seconds since 1970-01-01, UTC.
    pub created: u64,
    /// The model's name as the answer gives it.
    pub model: String,
    /// Identifies checkpoint and version of the server.
    pub fingerprint: String,
    /// The name of the reasoning in chat completions.
    pub reasoning_field: ReasoningField,
}

/// Makes one answer in one API's words.
pub trait Encoder: Debug + Send {
    /// What a stream begins with; sent when work on the prompt begins.
    fn start(&mut self, out: &mut Vec<SseEvent>);

    /// What a piece of the answer becomes.
    fn delta(&mut self, piece: &Piece, out: &mut Vec<SseEvent>);

    /// What shows a waiting client that its answer is being worked on.
    fn heartbeat(&mut self, out: &mut Vec<SseEvent>);

    /// What a stream ends with.
    fn finish(&mut self, finish: &Finish, out: &mut Vec<SseEvent>);

    /// What a stream ends with when it fails after it has begun.
    fn error(&mut self, error: &ApiError, out: &mut Vec<SseEvent>);

    /// The whole answer as one JSON, from all its pieces, for a client that wants no stream.
    fn whole(&mut self, pieces: &[Piece], finish: &Finish) -> Value;
}

/// The encoder for the API that `request` came by.
pub fn encoder(request: &Request, context: Context) -> Box<dyn Encoder> {
    match request.api {
        Api::Chat | Api::Completions | Api::Responses | Api::Messages => {
            Box::new(chat::ChatEncoder::new(request, context))
        }
    }
}
