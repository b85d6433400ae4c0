//! Whole streams and answers, to be read by people. A change shows up as a difference of `snapshots/`.

use super::{body, finish, pieces, request, stream, whole};
use crate::encode::encoder;
use crate::finish::FinishReason;
use crate::{Api, ApiError, SseEvent};
use serde_json::{Value, json};

const TOKENS: [&str; 14] = [
    "Need",
    " it",
    ".\n",
    "</think>",
    "\n\n",
    "Č",
    "tu",
    ".\n\n",
    "<tool_call>",
    "\n<function=edit>\n<parameter=path>\n",
    "a.rs",
    "\n</parameter>\n",
    "</function>\n",
    "</tool_call>",
];

fn wire(events: &[SseEvent]) -> String {
    events.iter().map(SseEvent::wire).collect()
}

fn transcript(api: Api, change: impl Fn(&mut Value)) -> String {
    let mut body = body(api);
    body["stream"] = json!(true);
    // The functions are echoed by some; one is enough to read.
    if let Some(tools) = body.get_mut("tools").and_then(Value::as_array_mut) {
        tools.truncate(1);
    }
    change(&mut body);
    let request = request(api, &body);
    let tokens: Vec<&[u8]> = TOKENS.iter().map(|token| token.as_bytes()).collect();
    let pieces = pieces(&request, &tokens);
    let finish = finish(FinishReason::Stop);
    let whole = serde_json::to_string_pretty(&whole(&request, &pieces, &finish)).unwrap();
    format!("{}\n--- whole ---\n{whole}\n", wire(&stream(&request, &pieces, &finish)))
}

fn without_tools(body: &mut Value) {
    body["tools"] = json!([{"type": "function", "name": "edit"}]);
}

#[test]
fn chat_in_the_order_of_openai() {
    insta::assert_snapshot!(transcript(Api::Chat, |body| body["stream_options"] = json!({"include_usage": true})));
}

#[test]
fn chat_with_logprobs() {
    insta::assert_snapshot!(transcript(Api::Chat, |body| body["logprobs"] = json!(true)));
}

#[test]
fn completions_with_a_stop_string() {
    insta::assert_snapshot!(transcript(Api::Completions, |body| {
        body["logprobs"] = json!(1);
        body["stop"] = json!("<tool_call>");
    }));
}

#[test]
fn messages_of_anthropic() {
    insta::assert_snapshot!(transcript(Api::Messages, |_| {}));
}

#[test]
fn responses_of_openai() {
    insta::assert_snapshot!(transcript(Api::Responses, without_tools));
}

#[test]
fn responses_as_codex_asks() {
    insta::assert_snapshot!(transcript(Api::Responses, |body| {
        without_tools(body);
        body["include"] = json!(["reasoning.encrypted_content"]);
        body["reasoning"] = json!({"effort": "medium", "summary": "auto"});
    }));
}

#[test]
fn failures_of_every_api() {
    let mut text = String::new();
    for api in super::APIS {
        let mut events = Vec::new();
        let mut encoder = encoder(&request(api, &body(api)), super::context());
        encoder.error(&ApiError::too_long(9000, 8192), &mut events);
        text += &format!("--- {api:?} ---\n{}\n{}", ApiError::busy(8, 8, 3).body(api), wire(&events));
    }
    insta::assert_snapshot!(text);
}
