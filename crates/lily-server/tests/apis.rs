//! Completions, Responses and Messages: the same answers in other words, whole and streamed, with their own errors.

mod common;

use common::{Running, Setup, endless, with};
use serde_json::{Value, json};
use std::time::Duration;

const QUESTION: &str = "What is the capital of France?";
const ANSWER: &str = "The capital of France is Paris.";

fn messages() -> Value {
    json!({"model": "lily-nano", "max_tokens": 100, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]})
}

fn responses() -> Value {
    json!({"model": "lily-nano", "temperature": 0, "input": QUESTION})
}

fn ask(server: &Running, path: &str, body: &Value) -> Value {
    let answer = server.post(path, body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Names and data of a stream that has event names; every name is the data's type.
fn named(server: &Running, path: &str, body: &Value) -> Vec<(String, Value)> {
    let events = server.stream(path, body).map(|(event, data)| (event, serde_json::from_str::<Value>(&data).unwrap()));
    events.inspect(|(event, data)| assert_eq!(data["type"], event.as_str(), "{data}")).collect()
}

fn names(events: &[(String, Value)]) -> Vec<&str> {
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    names
}

#[test]
fn completions_continue_plain_text() {
    let server = Setup::default().start();
    let prompt = server.post("/apply-template", &common::chat(QUESTION)).json()["prompt"].clone();
    let body = json!({"model": "lily-nano", "prompt": prompt, "temperature": 0, "max_tokens": 50});
    let whole = ask(&server, "/v1/completions", &body);
    assert_eq!((&whole["object"], &whole["choices"][0]["text"]), (&json!("text_completion"), &json!(ANSWER)));
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let chunks = server.stream("/v1/completions", &body).values();
    let text: String = chunks.iter().filter_map(|c| c["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, ANSWER);
    let stopped = ask(&server, "/v1/completions", &with(body.clone(), json!({"stop": ["nce is"]})));
    assert_eq!(stopped["choices"][0]["text"], "The capital of Fra");
    let tokens = server.post("/tokenize", &json!({"content": prompt})).json()["tokens"].clone();
    assert_eq!(ask(&server, "/v1/completions", &with(body, json!({"prompt": tokens})))["choices"][0]["text"], ANSWER);
}

/// The text of a stream, whose API it is.
fn text_of(events: &[Value]) -> String {
    let delta = |event: &Value| {
        let of_chat = event["choices"][0]["delta"]["content"].as_str().or(event["choices"][0]["text"].as_str());
        let of_responses = || event["delta"].as_str().filter(|_| event["type"] == "response.output_text.delta");
        let of_messages = || event["delta"]["text"].as_str();
        of_chat.or_else(of_responses).or_else(of_messages).map(str::to_owned)
    };
    events.iter().filter_map(delta).collect()
}

#[test]
fn stop_strings_end_the_answers_of_every_route() {
    let server = Setup::default().start();
    let prompt = server.post("/apply-template", &common::chat(QUESTION)).json()["prompt"].clone();
    let plain = json!({"prompt": prompt, "temperature": 0, "max_tokens": 50});
    let stop = |name: &str| json!({name: [" of", "Paris"]});
    for (path, body, text) in [
        ("/v1/chat/completions", with(common::chat(QUESTION), stop("stop")), "/choices/0/message/content"),
        ("/v1/completions", with(plain, stop("stop")), "/choices/0/text"),
        ("/v1/responses", with(responses(), stop("stop")), "/output/0/content/0/text"),
        ("/v1/messages", with(messages(), stop("stop_sequences")), "/content/0/text"),
    ] {
        let whole = ask(&server, path, &body);
        assert_eq!(whole.pointer(text), Some(&json!("The capital")), "{path}: {whole}");
        assert_eq!(text_of(&server.stream(path, &body).values()), "The capital", "{path}");
    }
}

#[test]
fn messages_speak_as_anthropic_does() {
    let server = Setup::default().start();
    let whole = ask(&server, "/v1/messages", &messages());
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("end_turn"))
    );
    assert_eq!(whole["content"], json!([{"type": "text", "text": ANSWER}]));
    assert_eq!(whole["usage"]["output_tokens"], 12);
    let events = named(&server, "/v1/messages?beta=true", &messages());
    assert_eq!(
        names(&events),
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let text: String = events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(text, ANSWER);
    let (_, last) = &events[events.len() - 2];
    let from =
        ["session", "memory", "disk"].map(|from| last["timings"][format!("cache_from_{from}")].as_u64().unwrap());
    assert_eq!(Some(from.iter().sum()), last["usage"]["cache_read_input_tokens"].as_u64());
    assert!(from.iter().sum::<u64>() > 5 && last["timings"]["predicted_ms"].as_f64() > Some(0.0), "{last}");
    assert_eq!(whole["timings"]["prompt_n"], whole["usage"]["input_tokens"]);
    // The length of the prompt is known before anything is computed, and clients show it from the start.
    assert!(events[0].1["message"]["usage"]["input_tokens"].as_u64() > Some(5), "{:?}", events[0]);
    let stopped = ask(&server, "/v1/messages", &with(messages(), json!({"stop_sequences": [" of"]})));
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(" of")));
    let cut = ask(&server, "/v1/messages", &with(messages(), json!({"max_tokens": 2})));
    assert_eq!(cut["stop_reason"], "max_tokens");
    let system = json!({"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]});
    let count = ask(&server, "/v1/messages/count_tokens", &with(messages(), system.clone()));
    let used = ask(&server, "/v1/messages", &with(messages(), system));
    let usage = &used["usage"];
    let inputs = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
    let sum: u64 = inputs.iter().filter_map(|field| usage[*field].as_u64()).sum();
    assert_eq!(count["input_tokens"].as_u64(), Some(sum), "{usage}");
}

#[test]
fn messages_call_tools() {
    let server = Setup::default().start();
    let tools = json!([{"name": "get_weather", "description": "The weather of a city", "input_schema": {"type": "object",
        "properties": {"city": {"type": "string"}}, "required": ["city"]}}]);
    let body = with(messages(), json!({"tools": tools, "tool_choice": {"type": "tool", "name": "get_weather"}}));
    let whole = ask(&server, "/v1/messages", &body);
    assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
    let call = whole["content"].as_array().unwrap().last().unwrap();
    assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("get_weather")));
    assert!(call["input"]["city"].is_string(), "{call}");
    let events = named(&server, "/v1/messages", &body);
    let arguments: String = events.iter().filter_map(|(_, data)| data["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), call["input"]);
    // The result goes back, and is answered.
    let mut next = with(body, json!({"tool_choice": {"type": "auto"}}));
    let list = next["messages"].as_array_mut().unwrap();
    list.push(json!({"role": "assistant", "content": whole["content"]}));
    list.push(json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "sunny, 21 degrees"}]}));
    assert_eq!(server.post("/v1/messages", &next).status, 200);
}

#[test]
fn responses_speak_as_codex_expects() {
    let server = Setup::default().start();
    let whole = ask(&server, "/v1/responses", &responses());
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("completed")));
    let message = whole["output"].as_array().unwrap().last().unwrap();
    assert_eq!(message["content"][0]["text"], ANSWER);
    let events = named(&server, "/v1/responses", &responses());
    let names = names(&events);
    assert_eq!(names[..2], ["response.created", "response.in_progress"]);
    assert_eq!(names.last(), Some(&"response.completed"));
    for needed in ["response.output_item.added", "response.output_text.delta", "response.output_item.done"] {
        assert!(names.contains(&needed), "{needed} is not in {names:?}");
    }
    let text: String = events
        .iter()
        .filter(|(name, _)| name == "response.output_text.delta")
        .filter_map(|(_, data)| data["delta"].as_str())
        .collect();
    assert_eq!(text, ANSWER);
    let completed = &events.last().unwrap().1["response"];
    assert!(completed["usage"]["total_tokens"].as_u64().unwrap() > 12 && completed["id"].is_string(), "{completed}");
    // What Codex sends: instructions, developer messages, a whole conversation, tools of other kinds.
    let codex = json!({"model": "lily-nano", "instructions": "Be brief.", "store": false, "temperature": 0,
        "input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
                  {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}],
        "tools": [{"type": "web_search"}, {"type": "function", "name": "shell", "parameters": {"type": "object"}}],
        "tool_choice": "auto", "parallel_tool_calls": false, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k", "reasoning": {"effort": "low", "summary": "auto"}, "max_output_tokens": 30});
    assert_eq!(server.post("/v1/responses", &codex).status, 200);
    let stored = server.post("/v1/responses", &with(responses(), json!({"previous_response_id": "resp_1"})));
    assert_eq!((stored.status, stored.json()["error"]["param"].as_str()), (400, Some("previous_response_id")));
}

#[test]
fn every_api_tells_errors_in_its_own_shape() {
    let server = Setup { context: 64, ..Setup::default() }.start();
    let long = "word ".repeat(100);
    for (path, body) in [
        ("/v1/chat/completions", common::chat(&long)),
        ("/v1/completions", json!({"prompt": long})),
        ("/v1/responses", json!({"input": long})),
    ] {
        let answer = server.post(path, &body);
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, error["code"].as_str()), (400, Some("context_length_exceeded")), "{path}: {error}");
        assert!(error["message"].as_str().unwrap().contains("64"), "{error}");
        let unknown = server.post(path, &with(body, json!({"model": "gpt-9"})));
        assert_eq!(
            (unknown.status, unknown.json()["error"]["code"].as_str()),
            (404, Some("model_not_found")),
            "{path}"
        );
    }
    let body = with(messages(), json!({"messages": [{"role": "user", "content": long}]}));
    for path in ["/v1/messages", "/messages"] {
        let answer = server.post(path, &body);
        let error = answer.json();
        assert_eq!((answer.status, error["type"].as_str()), (400, Some("error")));
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(error["error"]["message"].as_str().unwrap().contains("prompt is too long"), "{error}");
        let unknown = server.post(path, &with(body.clone(), json!({"model": "claude-9"}))).json();
        assert_eq!(unknown["error"]["type"], "not_found_error");
    }
}

#[test]
fn every_api_has_its_own_signs_of_life() {
    let mut setup = Setup { sessions: 1, ..Setup::default() };
    setup.options.limits.heartbeat = Duration::from_millis(50);
    let server = setup.start();
    let mut busy = server.stream("/v1/chat/completions", &endless());
    let _ = busy.by_ref().take(3).count(); // the role, and tokens: it is being computed
    for (path, body, sign) in [
        ("/v1/messages", messages(), "ping"),
        ("/v1/responses", responses(), "response.in_progress"),
        ("/v1/completions", json!({"prompt": "x"}), ""),
    ] {
        let mut events = server.stream(path, &body);
        let signs = events.by_ref().filter(|(event, _)| event == sign).take(3).count();
        assert_eq!(signs, 3, "{path}");
    }
}

/// Claude Code puts a line that changes with every request into the system prompt.
#[test]
fn a_billing_line_does_not_defeat_the_cache() {
    let server = Setup::default().start();
    let body = |nonce: &str| {
        let line = format!("x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch={nonce};");
        let system = json!({"system": [{"type": "text", "text": line}, {"type": "text", "text": "You are a helpful assistant."}]});
        with(messages(), system)
    };
    ask(&server, "/v1/messages", &body("00000"));
    let usage = ask(&server, "/v1/messages", &body("a1b2c"))["usage"].clone();
    assert!(usage["cache_read_input_tokens"].as_u64().unwrap() > 20, "{usage}");
}

/// An answer that the client begins goes on as it began, whatever the request says of thinking, by whichever API it comes.
#[test]
fn a_beginning_decides_whether_the_answer_thinks() {
    let server = Setup::default().start();
    let begun = |content: &str, on: bool| {
        let messages =
            json!([{"role": "user", "content": "What is 17 + 25?"}, {"role": "assistant", "content": content}]);
        let common = json!({"model": "lily-nano", "temperature": 0});
        let chat = with(common.clone(), json!({"messages": messages, "enable_thinking": on}));
        let responses = with(common.clone(), json!({"input": messages, "enable_thinking": on}));
        let switch = json!({"type": if on { "enabled" } else { "disabled" }, "budget_tokens": 1000});
        let anthropic = with(common, json!({"messages": messages, "max_tokens": 200, "thinking": switch}));
        let prompt = server.post("/apply-template", &chat).json()["prompt"].as_str().unwrap().to_owned();
        let message = &ask(&server, "/v1/chat/completions", &chat)["choices"][0]["message"];
        let answer = ["reasoning_content", "content"].map(|name| message[name].as_str().unwrap_or_default().to_owned());
        let blocks = &ask(&server, "/v1/messages", &anthropic)["content"];
        let text = |list: &Value, kind: &str, pointer: &str| -> String {
            let of_kind = list.as_array().unwrap().iter().filter(|entry| entry["type"] == kind);
            of_kind.map(|entry| entry.pointer(pointer).unwrap().as_str().unwrap()).collect()
        };
        assert_eq!([text(blocks, "thinking", "/thinking"), text(blocks, "text", "/text")], answer, "{blocks}");
        let items = &ask(&server, "/v1/responses", &responses)["output"];
        let said = [text(items, "reasoning", "/content/0/text"), text(items, "message", "/content/0/text")];
        assert_eq!(said, answer, "{items}");
        (prompt, answer)
    };
    for on in [true, false] {
        let (prompt, [reasoning, content]) = begun("17 + 25 =", on);
        assert!(prompt.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n17 + 25 ="), "{prompt}");
        assert!(reasoning.is_empty() && !content.is_empty(), "{reasoning:?} {content:?}");

        let (prompt, [reasoning, content]) = begun("<think>\nThe user wants", on);
        assert!(prompt.ends_with("<|im_start|>assistant\n<think>\nThe user wants"), "{prompt}");
        assert!(!reasoning.is_empty() && !reasoning.contains("The user wants"), "{reasoning:?}");
        assert!(!content.is_empty() && !content.contains("think>"), "{content:?}");

        let (prompt, [reasoning, content]) = begun("<think>\nThe sum is 42.\n</think>\n\n17 + 25 =", on);
        assert!(prompt.ends_with("<|im_start|>assistant\n<think>\nThe sum is 42.\n</think>\n\n17 + 25 ="), "{prompt}");
        assert!(reasoning.is_empty() && !content.is_empty(), "{reasoning:?} {content:?}");
    }
    // A budget bounds what is added to the reasoning.
    let messages =
        json!([{"role": "user", "content": "What is 17 + 25?"}, {"role": "assistant", "content": "<think>\nThe"}]);
    let body = json!({"model": "lily-nano", "messages": messages, "temperature": 0, "thinking_budget": 2});
    let bounded = ask(&server, "/v1/chat/completions", &body);
    let thought = bounded["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!((1..=6).contains(&thought), "two, and those that close it: {bounded}");
}
