//! What conversations of all APIs have in common: messages as templates take them, functions, and what must be called.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{missing, text_at, wrong};
use crate::output::{THINK, THINK_END};
use crate::request::{Prefill, Tool, ToolChoice};

/// An assistant's message as templates take it.
pub(crate) fn reasoned_message(content: String, reasoning: Option<String>, calls: Vec<Value>) -> Value {
    let mut message = json!({"role": "assistant", "content": content});
    if let Some(reasoning) = reasoning {
        message["reasoning_content"] = json!(reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    message
}

/// A tool's answer as templates take it.
pub(crate) fn tool_message(id: &str, content: String) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": content})
}

/// What a reminder of Claude Code's begins with, which models know for what it is.
pub(crate) const REMINDER: &str = "<system-reminder>";

/// A call as templates take it.
pub(crate) fn tool_call(id: &str, name: &str, arguments: Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// The arguments of a call in a conversation: an object, or text that spells one.
pub(crate) fn arguments(value: Option<&Value>, place: &str) -> Result<Value, ApiError> {
    let parsed = match value {
        None | Some(Value::Null) => json!({}),
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|error| {
            ApiError::field(place, format!("`{place}` is text but not JSON ({error}); send a JSON object as text."))
        })?,
        Some(other) => other.clone(),
    };
    if parsed.is_object() { Ok(parsed) } else { Err(wrong(place, &parsed, "a JSON object")) }
}

/// The text of one part of a content, in any of OpenAI's spellings.
pub(crate) fn part_text(part: &Value, place: &str) -> Result<String, ApiError> {
    let object = match part {
        Value::String(text) => return Ok(text.clone()),
        Value::Object(object) => object,
        other => return Err(wrong(place, other, "an object with `type` and `text`")),
    };
    match object.get("type").and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text" | "summary_text" | "reasoning_text") => {
            text_at(object, "text", place)
        }
        Some("refusal") => text_at(object, "refusal", place),
        Some(other) => Err(unreadable(other, place)),
        None if object.contains_key("text") => text_at(object, "text", place),
        None => Err(missing(format!("{place}.type"), "text")),
    }
}

/// A part that holds no text.
pub(crate) fn unreadable(kind: &str, place: &str) -> ApiError {
    let message =
        format!("`{place}` is a part of type `{kind}`; this model reads text only. Send its text, or leave it out.");
    ApiError { code: Some("unsupported_content"), ..ApiError::field(format!("{place}.type"), message) }
}

/// Adds the function that `object` describes, whose schema is under `schema`.
pub(crate) fn add_tool(
    tools: &mut Vec<Tool>,
    object: &Map<String, Value>,
    schema: &str,
    place: &str,
) -> Result<(), ApiError> {
    let name = text_at(object, "name", place)?;
    // The name becomes a tag of the prompt and of the answer.
    if name.is_empty() || name.len() > 256 || name.contains(['<', '>', '"', '\'']) || name.contains(char::is_whitespace)
    {
        let message =
            format!("`{place}.name` is {name:?}; a function's name is 1 to 256 bytes without spaces, quotes, < and >.");
        return Err(ApiError::field(format!("{place}.name"), message));
    }
    if tools.iter().any(|tool| tool.name == name) {
        return Err(ApiError::field(
            format!("{place}.name"),
            format!("`{place}.name`: there are two functions `{name}`."),
        ));
    }
    let parameters = match object.get(schema) {
        None | Some(Value::Null) => json!({"type": "object", "properties": {}}),
        Some(parameters @ Value::Object(_)) => parameters.clone(),
        Some(other) => return Err(wrong(format!("{place}.{schema}"), other, "a JSON schema")),
    };
    tools.push(Tool {
        name,
        namespace: None,
        description: object.get("description").and_then(Value::as_str).map(str::to_owned),
        parameters,
        strict: object.get("strict").and_then(Value::as_bool).unwrap_or(false),
        free_text: false,
    });
    Ok(())
}

/// A choice that OpenAI's APIs have a word for.
pub(crate) fn word_choice(word: &str, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    match word {
        "none" => Ok(ToolChoice::None),
        "auto" => Ok(ToolChoice::Auto),
        "required" | "any" if tools.is_empty() => {
            Err(ApiError::field("tool_choice", format!("`tool_choice` is `{word}`, but the request has no functions.")))
        }
        "required" | "any" => Ok(ToolChoice::Required),
        other => {
            let message = format!("`tool_choice` is `{other}`; expected none, auto, required or a function.");
            Err(ApiError::field("tool_choice", message))
        }
    }
}

/// The choice of one function, which must exist.
pub(crate) fn named_choice(name: &str, tools: &[Tool], place: &str) -> Result<ToolChoice, ApiError> {
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(ToolChoice::Named(name.to_owned()));
    }
    Err(ApiError::field(place, format!("`{place}` is `{name}`, but the request has no such function.")))
}

/// The choice among some functions: `value` has a mode and a list of tools as the API writes them.
pub(crate) fn allowed_choice(value: &Value, tools: &[Tool], place: &str) -> Result<ToolChoice, ApiError> {
    let required = match value["mode"].as_str() {
        Some("auto") => false,
        Some("required") => true,
        _ => return Err(missing(format!("{place}.mode"), "auto or required")),
    };
    let Some(list) = value["tools"].as_array() else {
        return Err(missing(format!("{place}.tools"), "a list of functions"));
    };
    let mut names = Vec::new();
    for entry in list {
        let name = [entry, &entry["function"], &entry["custom"]].into_iter().find_map(|form| form["name"].as_str());
        // Hosted tools do not exist here, so that nothing is lost with them.
        let (Some("function" | "custom"), Some(name)) = (entry["type"].as_str(), name) else { continue };
        named_choice(name, tools, &format!("{place}.tools"))?;
        names.push(name.to_owned());
    }
    match (names.is_empty(), required) {
        (true, true) => Err(ApiError::field(place, format!("`{place}` requires a call, but names no function."))),
        (true, false) => Ok(ToolChoice::None),
        (false, required) => Ok(ToolChoice::Allowed { names, required }),
    }
}

/// Puts system messages where they can stay. Templates allow them at the beginning only. Those before the first answer go there, before
/// the questions: what clients say of themselves and the place is the same in the next conversation, which the question is not. Moving
/// a later one there would change every prompt from its first words on with each that is added. So it becomes a reminder: a part of
/// the user's message or tool result before it, or a user's message of its own.
pub(crate) fn settle_system(messages: Vec<Value>) -> Vec<Value> {
    let is_asked = |message: &Value| message["role"] == "system" || message["role"] == "user";
    let is_empty = |message: &Value| message["content"].as_str().is_some_and(|text| text.trim().is_empty());
    let answered = messages.iter().position(|message| !is_asked(message)).unwrap_or(messages.len());
    let leading = messages.iter().take_while(|message| message["role"] == "system").count();
    let mut messages = messages.into_iter();
    let mut settled: Vec<Value> = messages.by_ref().take(leading).collect();
    let (moved, asked): (Vec<Value>, Vec<Value>) =
        messages.by_ref().take(answered - leading).partition(|message| message["role"] == "system");
    settled.extend(moved.into_iter().filter(|message| !is_empty(message)));
    settled.extend(asked);
    for message in messages {
        if message["role"] != "system" {
            settled.push(message);
            continue;
        }
        let text = message["content"].as_str().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        let reminder = format!("{REMINDER}\n{text}\n</system-reminder>");
        match settled.last_mut() {
            Some(last) if last["role"] == "user" || last["role"] == "tool" => append_text(last, &reminder),
            _ => settled.push(json!({"role": "user", "content": reminder})),
        }
    }
    settled
}

/// Adds a text to a message, after a blank line.
pub(crate) fn append_text(message: &mut Value, text: &str) {
    let before = message["content"].as_str().unwrap_or_default();
    message["content"] = if before.is_empty() { json!(text) } else { json!(format!("{before}\n\n{text}")) };
}

/// Takes a trailing assistant message as the beginning of the answer. Reasoning of its own is finished; where its text begins with the
/// tag that opens reasoning, the text is what the model would have written itself, and the reasoning in it may be unfinished.
pub(crate) fn take_prefill(messages: &mut Vec<Value>) -> Option<Prefill> {
    let last = messages.last()?;
    // Without a message before it there is nothing to answer; the template will say so.
    if last["role"] != "assistant" || last.get("tool_calls").is_some() || messages.len() < 2 {
        return None;
    }
    let reasoning = last.get("reasoning_content").and_then(Value::as_str).map(str::to_owned);
    let content = last["content"].as_str().unwrap_or_default().to_owned();
    if content.is_empty() && reasoning.is_none() {
        messages.pop();
        return None;
    }
    messages.pop();
    let Some(spelled) = content.trim_start().strip_prefix(THINK).filter(|_| reasoning.is_none()) else {
        return Some(Prefill::Text { reasoning, content });
    };
    // The template writes the line breaks around the tags.
    Some(match spelled.split_once(THINK_END) {
        Some((reasoning, content)) => {
            let [reasoning, content] =
                [reasoning.trim_matches('\n'), content.trim_start_matches('\n')].map(str::to_owned);
            Prefill::Text { reasoning: Some(reasoning), content }
        }
        None => Prefill::Reasoning(spelled.strip_prefix('\n').unwrap_or(spelled).to_owned()),
    })
}
