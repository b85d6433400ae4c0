//! The interface of the encoders: deltas in, server-sent events or one JSON out.
//!
//! A stream is `start`, then `delta` and `heartbeat` in any order, then `finish` or `error`. An answer that is not streamed is
//! [`Encoder::whole`] of the same pieces.

use std::fmt::Debug;

use serde_json::Value;

use crate::chat::ChatEncoder;
use crate::completions::CompletionsEncoder;
use crate::error::{Api, ApiError};
use crate::event::SseEvent;
use crate::finish::{Finish, Usage};
use crate::messages::MessagesEncoder;
use crate::output::Piece;
use crate::request::Request;
use crate::responses::ResponsesEncoder;

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
    /// What is known of the prompt before `start`; some APIs say it there.
    fn prompt(&mut self, _usage: &Usage) {}

    /// What a stream begins with; sent when work on the prompt begins.
    fn start(&mut self, out: &mut Vec<SseEvent>);

    /// What a piece of the answer becomes.
    fn delta(&mut self, piece: &Piece, out: &mut Vec<SseEvent>);

    /// What shows a waiting client that its answer is being worked on. An event that says nothing, and no comment: idle timers of
    /// some clients count what they have parsed.
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
        Api::Completions => Box::new(CompletionsEncoder::new(request, context)),
        Api::Messages => Box::new(MessagesEncoder::new(request, context)),
        Api::Responses => Box::new(ResponsesEncoder::new(request, context)),
        Api::Chat => Box::new(ChatEncoder::new(request, context)),
    }
}
