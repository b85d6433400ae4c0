//! Answers of chat completions.

use serde_json::{Map, Value, json};

use crate::encode::{Context, Encoder};
use crate::error::ApiError;
use crate::event::SseEvent;
use crate::finish::{Finish, FinishReason};
use crate::fold::{Block, Folded};
use crate::output::{Channel, Delta, Piece, TokenLogprob};
use crate::request::Request;

/// Encoder of one chat completion.
#[derive(Debug)]
pub struct ChatEncoder {
    context: Context,
    id: String,
    include_usage: bool,
    logprobs: bool,
    called: bool,
}

impl ChatEncoder {
    /// An encoder for the answer to `request`.
    pub fn new(request: &Request, context: Context) -> Self {
        Self {
            id: format!("chatcmpl-{}", context.id),
            context,
            include_usage: request.include_usage,
            logprobs: request.logprobs.is_some(),
            called: false,
        }
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.context.created,
            "model": self.context.model,
            "system_fingerprint": self.context.fingerprint,
            "choices": choices,
        })
    }

    fn chunk(&self, delta: Value, logprobs: Option<Value>, finish_reason: Option<&str>) -> Value {
        let choice = json!({"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason});
        self.object("chat.completion.chunk", json!([choice]))
    }

    /// The log-probabilities of tokens: the answer's under OpenAI's name, the others beside it.
    fn logprobs(&self, tokens: &[(Channel, TokenLogprob)]) -> Option<Value> {
        if !self.logprobs || tokens.is_empty() {
            return None;
        }
        let of =
            |wanted| tokens.iter().filter(move |(channel, _)| *channel == wanted).map(|(_, token)| token_json(token));
        let mut logprobs = json!({"content": of(Channel::Content).collect::<Vec<_>>(), "refusal": null});
        let hidden = self.context.reasoning_field.names().is_empty();
        for (channel, name, shown) in
            [(Channel::Reasoning, "reasoning_content", !hidden), (Channel::ToolCalls, "tool_calls", true)]
        {
            let list: Vec<Value> = of(channel).collect();
            if shown && !list.is_empty() {
                logprobs[name] = Value::Array(list);
            }
        }
        Some(logprobs)
    }

    /// Adds reasoning to a message or delta, under the names that this server sends; false where it sends none.
    fn insert_reasoning(&self, message: &mut Map<String, Value>, text: &str) -> bool {
        let names = self.context.reasoning_field.names();
        for name in names {
            message.insert((*name).into(), json!(text));
        }
        !names.is_empty()
    }
}

impl Encoder for ChatEncoder {
    fn start(&mut self, out: &mut Vec<SseEvent>) {
        out.push(SseEvent::data(&self.chunk(json!({"role": "assistant", "content": ""}), None, None)));
    }

    fn delta(&mut self, piece: &Piece, out: &mut Vec<SseEvent>) {
        let mut delta = Map::new();
        match &piece.delta {
            Delta::Reasoning(text) => {
                if !self.insert_reasoning(&mut delta, text) {
                    return;
                }
            }
            Delta::Content(text) if text.is_empty() => {}
            Delta::Content(text) => {
                delta.insert("content".into(), json!(text));
            }
            Delta::ToolCall { index, id, name } => {
                self.called = true;
                let function = json!({"name": name, "arguments": ""});
                let call = json!({"index": index, "id": id, "type": "function", "function": function});
                delta.insert("tool_calls".into(), json!([call]));
            }
            Delta::Arguments { index, json } => {
                let call = json!({"index": index, "function": {"arguments": json}});
                delta.insert("tool_calls".into(), json!([call]));
            }
        }
        out.push(SseEvent::data(&self.chunk(Value::Object(delta), self.logprobs(&piece.tokens), None)));
    }

    fn heartbeat(&mut self, out: &mut Vec<SseEvent>) {
        out.push(SseEvent::data(&self.chunk(json!({}), None, None)));
    }

    fn finish(&mut self, finish: &Finish, out: &mut Vec<SseEvent>) {
        let mut last = self.chunk(json!({}), None, Some(finish_reason(&finish.reason, self.called)));
        let timings = finish.timings();
        if self.include_usage {
            out.push(SseEvent::data(&last));
            last = self.object("chat.completion.chunk", json!([]));
            last["usage"] = finish.usage.chat();
        }
        if let Some(timings) = timings {
            last["timings"] = timings;
        }
        out.push(SseEvent::data(&last));
        out.push(SseEvent::done());
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<SseEvent>) {
        out.push(SseEvent::data(&json!({"error": error.openai()})));
        out.push(SseEvent::done());
    }

    fn whole(&mut self, pieces: &[Piece], finish: &Finish) -> Value {
        let folded = Folded::new(pieces);
        let mut message = Map::new();
        message.insert("role".into(), json!("assistant"));
        let content = folded.content();
        let no_content = content.is_empty() && folded.has_tool_calls();
        message.insert("content".into(), if no_content { Value::Null } else { json!(content) });
        message.insert("refusal".into(), Value::Null);
        let reasoning = folded.reasoning();
        if !reasoning.is_empty() {
            self.insert_reasoning(&mut message, &reasoning);
        }
        if folded.has_tool_calls() {
            message.insert("tool_calls".into(), folded.blocks.iter().filter_map(call_json).collect());
        }
        let reason = finish_reason(&finish.reason, folded.has_tool_calls());
        let logprobs = self.logprobs(&folded.tokens);
        let choice = json!({"index": 0, "message": message, "logprobs": logprobs, "finish_reason": reason});
        let mut whole = self.object("chat.completion", json!([choice]));
        whole["usage"] = finish.usage.chat();
        if let Some(timings) = finish.timings() {
            whole["timings"] = timings;
        }
        whole
    }
}

fn call_json(block: &Block) -> Option<Value> {
    let Block::ToolCall { id, name, arguments } = block else { return None };
    Some(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

/// `tool_calls` stands in for `stop` only: an answer that was cut is `length` whatever it holds.
fn finish_reason(reason: &FinishReason, called: bool) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::StopString(_) if called => "tool_calls",
        FinishReason::Stop | FinishReason::StopString(_) => "stop",
        FinishReason::Length | FinishReason::ContextFull | FinishReason::Cancelled => "length",
    }
}

/// One token in OpenAI's form. Bytes that are no characters show as U+FFFD in `token`; `bytes` are exact.
pub(crate) fn token_json(token: &TokenLogprob) -> Value {
    let one = |bytes: &[u8], logprob: f32| json!({"token": String::from_utf8_lossy(bytes), "logprob": number(logprob), "bytes": bytes});
    let mut json = one(&token.bytes, token.logprob);
    json["top_logprobs"] = token.top.iter().map(|(bytes, logprob)| one(bytes, *logprob)).collect();
    json
}

/// A log-probability as JSON can hold it: masked tokens have minus infinity, for which OpenAI's clients know -9999.
pub(crate) fn number(logprob: f32) -> f64 {
    if logprob.is_finite() { f64::from(logprob) } else { -9999.0 }
}
