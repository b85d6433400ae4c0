//! `docs/agent.md`: ten turns of an agent, and how many tokens of each prompt were read.
//!
//! The model writes what a script says, so that the page is the same on every machine; what is counted is the server's work.

mod common;
#[path = "../examples/scripted/device.rs"]
mod device;
#[path = "../examples/scripted/script.rs"]
mod script;

use common::{Running, Setup};
use device::scripted;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::prompt::Prompter;
use lily_engine::scheduler::SchedulerOptions;
use lily_server::ServedModel;
use script::Script;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// Tokens that may be read again: those between the last boundary of a prompt and its end.
const TAIL: u64 = 12;
/// What the client sends first, and once the model has answered.
const QUESTIONS: [&str; 2] = [
    "numbers(\"1, 2\") fails although tests/parse.rs says that it should not. Find out why, and correct it.",
    "Thank you. Add a test for an empty text.",
];
/// What the client's tools answer, in their order.
const RESULTS: [&str; 8] = [
    "Cargo.toml\nsrc/lib.rs\nsrc/parse.rs\ntests/parse.rs",
    "//! Lists of numbers.\n\n/// The numbers of a text, which has commas between them.\npub fn numbers(text: &str) -> Result<Vec<i64>, \
     std::num::ParseIntError> {\n    text.split(',')\n        .map(|piece| piece.parse())\n        .collect()\n}",
    "use example::parse::numbers;\n\n#[test]\nfn white_space_is_fine() {\n    assert_eq!(numbers(\"1, 2\").unwrap(), [1, 2]);\n}\n\n\
     #[test]\nfn words_are_no_numbers() {\n    assert!(numbers(\"one\").is_err());\n}",
    "running 2 tests\ntest words_are_no_numbers ... ok\ntest white_space_is_fine ... FAILED\n\nthread 'white_space_is_fine' panicked \
     at tests/parse.rs:5:32:\ncalled `Result::unwrap()` on an `Err` value: ParseIntError { kind: InvalidDigit }",
    "src/parse.rs: 1 line changed",
    "running 2 tests\ntest words_are_no_numbers ... ok\ntest white_space_is_fine ... ok",
    "tests/parse.rs: 5 lines added",
    "running 3 tests\ntest an_empty_text_is_no_number ... ok\ntest words_are_no_numbers ... ok\ntest white_space_is_fine ... ok",
];

/// What a turn cost.
struct Turn {
    prompt: u64,
    cached: u64,
    generated: u64,
    /// What the client added to the conversation.
    added: &'static str,
    answer: Value,
}

fn server() -> Running {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checkpoint = Checkpoint::open(&root.join("../../models/lily-nano")).unwrap();
    let text = std::fs::read_to_string(root.join("tests/transcript.txt")).unwrap();
    let device = scripted(Script::parse(&text).unwrap(), Prompter::new(&checkpoint).unwrap());
    let engine = Engine::on(device, checkpoint, &EngineOptions::for_this_machine()).unwrap();
    let running = Setup { loaded: false, ..Setup::default() }.start();
    running.server.serve_model(ServedModel::start(engine, &SchedulerOptions { queue_jobs: 4 }).unwrap());
    running
}

fn tools() -> Value {
    let tool = |name: &str, description: &str, parameters: &[&str]| {
        let properties: serde_json::Map<String, Value> =
            parameters.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
        json!({"type": "function", "function": {"name": name, "description": description,
            "parameters": {"type": "object", "properties": properties, "required": parameters}}})
    };
    json!([
        tool("list_files", "Files of a folder", &["path"]),
        tool("read_file", "Text of a file", &["path"]),
        tool("edit_file", "Replaces a text that a file has once", &["path", "old", "new"]),
        tool("run", "Runs a command", &["command"]),
    ])
}

/// What the client makes of an answer before it sends it back: no reasoning, arguments in other words.
fn reworded(mut message: Value) -> Value {
    message.as_object_mut().unwrap().remove("reasoning_content");
    for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        call["function"]["arguments"] = serde_json::to_string_pretty(&arguments).unwrap().into();
    }
    message
}

fn play(preserve_thinking: bool) -> Vec<Turn> {
    let server = server();
    let kwargs = json!({"enable_thinking": true, "preserve_thinking": preserve_thinking});
    let mut messages = vec![json!({"role": "system", "content": "You are an agent that works on a Rust project."})];
    let (mut questions, mut results) = (QUESTIONS.into_iter(), RESULTS.into_iter());
    let mut turns = Vec::new();
    loop {
        let call = messages.last().unwrap()["tool_calls"][0]["id"].clone();
        let next = if call.is_null() { questions.next() } else { results.next() };
        let Some(added) = next else { return turns };
        messages.push(match call {
            Value::Null => json!({"role": "user", "content": added}),
            id => json!({"role": "tool", "tool_call_id": id, "content": added}),
        });
        let body = json!({"messages": messages, "tools": tools(), "chat_template_kwargs": kwargs});
        let answer = server.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        let count = |place: &str| answer.pointer(place).and_then(Value::as_u64).unwrap();
        let message = &answer["choices"][0]["message"];
        turns.push(Turn {
            prompt: count("/usage/prompt_tokens"),
            cached: count("/usage/prompt_tokens_details/cached_tokens"),
            generated: count("/usage/completion_tokens"),
            added,
            answer: message.clone(),
        });
        messages.push(reworded(message.clone()));
    }
}

/// Tokens of each prompt that neither the prompt before had nor the answer to it; none where the prompt became shorter.
fn new_tokens(turns: &[Turn]) -> Vec<Option<u64>> {
    let known = turns.iter().map(|turn| turn.prompt + turn.generated);
    let before = std::iter::once(0).chain(known);
    turns.iter().zip(before).map(|(turn, before)| turn.prompt.checked_sub(before)).collect()
}

const HEAD: &str = "# An agent's conversation\n
Ten turns of an agent against the server, and what each of them cost. The model's words come from a script
(`crates/lily-server/tests/transcript.txt`), so that this page, which a test makes, is the same everywhere; prompts, cache and counts are
the server's. The client sends the whole conversation every time, in its own words: without the reasoning, and with the
arguments of calls spelled otherwise than the model spelled them. Real agents are tried by `cargo xtask agents`, which prints
such figures too.\n
*Prompt* is the conversation in tokens, *cached* what of it was not read again, *read* the rest; *new* is what neither the prompt before
had nor the answer to it; *written* is the answer.\n\n";

/// Before the second table.
const DROPPED: &str = "
Templates of the family leave the thinking about earlier questions out, unless they are told to keep it. Then a new question
(turn 8) changes what follows the question before: it is read again, once, and is shorter than it was.\n\n";

fn table(turns: &[Turn], heading: &str) -> String {
    let columns = "| Turn | Prompt | Cached | Read | New | Written |\n|---|---|---|---|---|---|";
    let mut table = format!("## {heading}\n\n{columns}\n");
    for ((number, turn), new) in (1..).zip(turns).zip(new_tokens(turns)) {
        let Turn { prompt, cached, generated, .. } = turn;
        let new = new.map_or("-".to_owned(), |new| new.to_string());
        writeln!(table, "| {number} | {prompt} | {cached} | {} | {new} | {generated} |", prompt - cached).unwrap();
    }
    table
}

fn page(kept: &[Turn], dropped: &[Turn]) -> String {
    let mut page = HEAD.to_owned();
    page += &table(kept, "Thinking is kept (`preserve_thinking: true`)");
    page += DROPPED;
    page += &table(dropped, "Thinking about earlier questions is left out");
    page += "\n## What was said\n";
    for (number, turn) in (1..).zip(kept) {
        let answer = &turn.answer;
        let mut said = format!("(thinks: {})\n", answer["reasoning_content"].as_str().unwrap_or_default().trim());
        if let Some(text) = answer["content"].as_str().filter(|text| !text.is_empty()) {
            writeln!(said, "{}", text.trim()).unwrap();
        }
        for call in answer["tool_calls"].as_array().into_iter().flatten() {
            let (name, arguments) = (&call["function"]["name"], &call["function"]["arguments"]);
            writeln!(said, "{} {}", name.as_str().unwrap(), arguments.as_str().unwrap()).unwrap();
        }
        let added = turn.added;
        write!(page, "\nTurn {number}. The client adds:\n\n```text\n{added}\n```\n\n").unwrap();
        write!(page, "The model:\n\n```text\n{said}```\n").unwrap();
    }
    page
}

#[test]
fn the_page_shows_ten_turns_that_read_what_is_new() {
    let (kept, dropped) = (play(true), play(false));
    assert_eq!((kept.len(), dropped.len()), (10, 10));
    for turns in [&kept, &dropped] {
        for (number, (turn, new)) in (1..).zip(turns.iter().zip(new_tokens(turns))) {
            let read = turn.prompt - turn.cached;
            // Where thinking was left out, all up to the first answer is there still.
            let most = new.unwrap_or(turn.prompt - turns[0].prompt) + TAIL;
            assert!(read <= most, "turn {number}: {read} tokens read, {most} expected at most");
        }
    }
    assert!(new_tokens(&kept).iter().all(Option::is_some), "prompts only grow where thinking is kept");
    let page = page(&kept, &dropped);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/agent.md");
    if std::env::var_os("LILY_WRITE_GENERATED").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, page, "docs/agent.md is old: run `cargo xtask codegen`");
}
