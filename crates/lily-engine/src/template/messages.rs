//! Chat messages as clients send them, made into what the family's templates accept.
//!
//! - Tool-call arguments given as a JSON string (the wire form of OpenAI's API) become the object they spell; an empty
//!   string is an empty object.
//! - The role `developer` is `system`.
//! - Templates allow one system message, at the beginning. Where a chat has others, the texts of all of them, in order, with
//!   a blank line between, become one message at the beginning; empty ones are left out.

use serde_json::{Value, json};

use super::TemplateError;

/// The messages to render.
///
/// # Errors
/// Not a list of objects with a role, or tool-call arguments that are no JSON object; the message is named.
pub fn prepare(messages: &Value) -> Result<Vec<Value>, TemplateError> {
    let Some(messages) = messages.as_array() else {
        return Err(TemplateError::Messages { place: "messages".into(), problem: "must be a list of messages".into() });
    };
    let mut messages = messages.clone();
    for (index, message) in messages.iter_mut().enumerate() {
        let place = format!("messages[{index}]");
        let problem = |problem: &str| TemplateError::Messages { place: place.clone(), problem: problem.into() };
        let role = message.as_object().ok_or_else(|| problem("must be an object"))?.get("role");
        match role.and_then(Value::as_str) {
            None => return Err(problem("needs a role, such as \"user\"")),
            Some("developer") => message["role"] = json!("system"),
            Some(_) => {}
        }
        parse_arguments(message, &place)?;
    }
    Ok(merge_system(messages))
}

fn parse_arguments(message: &mut Value, place: &str) -> Result<(), TemplateError> {
    let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else { return Ok(()) };
    for (index, call) in calls.iter_mut().enumerate() {
        let (call, path) = match call.get("function") {
            Some(_) => (&mut call["function"], "function.arguments"),
            None => (call, "arguments"),
        };
        let Some(arguments) = call.get_mut("arguments") else { continue };
        let problem =
            |problem| TemplateError::Messages { place: format!("{place}.tool_calls[{index}].{path}"), problem };
        if let Some(text) = arguments.as_str() {
            *arguments = match text.trim() {
                "" => json!({}),
                text => serde_json::from_str(text)
                    .map_err(|error| problem(format!("is a string but not JSON ({error}); send a JSON object")))?,
            };
        }
        if !arguments.is_object() && !arguments.is_null() {
            let kind = match arguments {
                Value::Array(_) => "a list",
                Value::Bool(_) => "a boolean",
                Value::Number(_) => "a number",
                _ => "text",
            };
            return Err(problem(format!("is {kind}, expected a JSON object")));
        }
    }
    Ok(())
}

fn is_system(message: &Value) -> bool {
    message["role"] == "system"
}

fn merge_system(messages: Vec<Value>) -> Vec<Value> {
    if !messages.iter().skip(1).any(is_system) {
        return messages;
    }
    let (systems, mut rest): (Vec<Value>, Vec<Value>) = messages.into_iter().partition(is_system);
    let contents: Vec<Value> = systems.iter().map(|m| m["content"].clone()).filter(|c| !is_empty(c)).collect();
    let mut merged = systems.into_iter().next().expect("one of them is a system message");
    merged["content"] = join(contents);
    rest.insert(0, merged);
    rest
}

fn is_empty(content: &Value) -> bool {
    match content {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(parts) => parts.is_empty(),
        _ => false,
    }
}

/// One content from several: text where all are text, else a list of parts.
fn join(contents: Vec<Value>) -> Value {
    if let Some(texts) = contents.iter().map(Value::as_str).collect::<Option<Vec<_>>>() {
        return Value::String(texts.join("\n\n"));
    }
    let text_part = |text: Value| json!({"type": "text", "text": text});
    let mut parts = Vec::new();
    for content in contents {
        if !parts.is_empty() {
            parts.push(text_part(json!("\n\n")));
        }
        match content {
            Value::Array(more) => parts.extend(more),
            Value::String(_) => parts.push(text_part(content)),
            // Not a content that a template accepts; its own refusal is the best message.
            other => parts.push(other),
        }
    }
    Value::Array(parts)
}
