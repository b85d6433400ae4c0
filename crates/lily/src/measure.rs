//! Timing an engine: prefill of a fresh session, decoding after a context, the first token of a cached conversation.
//!
//! What is measured in which order, and what the figures are compared with, is the business of the commands.

use crate::failure::Failure;
use lily_engine::engine::Engine;
use lily_engine::sampler::{History, Sampler, SamplingParams, philox};
use lily_engine::session::Session;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::str::FromStr;
use std::time::Instant;

/// A measured figure over several runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The figure of these runs, of which there is one at least.
    pub fn new(runs: Vec<f64>) -> Self {
        let mut sorted = runs.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let n = sorted.len();
        Self { median: (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0, min: sorted[0], max: sorted[n - 1], runs }
    }
}

/// Numbers of tokens, as a list with commas whose items are numbers (K is 1,024) or `A..B`: A and its doublings up to B.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths(pub Vec<usize>);

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut lengths = Vec::new();
        for item in text.split(',') {
            match item.split_once("..") {
                None => lengths.push(parse_tokens(item)?),
                Some((first, last)) => {
                    let (first, last) = (parse_tokens(first)?, parse_tokens(last)?);
                    if first > last {
                        return Err(format!("{item} is empty; expected the smaller number first"));
                    }
                    let doubled = std::iter::successors(Some(first), |length| length.checked_mul(2));
                    lengths.extend(doubled.take_while(|length| *length <= last));
                }
            }
        }
        Ok(Self(lengths))
    }
}

/// A number of tokens, at least 1; K is 1,024.
pub fn parse_tokens(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let tokens = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    tokens.filter(|tokens| *tokens > 0).ok_or_else(|| format!("{text:?}: expected at least 1 token, such as 512 or 4K"))
}

/// Random token ids below `vocab`, the same for a seed.
pub fn random_tokens(vocab: usize, seed: u64, count: usize) -> Vec<u32> {
    // The draw as a fraction of 2^64, times the vocabulary.
    let draw = |i| ((u128::from(philox::draw(seed, i)) * vocab as u128) >> 64) as u32;
    (0..count as u64).map(draw).collect()
}

/// What a run of decode steps gave.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// Steps per second.
    pub tokens_per_second: f64,
    /// The tokens chosen, one a step.
    pub tokens: Vec<u32>,
}

/// What a run of steps that check guesses gave.
#[derive(Clone, Debug)]
pub struct Guessing {
    /// How long it took.
    pub seconds: f64,
    /// Steps.
    pub steps: usize,
    /// The tokens, of which the last was not computed any more.
    pub tokens: Vec<u32>,
    /// Guesses.
    pub guessed: usize,
    /// Those that were right.
    pub accepted: usize,
}

impl Guessing {
    /// Tokens that were computed, per second.
    pub fn tokens_per_second(&self) -> f64 {
        (self.tokens.len() - 1) as f64 / self.seconds
    }
}

/// A context that is decoded after again and again.
pub struct Context {
    filled: Session,
}

impl Context {
    /// Computes these tokens, at least one, in a fresh session. Gives the context and tokens per second.
    pub fn fill(engine: &mut Engine, tokens: &[u32]) -> Result<(Self, f64), Failure> {
        let mut filled = engine.new_session()?;
        let start = Instant::now();
        engine.advance(&mut filled, tokens, &[], &mut |_, _| ControlFlow::Continue(()))?;
        let tokens_per_second = tokens.len() as f64 / start.elapsed().as_secs_f64();
        Ok((Self { filled }, tokens_per_second))
    }

    /// Takes so many steps, as a generation makes them on this device.
    pub fn decode(&self, engine: &mut Engine, count: usize, params: &SamplingParams) -> Result<Decoded, Failure> {
        let mut session = engine.fork(&self.filled)?;
        let mut sampler = Sampler::new(params.clone(), engine.model().shape.vocab)?;
        let prompt = session.tokens().to_vec();
        let mut tokens = Vec::with_capacity(count);
        let start = Instant::now();
        if engine.model().traits.chooses_tokens {
            let history = History { prompt: &prompt, generated: &[] };
            let mut ahead = engine.ahead(vec![&mut session], &[(&sampler, history)])?;
            for _ in 0..count {
                tokens.push(ahead.next(true)?[0].clone()?.id);
            }
            ahead.finish()?;
        } else {
            for _ in 0..count {
                let logits = session.logits().expect("the context and every step leave logits");
                let history = History { prompt: &prompt, generated: &tokens };
                let token = sampler.sample(logits, history)?;
                engine.decode(&mut session, token.id)?;
                tokens.push(token.id);
            }
        }
        Ok(Decoded { tokens_per_second: count as f64 / start.elapsed().as_secs_f64(), tokens })
    }

    /// Computes so many greedy tokens, or a few more, in steps that check guesses. `guess` gives the guesses of what follows a text whose
    /// last so many tokens were generated.
    pub fn decode_guessing(
        &self,
        engine: &mut Engine,
        count: usize,
        guess: &mut dyn FnMut(&[u32], usize) -> Vec<u32>,
    ) -> Result<Guessing, Failure> {
        let mut session = engine.fork(&self.filled)?;
        let mut sampler = Sampler::new(SamplingParams::greedy(), engine.model().shape.vocab)?;
        let mut text = session.tokens().to_vec();
        let (prompt_tokens, mut steps, mut guessed, mut accepted) = (text.len(), 0, 0, 0);
        let start = Instant::now();
        let logits = session.logits().expect("a context has logits");
        text.push(sampler.sample(logits, History::default())?.id);
        while text.len() - prompt_tokens <= count {
            let guesses = guess(&text, text.len() - prompt_tokens);
            let tokens = [&text[text.len() - 1..], &guesses].concat();
            let choices = engine.check_guesses(&mut session, &tokens)?;
            (steps, guessed, accepted) = (steps + 1, guessed + guesses.len(), accepted + choices.len() - 1);
            for choice in choices {
                text.push(choice?);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(Guessing { seconds, steps, tokens: text.split_off(prompt_tokens), guessed, accepted })
    }

    /// Takes so many greedy steps of several sessions at once, as the scheduler makes them on this device, `runs` times after `warm_steps` that are not counted; the
    /// sessions part at their first token, so that they choose experts of their own. Gives tokens per second of all
    /// sessions together, of every run.
    pub fn decode_batch(
        &self,
        engine: &mut Engine,
        sessions: usize,
        count: usize,
        runs: usize,
        warm_steps: usize,
    ) -> Result<Vec<f64>, Failure> {
        let vocab = engine.model().shape.vocab;
        let mut batch = (0..sessions).map(|_| engine.fork(&self.filled)).collect::<Result<Vec<_>, _>>()?;
        let mut sampler = Sampler::new(SamplingParams::greedy(), vocab)?;
        let mut tokens = random_tokens(vocab, u64::MAX, sessions);
        engine.decode_batch(&mut batch.iter_mut().collect::<Vec<_>>(), &tokens, || ())?;
        let mut steps = |count: usize| -> Result<f64, Failure> {
            let start = Instant::now();
            if engine.model().traits.chooses_tokens {
                let choices = vec![(&sampler, History::default()); sessions];
                let mut ahead = engine.ahead(batch.iter_mut().collect(), &choices)?;
                for _ in 0..count {
                    ahead.next(true)?.iter().try_for_each(|token| token.clone().map(|_| ()))?;
                }
                ahead.finish()?;
            } else {
                for _ in 0..count {
                    for (session, token) in batch.iter().zip(&mut tokens) {
                        let logits = session.logits().expect("every step leaves logits");
                        *token = sampler.sample(logits, History::default())?.id;
                    }
                    engine.decode_batch(&mut batch.iter_mut().collect::<Vec<_>>(), &tokens, || ())?;
                }
            }
            Ok((count * sessions) as f64 / start.elapsed().as_secs_f64())
        };
        steps(warm_steps)?;
        (0..runs).map(|_| steps(count)).collect()
    }
}

/// Puts a conversation into the prefix cache, with its state at its end.
pub fn remember(engine: &mut Engine, conversation: &[u32]) -> Result<(), Failure> {
    // A state is kept before tokens that follow, as those of the next message do.
    let followed = [conversation, &[0]].concat();
    let mut session = engine.new_session()?;
    engine.advance(&mut session, &followed, &[conversation.len()], &mut |_, _| ControlFlow::Continue(()))?;
    Ok(())
}

/// Milliseconds from a prompt to its first token, in a new session, `cached_tokens` of the prompt being in the prefix cache.
pub fn first_token(engine: &mut Engine, prompt: &[u32], cached_tokens: usize) -> Result<f64, Failure> {
    let mut sampler = Sampler::new(SamplingParams::greedy(), engine.model().shape.vocab)?;
    let start = Instant::now();
    let mut session = engine.new_session()?;
    let advance = engine.advance(&mut session, prompt, &[], &mut |_, _| ControlFlow::Continue(()))?;
    let history = History { prompt, generated: &[] };
    if engine.model().traits.chooses_tokens {
        engine.ahead(vec![&mut session], &[(&sampler, history)])?.next(false)?[0].clone()?;
    } else {
        let logits = session.logits().expect("the last token of a prompt leaves logits");
        sampler.sample(logits, history)?;
    }
    let milliseconds = 1e3 * start.elapsed().as_secs_f64();
    if advance.reused_tokens != cached_tokens {
        return Err(Failure::other(format_args!(
            "{} of {cached_tokens} tokens were found in the prefix cache; there is not enough memory for it: ask for less \
             with --cached",
            advance.reused_tokens
        )));
    }
    Ok(milliseconds)
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

    #[test]
    fn lengths_are_lists_with_ranges_of_doublings() {
        let check = |text: &str, expect: &[usize]| assert_eq!(text.parse(), Ok(Lengths(expect.to_vec())), "{text}");
        check("512", &[512]);
        check("1,4K,3", &[1, 4096, 3]);
        check("256..1K", &[256, 512, 1024]);
        check("100..399,7", &[100, 200, 7]);
        assert_eq!("256..128K".parse::<Lengths>().unwrap().0.len(), 10);
        for wrong in ["", "0", "-1", "1.5K", "4M", "1K..256", "1,,2", "99999999999999999999K"] {
            assert!(wrong.parse::<Lengths>().is_err(), "{wrong}");
        }
    }
}
