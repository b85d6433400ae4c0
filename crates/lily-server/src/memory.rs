//! An answer on its way into the history, from where it comes back as it was written.

use crate::model::ServedModel;
use lily_api::history::Written;
use lily_api::output::{OutputParser, Piece};
use serde_json::Value;

/// What was written so far.
pub(crate) struct Memory {
    messages: Vec<Value>,
    in_reasoning: bool,
    pieces: Vec<Piece>,
    written: Written,
}

impl Memory {
    /// An answer to `messages`; `in_reasoning` if the prompt opened the reasoning.
    pub(crate) fn new(messages: Vec<Value>, in_reasoning: bool) -> Self {
        Self { messages, in_reasoning, pieces: Vec::new(), written: Written::default() }
    }

    /// Takes a token with its bytes.
    pub(crate) fn token(&mut self, token: u32, bytes: &[u8]) {
        self.written.push(token, bytes);
    }

    /// Takes what the client was told.
    pub(crate) fn pieces(&mut self, pieces: &[Piece]) {
        self.pieces.extend_from_slice(pieces);
    }

    /// Remembers the answer, which the model ended itself.
    pub(crate) fn keep(self, model: &ServedModel, parser: &OutputParser) {
        let Self { messages, in_reasoning, pieces, written } = self;
        model.history().remember(&messages, &pieces, written, in_reasoning, parser.answer_start());
    }
}
