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
