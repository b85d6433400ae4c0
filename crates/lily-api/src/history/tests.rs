//! Conversations that come back in other words.

use super::*;
use crate::chat::ChatEncoder;
use crate::encode::{Context, Encoder, ReasoningField};
use crate::finish::{Finish, FinishReason, Usage};
use crate::output::tests::conversation;
use crate::output::{OutputOptions, OutputParser, Start};
use crate::request::{Input, Request};
use crate::{Api, parse};
use proptest::prelude::*;
use serde_json::json;

/// A template of the family: reasoning is shown after the last question only.
fn render(messages: &[Value]) -> String {
    let question = messages.iter().rposition(|m| m["role"] == "user").unwrap_or(0);
    let mut out = String::new();
    for (index, message) in messages.iter().enumerate() {
        let content = message["content"].as_str().unwrap().trim();
        out += &match message["role"].as_str().unwrap() {
            "assistant" => {
                let thought = message.get("reasoning_content").and_then(Value::as_str).unwrap_or_default().trim();
                let thought =
                    if index > question { format!("<think>\n{thought}\n</think>\n\n") } else { String::new() };
                let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
                let calls: String = calls.map(|call| format!("\n\n<tool_call>{call}</tool_call>")).collect();
                format!("<|im_start|>assistant\n{thought}{content}{calls}<|im_end|>\n")
            }
            role => format!("<|im_start|>{role}\n{content}<|im_end|>\n"),
        };
    }
    out
}

const TAIL: &str = "<|im_start|>assistant\n<think>\n";

/// A conversation of which both sides are played.
struct Play {
    history: History,
    messages: Vec<Value>,
    answers: usize,
}

impl Play {
    fn new(limit_bytes: usize) -> Self {
        Self { history: History::new(limit_bytes), messages: Vec::new(), answers: 0 }
    }

    fn request(&self) -> Request {
        let tools: Vec<Value> = conversation()
            .tools
            .iter()
            .map(|t| json!({"type": "function", "function": {"name": t.name, "parameters": t.parameters}}))
            .collect();
        let body = json!({"messages": self.messages, "tools": tools, "continue_final_message": false});
        parse(Api::Chat, body.to_string().as_bytes()).unwrap()
    }

    fn conversation(&self) -> Vec<Value> {
        let Input::Chat(chat) = self.request().input else { unreachable!() };
        chat.messages
    }

    fn replay(&mut self) -> Replay {
        let Input::Chat(chat) = self.request().input else { unreachable!() };
        self.history.replay(&chat.messages, &chat.tools)
    }

    /// The prompt as the server makes it, and the messages that it knew.
    fn prompt(&mut self) -> (String, usize) {
        let replay = self.replay();
        let rendered = render(replay.messages());
        let segments = replay.segments(&rendered).unwrap();
        let text = segments.iter().map(|segment| match segment {
            Segment::Text(text) | Segment::Written { text, .. } => *text,
        });
        (text.collect(), replay.marked())
    }

    /// Lets the model write; returns the client's copy of the message.
    fn answer(&mut self, raw: &str) -> Value {
        let request = self.request();
        let prefix = format!("call{}_", self.answers);
        self.answers += 1;
        let mut parser = OutputParser::new(OutputOptions::new(&request, Start::Reasoning, prefix)).unwrap();
        let (mut pieces, mut written) = (Vec::new(), Written::default());
        for (token, text) in raw.as_bytes().chunks(3).enumerate() {
            parser.push(text, None, &mut pieces);
            written.push(token as u32, text);
        }
        parser.finish(&mut pieces);
        let messages = self.conversation();
        self.history.remember(&messages, &pieces, written, true, parser.answer_start());
        let context = Context {
            id: "1".into(),
            created: 0,
            model: "m".into(),
            fingerprint: "f".into(),
            reasoning_field: ReasoningField::default(),
        };
        let finish = Finish { reason: FinishReason::Stop, usage: Usage::default(), timings: None };
        let whole = ChatEncoder::new(&request, context).whole(&pieces, &finish);
        whole["choices"][0]["message"].clone()
    }
}

/// The message as another client would send it back: keys turned around, white space changed, reasoning forgotten.
fn reworded(mut message: Value, forget: bool) -> Value {
    if forget {
        message.as_object_mut().unwrap().remove("reasoning_content");
    }
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        let turned: serde_json::Map<String, Value> =
            arguments.as_object().unwrap().iter().rev().map(|(k, v)| (k.clone(), v.clone())).collect();
        call["function"]["arguments"] = json!(serde_json::to_string_pretty(&turned).unwrap());
    }
    message
}

const RAW: &str = "I look.\n\n</think>\n\n\nOk. \n<tool_call>\n<function=edit>\n<parameter=path>a.rs</parameter>\n<parameter=options>\n{\"b\":  1.0, \"a\":2}\n</parameter>\n</function></tool_call>";

#[test]
fn a_turn_of_calls_comes_back_as_it_was_written() {
    for forget in [false, true] {
        let mut play = Play::new(1 << 20);
        play.messages.push(json!({"role": "user", "content": "Go."}));
        let (prompt, known) = play.prompt();
        assert_eq!(known, 0);
        let message = play.answer(RAW);
        play.messages.push(reworded(message, forget));
        play.messages.push(json!({"role": "tool", "tool_call_id": "call0_0", "content": "done"}));
        let (next, known) = play.prompt();
        assert_eq!(known, 1);
        assert!(next.starts_with(&format!("{prompt}{TAIL}{RAW}<|im_end|>\n")), "{next}");
        // A new question: the template drops the reasoning, the rest stays exact.
        play.messages.push(json!({"role": "user", "content": "More."}));
        let (later, _) = play.prompt();
        let answer = &RAW[RAW.find("Ok.").unwrap()..];
        assert!(later.starts_with(&format!("{prompt}<|im_start|>assistant\n{answer}<|im_end|>\n")), "{later}");
    }
}

#[test]
fn defaults_that_a_client_fills_in_say_nothing_else() {
    let tool = |default: Value| {
        let parameters = json!({"type": "object", "properties": {"path": {}, "all": {"default": default}}});
        let tools = json!([{"type": "function", "function": {"name": "edit", "parameters": parameters}}]);
        let body = json!({"messages": [{"role": "user", "content": "Go."}], "tools": tools});
        let request = parse(Api::Chat, body.to_string().as_bytes()).unwrap();
        let Input::Chat(chat) = request.input else { unreachable!() };
        chat.tools
    };
    let said = |arguments: Value| {
        let call = json!({"id": "a", "type": "function", "function": {"name": "edit", "arguments": arguments}});
        Said::of_message(&json!({"role": "assistant", "content": "", "tool_calls": [call]}))
    };
    let (short, long) = (json!({"path": "a.rs"}), json!({"all": false, "path": "a.rs"}));
    let same =
        |copy: &Value, written: &Value, default| said(copy.clone()).same_as(&said(written.clone()), &tool(default));
    assert!(same(&long, &short, json!(false)));
    // Another value than the default, a default that was written and left out, and no default at all.
    assert!(!same(&long, &short, json!(true)));
    assert!(!same(&short, &long, json!(false)));
    assert!(!same(&long, &short, Value::Null));
}

#[test]
fn a_turn_of_text_is_found_by_what_it_answers() {
    let mut play = Play::new(1 << 20);
    for (question, raw) in [("a", "one\n</think>\n\nYes. \n"), ("b", "two\n</think>\n\n\nYes.")] {
        play.messages.push(json!({"role": "user", "content": question}));
        let (prompt, _) = play.prompt();
        let message = play.answer(raw);
        play.messages.push(reworded(message, true));
        let (next, _) = play.prompt();
        assert_eq!(next, format!("{prompt}{TAIL}{raw}<|im_end|>\n"));
    }
}

#[test]
fn a_message_that_says_something_else_is_the_clients() {
    let mut play = Play::new(1 << 20);
    play.messages.push(json!({"role": "user", "content": "Go."}));
    let message = play.answer(RAW);
    let mut edits = vec![message.clone(); 5];
    edits[0]["content"] = json!("Ok, edited.");
    edits[1]["tool_calls"][0]["function"]["arguments"] =
        json!("{\"path\": \"b.rs\", \"options\": {\"a\": 2, \"b\": 1}}");
    edits[2]["tool_calls"][0]["function"]["name"] = json!("now");
    edits[3]["reasoning_content"] = json!("I never thought that.");
    let second = edits[4]["tool_calls"][0].clone();
    edits[4]["tool_calls"].as_array_mut().unwrap().push(second);
    play.messages.push(Value::Null);
    for edit in edits {
        play.messages[1] = edit;
        assert_eq!(play.prompt().1, 0);
    }
    // The ids are the client's to change.
    play.messages[1] = message;
    play.messages[1]["tool_calls"][0]["id"] = json!("other");
    assert_eq!(play.prompt().1, 1);
}

#[test]
fn tokens_are_given_where_a_part_begins_with_one() {
    let mut history = History::new(1 << 20);
    let mut parser = crate::output::tests::parser(Start::Reasoning, &[], true);
    let (mut pieces, mut written) = (Vec::new(), Written::default());
    for (token, text) in ["hm", "\n</think>", "\n\n", "", "Yes", "."].iter().enumerate() {
        parser.push(text.as_bytes(), None, &mut pieces);
        written.push(token as u32, text.as_bytes());
    }
    parser.finish(&mut pieces);
    let question = json!({"role": "user", "content": "q"});
    history.remember(std::slice::from_ref(&question), &pieces, written, true, parser.answer_start());
    let answer = json!({"role": "assistant", "content": "Yes."});
    let replay = history.replay(&[question.clone(), answer.clone(), question.clone()], &[]);
    let text = render(replay.messages());
    let segments = replay.segments(&text).unwrap();
    assert_eq!(segments[1], Segment::Written { text: "Yes.", tokens: Some(&[4, 5]) });
    let replay = history.replay(&[question, answer], &[]);
    let text = render(replay.messages());
    let segments = replay.segments(&text).unwrap();
    assert_eq!(segments[1], Segment::Written { text: "hm\n</think>\n\nYes.", tokens: Some(&[0, 1, 2, 3, 4, 5]) });
}

#[test]
fn marks_in_the_clients_text_stay_text() {
    let mut play = Play::new(1 << 20);
    play.messages.push(json!({"role": "user", "content": "\u{E000}lily0-0c\u{E001} and \u{E000}lily1-"}));
    let message = play.answer("a</think>b");
    play.messages.push(message);
    let (prompt, known) = play.prompt();
    assert_eq!(known, 1);
    assert!(
        prompt.contains("\u{E000}lily0-0c\u{E001} and \u{E000}lily1-<|im_end|>")
            && prompt.ends_with("a</think>b<|im_end|>\n")
    );
    // A template that loses a mark gets the conversation as it came.
    let replay = play.replay();
    assert_eq!((replay.marked(), replay.segments("nothing")), (1, None));
    let content = replay.messages()[1]["content"].as_str().unwrap();
    assert_eq!(replay.segments(&format!("{content}{content}")), None);
}

#[test]
fn the_memory_is_bounded_and_forgets_the_oldest() {
    let mut play = Play::new(4000);
    for number in 0..100 {
        play.messages = vec![json!({"role": "user", "content": format!("q{number}")})];
        play.answer(&format!("t\n</think>\n\nanswer {number} {}", "x".repeat(number)));
        assert!(play.history.bytes() <= 4000);
    }
    let known = |play: &mut Play, number: usize| {
        let answer = format!("answer {number} {}", "x".repeat(number));
        play.messages = vec![
            json!({"role": "user", "content": format!("q{number}")}),
            json!({"role": "assistant", "content": answer}),
        ];
        play.prompt().1
    };
    assert_eq!((known(&mut play, 99), known(&mut play, 0)), (1, 0));
    let mut small = Play::new(100);
    small.messages.push(json!({"role": "user", "content": "q"}));
    small.answer("a</think>b");
    assert_eq!(small.history.bytes(), 0);
    let counts = (play.history.entries.len(), play.history.by_key.len(), play.history.by_use.len());
    assert!(counts.0 > 1 && counts.0 == counts.1 && counts.0 == counts.2 && play.history.by_call.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whatever_was_written_comes_back(
        texts in prop::collection::vec(crate::output::tests::markup(), 1..5), forget: bool,
    ) {
        let mut play = Play::new(1 << 20);
        play.messages.push(json!({"role": "user", "content": "Go."}));
        for raw in texts {
            let (prompt, _) = play.prompt();
            let message = play.answer(&raw);
            play.messages.push(reworded(message, forget));
            let (next, _) = play.prompt();
            prop_assert_eq!(next, format!("{prompt}{TAIL}{raw}<|im_end|>\n"));
            play.messages.push(json!({"role": "tool", "tool_call_id": "x", "content": "done"}));
        }
    }
}
