//! Top-k, top-p, min-p and the draw, over a scratch list of candidates that is reused from token to token.
//!
//! "Before" always means: larger logit first, and of equal logits the lower index. Shares of probability are sums of
//! integer masses ([`mass`]), so no result depends on the order of a sum.

use std::cmp::Ordering;

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
fn before(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Tokens looked at together: most blocks hold none above the threshold, and weights are computed in vectors.
const BLOCK: usize = 32;
/// Bits of a logit's key that one pass of the search for top-p's cut looks at, most significant first.
const DIGITS: [u32; 3] = [11, 11, 10];

/// The candidates of one step. Between the methods the list is in ascending index.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    list: Vec<Candidate>,
    /// Mass per value of a digit.
    masses: Vec<u64>,
}

impl Candidates {
    /// Scratch that will not grow for `vocab` tokens and this `top_k` (0: all tokens).
    pub fn with_capacity(vocab: usize, top_k: usize) -> Self {
        let capacity = if top_k == 0 { vocab } else { selection_buffer(vocab, top_k) };
        Self { list: Vec::with_capacity(capacity), masses: vec![0; 1 << DIGITS[0]] }
    }

    /// Makes the candidates the `k` first tokens of `logits`, all where `k` is 0, each with its mass relative to the
    /// largest logit `max`. Tokens whose mass rounds to nothing are left out.
    pub fn select(&mut self, logits: &[f32], k: usize, max: f32, inverse_temperature: f32) {
        let weight = |logit: f32| exp_nonpositive((logit - max) * inverse_temperature);
        if k > 0 && k < logits.len() {
            self.select_first(logits, k);
            for candidate in &mut self.list {
                candidate.mass = mass(weight(candidate.logit));
            }
            self.list.retain(|c| c.mass > 0);
            self.list.sort_unstable_by_key(|c| c.id);
            return;
        }
        self.list.clear();
        for (block_index, block) in logits.chunks(BLOCK).enumerate() {
            let mut weights = [0f32; BLOCK];
            weights.iter_mut().zip(block).for_each(|(w, &l)| *w = weight(l));
            for (offset, (&logit, &weight)) in block.iter().zip(&weights).enumerate() {
                let mass = mass(weight);
                if mass > 0 {
                    // Adding zero turns -0 into 0.
                    self.list.push(Candidate { logit: logit + 0.0, id: (block_index * BLOCK + offset) as u32, mass });
                }
            }
        }
    }

    /// Makes the candidates the `k` first tokens of `logits`, in no order and without mass; tokens at minus infinity never
    /// are.
    pub fn select_first(&mut self, logits: &[f32], k: usize) {
        self.list.clear();
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

    /// Keeps the shortest beginning of the candidates, in the order "before", with at least `top_p` of their mass.
    ///
    /// The logit of the last one kept is found digit by digit of its key, by adding up masses from the largest value of
    /// the digit down; nothing is sorted.
    pub fn keep_top_p(&mut self, top_p: f32) {
        if top_p >= 1.0 {
            return;
        }
        let need = share(self.total(), top_p);
        // Mass of the tokens known to come before the cut; always less than what is needed.
        let mut reached = 0;
        let (mut cut, mut known) = (0u32, 0u32);
        let mut shift = u32::BITS;
        for bits in DIGITS {
            shift -= bits;
            let digit = |key: u32| (key >> shift & ((1 << bits) - 1)) as usize;
            let masses = &mut self.masses[..1 << bits];
            masses.fill(0);
            for candidate in &self.list {
                let key = key(candidate.logit);
                if key & known == cut {
                    masses[digit(key)] += candidate.mass;
                }
            }
            let mut value = masses.len() - 1;
            while reached + masses[value] < need {
                reached += masses[value];
                value -= 1;
            }
            cut |= (value as u32) << shift;
            known |= ((1 << bits) - 1) << shift;
        }
        self.list.retain(|candidate| match key(candidate.logit).cmp(&cut) {
            Ordering::Greater => true,
            Ordering::Less => false,
            // Tokens at the cut have equal logits and come in ascending index.
            Ordering::Equal => {
                let wanted = reached < need;
                reached += candidate.mass;
                wanted
            }
        });
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
    pub fn draw(&self, random: u64) -> u32 {
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
        self.list.iter().map(|c| c.id).collect()
    }
}

/// An integer that orders as the logits do: `total_cmp` of two floats is the order of these.
fn key(logit: f32) -> u32 {
    let bits = logit.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// Candidates collected before the list is trimmed to `k`.
fn selection_buffer(vocab: usize, k: usize) -> usize {
    k.saturating_mul(4).saturating_add(256).min(vocab.max(k.saturating_add(1)))
}

/// The mass that `top_p` of `total` needs: `ceil(total * p / 2^32)` with p = `top_p` in units of 2^-32, rounded up.
fn share(total: u64, top_p: f32) -> u64 {
    let p = (f64::from(top_p) * 4_294_967_296.0).ceil() as u128;
    (u128::from(total) * p).div_ceil(1 << 32) as u64
}
