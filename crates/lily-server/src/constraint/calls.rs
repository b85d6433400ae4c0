//! The family's form of a tool call as a grammar: names and parameters of the given tools; their values are [`texts`]' work.
//!
//! Parameters come in the schema's order, those that are required always: a call that follows this grammar is a call that the
//! tool takes.

use super::texts;
use lily_api::request::Tool;
use serde_json::{Map, Value};
use std::fmt::Write;

/// An answer that is one call, or several; behind the blank line that may follow the reasoning.
///
/// # Errors
/// What of the tools' schemas cannot be enforced, in words.
pub(crate) fn whole(tools: &[&Tool], several: bool, thinks: bool) -> Result<String, String> {
    let mut text = String::new();
    let lead = if thinks { "LEAD? " } else { "" };
    let more = if several { " (\"\\n\" one)*" } else { "" };
    let _ = writeln!(text, "start: {lead}one{more}\none: \"<tool_call>\\n\" call");
    if thinks {
        text.push_str("LEAD: /\\n{1,2}/\n");
    }
    rules(tools, &mut text)?;
    Ok(text)
}

/// A call behind its opening tag.
///
/// # Errors
/// As for [`whole`].
pub(crate) fn behind_opener(tools: &[&Tool]) -> Result<String, String> {
    let mut text = "start: \"\\n\" call\n".to_owned();
    rules(tools, &mut text)?;
    Ok(text)
}

/// The rule `call` and all that it needs.
fn rules(tools: &[&Tool], text: &mut String) -> Result<(), String> {
    let names: Vec<String> = (0..tools.len()).map(|index| format!("tool_{index}")).collect();
    let _ = writeln!(text, "call: ({}) \"</function>\\n</tool_call>\"", names.join(" | "));
    text.push_str("free_text[suffix=\"\\n</parameter>\\n\"]: /(.|\\n)*/\nKEY: /[^>\\n]{1,64}/\n");
    for (name, tool) in names.iter().zip(tools) {
        let parameters =
            function(name, &tool.parameters, text).map_err(|e| format!("{e} (function {:?})", tool.name))?;
        let _ = writeln!(text, "{name}: {}{parameters}", quoted(&format!("<function={}>\n", tool.name)));
    }
    Ok(())
}

/// The parameters of a function, as what follows its name.
fn function(name: &str, schema: &Value, text: &mut String) -> Result<String, String> {
    if let Some(object) = schema.as_object() {
        check_together(object)?;
    }
    let mut body = String::new();
    let Some(properties) = properties(schema) else {
        let value = match schema.get("additionalProperties") {
            Some(Value::Bool(false)) => return Ok(body),
            Some(other) => texts::value(name, other, schema, text)?,
            None => "free_text".to_owned(),
        };
        let _ = writeln!(text, "{name}_any: \"<parameter=\" KEY \">\\n\" {value}");
        let _ = write!(body, " {name}_any*");
        return Ok(body);
    };
    for (index, (key, property)) in properties.iter().enumerate() {
        let rule = format!("{name}_{index}");
        let optional = if is_required(schema, key) { "" } else { "?" };
        let _ = write!(body, " {rule}{optional}");
        let value = texts::value(&rule, property, schema, text).map_err(|e| format!("{e} (parameter {key:?})"))?;
        let _ = writeln!(text, "{rule}: {} {value}", quoted(&format!("<parameter={key}>\n")));
    }
    Ok(body)
}

/// The properties of an object's schema; `None` where it does not name any.
fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object).filter(|properties| !properties.is_empty())
}

/// Checks that nothing is said of the parameters together that the form cannot keep.
fn check_together(schema: &Map<String, Value>) -> Result<(), String> {
    let kept = ["type", "properties", "required", "additionalProperties"];
    if let Some(word) = texts::restricting(schema).find(|word| !kept.contains(word)) {
        return Err(format!("{word:?} of the parameters together"));
    }
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let named = |key: &&str| schema.get("properties").is_some_and(|properties| properties.get(key).is_some());
    match required.into_iter().find(|key| !named(key)) {
        Some(key) => Err(format!("\"required\" with {key:?}, which \"properties\" does not name")),
        None => Ok(()),
    }
}

fn is_required(schema: &Value, key: &str) -> bool {
    schema.get("required").and_then(Value::as_array).is_some_and(|keys| keys.iter().any(|k| k == key))
}

/// A text as a literal of the grammar.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
