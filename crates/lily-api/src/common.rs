//! Fields that several APIs share, and what they mean.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Body, Field, Kind, ignored, only, only_beside, read, wrong};
use crate::request::{GrammarSyntax, ResponseFormat, Sampling, Thinking};

/// Most stop strings of a request.
pub(crate) const STOPS_MAX: usize = 64;
/// Most alternatives per token.
pub(crate) const TOP_LOGPROBS_MAX: i64 = 20;
/// Most tokens that a field can ask for; the context is always shorter.
pub(crate) const TOKENS_MAX: i64 = 1 << 31;

/// What penalizes repetition, with the number that does not.
const REPETITION: &[(&str, f64)] = &[("repetition_penalty", 1.0), ("repeat_penalty", 1.0)];
/// All that penalizes tokens of the text, likewise.
const PENALTIES: &[(&str, f64)] =
    &[("repetition_penalty", 1.0), ("repeat_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)];

/// How tokens are chosen, for every API.
pub(crate) const SAMPLING: &[Field] = &[
    read("temperature", Kind::Number(0.0, 100.0), "divides the logits; 0 is greedy"),
    read("top_p", Kind::Number(0.0, 1.0), "keep the most likely tokens that have this share of the probability"),
    read("top_k", Kind::Integer(-1, 1 << 31), "keep this many of the most likely tokens; 0 or -1 keeps all"),
    read("min_p", Kind::Number(0.0, 1.0), "keep tokens at least this likely, relative to the most likely one"),
    read("presence_penalty", Kind::Number(-2.0, 2.0), "subtracted from logits of tokens generated before"),
    read("frequency_penalty", Kind::Number(-2.0, 2.0), "subtracted once per time a token was generated before"),
    read("repetition_penalty", Kind::Number(0.0, 100.0), "divides logits of tokens seen before; 1 is off"),
    read("repeat_penalty", Kind::Number(0.0, 100.0), "another name of repetition_penalty"),
    read("logit_bias", Kind::Object, "token ids, as text, to what is added to their logits"),
    read("seed", Kind::Integer(i64::MIN, i64::MAX), "same seed, same draws; -1 is none"),
    read("stop_token_ids", Kind::Ids, "further tokens that end the answer"),
    only("mirostat", &["0"], "there is no mirostat sampling"),
    only("dry_multiplier", &["0"], "there is no DRY penalty"),
    only("xtc_probability", &["0"], "there is no XTC sampling"),
    only("typical_p", &["1"], "there is no typical sampling"),
    only("min_tokens", &["0"], "answers end when the model ends them"),
    only("ignore_eos", &["false"], "answers end when the model ends them"),
    only("bad_words", &["[]"], "words cannot be banned; use logit_bias"),
    only("use_beam_search", &["false"], "there is no beam search"),
    only("length_penalty", &["1"], "there is no beam search"),
    only("allowed_token_ids", &[], "tokens cannot be named; use a grammar, or logit_bias"),
    only("include_stop_str_in_output", &["false"], "stop strings are not in answers"),
    only("n_predict", &["-1"], "this API has another name for the most tokens"),
    only_beside("repeat_last_n", PENALTIES, &["-1"], "penalties count the whole text"),
    only_beside("repetition_context_size", REPETITION, &[], "penalties count the whole text"),
    only("top_n_sigma", &["-1", "0"], "there is no top-n-sigma sampling; use min_p"),
    only("truncate_prompt_tokens", &[], "a prompt that is too long is refused; send a shorter one"),
];

/// What would make another prompt of a conversation.
pub(crate) const TEMPLATE: &[Field] = &[
    only("chat_template", &[], "prompts are made with the model's own template"),
    only("documents", &["[]"], "put their text into a message"),
];

/// What OpenAI's APIs have and no answer depends on.
pub(crate) const HARMLESS: &[Field] = &[
    ignored("user", "who asks"),
    ignored("metadata", "labels of the client's"),
    ignored("store", "nothing is stored"),
    ignored("service_tier", "there is one tier"),
    ignored("safety_identifier", "who asks"),
    ignored("prompt_cache_retention", "the cache has a size, not an age"),
];

/// How to think, for OpenAI's APIs; more than one of them is about the same thing because clients disagree.
pub(crate) const THINKING: &[Field] = &[
    read("enable_thinking", Kind::Bool, "whether to think before answering"),
    read("reasoning_effort", Kind::Text, "none turns thinking off; minimal and low bound it to 512 and 2048 tokens"),
    read("reasoning", Kind::Object, "effort (as reasoning_effort), max_tokens, enabled"),
    read("thinking", Kind::Object, "type: enabled or disabled, budget_tokens"),
    read("thinking_budget", Kind::Integer(-1, TOKENS_MAX), "most tokens of thinking; 0 turns it off, -1 is no bound"),
    read("thinking_token_budget", Kind::Integer(-1, TOKENS_MAX), "another name of thinking_budget"),
    read("chat_template_kwargs", Kind::Object, "variables of the chat template, such as enable_thinking"),
];

/// Reads [`SAMPLING`] but for the stop tokens.
pub(crate) fn sampling(body: &Body) -> Result<Sampling, ApiError> {
    // No share at all still leaves the most likely token.
    let top_p = body.f32("top_p").map(|p| if p == 0.0 { f32::MIN_POSITIVE } else { p });
    Ok(Sampling {
        temperature: body.f32("temperature"),
        top_p,
        top_k: body.integer("top_k").map(|k| u32::try_from(k).unwrap_or(0)),
        min_p: body.f32("min_p"),
        presence_penalty: body.f32("presence_penalty"),
        frequency_penalty: body.f32("frequency_penalty"),
        repetition_penalty: body.f32("repetition_penalty").or_else(|| body.f32("repeat_penalty")),
        logit_bias: logit_bias(body)?,
        // Clients made for llama.cpp send -1 where they mean none.
        seed: body.integer("seed").filter(|&seed| seed != -1).map(i64::cast_unsigned),
    })
}

fn logit_bias(body: &Body) -> Result<BTreeMap<u32, f32>, ApiError> {
    let mut biases = BTreeMap::new();
    for (id, bias) in body.get("logit_bias").and_then(Value::as_object).into_iter().flatten() {
        let place = format!("{}.{id}", body.name("logit_bias"));
        let Ok(token) = id.trim().parse() else {
            let message = format!("`{place}`: `{id}` is no token id; expected a whole number as text.");
            return Err(ApiError::field(place, message));
        };
        let Some(bias) = bias.as_f64() else { return Err(wrong(place, bias, "a number")) };
        biases.insert(token, bias as f32);
    }
    Ok(biases)
}

/// Reads [`THINKING`]; what is left of `chat_template_kwargs` is returned too. The more specific field wins: the template's
/// variables, then switches, then budgets, then effort.
pub(crate) fn thinking(body: &Body) -> Result<(Thinking, Map<String, Value>), ApiError> {
    let mut kwargs = body.get("chat_template_kwargs").and_then(Value::as_object).cloned().unwrap_or_default();
    for name in ["messages", "tools", "documents", "add_generation_prompt"] {
        if kwargs.contains_key(name) {
            let place = format!("chat_template_kwargs.{name}");
            let message = format!("`{place}` would replace what the request says elsewhere; leave it out.");
            return Err(ApiError::field(place, message));
        }
    }
    let mut thinking = Thinking::default();
    let object = |name| body.get(name).and_then(Value::as_object);
    let reasoning = object("reasoning");
    let effort = body.text("reasoning_effort").map(|effort| ("reasoning_effort", effort));
    let effort = effort.or_else(|| Some(("reasoning.effort", reasoning?.get("effort")?.as_str()?)));
    if let Some((place, effort)) = effort {
        apply_effort(&mut thinking, effort, place)?;
    }
    let budget = body.integer("thinking_budget").or_else(|| body.integer("thinking_token_budget"));
    let budget = budget.or_else(|| crate::fields::integer(reasoning?.get("max_tokens")?));
    let budget = budget.or_else(|| crate::fields::integer(object("thinking")?.get("budget_tokens")?));
    if let Some(budget) = budget {
        apply_budget(&mut thinking, budget);
    }
    let switch = match object("thinking").and_then(|t| t.get("type")).and_then(Value::as_str) {
        Some("disabled") => Some(false),
        Some("enabled" | "adaptive") => Some(true),
        _ => None,
    };
    let switch = body.bool("enable_thinking").or(switch).or_else(|| reasoning?.get("enabled")?.as_bool());
    thinking.enabled = switch.or(thinking.enabled);
    match kwargs.remove("enable_thinking") {
        None | Some(Value::Null) => {}
        Some(Value::Bool(enabled)) => thinking.enabled = Some(enabled),
        Some(other) => return Err(wrong("chat_template_kwargs.enable_thinking", &other, "true or false")),
    }
    Ok((thinking, kwargs))
}

/// What a budget means: 0 is no thinking, less than 0 no bound.
pub(crate) fn apply_budget(thinking: &mut Thinking, budget: i64) {
    match usize::try_from(budget) {
        Ok(0) => thinking.enabled = Some(false),
        Ok(tokens) => thinking.budget_tokens = Some(tokens),
        Err(_) => thinking.budget_tokens = None,
    }
}

/// What an effort means to a model that knows no efforts: whether to think, and for the small ones, how long at most.
pub(crate) fn apply_effort(thinking: &mut Thinking, effort: &str, place: &str) -> Result<(), ApiError> {
    match effort {
        "none" | "off" => thinking.enabled = Some(false),
        "minimal" => *thinking = Thinking { enabled: Some(true), budget_tokens: Some(512) },
        "low" => *thinking = Thinking { enabled: Some(true), budget_tokens: Some(2048) },
        "medium" | "high" | "xhigh" | "max" | "on" => thinking.enabled = Some(true),
        other => {
            let message = format!("`{place}` is `{other}`; expected none, minimal, low, medium, high, xhigh or max.");
            return Err(ApiError::field(place, message));
        }
    }
    Ok(())
}

/// The extensions for structured answers that other servers have: llama.cpp's `json_schema` and `grammar`, vLLM's
/// `structured_outputs`.
pub(crate) const STRUCTURE: &[Field] = &[
    read("json_schema", Kind::Object, "another form of response_format: a JSON schema"),
    read("grammar", Kind::Text, "a grammar in Lark's notation that the answer must follow"),
    read("structured_outputs", Kind::Object, "one of json, json_object, regex, choice, grammar"),
    only("guided_json", &[], "use structured_outputs.json"),
    only("guided_regex", &[], "use structured_outputs.regex"),
    only("guided_choice", &[], "use structured_outputs.choice"),
    only("guided_grammar", &[], "use structured_outputs.grammar"),
];

/// Reads [`STRUCTURE`] and `response_format`, of which one at most may be given.
pub(crate) fn response_format(body: &Body) -> Result<ResponseFormat, ApiError> {
    let mut formats = Vec::new();
    if let Some(value) = body.get("response_format") {
        formats.push(("response_format", openai_format(value, "response_format")?));
    }
    if let Some(schema) = body.get("json_schema") {
        formats.push(("json_schema", ResponseFormat::JsonSchema(schema.clone())));
    }
    if let Some(text) = body.text("grammar") {
        formats.push(("grammar", ResponseFormat::Grammar { syntax: GrammarSyntax::Lark, text: text.into() }));
    }
    if let Some(object) = body.get("structured_outputs").and_then(Value::as_object) {
        formats.push(("structured_outputs", structured_outputs(object)?));
    }
    formats.retain(|(_, format)| *format != ResponseFormat::Text);
    match formats.len() {
        0 => Ok(ResponseFormat::Text),
        1 => Ok(formats.remove(0).1),
        _ => {
            let message = format!("`{}` and `{}` both ask for a form; send one.", formats[0].0, formats[1].0);
            Err(ApiError::field(formats[1].0, message))
        }
    }
}

/// OpenAI's `response_format`; Responses' `text.format` is the same with the schema one level higher.
pub(crate) fn openai_format(value: &Value, place: &str) -> Result<ResponseFormat, ApiError> {
    let Some(object) = value.as_object() else { return Err(wrong(place, value, "an object with a `type`")) };
    match object.get("type").and_then(Value::as_str) {
        Some("text") => Ok(ResponseFormat::Text),
        // llama.cpp puts a schema here.
        Some("json_object") => Ok(match object.get("schema") {
            Some(schema @ Value::Object(_)) => ResponseFormat::JsonSchema(schema.clone()),
            _ => ResponseFormat::JsonObject,
        }),
        Some("json_schema") => {
            let nested = object.get("json_schema").and_then(Value::as_object).map(|o| (o, ".json_schema"));
            let (holder, path) = nested.unwrap_or((object, ""));
            match holder.get("schema") {
                Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(ResponseFormat::JsonSchema(schema.clone())),
                None | Some(Value::Null) => {
                    Err(crate::fields::missing(format!("{place}{path}.schema"), "a JSON schema"))
                }
                Some(other) => Err(wrong(format!("{place}{path}.schema"), other, "a JSON schema")),
            }
        }
        Some("grammar") => match object.get("grammar").or_else(|| object.get("definition")) {
            Some(Value::String(text)) => {
                Ok(ResponseFormat::Grammar { syntax: GrammarSyntax::Lark, text: text.clone() })
            }
            _ => Err(crate::fields::missing(format!("{place}.grammar"), "a grammar in Lark's notation")),
        },
        Some(other) => {
            let message = format!("`{place}.type` is `{other}`; expected text, json_object, json_schema or grammar.");
            Err(ApiError::unsupported(format!("{place}.type"), message))
        }
        None => Err(crate::fields::missing(format!("{place}.type"), "text, json_object, json_schema or grammar")),
    }
}

fn structured_outputs(object: &Map<String, Value>) -> Result<ResponseFormat, ApiError> {
    let place = |name: &str| format!("structured_outputs.{name}");
    let grammar = |syntax, text: &str| ResponseFormat::Grammar { syntax, text: text.into() };
    for (name, value) in object {
        match (name.as_str(), value) {
            (_, Value::Null) => {}
            ("json", Value::Object(_)) => return Ok(ResponseFormat::JsonSchema(value.clone())),
            ("json", Value::String(text)) => {
                let schema = serde_json::from_str(text);
                return schema
                    .map(ResponseFormat::JsonSchema)
                    .map_err(|e| ApiError::field(place(name), format!("`{}` is text but no JSON: {e}.", place(name))));
            }
            ("json_object", Value::Bool(true)) => return Ok(ResponseFormat::JsonObject),
            ("json_object", Value::Bool(false)) => {}
            ("regex", Value::String(text)) => return Ok(grammar(GrammarSyntax::Regex, text)),
            ("grammar", Value::String(text)) => return Ok(grammar(GrammarSyntax::Lark, text)),
            ("choice", Value::Array(choices)) if !choices.is_empty() && choices.iter().all(Value::is_string) => {
                // Lark's strings are escaped as JSON's are.
                let choices: Vec<String> = choices.iter().map(Value::to_string).collect();
                return Ok(grammar(GrammarSyntax::Lark, &format!("start: {}\n", choices.join(" | "))));
            }
            ("json" | "json_object" | "regex" | "grammar" | "choice", other) => {
                return Err(wrong(place(name), other, "what vLLM takes there"));
            }
            _ => {
                let message = format!("`{}` cannot be honoured.", place(name));
                return Err(ApiError::unsupported(place(name), message));
            }
        }
    }
    Ok(ResponseFormat::Text)
}
