//! What every engine of a comparison is asked to measure.

use crate::cli::BenchArgs;
use crate::measure::random_tokens;
use serde::Serialize;

/// Prompts up to this long are computed once before they are timed.
const WARM_UP_TOKENS: usize = 4096;

/// A length, and what is measured at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Length {
    /// Tokens of the prompt, or of the context decoded after.
    pub tokens: usize,
    /// Tokens that are computed before, uncounted.
    pub warm_up: usize,
    /// Whether prefill is measured.
    pub prefill: bool,
    /// Whether decoding is measured.
    pub decode: bool,
}

/// Everything that is asked.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Lengths, ascending.
    pub lengths: Vec<Length>,
    /// Tokens of the longest; shorter ones are beginnings of it.
    pub tokens: Vec<u32>,
    /// Tokens to decode.
    pub decode: usize,
    /// Runs of each, at least.
    pub reps: usize,
    /// Threads on a CPU, where somebody chose.
    pub threads: Option<usize>,
}

impl Spec {
    /// What these arguments ask for, of a model with `vocab` tokens.
    pub fn new(args: &BenchArgs, vocab: usize) -> Self {
        let lengths = lengths(&args.measure.prefill.0, args.measure.contexts());
        let longest = lengths.last().map_or(0, |length| length.tokens);
        Self {
            lengths,
            tokens: random_tokens(vocab, args.measure.seed, longest),
            decode: args.measure.decode,
            reps: args.reps,
            threads: args.measure.device.threads,
        }
    }
}

fn lengths(prefill: &[usize], decode: &[usize]) -> Vec<Length> {
    let mut all = [prefill, decode].concat();
    all.sort_unstable();
    all.dedup();
    let length = |tokens| Length {
        tokens,
        // The remainder, so that the last chunk has as many rows as that of the whole prompt.
        warm_up: if tokens > WARM_UP_TOKENS { WARM_UP_TOKENS + tokens % WARM_UP_TOKENS } else { tokens },
        prefill: prefill.contains(&tokens),
        decode: decode.contains(&tokens),
    };
    all.into_iter().map(length).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Prefill of 4 and 8 tokens, decoding of 2 after 8, one run of each.
    pub fn spec() -> Spec {
        Spec { lengths: lengths(&[4, 8], &[8]), tokens: (1..=8).collect(), decode: 2, reps: 1, threads: None }
    }

    #[test]
    fn lengths_are_measured_once_in_order() {
        let all = lengths(&[8192, 512], &[512, 5000, 512]);
        let expect = [(512, 512, true, true), (5000, 5000, false, true), (8192, 4096, true, false)];
        assert_eq!(all.iter().map(|l| (l.tokens, l.warm_up, l.prefill, l.decode)).collect::<Vec<_>>(), expect);
    }
}
