//! Bodies of Messages to requests.
//!
//! - Thinking is off unless asked for, as this API has it.
//! - Claude Code begins its system text with a billing line that differs from request to request and would part every prompt
//!   from every other at its first words. The line says nothing to a model; it is left out.
//! - Blocks of text are joined with a blank line between. A reminder that Claude Code sends along with results of tools becomes a part
//!   of the last result: as a message of its own it would be the question that the template keeps later thinking for, and
//!   the thinking before it would be dropped from the prompt.
//! - A trailing assistant message is the beginning of the answer.

use serde_json::{Map, Value, json};

use crate::common::{self, SAMPLING, STOPS_MAX, STRUCTURE, TEMPLATE, TOKENS_MAX};
use crate::conversation::{
    REMINDER, add_tool, append_text, named_choice, reasoned_message, settle_system, take_prefill, tool_call,
    tool_message, unreadable, word_choice,
};
use crate::error::{Api, ApiError};
use crate::fields::{Body, Field, Kind, ignored, kind_of, missing, only, read, text_at, wrong};
use crate::request::{Conversation, Input, Request, ResponseFormat, Thinking, Tool, ToolChoice};

/// The fields that only Messages has.
pub(crate) const FIELDS: &[Field] = &[
    read("model", Kind::Text, "the model's name"),
    read("messages", Kind::List, "the conversation"),
    read("system", Kind::Any, "text, or a list of text blocks"),
    read("max_tokens", Kind::Integer(1, TOKENS_MAX), "most tokens to generate, thinking included"),
    read("stop_sequences", Kind::Texts(STOPS_MAX), "strings that end the answer"),
    read("tools", Kind::List, "functions that the model may call"),
    read("tool_choice", Kind::Object, "type: auto, any, tool (with name) or none; disable_parallel_tool_use"),
    read("thinking", Kind::Object, "type: enabled (with budget_tokens), adaptive or disabled; off unless given"),
    read("output_config", Kind::Object, "effort: as reasoning_effort; format: a JSON schema"),
    read("output_format", Kind::Object, "a JSON schema"),
    read("stream", Kind::Bool, "answer with server-sent events"),
    read(
        "metadata",
        Kind::Object,
        "user_id: which finished session a new prompt takes over; prefixes are found without it",
    ),
    read("enable_thinking", Kind::Bool, "whether to think before answering"),
    read("chat_template_kwargs", Kind::Object, "variables of the chat template, such as enable_thinking"),
    read("reasoning_effort", Kind::Text, "none turns thinking off; minimal and low bound it to 512 and 2048 tokens"),
    read("reasoning", Kind::Object, "effort (as reasoning_effort), max_tokens, enabled"),
    read("thinking_budget", Kind::Integer(-1, TOKENS_MAX), "most tokens of thinking; 0 turns it off, -1 is no bound"),
    read("thinking_token_budget", Kind::Integer(-1, TOKENS_MAX), "another name of thinking_budget"),
    read("response_format", Kind::Object, "another form of output_config.format"),
    ignored("betas", "what the client would like to try"),
    ignored("anthropic_beta", "what the client would like to try"),
    ignored("context_management", "the conversation is taken as it is sent"),
    ignored("cache_control", "prefixes are cached without it"),
    ignored("service_tier", "there is one tier"),
    ignored("inference_geo", "it runs here"),
    only("max_completion_tokens", &[], "use max_tokens"),
    only("max_output_tokens", &[], "use max_tokens"),
    only("stop", &["[]"], "use stop_sequences"),
    only("parallel_tool_calls", &["true"], "use tool_choice.disable_parallel_tool_use"),
    only("n", &["1"], "one answer is generated per request"),
    only("instructions", &["\"\""], "use system"),
    only("functions", &["[]"], "use tools"),
    only("previous_response_id", &[], "answers are not stored; send the whole conversation as messages"),
    only("container", &[], "there are no containers"),
    only("mcp_servers", &["[]"], "tools are called by the client"),
    only("logprobs", &["false"], "this API has no log-probabilities"),
    only("top_logprobs", &["0"], "this API has no log-probabilities"),
];

/// All tables of Messages.
pub(crate) const TABLES: &[&[Field]] = &[FIELDS, SAMPLING, STRUCTURE, TEMPLATE];

/// What the volatile line of Claude Code's system text begins with.
const BILLING: &str = "x-anthropic-billing-header:";

/// Parses a body.
///
/// # Errors
/// A malformed body, or one that asks for what cannot be done.
pub fn parse(body: &[u8]) -> Result<Request, ApiError> {
    let mut body = Body::parse(body, TABLES)?;
    let list = body.required("messages", "a list of messages")?;
    let list = list.as_array().map_or(&[][..], Vec::as_slice);
    if list.is_empty() {
        return Err(ApiError::field("messages", "`messages` is empty; expected one message at least."));
    }
    let mut messages = Vec::new();
    let system = body.get("system").map_or(Ok(String::new()), system_text)?;
    if !system.is_empty() {
        messages.push(json!({"role": "system", "content": system}));
    }
    for (index, value) in list.iter().enumerate() {
        message(value, &format!("messages[{index}]"), &mut messages)?;
    }
    let tools = tools(body.get("tools"))?;
    let (tool_choice, parallel_tool_calls) = tool_choice(body.get("tool_choice"), &tools)?;
    let (thinking, template_kwargs) = thinking(&body)?;
    let mut messages = settle_system(messages);
    let prefill = take_prefill(&mut messages);
    let user = body.get("metadata").and_then(|m| m.get("user_id")).and_then(Value::as_str);
    Ok(Request {
        api: Api::Messages,
        model: body.text("model").unwrap_or_default().to_owned(),
        sampling: common::sampling(&body)?,
        max_tokens: body.count("max_tokens"),
        stop: body.texts("stop_sequences"),
        stop_token_ids: body.ids("stop_token_ids"),
        logprobs: None,
        format: format(&body)?,
        stream: body.bool("stream").unwrap_or(false),
        include_usage: true,
        cache_key: user.map(str::to_owned),
        carry_reasoning: false,
        echo: Map::new(),
        input: Input::Chat(Conversation {
            messages,
            tools,
            tool_choice,
            parallel_tool_calls,
            thinking,
            template_kwargs,
            prefill,
        }),
    })
}

fn thinking(body: &Body) -> Result<(Thinking, Map<String, Value>), ApiError> {
    let (mut thinking, kwargs) = common::thinking(body)?;
    let kind = body.get("thinking").and_then(|t| t.get("type"));
    match kind.and_then(Value::as_str) {
        None | Some("enabled" | "disabled" | "adaptive") => {}
        Some(other) => {
            let message = format!("`thinking.type` is `{other}`; expected enabled, adaptive or disabled.");
            return Err(ApiError::field("thinking.type", message));
        }
    }
    let effort = body.get("output_config").and_then(|config| config.get("effort")).and_then(Value::as_str);
    if let Some(effort) = effort
        && thinking.enabled == Some(true)
    {
        let budget = thinking.budget_tokens;
        common::apply_effort(&mut thinking, effort, "output_config.effort")?;
        thinking.budget_tokens = budget.or(thinking.budget_tokens);
    }
    thinking.enabled = thinking.enabled.or(Some(false));
    Ok((thinking, kwargs))
}

fn format(body: &Body) -> Result<ResponseFormat, ApiError> {
    let nested = body.get("output_config").and_then(|config| config.get("format")).filter(|format| !format.is_null());
    match (nested, body.get("output_format")) {
        (Some(format), _) => common::openai_format(format, "output_config.format"),
        (None, Some(format)) => common::openai_format(format, "output_format"),
        (None, None) => common::response_format(body),
    }
}

/// The system text without volatile lines.
fn system_text(value: &Value) -> Result<String, ApiError> {
    let mut texts = Vec::new();
    match value {
        Value::String(text) => texts.push(without_billing(text)),
        Value::Array(blocks) => {
            for (index, block) in blocks.iter().enumerate() {
                texts.push(without_billing(&block_text(block, &format!("system[{index}]"))?));
            }
        }
        other => return Err(wrong("system", other, "text or a list of text blocks")),
    }
    texts.retain(|text| !text.trim().is_empty());
    Ok(texts.join("\n\n"))
}

fn without_billing(text: &str) -> String {
    // It is the first line, of a block of its own or not.
    match text.trim_start().strip_prefix(BILLING) {
        Some(rest) => rest.split_once('\n').map_or("", |(_, rest)| rest).to_owned(),
        None => text.to_owned(),
    }
}

/// The text of a block that must hold text.
fn block_text(block: &Value, place: &str) -> Result<String, ApiError> {
    let object = match block {
        Value::String(text) => return Ok(text.clone()),
        Value::Object(object) => object,
        other => return Err(wrong(place, other, "an object with `type` and `text`")),
    };
    match object.get("type").and_then(Value::as_str) {
        Some("text") => text_at(object, "text", place),
        Some("document" | "search_result") => document_text(object, place),
        Some(other) => Err(unreadable(other, place)),
        None => Err(missing(format!("{place}.type"), "text")),
    }
}

/// The text of a document that is text.
fn document_text(object: &Map<String, Value>, place: &str) -> Result<String, ApiError> {
    let title = object.get("title").and_then(Value::as_str).map_or_else(String::new, |title| format!("{title}\n\n"));
    let source = object.get("source").unwrap_or(&Value::Null);
    let data = source.get("data").and_then(Value::as_str).filter(|_| source["type"] == "text");
    let text = match (data, object.get("content").or_else(|| source.get("content"))) {
        (Some(data), _) => data.to_owned(),
        (None, Some(Value::String(text))) => text.clone(),
        (None, Some(Value::Array(blocks))) => joined(blocks, &format!("{place}.content"))?,
        _ => {
            let kind = source["type"].as_str().unwrap_or("unknown");
            return Err(unreadable(&format!("document ({kind})"), place));
        }
    };
    Ok(title + &text)
}

fn joined(blocks: &[Value], place: &str) -> Result<String, ApiError> {
    let texts = blocks.iter().enumerate().map(|(index, block)| block_text(block, &format!("{place}[{index}]")));
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n\n"))
}

fn message(value: &Value, place: &str, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let Some(object) = value.as_object() else {
        return Err(wrong(place, value, "an object with `role` and `content`"));
    };
    let role = text_at(object, "role", place)?;
    let blocks = match object.get("content") {
        Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
        Some(Value::Array(blocks)) => blocks.clone(),
        None | Some(Value::Null) => return Err(missing(format!("{place}.content"), "text or a list of blocks")),
        Some(other) => return Err(wrong(format!("{place}.content"), other, "text or a list of blocks")),
    };
    let place = format!("{place}.content");
    match role.as_str() {
        "user" => user(&blocks, &place, out),
        "assistant" => assistant(&blocks, &place, out),
        "system" => {
            out.push(json!({"role": "system", "content": without_billing(&joined(&blocks, &place)?)}));
            Ok(())
        }
        other => {
            let message = format!("`role` is `{other}`; expected user, assistant or system.");
            Err(ApiError::field(place.replace(".content", ".role"), message))
        }
    }
}

fn user(blocks: &[Value], place: &str, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let mut texts: Vec<String> = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let place = format!("{place}[{index}]");
        if block["type"] == "tool_result" {
            flush_user(&mut texts, out);
            out.push(tool_result(block, &place)?);
            continue;
        }
        let text = block_text(block, &place)?;
        match out.last_mut() {
            Some(last) if index > 0 && texts.is_empty() && last["role"] == "tool" && text.starts_with(REMINDER) => {
                append_text(last, &text);
            }
            _ => texts.push(text),
        }
    }
    // A message without any text is still a turn.
    if blocks.is_empty() {
        texts.push(String::new());
    }
    flush_user(&mut texts, out);
    Ok(())
}

fn flush_user(texts: &mut Vec<String>, out: &mut Vec<Value>) {
    if !texts.is_empty() {
        out.push(json!({"role": "user", "content": texts.join("\n\n")}));
        texts.clear();
    }
}

fn tool_result(block: &Value, place: &str) -> Result<Value, ApiError> {
    let text = match block.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(blocks)) => joined(blocks, &format!("{place}.content"))?,
        Some(other) => return Err(wrong(format!("{place}.content"), other, "text or a list of blocks")),
    };
    // The template has no word for failures.
    let failed = block["is_error"] == true && !text.to_lowercase().contains("error");
    let text = if failed { format!("Error: {text}") } else { text };
    Ok(tool_message(block.get("tool_use_id").and_then(Value::as_str).unwrap_or_default(), text))
}

fn assistant(blocks: &[Value], place: &str, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let (mut content, mut reasoning, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let place = format!("{place}[{index}]");
        let Some(object) = block.as_object() else { return Err(wrong(place, block, "an object with `type`")) };
        match object.get("type").and_then(Value::as_str) {
            Some("thinking") => reasoning.push(text_at(object, "thinking", &place)?),
            // Not ours, and nobody can read it.
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let name = text_at(object, "name", &place)?;
                let input = match object.get("input") {
                    None | Some(Value::Null) => json!({}),
                    Some(input @ Value::Object(_)) => input.clone(),
                    Some(other) => return Err(wrong(format!("{place}.input"), other, "an object")),
                };
                let id = object.get("id").and_then(Value::as_str).unwrap_or_default();
                calls.push(tool_call(id, &name, input));
            }
            _ => content.push(block_text(block, &place)?),
        }
    }
    let reasoning = (!reasoning.is_empty()).then(|| reasoning.join("\n"));
    out.push(reasoned_message(content.concat(), reasoning, calls));
    Ok(())
}

/// The functions of a request. Tools that Anthropic's servers run, or whose schema only its models know, are left out.
fn tools(list: Option<&Value>) -> Result<Vec<Tool>, ApiError> {
    let mut tools = Vec::new();
    for (index, value) in list.and_then(Value::as_array).into_iter().flatten().enumerate() {
        let place = format!("tools[{index}]");
        let Some(object) = value.as_object() else { return Err(wrong(place, value, "an object")) };
        let custom = matches!(object.get("type").and_then(Value::as_str), None | Some("custom"));
        if custom || object.contains_key("input_schema") {
            add_tool(&mut tools, object, "input_schema", &place)?;
        }
    }
    Ok(tools)
}

fn tool_choice(value: Option<&Value>, tools: &[Tool]) -> Result<(ToolChoice, bool), ApiError> {
    let Some(value) = value else { return Ok((ToolChoice::Auto, true)) };
    let parallel = value["disable_parallel_tool_use"] != true;
    let choice = match value["type"].as_str() {
        Some("tool") => match &value["name"] {
            Value::String(name) => named_choice(name, tools, "tool_choice.name")?,
            Value::Null => return Err(missing("tool_choice.name", "a function's name")),
            other => return Err(wrong("tool_choice.name", other, "a function's name")),
        },
        Some("required") | None => {
            let found = kind_of(&value["type"]);
            let message = format!("`tool_choice.type` is {found}; expected auto, any, tool or none.");
            return Err(ApiError::field("tool_choice.type", message));
        }
        Some(word) => word_choice(word, tools)?,
    };
    Ok((choice, parallel))
}
