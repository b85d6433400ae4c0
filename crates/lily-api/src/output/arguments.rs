//! The arguments of one call as JSON text, piece by piece.
//!
//! Texts, objects and lists are passed on as they are written; numbers and the like, and what may be text or something else,
//! wait until they are complete, because only then is it known what they are. Whatever happens, all pieces of a call join to one
//! JSON object.

use serde_json::{Map, Value};

use super::schema::Types;
use super::transcode::Transcoder;

/// Where the text of the present argument goes.
#[derive(Clone, Debug)]
enum Sink {
    /// No argument is open.
    None,
    /// A text whose opening quote has been written.
    Text,
    /// An object or a list.
    Json(Transcoder),
    /// Kept until it is known what it is, or complete.
    Kept(String, Types),
    /// An argument that was given before, which the first one wins.
    Dropped,
}

/// Writer of one call's arguments.
#[derive(Clone, Debug)]
pub(super) struct Arguments {
    /// The function's schema; null where there is none, which describes nothing.
    parameters: Value,
    given: Vec<String>,
    sink: Sink,
    closed: bool,
    out: String,
}

impl Arguments {
    /// For a function whose arguments `parameters` describes.
    pub fn new(parameters: Value) -> Self {
        Self { parameters, given: Vec::new(), sink: Sink::None, closed: false, out: String::new() }
    }

    /// Begins the argument `name`.
    pub fn begin(&mut self, name: &str) {
        if self.closed || self.given.iter().any(|given| given == name) {
            self.sink = Sink::Dropped;
            return;
        }
        self.out.push_str(if self.given.is_empty() { "{" } else { "," });
        self.out.push_str(&Value::from(name).to_string());
        self.out.push(':');
        self.given.push(name.to_owned());
        self.sink = Sink::Kept(String::new(), Types::of(&self.parameters, name));
        self.push("");
    }

    /// More of the present argument's text.
    pub fn push(&mut self, text: &str) {
        match &mut self.sink {
            Sink::Text => escape(text, &mut self.out),
            Sink::Json(transcoder) => transcoder.push(text, &mut self.out),
            Sink::Kept(kept, types) => {
                kept.push_str(text);
                if types.certainly_text(kept) {
                    self.out.push('"');
                    escape(kept, &mut self.out);
                    self.sink = Sink::Text;
                } else if types.certainly_json(kept) {
                    let mut transcoder = Transcoder::new();
                    transcoder.push(kept, &mut self.out);
                    self.sink = Sink::Json(transcoder);
                }
            }
            Sink::None | Sink::Dropped => {}
        }
    }

    /// Ends the present argument.
    pub fn end(&mut self) {
        match std::mem::replace(&mut self.sink, Sink::None) {
            Sink::Text => self.out.push('"'),
            Sink::Json(mut transcoder) => transcoder.finish(&mut self.out),
            Sink::Kept(kept, types) => self.out.push_str(&types.json(&kept)),
            Sink::None | Sink::Dropped => {}
        }
    }

    /// Whether an argument of that name may begin now: the schema knows it, or knows none at all, and it has not been given.
    pub fn expects(&self, name: &str) -> bool {
        let properties = self.parameters.get("properties").and_then(Value::as_object);
        let known = properties.is_none_or(|properties| properties.is_empty() || properties.contains_key(name));
        known && !self.given.iter().any(|given| given == name)
    }

    /// Whether nothing has been written yet.
    pub fn is_fresh(&self) -> bool {
        self.given.is_empty() && !self.closed
    }

    /// Takes all arguments at once, from a model that wrote them as JSON.
    pub fn object(&mut self, object: &Map<String, Value>) {
        if self.is_fresh() {
            self.out.push_str(&Value::Object(object.clone()).to_string());
            self.closed = true;
        }
    }

    /// Ends the arguments.
    pub fn close(&mut self) {
        self.end();
        if !self.closed {
            self.out.push_str(if self.given.is_empty() { "{}" } else { "}" });
            self.closed = true;
        }
    }

    /// What has been written since the last call.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }
}

/// Appends `text` as the inside of a JSON string.
fn escape(text: &str, out: &mut String) {
    let quoted = Value::from(text).to_string();
    out.push_str(&quoted[1..quoted.len() - 1]);
}
