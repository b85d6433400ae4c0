//! What grammars take and refuse, and rules over whole answers, on lily-nano's tokens.

use super::grammar::Form;
use super::{Grammars, Marks, Rules};
use lily_api::request::{Prefill, Request, ResponseFormat};
use lily_engine::checkpoint::Checkpoint;
use lily_engine::constraint::Constraint;
use lily_engine::prompt::Prompter;
use lily_engine::tokenizer::ControlTokens;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, OnceLock};

struct Bench {
    prompter: Arc<Prompter>,
    grammars: Grammars,
    marks: Arc<Marks>,
    vocab: usize,
}

fn bench() -> &'static Bench {
    static BENCH: OnceLock<Bench> = OnceLock::new();
    BENCH.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano");
        let prompter = Arc::new(Prompter::new(&Checkpoint::open(&path).unwrap()).unwrap());
        let vocab = prompter.tokenizer().vocab_size();
        let grammars = Grammars::new(Arc::clone(&prompter), vocab).unwrap();
        let marks = Arc::new(Marks::new(&prompter, vocab));
        Bench { prompter, grammars, marks, vocab }
    })
}

fn tokens(text: &str) -> Vec<u32> {
    bench().prompter.tokenizer().encode(text, ControlTokens::Recognise).unwrap()
}

fn request(more: Value) -> Request {
    let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    lily_api::parse(lily_api::Api::Chat, body.to_string().as_bytes()).unwrap()
}

fn form(more: Value, thinks: bool) -> Form {
    bench().grammars.form(&request(more), thinks).unwrap().expect("something to enforce")
}

/// Whether a form takes all of a text, and the text may end there.
fn takes(form: Form, text: &str) -> bool {
    let mut matchers = match form {
        Form::Whole { alternatives, .. } => alternatives,
        Form::Calls(matcher) => vec![*matcher],
    };
    let tokens = tokens(text);
    matchers.iter_mut().any(|matcher| {
        matcher.try_consume_tokens(&tokens).unwrap() == tokens.len() && matcher.is_accepting().unwrap_or(true)
    })
}

fn weather() -> Value {
    json!([{"type": "function", "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
                "place": {"$ref": "#/$defs/point"},
            },
            "required": ["city"],
            "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"],
                                "additionalProperties": false}},
        },
    }}])
}

fn call(parameters: &[(&str, &str)]) -> String {
    let parameters: String =
        parameters.iter().map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n")).collect();
    format!("<tool_call>\n<function=get_weather>\n{parameters}</function>\n</tool_call>")
}

#[test]
fn a_call_that_must_come_is_one_that_the_tool_takes() {
    let check = |text: &str, expect: bool| {
        let form = form(json!({"tools": weather(), "tool_choice": "required", "parallel_tool_calls": false}), false);
        assert_eq!(takes(form, text), expect, "{text}");
    };
    check(&call(&[("city", "Paris")]), true);
    check(&call(&[("city", "Žďár nad Sázavou\n\n<b> & </b>")]), true);
    check(&call(&[("city", "")]), true);
    check(&call(&[("city", "a"), ("days", "-3"), ("unit", "kelvin"), ("place", "{\"x\": 1.5}")]), true);
    check(&call(&[("city", "a"), ("place", "{\n  \"x\": 1\n}")]), true);
    check(&call(&[]), false);
    check(&call(&[("days", "3")]), false);
    check(&call(&[("city", "a"), ("days", "three")]), false);
    check(&call(&[("city", "a"), ("days", "3.5")]), false);
    check(&call(&[("city", "a"), ("unit", "rankine")]), false);
    check(&call(&[("city", "a"), ("place", "{\"y\": 1}")]), false);
    check(&call(&[("city", "a"), ("other", "b")]), false);
    check("I would rather talk.", false);
    check(&call(&[("city", "a")]).replace("get_weather", "get_whether"), false);
    let two = format!("{}\n{}", call(&[("city", "a")]), call(&[("city", "b")]));
    check(&two, false);
    assert!(takes(form(json!({"tools": weather(), "tool_choice": "required"}), false), &two));
}

#[test]
fn the_function_that_was_named_is_the_one_that_is_called() {
    let mut tools = weather();
    tools.as_array_mut().unwrap().push(json!({"type": "function", "function": {"name": "now"}}));
    let named = |name: &str| {
        let choice = json!({"type": "function", "function": {"name": name}});
        form(json!({"tools": tools, "tool_choice": choice}), false)
    };
    let now = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    assert!(takes(named("now"), now));
    assert!(!takes(named("get_weather"), now));
    assert!(!takes(named("now"), &call(&[("city", "a")])));
    let anything = "<tool_call>\n<function=now>\n<parameter=zone>\nUTC\n</parameter>\n</function>\n</tool_call>";
    assert!(takes(named("now"), anything), "a tool without a schema takes any parameters");
}

#[test]
fn a_blank_line_may_follow_the_reasoning_only() {
    let required = || json!({"tools": weather(), "tool_choice": "required"});
    let text = format!("\n\n{}", call(&[("city", "a")]));
    assert!(takes(form(required(), true), &text));
    assert!(!takes(form(required(), false), &text));
    let object = || json!({"response_format": {"type": "json_object"}});
    assert!(takes(form(object(), true), "\n\n{\"a\": 1}"));
    assert!(takes(form(object(), true), "{\"a\": 1}"));
    assert!(!takes(form(object(), false), "\n\n{\"a\": 1}"));
}

#[test]
fn answers_are_json_of_the_schema() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "tags": {"type": "array", "items":
        {"type": "string"}}}, "required": ["n"], "additionalProperties": false});
    let check = |text: &str, expect: bool| {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        assert_eq!(takes(form(json!({"response_format": format}), false), text), expect, "{text:?}");
    };
    check("{\"n\": 1}", true);
    check("{\"n\":1,\"tags\":[\"a\",\"b\"]}", true);
    check("{\n    \"n\": 1\n}", true);
    check(&format!("{{{}\"n\": 1}}", " ".repeat(40)), false);
    check("{\"n\": \"1\"}", false);
    check("{\"m\": 1}", false);
    check("{\"n\": 1", false);
    check("{\"n\": 1} or so", false);
    check("[1]", false);
}

#[test]
fn grammars_of_the_client_bind_the_answer() {
    let lark = |text: &str| {
        request(json!({}))
            .with_format(ResponseFormat::Grammar { syntax: lily_api::request::GrammarSyntax::Lark, text: text.into() })
    };
    for thinks in [false, true] {
        let made = |text| bench().grammars.form(&lark(text), thinks).unwrap().unwrap();
        assert!(takes(made("start: \"yes\" | \"no\""), "yes"));
        assert!(!takes(made("start: \"yes\" | \"no\""), "maybe"));
        assert_eq!(takes(made("start: \"yes\" | \"no\""), "\n\nno"), thinks);
    }
}

trait WithFormat {
    fn with_format(self, format: ResponseFormat) -> Request;
}

impl WithFormat for Request {
    fn with_format(mut self, format: ResponseFormat) -> Request {
        self.format = format;
        self
    }
}

#[test]
fn what_cannot_be_compiled_is_refused_with_the_field() {
    let refuse = |more: Value| match bench().grammars.form(&request(more), false) {
        Err(error) => error,
        Ok(_) => panic!("taken"),
    };
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "triangle"}}});
    let error = refuse(json!({"response_format": format}));
    assert_eq!((error.status, error.param.as_deref()), (400, Some("response_format")), "{error:?}");
    let never = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "(("}}, "required": ["a"]});
    let error =
        refuse(json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": never}}}));
    assert_eq!(error.status, 400, "{error:?}");
}

fn one_parameter(schema: &Value) -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"x": schema}, "required": ["x"],
        "$defs": {"Name": {"type": "string", "pattern": "^[a-z]+$"}, "Loop": {"$ref": "#/$defs/Loop"}}}}}])
}

#[test]
fn a_text_in_a_call_follows_its_schema() {
    let check = |schema: Value, good: &[&str], bad: &[&str]| {
        for (text, expect) in good.iter().map(|text| (text, true)).chain(bad.iter().map(|text| (text, false))) {
            let form = form(json!({"tools": one_parameter(&schema), "tool_choice": "required"}), false);
            assert_eq!(takes(form, &call(&[("x", text)])), expect, "{text:?} as {schema}");
        }
    };
    let text = |word: &str, value: Value| json!({"type": "string", word: value});
    check(text("pattern", json!("^[0-9]{3}$")), &["123"], &["12", "1234", "abc", "x123", "123\nx", ""]);
    check(text("pattern", json!("b+/")), &["b/", "abb/c"], &["", "ac", "b"]);
    check(text("pattern", json!("^a|\\$$")), &["ab", "5$"], &["ba", "$5"]);
    check(text("maxLength", json!(3)), &["", "abc", "a\nb", "\u{17d}\u{10f}\u{e1}"], &["abcd", "\n</parameter>\n"]);
    let limit = json!(100_000);
    let tags = ["</parameter>", "a</function>", "<<tool_call>", "\n</parameter>\n"];
    check(text("maxLength", limit.clone()), &["", "abc", "<p>a</p>", "</param", "a < b", "\n</"], &tags);
    check(
        json!({"type": "string", "pattern": "b", "minLength": 3, "maxLength": limit}),
        &["abc", "a</b>\n"],
        &["ab", "aaa"],
    );
    check(json!({"type": ["string", "integer", "array"], "maxLength": limit}), &["ab", "", "7", "[7]"], &["7.5", "[7"]);
    check(text("pattern", json!(r"^\d+/\/$")), &["1//"], &["1/", "\u{663}//"]);
    check(text("minLength", json!(2)), &["ab", "ab\ncd", "a < b > c"], &["", "a"]);
    check(text("format", json!("date")), &["2026-02-29"], &["2026-13-01", "today", "2026-01-01 "]);
    check(text("format", json!("uri")), &["https://a.b/c?d#e", "mailto:a@b"], &["a b", "/c"]);
    check(text("format", json!("ipv4")), &["127.0.0.1"], &["256.0.0.1", "1.2.3"]);
    check(json!({"$ref": "#/$defs/Name"}), &["abc"], &["\"abc\"", "ABC"]);
    check(json!({"type": ["string", "null"], "maxLength": 2}), &["ab", "null"], &["abc"]);
    check(json!({"anyOf": [{"type": "string", "pattern": "^a"}, {"type": "integer"}]}), &["ab", "12"], &["b", "1.5"]);
    check(json!({"type": ["string", "integer"]}), &["ab", "12", "12 apples"], &["1.5"]);
    let object = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    check(json!({"anyOf": [{"type": "string"}, object]}), &["ab", "{\"n\": 1}"], &["{\"n\": \"1\"}"]);
    check(json!({"enum": ["a", 1, null]}), &["a", "1", "null"], &["b", "\"a\"", "2"]);
    check(json!({"type": "string", "enum": ["a", 1]}), &["a"], &["1"]);
    check(json!({"const": "a"}), &["a"], &["b", ""]);
    check(json!({}), &["anything", "{"], &[]);
}

#[test]
fn a_keyword_that_a_bound_call_cannot_keep_is_refused_by_name() {
    let refused = |tools: Value, word: &str| {
        let strict = || {
            let mut tools = tools.clone();
            tools[0]["function"]["strict"] = json!(true);
            json!({"tools": tools})
        };
        let named = json!({"type": "function", "function": {"name": "get_weather"}});
        let required = json!({"tools": tools, "tool_choice": "required"});
        for body in [strict(), required, json!({"tools": tools, "tool_choice": named})] {
            let Err(error) = bench().grammars.form(&request(body), false) else { panic!("{word} is taken") };
            assert_eq!((error.status, error.param.as_deref()), (400, Some("tools")), "{error:?}");
            assert!(error.message.contains(&format!("{word:?}")), "{word}: {}", error.message);
        }
        assert!(bench().grammars.form(&request(json!({"tools": tools})), false).unwrap().is_none(), "free calls");
    };
    for (schema, word) in [
        (json!({"type": "string", "not": {"const": "a"}}), "not"),
        (json!({"type": "string", "if": {"minLength": 2}, "then": {"pattern": "a"}}), "if"),
        (json!({"type": "string", "format": "color"}), "format"),
        (json!({"type": "string", "pattern": "(?=a)b"}), "pattern"),
        (json!({"type": "string", "pattern": "a(^b)"}), "pattern"),
        (json!({"type": "string", "pattern": "^ab$", "maxLength": 1}), "pattern"),
        (json!({"type": "string", "minLength": 2, "maxLength": 1}), "maxLength"),
        (json!({"minLength": 2}), "minLength"),
        (json!({"type": "string", "maxLength": 1_u64 << 40}), "maxLength"),
        (json!({"type": "string", "allOf": [{"minLength": 2}, {"maxLength": 3}]}), "allOf"),
        (json!({"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]}), "oneOf"),
        (json!({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]}), "minimum"),
        (json!({"$ref": "#/$defs/Loop"}), "$ref"),
        (json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}), "uniqueItems"),
    ] {
        refused(one_parameter(&schema), word);
    }
    for (word, value) in [
        ("anyOf", json!([{"required": ["x"]}])),
        ("not", json!({"required": ["x"]})),
        ("minProperties", json!(1)),
        ("patternProperties", json!({"^a": {"type": "string"}})),
        ("dependentRequired", json!({"x": ["y"]})),
        ("required", json!(["y"])),
    ] {
        let mut tools = one_parameter(&json!({"type": "string"}));
        tools[0]["function"]["parameters"][word] = value;
        refused(tools, word);
    }
}

#[test]
fn parameters_without_names_are_what_the_schema_says_of_them() {
    let check = |additional: Value, text: &str, expect: bool| {
        let parameters = json!({"type": "object", "additionalProperties": additional});
        let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]);
        let form = form(json!({"tools": tools, "tool_choice": "required"}), false);
        assert_eq!(takes(form, text), expect, "{text} as {additional}");
    };
    check(json!(false), &call(&[]), true);
    check(json!(false), &call(&[("a", "b")]), false);
    check(json!({"type": "string", "maxLength": 2}), &call(&[("a", "b"), ("c", "de")]), true);
    check(json!({"type": "string", "maxLength": 2}), &call(&[("a", "bcd")]), false);
    check(json!({"type": "integer"}), &call(&[("a", "b")]), false);
}

#[test]
fn a_keyword_that_an_answer_cannot_keep_is_refused_by_name() {
    for (word, value) in [
        ("not", json!({"required": ["b"]})),
        ("if", json!({"required": ["b"]})),
        ("then", json!({"required": ["c"]})),
        ("else", json!({"required": ["c"]})),
        ("propertyNames", json!({"maxLength": 3})),
        ("dependencies", json!({"a": ["b"]})),
        ("dependentRequired", json!({"a": ["b"]})),
        ("dependentSchemas", json!({"a": {"required": ["b"]}})),
        ("unevaluatedProperties", json!(false)),
        ("uniqueItems", json!(true)),
        ("contains", json!({"type": "integer"})),
        ("minContains", json!(2)),
        ("maxContains", json!(2)),
        ("unevaluatedItems", json!(false)),
        ("$dynamicRef", json!("#a")),
        ("$recursiveRef", json!("#")),
    ] {
        let plain = json!({"type": ["object", "array"]});
        let mut with = plain.clone();
        with[word] = value;
        // At the top, and within.
        for schema in [with.clone(), json!({"type": "object", "properties": {"p": with}, "required": ["p"]})] {
            let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
            let Err(error) = bench().grammars.form(&request(json!({"response_format": format})), false) else {
                panic!("{word} is taken")
            };
            assert_eq!((error.status, error.param.as_deref()), (400, Some("response_format")), "{error:?}");
            assert!(error.message.contains(&format!("{word:?}")), "{word}: {}", error.message);
        }
    }
}

#[test]
fn a_beginning_of_the_answer_must_fit() {
    let begun = |prefill: Prefill| {
        let mut request = request(json!({"response_format": {"type": "json_object"}}));
        let lily_api::request::Input::Chat(chat) = &mut request.input else { unreachable!() };
        chat.prefill = Some(prefill);
        let thinks = matches!(chat.prefill, Some(Prefill::Reasoning(_)));
        bench().grammars.form(&request, thinks)
    };
    let text = |content: &str| Prefill::Text { reasoning: None, content: content.into() };
    assert!(takes(begun(text("{\"a\": ")).unwrap().unwrap(), "1}"));
    let Err(error) = begun(text("Sure! {")) else { panic!("taken") };
    assert_eq!(error.param.as_deref(), Some("messages"));
    // Reasoning is not the answer.
    assert!(takes(begun(Prefill::Reasoning("Sure! {".into())).unwrap().unwrap(), "\n\n{\"a\": 1}"));
}

/// Feeds a text to rules; the index of the first token that they do not allow, or the text's length in tokens.
fn follow(rules: &mut Rules, text: &str) -> usize {
    let tokens = tokens(text);
    for (index, &token) in tokens.iter().enumerate() {
        if rules.mask().unwrap().is_some_and(|mask| !mask.allows(token)) {
            return index;
        }
        rules.accept(token).unwrap();
    }
    tokens.len()
}

fn rules(thinks: bool, budget: Option<usize>, form: Option<Form>) -> Rules {
    Rules::new(Arc::clone(&bench().marks), thinks, budget, form).expect("something to enforce")
}

fn may_end(rules: &mut Rules) -> bool {
    let end = bench().prompter.tokenizer().require("<|im_end|>").unwrap();
    rules.mask().unwrap().is_none_or(|mask| mask.allows(end))
}

#[test]
fn a_grammar_begins_when_the_reasoning_ends() {
    let mut rules = rules(true, None, Some(form(json!({"response_format": {"type": "json_object"}}), true)));
    let text = "Let me think: not JSON at all.\n</think>\n\n";
    assert_eq!(follow(&mut rules, text), tokens(text).len());
    assert!(!may_end(&mut rules));
    assert_eq!(follow(&mut rules, "Hello"), 0);
    assert_eq!(follow(&mut rules, "{}"), tokens("{}").len());
    assert!(may_end(&mut rules));
    assert_eq!(follow(&mut rules, "more"), 0);
}

#[test]
fn the_text_may_not_end_before_the_answer() {
    let mut json = rules(true, None, Some(form(json!({"response_format": {"type": "json_object"}}), true)));
    assert!(!may_end(&mut json));
    assert_eq!(follow(&mut json, "<tool_call>"), 0, "no call was asked for");
    let mut call = rules(true, None, Some(form(json!({"tools": weather(), "tool_choice": "required"}), true)));
    assert!(!may_end(&mut call));
    let text = self::call(&[("city", "a")]);
    assert_eq!(follow(&mut call, &text), tokens(&text).len(), "a call may end the reasoning");
    assert!(may_end(&mut call));
}

#[test]
fn a_budget_closes_the_reasoning() {
    let closing = tokens("\n</think>\n\n");
    for budget in [0, 1, 5] {
        let mut rules = rules(true, Some(budget), None);
        for _ in 0..budget {
            assert!(rules.mask().unwrap().is_none());
            rules.accept(tokens("a")[0]).unwrap();
        }
        for &token in &closing {
            let mask = rules.mask().unwrap().expect("only the closing tag");
            assert_eq!((mask.count(), mask.allows(token)), (1, true));
            rules.accept(token).unwrap();
        }
        assert!(rules.mask().unwrap().is_none(), "the answer is free");
    }
    // A model that closes it by itself is not asked to again.
    let mut early = rules(true, Some(50), None);
    assert_eq!(follow(&mut early, "Hm.\n</think>\n\n"), tokens("Hm.\n</think>\n\n").len());
    (0..60).for_each(|_| early.accept(tokens("a")[0]).unwrap());
    assert!(early.mask().unwrap().is_none());
}

#[test]
fn strict_tools_bind_calls_and_nothing_else() {
    let mut tools = weather();
    tools[0]["function"]["strict"] = json!(true);
    let mut rules = rules(false, None, Some(form(json!({"tools": tools}), false)));
    let text = format!("Let me look.\n\n{}\n{}", call(&[("city", "a")]), call(&[("city", "b"), ("days", "2")]));
    assert_eq!(follow(&mut rules, &text), tokens(&text).len());
    assert!(may_end(&mut rules));
    let wrong = "<tool_call>\n<function=get_weather>\n<parameter=days>";
    assert!(follow(&mut rules, wrong) < tokens(wrong).len(), "city is required");
    assert!(!may_end(&mut rules));
}

#[test]
fn among_some_functions_no_other_is_called_and_text_is_free() {
    let mut tools = weather();
    let other = json!({"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}});
    tools.as_array_mut().unwrap().push(other);
    let body = |mode: &str| {
        let allowed = json!({"mode": mode, "tools": [{"type": "function", "function": {"name": "other"}}]});
        json!({"tools": tools, "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}})
    };
    let allowed = "<tool_call>\n<function=other>\n</function>\n</tool_call>";
    let mut auto = rules(false, None, Some(form(body("auto"), false)));
    let text = format!("Let me look.\n\n{allowed}");
    assert_eq!(follow(&mut auto, &text), tokens(&text).len());
    let mut auto = rules(false, None, Some(form(body("auto"), false)));
    let forbidden = call(&[("city", "a")]);
    assert!(follow(&mut auto, &forbidden) < tokens(&forbidden).len());
    assert!(takes(form(body("required"), false), allowed));
    assert!(!takes(form(body("required"), false), &forbidden) && !takes(form(body("required"), false), "Hello"));
}

#[test]
fn a_call_may_come_in_place_of_an_answer_that_has_a_form() {
    let both = || json!({"tools": weather(), "response_format": {"type": "json_object"}});
    let call = call(&[("city", "a")]);
    for thinks in [false, true] {
        assert!(takes(form(both(), thinks), &call));
        assert!(takes(form(both(), thinks), "{\"a\": 1}"));
        assert!(!takes(form(both(), thinks), "Hello"));
    }
    let lead = "Hm.\n</think>\n\n";
    for (text, fits) in [(format!("{lead}{call}"), true), (format!("{lead}{{}}"), true), (format!("{lead}no"), false)] {
        let mut rules = rules(true, None, Some(form(both(), true)));
        assert_eq!(follow(&mut rules, &text) == tokens(&text).len() && may_end(&mut rules), fits, "{text}");
    }
    let none = json!({"tools": weather(), "tool_choice": "none", "response_format": {"type": "json_object"}});
    assert!(!takes(form(none, false), &call));
}

#[test]
fn masks_cover_the_vocabulary() {
    let Form::Whole { mut alternatives, .. } = form(json!({"response_format": {"type": "json_object"}}), false) else {
        panic!()
    };
    let mask = alternatives[0].compute_mask().unwrap();
    assert_eq!(mask.len(), bench().vocab);
    assert!(bench().prompter.stop_ids().iter().all(|&end| !mask.is_allowed(end)));
}
