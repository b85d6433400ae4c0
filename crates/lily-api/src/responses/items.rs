//! The items of a conversation to messages.
//!
//! What the model wrote in one answer (reasoning, text, calls) comes as several items; together they are one assistant message.

use serde_json::{Map, Value, json};

use super::CARRIED;
use crate::conversation::{arguments, part_text, reasoned_message, tool_call, tool_message};
use crate::error::ApiError;
use crate::fields::{missing, text_at, wrong};
use crate::request::Tool;

/// Items of tools that run elsewhere: they say what happened, in no form that this model reads.
const HOSTED: [&str; 22] = [
    "additional_tools",
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction",
    "compaction_trigger",
    "computer_call",
    "computer_call_output",
    "configuration_update",
    "file_search_call",
    "ghost_snapshot",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "program",
    "program_output",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "web_search_call",
];

/// An assistant's turn while its items come in.
#[derive(Default)]
struct Turn {
    reasoning: Option<String>,
    content: Option<String>,
    calls: Vec<Value>,
}

impl Turn {
    fn is_empty(&self) -> bool {
        self.reasoning.is_none() && self.content.is_none() && self.calls.is_empty()
    }

    fn flush(&mut self, out: &mut Vec<Value>) {
        if !self.is_empty() {
            let turn = std::mem::take(self);
            out.push(reasoned_message(turn.content.unwrap_or_default(), turn.reasoning, turn.calls));
        }
    }
}

/// Appends the messages that the items of `input` make up.
pub(super) fn messages(list: &[Value], out: &mut Vec<Value>) -> Result<(), ApiError> {
    if list.is_empty() {
        return Err(ApiError::field("input", "`input` is empty; expected one item at least."));
    }
    let mut turn = Turn::default();
    for (index, value) in list.iter().enumerate() {
        let place = format!("input[{index}]");
        let Some(object) = value.as_object() else { return Err(wrong(place, value, "an object with `type`")) };
        item(object, &place, &mut turn, out)?;
    }
    turn.flush(out);
    Ok(())
}

fn item(object: &Map<String, Value>, place: &str, turn: &mut Turn, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let kind = match object.get("type").and_then(Value::as_str) {
        Some(kind) => kind,
        None if object.contains_key("role") => "message",
        None => return Err(missing(format!("{place}.type"), "an item's type, such as message")),
    };
    match kind {
        "message" => message(object, place, turn, out)?,
        "reasoning" => {
            if turn.content.is_some() || !turn.calls.is_empty() {
                turn.flush(out);
            }
            if let Some(text) = reasoning(object, place)? {
                turn.reasoning = Some(turn.reasoning.take().map_or(text.clone(), |before| before + "\n" + &text));
            }
        }
        "function_call" => {
            let name = name(object, place)?;
            let arguments = arguments(object.get("arguments"), &format!("{place}.arguments"))?;
            turn.calls.push(tool_call(&text_at(object, "call_id", place)?, &name, arguments));
        }
        "custom_tool_call" => {
            let input = json!({"input": text_at(object, "input", place)?});
            turn.calls.push(tool_call(&text_at(object, "call_id", place)?, &name(object, place)?, input));
        }
        "local_shell_call" => {
            let action = object.get("action").cloned().unwrap_or_default();
            let arguments = if action.is_object() { action } else { json!({}) };
            let id = object.get("call_id").and_then(Value::as_str).unwrap_or_default();
            turn.calls.push(tool_call(id, "local_shell", arguments));
        }
        "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
            turn.flush(out);
            let output = content(object.get("output"), &format!("{place}.output"))?;
            let id = object.get("call_id").and_then(Value::as_str).unwrap_or_default();
            out.push(tool_message(id, output));
        }
        "item_reference" => {
            let message =
                format!("`{place}` refers to a stored item, but nothing is stored here; send the item itself.");
            return Err(ApiError::unsupported(place, message));
        }
        kind if HOSTED.contains(&kind) => {}
        other => {
            let message = format!("`{place}` is an item of type `{other}`, which this server does not read.");
            return Err(ApiError::unsupported(format!("{place}.type"), message));
        }
    }
    Ok(())
}

/// The name of a called function as the model wrote it.
fn name(object: &Map<String, Value>, place: &str) -> Result<String, ApiError> {
    let name = text_at(object, "name", place)?;
    let namespace = object.get("namespace").and_then(Value::as_str);
    Ok(namespace.map_or(name.clone(), |namespace| Tool::full_name(namespace, &name)))
}

fn message(object: &Map<String, Value>, place: &str, turn: &mut Turn, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let text = content(object.get("content"), &format!("{place}.content"))?;
    match text_at(object, "role", place)?.as_str() {
        "assistant" => {
            turn.content = Some(turn.content.take().map_or(text.clone(), |before| before + &text));
        }
        role @ ("user" | "system" | "developer") => {
            turn.flush(out);
            let role = if role == "user" { "user" } else { "system" };
            out.push(json!({"role": role, "content": text}));
        }
        other => {
            let message = format!("`{place}.role` is `{other}`; expected user, assistant, system or developer.");
            return Err(ApiError::field(format!("{place}.role"), message));
        }
    }
    Ok(())
}

/// Text, or the texts of parts with a blank line between.
fn content(value: Option<&Value>, place: &str) -> Result<String, ApiError> {
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().enumerate().map(|(index, part)| part_text(part, &format!("{place}[{index}]")));
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n\n"))
        }
        // Older versions of Codex send an object here.
        Some(Value::Object(object)) if object.get("content").is_some_and(Value::is_string) => {
            text_at(object, "content", place)
        }
        Some(other) => Err(wrong(place, other, "text or a list of parts")),
    }
}

/// The reasoning that an item carries: its own text, what was put aside for us, or its summary.
fn reasoning(object: &Map<String, Value>, place: &str) -> Result<Option<String>, ApiError> {
    let carried = object.get("encrypted_content").and_then(Value::as_str).and_then(|text| text.strip_prefix(CARRIED));
    if let Some(text) = carried {
        return Ok(Some(text.to_owned()));
    }
    for name in ["content", "summary"] {
        let text = content(object.get(name), &format!("{place}.{name}"))?;
        if !text.is_empty() {
            return Ok(Some(text));
        }
    }
    Ok(None)
}
