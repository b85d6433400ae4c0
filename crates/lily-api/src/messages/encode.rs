//! Answers of Messages.

use serde_json::{Value, json};

use crate::encode::{Context, Encoder};
use crate::error::{Api, ApiError};
use crate::event::SseEvent;
use crate::finish::{Finish, FinishReason, Usage};
use crate::fold::{Block, Folded};
use crate::output::{Delta, Piece};
use crate::request::Request;

/// What kind of block is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Nothing,
    Thinking,
    Text,
    ToolUse,
}

/// Encoder of one message.
#[derive(Debug)]
pub struct MessagesEncoder {
    context: Context,
    prompt: Usage,
    open: Open,
    /// Blocks that have begun.
    blocks: usize,
    called: bool,
}

impl MessagesEncoder {
    /// An encoder for an answer.
    pub fn new(_request: &Request, context: Context) -> Self {
        Self { context, prompt: Usage::default(), open: Open::Nothing, blocks: 0, called: false }
    }

    fn message(&self, content: Value, usage: &Usage) -> Value {
        json!({
            "id": format!("msg_{}", self.context.id),
            "type": "message",
            "role": "assistant",
            "model": self.context.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage_json(usage),
        })
    }

    /// Clients send it back with the thinking and some insist on one; nothing is signed here.
    fn signature(&self) -> String {
        format!("lily-{}-{}", self.context.id, self.blocks)
    }

    fn close(&mut self, out: &mut Vec<SseEvent>) {
        if self.open == Open::Nothing {
            return;
        }
        let index = self.blocks - 1;
        if self.open == Open::Thinking {
            let delta = json!({"type": "signature_delta", "signature": self.signature()});
            out.push(event("content_block_delta", json!({"index": index, "delta": delta})));
        }
        out.push(event("content_block_stop", json!({"index": index})));
        self.open = Open::Nothing;
    }

    /// Makes sure that a block of this kind is open.
    fn open(&mut self, kind: Open, block: Value, out: &mut Vec<SseEvent>) {
        if self.open == kind && kind != Open::ToolUse {
            return;
        }
        self.close(out);
        out.push(event("content_block_start", json!({"index": self.blocks, "content_block": block})));
        self.blocks += 1;
        self.open = kind;
    }

    fn add(&self, delta: Value) -> SseEvent {
        event("content_block_delta", json!({"index": self.blocks - 1, "delta": delta}))
    }
}

impl Encoder for MessagesEncoder {
    fn prompt(&mut self, usage: &Usage) {
        self.prompt = *usage;
    }

    fn start(&mut self, out: &mut Vec<SseEvent>) {
        out.push(event("message_start", json!({"message": self.message(json!([]), &self.prompt)})));
    }

    fn delta(&mut self, piece: &Piece, out: &mut Vec<SseEvent>) {
        match &piece.delta {
            Delta::Reasoning(text) => {
                self.open(Open::Thinking, json!({"type": "thinking", "thinking": "", "signature": ""}), out);
                out.push(self.add(json!({"type": "thinking_delta", "thinking": text})));
            }
            Delta::Content(text) if text.is_empty() => {}
            Delta::Content(text) => {
                self.open(Open::Text, json!({"type": "text", "text": ""}), out);
                out.push(self.add(json!({"type": "text_delta", "text": text})));
            }
            Delta::ToolCall { id, name, .. } => {
                self.called = true;
                self.open(Open::ToolUse, json!({"type": "tool_use", "id": id, "name": name, "input": {}}), out);
            }
            Delta::Arguments { json, .. } => {
                out.push(self.add(json!({"type": "input_json_delta", "partial_json": json})));
            }
        }
    }

    fn heartbeat(&mut self, out: &mut Vec<SseEvent>) {
        out.push(event("ping", json!({})));
    }

    fn finish(&mut self, finish: &Finish, out: &mut Vec<SseEvent>) {
        self.close(out);
        let (reason, sequence) = stop_reason(&finish.reason, self.called);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        let mut last = json!({"delta": delta, "usage": usage_json(&finish.usage)});
        // Beside `usage`, as in the other APIs; Anthropic's clients keep fields that they do not know.
        if let Some(timings) = finish.timings() {
            last["timings"] = timings;
        }
        out.push(event("message_delta", last));
        out.push(event("message_stop", json!({})));
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<SseEvent>) {
        out.push(SseEvent::named("error", &error.body(Api::Messages)));
    }

    fn whole(&mut self, pieces: &[Piece], finish: &Finish) -> Value {
        let folded = Folded::new(pieces);
        let mut content = Vec::new();
        for block in &folded.blocks {
            self.blocks += 1;
            content.push(match block {
                Block::Reasoning(text) => {
                    json!({"type": "thinking", "thinking": text, "signature": self.signature()})
                }
                Block::Content(text) => json!({"type": "text", "text": text}),
                Block::ToolCall { id, name, arguments } => {
                    let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
                    json!({"type": "tool_use", "id": id, "name": name, "input": input})
                }
            });
        }
        let (reason, sequence) = stop_reason(&finish.reason, folded.has_tool_calls());
        let mut message = self.message(Value::Array(content), &finish.usage);
        message["stop_reason"] = json!(reason);
        message["stop_sequence"] = json!(sequence);
        if let Some(timings) = finish.timings() {
            message["timings"] = timings;
        }
        message
    }
}

/// An event of this API: its name is also its `type`.
fn event(name: &'static str, fields: Value) -> SseEvent {
    let mut value = json!({"type": name});
    if let (Some(value), Value::Object(fields)) = (value.as_object_mut(), fields) {
        value.extend(fields);
    }
    SseEvent::named(name, &value)
}

/// Token counts as this API has them: input is what was not in the cache.
fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    })
}

fn stop_reason(reason: &FinishReason, called: bool) -> (&'static str, Option<&str>) {
    match reason {
        FinishReason::Stop if called => ("tool_use", None),
        FinishReason::Stop => ("end_turn", None),
        FinishReason::StopString(text) => ("stop_sequence", Some(text)),
        FinishReason::Length | FinishReason::ContextFull | FinishReason::Cancelled => ("max_tokens", None),
    }
}
