//! Bodies of completions to requests. Without `max_tokens` the answer may fill the context.

use serde_json::{Map, Value};

use crate::common::{self, HARMLESS, SAMPLING, STOPS_MAX, STRUCTURE, TOKENS_MAX, TOP_LOGPROBS_MAX};
use crate::error::{Api, ApiError};
use crate::fields::{Body, Field, Kind, integer, only, read, wrong};
use crate::request::{Input, Prompt, Request};

/// Why thinking cannot be asked for.
const NO_THINKING: &str = "a plain text is continued as it is; use /v1/chat/completions";

/// The fields that only completions have.
pub(crate) const FIELDS: &[Field] = &[
    read("model", Kind::Text, "the model's name"),
    read("prompt", Kind::Any, "one text, or one list of token ids"),
    read("max_tokens", Kind::Integer(1, TOKENS_MAX), "most tokens to generate"),
    read("max_completion_tokens", Kind::Integer(1, TOKENS_MAX), "another name of max_tokens"),
    read("stop", Kind::Texts(STOPS_MAX), "strings that end the answer"),
    read("logprobs", Kind::Integer(0, TOP_LOGPROBS_MAX), "report log-probabilities with so many alternatives"),
    read("echo", Kind::Bool, "begin the answer with the prompt"),
    read("response_format", Kind::Object, "json_object, json_schema or grammar"),
    read("stream", Kind::Bool, "answer with server-sent events"),
    read("stream_options", Kind::Object, "include_usage: end the stream with token counts"),
    read(
        "prompt_cache_key",
        Kind::Text,
        "which finished session a new prompt takes over; prefixes are found without it",
    ),
    only("top_logprobs", &["0"], "logprobs is the number of alternatives"),
    only("n", &["1"], "one answer is generated per request"),
    only("best_of", &["1"], "one answer is generated per request"),
    only("max_output_tokens", &[], "use max_tokens"),
    only("stop_sequences", &["[]"], "use stop"),
    only("tools", &["[]"], "a plain text has no calls; use /v1/chat/completions"),
    only("functions", &["[]"], "a plain text has no calls; use /v1/chat/completions"),
    only("enable_thinking", &["false"], NO_THINKING),
    only("reasoning_effort", &["\"none\""], NO_THINKING),
    only("reasoning", &["{}"], NO_THINKING),
    only("thinking", &["{\"type\": \"disabled\"}"], NO_THINKING),
    only("thinking_budget", &["-1", "0"], NO_THINKING),
    only("thinking_token_budget", &["-1", "0"], NO_THINKING),
    only(
        "chat_template_kwargs",
        &["{}", "{\"enable_thinking\": false}"],
        "a plain text has no template; use /v1/chat/completions",
    ),
    only("suffix", &["\"\""], "put the model's own fill-in-the-middle tokens into the prompt"),
    only("prompt_logprobs", &["0"], "log-probabilities are those of the answer"),
];

/// All tables of completions.
pub(crate) const TABLES: &[&[Field]] = &[FIELDS, SAMPLING, STRUCTURE, HARMLESS];

/// Parses a body.
///
/// # Errors
/// A malformed body, or one that asks for what cannot be done.
pub fn parse(body: &[u8]) -> Result<Request, ApiError> {
    let mut body = Body::parse(body, TABLES)?;
    let prompt = prompt(body.required("prompt", "text, or a list of token ids")?)?;
    let echo = body.bool("echo").unwrap_or(false);
    let logprobs = body.count("logprobs");
    if echo && matches!(prompt, Prompt::Tokens(_)) {
        return Err(ApiError::unsupported("echo", "`echo` needs a prompt of text; token ids are not repeated."));
    }
    if echo && logprobs.is_some() {
        let message = "`echo` with `logprobs` asks for log-probabilities of the prompt, which are not computed.";
        return Err(ApiError::unsupported("echo", message));
    }
    let options = body.get("stream_options").and_then(Value::as_object);
    Ok(Request {
        api: Api::Completions,
        model: body.text("model").unwrap_or_default().to_owned(),
        input: Input::Text { prompt, echo },
        sampling: common::sampling(&body)?,
        max_tokens: body.count("max_tokens").or_else(|| body.count("max_completion_tokens")),
        stop: body.texts("stop"),
        stop_token_ids: body.ids("stop_token_ids"),
        logprobs,
        format: common::response_format(&body)?,
        stream: body.bool("stream").unwrap_or(false),
        include_usage: options.and_then(|o| o.get("include_usage")?.as_bool()).unwrap_or(false),
        cache_key: body.text("prompt_cache_key").map(str::to_owned),
        carry_reasoning: false,
        echo: Map::new(),
    })
}

/// One prompt; a list of one is the same.
fn prompt(value: Value) -> Result<Prompt, ApiError> {
    let list = match value {
        Value::String(text) => return Ok(Prompt::Text(text)),
        Value::Array(list) => list,
        other => return Err(wrong("prompt", &other, "text, or a list of token ids")),
    };
    let ids = |list: &[Value]| -> Option<Vec<u32>> {
        list.iter().map(|id| integer(id).and_then(|id| u32::try_from(id).ok())).collect()
    };
    match list.as_slice() {
        [] => Err(ApiError::field("prompt", "`prompt` is an empty list; expected text, or token ids.")),
        [Value::String(text)] => Ok(Prompt::Text(text.clone())),
        [Value::Array(inner)] if !inner.is_empty() => {
            ids(inner).map(Prompt::Tokens).ok_or_else(|| wrong("prompt[0]", &list[0], "a list of token ids"))
        }
        [Value::String(_) | Value::Array(_), ..] => {
            let message = format!("`prompt` is a list of {} prompts; send one request for each.", list.len());
            Err(ApiError::unsupported("prompt", message))
        }
        list => ids(list).map(Prompt::Tokens).ok_or_else(|| wrong("prompt[0]", &list[0], "text, or a token id")),
    }
}
