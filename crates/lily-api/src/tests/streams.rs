//! A stream and the whole answer say the same.

use super::{APIS, body, clients, finish, pieces, request, stream, whole};
use crate::Api;
use crate::encode::{Context, ReasoningField, encoder};
use crate::finish::FinishReason;
use crate::output::tests::{cut, markup};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Asks for everything that an answer can have.
fn full(api: Api, logprobs: bool) -> Value {
    let mut body = body(api);
    body["stream"] = json!(true);
    match api {
        Api::Chat => body["stream_options"] = json!({"include_usage": true}),
        Api::Completions => {
            body["stream_options"] = json!({"include_usage": true});
            body["echo"] = json!(!logprobs);
        }
        Api::Responses => body["reasoning"] = json!({"summary": if logprobs { "auto" } else { "none" }}),
        Api::Messages => {}
    }
    match (api, logprobs) {
        (Api::Chat, true) => body["logprobs"] = json!(true),
        (Api::Completions, true) => body["logprobs"] = json!(1),
        (Api::Responses, true) => body["include"] = json!(["message.output_text.logprobs"]),
        _ => {}
    }
    body
}

fn check(text: &[u8], cuts: &[usize], reason: &FinishReason) {
    for (api, logprobs) in APIS.into_iter().flat_map(|api| [(api, false), (api, true)]) {
        let request = request(api, &full(api, logprobs));
        let pieces = pieces(&request, &cut(text, cuts));
        let finish = finish(reason.clone());
        let streamed = clients::fold(api, &stream(&request, &pieces, &finish));
        assert_eq!(streamed, whole(&request, &pieces, &finish), "{api:?} {}", String::from_utf8_lossy(text));
    }
}

#[test]
fn field_report_o7_a_stream_has_the_calls_that_the_whole_has() {
    let text = "Let me see.\n</think>\n\nI look.\n\n<tool_call>\n<function=edit>\n<parameter=path>\na.rs\n</parameter>\n\
        <parameter=count>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>";
    for reason in [FinishReason::Stop, FinishReason::Length, FinishReason::StopString("x".into())] {
        check(text.as_bytes(), &[3, 40, 41, 90, 130, 131], &reason);
    }
    let request = request(Api::Chat, &full(Api::Chat, false));
    let pieces = pieces(&request, &[text.as_bytes()]);
    let events = stream(&request, &pieces, &finish(FinishReason::Stop));
    let message = &clients::fold(Api::Chat, &events)["choices"][0]["message"];
    assert_eq!((&message["content"], message["tool_calls"].as_array().map(Vec::len)), (&json!("I look."), Some(2)));
    assert!(!events.iter().any(|event| event.wire().contains("<tool_call>")));
}

#[test]
fn an_answer_that_was_cut_says_length_whatever_it_holds() {
    let text = "</think><tool_call>\n<function=edit>\n<parameter=path>\na.r";
    let reason = |api: Api, reason: FinishReason| {
        let request = request(api, &full(api, false));
        whole(&request, &pieces(&request, &[text.as_bytes()]), &finish(reason))
    };
    let chat = |r| reason(Api::Chat, r)["choices"][0]["finish_reason"].clone();
    assert_eq!((chat(FinishReason::Stop), chat(FinishReason::Length)), (json!("tool_calls"), json!("length")));
    let messages = |r| reason(Api::Messages, r)["stop_reason"].clone();
    assert_eq!(
        (messages(FinishReason::Stop), messages(FinishReason::ContextFull)),
        (json!("tool_use"), json!("max_tokens"))
    );
    let responses = |r| reason(Api::Responses, r)["status"].clone();
    assert_eq!(
        (responses(FinishReason::Stop), responses(FinishReason::Length)),
        (json!("completed"), json!("incomplete"))
    );
}

#[test]
fn reasoning_has_the_name_that_the_server_is_told() {
    let request = request(Api::Chat, &full(Api::Chat, true));
    let pieces = pieces(&request, &[b"Hm.", b"</think>", b"Yes."]);
    let rows: [(ReasoningField, &[&str]); 4] = [
        (ReasoningField::ReasoningContent, &["reasoning_content"]),
        (ReasoningField::Reasoning, &["reasoning"]),
        (ReasoningField::Both, &["reasoning", "reasoning_content"]),
        (ReasoningField::None, &[]),
    ];
    for (reasoning_field, names) in rows {
        let context = Context { reasoning_field, ..super::context() };
        let whole = encoder(&request, context.clone()).whole(&pieces, &finish(FinishReason::Stop));
        let message = &whole["choices"][0]["message"];
        let sent: Vec<&str> =
            ["reasoning", "reasoning_content"].into_iter().filter(|name| message[*name] == "Hm.").collect();
        assert_eq!((sent.as_slice(), &message["content"]), (names, &json!("Yes.")));
        let mut events = Vec::new();
        let mut encoder = encoder(&request, context);
        encoder.start(&mut events);
        pieces.iter().for_each(|piece| encoder.delta(piece, &mut events));
        encoder.finish(&finish(FinishReason::Stop), &mut events);
        assert_eq!(clients::fold(Api::Chat, &events), whole);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_stream_equals_the_whole(text in markup(), cuts in prop::collection::vec(0usize..400, 0..12), cut: bool) {
        check(text.as_bytes(), &cuts, &if cut { FinishReason::Length } else { FinishReason::Stop });
    }
}
