//! The decode loop: from a prompt to sampled tokens.
//!
//! [`Generation`] is one text under way: it brings a session to the prompt, then samples and decodes until something ends
//! it, one step at a call. [`generate`] runs one to its end and reports every step to its caller, who may stop it between
//! prefill chunks and between tokens; the scheduler runs several by turns. Text, stop strings and the split of
//! reasoning from answer are made of the tokens by the layer above.

mod ahead;
mod generation;

pub(crate) use ahead::run as run_ahead;
pub use generation::{Chosen, Generation, Pause};

use crate::cache::Reuse;
use crate::constraint::ConstraintError;
use crate::engine::{Engine, EngineError};
use crate::sampler::{ParamsError, SampleError, SamplingParams, Token};
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
    /// What of them was there already.
    pub reuse: Reuse,
    /// Tokens of it that were computed.
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
    /// Of a generation that was cancelled before it began.
    pub fn cancelled(prompt_tokens: usize) -> Self {
        Self {
            finish_reason: FinishReason::Cancelled,
            prompt_tokens,
            reuse: Reuse::default(),
            prefill_tokens: 0,
            generated_tokens: 0,
            decode_steps: 0,
            prefill_seconds: 0.0,
            decode_seconds: 0.0,
            seed: 0,
        }
    }

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
    /// The prompt cannot be computed, or the device failed.
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
    /// The constraint cannot say what may come next.
    #[error("after {generated_tokens} generated tokens, the constraint on them failed: {source}")]
    Constraint {
        /// Tokens of the text so far.
        generated_tokens: usize,
        /// Its words.
        source: ConstraintError,
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
    let mut generation = Generation::new(engine, request.clone(), None)?;
    let result = run(engine, session, &mut generation, on_event);
    leave(engine, session, result.as_ref().err());
    result
}

/// Ends a session's generation: its state is remembered, or discarded where broken logits say that it cannot be trusted.
pub(crate) fn leave(engine: &mut Engine, session: &mut Session, error: Option<&GenerateError>) {
    match error {
        Some(GenerateError::Sample { .. }) => engine.discard(session),
        _ => engine.remember(session),
    }
}

fn run(
    engine: &mut Engine,
    session: &mut Session,
    generation: &mut Generation,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<Halt>,
) -> Result<Summary, GenerateError> {
    let prefill_start = Instant::now();
    generation.begin(engine, session)?;
    let total_tokens = generation.request().prompt.len();
    loop {
        let done_tokens = session.tokens().len().min(total_tokens);
        if let ControlFlow::Break(halt) = on_event(Event::Prefill { done_tokens, total_tokens }) {
            generation.halt(halt);
        }
        if generation.finish_reason().is_some() || !generation.prefilling(session) {
            break;
        }
        generation.prefill(engine, session, usize::MAX)?;
    }
    let decode_start = Instant::now();
    if generation.can_run_ahead(engine) {
        generation.run_ahead(
            engine,
            session,
            &mut |token| match on_event(Event::Token { token, top: Vec::new() }) {
                ControlFlow::Continue(()) => ControlFlow::Continue(()),
                ControlFlow::Break(halt) => ControlFlow::Break(Pause::Halted(halt)),
            },
        )?;
    } else {
        while let Some((token, top)) = generation.next(engine, session)? {
            if let ControlFlow::Break(halt) = on_event(Event::Token { token, top }) {
                generation.halt(halt);
            }
        }
    }
    let seconds = [decode_start - prefill_start, decode_start.elapsed()].map(|d| d.as_secs_f64());
    Ok(generation.summary(seconds[0], seconds[1]))
}

impl From<Halt> for FinishReason {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::StopString => FinishReason::StopString,
            Halt::Cancelled => FinishReason::Cancelled,
        }
    }
}
