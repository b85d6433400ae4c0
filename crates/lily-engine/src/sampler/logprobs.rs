//! Log-probabilities of raw logits, for the chosen token and for the most likely ones; and the checks that every vector
//! of logits passes first.

use super::exp::exp_nonpositive;
use super::filter::Candidates;
use super::{SampleError, Token};

/// Lanes of the sums, so that the compiler can use vector registers.
const LANES: usize = 16;
/// Terms summed in f32 before the partial sum goes to f64.
const BLOCK: usize = 4096;

/// Checked logits and the normaliser of their softmax.
#[derive(Clone, Copy, Debug)]
pub struct LogProbs<'a> {
    logits: &'a [f32],
    max: f32,
    /// Logarithm of the sum of `exp(logit - max)`.
    log_sum: f64,
}

impl<'a> LogProbs<'a> {
    /// Checks `logits` and sums their exponentials: one pass each.
    ///
    /// # Errors
    /// Logits that are NaN, plus infinity, all masked or all equal.
    pub fn new(logits: &'a [f32]) -> Result<Self, SampleError> {
        let max = largest(logits)?;
        let (first, rest) = logits.split_first().ok_or(SampleError::AllMasked { count: 0 })?;
        if !rest.is_empty() && first == &max && rest.iter().all(|l| l == first) {
            return Err(SampleError::Flat { count: logits.len(), value: *first });
        }
        Ok(Self { logits, max, log_sum: sum_exp(logits, max).ln() })
    }

    /// The logits given.
    pub fn logits(&self) -> &'a [f32] {
        self.logits
    }

    /// The largest of them.
    pub fn max(&self) -> f32 {
        self.max
    }

    /// Log-probability of token `id`, which must be below the number of logits.
    pub fn of(&self, id: u32) -> f32 {
        self.normalise(self.logits[id as usize])
    }

    /// The `n` most likely tokens, most likely first, ties by lowest index; fewer where fewer are possible.
    pub fn top(&self, n: usize) -> Vec<Token> {
        if n == 0 {
            return Vec::new();
        }
        let mut candidates = Candidates::default();
        candidates.select_first(self.logits, n);
        candidates.in_order().map(|(id, logit)| Token { id, logprob: self.normalise(logit) }).collect()
    }

    fn normalise(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.max) - self.log_sum) as f32
    }
}

/// The largest of `logits`, which must have one, with no NaN and no plus infinity among them.
pub(super) fn largest(logits: &[f32]) -> Result<f32, SampleError> {
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut good = [true; LANES];
    let mut see = |lane: usize, l: f32| {
        max[lane] = if l > max[lane] { l } else { max[lane] };
        // False for NaN too.
        good[lane] &= l < f32::INFINITY;
    };
    let chunks = logits.chunks_exact(LANES);
    chunks.remainder().iter().enumerate().for_each(|(lane, &l)| see(lane, l));
    chunks.for_each(|chunk| (0..LANES).for_each(|lane| see(lane, chunk[lane])));
    if good != [true; LANES] {
        let bad = logits.iter().enumerate().find(|(_, l)| l.is_nan() || **l == f32::INFINITY);
        let (index, &value) = bad.expect("a lane saw it");
        return Err(SampleError::NotFinite { index, value });
    }
    let max = max.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY { Err(SampleError::AllMasked { count: logits.len() }) } else { Ok(max) }
}

/// Sum of `exp(logit - max)`.
fn sum_exp(logits: &[f32], max: f32) -> f64 {
    let mut total = 0.0;
    for block in logits.chunks(BLOCK) {
        let mut sums = [0f32; LANES];
        let chunks = block.chunks_exact(LANES);
        chunks.remainder().iter().enumerate().for_each(|(lane, l)| sums[lane] = exp_nonpositive(l - max));
        for chunk in chunks {
            for lane in 0..LANES {
                sums[lane] += exp_nonpositive(chunk[lane] - max);
            }
        }
        total += sums.into_iter().map(f64::from).sum::<f64>();
    }
    total
}
