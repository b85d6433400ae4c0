//! Server-sent events as the encoders make them. Writing them to a socket is the server's work.

use serde_json::Value;

/// One thing to write to a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SseEvent {
    /// Data, with an event name where the API has one.
    Data {
        /// Value of the `event:` line.
        event: Option<&'static str>,
        /// Value of the `data:` line: JSON on one line, or `[DONE]`.
        data: String,
    },
    /// A line that parsers skip; it keeps connections open.
    Comment(&'static str),
}

impl SseEvent {
    /// JSON without an event name.
    pub fn data(value: &Value) -> Self {
        Self::Data { event: None, data: value.to_string() }
    }

    /// JSON whose `type` is also the event's name.
    pub fn named(event: &'static str, value: &Value) -> Self {
        Self::Data { event: Some(event), data: value.to_string() }
    }

    /// The end of an OpenAI stream.
    pub fn done() -> Self {
        Self::Data { event: None, data: "[DONE]".into() }
    }

    /// The bytes on the wire, the blank line included.
    pub fn wire(&self) -> String {
        match self {
            Self::Data { event: Some(event), data } => format!("event: {event}\ndata: {data}\n\n"),
            Self::Data { event: None, data } => format!("data: {data}\n\n"),
            Self::Comment(text) => format!(": {text}\n\n"),
        }
    }
}
