//! What binds answers, end to end: schemas, calls that must or must not come.

mod common;

use common::{Running, Setup, chat, with};
use serde_json::{Value, json};

fn ask(server: &Running, body: &Value) -> Value {
    let answer = server.post("/v1/chat/completions", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 99}}, "required": ["city", "days"]}}}])
}

/// Random text at a temperature where lily-nano knows nothing any more; only the rules give it a form.
fn hot(seed: u64) -> Value {
    json!({"temperature": 3, "top_p": 1, "top_k": 0, "seed": seed, "max_tokens": 400})
}

#[test]
fn an_answer_has_the_form_of_its_schema_whatever_the_model_would_say() {
    let server = Setup::default().start();
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["kind", "n", "ok"], "properties": {
        "kind": {"enum": ["a", "b"]}, "n": {"type": "integer", "minimum": 0, "maximum": 999}, "ok": {"type": "boolean"}}});
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    for (seed, thinking) in [(1, false), (2, false), (3, true), (4, true)] {
        let more = json!({"enable_thinking": thinking, "thinking_budget": 20});
        let answer = ask(&server, &with(with(with(chat("Go!"), format.clone()), hot(seed)), more));
        let choice = &answer["choices"][0];
        let content = choice["message"]["content"].as_str().unwrap_or_default();
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        let value: Value = serde_json::from_str(content).unwrap_or_else(|e| panic!("{e}: {content:?}"));
        assert!(value["n"].is_u64() && value["ok"].is_boolean() && value.as_object().unwrap().len() == 3, "{value}");
        assert_eq!(choice["message"]["reasoning_content"].is_string(), thinking, "{answer}");
    }
}

#[test]
fn a_call_that_is_required_comes_and_fits_the_tool() {
    let server = Setup::default().start();
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for (seed, choice, thinking) in [(1, json!("required"), false), (2, named.clone(), false), (3, named, true)] {
        let more = json!({"tools": weather(), "tool_choice": choice, "parallel_tool_calls": false,
            "enable_thinking": thinking, "thinking_budget": 20});
        let body = with(with(chat("Hello!"), hot(seed)), more);
        let answer = ask(&server, &body);
        let choice = &answer["choices"][0];
        let calls = choice["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!((calls.len(), calls[0]["function"]["name"].as_str()), (1, Some("get_weather")), "{answer}");
        let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(
            arguments["days"].is_u64() && ["Paris", "Rome"].contains(&arguments["city"].as_str().unwrap()),
            "{arguments}"
        );
        assert!(choice["message"]["content"].as_str().unwrap_or_default().is_empty(), "{answer}");
        let chunks = server.stream("/v1/chat/completions", &body).values();
        let streamed: String = chunks
            .iter()
            .filter_map(|c| c["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str())
            .collect();
        assert_eq!(streamed, calls[0]["function"]["arguments"].as_str().unwrap());
    }
}

#[test]
fn texts_of_a_call_follow_the_schema_and_what_cannot_be_kept_is_refused() {
    let server = Setup::default().start();
    let body = |seed: u64, properties: Value| {
        let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        let tools = json!([{"type": "function", "function": {"name": "note", "parameters": parameters}}]);
        let more =
            json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false, "enable_thinking": false});
        with(with(chat("Hello!"), hot(seed)), more)
    };
    let limited = json!({"code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$", "maxLength": 8},
        "text": {"type": "string", "minLength": 3, "maxLength": 20},
        "amount": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "integer"}]}});
    for seed in 1..=6 {
        let answer = ask(&server, &body(seed, limited.clone()));
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap_or_default())
            .unwrap_or_else(|e| panic!("{e}: {answer}"));
        let code = arguments["code"].as_str().unwrap();
        let digits = &code[3..];
        assert!(code[..2].bytes().all(|c| c.is_ascii_uppercase()) && &code[2..3] == "-", "{code}");
        assert!((1..=5).contains(&digits.len()) && digits.bytes().all(|c| c.is_ascii_digit()), "{code}");
        assert!((3..=20).contains(&arguments["text"].as_str().unwrap().chars().count()), "{arguments}");
        let amount = &arguments["amount"];
        assert!(amount.is_i64() || amount.as_str().is_some_and(|text| text.chars().count() <= 5), "{arguments}");
    }
    let refused =
        server.post("/v1/chat/completions", &body(1, json!({"x": {"type": "string", "not": {"const": "a"}}})));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("\"not\""), "{}", refused.text());
}

#[test]
fn a_call_that_is_not_allowed_does_not_come() {
    let server = Setup::default().start();
    let question = "What is the weather in Paris for 3 days?";
    let body = with(chat(question), json!({"tools": weather()}));
    let free = ask(&server, &body);
    assert!(free["choices"][0]["message"]["tool_calls"].is_array(), "lily-nano calls by itself here: {free}");
    assert_eq!(free["choices"][0]["finish_reason"], "tool_calls");
    let none = ask(&server, &with(body, json!({"tool_choice": "none", "max_tokens": 60})));
    assert!(none["choices"][0]["message"]["tool_calls"].is_null(), "{none}");
    assert!(!none["choices"][0]["message"]["content"].as_str().unwrap().contains("<tool_call>"), "{none}");
}

/// The prompt lists all functions, so that it is the same whichever of them may be called.
#[test]
fn only_allowed_functions_are_called() {
    let server = Setup::default().start();
    let mut tools = weather();
    let time = json!({"name": "get_time", "description": "The time in a city", "parameters": {"type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo"]}}, "required": ["city"]}});
    tools.as_array_mut().unwrap().push(json!({"type": "function", "function": time}));
    let body = with(chat("What is the weather in Paris for 3 days?"), json!({"tools": tools}));
    let free = ask(&server, &body);
    assert_eq!(free["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get_weather", "by itself: {free}");
    let among = |mode: &str| {
        let allowed = json!({"mode": mode, "tools": [{"type": "function", "function": {"name": "get_time"}}]});
        let choice = json!({"type": "allowed_tools", "allowed_tools": allowed});
        ask(&server, &with(body.clone(), json!({"tool_choice": choice, "max_tokens": 100})))
    };
    for mode in ["required", "auto"] {
        let answer = among(mode);
        assert_eq!(answer["usage"]["prompt_tokens"], free["usage"]["prompt_tokens"]);
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        assert!(mode == "auto" || !calls.is_empty(), "{answer}");
        assert!(calls.iter().all(|call| call["function"]["name"] == "get_time"), "{answer}");
    }
}

#[test]
fn the_result_of_a_call_is_answered() {
    let server = Setup::default().start();
    let mut body = with(chat("What is the weather in Paris for 3 days?"), json!({"tools": weather()}));
    let call = ask(&server, &body)["choices"][0]["message"].clone();
    let id = call["tool_calls"][0]["id"].clone();
    assert!(id.as_str().is_some_and(|id| id.starts_with("call_")), "{call}");
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(call);
    messages.push(json!({"role": "tool", "tool_call_id": id, "content": "{\"weather\": \"sunny\", \"degrees\": 21}"}));
    let answer = ask(&server, &body);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(!answer["choices"][0]["message"]["content"].as_str().unwrap().is_empty(), "{answer}");
}

#[test]
fn schemas_that_cannot_be_enforced_are_refused() {
    let server = Setup::default().start();
    for schema in
        [json!({"type": "triangle"}), json!({"$ref": "#/$defs/nowhere"}), json!({"$ref": "http://example.com/x"})]
    {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let answer = server.post("/v1/chat/completions", &with(chat("x"), json!({"response_format": format})));
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert_eq!(answer.json()["error"]["param"], "response_format");
    }
}
