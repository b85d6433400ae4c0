//! The family's form of a tool call as a grammar: names and parameters of the given tools, values by their schemas.
//!
//! Parameters come in the schema's order, those that are required always: a call that follows this grammar is a call that the
//! tool takes.

use super::grammar::bounded;
use lily_api::request::Tool;
use serde_json::{Map, Value};
use std::fmt::Write;

/// An answer that is one call, or several; behind the blank line that may follow the reasoning.
pub(crate) fn whole(tools: &[&Tool], several: bool, thinks: bool) -> String {
    let mut text = String::new();
    let lead = if thinks { "LEAD? " } else { "" };
    let more = if several { " (\"\\n\" one)*" } else { "" };
    let _ = writeln!(text, "start: {lead}one{more}\none: \"<tool_call>\\n\" call");
    if thinks {
        text.push_str("LEAD: /\\n{1,2}/\n");
    }
    rules(tools, &mut text);
    text
}

/// A call behind its opening tag.
pub(crate) fn behind_opener(tools: &[&Tool]) -> String {
    let mut text = "start: \"\\n\" call\n".to_owned();
    rules(tools, &mut text);
    text
}

/// The rule `call` and all that it needs.
fn rules(tools: &[&Tool], text: &mut String) {
    let names: Vec<String> = (0..tools.len()).map(|index| format!("tool_{index}")).collect();
    let _ = writeln!(text, "call: ({}) \"</function>\\n</tool_call>\"", names.join(" | "));
    text.push_str("free_text[suffix=\"\\n</parameter>\\n\"]: /(.|\\n)*/\n");
    for (name, tool) in names.iter().zip(tools) {
        let mut body = quoted(&format!("<function={}>\n", tool.name));
        match properties(&tool.parameters) {
            Some(properties) => {
                for (index, (key, schema)) in properties.iter().enumerate() {
                    let rule = format!("{name}_{index}");
                    let optional = if is_required(&tool.parameters, key) { "" } else { "?" };
                    let _ = write!(body, " {rule}{optional}");
                    parameter(&rule, key, schema, &tool.parameters, text);
                }
            }
            None => {
                body.push_str(" any_parameter*");
            }
        }
        let _ = writeln!(text, "{name}: {body}");
    }
    if text.contains(" any_parameter*") {
        text.push_str("any_parameter: \"<parameter=\" KEY \">\\n\" free_text\nKEY: /[^>\\n]{1,64}/\n");
    }
}

/// One parameter with its tags.
fn parameter(rule: &str, key: &str, schema: &Value, whole: &Value, text: &mut String) {
    let open = quoted(&format!("<parameter={key}>\n"));
    let value = match texts(schema) {
        Texts::All => "free_text".to_owned(),
        Texts::Some(values) => {
            let values: Vec<String> = values.iter().map(|value| quoted(&format!("{value}\n</parameter>\n"))).collect();
            format!("({})", values.join(" | "))
        }
        Texts::None => {
            let _ = writeln!(text, "{rule}_value: %json {}", bounded(&with_definitions(schema, whole)));
            format!("{rule}_value \"\\n</parameter>\\n\"")
        }
    };
    let _ = writeln!(text, "{rule}: {open} {value}");
}

/// The properties of an object's schema; `None` where it does not name any.
fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object).filter(|properties| !properties.is_empty())
}

fn is_required(schema: &Value, key: &str) -> bool {
    schema.get("required").and_then(Value::as_array).is_some_and(|keys| keys.iter().any(|k| k == key))
}

/// Which texts a schema allows. They are written as they are; all other values are written as JSON.
enum Texts<'a> {
    All,
    Some(Vec<&'a str>),
    None,
}

fn texts(schema: &Value) -> Texts<'_> {
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let texts: Option<Vec<&str>> = values.iter().map(Value::as_str).collect();
        return texts.filter(|texts| !texts.is_empty()).map_or(Texts::None, Texts::Some);
    }
    if let Some(value) = schema.get("const") {
        return value.as_str().map_or(Texts::None, |text| Texts::Some(vec![text]));
    }
    let is_text = |kind: &Value| kind == "string";
    let by_type = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(is_text),
        Some(kind) => is_text(kind),
        None => false,
    };
    let any_of = |word| schema.get(word).and_then(Value::as_array);
    let by_branch = ["anyOf", "oneOf"].into_iter().filter_map(any_of).flatten().any(|s| matches!(texts(s), Texts::All));
    if by_type || by_branch { Texts::All } else { Texts::None }
}

/// A part of a schema that can be read without the whole: references go to definitions, which come along.
fn with_definitions(schema: &Value, whole: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(map) = &mut schema {
        for word in ["$defs", "definitions"] {
            if let Some(definitions) = whole.get(word) {
                map.entry(word).or_insert_with(|| definitions.clone());
            }
        }
    }
    schema
}

/// A text as a literal of the grammar.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
