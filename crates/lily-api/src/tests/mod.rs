//! The crate from outside: bodies in, answers out, as clients read them.

mod clients;
mod docs;
mod fuzz;
mod requests;
mod siblings;
mod streams;
mod transcripts;

use crate::encode::{Context, ReasoningField, encoder};
use crate::finish::{CacheSources, Finish, FinishReason, Timings, Usage};
use crate::output::{OutputOptions, OutputParser, Piece, Start, TokenLogprob};
use crate::request::Request;
use crate::{Api, SseEvent, parse};
use serde_json::{Value, json};

pub(crate) const APIS: [Api; 4] = [Api::Chat, Api::Completions, Api::Responses, Api::Messages];

fn context() -> Context {
    Context {
        id: "0a1b".into(),
        created: 1_800_000_000,
        model: "lily-nano".into(),
        fingerprint: "lily-0".into(),
        reasoning_field: ReasoningField::default(),
    }
}

fn finish(reason: FinishReason) -> Finish {
    let usage = Usage { prompt_tokens: 70, cached_tokens: 64, completion_tokens: 12, reasoning_tokens: 5 };
    let cache = CacheSources { session_tokens: 60, memory_tokens: 4, disk_tokens: 0 };
    let timings = Timings { queue_ms: 1.0, prompt_ms: 12.0, predicted_ms: 100.0, cache };
    Finish { reason, usage, timings: Some(timings) }
}

fn request(api: Api, body: &Value) -> Request {
    parse(api, body.to_string().as_bytes()).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// The smallest body, with functions where the API has them.
fn body(api: Api) -> Value {
    let tools = &crate::output::tests::conversation().tools;
    let openai = || tools.iter().map(|t| json!({"name": t.name, "parameters": t.parameters}));
    let flat = |mut tool: Value| {
        tool["type"] = json!("function");
        tool
    };
    let messages = json!([{"role": "user", "content": "Hi"}]);
    match api {
        Api::Chat => {
            let tools: Vec<Value> = openai().map(|f| json!({"type": "function", "function": f})).collect();
            json!({"model": "m", "messages": messages, "tools": tools})
        }
        Api::Completions => json!({"model": "m", "prompt": "Hi"}),
        Api::Responses => json!({"model": "m", "input": messages, "tools": openai().map(flat).collect::<Vec<_>>()}),
        Api::Messages => {
            let tools: Vec<Value> =
                tools.iter().map(|t| json!({"name": t.name, "input_schema": t.parameters})).collect();
            json!({"model": "m", "max_tokens": 100, "messages": messages, "tools": tools})
        }
    }
}

/// Pieces of an answer whose tokens are these, inside reasoning where there is any.
fn pieces(request: &Request, tokens: &[&[u8]]) -> Vec<Piece> {
    let mut parser = OutputParser::new(OutputOptions::new(request, Start::Reasoning, "call_0a1b_")).unwrap();
    let mut pieces = Vec::new();
    for (index, bytes) in tokens.iter().enumerate() {
        let logprob = -(index as f32) / 8.0;
        let top = vec![(bytes.to_vec(), logprob), (b"\xFF".to_vec(), f32::NEG_INFINITY)];
        let token = TokenLogprob { bytes: bytes.to_vec(), logprob, top };
        parser.push(bytes, request.logprobs.is_some().then_some(token), &mut pieces);
    }
    parser.finish(&mut pieces);
    pieces
}

/// The events of a stream of these pieces, with a heartbeat among them.
fn stream(request: &Request, pieces: &[Piece], finish: &Finish) -> Vec<SseEvent> {
    let mut encoder = encoder(request, context());
    let mut events = Vec::new();
    encoder.prompt(&Usage { completion_tokens: 0, reasoning_tokens: 0, ..finish.usage });
    encoder.start(&mut events);
    encoder.heartbeat(&mut events);
    for piece in pieces {
        encoder.delta(piece, &mut events);
    }
    encoder.finish(finish, &mut events);
    events
}

fn whole(request: &Request, pieces: &[Piece], finish: &Finish) -> Value {
    encoder(request, context()).whole(pieces, finish)
}
