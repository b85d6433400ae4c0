//! Bodies of chat completions to requests.
//!
//! A trailing assistant message is the beginning of the answer ([`crate::request::Prefill`]), unless it calls tools or `continue_final_message`
//! is false. Text parts of a message are joined without anything between, as chat templates join them.

use serde_json::{Map, Value, json};

use crate::common::{self, HARMLESS, SAMPLING, STOPS_MAX, STRUCTURE, TEMPLATE, THINKING, TOKENS_MAX, TOP_LOGPROBS_MAX};
use crate::conversation::{
    add_tool, allowed_choice, arguments, named_choice, part_text, reasoned_message, settle_system, take_prefill,
    tool_call, tool_message, word_choice,
};
use crate::error::{Api, ApiError};
use crate::fields::{Body, Field, Kind, ignored, missing, only, read, text_at, wrong};
use crate::request::{Conversation, Input, Request, Tool, ToolChoice};

/// The fields that only chat completions have.
pub(crate) const FIELDS: &[Field] = &[
    read("model", Kind::Text, "the model's name"),
    read("messages", Kind::List, "the conversation"),
    read("tools", Kind::List, "functions that the model may call"),
    read("tool_choice", Kind::Any, "none, auto, required, one function, or allowed_tools"),
    read("parallel_tool_calls", Kind::Bool, "whether one answer may call several functions"),
    read("max_completion_tokens", Kind::Integer(1, TOKENS_MAX), "most tokens to generate, thinking included"),
    read("max_tokens", Kind::Integer(1, TOKENS_MAX), "another name of max_completion_tokens"),
    read("stop", Kind::Texts(STOPS_MAX), "strings that end the answer"),
    read("logprobs", Kind::Bool, "report log-probabilities"),
    read("top_logprobs", Kind::Integer(0, TOP_LOGPROBS_MAX), "alternatives per token"),
    read("response_format", Kind::Object, "text, json_object, json_schema or grammar"),
    read("stream", Kind::Bool, "answer with server-sent events"),
    read("stream_options", Kind::Object, "include_usage: end the stream with token counts"),
    read(
        "prompt_cache_key",
        Kind::Text,
        "which finished session a new prompt takes over; prefixes are found without it",
    ),
    read("continue_final_message", Kind::Bool, "whether a trailing assistant message is continued; true unless said"),
    ignored("add_generation_prompt", "follows from the last message"),
    ignored("verbosity", "say in words how long an answer should be"),
    ignored("prediction", "a hint for speed"),
    only("n", &["1"], "one answer is generated per request"),
    only("best_of", &["1"], "one answer is generated per request"),
    only("modalities", &["[\"text\"]"], "answers are text"),
    only("audio", &[], "answers are text"),
    only("web_search_options", &[], "there is no web search here; give the model a tool"),
    only("functions", &["[]"], "use tools"),
    only("function_call", &["\"none\"", "\"auto\""], "use tool_choice"),
    only("echo", &["false"], "answers do not repeat the prompt"),
    only("max_output_tokens", &[], "use max_completion_tokens"),
    only("stop_sequences", &["[]"], "use stop"),
    only("system", &["\"\"", "[]"], "put it into messages, with the role system"),
    only("instructions", &["\"\""], "put them into messages, with the role system"),
    only("previous_response_id", &[], "answers are not stored; send the whole conversation as messages"),
    only("prompt_logprobs", &["0"], "log-probabilities are those of the answer"),
];

/// All tables of chat completions.
pub(crate) const TABLES: &[&[Field]] = &[FIELDS, SAMPLING, THINKING, STRUCTURE, TEMPLATE, HARMLESS];

/// Parses a body.
///
/// # Errors
/// A malformed body, or one that asks for what cannot be done.
pub fn parse(body: &[u8]) -> Result<Request, ApiError> {
    let mut body = Body::parse(body, TABLES)?;
    let messages = body.required("messages", "a list of messages")?;
    let mut messages = settle_system(self::messages(messages.as_array().map_or(&[][..], Vec::as_slice))?);
    let tools = tools(body.get("tools"))?;
    let tool_choice = tool_choice(body.get("tool_choice"), &tools)?;
    let (thinking, template_kwargs) = common::thinking(&body)?;
    let prefill = if body.bool("continue_final_message") == Some(false) { None } else { take_prefill(&mut messages) };
    let logprobs = logprobs(&body)?;
    let options = body.get("stream_options").and_then(Value::as_object);
    Ok(Request {
        api: Api::Chat,
        model: body.text("model").unwrap_or_default().to_owned(),
        sampling: common::sampling(&body)?,
        max_tokens: body.count("max_completion_tokens").or_else(|| body.count("max_tokens")),
        stop: body.texts("stop"),
        stop_token_ids: body.ids("stop_token_ids"),
        logprobs,
        format: common::response_format(&body)?,
        stream: body.bool("stream").unwrap_or(false),
        include_usage: options.and_then(|o| o.get("include_usage")?.as_bool()).unwrap_or(false),
        cache_key: body.text("prompt_cache_key").map(str::to_owned),
        carry_reasoning: false,
        echo: Map::new(),
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

fn logprobs(body: &Body) -> Result<Option<usize>, ApiError> {
    let top = body.count("top_logprobs");
    match (body.bool("logprobs"), top) {
        (Some(true), top) => Ok(Some(top.unwrap_or(0))),
        (_, None | Some(0)) => Ok(None),
        (_, Some(_)) => Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs`: true beside it.")),
    }
}

fn messages(list: &[Value]) -> Result<Vec<Value>, ApiError> {
    if list.is_empty() {
        return Err(ApiError::field("messages", "`messages` is empty; expected one message at least."));
    }
    list.iter().enumerate().map(|(index, value)| message(value, &format!("messages[{index}]"))).collect()
}

fn message(value: &Value, place: &str) -> Result<Value, ApiError> {
    let Some(object) = value.as_object() else {
        return Err(wrong(place, value, "an object with `role` and `content`"));
    };
    let role = text_at(object, "role", place)?;
    let content = || content_text(object.get("content"), &format!("{place}.content"));
    match role.as_str() {
        "system" | "developer" => Ok(json!({"role": "system", "content": content()?})),
        "user" => match object.get("content") {
            None | Some(Value::Null) => Err(missing(format!("{place}.content"), "text")),
            _ => Ok(json!({"role": "user", "content": content()?})),
        },
        "assistant" => assistant(object, content()?, place),
        "tool" | "function" => {
            let id = object.get("tool_call_id").and_then(Value::as_str).unwrap_or_default();
            Ok(tool_message(id, content()?))
        }
        other => {
            let message = format!("`{place}.role` is `{other}`; expected system, developer, user, assistant or tool.");
            Err(ApiError::field(format!("{place}.role"), message))
        }
    }
}

fn assistant(object: &Map<String, Value>, content: String, place: &str) -> Result<Value, ApiError> {
    // Clients send back what they were sent, under the name that they know.
    let reasoning = ["reasoning_content", "reasoning"].iter().find_map(|name| object.get(*name)?.as_str());
    let reasoning = reasoning.map(str::to_owned);
    let calls = match object.get("tool_calls") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(calls)) => calls,
        Some(other) => return Err(wrong(format!("{place}.tool_calls"), other, "a list")),
    };
    let mut rendered = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        let place = format!("{place}.tool_calls[{index}]");
        let function = call.get("function").and_then(Value::as_object);
        let function =
            function.ok_or_else(|| missing(format!("{place}.function"), "an object with name and arguments"))?;
        let name = text_at(function, "name", &format!("{place}.function"))?;
        let arguments = arguments(function.get("arguments"), &format!("{place}.function.arguments"))?;
        let id = call.get("id").and_then(Value::as_str).unwrap_or_default();
        rendered.push(tool_call(id, &name, arguments));
    }
    Ok(reasoned_message(content, reasoning, rendered))
}

/// The text of a message's content: text, null, or a list of text parts.
fn content_text(content: Option<&Value>, place: &str) -> Result<String, ApiError> {
    let parts = match content {
        None | Some(Value::Null) => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(wrong(place, other, "text or a list of parts")),
    };
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        text += &part_text(part, &format!("{place}[{index}]"))?;
    }
    Ok(text)
}

/// The functions of a request. Types that only a hosted service has are left out: the model cannot call them.
fn tools(list: Option<&Value>) -> Result<Vec<Tool>, ApiError> {
    let mut tools: Vec<Tool> = Vec::new();
    for (index, value) in list.and_then(Value::as_array).into_iter().flatten().enumerate() {
        let place = format!("tools[{index}]");
        let Some(object) = value.as_object() else { return Err(wrong(place, value, "an object")) };
        match object.get("type").and_then(Value::as_str) {
            Some("function") | None => {}
            Some(_) => continue,
        }
        let Some(function) = object.get("function").and_then(Value::as_object) else {
            return Err(missing(format!("{place}.function"), "an object with name, description and parameters"));
        };
        add_tool(&mut tools, function, "parameters", &format!("{place}.function"))?;
    }
    Ok(tools)
}

fn tool_choice(value: Option<&Value>, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let named = |name: &Value, place| match name.as_str() {
        Some(name) => named_choice(name, tools, place),
        None => Err(wrong(place, name, "a function's name")),
    };
    match value {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => word_choice(word, tools),
        Some(value) => match (value["type"].as_str(), &value["function"]["name"], &value["name"]) {
            (Some("function"), Value::Null, name) => named(name, "tool_choice.name"),
            (Some("function"), name, _) => named(name, "tool_choice.function.name"),
            (Some("allowed_tools"), ..) => allowed_choice(&value["allowed_tools"], tools, "tool_choice.allowed_tools"),
            _ => {
                let message = "`tool_choice` must be none, auto, required, a function or allowed_tools.";
                Err(ApiError::unsupported("tool_choice", message))
            }
        },
    }
}
