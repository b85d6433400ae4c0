//! Marks in a conversation, and what was written in their place.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Turn;

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Text to encode.
    Text(&'a str),
    /// What a model wrote: its text, and its tokens where the part begins with one. Encoding the text may give other tokens than
    /// the model chose.
    Written {
        /// The text.
        text: &'a str,
        /// The tokens.
        tokens: Option<&'a [u32]>,
    },
}

/// One marked message.
#[derive(Debug)]
struct Mark {
    reasoning: String,
    content: String,
    turn: Arc<Turn>,
}

/// A conversation whose known answers are marked.
#[derive(Debug)]
pub struct Replay {
    messages: Vec<Value>,
    marks: Vec<Mark>,
}

impl Replay {
    pub(super) fn new(messages: &[Value], turns: Vec<(usize, Arc<Turn>)>) -> Self {
        let mut messages = messages.to_vec();
        let mut marks = Vec::new();
        let stem = if turns.is_empty() { String::new() } else { unused(&messages) };
        for (number, (index, turn)) in turns.into_iter().enumerate() {
            let mark = |kind| format!("{stem}{number}{kind}\u{E001}");
            let mark = Mark { reasoning: mark('r'), content: mark('c'), turn };
            // Without reasoning the mark would make the template show some.
            let reasoning = if mark.turn.in_reasoning { mark.reasoning.as_str() } else { "" };
            messages[index] = json!({"role": "assistant", "content": mark.content, "reasoning_content": reasoning});
            marks.push(mark);
        }
        Self { messages, marks }
    }

    /// The messages to render.
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// How many messages are marked.
    pub fn marked(&self) -> usize {
        self.marks.len()
    }

    /// The prompt that the rendered [`Replay::messages`] stand for; `None` if the template has not kept every mark exactly once
    /// and in order, in which case the conversation must be rendered as it came.
    pub fn segments<'a>(&'a self, rendered: &'a str) -> Option<Vec<Segment<'a>>> {
        let mut segments = Vec::new();
        let mut at = 0;
        for mark in &self.marks {
            let content = at + rendered[at..].find(&mark.content)?;
            let reasoning = rendered[at..content].find(&mark.reasoning).map(|found| at + found);
            let (start, from) = match reasoning {
                Some(start) => (start, 0),
                // The template leaves past reasoning out, or there was none.
                None if mark.turn.in_reasoning => (content, mark.turn.answer_start),
                None => (content, 0),
            };
            segments.push(Segment::Text(&rendered[at..start]));
            segments.push(Segment::Written { text: &mark.turn.text[from..], tokens: mark.turn.tokens_from(from) });
            at = content + mark.content.len();
        }
        segments.push(Segment::Text(&rendered[at..]));
        let twice = |mark: &Mark| rendered.matches(mark.content.as_str()).count() != 1;
        if self.marks.iter().any(twice) { None } else { Some(segments) }
    }
}

/// The beginning of marks that none of the messages contains. Private-use characters are no white space, which templates trim.
fn unused(messages: &[Value]) -> String {
    let mut number = 0;
    loop {
        let stem = format!("\u{E000}lily{number}-");
        if !messages.iter().any(|message| contains(message, &stem)) {
            return stem;
        }
        number += 1;
    }
}

fn contains(value: &Value, text: &str) -> bool {
    match value {
        Value::String(string) => string.contains(text),
        Value::Array(list) => list.iter().any(|item| contains(item, text)),
        Value::Object(map) => map.iter().any(|(key, item)| key.contains(text) || contains(item, text)),
        _ => false,
    }
}
