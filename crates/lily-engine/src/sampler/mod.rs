//! From logits to a token.
//!
//! # Order of steps
//! 1. `logit_bias` is added.
//! 2. Penalties, each an f32 operation of its own, once per distinct token: repetition (prompt and generated text;
//!    `l > 0 ? l / r : l * r`), then frequency (generated text; `l - count * f`), then presence (`l - p`).
//!    Then the tokens that a constraint does not allow become minus infinity.
//! 3. Temperature 0: the arg-max of the adjusted logits, ties to the lowest index. Done.
//! 4. Otherwise a token weighs `exp((l - max) * (1 / T))`, all in f32 with the exponential of [`exp`], and has the mass
//!    `floor(weight * 2^40)`. From here on everything is integer arithmetic, which no order of summation can change.
//! 5. Top-k: the k largest logits, ties to the lowest index.
//! 6. Top-p: of what is left, the smallest set of most likely tokens whose mass is at least `top_p` of the total, ties to
//!    the lowest index.
//! 7. Min-p: of what is left, masses of at least `floor(min_p * 2^40)`, which is `min_p` times the most likely token's.
//! 8. Draw: the i-th token of a generation takes draw i of the seed ([`philox`]), whatever was drawn before it.
//!
//! A GPU kernel that follows this text draws the same tokens from the same logits. Steps run only when they change
//! something; nothing is allocated after [`Sampler::new`]. What the numbers mean to a user is in docs/sampling.md.
//! Turning tokens into text, stopping, and logits themselves are the work of others.

pub mod exp;
mod filter;
mod logprobs;
mod params;
pub mod philox;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};

use crate::constraint::TokenMask;
use crate::kernel::SampleParams;
use thiserror::Error;

pub(crate) use filter::Candidates;
pub use logprobs::LogProbs;
pub use params::{ParamsError, SamplingParams};

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Natural logarithm of its probability under the raw logits: before bias, penalties and temperature.
    pub logprob: f32,
}

/// The tokens so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    /// The prompt.
    pub prompt: &'a [u32],
    /// What has been generated; its length is also the index of the next draw.
    pub generated: &'a [u32],
}

/// Logits that no token can honestly be chosen from.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SampleError {
    /// Fewer logits than tokens.
    #[error("{found} logits for a vocabulary of {expected} tokens")]
    WrongLength {
        /// Tokens that may be drawn.
        expected: usize,
        /// Logits given.
        found: usize,
    },
    /// A NaN or plus infinity: the computation before the sampler is broken.
    #[error(
        "the logit of token {index} is {value}; the model's computation is broken (numeric overflow or bad weights)"
    )]
    NotFinite {
        /// The first such token.
        index: usize,
        /// Its logit.
        value: f32,
    },
    /// No token is allowed.
    #[error("all {count} logits are minus infinity: nothing may be generated here")]
    AllMasked {
        /// Logits looked at.
        count: usize,
    },
    /// All logits are equal, which a working model never produces.
    #[error("all {count} logits are {value}; the model's computation is broken (unwritten or zeroed output)")]
    Flat {
        /// Logits looked at.
        count: usize,
        /// Their common value.
        value: f32,
    },
}

/// Chooses tokens for one generation.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    vocab: usize,
    seed: u64,
    inverse_temperature: f32,
    /// Logits after bias and penalties; empty when the raw ones are used.
    adjusted: Vec<f32>,
    /// Per token: times generated, or seen in the history; all zero between calls. Empty without penalties.
    counts: Vec<u32>,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler that may draw the tokens below `vocab`; logits beyond it (padding rows of the head) are ignored.
    ///
    /// # Errors
    /// A parameter out of range.
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Self, ParamsError> {
        params.validate(vocab)?;
        let top_k = (params.top_k as usize).min(vocab);
        let greedy = params.temperature == 0.0;
        let adjusted = if params.adjusts_logits() { vec![0.0; vocab] } else { Vec::new() };
        let counts = if params.counts_generated() || params.counts_prompt() { vec![0; vocab] } else { Vec::new() };
        Ok(Self {
            seed: params.seed.unwrap_or_else(fresh_seed),
            inverse_temperature: if greedy { 0.0 } else { 1.0 / params.temperature },
            adjusted,
            counts,
            candidates: if greedy { Candidates::default() } else { Candidates::with_capacity(vocab, top_k) },
            params,
            vocab,
        })
    }

    /// The seed in use, fresh or given: with it the same text can be had again.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// What is asked for.
    pub(crate) fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Tokens that may be drawn are those below this id.
    pub(crate) fn vocab(&self) -> usize {
        self.vocab
    }

    /// The same request as the sampler's kernel reads it.
    pub(crate) fn kernel_params(&self) -> SampleParams {
        SampleParams::new(&self.params, self.vocab as u32, self.seed)
    }

    /// Chooses the next token from `logits` (at least `vocab` of them) after `history`.
    ///
    /// # Errors
    /// Logits that are NaN, infinite, all masked or all equal; never a token instead.
    pub fn sample(&mut self, logits: &[f32], history: History<'_>) -> Result<Token, SampleError> {
        self.sample_among(logits, None, history)
    }

    /// As [`Sampler::sample`], from the tokens of `mask` only, which is applied after bias and penalties.
    ///
    /// # Errors
    /// As there, and if the mask leaves no token.
    pub fn sample_among(
        &mut self,
        logits: &[f32],
        mask: Option<&TokenMask>,
        history: History<'_>,
    ) -> Result<Token, SampleError> {
        let raw = LogProbs::new(
            logits.get(..self.vocab).ok_or(SampleError::WrongLength { expected: self.vocab, found: logits.len() })?,
        )?;
        let logits = raw.logits();
        let id = if self.params.adjusts_logits() || mask.is_some() {
            let mut adjusted = std::mem::take(&mut self.adjusted);
            adjusted.resize(self.vocab, 0.0); // grows once, with the first mask
            adjusted.copy_from_slice(logits);
            self.adjust(&mut adjusted, history);
            if let Some(mask) = mask {
                mask.apply(&mut adjusted);
            }
            let id = logprobs::largest(&adjusted).map(|max| self.choose(&adjusted, max, history));
            self.adjusted = adjusted;
            id?
        } else {
            self.choose(logits, raw.max(), history)
        };
        Ok(Token { id, logprob: raw.of(id) })
    }

    /// Steps 3 to 8, on checked logits whose largest is `max`.
    fn choose(&mut self, logits: &[f32], max: f32, history: History<'_>) -> u32 {
        if self.params.temperature == 0.0 {
            let best = logits.iter().position(|&l| l == max);
            return best.expect("the largest logit is one of them") as u32;
        }
        self.candidates.select(logits, self.params.top_k as usize, max, self.inverse_temperature);
        self.candidates.keep_top_p(self.params.top_p);
        self.candidates.keep_min_p(self.params.min_p);
        self.candidates.draw(philox::draw(self.seed, history.generated.len() as u64))
    }

    /// Steps 1 and 2. Tokens of the history that cannot be drawn are passed over.
    fn adjust(&mut self, logits: &mut [f32], history: History<'_>) {
        for (&id, &bias) in &self.params.logit_bias {
            logits[id as usize] += bias;
        }
        if self.params.counts_prompt() {
            let penalty = self.params.repetition_penalty;
            let tokens = || history.prompt.iter().chain(history.generated).map(|&t| t as usize);
            for token in tokens() {
                if let Some(seen @ 0) = self.counts.get_mut(token) {
                    *seen = 1;
                    let logit = &mut logits[token];
                    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                }
            }
            for token in tokens() {
                if let Some(seen) = self.counts.get_mut(token) {
                    *seen = 0;
                }
            }
        }
        if self.params.counts_generated() {
            for &token in history.generated {
                if let Some(count) = self.counts.get_mut(token as usize) {
                    *count += 1;
                }
            }
            for &token in history.generated {
                let token = token as usize;
                if let Some(count @ 1..) = self.counts.get_mut(token) {
                    let by_count = *count as f32 * self.params.frequency_penalty;
                    logits[token] = (logits[token] - by_count) - self.params.presence_penalty;
                    *count = 0;
                }
            }
        }
    }
}

/// A seed from the operating system's entropy, which seeds the standard library's hash keys.
fn fresh_seed() -> u64 {
    RandomState::new().hash_one("lily sampler seed")
}
