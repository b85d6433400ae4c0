//! Bodies of Responses to requests.
//!
//! Nothing is stored, so a request must bring its whole conversation: `previous_response_id` and references to items are refused.
//! `instructions` come before all messages. Tools that only OpenAI's servers can run are left out; a custom tool, which takes
//! free text, is a function with one text argument; a function of a namespace has the namespace before its name.

use serde_json::{Map, Value, json};

use super::items;
use crate::common::{self, HARMLESS, SAMPLING, STOPS_MAX, STRUCTURE, TEMPLATE, TOKENS_MAX, TOP_LOGPROBS_MAX};
use crate::conversation::{add_tool, allowed_choice, named_choice, settle_system, take_prefill, word_choice};
use crate::error::{Api, ApiError};
use crate::fields::{Body, Field, Kind, ignored, missing, only, read, text_at, wrong};
use crate::request::{Conversation, Input, Request, ResponseFormat, Tool, ToolChoice};

/// The fields that only Responses has.
pub(crate) const FIELDS: &[Field] = &[
    read("model", Kind::Text, "the model's name"),
    read("input", Kind::Any, "text, or the conversation as a list of items"),
    read("instructions", Kind::Text, "system text before the conversation"),
    read("tools", Kind::List, "functions that the model may call; hosted tools are left out"),
    read("tool_choice", Kind::Any, "none, auto, required, one function, or allowed_tools"),
    read("parallel_tool_calls", Kind::Bool, "whether one answer may call several functions"),
    read("max_output_tokens", Kind::Integer(1, TOKENS_MAX), "most tokens to generate, thinking included"),
    read("text", Kind::Object, "format: text, json_object, json_schema or grammar"),
    read("include", Kind::List, "message.output_text.logprobs, reasoning.encrypted_content; others are ignored"),
    read("top_logprobs", Kind::Integer(0, TOP_LOGPROBS_MAX), "alternatives per token"),
    read("stop", Kind::Texts(STOPS_MAX), "strings that end the answer"),
    read("stream", Kind::Bool, "answer with server-sent events"),
    read(
        "prompt_cache_key",
        Kind::Text,
        "which finished session a new prompt takes over; prefixes are found without it",
    ),
    read("reasoning", Kind::Object, "effort; summary: show the thinking as its own summary; max_tokens, enabled"),
    read("enable_thinking", Kind::Bool, "whether to think before answering"),
    read("thinking_budget", Kind::Integer(-1, TOKENS_MAX), "most tokens of thinking; 0 turns it off, -1 is no bound"),
    read("chat_template_kwargs", Kind::Object, "variables of the chat template, such as enable_thinking"),
    read("reasoning_effort", Kind::Text, "another name of reasoning.effort"),
    read("thinking", Kind::Object, "type: enabled or disabled, budget_tokens"),
    read("thinking_token_budget", Kind::Integer(-1, TOKENS_MAX), "another name of thinking_budget"),
    read("response_format", Kind::Object, "another form of text.format"),
    ignored("stream_options", "usage is always sent"),
    ignored("max_tool_calls", "it bounds hosted tools, of which there are none"),
    ignored("truncation", "a conversation that is too long is refused"),
    ignored("client_metadata", "labels of the client's"),
    only("previous_response_id", &[], "responses are not stored; send the whole conversation as `input`"),
    only("conversation", &[], "conversations are not stored; send the whole conversation as `input`"),
    only("prompt", &[], "prompt templates are not stored; send `input`"),
    only("background", &["false"], "responses are not stored; wait for the answer, or stream it"),
    only("max_tokens", &[], "use max_output_tokens"),
    only("max_completion_tokens", &[], "use max_output_tokens"),
    only("stop_sequences", &["[]"], "use stop"),
    only("system", &["\"\"", "[]"], "use instructions"),
    only("functions", &["[]"], "use tools"),
    only("n", &["1"], "one answer is generated per request"),
    only("logprobs", &["false"], "ask with message.output_text.logprobs in include"),
];

/// All tables of Responses.
pub(crate) const TABLES: &[&[Field]] = &[FIELDS, SAMPLING, STRUCTURE, TEMPLATE, HARMLESS];

/// What asks for log-probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";

/// What a response repeats of its request.
const ECHOED: [&str; 14] = [
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
];

/// Parses a body.
///
/// # Errors
/// A malformed body, or one that asks for what cannot be done.
pub fn parse(body: &[u8]) -> Result<Request, ApiError> {
    let mut body = Body::parse(body, TABLES)?;
    let echo = ECHOED.iter().filter_map(|name| Some(((*name).to_owned(), body.get(name)?.clone()))).collect();
    let input = body.required("input", "text, or a list of items")?;
    let mut messages = Vec::new();
    if let Some(instructions) = body.text("instructions").filter(|text| !text.is_empty()) {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    match &input {
        Value::String(text) => messages.push(json!({"role": "user", "content": text})),
        Value::Array(list) => items::messages(list, &mut messages)?,
        other => return Err(wrong("input", other, "text, or a list of items")),
    }
    let tools = tools(body.get("tools"), &input)?;
    let tool_choice = tool_choice(body.get("tool_choice"), &tools)?;
    let (thinking, template_kwargs) = common::thinking(&body)?;
    let mut messages = settle_system(messages);
    let prefill = take_prefill(&mut messages);
    let includes =
        |name: &str| body.get("include").and_then(Value::as_array).is_some_and(|i| i.iter().any(|v| v == name));
    let wants_logprobs = includes(LOGPROBS);
    if !wants_logprobs && body.count("top_logprobs").is_some_and(|top| top > 0) {
        return Err(ApiError::field(
            "top_logprobs",
            format!("`top_logprobs` needs `{LOGPROBS}` in `include` beside it."),
        ));
    }
    Ok(Request {
        api: Api::Responses,
        model: body.text("model").unwrap_or_default().to_owned(),
        sampling: common::sampling(&body)?,
        max_tokens: body.count("max_output_tokens"),
        stop: body.texts("stop"),
        stop_token_ids: body.ids("stop_token_ids"),
        logprobs: wants_logprobs.then(|| body.count("top_logprobs").unwrap_or(0)),
        format: format(&body)?,
        stream: body.bool("stream").unwrap_or(false),
        include_usage: true,
        cache_key: body.text("prompt_cache_key").map(str::to_owned),
        carry_reasoning: includes("reasoning.encrypted_content"),
        echo,
        input: Input::Chat(Conversation {
            messages,
            tools,
            tool_choice,
            parallel_tool_calls: body.bool("parallel_tool_calls").unwrap_or(true),
            thinking,
            template_kwargs,
            prefill,
        }),
    })
}

fn format(body: &Body) -> Result<ResponseFormat, ApiError> {
    match body.get("text").and_then(|text| text.get("format")) {
        None | Some(Value::Null) => common::response_format(body),
        Some(format) => common::openai_format(format, "text.format"),
    }
}

/// The functions of the request itself, and those that items of the conversation add.
fn tools(list: Option<&Value>, input: &Value) -> Result<Vec<Tool>, ApiError> {
    let mut tools = Vec::new();
    add_tools(&mut tools, list, "tools")?;
    for (index, item) in input.as_array().into_iter().flatten().enumerate() {
        if item["type"] == "additional_tools" {
            add_tools(&mut tools, item.get("tools"), &format!("input[{index}].tools"))?;
        }
    }
    Ok(tools)
}

fn add_tools(tools: &mut Vec<Tool>, list: Option<&Value>, place: &str) -> Result<(), ApiError> {
    for (index, value) in list.and_then(Value::as_array).into_iter().flatten().enumerate() {
        let place = format!("{place}[{index}]");
        let Some(object) = value.as_object() else { return Err(wrong(place, value, "an object")) };
        match object.get("type").and_then(Value::as_str) {
            // The form of chat completions is taken too.
            Some("function") => match object.get("function").and_then(Value::as_object) {
                Some(function) => add_tool(tools, function, "parameters", &format!("{place}.function"))?,
                None => add_tool(tools, object, "parameters", &place)?,
            },
            Some("custom") => add_custom(tools, object, &place)?,
            Some("namespace") => add_namespace(tools, object, &place)?,
            Some(_) => {}
            None => return Err(missing(format!("{place}.type"), "function")),
        }
    }
    Ok(())
}

/// Functions that the client keeps in a group.
fn add_namespace(tools: &mut Vec<Tool>, object: &Map<String, Value>, place: &str) -> Result<(), ApiError> {
    let namespace = text_at(object, "name", place)?;
    let mut list = object.get("tools").cloned().unwrap_or_default();
    for tool in list.as_array_mut().into_iter().flatten() {
        if let Some(name) = tool.get("name").and_then(Value::as_str) {
            tool["name"] = json!(Tool::full_name(&namespace, name));
        }
    }
    let first = tools.len();
    add_tools(tools, Some(&list), &format!("{place}.tools"))?;
    for tool in &mut tools[first..] {
        tool.namespace = Some(namespace.clone());
    }
    Ok(())
}

/// A tool that takes free text: a function whose one argument it is.
fn add_custom(tools: &mut Vec<Tool>, object: &Map<String, Value>, place: &str) -> Result<(), ApiError> {
    add_tool(tools, object, "parameters", place)?;
    let Some(tool) = tools.last_mut() else { return Ok(()) };
    let mut about = "The text that the tool takes, exactly as it wants it.".to_owned();
    if let Some(definition) = object.get("format").and_then(|f| f.get("definition")).and_then(Value::as_str) {
        about = format!("{about} It must follow this grammar:\n{definition}");
    }
    tool.parameters = json!({
        "type": "object",
        "properties": {"input": {"type": "string", "description": about}},
        "required": ["input"],
    });
    tool.free_text = true;
    Ok(())
}

fn tool_choice(value: Option<&Value>, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let value = match value {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => return word_choice(word, tools),
        Some(value) => value,
    };
    let name = value["name"].as_str().or_else(|| value["function"]["name"].as_str());
    match (value["type"].as_str(), name) {
        (Some("function" | "custom"), Some(name)) => named_choice(name, tools, "tool_choice.name"),
        (Some("function" | "custom"), None) => Err(missing("tool_choice.name", "a function's name")),
        (Some("allowed_tools"), _) => allowed_choice(value, tools, "tool_choice"),
        _ => {
            let message = "`tool_choice` must be none, auto, required, a function or allowed_tools; hosted tools do not exist here.";
            Err(ApiError::unsupported("tool_choice", message))
        }
    }
}
