//! What bodies mean, and which are refused.

use super::{APIS, body, request};
use crate::request::{Conversation, GrammarSyntax, Input, Prefill, Prompt, ResponseFormat, Thinking, ToolChoice};
use crate::{Api, ApiError, parse};
use proptest::prelude::*;
use serde_json::{Value, json};

fn conversation(api: Api, body: &Value) -> Conversation {
    match request(api, body).input {
        Input::Chat(conversation) => conversation,
        Input::Text { .. } => panic!("no conversation"),
    }
}

pub(super) fn refusal(api: Api, body: &Value) -> ApiError {
    parse(api, body.to_string().as_bytes()).expect_err(&body.to_string())
}

/// The body with a field added.
pub(super) fn with(api: Api, name: &str, value: Value) -> Value {
    let mut body = body(api);
    body[name] = value;
    body
}

fn chat(messages: Value) -> Value {
    json!({"messages": messages})
}

#[test]
fn the_same_conversation_is_the_same_in_every_api() {
    let parameters = json!({"type": "object", "properties": {"path": {"type": "string"}}});
    let chat = json!({
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Read a."}]},
            {"role": "assistant", "content": "Ok.", "reasoning_content": "Hm.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{\"path\": \"a\"}"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "text"},
            {"role": "user", "content": "Thanks."},
        ],
        "tools": [{"type": "function", "function": {"parameters": parameters, "description": "Reads.", "strict": true, "name": "read"}}],
    });
    let responses = json!({
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Read a."},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Ok.", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{\"path\":\"a\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": "text"},
            {"role": "user", "content": [{"type": "input_text", "text": "Thanks."}]},
        ],
        "tools": [{"type": "function", "name": "read", "strict": true, "parameters": parameters, "description": "Reads."}],
    });
    let messages = json!({
        "max_tokens": 10,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Read a."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "Ok."},
                {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "text"}]},
                {"type": "text", "text": "Thanks."},
            ]},
        ],
        "tools": [{"name": "read", "input_schema": parameters, "description": "Reads."}],
    });
    let chat = conversation(Api::Chat, &chat);
    assert_eq!(chat.messages.len(), 5);
    assert_eq!(chat.messages[2]["tool_calls"][0]["function"]["arguments"], json!({"path": "a"}));
    for other in [conversation(Api::Responses, &responses), conversation(Api::Messages, &messages)] {
        assert_eq!(json!(other.messages).to_string(), json!(chat.messages).to_string());
        assert_eq!(other.template_tools().unwrap().to_string(), chat.template_tools().unwrap().to_string());
    }
}

#[test]
fn field_report_o5_the_billing_line_of_claude_code_is_left_out() {
    let system = |system: Value| {
        let chat = conversation(Api::Messages, &with(Api::Messages, "system", system));
        (chat.messages[0]["role"] == "system").then(|| chat.messages[0]["content"].clone())
    };
    let line =
        |nonce: &str| format!("x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={nonce};");
    let blocks = |nonce: &str| json!([{"type": "text", "text": line(nonce)}, {"type": "text", "text": "You code."}]);
    assert_eq!(system(blocks("36ee5")), Some(json!("You code.")));
    assert_eq!(system(blocks("36ee5")), system(blocks("0aaa9")));
    assert_eq!(system(json!(format!("{}\nYou code.", line("1")))), Some(json!("You code.")));
    assert_eq!(system(json!(line("1"))), None);
    assert_eq!(system(json!("About x-anthropic-billing-header: it is a line.")).unwrap().as_str().unwrap().len(), 47);
}

#[test]
fn field_report_o11_arguments_in_the_history_are_objects() {
    let with_arguments = |arguments: Value| {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
        chat(
            json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "y"}]),
        )
    };
    for arguments in [json!("{\"a\": 1}"), json!({"a": 1})] {
        let chat = conversation(Api::Chat, &with_arguments(arguments));
        assert_eq!(chat.messages[1]["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
    }
    assert_eq!(conversation(Api::Chat, &with_arguments(json!(""))).messages.len(), 3);
    for arguments in [json!("{a"), json!("[1]"), json!(5)] {
        let error = refusal(Api::Chat, &with_arguments(arguments));
        assert_eq!((error.status, error.param.as_deref()), (400, Some("messages[1].tool_calls[0].function.arguments")));
    }
}

#[test]
fn field_report_o12_system_messages_anywhere_are_accepted() {
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let reminder = |text: &str| format!("<system-reminder>\n{text}\n</system-reminder>");
    // Those at the beginning are the template's to join.
    let first = [message("system", "a"), message("developer", "b"), message("user", "c")];
    let roles: Vec<Value> =
        conversation(Api::Chat, &chat(json!(first))).messages.iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["system", "system", "user"]);
    // So are those before the first answer. Later ones stay where they are, so that what is before them stays as it was.
    let late = [
        message("user", "a"),
        message("developer", "b"),
        message("system", " "),
        message("assistant", "c"),
        message("system", "d"),
        message("system", ""),
        message("user", "e"),
    ];
    let expected = [
        message("system", "b"),
        message("user", "a"),
        message("assistant", "c"),
        message("user", &reminder("d")),
        message("user", "e"),
    ];
    assert_eq!(conversation(Api::Chat, &chat(json!(late))).messages, expected);
    assert_eq!(conversation(Api::Responses, &json!({"input": late})).messages, expected);
    // Claude Code sends them in the middle of a conversation.
    let result = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "done"}]});
    let body = json!({"max_tokens": 5, "messages": [message("user", "a"), message("assistant", "b"), result, message("system", "d")]});
    let last = conversation(Api::Messages, &body).messages.pop().unwrap();
    assert_eq!((&last["role"], &last["content"]), (&json!("tool"), &json!(format!("done\n\n{}", reminder("d")))));
}

#[test]
fn field_report_o13_thinking_is_turned_off_in_every_way_that_clients_know() {
    let thinking = |api, name: &str, value: Value| conversation(api, &with(api, name, value)).thinking;
    let off = Thinking { enabled: Some(false), budget_tokens: None };
    for (name, value) in [
        ("chat_template_kwargs", json!({"enable_thinking": false})),
        ("enable_thinking", json!(false)),
        ("reasoning_effort", json!("none")),
        ("reasoning", json!({"effort": "none"})),
        ("reasoning", json!({"enabled": false})),
        ("thinking", json!({"type": "disabled"})),
        ("thinking_budget", json!(0)),
    ] {
        assert_eq!(thinking(Api::Chat, name, value), off, "{name}");
    }
    assert_eq!(thinking(Api::Responses, "reasoning", json!({"effort": "none"})), off);
    assert_eq!(conversation(Api::Messages, &body(Api::Messages)).thinking, off);
    assert_eq!(conversation(Api::Chat, &body(Api::Chat)).thinking, Thinking::default());
    let on = |budget_tokens| Thinking { enabled: Some(true), budget_tokens };
    assert_eq!(thinking(Api::Messages, "thinking", json!({"type": "enabled", "budget_tokens": 2000})), on(Some(2000)));
    assert_eq!(thinking(Api::Messages, "thinking", json!({"type": "adaptive"})), on(None));
    assert_eq!(thinking(Api::Chat, "reasoning_effort", json!("low")), on(Some(2048)));
    // The template's own variable is the last word, and is not passed twice.
    let mut both = with(Api::Chat, "chat_template_kwargs", json!({"enable_thinking": true, "preserve_thinking": true}));
    both["reasoning_effort"] = json!("none");
    let chat = conversation(Api::Chat, &both);
    assert_eq!((chat.thinking.enabled, json!(chat.template_kwargs)), (Some(true), json!({"preserve_thinking": true})));
}

#[test]
fn reasoning_comes_back_under_either_name() {
    for name in ["reasoning_content", "reasoning"] {
        let mut assistant = json!({"role": "assistant", "content": "a"});
        assistant[name] = json!("why");
        let body = chat(json!([{"role": "user", "content": "x"}, assistant, {"role": "user", "content": "y"}]));
        assert_eq!(conversation(Api::Chat, &body).messages[1]["reasoning_content"], "why");
    }
}

#[test]
fn a_trailing_assistant_message_is_continued() {
    let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer is "}]);
    let prefill = Some(Prefill::Text { reasoning: None, content: "The answer is ".into() });
    let continued = conversation(Api::Chat, &chat(messages.clone()));
    assert_eq!((continued.messages.len(), &continued.prefill), (1, &prefill));
    let body = json!({"max_tokens": 5, "messages": messages});
    assert_eq!(conversation(Api::Messages, &body).prefill, prefill);
    assert_eq!(conversation(Api::Responses, &json!({"input": messages})).prefill, prefill);
    let kept = conversation(Api::Chat, &json!({"messages": messages, "continue_final_message": false}));
    assert_eq!((kept.messages.len(), kept.prefill), (2, None));
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let called =
        chat(json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": [call]}]));
    assert_eq!(conversation(Api::Chat, &called).prefill, None);
    let empty = chat(json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]));
    assert_eq!(conversation(Api::Chat, &empty).messages.len(), 1);
}

/// Reasoning of its own is finished; reasoning that the text spells is as far as it is spelled. Each API in its own words.
#[test]
fn a_beginning_may_have_reasoning() {
    let text = |reasoning: &str, content: &str| {
        Some(Prefill::Text { reasoning: Some(reasoning.into()), content: content.into() })
    };
    let spelled = |content: &str| {
        let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]);
        let chat = conversation(Api::Chat, &chat(messages.clone())).prefill;
        let messages_api = json!({"max_tokens": 5, "messages": messages.clone()});
        assert_eq!(conversation(Api::Messages, &messages_api).prefill, chat);
        assert_eq!(conversation(Api::Responses, &json!({"input": messages})).prefill, chat);
        chat
    };
    assert_eq!(spelled("<think>\nLet me "), Some(Prefill::Reasoning("Let me ".into())));
    assert_eq!(spelled("<think>"), Some(Prefill::Reasoning(String::new())));
    assert_eq!(spelled("<think>\nHm.\n</think>\n\nIt is "), text("Hm.", "It is "));
    assert_eq!(spelled("<think>\n\n</think>\n\n"), text("", ""));
    // Anywhere else it is text.
    let quoted = "The tag <think> opens";
    assert_eq!(spelled(quoted), Some(Prefill::Text { reasoning: None, content: quoted.into() }));

    for content in ["It is ", ""] {
        let question = json!({"role": "user", "content": "x"});
        let asked = chat(json!([question, {"role": "assistant", "reasoning_content": "Hm.", "content": content}]));
        assert_eq!(conversation(Api::Chat, &asked).prefill, text("Hm.", content));
        let mut blocks = vec![json!({"type": "thinking", "thinking": "Hm.", "signature": ""})];
        let mut items =
            vec![question.clone(), json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]})];
        if !content.is_empty() {
            blocks.push(json!({"type": "text", "text": content}));
            items.push(json!({"role": "assistant", "content": content}));
        }
        let asked = json!({"max_tokens": 5, "messages": [question, {"role": "assistant", "content": blocks}]});
        assert_eq!(conversation(Api::Messages, &asked).prefill, text("Hm.", content));
        assert_eq!(conversation(Api::Responses, &json!({"input": items})).prefill, text("Hm.", content));
    }
}

#[test]
fn reminders_after_results_belong_to_them() {
    let body = json!({"max_tokens": 5, "messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c", "content": "done", "is_error": false},
        {"type": "text", "text": "<system-reminder>\nx\n</system-reminder>"},
    ]}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "d", "content": "no such file", "is_error": true},
        {"type": "text", "text": "Stop."},
    ]}]});
    let messages = conversation(Api::Messages, &body).messages;
    let contents: Vec<&Value> = messages.iter().map(|m| &m["content"]).collect();
    assert_eq!(contents, ["done\n\n<system-reminder>\nx\n</system-reminder>", "Error: no such file", "Stop."]);
}

#[test]
fn codex_gets_what_it_sends() {
    let body = json!({
        "model": "m", "instructions": "You are Codex.", "stream": true, "store": false, "tool_choice": "auto",
        "parallel_tool_calls": false, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "conv-1",
        "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": "low"},
        "client_metadata": {"x": "y"},
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<env>"}, {"type": "input_text", "text": "Fix it."}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "lily1:I think."},
            {"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"ls\"]}", "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "{\"output\":\"a.rs\"}"},
            {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA of somebody else"},
            {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2", "status": "completed"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
            {"type": "web_search_call", "status": "completed"},
            {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}, {"type": "web_search"}]},
        ],
        "tools": [
            {"type": "function", "name": "shell", "description": "Runs.", "strict": false, "parameters": {"type": "object", "properties": {}}},
            {"type": "local_shell"}, {"type": "web_search"}, {"type": "a_type_of_next_year", "x": 1},
            {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
        ],
    });
    let request = request(Api::Responses, &body);
    assert_eq!((request.stream, request.cache_key.as_deref()), (true, Some("conv-1")));
    let chat = conversation(Api::Responses, &body);
    let names: Vec<&str> = chat.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(
        (names.as_slice(), chat.tools[1].free_text, chat.parallel_tool_calls),
        (&["shell", "apply_patch", "late"][..], true, false)
    );
    let roles: Vec<&Value> = chat.messages.iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["system", "system", "user", "assistant", "tool", "assistant", "tool"]);
    assert_eq!(chat.messages[2]["content"], "<env>\n\nFix it.");
    assert_eq!(chat.messages[3]["reasoning_content"], "I think.");
    assert_eq!(chat.messages[5].get("reasoning_content"), None);
    assert_eq!(chat.messages[5]["tool_calls"][0]["function"]["arguments"], json!({"input": "*** Begin"}));
}

#[test]
fn functions_of_a_namespace_are_called_in_it() {
    let tool = json!({"type": "function", "name": "spawn", "parameters": {"type": "object", "properties": {}}});
    let call =
        json!({"type": "function_call", "call_id": "c", "namespace": "agents", "name": "spawn", "arguments": "{}"});
    let body = json!({
        "input": [{"role": "user", "content": "x"}, call, {"type": "function_call_output", "call_id": "c", "output": ""}],
        "tools": [tool, {"type": "namespace", "name": "agents", "description": "d", "tools": [tool]}],
    });
    let chat = conversation(Api::Responses, &body);
    let names: Vec<&str> = chat.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["spawn", "agents__spawn"]);
    assert_eq!(chat.messages[1]["tool_calls"][0]["function"]["name"], "agents__spawn");
    let request = request(Api::Responses, &body);
    let text = b"</think><tool_call>\n<function=agents__spawn>\n</function>\n</tool_call><tool_call>\n<function=spawn>";
    let pieces = super::pieces(&request, &[text]);
    let finish = super::finish(crate::finish::FinishReason::Stop);
    let whole = super::whole(&request, &pieces, &finish);
    let called: Vec<_> = whole["output"].as_array().unwrap().iter().map(|o| (&o["namespace"], &o["name"])).collect();
    assert_eq!(called, [(&json!("agents"), &json!("spawn")), (&Value::Null, &json!("spawn"))]);
    let streamed = super::clients::fold(Api::Responses, &super::stream(&request, &pieces, &finish));
    assert_eq!(streamed, whole);
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]);
    let anthropic_image =
        json!([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "source": {}}]}]);
    let rows = [
        (Api::Chat, "n", json!(2), "n"),
        (Api::Chat, "modalities", json!(["text", "audio"]), "modalities"),
        (Api::Chat, "audio", json!({"voice": "x"}), "audio"),
        (Api::Chat, "functions", json!([{"name": "f"}]), "functions"),
        (Api::Chat, "response_format", json!({"type": "xml"}), "response_format.type"),
        (Api::Chat, "response_format", json!({"type": "json_schema"}), "response_format.schema"),
        (Api::Chat, "ignore_eos", json!(true), "ignore_eos"),
        (Api::Chat, "messages", image, "messages[0].content[0].type"),
        (Api::Chat, "messages", json!([]), "messages"),
        (Api::Chat, "messages", json!([{"role": "robot", "content": "x"}]), "messages[0].role"),
        (Api::Chat, "messages", json!([{"content": "x"}]), "messages[0].role"),
        (Api::Chat, "messages", json!("x"), "messages"),
        (Api::Chat, "temperature", json!(-1), "temperature"),
        (Api::Chat, "temperature", json!("hot"), "temperature"),
        (Api::Chat, "max_tokens", json!(0), "max_tokens"),
        (Api::Chat, "top_logprobs", json!(3), "top_logprobs"),
        (Api::Chat, "top_logprobs", json!(21), "top_logprobs"),
        (Api::Chat, "stop", json!(["a", ""]), "stop[1]"),
        (Api::Chat, "logit_bias", json!({"hello": 1}), "logit_bias.hello"),
        (Api::Completions, "top_logprobs", json!(3), "top_logprobs"),
        (Api::Responses, "top_logprobs", json!(3), "top_logprobs"),
        (Api::Responses, "logprobs", json!(true), "logprobs"),
        (Api::Messages, "logprobs", json!(true), "logprobs"),
        (Api::Messages, "top_logprobs", json!(3), "top_logprobs"),
        (
            Api::Chat,
            "tool_choice",
            json!({"type": "function", "function": {"name": "none such"}}),
            "tool_choice.function.name",
        ),
        (Api::Chat, "chat_template_kwargs", json!({"messages": []}), "chat_template_kwargs.messages"),
        (Api::Chat, "reasoning_effort", json!("enormous"), "reasoning_effort"),
        (Api::Completions, "prompt", json!(["a", "b"]), "prompt"),
        (Api::Completions, "suffix", json!("x"), "suffix"),
        (Api::Responses, "previous_response_id", json!("resp_1"), "previous_response_id"),
        (Api::Responses, "background", json!(true), "background"),
        (Api::Responses, "input", json!([{"type": "item_reference", "id": "x"}]), "input[0]"),
        (
            Api::Responses,
            "input",
            json!([{"role": "user", "content": [{"type": "input_image"}]}]),
            "input[0].content[0].type",
        ),
        (Api::Responses, "tool_choice", json!({"type": "web_search"}), "tool_choice"),
        (Api::Responses, "tool_choice", json!({"type": "allowed_tools", "tools": []}), "tool_choice.mode"),
        (
            Api::Responses,
            "tool_choice",
            json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "none such"}]}),
            "tool_choice.tools",
        ),
        (
            Api::Chat,
            "tool_choice",
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}),
            "tool_choice.allowed_tools",
        ),
        (Api::Messages, "messages", anthropic_image, "messages[0].content[1].type"),
        (Api::Messages, "mcp_servers", json!([{"url": "x"}]), "mcp_servers"),
        (Api::Messages, "tool_choice", json!({"type": "tool"}), "tool_choice.name"),
        (Api::Messages, "thinking", json!({"type": "always"}), "thinking.type"),
    ];
    for (api, name, value, param) in rows {
        let error = refusal(api, &with(api, name, value.clone()));
        assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{name}: {value}: {error}");
        assert!(error.message.contains(param.split('.').next().unwrap()), "{error}");
    }
    for (api, name) in
        [(Api::Chat, "messages"), (Api::Completions, "prompt"), (Api::Responses, "input"), (Api::Messages, "messages")]
    {
        let mut body = body(api);
        body.as_object_mut().unwrap().remove(name);
        assert_eq!(refusal(api, &body).param.as_deref(), Some(name));
    }
    for text in ["", "{", "[]", "null", "5", "{\"messages\": }"] {
        assert_eq!(parse(Api::Chat, text.as_bytes()).unwrap_err().status, 400, "{text}");
    }
}

#[test]
fn what_changes_nothing_is_ignored() {
    let extra = json!({
        "user": "me", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "n": 1, "some_extension": [1],
        "verbosity": "low", "best_of": null, "audio": null, "modalities": ["text"], "logit_bias": null, "stop": null,
    });
    let mut full = body(Api::Chat);
    full.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    assert_eq!(request(Api::Chat, &full), request(Api::Chat, &body(Api::Chat)));
    let beta = json!({"betas": ["x"], "context_management": {}, "service_tier": "auto", "metadata": {"user_id": null}});
    let mut full = body(Api::Messages);
    full.as_object_mut().unwrap().extend(beta.as_object().unwrap().clone());
    assert_eq!(request(Api::Messages, &full), request(Api::Messages, &body(Api::Messages)));
}

#[test]
fn sampling_and_limits_are_read() {
    let body = json!({
        "messages": [{"role": "user", "content": "x"}], "temperature": 0, "top_p": 0, "top_k": -1, "min_p": 0.1, "seed": -1,
        "presence_penalty": 1.5, "frequency_penalty": -1, "repeat_penalty": 1.1, "logit_bias": {"5": -100, "7": 1.5},
        "max_tokens": 5.0, "stop": "a", "stop_token_ids": [1, 2], "logprobs": true,
    });
    let request = super::request(Api::Chat, &body);
    let sampling = &request.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (Some(0.0), Some(f32::MIN_POSITIVE), Some(0)));
    assert_eq!((sampling.min_p, sampling.seed, sampling.repetition_penalty), (Some(0.1), None, Some(1.1)));
    assert_eq!(sampling.logit_bias.iter().map(|(id, bias)| (*id, *bias)).collect::<Vec<_>>(), [(5, -100.0), (7, 1.5)]);
    assert_eq!((request.max_tokens, request.stop, request.stop_token_ids), (Some(5), vec!["a".to_owned()], vec![1, 2]));
    assert_eq!(request.logprobs, Some(0));
    let both = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "max_completion_tokens": 9});
    assert_eq!(super::request(Api::Chat, &both).max_tokens, Some(9));
    assert_eq!(super::request(Api::Chat, &super::body(Api::Chat)).max_tokens, None);
}

#[test]
fn forms_of_answers_in_all_spellings() {
    let schema = json!({"type": "object"});
    let format = |api, name: &str, value: Value| request(api, &with(api, name, value)).format;
    let expected = ResponseFormat::JsonSchema(schema.clone());
    let nested = json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}});
    assert_eq!(format(Api::Chat, "response_format", nested), expected);
    let flat = json!({"type": "json_schema", "name": "x", "schema": schema});
    assert_eq!(format(Api::Responses, "text", json!({"format": flat})), expected);
    assert_eq!(format(Api::Messages, "output_format", flat.clone()), expected);
    assert_eq!(format(Api::Messages, "output_config", json!({"format": flat})), expected);
    assert_eq!(format(Api::Chat, "json_schema", schema.clone()), expected);
    assert_eq!(format(Api::Chat, "structured_outputs", json!({"json": schema})), expected);
    assert_eq!(format(Api::Chat, "response_format", json!({"type": "json_object"})), ResponseFormat::JsonObject);
    let regex = ResponseFormat::Grammar { syntax: GrammarSyntax::Regex, text: "a+".into() };
    assert_eq!(format(Api::Chat, "structured_outputs", json!({"regex": "a+"})), regex);
    let choice = ResponseFormat::Grammar { syntax: GrammarSyntax::Lark, text: "start: \"a\" | \"b\\\"\"\n".into() };
    assert_eq!(format(Api::Completions, "structured_outputs", json!({"choice": ["a", "b\""]})), choice);
    let mut two = with(Api::Chat, "json_schema", schema);
    two["response_format"] = json!({"type": "json_object"});
    assert_eq!(refusal(Api::Chat, &two).param.as_deref(), Some("json_schema"));
}

#[test]
fn what_must_be_called_is_read_from_every_api() {
    let choice = |api, value: Value| conversation(api, &with(api, "tool_choice", value)).tool_choice;
    let named = ToolChoice::Named("edit".into());
    assert_eq!(choice(Api::Chat, json!("required")), ToolChoice::Required);
    assert_eq!(choice(Api::Chat, json!({"type": "function", "function": {"name": "edit"}})), named);
    assert_eq!(choice(Api::Responses, json!({"type": "function", "name": "edit"})), named);
    assert_eq!(choice(Api::Responses, json!("none")), ToolChoice::None);
    assert_eq!(choice(Api::Messages, json!({"type": "tool", "name": "edit"})), named);
    let hosted = json!({"type": "web_search"});
    let nested = json!({"mode": "auto", "tools": [{"type": "function", "function": {"name": "edit"}}, hosted]});
    let some = |required| ToolChoice::Allowed { names: vec!["edit".into()], required };
    assert_eq!(choice(Api::Chat, json!({"type": "allowed_tools", "allowed_tools": nested})), some(false));
    let flat = |mode: &str, tools: Value| json!({"type": "allowed_tools", "mode": mode, "tools": tools});
    assert_eq!(choice(Api::Responses, flat("required", json!([{"type": "function", "name": "edit"}]))), some(true));
    assert_eq!(choice(Api::Responses, flat("auto", json!([hosted]))), ToolChoice::None);
    assert_eq!(choice(Api::Messages, json!({"type": "any"})), ToolChoice::Required);
    let single = with(Api::Messages, "tool_choice", json!({"type": "auto", "disable_parallel_tool_use": true}));
    assert!(!conversation(Api::Messages, &single).parallel_tool_calls);
}

#[test]
fn prompts_are_text_or_tokens() {
    let prompt = |value: Value| match request(Api::Completions, &json!({"prompt": value})).input {
        Input::Text { prompt, .. } => prompt,
        Input::Chat(_) => panic!("a conversation"),
    };
    assert_eq!(prompt(json!("a")), Prompt::Text("a".into()));
    assert_eq!(prompt(json!(["a"])), Prompt::Text("a".into()));
    assert_eq!(prompt(json!([1, 2])), Prompt::Tokens(vec![1, 2]));
    assert_eq!(prompt(json!([[1, 2]])), Prompt::Tokens(vec![1, 2]));
}

/// Any small JSON.
fn anything() -> impl Strategy<Value = Value> {
    let words =
        ["", "text", "user", "assistant", "tool", "function", "type", "tool_result", "message", "auto", "{}", "x"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..3000).prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        prop::sample::select(words.to_vec()).prop_map(Value::from),
    ];
    let keys = [
        "type",
        "role",
        "content",
        "text",
        "name",
        "arguments",
        "function",
        "id",
        "input",
        "output",
        "tool_calls",
        "schema",
    ];
    leaf.prop_recursive(3, 16, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(keys.to_vec()), inner), 0..4)
                .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Value>()),
        ]
    })
}

/// All places of a value, outside in.
pub(super) fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| places(v, &format!("{at}/{i}"), out)),
        Value::Object(map) => {
            map.iter().for_each(|(k, v)| places(v, &format!("{at}/{}", k.replace('~', "~0").replace('/', "~1")), out))
        }
        _ => {}
    }
}

/// A body with everything in it, to be broken.
fn rich(api: Api) -> Value {
    let mut body = body(api);
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    match api {
        Api::Chat => {
            body["messages"] = json!([
                {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "t"}]},
                {"role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": "r"},
                {"role": "tool", "tool_call_id": "c", "content": "x"},
            ]);
            body["tool_choice"] = json!({"type": "function", "function": {"name": "edit"}});
            body["stream_options"] = json!({"include_usage": true});
            body["reasoning"] = json!({"effort": "low", "max_tokens": 5});
        }
        Api::Completions => body["logit_bias"] = json!({"1": 2}),
        Api::Responses => {
            body["input"] = json!([
                {"role": "user", "content": [{"type": "input_text", "text": "t"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "t"}]},
            ]);
            body["text"] = json!({"format": {"type": "json_schema", "name": "n", "schema": {}}});
        }
        Api::Messages => {
            body["messages"] = json!([
                {"role": "user", "content": [{"type": "text", "text": "t"}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "t"}]}]},
            ]);
            body["system"] = json!([{"type": "text", "text": "s"}]);
            body["thinking"] = json!({"type": "enabled", "budget_tokens": 1024});
        }
    }
    body["structured_outputs"] = json!({"choice": ["a"]});
    body
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn broken_bodies_are_parsed_or_refused(which in 0usize..4, edits in prop::collection::vec((any::<prop::sample::Index>(), anything()), 1..4)) {
        let api = APIS[which];
        let mut body = rich(api);
        for (at, value) in edits {
            let mut all = Vec::new();
            places(&body, "", &mut all);
            *body.pointer_mut(&all[at.index(all.len())]).unwrap() = value;
        }
        match parse(api, body.to_string().as_bytes()) {
            Ok(request) => {
                // Templates get messages of known roles, with text.
                if let Input::Chat(chat) = request.input {
                    for message in chat.messages {
                        prop_assert!(message["content"].is_string(), "{message}");
                        prop_assert!(["system", "user", "assistant", "tool"].contains(&message["role"].as_str().unwrap()));
                    }
                }
            }
            Err(error) => {
                prop_assert_eq!(error.status, 400);
                prop_assert!(!error.message.is_empty());
            }
        }
    }
}
