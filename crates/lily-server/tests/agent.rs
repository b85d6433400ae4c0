//! An agent's conversation: every turn sends all of it again, in the client's own words, and only what is new is computed.

mod common;

use common::{Running, Setup};
use serde_json::{Value, json};

/// Tokens between the last boundary of a prompt and its end: the generation prompt, of which some is computed again.
const TAIL: u64 = 12;

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"]}}}])
}

/// What a client makes of a message before it sends it back: arguments in other white space and order, no reasoning.
fn reworded(message: &Value) -> Value {
    let mut message = message.clone();
    message.as_object_mut().unwrap().remove("reasoning_content");
    for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        let pairs: Vec<String> =
            arguments.as_object().unwrap().iter().rev().map(|(key, value)| format!("\"{key}\" : {value}")).collect();
        call["function"]["arguments"] = format!("{{ {} }}", pairs.join(" , ")).into();
    }
    message
}

/// One turn: prompt tokens, of them cached, tokens generated, and the message.
fn turn(server: &Running, messages: &[Value], choice: &str, preserve_thinking: bool) -> (u64, u64, u64, Value) {
    let body = json!({"messages": messages, "tools": tools(), "tool_choice": choice, "parallel_tool_calls": false,
        "temperature": 0, "max_tokens": 60, "chat_template_kwargs": {"preserve_thinking": preserve_thinking}});
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    let usage = &answer["usage"];
    let count = |value: &Value| value.as_u64().unwrap();
    assert_ne!(answer["choices"][0]["finish_reason"], "length", "{answer}");
    (
        count(&usage["prompt_tokens"]),
        count(&usage["prompt_tokens_details"]["cached_tokens"]),
        count(&usage["completion_tokens"]),
        answer["choices"][0]["message"].clone(),
    )
}

/// Plays ten turns: five questions, a call and its result for each. Prints what each turn cost, and returns for each how many
/// tokens were computed and how many were new since the turn before.
fn ten_turns(preserve_thinking: bool) -> Vec<(u64, u64)> {
    let server = Setup::default().start();
    let cities = ["Paris", "Rome", "Oslo", "Tokyo", "Lima"];
    let mut messages = vec![json!({"role": "system", "content": "You are an agent that looks things up."})];
    let mut costs = Vec::new();
    let mut before = 0;
    println!("turn  prompt  cached  computed  new  generated");
    for number in 0..10 {
        let city = cities[number / 2];
        let choice = if number % 2 == 0 {
            let question = format!("What is the weather in {city} for {} days?", number + 2);
            messages.push(json!({"role": "user", "content": question}));
            "required"
        } else {
            let id = messages.last().unwrap()["tool_calls"][0]["id"].clone();
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": "{\"weather\": \"sunny\"}"}));
            "none"
        };
        let (prompt, cached, generated, message) = turn(&server, &messages, choice, preserve_thinking);
        println!(
            "{number:>4}  {prompt:>6}  {cached:>6}  {:>8}  {:>3}  {generated:>9}",
            prompt - cached,
            prompt - before
        );
        costs.push((prompt - cached, prompt - before));
        before = prompt;
        messages.push(reworded(&message));
    }
    costs
}

#[test]
fn ten_turns_compute_only_what_is_new() {
    for (number, (computed, new)) in ten_turns(true).into_iter().enumerate() {
        assert!(computed <= new + TAIL, "turn {number}: {computed} computed, {new} new");
    }
}

/// Where the template drops the thinking of earlier questions, a new question parts the prompt at the answer to the last one,
/// and no earlier.
#[test]
fn dropped_thinking_costs_one_round() {
    let costs = ten_turns(false);
    for (number, &(computed, new)) in costs.iter().enumerate() {
        let round = if number >= 2 && number % 2 == 0 { costs[number - 1].1 + costs[number - 2].1 } else { 0 };
        assert!(
            computed <= new + round + TAIL,
            "turn {number}: {computed} computed, {new} new, {round} in the last round"
        );
    }
}

/// Without the memory of what was written, the reworded call would part the prompts at its first space.
#[test]
fn a_call_in_other_words_is_the_call_that_was_written() {
    let server = Setup::default().start();
    let messages = vec![json!({"role": "user", "content": "What is the weather in Paris for 3 days?"})];
    let (_, _, _, message) = turn(&server, &messages, "required", false);
    let prompt = |message: Value| {
        let mut messages = messages.clone();
        messages.push(message);
        messages.push(json!({"role": "tool", "tool_call_id": "x", "content": "sunny"}));
        server.post("/apply-template", &json!({"messages": messages, "tools": tools()})).json()["prompt"].clone()
    };
    assert_eq!(prompt(reworded(&message)), prompt(message.clone()));
    // A call with another argument is another call.
    let mut other = message.clone();
    other["tool_calls"][0]["function"]["arguments"] = "{\"city\": \"Rome\", \"days\": 3}".into();
    assert_ne!(prompt(other), prompt(message));
}

/// Claude Code sends calls back with what their schemas have as defaults.
#[test]
fn a_call_with_defaults_filled_in_is_the_call_that_was_written() {
    let server = Setup::default().start();
    let mut tools = tools();
    let properties = &mut tools[0]["function"]["parameters"]["properties"];
    properties["unit"] = json!({"type": "string", "default": "C"});
    let question = json!({"role": "user", "content": "What is the weather in Paris for 3 days?"});
    let body = json!({"messages": [question], "tools": tools, "tool_choice": "required", "temperature": 0,
        "parallel_tool_calls": false, "max_tokens": 200});
    let message = server.post("/v1/chat/completions", &body).json()["choices"][0]["message"].clone();
    let written: Value =
        serde_json::from_str(message["tool_calls"][0]["function"]["arguments"].as_str().unwrap()).unwrap();
    let prompt = |unit: Option<&str>| {
        let (mut message, mut arguments) = (message.clone(), written.clone());
        if let Some(unit) = unit {
            arguments["unit"] = unit.into();
        }
        message["tool_calls"][0]["function"]["arguments"] = arguments.to_string().into();
        let result = json!({"role": "tool", "tool_call_id": "x", "content": "sunny"});
        let body = json!({"messages": [question, message, result], "tools": tools});
        server.post("/apply-template", &body).json()["prompt"].clone()
    };
    assert!(written.get("unit").is_none(), "the model left the argument to its default: {written}");
    assert_eq!(prompt(Some("C")), prompt(None));
    assert_ne!(prompt(Some("F")), prompt(None));
}

/// Claude Code says in a system message behind the first question where it is, at length.
#[test]
fn a_new_conversation_reads_its_question_and_not_what_the_client_says_behind_it() {
    let server = Setup::default().start();
    let place = "This is where you are, and these are the rules of the place. ".repeat(20);
    let ask = |question: &str| {
        let messages = json!([{"role": "user", "content": question}, {"role": "system", "content": place}]);
        let body = json!({"system": "You are an agent.", "messages": messages, "max_tokens": 4, "temperature": 0});
        let usage = server.post("/v1/messages", &body).json()["usage"].clone();
        usage["input_tokens"].as_u64().unwrap_or_else(|| panic!("{usage}"))
    };
    let first = ask("What is the capital of France?");
    let second = ask("Where do the Romans live?");
    assert!(first > 200 && second < 60, "{first} tokens read, then {second}");
}

#[test]
fn branches_and_edits_reuse_what_they_share() {
    let server = Setup::default().start();
    let system =
        json!({"role": "system", "content": "You answer questions about capitals, briefly and politely, always."});
    let ask = |question: &str| {
        let body = json!({"messages": [system, {"role": "user", "content": question}], "temperature": 0});
        let answer = server.post("/v1/chat/completions", &body).json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(ask("What is the capital of France?"), 0);
    let shared = ask("What is the capital of Spain?");
    assert!(shared >= 15, "the system message is not computed again: {shared}");
    assert!(ask("What is the capital of France?") >= shared);
}
