//! Chat completions from body to answer.

use lily_api::encode::{Context, ReasoningField, encoder};
use lily_api::finish::{Finish, FinishReason, Usage};
use lily_api::output::{OutputOptions, OutputParser, Piece};
use lily_api::reasoning::Start;
use lily_api::{Api, SseEvent, parse};
use serde_json::{Value, json};

fn context() -> Context {
    Context {
        id: "1".into(),
        created: 5,
        model: "m".into(),
        fingerprint: "f".into(),
        reasoning_field: ReasoningField::default(),
    }
}

fn finish() -> Finish {
    let usage = Usage { prompt_tokens: 7, cached_tokens: 3, completion_tokens: 4, reasoning_tokens: 2 };
    Finish { reason: FinishReason::Stop, usage, timings: None }
}

fn pieces(request: &lily_api::request::Request, text: &str) -> Vec<Piece> {
    let mut parser = OutputParser::new(OutputOptions::new(request, Start::Reasoning, "call_")).unwrap();
    let mut pieces = Vec::new();
    text.bytes().for_each(|byte| parser.push(&[byte], None, &mut pieces));
    parser.finish(&mut pieces);
    pieces
}

#[test]
fn an_answer_streams_in_the_order_that_clients_expect() {
    let body = json!({
        "model": "m", "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "čau"}]}],
    });
    let request = parse(Api::Chat, body.to_string().as_bytes()).unwrap();
    let mut encoder = encoder(&request, context());
    let mut events = Vec::new();
    encoder.start(&mut events);
    for piece in pieces(&request, "hm\n</think>\n\nč") {
        encoder.delta(&piece, &mut events);
    }
    encoder.finish(&finish(), &mut events);
    let data: Vec<&str> = events
        .iter()
        .filter_map(|event| if let SseEvent::Data { data, .. } = event { Some(data.as_str()) } else { None })
        .collect();
    assert_eq!(*data.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> = data[..data.len() - 1].iter().map(|d| serde_json::from_str(d).unwrap()).collect();
    let deltas: Vec<&Value> = chunks.iter().filter_map(|c| c["choices"].get(0)).map(|c| &c["delta"]).collect();
    let expected = [
        json!({"role": "assistant", "content": ""}),
        json!({"reasoning_content": "h"}),
        json!({"reasoning_content": "m"}),
        json!({"content": "č"}),
        json!({}),
    ];
    assert_eq!(deltas, expected.iter().collect::<Vec<_>>());
    let usage = chunks.last().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(11)));
    assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], "stop");
}
