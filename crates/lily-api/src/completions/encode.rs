//! Answers of completions.

use serde_json::{Map, Value, json};

use crate::chat::number;
use crate::encode::{Context, Encoder};
use crate::error::{Api, ApiError};
use crate::event::SseEvent;
use crate::finish::{Finish, FinishReason};
use crate::fold::Folded;
use crate::output::{Channel, Delta, Piece, TokenLogprob};
use crate::request::{Input, Prompt, Request};

/// Encoder of one completion.
#[derive(Debug)]
pub struct CompletionsEncoder {
    context: Context,
    include_usage: bool,
    logprobs: bool,
    /// The prompt, where the answer begins with it.
    echo: Option<String>,
    /// Characters of the answer's tokens so far, for `text_offset`.
    offset: usize,
}

impl CompletionsEncoder {
    /// An encoder for the answer to `request`.
    pub fn new(request: &Request, context: Context) -> Self {
        let echo = match &request.input {
            Input::Text { prompt: Prompt::Text(text), echo: true } => Some(text.clone()),
            _ => None,
        };
        Self { context, include_usage: request.include_usage, logprobs: request.logprobs.is_some(), echo, offset: 0 }
    }

    fn object(&self, choices: Value) -> Value {
        json!({
            "id": format!("cmpl-{}", self.context.id),
            "object": "text_completion",
            "created": self.context.created,
            "model": self.context.model,
            "system_fingerprint": self.context.fingerprint,
            "choices": choices,
        })
    }

    fn choice(&self, text: &str, logprobs: Option<Value>, finish_reason: Option<&str>) -> Value {
        json!({"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish_reason})
    }

    /// The lists of this API's log-probabilities, one entry per token.
    fn logprobs(&mut self, tokens: &[(Channel, TokenLogprob)]) -> Option<Value> {
        if !self.logprobs || tokens.is_empty() {
            return None;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (mut texts, mut values, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (_, token) in tokens {
            texts.push(text(&token.bytes));
            values.push(number(token.logprob));
            let top: Map<String, Value> =
                token.top.iter().map(|(bytes, logprob)| (text(bytes), json!(number(*logprob)))).collect();
            tops.push(Value::Object(top));
            offsets.push(self.offset);
            self.offset += text(&token.bytes).chars().count();
        }
        Some(json!({"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}))
    }
}

impl Encoder for CompletionsEncoder {
    fn start(&mut self, out: &mut Vec<SseEvent>) {
        if let Some(prompt) = &self.echo {
            out.push(SseEvent::data(&self.object(json!([self.choice(prompt, None, None)]))));
        }
    }

    fn delta(&mut self, piece: &Piece, out: &mut Vec<SseEvent>) {
        let Delta::Content(text) = &piece.delta else { return };
        let logprobs = self.logprobs(&piece.tokens);
        out.push(SseEvent::data(&self.object(json!([self.choice(text, logprobs, None)]))));
    }

    fn heartbeat(&mut self, out: &mut Vec<SseEvent>) {
        out.push(SseEvent::data(&self.object(json!([self.choice("", None, None)]))));
    }

    fn finish(&mut self, finish: &Finish, out: &mut Vec<SseEvent>) {
        let mut last = self.object(json!([self.choice("", None, Some(finish_reason(&finish.reason)))]));
        if self.include_usage {
            out.push(SseEvent::data(&last));
            last = self.object(json!([]));
            last["usage"] = finish.usage.chat();
        }
        if let Some(timings) = finish.timings() {
            last["timings"] = timings;
        }
        out.push(SseEvent::data(&last));
        out.push(SseEvent::done());
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<SseEvent>) {
        out.push(SseEvent::data(&error.body(Api::Completions)));
        out.push(SseEvent::done());
    }

    fn whole(&mut self, pieces: &[Piece], finish: &Finish) -> Value {
        let folded = Folded::new(pieces);
        let text = self.echo.clone().unwrap_or_default() + &folded.content();
        let logprobs = self.logprobs(&folded.tokens);
        let mut whole = self.object(json!([self.choice(&text, logprobs, Some(finish_reason(&finish.reason)))]));
        whole["usage"] = finish.usage.chat();
        if let Some(timings) = finish.timings() {
            whole["timings"] = timings;
        }
        whole
    }
}

fn finish_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::StopString(_) => "stop",
        FinishReason::Length | FinishReason::ContextFull | FinishReason::Cancelled => "length",
    }
}
