//! What the parser makes of texts, however they are split.

use super::*;
use crate::fold::{Block, Folded};
use crate::request::{Conversation, Tool};
use proptest::prelude::*;
use serde_json::json;

/// Functions with arguments of many types.
pub(crate) fn conversation() -> Conversation {
    let tool = |name: &str, parameters: Value| Tool {
        name: name.into(),
        namespace: None,
        description: None,
        parameters,
        strict: false,
        free_text: false,
    };
    let edit = json!({"type": "object", "properties": {
        "path": {"type": "string"}, "text": {"type": "string"}, "count": {"type": "integer"},
        "force": {"type": "boolean"}, "tags": {"type": "array"}, "options": {"type": "object"},
        "note": {"type": ["string", "null"]}, "mode": {"enum": ["fast", "slow"]},
    }});
    let tools = vec![tool("edit", edit), tool("now", json!({"type": "object", "properties": {}}))];
    Conversation { tools, parallel_tool_calls: true, ..Conversation::default() }
}

pub(crate) fn parser(start: Start, stops: &[&str], tools: bool) -> OutputParser {
    let conversation = conversation();
    let stop: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
    let options = OutputOptions {
        start: Some(start),
        stop: &stop,
        conversation: tools.then_some(&conversation),
        call_prefix: "c".into(),
    };
    OutputParser::new(options).unwrap()
}

/// The blocks that the pieces of a text join to.
pub(crate) fn parse(parser: &OutputParser, pieces: &[&[u8]]) -> Vec<Block> {
    let mut parser = parser.clone();
    let mut out = Vec::new();
    for piece in pieces {
        parser.push(piece, None, &mut out);
    }
    parser.finish(&mut out);
    Folded::new(&out).blocks
}

fn thought(text: &str) -> Block {
    Block::Reasoning(text.into())
}

fn said(text: &str) -> Block {
    Block::Content(text.into())
}

fn called(index: usize, name: &str, arguments: Value) -> Block {
    Block::ToolCall { id: format!("c{index}"), name: name.into(), arguments: arguments.to_string() }
}

/// Checks a text whole, byte by byte, and cut in two at every place. Arguments are compared as JSON.
fn check(parser: &OutputParser, text: &str, expected: &[Block]) {
    let normal = |blocks: Vec<Block>| -> Vec<Block> {
        let normal = |block| match block {
            Block::ToolCall { id, name, arguments } => {
                let arguments = serde_json::from_str::<Value>(&arguments).expect("arguments are JSON").to_string();
                Block::ToolCall { id, name, arguments }
            }
            other => other,
        };
        blocks.into_iter().map(normal).collect()
    };
    let bytes = text.as_bytes();
    assert_eq!(normal(parse(parser, &[bytes])), expected, "whole: {text:?}");
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(normal(parse(parser, &single)), expected, "byte by byte: {text:?}");
    for at in 0..=bytes.len() {
        assert_eq!(normal(parse(parser, &[&bytes[..at], &bytes[at..]])), expected, "split at {at}: {text:?}");
    }
}

fn thinking(text: &str, expected: &[Block]) {
    check(&parser(Start::Reasoning, &[], true), text, expected);
}

fn answering(text: &str, expected: &[Block]) {
    check(&parser(Start::Content, &[], true), text, expected);
}

#[test]
fn reasoning_ends_where_its_closer_is() {
    for tools in [false, true] {
        let inside = |text: &str, blocks: &[Block]| check(&parser(Start::Reasoning, &[], tools), text, blocks);
        inside("I think.\n</think>\n\nYes.", &[thought("I think."), said("Yes.")]);
        inside("\na\n\nb\n</think>\n\n\nYes.\n", &[thought("a\n\nb"), said("Yes.\n")]);
        inside("</think>\n\nYes.", &[said("Yes.")]);
        inside("cut short\n", &[thought("cut short\n")]);
        inside("half a tag </thi", &[thought("half a tag </thi")]);
        inside("1 < 2 </ x </thinker", &[thought("1 < 2 </ x </thinker")]);
        inside("<think>\ntwice\n</think>\nYes", &[thought("twice"), said("Yes")]);
        inside("a</think>b</think><think>c", &[thought("a"), said("b</think><think>c")]);
        inside("a</think>\n\n</think>\n\nb", &[thought("a"), said("b")]);
        let further = |text: &str, blocks: &[Block]| check(&parser(Start::InsideReasoning, &[], tools), text, blocks);
        further("\n\nI think on.\n</think>\n\nYes.", &[thought("\n\nI think on."), said("Yes.")]);
        further("</think>\n\nYes.", &[said("Yes.")]);
        let outside = |text: &str, blocks: &[Block]| check(&parser(Start::Content, &[], tools), text, blocks);
        outside("<think>\nown\n</think>\n\nYes", &[thought("own"), said("Yes")]);
        outside("\n <think>own</think>Yes", &[thought("own"), said("Yes")]);
        outside("</think>\n\nYes", &[said("Yes")]);
        outside("Plain <think>not</think>", &[said("Plain <think>not</think>")]);
        outside("\n\n plain", &[said("\n\n plain")]);
        outside(" <thin", &[said(" <thin")]);
    }
}

const CALL: &str = "<tool_call>\n<function=edit>\n<parameter=path>\na.rs\n</parameter>\n<parameter=count>\n3\n</parameter>\n</function>\n</tool_call>";

fn edit(arguments: Value) -> Block {
    called(0, "edit", arguments)
}

#[test]
fn a_call_in_the_form_of_the_template() {
    let call = edit(json!({"path": "a.rs", "count": 3}));
    answering(CALL, std::slice::from_ref(&call));
    answering(&format!("I look.\n\n{CALL}"), &[said("I look."), call.clone()]);
    thinking(&format!("Hm.\n</think>\n\n{CALL}\n"), &[thought("Hm."), call.clone()]);
    answering(&format!("{CALL}\n\nDone."), &[call, said("Done.")]);
    answering("<tool_call>\n<function=now>\n</function>\n</tool_call>", &[called(0, "now", json!({}))]);
}

#[test]
fn values_are_verbatim_but_for_their_own_lines() {
    let value = |raw: &str, expected: Value| {
        let text =
            format!("<tool_call>\n<function=edit>\n<parameter=text>{raw}</parameter>\n</function>\n</tool_call>");
        answering(&text, &[edit(json!({"text": expected}))]);
    };
    value("\nline\n", json!("line"));
    value("\n\n  a\n\n b \n\n", json!("\n  a\n\n b \n"));
    value("no lines", json!("no lines"));
    value("", json!(""));
    value("\n", json!(""));
    value("\n\"q\" \\ \t čaj 🎉\u{1}\n", json!("\"q\" \\ \t čaj 🎉\u{1}"));
}

#[test]
fn several_calls_in_one_piece() {
    let second = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    let calls = [edit(json!({"path": "a.rs", "count": 3})), called(1, "now", json!({}))];
    answering(&format!("{CALL}\n{second}"), &calls);
    answering(&format!("{CALL}{second}"), &calls);
    // Two functions in one call.
    let both = CALL.replace("</tool_call>", "<function=now>\n</function>\n</tool_call>");
    answering(&both, &calls);
}

#[test]
fn one_call_at_a_time_ends_the_answer() {
    let conversation = Conversation { parallel_tool_calls: false, ..conversation() };
    let options = OutputOptions {
        start: Some(Start::Content),
        stop: &[],
        conversation: Some(&conversation),
        call_prefix: "c".into(),
    };
    let parser = OutputParser::new(options).unwrap();
    let call = [said("Ok."), edit(json!({"path": "a.rs", "count": 3}))];
    check(&parser, &format!("Ok.\n{CALL}\n{CALL}"), &call);
    check(&parser, &format!("Ok.\n{CALL}\n\nDone."), &call);
    check(&parser, &format!("Ok.\n{}<tool_call>\n<function=now>", CALL.replace("\n</tool_call>", "")), &call);
    let mut parser = parser;
    parser.push(format!("Ok.\n{}", CALL.strip_suffix('>').unwrap()).as_bytes(), None, &mut Vec::new());
    assert!(!parser.ended());
    parser.push(b">", None, &mut Vec::new());
    assert!(parser.ended() && parser.stopped().is_none() && !parser.overran());
    parser.push(b"\n", None, &mut Vec::new());
    assert!(parser.overran());
}

#[test]
fn field_report_o8_a_call_ends_reasoning_without_its_closer() {
    let call = edit(json!({"path": "a.rs", "count": 3}));
    thinking(&format!("I need it.\n\n{CALL}"), &[thought("I need it."), call.clone()]);
    thinking(CALL, std::slice::from_ref(&call));
    // The closer comes after the call.
    thinking(&format!("x\n{CALL}\n</think>\n\nDone."), &[thought("x"), call.clone(), said("Done.")]);
    thinking(&format!("x\n{CALL}\nmore\n</think>\n\nDone."), &[thought("x"), call, said("more\nDone.")]);
}

#[test]
fn field_report_o9_stray_and_missing_closers_are_forgiven() {
    let call = edit(json!({"path": "a.rs", "count": 3}));
    let body = "<tool_call>\n<function=edit>\n<parameter=path>\na.rs\n</parameter>\n<parameter=count>\n3";
    for end in [
        "",
        "\n</parameter>",
        "\n</function>\n</tool_call>",
        "\n</tool_call>",
        "\n</parameter>\n</tool_call>",
        "\n</parameter>\n</parameter>\n</function>\n</tool_call>",
        "\n</parameter>\n</function>\n</function>\n</tool_call>\n</tool_call>",
        "\n</parameter>\n</function>\n</function_invocation>\n</tool_call>",
        "\n</parameter>\n</arg_value>\n</function>\n</tool_call>",
        "\n</parameter>\n</invoke>",
        "\n</parameter>\n</fun",
        "\n</para",
    ] {
        answering(&format!("{body}{end}"), std::slice::from_ref(&call));
    }
    // The closer of an argument before another one.
    let open = body.replace("\n</parameter>", "");
    answering(&open, std::slice::from_ref(&call));
    // Wrappers of an older dialect; the opener twice; none.
    answering(&CALL.replace("<tool_call>\n", "<tool_call>\n<function_invocation>\n"), std::slice::from_ref(&call));
    answering(&CALL.replace("<tool_call>\n", "<tool_call>\n<tool_call>\n"), std::slice::from_ref(&call));
    answering(&CALL.replace("<tool_call>\n", ""), std::slice::from_ref(&call));
    answering(&format!("Now:\n{}", CALL.replace("<tool_call>\n", "")), &[said("Now:"), call.clone()]);
    // Names with quotes, and a tag without its bracket.
    answering(&CALL.replace("=path>", "=\"path\">").replace("=edit>", "=edit"), &[call]);
}

#[test]
fn an_empty_call_is_none_at_all() {
    answering("a\n\n<tool_call>\n</tool_call>\nb", &[said("ab")]);
    answering("<tool_call>\n<func", &[]);
    answering("Sure.\n<tool_call>", &[said("Sure.")]);
    answering("<tool_call>\n{\"name\": \"no", &[]);
}

#[test]
fn text_that_only_looks_like_markup_is_text() {
    let same = |text: &str| answering(text, &[said(text)]);
    same("Use <tool_call> for calls.");
    same("The tags `<tool_call>` and `<function=name>`.");
    same("<tool_call>x");
    same("a </tool_call> b </parameter> <parameter=x> y");
    same("a < b, <b>bold</b>, <tool_ca");
    same("<function=unknown>\n</function>");
    same("In a line: <function=edit> is how it starts.");
    same("<tool_call>{ not json }");
    same("</function>");
    let reason = |text: &str| thinking(text, &[thought(text)]);
    reason("I may write <tool_call> with <function=...> in it.");
    reason("<function=edit>");
    // Without functions there are no calls.
    check(&parser(Start::Content, &[], false), CALL, &[said(CALL)]);
    check(&parser(Start::Reasoning, &[], false), CALL, &[thought(CALL)]);
}

#[test]
fn tags_inside_values_are_values() {
    let value = |value: &str| {
        let text = format!(
            "<tool_call>\n<function=edit>\n<parameter=text>\n{value}\n</parameter>\n<parameter=count>\n1\n</parameter>\n</function>\n</tool_call>"
        );
        answering(&text, &[edit(json!({"text": value, "count": 1}))]);
    };
    value("<a href=\"x\">y</a> 1 < 2");
    value("<parameter>\n<name>x</name>\n</parameter> more");
    value("an <parameter=x> in a line");
    value("<parameter=unknown>\n5");
    value("</function> and </tool_call> in a line");
    value("</function>\n}");
    value("<tool_call>\n<function=now>\n</function>\n</tool_call> is an example");
    value("</think>");
}

#[test]
fn arguments_given_twice_count_once() {
    let twice = CALL.replace("</function>", "<parameter=path>\nb.rs\n</parameter>\n</function>");
    answering(&twice, &[edit(json!({"path": "a.rs", "count": 3}))]);
}

#[test]
fn values_have_the_types_of_the_schema() {
    let text = "<tool_call>\n<function=edit>\n<parameter=force>\nTrue\n</parameter>\n<parameter=tags>\n[\"a\",\n 1]\n</parameter>\n\
        <parameter=options>\n{'deep': {\"x\": None}}\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=mode>\nslow\n</parameter>\n\
        <parameter=other>\n7\n</parameter>\n</function>\n</tool_call>";
    let arguments = json!({
        "force": true, "tags": ["a", 1], "options": {"deep": {"x": null}}, "note": null, "mode": "slow", "other": 7,
    });
    answering(text, &[edit(arguments)]);
}

#[test]
fn calls_written_as_json_are_calls() {
    let call = called(0, "edit", json!({"path": "a.rs", "count": 3}));
    let json = r#"{"name": "edit", "arguments": {"path": "a.rs", "count": 3}}"#;
    answering(&format!("<tool_call>\n{json}\n</tool_call>"), std::slice::from_ref(&call));
    answering(&format!("<tool_call>{json}"), std::slice::from_ref(&call));
    let text = r#"{"name": "edit", "arguments": "{\"path\": \"a.rs\", \"count\": 3}"}"#;
    answering(&format!("ok\n<tool_call>{text}</tool_call>"), &[said("ok"), call.clone()]);
    answering("<tool_call>\n<function=edit>\n{\"path\": \"a.rs\", \"count\": 3}\n</function>\n</tool_call>", &[call]);
    let two = format!("<tool_call>{json}</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>");
    assert_eq!(parse(&parser(Start::Content, &[], true), &[two.as_bytes()]).len(), 2);
}

#[test]
fn text_arguments_stream_while_they_are_written() {
    let mut parser = parser(Start::Content, &[], true);
    let mut push = |text: &str| {
        let mut out = Vec::new();
        parser.push(text.as_bytes(), None, &mut out);
        out.into_iter().map(|piece| piece.delta).collect::<Vec<_>>()
    };
    let json = |json: &str| Delta::Arguments { index: 0, json: json.into() };
    assert_eq!(
        push("<tool_call>\n<function=edit>"),
        [Delta::ToolCall { index: 0, id: "c0".into(), name: "edit".into() }]
    );
    assert_eq!(push("\n<parameter=text>\n"), [json("{\"text\":\"")]);
    assert_eq!(push("fn a() {\n"), [json("fn a() {")]);
    assert_eq!(push("  \"x\" <"), [json("\\n  \\\"x\\\" ")]);
    assert_eq!(push("b>"), [json("<b>")]);
    assert_eq!(push("\n</parameter>\n"), []);
    assert_eq!(push("</function>"), [json("\"")]);
    assert_eq!(push("\n</tool_call>"), [json("}")]);
}

#[test]
fn field_report_o15_stop_strings_span_pieces_and_spare_reasoning() {
    let stop = |stops: &[&str], text: &str, expected: &[Block], stopped: Option<&str>| {
        let parser = parser(Start::Reasoning, stops, true);
        check(&parser, text, expected);
        let mut parser = parser;
        parser.push(text.as_bytes(), None, &mut Vec::new());
        assert_eq!(parser.stopped(), stopped, "{text:?}");
    };
    stop(&["\n\n", "END"], "a\n\nEND b\n</think>\n\nyes END no", &[thought("a\n\nEND b"), said("yes ")], Some("END"));
    stop(&["END"], "only END", &[thought("only END")], None);
    stop(&["END"], "</think>the EN", &[said("the EN")], None);
    stop(&["\n\n"], &format!("</think>a\n\n{CALL}"), &[said("a")], Some("\n\n"));
    stop(&["a.rs"], &format!("</think>{CALL}"), &[edit(json!({"path": "a.rs", "count": 3}))], None);
    // A stop string does not reach over a call.
    let call = edit(json!({"path": "a.rs", "count": 3}));
    stop(&["ab"], &format!("</think>a{CALL}b"), &[said("a"), call, said("b")], None);
}

#[test]
fn field_report_o14_characters_are_never_cut() {
    let mut parser = parser(Start::Content, &[], true);
    let mut out = Vec::new();
    let mut texts = Vec::new();
    for byte in "č🎉".as_bytes().iter().chain(b"\xFF\xE2\x82") {
        parser.push(&[*byte], None, &mut out);
        texts.extend(out.drain(..).map(|piece| piece.delta));
    }
    parser.finish(&mut out);
    texts.extend(out.drain(..).map(|piece| piece.delta));
    let content = |text: &str| Delta::Content(text.into());
    assert_eq!(texts, [content("č"), content("🎉"), content("\u{FFFD}"), content("\u{FFFD}")]);
}

#[test]
fn reasoning_tokens_are_counted() {
    let mut parser = parser(Start::Reasoning, &[], true);
    for token in ["Let", " me", "\n", "</think>", "\n\n", "Yes"] {
        parser.push(token.as_bytes(), None, &mut Vec::new());
    }
    assert_eq!(parser.reasoning_tokens(), 4);
}

#[test]
fn lists_and_objects_stream_while_they_are_written() {
    let mut parser = parser(Start::Content, &[], true);
    parser.push(b"<tool_call>\n<function=edit>\n<parameter=tags>\n", None, &mut Vec::new());
    let mut push = |text: &str| {
        let mut out = Vec::new();
        parser.push(text.as_bytes(), None, &mut out);
        let json = |piece: Piece| if let Delta::Arguments { json, .. } = piece.delta { json } else { String::new() };
        out.into_iter().map(json).collect::<String>()
    };
    assert_eq!(push("[{\"old\": \"a"), "[{\"old\":\"a");
    assert_eq!(push(" <b> c\", \"new\":"), " <b> c\",\"new\":");
    assert_eq!(push(" 5, True"), "5,");
    assert_eq!(push("}]\n"), "\"True\":null}]");
    assert_eq!(push("</parameter>\n</function>\n</tool_call>"), "}");
}

/// Tokens with their channels, in order, as a client gets them: which of the texts they are.
fn reported(parser: &OutputParser, texts: &[&[u8]]) -> Vec<(Channel, usize)> {
    let mut parser = parser.clone();
    let mut out = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        let token = TokenLogprob { bytes: text.to_vec(), logprob: number as f32, top: Vec::new() };
        parser.push(text, Some(token), &mut out);
    }
    parser.finish(&mut out);
    let tokens = out.into_iter().flat_map(|piece| piece.tokens);
    let number = |(channel, token): (Channel, TokenLogprob)| {
        let number = token.logprob as usize;
        assert_eq!(token.bytes, texts[number]);
        (channel, number)
    };
    tokens.map(number).collect()
}

fn tokens(parser: &OutputParser, texts: &[&[u8]]) -> Vec<(Channel, Vec<u8>)> {
    reported(parser, texts).into_iter().map(|(channel, number)| (channel, texts[number].to_vec())).collect()
}

#[test]
fn tokens_go_where_their_text_goes() {
    use Channel::{Content, Reasoning, ToolCalls};
    let check = |start, stops: &[&str], texts: &[&[u8]], channels: &[(Channel, &[u8])]| {
        let expected: Vec<(Channel, Vec<u8>)> = channels.iter().map(|(c, b)| (*c, b.to_vec())).collect();
        assert_eq!(tokens(&parser(start, stops, true), texts), expected, "{texts:?}");
    };
    let simple: [&[u8]; 6] = [b"Hm", b"\n", b"</think>", b"\n\n", b"Yes", b"."];
    let channels = [Reasoning, Reasoning, Reasoning, Reasoning, Content, Content];
    check(Start::Reasoning, &[], &simple, &std::array::from_fn::<_, 6, _>(|i| (channels[i], simple[i])));
    // Layout and a stop string are nobody's text; a token that is partly text is shown whole.
    check(Start::Content, &["END"], &[b"a", b" E", b"ND", b"x"], &[(Content, b"a"), (Content, b" E")]);
    check(Start::Content, &["END"], &[b"a", b"END"], &[(Content, b"a")]);
    // Characters of several tokens.
    check(Start::Content, &[], &[b"a\xC3", b"\xA9", b"b"], &[(Content, b"a\xC3"), (Content, b"\xA9"), (Content, b"b")]);
    check(Start::Content, &[], &[b"\xF0\x9F", b"\x8E"], &[(Content, b"\xF0\x9F"), (Content, b"\x8E")]);
    // A call: every token once, in order.
    let call: Vec<&[u8]> = CALL.as_bytes().chunks(5).collect();
    let expected: Vec<(Channel, &[u8])> = call.iter().map(|bytes| (ToolCalls, *bytes)).collect();
    check(Start::Content, &[], &call, &expected);
    let mut with_text: Vec<&[u8]> = vec![b"Ok", b"\n\n"];
    with_text.extend(&call);
    let expected = [vec![(Content, &b"Ok"[..]), (ToolCalls, &b"\n\n"[..])], expected].concat();
    check(Start::Content, &[], &with_text, &expected);
}

/// Texts that are full of markup, complete and broken.
pub(crate) fn markup() -> impl Strategy<Value = String> {
    let parts = [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=edit>",
        "<function=now>",
        "<function=",
        "</function>",
        "<parameter=path>",
        "<parameter=count>",
        "<parameter=tags>",
        "<parameter=zzz>",
        "<parameter=",
        "</parameter>",
        "<function_invocation>",
        "</function_invocation>",
        "</arg_value>",
        "\n",
        "\n\n",
        " ",
        "<",
        ">",
        "/",
        "a",
        "é",
        "🎉",
        "5",
        "null",
        "true",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "\\",
        ":",
        ",",
        "{\"name\": \"edit\", \"arguments\": {}}",
        "STOP",
        "ST",
        "<tool_call>\n<function=edit>\n<parameter=text>\n",
        "\n</parameter>\n</function>\n</tool_call>",
    ];
    prop::collection::vec(prop::sample::select(parts.to_vec()), 0..24).prop_map(|parts| parts.concat())
}

/// Cuts bytes at these places, wherever they are valid.
pub(crate) fn cut<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).chain([0, bytes.len()]).collect();
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

/// What must hold for any text at all.
pub(crate) fn laws(text: &[u8], cuts: &[usize], inside: bool, tools: bool) {
    let start = if inside { Start::Reasoning } else { Start::Content };
    let parser = parser(start, &["STOP"], tools);
    let whole = parse(&parser, &[text]);
    assert_eq!(parse(&parser, &cut(text, cuts)), whole, "cut at {cuts:?}");
    assert_eq!(parse(&parser, &text.chunks(1).collect::<Vec<_>>()), whole, "byte by byte");
    if tools {
        let mut one = parser.clone();
        one.one_call = true;
        let first = parse(&one, &[text]);
        assert_eq!(parse(&one, &cut(text, cuts)), first, "one call, cut at {cuts:?}");
        let call = |block: &Block| matches!(block, Block::ToolCall { .. });
        let end = whole.iter().position(call).map_or(whole.len(), |at| at + 1);
        assert_eq!(first, whole[..end], "one call");
    }
    for block in &whole {
        match block {
            Block::ToolCall { name, arguments, .. } => {
                assert!(tools && !name.is_empty());
                assert!(serde_json::from_str::<Value>(arguments).is_ok_and(|v| v.is_object()), "{arguments}");
            }
            Block::Reasoning(text) | Block::Content(text) => assert!(!text.is_empty()),
        }
    }
    let content: String =
        whole.iter().filter_map(|b| if let Block::Content(text) = b { Some(text.as_str()) } else { None }).collect();
    assert!(!content.contains("STOP"));
    token_laws(&parser, text, cuts, &content);
}

/// Every token is reported once at most, in order; and exactly the answer's bytes are under its name.
fn token_laws(parser: &OutputParser, text: &[u8], cuts: &[usize], content: &str) {
    let pieces = cut(text, cuts);
    let whole = reported(parser, &pieces);
    assert!(whole.is_sorted_by(|a, b| a.1 < b.1), "twice or out of order: {whole:?}");
    // What is no text is shown as another character.
    if std::str::from_utf8(text).is_err() {
        return;
    }
    let single: Vec<&[u8]> = text.chunks(1).collect();
    let answer: Vec<usize> = reported(parser, &single)
        .into_iter()
        .filter(|(channel, _)| *channel == Channel::Content)
        .map(|(_, at)| at)
        .collect();
    let bytes: Vec<u8> = answer.iter().map(|at| text[*at]).collect();
    assert_eq!(String::from_utf8_lossy(&bytes), content, "token by byte");
    // Tokens of several bytes: all of the answer is reported, and under its name nothing that has none of it.
    let mut start = 0;
    for (number, piece) in pieces.iter().enumerate() {
        let some = answer.iter().any(|at| (start..start + piece.len()).contains(at));
        let channel = whole.iter().find(|token| token.1 == number).map(|token| token.0);
        assert!(!some || channel.is_some(), "{piece:?} has some of the answer and is not reported");
        assert!(some || piece.is_empty() || channel != Some(Channel::Content), "{piece:?} is none of the answer's");
        start += piece.len();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn laws_hold_for_markup(text in markup(), cuts in prop::collection::vec(0usize..400, 0..8), inside: bool, tools: bool) {
        laws(text.as_bytes(), &cuts, inside, tools);
    }

    #[test]
    fn laws_hold_for_bytes(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"<>/=_\n{}\"tolca".to_vec())], 0..60),
        cuts in prop::collection::vec(0usize..60, 0..6), inside: bool, tools: bool,
    ) {
        laws(&bytes, &cuts, inside, tools);
    }

    #[test]
    fn what_the_template_writes_comes_back(
        thought in "[a-zé ,.]{0,20}", text in "[a-zé ,.]{0,20}",
        values in prop::collection::vec(("[a-z]{1,6}", "[a-z<>/é \n\"\\\\{}]{0,30}"), 0..4),
    ) {
        // Names not of the schema: their values are of any type, so keep them text by a leading letter.
        let mut arguments = serde_json::Map::new();
        for (name, value) in values {
            arguments.insert(name, json!(format!("v{value}v")));
        }
        let parameters: String =
            arguments.iter().map(|(k, v)| format!("<parameter={k}>\n{}\n</parameter>\n", v.as_str().unwrap())).collect();
        let (thought_text, text) = (thought.trim(), text.trim());
        let gap = if text.is_empty() { "" } else { "\n\n" };
        let written = format!(
            "{thought_text}\n</think>\n\n{text}{gap}<tool_call>\n<function=edit>\n{parameters}</function>\n</tool_call>"
        );
        let mut expected = Vec::new();
        expected.extend((!thought_text.is_empty()).then(|| Block::Reasoning(thought_text.into())));
        expected.extend((!text.is_empty()).then(|| Block::Content(text.into())));
        expected.push(called(0, "edit", Value::Object(arguments)));
        prop_assert_eq!(parse(&parser(Start::Reasoning, &[], true), &[written.as_bytes()]), expected);
    }
}
