//! One generation under way, step by step: what [`super::generate`] runs to its end and the scheduler runs among others.
//!
//! Whoever runs it brings the engine and the same session to every call, and decides when the next step comes. It keeps
//! no time and tells nobody: that is the work of its callers.

use super::{FinishReason, GenerateError, Halt, Request, Summary, ahead};
use crate::cache::Reuse;
use crate::constraint::{Constraint, ConstraintError, TokenMask};
use crate::engine::{Engine, EngineError};
use crate::sampler::{History, LogProbs, SampleError, Sampler, Token};
use crate::session::Session;
use std::ops::ControlFlow;

/// The state of a generation between two steps.
pub struct Generation {
    request: Request,
    constraint: Option<Box<dyn Constraint>>,
    /// What may come next, where that is restricted; once the constraint has been asked.
    mask: TokenMask,
    restricted: bool,
    mask_ready: bool,
    sampler: Sampler,
    generated: Vec<u32>,
    max_tokens: usize,
    /// Tokens that fit into the context after the prompt.
    room: usize,
    reuse: Reuse,
    prefill_tokens: usize,
    finish_reason: Option<FinishReason>,
}

/// A token of the text, with the most likely ones at its place, as many as were asked for.
pub type Chosen = (Token, Vec<Token>);

/// Whether to go on choosing tokens on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Leave off for now: somebody else needs the device.
    Interrupted,
    /// End the text.
    Halted(Halt),
}

impl Generation {
    /// A generation that has not begun.
    ///
    /// # Errors
    /// A prompt that is empty, does not fit or leaves no room for a token, or a sampling parameter out of range.
    pub fn new(
        engine: &Engine,
        request: Request,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Self, GenerateError> {
        engine.check(&request.prompt)?;
        let sampler = Sampler::new(request.sampling.clone(), request.vocab)?;
        let room = room(engine, request.prompt.len())?;
        let max_tokens = request.max_tokens.unwrap_or(room).min(room);
        let generated = Vec::with_capacity(max_tokens);
        Ok(Self {
            request,
            constraint,
            mask: TokenMask::none(0),
            restricted: false,
            mask_ready: false,
            sampler,
            generated,
            max_tokens,
            room,
            reuse: Reuse::default(),
            prefill_tokens: 0,
            finish_reason: None,
        })
    }

    /// What was asked for.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The tokens of the text so far.
    pub fn generated(&self) -> &[u32] {
        &self.generated
    }

    /// What of the prompt was there already.
    pub fn reuse(&self) -> &Reuse {
        &self.reuse
    }

    /// Why the text ended; `None` while it has not.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }

    /// How it went, with the time that its caller took; one that has not ended counts as cancelled.
    pub fn summary(&self, prefill_seconds: f64, decode_seconds: f64) -> Summary {
        let finish_reason = self.finish_reason.unwrap_or(FinishReason::Cancelled);
        // A token that ended the text was computed and is not reported.
        let chosen = self.generated.len() + usize::from(finish_reason == FinishReason::Stop);
        Summary {
            finish_reason,
            prompt_tokens: self.request.prompt.len(),
            reuse: self.reuse,
            prefill_tokens: self.prefill_tokens,
            generated_tokens: self.generated.len(),
            decode_steps: chosen.saturating_sub(1),
            prefill_seconds,
            decode_seconds,
            seed: self.sampler.seed(),
        }
    }

    /// Ends the text for the caller's reasons.
    pub fn halt(&mut self, halt: Halt) {
        self.finish_reason = Some(halt.into());
    }

    /// Brings the session to what can be reused for the prompt.
    ///
    /// # Errors
    /// If the device fails.
    pub fn begin(&mut self, engine: &mut Engine, session: &mut Session) -> Result<(), GenerateError> {
        self.reuse = engine.begin(session, &self.request.prompt)?;
        Ok(())
    }

    /// Whether tokens of the prompt are still to be computed.
    pub fn prefilling(&self, session: &Session) -> bool {
        session.tokens().len() < self.request.prompt.len()
    }

    /// Computes the next chunk of the prompt, of at most `most_tokens`.
    ///
    /// # Errors
    /// If the device fails; the session is then empty.
    pub fn prefill(
        &mut self,
        engine: &mut Engine,
        session: &mut Session,
        most_tokens: usize,
    ) -> Result<(), GenerateError> {
        let done = session.tokens().len();
        engine.prefill(session, &self.request.prompt, &self.request.boundaries, most_tokens)?;
        self.prefill_tokens += session.tokens().len() - done;
        Ok(())
    }

    /// The next token, chosen by the host from logits that it waits for; `None` when the text has ended.
    ///
    /// # Errors
    /// If the device fails (the session is then empty), the logits are broken, or the constraint refuses.
    pub fn next(&mut self, engine: &mut Engine, session: &mut Session) -> Result<Option<Chosen>, GenerateError> {
        if let Some(last) = self.due(session) {
            engine.decode_while(session, last, || self.prepare_mask())??;
        }
        self.choose(session)
    }

    /// The token that a decode step has to take into the session before the next one can be chosen; `None` if its logits are
    /// there (the device may have chosen tokens, and be a step further), or the text has ended.
    pub(crate) fn due(&mut self, session: &Session) -> Option<u32> {
        let held = session.tokens().len() >= self.request.prompt.len() + self.generated.len();
        if self.ended() || held { None } else { self.generated.last().copied() }
    }

    /// Asks the constraint what may come next, unless it has been asked.
    pub(crate) fn prepare_mask(&mut self) -> Result<(), GenerateError> {
        if let (Some(constraint), false) = (&mut self.constraint, self.mask_ready) {
            let mask = constraint.mask().map_err(|source| constraint_failed(source, &self.generated))?;
            self.restricted = mask.is_some();
            if let Some(mask) = mask {
                self.mask.clone_from(mask); // the bits only: it has the room after the first time
            }
            self.mask_ready = true;
        }
        Ok(())
    }

    /// The next token, from the session's logits; `None` when the text has ended.
    pub(crate) fn choose(&mut self, session: &Session) -> Result<Option<Chosen>, GenerateError> {
        if self.ended() {
            return Ok(None);
        }
        self.prepare_mask()?;
        let mask = self.restricted.then_some(&self.mask);
        let history = History { prompt: &self.request.prompt, generated: &self.generated };
        let broken = |source| sample_failed(source, &self.request, &self.generated);
        let logits = session.logits().expect("the prompt's last token and every decode step leave logits");
        let token = self.sampler.sample_among(logits, mask, history).map_err(broken)?;
        let top = match self.request.top_logprobs {
            0 => Vec::new(),
            n => LogProbs::new(&logits[..self.request.vocab]).map_err(broken)?.top(n),
        };
        self.mask_ready = false;
        Ok(self.take(token)?.then_some((token, top)))
    }

    /// Whether the device may choose the tokens: it can, and nobody wants the logits for more than the choice.
    pub fn can_run_ahead(&self, engine: &Engine) -> bool {
        engine.model().traits.chooses_tokens && self.request.top_logprobs == 0 && self.constraint.is_none()
    }

    /// Lets the device choose tokens, one step ahead of the host, until the text ends or `on_token` breaks.
    ///
    /// # Errors
    /// If the device fails (the session is then empty), or the logits are broken.
    pub fn run_ahead(
        &mut self,
        engine: &mut Engine,
        session: &mut Session,
        on_token: &mut dyn FnMut(Token) -> ControlFlow<Pause>,
    ) -> Result<(), GenerateError> {
        let mut alone = [(self, session)];
        ahead::run(engine, &mut alone, &mut |_, token| on_token(token))?.into_iter().collect()
    }

    /// What its next token is chosen by.
    pub(super) fn choice(&self) -> (&Sampler, History<'_>) {
        (&self.sampler, History { prompt: &self.request.prompt, generated: &self.generated })
    }

    /// Whether the device should go on with a step while the next token is looked at.
    pub(super) fn wants_more(&self) -> bool {
        self.generated.len() + 1 < self.max_tokens
    }

    /// Takes the token that the device chose, and tells it if it is one of the text; whether to go on.
    pub(super) fn take_chosen(
        &mut self,
        chosen: &Result<Token, SampleError>,
        tell: &mut dyn FnMut(Token) -> ControlFlow<Pause>,
    ) -> Result<bool, GenerateError> {
        let token = chosen.clone().map_err(|source| sample_failed(source, &self.request, &self.generated))?;
        if !self.take(token)? {
            return Ok(false);
        }
        match tell(token) {
            ControlFlow::Continue(()) => Ok(!self.ended()),
            ControlFlow::Break(Pause::Interrupted) => Ok(false),
            ControlFlow::Break(Pause::Halted(halt)) => {
                self.halt(halt);
                Ok(false)
            }
        }
    }

    /// Whether the text has ended, or ends here because there are enough tokens.
    pub(super) fn ended(&mut self) -> bool {
        if self.finish_reason.is_none() && self.generated.len() == self.max_tokens {
            let full = self.max_tokens == self.room;
            self.finish_reason = Some(if full { FinishReason::ContextFull } else { FinishReason::Length });
        }
        self.finish_reason.is_some()
    }

    /// Takes a chosen token into the text; false if it ended the text instead.
    fn take(&mut self, token: Token) -> Result<bool, GenerateError> {
        if self.request.stop_ids.contains(&token.id) {
            self.finish_reason = Some(FinishReason::Stop);
            return Ok(false);
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token.id).map_err(|source| constraint_failed(source, &self.generated))?;
        }
        self.generated.push(token.id);
        Ok(true)
    }
}

fn constraint_failed(source: ConstraintError, generated: &[u32]) -> GenerateError {
    GenerateError::Constraint { generated_tokens: generated.len(), source }
}

fn sample_failed(source: SampleError, request: &Request, generated: &[u32]) -> GenerateError {
    GenerateError::Sample { tokens: request.prompt.len() + generated.len(), source }
}

/// Tokens that fit into the context after the prompt; a prompt that leaves room for none is refused.
fn room(engine: &Engine, prompt_tokens: usize) -> Result<usize, EngineError> {
    let context_tokens = engine.model().context_tokens;
    match context_tokens.saturating_sub(prompt_tokens) {
        0 => Err(EngineError::ContextFull { tokens: prompt_tokens + 1, context_tokens }),
        room => Ok(room),
    }
}
