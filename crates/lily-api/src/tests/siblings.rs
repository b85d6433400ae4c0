//! Fields that sibling APIs and other servers have: refused by name where they change something, never dropped.

use super::requests::{refusal, with};
use super::{APIS, body, request};
use crate::Api;
use serde_json::{Value, json};

/// What other servers honour, and where there is one, the value that asks for nothing.
#[test]
fn what_other_servers_take_is_refused_by_name() {
    let everywhere = [
        ("guided_json", json!({"type": "object"}), Value::Null),
        ("guided_regex", json!("a+"), Value::Null),
        ("guided_choice", json!(["a", "b"]), Value::Null),
        ("guided_grammar", json!("start: \"a\""), Value::Null),
        ("allowed_token_ids", json!([5]), Value::Null),
        ("include_stop_str_in_output", json!(true), json!(false)),
        ("length_penalty", json!(1.2), json!(1.0)),
        ("n_predict", json!(5), json!(-1)),
    ];
    let chats =
        [("chat_template", json!("{{ messages }}"), Value::Null), ("documents", json!([{"text": "x"}]), json!([]))];
    for api in APIS {
        let chats = if api == Api::Completions { &[][..] } else { &chats };
        for (name, value, nothing) in everywhere.iter().chain(chats) {
            let error = refusal(api, &with(api, name, value.clone()));
            assert_eq!((error.status, error.param.as_deref()), (400, Some(*name)), "{api:?}: {error}");
            assert!(!error.message.contains("send ."), "{error}");
            assert_eq!(request(api, &with(api, name, nothing.clone())), request(api, &body(api)), "{api:?}: {name}");
        }
    }
}

/// Fields that a sibling API has, by another name here or with no meaning here; what to send instead is said.
#[test]
fn fields_of_sibling_apis_are_not_dropped() {
    const TALK: &str = "/v1/chat/completions";
    let rows = [
        (Api::Chat, "previous_response_id", json!("resp_1"), "as messages", Value::Null),
        (Api::Chat, "max_output_tokens", json!(5), "max_completion_tokens", Value::Null),
        (Api::Chat, "stop_sequences", json!(["x"]), "stop", json!([])),
        (Api::Chat, "system", json!("Be brief."), "messages", json!("")),
        (Api::Chat, "instructions", json!("Be brief."), "messages", json!("")),
        (Api::Completions, "max_output_tokens", json!(5), "max_tokens", Value::Null),
        (Api::Completions, "stop_sequences", json!(["x"]), "stop", json!([])),
        (Api::Completions, "tools", json!([{"type": "function", "function": {"name": "f"}}]), TALK, json!([])),
        (Api::Completions, "functions", json!([{"name": "f"}]), TALK, json!([])),
        (Api::Completions, "enable_thinking", json!(true), TALK, json!(false)),
        (Api::Completions, "reasoning_effort", json!("high"), TALK, json!("none")),
        (Api::Completions, "reasoning", json!({"effort": "high"}), TALK, json!({})),
        (Api::Completions, "thinking", json!({"type": "enabled"}), TALK, json!({"type": "disabled"})),
        (Api::Completions, "thinking_budget", json!(100), TALK, json!(0)),
        (Api::Completions, "thinking_token_budget", json!(100), TALK, json!(-1)),
        (Api::Completions, "chat_template_kwargs", json!({"enable_thinking": true}), TALK, json!({})),
        (Api::Responses, "max_tokens", json!(5), "max_output_tokens", Value::Null),
        (Api::Responses, "max_completion_tokens", json!(5), "max_output_tokens", Value::Null),
        (Api::Responses, "stop_sequences", json!(["x"]), "stop", json!([])),
        (Api::Responses, "system", json!("Be brief."), "instructions", json!("")),
        (Api::Responses, "functions", json!([{"name": "f"}]), "tools", json!([])),
        (Api::Messages, "max_completion_tokens", json!(5), "max_tokens", Value::Null),
        (Api::Messages, "max_output_tokens", json!(5), "max_tokens", Value::Null),
        (Api::Messages, "stop", json!("x"), "stop_sequences", json!([])),
        (Api::Messages, "parallel_tool_calls", json!(false), "disable_parallel_tool_use", json!(true)),
        (Api::Messages, "n", json!(2), "one answer", json!(1)),
        (Api::Messages, "instructions", json!("Be brief."), "system", json!("")),
        (Api::Messages, "functions", json!([{"name": "f"}]), "tools", json!([])),
        (Api::Messages, "previous_response_id", json!("resp_1"), "as messages", Value::Null),
    ];
    for (api, name, value, instead, nothing) in rows {
        let error = refusal(api, &with(api, name, value));
        assert_eq!((error.status, error.param.as_deref()), (400, Some(name)), "{api:?}: {error}");
        assert!(error.message.contains(instead), "{api:?}: {error}");
        assert_eq!(request(api, &with(api, name, nothing)), request(api, &body(api)), "{api:?}: {name}");
    }
    for api in APIS {
        for (name, value, nothing) in
            [("top_n_sigma", json!(1.5), json!(-1.0)), ("truncate_prompt_tokens", json!(100), Value::Null)]
        {
            assert_eq!(refusal(api, &with(api, name, value)).param.as_deref(), Some(name), "{api:?}");
            assert_eq!(request(api, &with(api, name, nothing)), request(api, &body(api)), "{api:?}: {name}");
        }
    }
}

/// How much of the text penalties count is nobody's question where there are none.
#[test]
fn a_window_of_penalties_is_refused_beside_a_penalty_only() {
    for api in APIS {
        let both = |name, value: Value, penalty: &str, strength: f64| {
            let mut body = with(api, name, value);
            body[penalty] = json!(strength);
            body
        };
        for (name, value, penalties) in [
            (
                "repeat_last_n",
                json!(64),
                &["repeat_penalty", "repetition_penalty", "presence_penalty", "frequency_penalty"][..],
            ),
            ("repetition_context_size", json!(20), &["repeat_penalty", "repetition_penalty"]),
        ] {
            assert_eq!(request(api, &with(api, name, value.clone())), request(api, &body(api)), "{api:?}: {name}");
            for penalty in penalties {
                let error = refusal(api, &both(name, value.clone(), penalty, 0.5));
                assert_eq!(error.param.as_deref(), Some(name), "{api:?} {penalty}: {error}");
                let off = if penalty.starts_with("repe") { 1.0 } else { 0.0 };
                request(api, &both(name, value.clone(), penalty, off));
            }
        }
        let whole = request(api, &both("repeat_last_n", json!(-1), "repeat_penalty", 1.1));
        assert_eq!(whole, request(api, &with(api, "repeat_penalty", json!(1.1))));
    }
}

/// What is read is checked, under every name that it is read by.
#[test]
fn thinking_and_form_are_checked_in_every_api_that_reads_them() {
    for api in [Api::Chat, Api::Responses, Api::Messages] {
        for (name, value) in [
            ("reasoning_effort", json!(5)),
            ("reasoning", json!("high")),
            ("thinking", json!(true)),
            ("enable_thinking", json!("yes")),
            ("thinking_budget", json!("much")),
            ("thinking_token_budget", json!(-2)),
            ("chat_template_kwargs", json!([])),
            ("response_format", json!("json")),
        ] {
            assert_eq!(refusal(api, &with(api, name, value)).param.as_deref(), Some(name), "{api:?}");
        }
    }
}
