//! Top-k, top-p, min-p and the draw, over a scratch list of candidates that is reused from token to token.
//!
//! "Before" always means: larger logit first, and of equal logits the lower index. Shares of probability are sums of
//! integer masses ([`mass`]), so no result depends on the order of a sum.

use super::exp::{exp_nonpositive, mass};

/// One token that may still be drawn.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Adjusted logit; never NaN, and never -0, so that `total_cmp` is the numeric order.
    logit: f32,
    id: u32,
    /// Unnormalised probability; see [`mass`].
    mass: u64,
}

/// The sort order "before".
fn before(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Tokens looked at together when most of them are below the threshold.
const BLOCK: usize = 32;
/// First guess at the number of tokens that top-p keeps.
const NUCLEUS_GUESS: usize = 256;

/// The candidates of one step.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    list: Vec<Candidate>,
}

impl Candidates {
    /// Scratch that will not grow for `vocab` tokens and this `top_k` (0: all tokens).
    pub fn with_capacity(vocab: usize, top_k: usize) -> Self {
        let capacity = if top_k == 0 { vocab } else { selection_buffer(vocab, top_k) };
        Self { list: Vec::with_capacity(capacity) }
    }

    /// Makes the candidates the `k` first tokens of `logits` (all where `k` is 0); tokens at minus infinity never are.
    pub fn select(&mut self, logits: &[f32], k: usize) {
        self.list.clear();
        if k == 0 || k >= logits.len() {
            let finite = logits.iter().enumerate().filter(|(_, l)| **l > f32::NEG_INFINITY);
            // Adding zero turns -0 into 0.
            self.list.extend(finite.map(|(id, &l)| Candidate { logit: l + 0.0, id: id as u32, mass: 0 }));
            return;
        }
        let buffer = selection_buffer(logits.len(), k);
        let mut threshold = f32::NEG_INFINITY;
        for (block_index, block) in logits.chunks(BLOCK).enumerate() {
            if !block.iter().fold(false, |any, &l| any | (l > threshold)) {
                continue;
            }
            for (offset, &logit) in block.iter().enumerate() {
                // Indices ascend, so a token that equals the k-th one comes after it.
                if logit > threshold {
                    let id = (block_index * BLOCK + offset) as u32;
                    self.list.push(Candidate { logit: logit + 0.0, id, mass: 0 });
                    if self.list.len() == buffer {
                        threshold = self.trim(k);
                    }
                }
            }
        }
        if self.list.len() > k {
            self.trim(k);
        }
    }

    /// Keeps the `k` first of the more than `k` candidates; the logit of the last one kept.
    fn trim(&mut self, k: usize) -> f32 {
        let (_, kth, _) = self.list.select_nth_unstable_by(k - 1, before);
        let logit = kth.logit;
        self.list.truncate(k);
        logit
    }

    /// Gives every candidate its mass relative to the largest logit; those that round to nothing are dropped.
    pub fn weigh(&mut self, max: f32, inverse_temperature: f32) {
        for candidate in &mut self.list {
            candidate.mass = mass(exp_nonpositive((candidate.logit - max) * inverse_temperature));
        }
        self.list.retain(|c| c.mass > 0);
    }

    /// Keeps the shortest beginning of the candidates, in the order "before", with at least `top_p` of their mass.
    pub fn keep_top_p(&mut self, top_p: f32) {
        if top_p >= 1.0 {
            return;
        }
        let need = share(self.total(), top_p);
        let (mut sorted, mut reached) = (0, 0u64);
        let mut guess = NUCLEUS_GUESS;
        loop {
            let rest = &mut self.list[sorted..];
            let take = guess.min(rest.len());
            if take < rest.len() {
                rest.select_nth_unstable_by(take, before);
            }
            rest[..take].sort_unstable_by(before);
            for candidate in &rest[..take] {
                sorted += 1;
                reached += candidate.mass;
                if reached >= need {
                    self.list.truncate(sorted);
                    return;
                }
            }
            guess *= 4;
        }
    }

    /// Keeps the candidates with at least `min_p` of the mass of the most likely token.
    pub fn keep_min_p(&mut self, min_p: f32) {
        if min_p > 0.0 {
            let least = mass(min_p);
            self.list.retain(|c| c.mass >= least);
        }
    }

    /// Draws: with the candidates side by side in ascending index, each as wide as its mass, the one that holds the
    /// point `floor(random * total / 2^64)`.
    pub fn draw(&mut self, random: u64) -> u32 {
        if !self.list.is_sorted_by_key(|c| c.id) {
            self.list.sort_unstable_by_key(|c| c.id);
        }
        let mut point = ((u128::from(random) * u128::from(self.total())) >> 64) as u64;
        for candidate in &self.list {
            if point < candidate.mass {
                return candidate.id;
            }
            point -= candidate.mass;
        }
        unreachable!("the point is below the total mass, which the most likely token makes positive")
    }

    /// Sum of the masses: below 2^40 times the vocabulary, far from overflow.
    fn total(&self) -> u64 {
        self.list.iter().map(|c| c.mass).sum()
    }

    /// The candidates in the order "before", as (id, logit).
    pub fn in_order(&mut self) -> impl Iterator<Item = (u32, f32)> {
        self.list.sort_unstable_by(before);
        self.list.iter().map(|c| (c.id, c.logit))
    }

    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.list.capacity()
    }

    #[cfg(test)]
    pub fn ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.list.iter().map(|c| c.id).collect();
        ids.sort_unstable();
        ids
    }
}

/// Candidates collected before the list is trimmed to `k`.
fn selection_buffer(vocab: usize, k: usize) -> usize {
    k.saturating_mul(4).saturating_add(256).min(vocab.max(k + 1))
}

/// The mass that `top_p` of `total` needs: `ceil(total * p / 2^32)` with p = `top_p` in units of 2^-32, rounded up.
fn share(total: u64, top_p: f32) -> u64 {
    let p = (f64::from(top_p) * 4_294_967_296.0).ceil() as u128;
    (u128::from(total) * p).div_ceil(1 << 32) as u64
}
