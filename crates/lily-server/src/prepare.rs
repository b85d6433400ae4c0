//! From a request to a job: the prompt's tokens, how to sample, what binds the answer, and the parser of what comes.

use crate::constraint::Rules;
use crate::memory::Memory;
use crate::model::ServedModel;
use lily_api::error::{ApiError, ErrorKind};
use lily_api::history::Segment;
use lily_api::output::{OutputOptions, OutputParser, Start};
use lily_api::request::{Conversation, Input, Prefill, Prompt as Text, Request, Sampling, ToolChoice};
use lily_engine::constraint::Constraint;
use lily_engine::generate;
use lily_engine::prompt::{Part, Prompt, PromptError};
use lily_engine::sampler::SamplingParams;
use lily_engine::scheduler::Job;
use lily_engine::template::{ChatInput, TemplateError};
use serde_json::{Value, json};
use std::sync::Arc;

/// Keeps a token from being drawn.
const NEVER: f32 = -1e30;
/// What the family's templates end the prompt with where the answer starts inside the reasoning.
const THINK: &str = "<think>\n";

/// A job, and what reads its text.
pub(crate) struct Prepared {
    pub(crate) job: Job,
    pub(crate) parser: OutputParser,
    /// The conversation to remember the answer with; none where it would not come back as it was written.
    pub(crate) memory: Option<Memory>,
}

/// Prepares a request. Compiles grammars, so it may take a while.
///
/// # Errors
/// Messages that the template refuses, or fields that make no sense for this model.
pub(crate) fn prepare(model: &ServedModel, request: &Request, call_prefix: String) -> Result<Prepared, ApiError> {
    let prompt = prompt(model, request)?;
    let start = match &request.input {
        Input::Chat(Conversation { prefill: Some(Prefill::Reasoning(begun)), .. }) if !begun.is_empty() => {
            Start::InsideReasoning
        }
        _ if prompt.in_reasoning => Start::Reasoning,
        _ => Start::Content,
    };
    let parser = OutputParser::new(OutputOptions::new(request, start, call_prefix))
        .map_err(|error| ApiError::field("stop", error.to_string()))?;
    let rules = rules(model, request, prompt.in_reasoning)?;
    let memory = match &request.input {
        Input::Chat(chat) if chat.prefill.is_none() => Some(Memory::new(chat.messages.clone(), prompt.in_reasoning)),
        _ => None,
    };
    let cache_key = request.cache_key.clone();
    let mut stop_ids = model.prompter.stop_ids().to_vec();
    stop_ids.extend(&request.stop_token_ids);
    let request = generate::Request {
        prompt: prompt.tokens,
        boundaries: prompt.boundaries,
        sampling: sampling(&model.sampling, model.marks.tool_call, request),
        vocab: model.vocab,
        stop_ids,
        max_tokens: request.max_tokens,
        top_logprobs: request.logprobs.unwrap_or(0),
    };
    Ok(Prepared { job: Job { request, constraint: rules, cache_key }, parser, memory })
}

/// The prompt of a request.
///
/// # Errors
/// Messages that the template refuses.
pub(crate) fn prompt(model: &ServedModel, request: &Request) -> Result<Prompt, ApiError> {
    let prompt = match &request.input {
        Input::Chat(chat) => {
            let mut prompt = with_parts(model, chat, |parts| model.prompter.encode(&parts_of(parts)))?;
            prompt.in_reasoning |= matches!(chat.prefill, Some(Prefill::Reasoning(_)));
            return Ok(prompt);
        }
        Input::Text { prompt: Text::Text(text), .. } => model.prompter.plain(text),
        Input::Text { prompt: Text::Tokens(tokens), .. } => {
            Ok(Prompt { tokens: tokens.clone(), boundaries: Vec::new(), in_reasoning: false })
        }
    };
    prompt.map_err(|error| refused(&error))
}

/// The text of a conversation's prompt.
///
/// # Errors
/// Messages that the template refuses.
pub(crate) fn chat_text(model: &ServedModel, chat: &Conversation) -> Result<String, ApiError> {
    with_parts(model, chat, |parts| {
        let text = |part: &Segment<'_>| match part {
            Segment::Text(text) | Segment::Written { text, .. } => (*text).to_owned(),
        };
        Ok(parts.iter().map(text).collect())
    })
}

fn parts_of<'a>(segments: &[Segment<'a>]) -> Vec<Part<'a>> {
    let part = |segment: &Segment<'a>| match segment {
        Segment::Written { tokens: Some(tokens), .. } => Part::Tokens(tokens),
        Segment::Written { text, tokens: None } | Segment::Text(text) => Part::Text(text),
    };
    segments.iter().map(part).collect()
}

/// Renders a conversation, in which what the model wrote is as it wrote it, with the beginning of the answer where the client
/// gave one.
fn with_parts<T>(
    model: &ServedModel,
    chat: &Conversation,
    make: impl FnOnce(&[Segment<'_>]) -> Result<T, PromptError>,
) -> Result<T, ApiError> {
    let replay = model.history().replay(&chat.messages, &chat.tools);
    let mut rendered = render(model, chat, replay.messages())?;
    let start = begin_answer(&mut rendered, chat.prefill.as_ref());
    let made = match replay.segments(&rendered[..start]) {
        Some(mut segments) => {
            // The end is encoded together with what the template wrote before it.
            if let Some(Segment::Text(last)) = segments.last_mut() {
                *last = &rendered[start - last.len()..];
            }
            make(&segments)
        }
        None => {
            let mut rendered = render(model, chat, &chat.messages)?;
            begin_answer(&mut rendered, chat.prefill.as_ref());
            make(&[Segment::Text(&rendered)])
        }
    };
    made.map_err(|error| refused(&error))
}

fn render(model: &ServedModel, chat: &Conversation, messages: &[Value]) -> Result<String, ApiError> {
    let mut input = ChatInput::new(Value::Array(messages.to_vec()));
    input.tools = chat.template_tools();
    input.kwargs = chat.template_kwargs.clone();
    let thinking = match &chat.prefill {
        Some(prefill) => Some(prefill.thinks()),
        None => chat.thinking.enabled,
    };
    if let Some(thinking) = thinking {
        input.kwargs.insert("enable_thinking".to_owned(), json!(thinking));
    }
    model.prompter.render(&input).map_err(|error| refused(&error))
}

/// Appends the beginning of the answer; where it starts.
fn begin_answer(rendered: &mut String, prefill: Option<&Prefill>) -> usize {
    let start = rendered.len();
    let opened = rendered.ends_with(THINK);
    match prefill {
        None => {}
        Some(Prefill::Text { reasoning, content }) => {
            if let Some(reasoning) = reasoning.as_ref().filter(|_| opened) {
                rendered.push_str(reasoning);
                rendered.push_str("\n</think>\n\n");
            }
            rendered.push_str(content);
        }
        Some(Prefill::Reasoning(reasoning)) => {
            // A template that knows no thinking has not opened it.
            rendered.push_str(if opened { "" } else { THINK });
            rendered.push_str(reasoning);
        }
    }
    start
}

fn refused(error: &PromptError) -> ApiError {
    match error {
        PromptError::Template(TemplateError::Messages { place, .. }) => {
            ApiError::field(place.clone(), error.to_string())
        }
        PromptError::Template(_) => ApiError::field("messages", error.to_string()),
        _ => ApiError::new(ErrorKind::Invalid, error.to_string()),
    }
}

/// The checkpoint's sampling, overlaid with the request's; `tool_call` opens a call.
fn sampling(base: &SamplingParams, tool_call: Option<u32>, request: &Request) -> SamplingParams {
    let asked: &Sampling = &request.sampling;
    let mut logit_bias = asked.logit_bias.clone();
    if let Input::Chat(chat) = &request.input
        && !chat.tools.is_empty()
        && chat.tool_choice == ToolChoice::None
        && let Some(token) = tool_call
    {
        logit_bias.insert(token, NEVER);
    }
    SamplingParams {
        temperature: asked.temperature.unwrap_or(base.temperature),
        top_k: asked.top_k.unwrap_or(base.top_k),
        top_p: asked.top_p.unwrap_or(base.top_p),
        min_p: asked.min_p.unwrap_or(base.min_p),
        presence_penalty: asked.presence_penalty.unwrap_or(base.presence_penalty),
        frequency_penalty: asked.frequency_penalty.unwrap_or(base.frequency_penalty),
        repetition_penalty: asked.repetition_penalty.unwrap_or(base.repetition_penalty),
        logit_bias,
        seed: asked.seed,
    }
}

/// What binds the answer.
fn rules(model: &ServedModel, request: &Request, thinks: bool) -> Result<Option<Box<dyn Constraint>>, ApiError> {
    let budget = match &request.input {
        Input::Chat(chat) => chat.thinking.budget_tokens,
        Input::Text { .. } => None,
    };
    let form = if wants_form(request) {
        let grammars = model.grammars().map_err(|error| ApiError::new(ErrorKind::Internal, error))?;
        grammars.form(request, thinks)?
    } else {
        None
    };
    let rules = Rules::new(Arc::clone(&model.marks), thinks, budget, form);
    Ok(rules.map(|rules| Box::new(rules) as Box<dyn Constraint>))
}

/// Whether grammars have anything to say about a request.
fn wants_form(request: &Request) -> bool {
    let calls = match &request.input {
        Input::Chat(chat) => match chat.tool_choice {
            ToolChoice::None => false,
            ToolChoice::Auto => chat.tools.iter().any(|tool| tool.strict),
            ToolChoice::Required | ToolChoice::Named(_) | ToolChoice::Allowed { .. } => true,
        },
        Input::Text { .. } => false,
    };
    calls || request.format != lily_api::request::ResponseFormat::Text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_api::error::Api;
    use std::collections::BTreeMap;

    /// A value of its own for every field, so that one that is dropped or takes another's place is seen.
    #[test]
    fn what_a_request_asks_of_the_sampler_gets_there_field_by_field() {
        let base = SamplingParams {
            temperature: 0.11,
            top_k: 12,
            top_p: 0.13,
            min_p: 0.14,
            presence_penalty: 0.15,
            frequency_penalty: 0.16,
            repetition_penalty: 1.17,
            logit_bias: BTreeMap::new(),
            seed: None,
        };
        let asked = |more: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            sampling(&base, Some(7), &lily_api::parse(Api::Chat, body.to_string().as_bytes()).unwrap())
        };
        assert_eq!(asked(json!({})), base, "what is not asked for is the checkpoint's");
        let all = json!({
            "temperature": 0.21, "top_k": 22, "top_p": 0.23, "min_p": 0.24, "presence_penalty": 0.25,
            "frequency_penalty": 0.26, "repetition_penalty": 1.27, "logit_bias": {"28": 2.8}, "seed": 29,
        });
        let expected = SamplingParams {
            temperature: 0.21,
            top_k: 22,
            top_p: 0.23,
            min_p: 0.24,
            presence_penalty: 0.25,
            frequency_penalty: 0.26,
            repetition_penalty: 1.27,
            logit_bias: BTreeMap::from([(28, 2.8)]),
            seed: Some(29),
        };
        assert_eq!(asked(all.clone()), expected);
        // Each alone leaves the others as they are.
        let alone = |name: &str| asked(json!({name: all[name]}));
        assert_eq!(alone("min_p"), SamplingParams { min_p: 0.24, ..base.clone() });
        assert_eq!(alone("presence_penalty"), SamplingParams { presence_penalty: 0.25, ..base.clone() });
        assert_eq!(alone("frequency_penalty"), SamplingParams { frequency_penalty: 0.26, ..base.clone() });
        assert_eq!(alone("repetition_penalty"), SamplingParams { repetition_penalty: 1.27, ..base.clone() });
        // A call that may not be made cannot be begun.
        let tool = json!([{"type": "function", "function": {"name": "f"}}]);
        let without_calls = asked(json!({"tools": tool, "tool_choice": "none"}));
        assert_eq!(without_calls.logit_bias, BTreeMap::from([(7, NEVER)]));
    }
}
