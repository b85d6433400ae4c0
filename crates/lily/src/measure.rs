//! Timing an engine: prefill of a fresh session, and decoding after a context.

use crate::failure::Failure;
use lily_engine::engine::{AheadError, Engine};
use lily_engine::sampler::{History, Sampler, SamplingParams, philox};
use lily_engine::session::Session;
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::Instant;

/// A measured rate over several runs.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// The one in the middle.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
    /// All, in the order of the runs.
    pub runs: Vec<f64>,
}

impl Rate {
    /// The rate of these runs.
    pub fn new(runs: Vec<f64>) -> Self {
        let mut sorted = runs.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let n = sorted.len();
        Self { median: (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0, min: sorted[0], max: sorted[n - 1], runs }
    }
}

/// Random token ids of the model, the same for a seed.
pub fn random_tokens(engine: &Engine, seed: u64, count: usize) -> Vec<u32> {
    let vocab = engine.model().shape.vocab as u64;
    // The draw as a fraction of 2^64, times the vocabulary.
    let draw = |i| ((u128::from(philox::draw(seed, i)) * u128::from(vocab)) >> 64) as u32;
    (0..count as u64).map(draw).collect()
}

/// Tokens per second of a prefill of all these tokens.
pub fn prefill(engine: &mut Engine, tokens: &[u32]) -> Result<f64, Failure> {
    let mut session = engine.new_session()?;
    let start = Instant::now();
    engine.advance(&mut session, tokens, &[], &mut |_, _| ControlFlow::Continue(()))?;
    Ok(tokens.len() as f64 / start.elapsed().as_secs_f64())
}

/// A context that is decoded after again and again.
pub struct Context {
    filled: Session,
}

impl Context {
    /// Computes a context of at least one token.
    pub fn fill(engine: &mut Engine, tokens: &[u32]) -> Result<Self, Failure> {
        let mut filled = engine.new_session()?;
        engine.advance(&mut filled, tokens, &[], &mut |_, _| ControlFlow::Continue(()))?;
        Ok(Self { filled })
    }

    /// Tokens per second of so many greedy steps, as a generation makes them on this device.
    pub fn decode(&self, engine: &mut Engine, count: usize) -> Result<f64, Failure> {
        let mut session = engine.fork(&self.filled)?;
        let mut sampler = Sampler::new(SamplingParams::greedy(), engine.model().shape.vocab)?;
        let history = History { prompt: &[], generated: &[] };
        let start = Instant::now();
        if engine.model().traits.chooses_tokens {
            let mut ahead = engine.ahead(&mut session, &sampler, history)?;
            (0..count).try_for_each(|_| ahead.next(true).map(|_| ()))?;
            ahead.finish()?;
        } else {
            for _ in 0..count {
                let logits = session.logits().expect("the context and every step leave logits");
                let token = sampler.sample(logits, history).map_err(AheadError::from)?;
                engine.decode(&mut session, token.id)?;
            }
        }
        Ok(count as f64 / start.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_median_with_its_spread() {
        let rate = Rate::new(vec![3.0, 1.0, 2.0]);
        assert_eq!((rate.median, rate.min, rate.max), (2.0, 1.0, 3.0));
        assert_eq!(Rate::new(vec![1.0, 4.0]).median, 2.5);
    }
}
