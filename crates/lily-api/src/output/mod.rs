//! From the bytes of generated tokens to what a client is told: reasoning, answer, tool calls.
//!
//! [`OutputParser`] takes bytes as they are generated and returns [`Piece`]s. However the bytes are split, the pieces join to
//! the same texts; no piece ends inside a character; nothing the model writes is an error.

use crate::reasoning::{ReasoningDelta, Start};
use crate::request::{Conversation, Input, Request};
use crate::stop::StopError;
use crate::text::AnswerStream;

/// What one piece of an answer adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text of the reasoning.
    Reasoning(String),
    /// Text of the answer. It is empty only where it carries log-probabilities of tokens that left no text.
    Content(String),
    /// A tool call begins. Indices are dense from 0.
    ToolCall {
        /// Which call of this answer.
        index: usize,
        /// Its id: the parser's prefix and the index.
        id: String,
        /// The function; never empty.
        name: String,
    },
    /// Arguments of the call `index`; all of a call's join to one JSON object.
    Arguments {
        /// Which call of this answer.
        index: usize,
        /// A part of the JSON text.
        json: String,
    },
}

/// The part of an answer that a token belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Reasoning, its tags included.
    Reasoning,
    /// The answer's text.
    Content,
    /// Tool calls, their markup included.
    ToolCalls,
}

/// A generated token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Its exact bytes, which may be a part of a character.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens at its place: bytes and log-probability.
    pub top: Vec<(Vec<u8>, f32)>,
}

/// What a piece of text added, with the tokens behind it where the request asked for log-probabilities.
///
/// A token comes with the first piece that shows any of it. Tokens of markup come with the next piece of any kind, and those of a
/// stop string not at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The addition.
    pub delta: Delta,
    /// Tokens in the order they were generated.
    pub tokens: Vec<(Channel, TokenLogprob)>,
}

/// What the parser needs to know of a request and its prompt.
#[derive(Clone, Debug)]
pub struct OutputOptions<'a> {
    /// Where the model's text starts; `None` where all of it is the answer (no chat).
    pub start: Option<Start>,
    /// Strings that end the answer.
    pub stop: &'a [String],
    /// The conversation, for its tools; without any, markup of tool calls is ordinary text.
    pub conversation: Option<&'a Conversation>,
    /// What ids of tool calls begin with; it must differ from answer to answer.
    pub call_prefix: String,
}

impl<'a> OutputOptions<'a> {
    /// The options of a request whose prompt left the model at `start`.
    pub fn new(request: &'a Request, start: Start, call_prefix: impl Into<String>) -> Self {
        let conversation = match &request.input {
            Input::Chat(conversation) => Some(conversation),
            Input::Text { .. } => None,
        };
        Self { start: conversation.map(|_| start), stop: &request.stop, conversation, call_prefix: call_prefix.into() }
    }
}

/// Incremental parser of what a model writes.
#[derive(Clone, Debug)]
pub struct OutputParser {
    stream: AnswerStream,
    bytes: Vec<u8>,
    stops: Vec<String>,
    in_reasoning: bool,
    reasoning_tokens: usize,
}

impl OutputParser {
    /// A parser for one answer.
    ///
    /// # Errors
    /// An empty stop string.
    pub fn new(options: OutputOptions<'_>) -> Result<Self, StopError> {
        let stream = AnswerStream::new(options.start, options.stop)?;
        Ok(Self {
            stream,
            bytes: Vec::new(),
            stops: options.stop.to_vec(),
            in_reasoning: options.start == Some(Start::Reasoning),
            reasoning_tokens: 0,
        })
    }

    /// Takes the bytes of the next token and appends what is certain now. After a stop string nothing is appended.
    pub fn push(&mut self, bytes: &[u8], _logprob: Option<TokenLogprob>, out: &mut Vec<Piece>) {
        if self.in_reasoning {
            self.reasoning_tokens += 1;
        }
        self.bytes.extend_from_slice(bytes);
        let mut text = String::new();
        let used = drain_certain(&self.bytes, &mut text);
        self.bytes.drain(..used);
        let delta = self.stream.push(&text);
        self.emit(delta, out);
    }

    /// Ends the text: appends what was withheld.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        if !self.bytes.is_empty() {
            self.bytes.clear();
            let delta = self.stream.push("\u{FFFD}");
            self.emit(delta, out);
        }
        let delta = self.stream.finish();
        self.emit(delta, out);
    }

    /// The stop string that ended the answer, if one has.
    pub fn stopped(&self) -> Option<&str> {
        self.stream.stopped().map(|index| self.stops[index].as_str())
    }

    /// True while the text is inside the reasoning block.
    pub fn in_reasoning(&self) -> bool {
        self.in_reasoning
    }

    /// Tokens pushed while the text was inside the reasoning block, the closing tag's included.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    fn emit(&mut self, delta: ReasoningDelta, out: &mut Vec<Piece>) {
        if !delta.reasoning.is_empty() {
            out.push(Piece { delta: Delta::Reasoning(delta.reasoning), tokens: Vec::new() });
        }
        if !delta.content.is_empty() {
            self.in_reasoning = false;
            out.push(Piece { delta: Delta::Content(delta.content), tokens: Vec::new() });
        }
    }
}

/// Appends to `out` all characters and invalid sequences of `bytes` but an incomplete last character; returns how many
/// bytes that was.
fn drain_certain(bytes: &[u8], out: &mut String) -> usize {
    let mut used = 0;
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        used += chunk.valid().len();
        let invalid = chunk.invalid();
        let at_end = used + invalid.len() == bytes.len();
        if at_end && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none()) {
            return used;
        }
        if !invalid.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            used += invalid.len();
        }
    }
    used
}
