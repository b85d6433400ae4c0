//! The decode loop: from a prompt to sampled tokens.
//!
//! [`generate`] brings a session to the prompt, then samples and decodes until something ends it, and reports every
//! step to its caller, who may stop it between prefill chunks and between tokens. Text, stop strings and the split of
//! reasoning from answer are made of the tokens by the layer above.

use crate::engine::{Ahead, AheadError, Engine, EngineError};
use crate::sampler::{History, LogProbs, ParamsError, SampleError, Sampler, SamplingParams, Token};
use crate::session::Session;
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::Instant;

/// What to generate.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The whole prompt; what the session already holds of it is not computed again.
    pub prompt: Vec<u32>,
    /// Prompt lengths at which to remember the state, ascending: where a later prompt may part from this one.
    pub boundaries: Vec<usize>,
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// Tokens that may be drawn are those below this id: the tokenizer's, as a head may have padding rows.
    pub vocab: usize,
    /// Tokens that end the text; none of them is reported.
    pub stop_ids: Vec<u32>,
    /// Most tokens to generate; `None` is all that the context has room for.
    pub max_tokens: Option<usize>,
    /// Alternatives to report with every token.
    pub top_logprobs: usize,
}

/// What happens during a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A prefill chunk is about to be computed, or the last one is done.
    Prefill {
        /// Tokens of the prompt whose state is there.
        done_tokens: usize,
        /// Tokens of the prompt.
        total_tokens: usize,
    },
    /// A token of the text.
    Token {
        /// The token.
        token: Token,
        /// The most likely tokens at its place, as many as were asked for.
        top: Vec<Token>,
    },
}

/// Why the caller ends a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// The text contains a stop string.
    StopString,
    /// Nobody wants the rest.
    Cancelled,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its text.
    Stop,
    /// The caller found a stop string.
    StopString,
    /// As many tokens as were asked for.
    Length,
    /// No room is left in the context.
    ContextFull,
    /// The caller cancelled.
    Cancelled,
}

/// How a generation went.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of them, those whose state was there already.
    pub reused_tokens: usize,
    /// Of them, those that were computed.
    pub prefill_tokens: usize,
    /// Tokens reported.
    pub generated_tokens: usize,
    /// Decode steps run.
    pub decode_steps: usize,
    /// Time spent on the prompt.
    pub prefill_seconds: f64,
    /// Time spent on sampling and decoding, the caller's share included.
    pub decode_seconds: f64,
    /// Seed of the draws: with it the same text can be had again.
    pub seed: u64,
}

impl Summary {
    /// Prompt tokens computed per second; `None` if none was.
    pub fn prefill_tokens_per_second(&self) -> Option<f64> {
        (self.prefill_tokens > 0).then(|| self.prefill_tokens as f64 / self.prefill_seconds)
    }

    /// Decode steps per second; `None` if there was none.
    pub fn decode_tokens_per_second(&self) -> Option<f64> {
        (self.decode_steps > 0).then(|| self.decode_steps as f64 / self.decode_seconds)
    }
}

/// Why a generation failed.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The prompt cannot be computed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// The logits are broken.
    #[error("after {tokens} tokens: {source}")]
    Sample {
        /// Length of the sequence.
        tokens: usize,
        /// What is wrong with them.
        source: SampleError,
    },
}

/// Generates from `request` on `session`, telling `on_event` of every step; its answer may end the generation.
///
/// Afterwards the session holds the prompt and the generated tokens, perhaps but the last, or what was computed of the
/// prompt. Where the device chooses tokens, it may hold the one that ended the text too.
///
/// # Errors
/// A prompt that does not fit, a sampling parameter out of range, or logits that no token can honestly be drawn from.
pub fn generate(
    engine: &mut Engine,
    session: &mut Session,
    request: &Request,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<Halt>,
) -> Result<Summary, GenerateError> {
    let sampler = Sampler::new(request.sampling.clone(), request.vocab)?;
    let prompt = &request.prompt;
    let room = room(engine, prompt.len())?;
    let max_tokens = request.max_tokens.unwrap_or(room).min(room);
    let mut halted = None;
    let prefill_start = Instant::now();
    let advance =
        engine.advance(session, prompt, &request.boundaries, &mut |done_tokens, total_tokens| match on_event(
            Event::Prefill { done_tokens, total_tokens },
        ) {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(halt) => {
                halted = Some(halt);
                ControlFlow::Break(())
            }
        })?;
    let decode_start = Instant::now();
    let seed = sampler.seed();
    let mut generated = Vec::with_capacity(max_tokens);
    let finish_reason = match halted {
        Some(halt) => halt.into(),
        None => {
            let mut chooser = Chooser::new(engine, session, sampler, request)?;
            let end = choose_tokens(&mut chooser, request, max_tokens, &mut generated, on_event)?;
            chooser.finish()?;
            end.unwrap_or(if max_tokens == room { FinishReason::ContextFull } else { FinishReason::Length })
        }
    };
    // A token that ended the text was computed and is not reported.
    let chosen = generated.len() + usize::from(finish_reason == FinishReason::Stop);
    Ok(Summary {
        finish_reason,
        prompt_tokens: prompt.len(),
        reused_tokens: advance.reused_tokens,
        prefill_tokens: advance.computed_tokens,
        generated_tokens: generated.len(),
        decode_steps: chosen.saturating_sub(1),
        prefill_seconds: (decode_start - prefill_start).as_secs_f64(),
        decode_seconds: decode_start.elapsed().as_secs_f64(),
        seed,
    })
}

/// Chooses tokens until something other than their number ends the text.
fn choose_tokens(
    chooser: &mut Chooser<'_>,
    request: &Request,
    max_tokens: usize,
    generated: &mut Vec<u32>,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<Halt>,
) -> Result<Option<FinishReason>, GenerateError> {
    while generated.len() < max_tokens {
        let more = generated.len() + 1 < max_tokens;
        let (token, top) = chooser.next(request, generated, more)?;
        if request.stop_ids.contains(&token.id) {
            return Ok(Some(FinishReason::Stop));
        }
        generated.push(token.id);
        if let ControlFlow::Break(halt) = on_event(Event::Token { token, top }) {
            return Ok(Some(halt.into()));
        }
    }
    Ok(None)
}

/// Who chooses the tokens.
enum Chooser<'a> {
    /// The host, from logits that it waits for.
    Host { engine: &'a mut Engine, session: &'a mut Session, sampler: Sampler },
    /// The device, which the host is one step ahead of.
    Device(Ahead<'a>),
}

impl<'a> Chooser<'a> {
    /// The device where it can, unless the logits are wanted for more than the choice.
    fn new(
        engine: &'a mut Engine,
        session: &'a mut Session,
        sampler: Sampler,
        request: &Request,
    ) -> Result<Self, GenerateError> {
        if engine.model().traits.chooses_tokens && request.top_logprobs == 0 {
            let history = History { prompt: &request.prompt, generated: &[] };
            return Ok(Chooser::Device(engine.ahead(session, &sampler, history)?));
        }
        Ok(Chooser::Host { engine, session, sampler })
    }

    /// The token after `generated`, with the alternatives asked for; with `more`, another will be wanted after it.
    fn next(&mut self, request: &Request, generated: &[u32], more: bool) -> Result<(Token, Vec<Token>), GenerateError> {
        let broken = |source| GenerateError::Sample { tokens: request.prompt.len() + generated.len(), source };
        let (engine, session, sampler) = match self {
            Chooser::Device(ahead) => {
                return ahead.next(more).map(|token| (token, Vec::new())).map_err(|error| match error {
                    AheadError::Engine(error) => error.into(),
                    AheadError::Sample(source) => broken(source),
                });
            }
            Chooser::Host { engine, session, sampler } => (engine, session, sampler),
        };
        if let Some(&last) = generated.last() {
            engine.decode(session, last)?;
        }
        let logits = session.logits().expect("the prompt's last token and every decode step leave logits");
        let token = sampler.sample(logits, History { prompt: &request.prompt, generated }).map_err(broken)?;
        let top = match request.top_logprobs {
            0 => Vec::new(),
            n => LogProbs::new(&logits[..request.vocab]).map_err(broken)?.top(n),
        };
        Ok((token, top))
    }

    fn finish(self) -> Result<(), GenerateError> {
        match self {
            Chooser::Host { .. } => Ok(()),
            Chooser::Device(ahead) => Ok(ahead.finish()?),
        }
    }
}

/// Tokens that fit into the context after the prompt; a prompt that leaves room for none is refused.
fn room(engine: &Engine, prompt_tokens: usize) -> Result<usize, EngineError> {
    let context_tokens = engine.model().context_tokens;
    match context_tokens.saturating_sub(prompt_tokens) {
        0 => Err(EngineError::ContextFull { tokens: prompt_tokens + 1, context_tokens }),
        room => Ok(room),
    }
}

impl From<Halt> for FinishReason {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::StopString => FinishReason::StopString,
            Halt::Cancelled => FinishReason::Cancelled,
        }
    }
}
