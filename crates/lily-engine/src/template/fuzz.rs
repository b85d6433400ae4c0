//! Conversations that nobody would send, and those that anybody may: whatever comes, a template renders or refuses.
//!
//! `corpus/template` holds conversations that might be trouble. Every run replays them and tries some mutations of them and
//! of the golden ones; `LILY_FUZZ_CASES=1000000 cargo test --release -p lily-engine --lib template::fuzz` tries more. A mutation
//! that breaks a law is written into the corpus, made as small as can be, to be fixed and kept.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use serde_json::{Map, Value, json};

use super::tests::{golden, rows};
use super::*;

fn config() -> ProptestConfig {
    let cases = std::env::var("LILY_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/template")
}

/// The conversations of the corpus by their names.
fn corpus() -> Vec<(String, Value)> {
    let name = |entry: &std::fs::DirEntry| entry.path().file_stem().unwrap().to_str().unwrap().to_owned();
    let read = |entry: &std::fs::DirEntry| serde_json::from_slice(&std::fs::read(entry.path()).unwrap()).unwrap();
    let entries = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap());
    let mut corpus: Vec<(String, Value)> = entries.map(|entry| (name(&entry), read(&entry))).collect();
    corpus.sort_by(|a, b| a.0.cmp(&b.0));
    corpus
}

/// A conversation of the corpus, rendered by every template.
fn rendered(chat: &Value) -> [Result<String, TemplateError>; 2] {
    let mut input = ChatInput::new(chat["messages"].clone());
    input.tools = chat.get("tools").cloned();
    input.kwargs.extend(chat["kwargs"].as_object().cloned().unwrap_or_default());
    templates().map(|template| template.render(&input))
}

/// The templates of the family that the repository holds: the one of the golden files and lily-nano's.
fn templates() -> [ChatTemplate; 2] {
    let nano = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lily-nano/chat_template.jinja");
    [golden("qwen_style.jinja"), std::fs::read_to_string(nano).unwrap()]
        .map(|source| ChatTemplate::new(&source).unwrap())
}

/// Text with markup of the family and of templates in it.
fn texts() -> impl Strategy<Value = String> {
    let parts = [
        "<think>",
        "</think>",
        "<tool_response>",
        "</tool_response>",
        "<|im_end|>",
        "<|im_start|>",
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "\n",
        " ",
        "a",
        "é",
        "🎉",
        "\u{0}",
        "\u{85}",
        "\\",
        "\"",
        "'",
    ];
    prop::collection::vec(prop::sample::select(parts.to_vec()), 0..8).prop_map(|parts| parts.concat())
}

/// Any small JSON.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        texts().prop_map(Value::from),
    ];
    let keys = [
        "role",
        "content",
        "type",
        "text",
        "name",
        "function",
        "arguments",
        "tool_calls",
        "image",
        "reasoning_content",
        "items",
    ];
    leaf.prop_recursive(3, 16, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(keys.to_vec()), inner), 0..4)
                .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Value>()),
        ]
    })
}

/// A message as the API's parsers make it.
fn message() -> impl Strategy<Value = Value> {
    let call = ("[a-z_.-]{1,8}", prop::collection::vec((texts(), anything()), 0..4)).prop_map(|(name, arguments)| {
        let arguments: Map<String, Value> = arguments.into_iter().collect();
        json!({"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}})
    });
    let assistant = (texts(), prop::option::of(texts()), prop::collection::vec(call, 0..3));
    prop_oneof![
        texts().prop_map(|text| json!({"role": "system", "content": text})),
        texts().prop_map(|text| json!({"role": "user", "content": text})),
        texts().prop_map(|text| json!({"role": "tool", "tool_call_id": "c", "content": text})),
        assistant.prop_map(|(text, reasoning, calls)| {
            let mut message = json!({"role": "assistant", "content": text});
            if let Some(reasoning) = reasoning {
                message["reasoning_content"] = json!(reasoning);
            }
            if !calls.is_empty() {
                message["tool_calls"] = json!(calls);
            }
            message
        }),
    ]
}

/// All places of a value.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| places(v, &format!("{at}/{i}"), out)),
        Value::Object(map) => {
            map.iter().for_each(|(k, v)| places(v, &format!("{at}/{}", k.replace('~', "~0").replace('/', "~1")), out));
        }
        _ => {}
    }
}

#[test]
fn corpus_of_conversations() {
    let corpus = corpus();
    assert!(corpus.len() > 10);
    for (name, chat) in &corpus {
        for result in rendered(chat) {
            match result {
                Ok(text) => assert!(text.contains("<|im_start|>assistant\n<think>\n"), "{name}"),
                Err(TemplateError::Refused { message }) => assert!(!message.is_empty(), "{name}"),
                // What a mutation found need not be what the API accepts.
                Err(error) => {
                    assert!(name.ends_with("_found") && !error.to_string().contains("broke down"), "{name}: {error}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_the_api_accepts_is_rendered_or_refused_in_words(
        messages in prop::collection::vec(message(), 1..7),
        tools in prop::option::of(prop::collection::vec(anything(), 0..3)),
        thinking: Option<bool>,
    ) {
        for template in templates() {
            let mut input = ChatInput::new(Value::from(messages.clone()));
            input.tools = tools.clone().map(Value::from);
            input.kwargs.extend(thinking.map(|thinking| ("enable_thinking".to_owned(), json!(thinking))));
            match template.render(&input) {
                Ok(text) => prop_assert!(text.contains("<|im_start|>assistant\n<think>\n")),
                // Such as a chat in which nobody asks anything.
                Err(TemplateError::Refused { message }) => prop_assert!(!message.is_empty()),
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }
}

#[test]
fn broken_conversations_are_errors_with_a_reason() {
    let golden = |row: Value| ("golden".to_owned(), json!({"messages": row["messages"], "tools": row["tools"]}));
    let chats: Vec<(String, Value)> =
        corpus().into_iter().chain(rows("conversations.jsonl").into_iter().map(golden)).collect();
    let edits = prop::collection::vec((any::<prop::sample::Index>(), anything()), 1..4);
    let broken = |(chat, edits): (prop::sample::Index, Vec<(prop::sample::Index, Value)>)| {
        let (name, mut chat) = chat.get(&chats).clone();
        for (at, value) in edits {
            let mut all = Vec::new();
            places(&chat, "", &mut all);
            // The outermost is not the client's.
            *chat.pointer_mut(&all[1 + at.index(all.len() - 1)]).unwrap() = value;
        }
        (name, chat)
    };
    let result = TestRunner::new(config()).run(&(any::<prop::sample::Index>(), edits), |edited| {
        let (name, chat) = broken(edited);
        for error in rendered(&chat).into_iter().filter_map(Result::err) {
            prop_assert!(!error.to_string().contains("broke down"), "{name}: {error}");
        }
        Ok(())
    });
    if let Err(TestError::Fail(reason, edited)) = result {
        let (name, chat) = broken(edited);
        let found = directory().join(format!("{name}_found.json"));
        std::fs::write(&found, chat.to_string()).unwrap();
        panic!("{reason}\nthe conversation is in {}", found.display());
    }
    result.unwrap();
}
