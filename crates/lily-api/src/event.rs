//! Server-sent events as the encoders make them. Writing them to a socket is the server's work.

use serde_json::Value;

/// One thing to write to a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// Value of the `event:` line, where the API has one.
    pub event: Option<&'static str>,
    /// Value of the `data:` line: JSON on one line, or `[DONE]`.
    pub data: String,
}

impl SseEvent {
    /// JSON without an event name.
    pub fn data(value: &Value) -> Self {
        Self { event: None, data: value.to_string() }
    }

    /// JSON whose `type` is also the event's name.
    pub fn named(event: &'static str, value: &Value) -> Self {
        Self { event: Some(event), data: value.to_string() }
    }

    /// The end of an OpenAI stream.
    pub fn done() -> Self {
        Self { event: None, data: "[DONE]".into() }
    }

    /// The bytes on the wire, the blank line included.
    pub fn wire(&self) -> String {
        let Self { event, data } = self;
        match event {
            Some(event) => format!("event: {event}\ndata: {data}\n\n"),
            None => format!("data: {data}\n\n"),
        }
    }
}
