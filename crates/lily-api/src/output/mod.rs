//! From the bytes of generated tokens to what a client is told: reasoning, answer, tool calls.
//!
//! [`OutputParser`] takes bytes as they are generated and returns [`Piece`]s. However the bytes are split, the pieces join to
//! the same texts; no piece ends inside a character; nothing the model writes is an error.
//!
//! # Reasoning
//! The family thinks between `<think>` and `</think>`. Its template usually ends the prompt with the opened tag, so the text
//! starts inside ([`Start::Reasoning`]); otherwise the text may open the block itself, before anything but white space. A tool call
//! ends reasoning without its closer. Newlines next to the tags are layout and left out, but at the end of a text that ends
//! inside. After the block, its tags are ordinary text, but for closers before the answer's first word.
//!
//! # Tool calls
//! Where the request has functions, `<tool_call>` with a function's tag behind it begins a call; alone it is text. Arguments
//! are typed by the function's schema and always join to one JSON object. What the model gets wrong is forgiven: closers that
//! are missing or too many, the opener forgotten, JSON instead of tags. White space between answer and call is left out, and so is a
//! call that ends before it has a name. Where the client takes one call at a time, the answer ends with the first.
//!
//! # Stop strings
//! They are looked for in the answer's text only: in reasoning or arguments, a blank line or a word would end most answers
//! before they begin, or leave half a call.

mod arguments;
mod call;
mod content;
mod scan;
mod schema;
mod tags;
#[cfg(test)]
pub(crate) mod tests;
mod tokens;
mod transcode;

use serde_json::Value;

use crate::request::{Conversation, Input, Request};
use crate::stop::StopError;
use content::ContentStage;
use scan::Phase;
use tags::Balance;
pub(crate) use tags::{THINK, THINK_END};
use tokens::TokenQueue;

/// Where the model's text starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The prompt opened the reasoning block.
    Reasoning,
    /// The prompt ends in the middle of the reasoning, so that a line break may be part of it.
    InsideReasoning,
    /// The prompt did not; the text may.
    Content,
}

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

impl Delta {
    /// Appends `more` if it continues this delta.
    pub(crate) fn join(&mut self, more: &Self) -> bool {
        match (self, more) {
            (Self::Reasoning(text), Self::Reasoning(more)) | (Self::Content(text), Self::Content(more)) => {
                text.push_str(more)
            }
            (Self::Arguments { index, json }, Self::Arguments { index: other, json: more }) if index == other => {
                json.push_str(more);
            }
            _ => return false,
        }
        true
    }
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
    phase: Phase,
    stage: ContentStage,
    queue: TokenQueue,
    /// Bytes of an incomplete character.
    bytes: Vec<u8>,
    /// Text not yet used: a tag that may become complete, and layout before it.
    held: String,
    stops: Vec<String>,
    /// Whether markup of tool calls means anything.
    takes_calls: bool,
    /// Whether the answer ends with its first call.
    one_call: bool,
    /// Whether text came after the end.
    overran: bool,
    /// Functions that may be called, and the schemas of their arguments.
    functions: Vec<(String, Value)>,
    call_prefix: String,
    /// Calls that are over.
    calls: usize,
    /// Nothing but layout since the last call.
    after_call: bool,
    /// Of a call that is written as JSON.
    balance: Balance,
    /// Reasoning was ended by a call, so its closer may still come.
    closer_is_due: bool,
    reasoning_tokens: usize,
    /// Where the answer began, in bytes of all text.
    answer_start: Option<usize>,
    /// Pieces of earlier calls in the caller's list, which are not added to.
    settled: usize,
}

impl OutputParser {
    /// A parser for one answer.
    ///
    /// # Errors
    /// An empty stop string.
    pub fn new(options: OutputOptions<'_>) -> Result<Self, StopError> {
        let functions: Vec<(String, Value)> = match options.conversation {
            Some(conversation) => {
                let callable = conversation.callable().into_iter();
                callable.map(|tool| (tool.name.clone(), tool.parameters.clone())).collect()
            }
            None => Vec::new(),
        };
        let takes_calls = !functions.is_empty();
        Ok(Self {
            phase: Phase::from(options.start),
            stage: ContentStage::new(options.stop, takes_calls)?,
            queue: TokenQueue::default(),
            bytes: Vec::new(),
            held: String::new(),
            stops: options.stop.to_vec(),
            takes_calls,
            one_call: options.conversation.is_some_and(|conversation| !conversation.parallel_tool_calls),
            overran: false,
            functions,
            call_prefix: options.call_prefix,
            calls: 0,
            after_call: false,
            balance: Balance::default(),
            closer_is_due: false,
            reasoning_tokens: 0,
            answer_start: None,
            settled: 0,
        })
    }

    /// Takes the bytes of the next token and appends what is certain now. After a stop string nothing is appended.
    pub fn push(&mut self, bytes: &[u8], logprob: Option<TokenLogprob>, out: &mut Vec<Piece>) {
        if self.in_reasoning() {
            self.reasoning_tokens += 1;
        }
        self.bytes.extend_from_slice(bytes);
        let before = self.held.len();
        let used = drain_certain(&self.bytes, &mut self.held);
        self.bytes.drain(..used);
        self.queue.arrived(logprob, &self.held[before..], !self.bytes.is_empty());
        self.settled = out.len();
        self.advance(false, out);
    }

    /// Ends the text: appends what was withheld.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        self.settled = out.len();
        if !self.bytes.is_empty() {
            self.bytes.clear();
            self.held.push(char::REPLACEMENT_CHARACTER);
            self.queue.arrived(None, char::REPLACEMENT_CHARACTER.encode_utf8(&mut [0; 4]), false);
        }
        self.advance(true, out);
        if !matches!(self.phase, Phase::Stopped) {
            let rest = self.stage.finish();
            self.show_content(rest, Channel::Content, out);
        }
        self.queue.resolve(0, Channel::Content, false);
        let tokens = self.queue.take();
        if !tokens.is_empty() {
            out.push(Piece { delta: Delta::Content(String::new()), tokens });
        }
    }

    /// The stop string that ended the answer, if one has.
    pub fn stopped(&self) -> Option<&str> {
        self.stage.stopped().map(|index| self.stops[index].as_str())
    }

    /// True once nothing more will come of the text: after a stop string, and after a call where one is all that the client
    /// takes. Generating more is in vain.
    pub fn ended(&self) -> bool {
        matches!(self.phase, Phase::Stopped)
    }

    /// True if text came after the end, so that what the model wrote is more than the answer.
    pub fn overran(&self) -> bool {
        self.overran
    }

    /// True while the text is inside the reasoning block.
    pub fn in_reasoning(&self) -> bool {
        matches!(self.phase, Phase::ReasoningStart | Phase::Reasoning)
    }

    /// Tokens pushed while the text was inside the reasoning block, the closing tag's included.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// How many bytes the model wrote before its answer began: the reasoning, its tags and the layout after them. None while
    /// there is no answer.
    pub fn answer_start(&self) -> Option<usize> {
        self.answer_start
    }

    fn advance(&mut self, ended: bool, out: &mut Vec<Piece>) {
        let text = std::mem::take(&mut self.held);
        let mut at = 0;
        while let Some(used) = self.step(&text[at..], ended, out) {
            at += used;
        }
        self.held = text;
        self.held.drain(..at);
    }

    /// Appends a delta, with the tokens that are due; joined to the piece before it where that came from the same push.
    fn emit(&mut self, delta: Delta, out: &mut Vec<Piece>) {
        let tokens = self.queue.take();
        if out.len() > self.settled
            && let Some(last) = out.last_mut()
            && last.delta.join(&delta)
        {
            last.tokens.extend(tokens);
            return;
        }
        out.push(Piece { delta, tokens });
    }

    fn knows(&self, name: &str) -> bool {
        self.functions.iter().any(|(known, _)| known == name)
    }

    /// The schema of a function's arguments; null for one that nobody described.
    fn parameters(&self, name: &str) -> Value {
        self.functions.iter().find(|(known, _)| known == name).map_or(Value::Null, |(_, schema)| schema.clone())
    }

    fn call_id(&self) -> String {
        format!("{}{}", self.call_prefix, self.calls)
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
