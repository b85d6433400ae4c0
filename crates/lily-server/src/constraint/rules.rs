//! One answer under its rules: reasoning, perhaps with a budget, then perhaps a grammar.

use super::grammar::Form;
use lily_engine::constraint::{Constraint, ConstraintError, TokenMask};
use lily_engine::prompt::Prompter;
use lily_engine::tokenizer::ControlTokens;
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use std::sync::Arc;

/// What closes the reasoning, as the family's models write it.
const CLOSING: &str = "\n</think>\n\n";

/// Tokens that rules look for.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    /// `</think>`.
    think_end: Option<u32>,
    /// `<tool_call>`.
    pub(crate) tool_call: Option<u32>,
    /// The tokens of [`CLOSING`].
    closing: Vec<u32>,
    stop_ids: Vec<u32>,
    vocab: usize,
}

impl Marks {
    /// Those of a model that draws from the first `vocab` tokens.
    pub(crate) fn new(prompter: &Prompter, vocab: usize) -> Self {
        let tokenizer = prompter.tokenizer();
        Self {
            think_end: tokenizer.token_id("</think>"),
            tool_call: tokenizer.token_id("<tool_call>"),
            closing: tokenizer.encode(CLOSING, ControlTokens::Recognise).unwrap_or_default(),
            stop_ids: prompter.stop_ids().to_vec(),
            vocab,
        }
    }
}

/// Where the answer is.
enum Phase {
    /// In the reasoning, with so many tokens of it.
    Thinking(usize),
    /// Before the token of [`CLOSING`] with this index.
    Closing(usize),
    /// In the answer.
    Answer,
    /// In a tool call that a grammar follows.
    Call(Box<Matcher>),
}

/// Follows one answer.
pub(crate) struct Rules {
    marks: Arc<Marks>,
    budget: Option<usize>,
    form: Option<Form>,
    phase: Phase,
    /// What may come inside the reasoning where an answer must follow.
    thinking: TokenMask,
    mask: TokenMask,
}

impl Rules {
    /// The rules of an answer; none where everything is allowed throughout. `thinks` if it starts inside the reasoning, which
    /// may then have `budget` tokens.
    pub(crate) fn new(marks: Arc<Marks>, thinks: bool, budget: Option<usize>, form: Option<Form>) -> Option<Self> {
        let budget = budget.filter(|_| thinks);
        if budget.is_none() && form.is_none() {
            return None;
        }
        let phase = match (thinks, budget) {
            (true, Some(0)) => Phase::Closing(0),
            (true, _) => Phase::Thinking(0),
            (false, _) => Phase::Answer,
        };
        let thinking = thinking_mask(&marks, thinks, form.as_ref());
        let mask = TokenMask::none(marks.vocab);
        Some(Self { marks, budget, form, phase, thinking, mask })
    }

    fn think(&mut self, tokens: usize, token: u32) -> Result<Phase, ConstraintError> {
        if Some(token) == self.marks.tool_call {
            return self.answer(token);
        }
        if Some(token) == self.marks.think_end {
            return Ok(Phase::Answer);
        }
        let spent = self.budget.is_some_and(|budget| tokens + 1 >= budget);
        Ok(if spent { Phase::Closing(0) } else { Phase::Thinking(tokens + 1) })
    }

    fn answer(&mut self, token: u32) -> Result<Phase, ConstraintError> {
        match &mut self.form {
            Some(Form::Whole { alternatives, .. }) => {
                alternatives.retain_mut(|matcher| matcher.try_consume_tokens(&[token]).is_ok_and(|taken| taken == 1));
                if alternatives.is_empty() {
                    return Err(failed(format_args!("token {token} is not allowed")));
                }
            }
            Some(Form::Calls(matcher)) if Some(token) == self.marks.tool_call => {
                return Ok(Phase::Call(matcher.clone()));
            }
            Some(Form::Calls(_)) | None => {}
        }
        Ok(Phase::Answer)
    }
}

impl Constraint for Rules {
    fn mask(&mut self) -> Result<Option<&TokenMask>, ConstraintError> {
        let words = match (&mut self.phase, &mut self.form) {
            (Phase::Thinking(_), Some(Form::Whole { .. })) => return Ok(Some(&self.thinking)),
            (Phase::Closing(index), _) => {
                self.mask.clear();
                self.mask.allow(self.marks.closing[*index]);
                return Ok(Some(&self.mask));
            }
            (Phase::Answer, Some(Form::Whole { alternatives, .. })) => union(alternatives)?,
            (Phase::Call(matcher), _) => matcher.compute_mask_or_eos().map_err(failed)?,
            (Phase::Thinking(_) | Phase::Answer, Some(Form::Calls(_)) | None) => return Ok(None),
        };
        self.mask.copy_from_words(words.as_slice());
        Ok(Some(&self.mask))
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Answer) {
            Phase::Thinking(tokens) => self.think(tokens, token)?,
            Phase::Closing(index) if index + 1 < self.marks.closing.len() => Phase::Closing(index + 1),
            Phase::Closing(_) => Phase::Answer,
            Phase::Answer => self.answer(token)?,
            Phase::Call(mut matcher) => {
                matcher.consume_token(token).map_err(failed)?;
                if matcher.is_stopped() { Phase::Answer } else { Phase::Call(matcher) }
            }
        };
        Ok(())
    }
}

/// All tokens but those that end the text, as an answer must come, and but the opener of a call where none may come.
fn thinking_mask(marks: &Marks, thinks: bool, form: Option<&Form>) -> TokenMask {
    let mut mask = TokenMask::none(marks.vocab);
    let Some(Form::Whole { calls, .. }) = form.filter(|_| thinks) else { return mask }; // nobody looks at it
    let barred = |token: &u32| marks.stop_ids.contains(token) || (!calls && Some(*token) == marks.tool_call);
    (0..marks.vocab as u32).filter(|token| !barred(token)).for_each(|token| mask.allow(token));
    mask
}

/// What any of them allows.
fn union(alternatives: &mut [Matcher]) -> Result<SimpleVob, ConstraintError> {
    let mut masks = alternatives.iter_mut().map(|matcher| matcher.compute_mask_or_eos().map_err(failed));
    let first = masks.next().ok_or_else(|| failed("no grammar is left"))??;
    masks.try_fold(first, |mut union, mask| {
        union.or(&mask?);
        Ok(union)
    })
}

fn failed(error: impl std::fmt::Display) -> ConstraintError {
    ConstraintError(error.to_string())
}
