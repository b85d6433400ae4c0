//! The response object and its items.

use serde_json::{Map, Value, json};

use super::CARRIED;
use crate::chat::{number, token_json};
use crate::encode::Context;
use crate::error::ApiError;
use crate::finish::{Finish, Usage};
use crate::output::{Channel, TokenLogprob};
use crate::request::{Input, Request};

/// What all events and items of a response share.
#[derive(Debug)]
pub(super) struct Shared {
    pub context: Context,
    echo: Map<String, Value>,
    /// Thinking is shown as its own summary.
    pub summarise: bool,
    /// Thinking is handed to the client to carry.
    carry: bool,
    pub logprobs: bool,
    /// Names of tools that take free text.
    free_text: Vec<String>,
    /// Namespaces, each with the full name of one of its functions.
    namespaces: Vec<(String, String)>,
}

impl Shared {
    pub fn new(request: &Request, context: Context) -> Self {
        let (echo, carry) = (request.echo.clone(), request.carry_reasoning);
        let summary = echo.get("reasoning").and_then(|reasoning| reasoning.get("summary"));
        let summarise = summary.and_then(Value::as_str).is_some_and(|summary| summary != "none");
        let tools = match &request.input {
            Input::Chat(chat) => chat.tools.as_slice(),
            Input::Text { .. } => &[],
        };
        let free_text = tools.iter().filter(|tool| tool.free_text).map(|tool| tool.name.clone()).collect();
        let namespaced = tools.iter().filter_map(|tool| Some((tool.namespace.clone()?, tool.name.clone())));
        let namespaces = namespaced.collect();
        Self { context, echo, summarise, carry, logprobs: request.logprobs.is_some(), free_text, namespaces }
    }

    /// The response in a state, with what has been made of it.
    pub fn response(&self, status: &str, output: Value, usage: Option<&Usage>) -> Value {
        let echoed = |name: &str| self.echo.get(name).cloned().unwrap_or_default();
        let or = |name: &str, default: Value| self.echo.get(name).cloned().unwrap_or(default);
        json!({
            "id": format!("resp_{}", self.context.id),
            "object": "response",
            "created_at": self.context.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "instructions": echoed("instructions"),
            "max_output_tokens": echoed("max_output_tokens"),
            "max_tool_calls": null,
            "metadata": or("metadata", json!({})),
            "model": self.context.model,
            "output": output,
            "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
            "previous_response_id": null,
            "prompt_cache_key": echoed("prompt_cache_key"),
            "reasoning": or("reasoning", json!({"effort": null, "summary": null})),
            "safety_identifier": echoed("safety_identifier"),
            "service_tier": "default",
            "store": false,
            "temperature": echoed("temperature"),
            "text": or("text", json!({"format": {"type": "text"}})),
            "tool_choice": or("tool_choice", json!("auto")),
            "tools": or("tools", json!([])),
            "top_logprobs": or("top_logprobs", json!(0)),
            "top_p": echoed("top_p"),
            "truncation": "disabled",
            "usage": usage.map(usage_json),
            "user": echoed("user"),
        })
    }

    /// The response as it ended.
    pub fn finished(&self, output: Vec<Value>, finish: &Finish) -> Value {
        let complete = finish.reason.is_complete();
        let status = if complete { "completed" } else { "incomplete" };
        let mut response = self.response(status, Value::Array(output), Some(&finish.usage));
        if !complete {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        if let Some(timings) = finish.timings() {
            response["timings"] = timings;
        }
        response
    }

    /// The response as it failed.
    pub fn failed(&self, output: Vec<Value>, error: &ApiError) -> Value {
        let mut response = self.response("failed", Value::Array(output), None);
        let code = error.code.unwrap_or(if error.should_retry() { "server_is_overloaded" } else { "server_error" });
        response["error"] = json!({"code": code, "message": error.message});
        response
    }

    fn id(&self, prefix: &str, index: usize) -> String {
        format!("{prefix}_{}_{index}", self.context.id)
    }

    /// The reasoning item at `index` with so much of its text.
    pub fn reasoning(&self, index: usize, text: Option<&str>) -> Value {
        let mut item = json!({"id": self.id("rs", index), "type": "reasoning", "summary": []});
        match text {
            None => item["status"] = json!("in_progress"),
            Some(text) => {
                if self.summarise {
                    item["summary"] = json!([{"type": "summary_text", "text": text}]);
                } else {
                    item["content"] = json!([{"type": "reasoning_text", "text": text}]);
                }
                if self.carry {
                    item["encrypted_content"] = json!(format!("{CARRIED}{text}"));
                }
                item["status"] = json!("completed");
            }
        }
        item
    }

    /// The message item at `index`; `text` with its log-probabilities once it is complete.
    pub fn message(&self, index: usize, text: Option<(&str, &Value)>, status: &str) -> Value {
        let content = text.map_or_else(|| json!([]), |(text, logprobs)| json!([output_text(text, logprobs)]));
        json!({"id": self.id("msg", index), "type": "message", "status": status, "role": "assistant", "content": content})
    }

    /// The call item at `index`, with what is complete of its arguments.
    pub fn call(&self, index: usize, id: &str, name: &str, arguments: Option<&str>) -> Value {
        let status = if arguments.is_some() { "completed" } else { "in_progress" };
        let (kind, prefix) =
            if self.takes_free_text(name) { ("custom_tool_call", "ctc") } else { ("function_call", "fc") };
        let mut item = json!({"id": self.id(prefix, index), "type": kind, "status": status, "call_id": id});
        let (namespace, short) = self.names(name);
        item["name"] = json!(short);
        if let Some(namespace) = namespace {
            item["namespace"] = json!(namespace);
        }
        if self.takes_free_text(name) {
            item["input"] = json!(arguments.map(free_text).unwrap_or_default());
        } else {
            item["arguments"] = json!(arguments.unwrap_or_default());
        }
        item
    }

    /// The namespace of a function, and its name there.
    pub fn names<'a>(&'a self, name: &'a str) -> (Option<&'a str>, &'a str) {
        let found = self.namespaces.iter().find(|(_, full)| full == name);
        let short = found
            .and_then(|(namespace, _)| Some((namespace.as_str(), name.strip_prefix(namespace)?.strip_prefix("__")?)));
        short.map_or((None, name), |(namespace, short)| (Some(namespace), short))
    }

    pub fn takes_free_text(&self, name: &str) -> bool {
        self.free_text.iter().any(|known| known == name)
    }

    /// Log-probabilities of the answer's tokens; empty where none were asked for.
    pub fn logprobs(&self, tokens: &[(Channel, TokenLogprob)]) -> Value {
        let answer = tokens.iter().filter(|(channel, _)| self.logprobs && *channel == Channel::Content);
        answer.map(|(_, token)| token_json(token)).collect()
    }
}

/// A part of a message.
pub(super) fn output_text(text: &str, logprobs: &Value) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

/// The text that a custom tool takes, out of the arguments of the function that stands for it.
pub(super) fn free_text(arguments: &str) -> String {
    let parsed: Value = serde_json::from_str(arguments).unwrap_or_default();
    parsed["input"].as_str().unwrap_or_default().to_owned()
}

fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

/// A log-probability of an event, whose alternatives are shorter than those of an item.
pub(super) fn delta_logprobs(tokens: &[(Channel, TokenLogprob)]) -> Value {
    let short =
        |bytes: &[u8], logprob: f32| json!({"token": String::from_utf8_lossy(bytes), "logprob": number(logprob)});
    let answer = tokens.iter().filter(|(channel, _)| *channel == Channel::Content);
    answer
        .map(|(_, token)| {
            let mut json = short(&token.bytes, token.logprob);
            json["top_logprobs"] = token.top.iter().map(|(bytes, logprob)| short(bytes, *logprob)).collect();
            json
        })
        .collect()
}
