//! Answers of Responses.
//!
//! Every item is announced (`output_item.added`), written in deltas, and given once more whole (`output_item.done`), which is what
//! agents act on. Idle timers of some clients wait for an event that they can parse, so a heartbeat repeats
//! `response.in_progress`.

use serde_json::{Value, json};

use super::object::{Shared, delta_logprobs, free_text, output_text};
use crate::encode::{Context, Encoder};
use crate::error::ApiError;
use crate::event::SseEvent;
use crate::finish::Finish;
use crate::output::{Channel, Delta, Piece, TokenLogprob};
use crate::request::Request;

/// The item that is being written.
#[derive(Debug)]
enum Open {
    Nothing,
    Reasoning(String),
    Message(String, Vec<(Channel, TokenLogprob)>),
    Call { id: String, name: String, arguments: String },
}

/// Encoder of one response.
#[derive(Debug)]
pub struct ResponsesEncoder {
    shared: Shared,
    sequence: usize,
    open: Open,
    /// Finished items.
    output: Vec<Value>,
}

impl ResponsesEncoder {
    /// An encoder for the answer to `request`.
    pub fn new(request: &Request, context: Context) -> Self {
        Self { shared: Shared::new(request, context), sequence: 0, open: Open::Nothing, output: Vec::new() }
    }

    fn event(&mut self, name: &'static str, fields: Value, out: &mut Vec<SseEvent>) {
        let mut value = json!({"type": name, "sequence_number": self.sequence});
        self.sequence += 1;
        if let (Some(value), Value::Object(fields)) = (value.as_object_mut(), fields) {
            value.extend(fields);
        }
        out.push(SseEvent::named(name, &value));
    }

    /// An event of the open item, whose id and place it carries.
    fn item_event(&mut self, name: &'static str, fields: Value, out: &mut Vec<SseEvent>) {
        let index = self.output.len();
        let mut all = json!({"item_id": self.opened()["id"], "output_index": index});
        if let (Some(all), Value::Object(fields)) = (all.as_object_mut(), fields) {
            all.extend(fields);
        }
        self.event(name, all, out);
    }

    /// The open item as it was announced.
    fn opened(&self) -> Value {
        let index = self.output.len();
        match &self.open {
            Open::Nothing => Value::Null,
            Open::Reasoning(_) => self.shared.reasoning(index, None),
            Open::Message(..) => self.shared.message(index, None, "in_progress"),
            Open::Call { id, name, .. } => self.shared.call(index, id, name, None),
        }
    }

    fn open(&mut self, open: Open, out: &mut Vec<SseEvent>) {
        self.close("completed", out);
        self.open = open;
        let index = self.output.len();
        self.event("response.output_item.added", json!({"output_index": index, "item": self.opened()}), out);
        match &self.open {
            Open::Reasoning(_) if self.shared.summarise => {
                let part = json!({"summary_index": 0, "part": {"type": "summary_text", "text": ""}});
                self.item_event("response.reasoning_summary_part.added", part, out);
            }
            Open::Reasoning(_) => {
                let part = json!({"content_index": 0, "part": {"type": "reasoning_text", "text": ""}});
                self.item_event("response.content_part.added", part, out);
            }
            Open::Message(..) => {
                let part = json!({"content_index": 0, "part": output_text("", &json!([]))});
                self.item_event("response.content_part.added", part, out);
            }
            Open::Call { .. } | Open::Nothing => {}
        }
    }

    /// Ends the open item; `status` is that of a message.
    fn close(&mut self, status: &str, out: &mut Vec<SseEvent>) {
        let index = self.output.len();
        let item = match &self.open {
            Open::Nothing => return,
            Open::Reasoning(text) => {
                let text = text.clone();
                self.close_reasoning(&text, out);
                self.shared.reasoning(index, Some(&text))
            }
            Open::Message(text, tokens) => {
                let (text, logprobs) = (text.clone(), self.shared.logprobs(tokens));
                let done = json!({"content_index": 0, "text": text, "logprobs": logprobs});
                self.item_event("response.output_text.done", done, out);
                let part = json!({"content_index": 0, "part": output_text(&text, &logprobs)});
                self.item_event("response.content_part.done", part, out);
                self.shared.message(index, Some((&text, &logprobs)), status)
            }
            Open::Call { id, name, arguments } => {
                let item = self.shared.call(index, id, name, Some(arguments));
                if self.shared.takes_free_text(name) {
                    // Only now is the text known; it is no JSON, of which it came as a part.
                    let input = free_text(arguments);
                    self.item_event("response.custom_tool_call_input.delta", json!({"delta": input}), out);
                    self.item_event("response.custom_tool_call_input.done", json!({"input": input}), out);
                } else {
                    let done = json!({"name": self.shared.names(name).1, "arguments": arguments});
                    self.item_event("response.function_call_arguments.done", done, out);
                }
                item
            }
        };
        self.open = Open::Nothing;
        self.event("response.output_item.done", json!({"output_index": index, "item": item}), out);
        self.output.push(item);
    }

    fn close_reasoning(&mut self, text: &str, out: &mut Vec<SseEvent>) {
        if self.shared.summarise {
            self.item_event("response.reasoning_summary_text.done", json!({"summary_index": 0, "text": text}), out);
            let part = json!({"summary_index": 0, "part": {"type": "summary_text", "text": text}});
            self.item_event("response.reasoning_summary_part.done", part, out);
        } else {
            self.item_event("response.reasoning_text.done", json!({"content_index": 0, "text": text}), out);
            let part = json!({"content_index": 0, "part": {"type": "reasoning_text", "text": text}});
            self.item_event("response.content_part.done", part, out);
        }
    }

    fn add_reasoning(&mut self, more: &str, out: &mut Vec<SseEvent>) {
        if !matches!(self.open, Open::Reasoning(_)) {
            self.open(Open::Reasoning(String::new()), out);
        }
        if let Open::Reasoning(text) = &mut self.open {
            text.push_str(more);
        }
        if self.shared.summarise {
            let delta = json!({"summary_index": 0, "delta": more});
            self.item_event("response.reasoning_summary_text.delta", delta, out);
        } else {
            self.item_event("response.reasoning_text.delta", json!({"content_index": 0, "delta": more}), out);
        }
    }

    fn add_text(&mut self, more: &str, tokens: &[(Channel, TokenLogprob)], out: &mut Vec<SseEvent>) {
        if !matches!(self.open, Open::Message(..)) {
            if more.is_empty() {
                return;
            }
            self.open(Open::Message(String::new(), Vec::new()), out);
        }
        if let Open::Message(text, all) = &mut self.open {
            text.push_str(more);
            if self.shared.logprobs {
                all.extend(tokens.iter().cloned());
            }
        }
        let logprobs = if self.shared.logprobs { delta_logprobs(tokens) } else { json!([]) };
        let delta = json!({"content_index": 0, "delta": more, "logprobs": logprobs});
        self.item_event("response.output_text.delta", delta, out);
    }
}

impl Encoder for ResponsesEncoder {
    fn start(&mut self, out: &mut Vec<SseEvent>) {
        let response = self.shared.response("in_progress", json!([]), None);
        self.event("response.created", json!({"response": response}), out);
        self.event("response.in_progress", json!({"response": response}), out);
    }

    fn delta(&mut self, piece: &Piece, out: &mut Vec<SseEvent>) {
        match &piece.delta {
            Delta::Reasoning(text) => self.add_reasoning(text, out),
            Delta::Content(text) => self.add_text(text, &piece.tokens, out),
            Delta::ToolCall { id, name, .. } => {
                let open = Open::Call { id: id.clone(), name: name.clone(), arguments: String::new() };
                self.open(open, out);
            }
            Delta::Arguments { json: more, .. } => {
                let Open::Call { name, arguments, .. } = &mut self.open else { return };
                arguments.push_str(more);
                if !self.shared.takes_free_text(name) {
                    self.item_event("response.function_call_arguments.delta", json!({"delta": more}), out);
                }
            }
        }
    }

    fn heartbeat(&mut self, out: &mut Vec<SseEvent>) {
        let response = self.shared.response("in_progress", json!([]), None);
        self.event("response.in_progress", json!({"response": response}), out);
    }

    fn finish(&mut self, finish: &Finish, out: &mut Vec<SseEvent>) {
        self.close(message_status(finish), out);
        let response = self.shared.finished(self.output.clone(), finish);
        let name = if finish.reason.is_complete() { "response.completed" } else { "response.incomplete" };
        self.event(name, json!({"response": response}), out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<SseEvent>) {
        let response = self.shared.failed(self.output.clone(), error);
        self.event("response.failed", json!({"response": response}), out);
    }

    fn whole(&mut self, pieces: &[Piece], finish: &Finish) -> Value {
        // The items are made as for a stream that nobody reads.
        let mut events = Vec::new();
        for piece in pieces {
            self.delta(piece, &mut events);
            events.clear();
        }
        self.close(message_status(finish), &mut events);
        self.shared.finished(std::mem::take(&mut self.output), finish)
    }
}

/// The status of a message that is open when the answer ends.
fn message_status(finish: &Finish) -> &'static str {
    if finish.reason.is_complete() { "completed" } else { "incomplete" }
}
