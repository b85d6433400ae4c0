//! Chat completions: the order of a stream, what answers cost, what binds them.

mod common;

use common::{Running, Setup, chat, with};
use serde_json::{Value, json};

const QUESTION: &str = "What is the capital of France?";

fn ask(server: &Running, body: &Value) -> Value {
    let answer = server.post("/v1/chat/completions", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn content(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

fn joined(chunks: &[Value], field: &str) -> String {
    chunks.iter().filter_map(|c| c["choices"][0]["delta"][field].as_str()).collect()
}

#[test]
fn a_stream_has_its_order_and_says_what_the_whole_answer_says() {
    let server = Setup::default().start();
    let body = with(chat(QUESTION), json!({"stream_options": {"include_usage": true}}));
    let events: Vec<(String, String)> = server.stream("/v1/chat/completions", &body).collect();
    assert_eq!(events.last().unwrap().1, "[DONE]");
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    for field in ["id", "created", "model", "system_fingerprint"] {
        assert!(chunks.iter().all(|c| c[field] == chunks[0][field] && !c[field].is_null()), "{field}");
    }
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(chunks[1..].iter().all(|c| c["choices"][0]["delta"]["role"].is_null()), "the role comes once");
    let (usage, finish) = (&chunks[chunks.len() - 1], &chunks[chunks.len() - 2]);
    assert_eq!((&usage["choices"], &finish["choices"][0]["delta"]), (&json!([]), &json!({})));
    assert_eq!(finish["choices"][0]["finish_reason"], "stop");
    assert!(chunks[..chunks.len() - 2].iter().all(|c| c["choices"][0]["finish_reason"].is_null()));
    let whole = ask(&server, &body);
    assert_eq!(joined(&chunks, "content"), content(&whole));
    assert_eq!(content(&whole), "The capital of France is Paris.");
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    assert_eq!(whole["usage"]["total_tokens"].as_u64(), Some(24 + 12));
    let without: Vec<Value> = server.stream("/v1/chat/completions", &chat(QUESTION)).values();
    assert!(without.iter().all(|c| c["choices"] != json!([])), "usage comes only when asked for");
}

#[test]
fn reasoning_is_a_channel_of_its_own() {
    let server = Setup::default().start();
    for switch in [
        json!({"enable_thinking": true}),
        json!({"chat_template_kwargs": {"enable_thinking": true}}),
        json!({"reasoning_effort": "high"}),
    ] {
        let whole = ask(&server, &with(chat("What is 17 + 25?"), switch.clone()));
        let message = &whole["choices"][0]["message"];
        assert!(message["reasoning_content"].as_str().is_some_and(|r| !r.is_empty()), "{switch}: {whole}");
        assert!(!content(&whole).contains("think>"), "{whole}");
        assert!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
        let chunks = server.stream("/v1/chat/completions", &with(chat("What is 17 + 25?"), switch.clone())).values();
        assert_eq!(joined(&chunks, "reasoning_content"), message["reasoning_content"]);
        assert_eq!(joined(&chunks, "content"), content(&whole));
    }
    for switch in [json!({"enable_thinking": false}), json!({"reasoning_effort": "none"})] {
        let whole = ask(&server, &with(chat("What is 17 + 25?"), switch.clone()));
        assert!(whole["choices"][0]["message"]["reasoning_content"].is_null(), "{switch}: {whole}");
        assert!(content(&whole).contains("42"), "{whole}");
    }
}

#[test]
fn reasoning_goes_where_clients_look_for_it() {
    use lily_api::encode::ReasoningField;
    for (field, names) in [
        (ReasoningField::Reasoning, &["reasoning"][..]),
        (ReasoningField::Both, &["reasoning_content", "reasoning"]),
        (ReasoningField::None, &[]),
    ] {
        let server = Setup::with(|o| o.reasoning_field = field).start();
        let whole = ask(&server, &with(chat("What is 17 + 25?"), json!({"enable_thinking": true})));
        for name in ["reasoning_content", "reasoning"] {
            assert_eq!(whole["choices"][0]["message"][name].is_string(), names.contains(&name), "{field:?} {whole}");
        }
    }
}

#[test]
fn a_budget_ends_the_thinking() {
    let server = Setup::default().start();
    let thinking = |budget: usize| {
        let more = json!({"enable_thinking": true, "thinking_budget": budget, "max_tokens": 60});
        let answer = ask(&server, &with(chat("What is 17 + 25?"), more));
        let tokens = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
        (tokens, answer)
    };
    let (free, _) = thinking(1000);
    let (held, answer) = thinking(3);
    assert!(free > 8, "{free}");
    assert!(held < free && held >= 3, "{held} of {free}");
    assert!(!content(&answer).is_empty(), "{answer}");
}

#[test]
fn answers_end_where_they_should() {
    let server = Setup::default().start();
    let reason = |more: Value| {
        let answer = ask(&server, &with(chat(QUESTION), more));
        (content(&answer), answer["choices"][0]["finish_reason"].as_str().unwrap().to_owned())
    };
    assert_eq!(reason(json!({"max_tokens": 3})).1, "length");
    assert_eq!(reason(json!({"max_completion_tokens": 3})).1, "length");
    assert_eq!(reason(json!({"stop": " of"})), ("The capital".into(), "stop".into()));
    assert_eq!(reason(json!({"stop": ["Paris", "xyz"]})), ("The capital of France is ".into(), "stop".into()));
    let is = server.post("/tokenize", &json!({"content": " is"})).json()["tokens"].as_array().unwrap().clone();
    let (text, why) = reason(json!({"stop_token_ids": [is.last().unwrap()]}));
    assert!(text.starts_with("The capital of France") && !text.contains("Paris") && why == "stop", "{text:?} {why}");
    let chunks = server.stream("/v1/chat/completions", &with(chat(QUESTION), json!({"stop": "France is"}))).values();
    assert_eq!(joined(&chunks, "content"), "The capital of ", "no part of a stop string is sent");
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let server = Setup::default().start();
    let text = |seed: Option<u64>| {
        let mut body =
            with(chat("Tell me something."), json!({"temperature": 5, "top_p": 1, "top_k": 0, "max_tokens": 24}));
        if let Some(seed) = seed {
            body["seed"] = seed.into();
        }
        content(&ask(&server, &body))
    };
    assert_eq!(text(Some(7)), text(Some(7)));
    assert_ne!(text(Some(7)), text(Some(8)));
    // Two of a tiny model's texts may be the same by chance, six hardly.
    let first = text(None);
    assert!((0..5).any(|_| text(None) != first), "fresh entropy where no seed is given");
}

#[test]
fn logprobs_have_the_bytes_of_the_text() {
    let server = Setup::default().start();
    for more in [json!({"logprobs": true}), json!({"logprobs": true, "top_logprobs": 3, "enable_thinking": true})] {
        let body = with(chat(QUESTION), more.clone());
        let whole = ask(&server, &body);
        let tokens = |list: &Value| -> Vec<Value> { list.as_array().cloned().unwrap_or_default() };
        let list = tokens(&whole["choices"][0]["logprobs"]["content"]);
        let bytes = |list: &[Value]| -> Vec<u8> {
            list.iter().flat_map(|t| t["bytes"].as_array().unwrap()).map(|b| b.as_u64().unwrap() as u8).collect()
        };
        let text = content(&whole);
        assert_eq!(String::from_utf8(bytes(&list)).unwrap(), text, "{more}: {list:?}");
        for token in &list {
            assert!(token["logprob"].as_f64().unwrap() <= 0.0);
            let top = token["top_logprobs"].as_array().unwrap();
            assert_eq!(top.len(), more["top_logprobs"].as_u64().unwrap_or(0) as usize);
            if let Some(best) = top.first() {
                assert_eq!(best["token"], token["token"], "greedy takes the best");
            }
        }
        let chunks = server.stream("/v1/chat/completions", &body).values();
        let streamed: Vec<Value> =
            chunks.iter().flat_map(|c| tokens(&c["choices"][0]["logprobs"]["content"])).collect();
        assert_eq!(streamed, list, "a stream has the same tokens");
    }
}

#[test]
fn wrong_fields_are_refused_by_name() {
    let server = Setup::default().start();
    for (more, param) in [
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"n": 2}), "n"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hello"}), "messages"),
        (json!({"logit_bias": {"99999": 1}}), "logit_bias"),
        (json!({"model": "gpt-9"}), "model"),
        (json!({"response_format": {"type": "poem"}}), "response_format"),
        (
            json!({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "f", "arguments": "not json"}}]}, {"role": "tool", "tool_call_id": "1", "content": "x"},
            {"role": "user", "content": "x"}]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
    ] {
        let answer = server.post("/v1/chat/completions", &with(chat(QUESTION), more.clone()));
        let error = &answer.json()["error"];
        assert!((400..405).contains(&answer.status), "{more}: {}", answer.text());
        assert!(error["param"].as_str().is_some_and(|p| p.starts_with(param)), "{more}: {error}");
        assert!(error["message"].as_str().is_some_and(|m| m.len() > 10), "{more}: {error}");
    }
    for harmless in [
        json!({"user": "me"}),
        json!({"store": true}),
        json!({"metadata": {"a": "b"}}),
        json!({"service_tier": "auto"}),
    ] {
        assert_eq!(
            server.post("/v1/chat/completions", &with(chat(QUESTION), with(harmless, json!({"max_tokens": 1})))).status,
            200
        );
    }
    let broken = server.connect().request("POST", "/v1/chat/completions", &[], Some(b"{\"messages\": ["));
    assert_eq!((broken.status, broken.json()["error"]["type"].as_str()), (400, Some("invalid_request_error")));
}

#[test]
fn a_prompt_that_is_too_long_is_refused_with_the_numbers() {
    let server = Setup { context: 64, ..Setup::default() }.start();
    let answer = server.post("/v1/chat/completions", &chat(&"word ".repeat(100)));
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, error["code"].as_str()), (400, Some("context_length_exceeded")));
    assert!(error["message"].as_str().unwrap().contains("64"), "{error}");
    // What fits is answered up to the end of the context, honestly.
    let cut = ask(&server, &with(common::endless(), json!({"max_tokens": 1000})));
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(cut["usage"]["total_tokens"], 64);
}

#[test]
fn the_same_prompt_is_not_computed_twice() {
    let server = Setup::default().start();
    let cold = ask(&server, &chat(QUESTION));
    assert_eq!(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let answer = server.post("/v1/chat/completions", &chat(QUESTION));
    let warm = answer.json();
    let cached = warm["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= 17, "all but the generation prompt's tail: {warm}");
    assert_eq!(content(&warm), content(&cold));
    let timings = &warm["timings"];
    let from = ["session", "memory", "disk"].map(|from| timings[format!("cache_from_{from}")].as_u64().unwrap());
    assert_eq!(from.iter().sum::<u64>(), cached);
    let line = answer.header("x-lily-cache").unwrap().to_owned();
    assert_eq!(line, format!("session={} memory={} disk={} computed={}", from[0], from[1], from[2], 24 - cached));
    // The next turn of the conversation reads only what is new, and at most the last message again.
    let mut longer = chat(QUESTION);
    let messages = longer["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": content(&cold)}));
    messages.push(json!({"role": "user", "content": "And of Spain?"}));
    let next = ask(&server, &longer);
    let usage = &next["usage"];
    let new =
        usage["prompt_tokens"].as_u64().unwrap() - usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(new < 40, "{usage}");
    assert!(content(&next).contains("Madrid"), "{next}");
}

#[test]
fn an_answer_can_be_begun_by_the_client() {
    let server = Setup::default().start();
    let mut body = chat(QUESTION);
    body["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": "The capital of"}));
    let answer = ask(&server, &body);
    assert_eq!(content(&answer), " France is Paris.", "the beginning is not repeated");
    let prompt = server.post("/apply-template", &body).json()["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\nThe capital of"), "{prompt}");
    // With thinking on too: the answer has begun, so nothing is thought.
    assert_eq!(content(&ask(&server, &with(body, json!({"enable_thinking": true})))), " France is Paris.");
}

#[test]
fn parallel_answers_are_those_of_a_lone_server() {
    let questions = [
        "What is the capital of France?",
        "What is 2 + 2?",
        "What is the opposite of hot?",
        "Hello!",
        "What is the capital of Japan?",
    ];
    let alone = Setup { sessions: 1, ..Setup::default() }.start();
    let expected: Vec<String> = questions.iter().map(|q| content(&ask(&alone, &chat(q)))).collect();
    let server = Setup::default().start();
    std::thread::scope(|scope| {
        let server = &server;
        let asked: Vec<_> = (0..15)
            .map(|n| {
                (
                    n % 5,
                    scope.spawn(move || match n % 2 {
                        0 => {
                            joined(&server.stream("/v1/chat/completions", &chat(questions[n % 5])).values(), "content")
                        }
                        _ => content(&ask(server, &chat(questions[n % 5]))),
                    }),
                )
            })
            .collect();
        for (question, text) in asked {
            assert_eq!(text.join().unwrap(), expected[question], "{}", questions[question]);
        }
    });
}
