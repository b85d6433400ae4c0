//! The sampler as a kernel: logits to the next token, which is handed to the next step without the host.
//!
//! It follows the text at the top of [`crate::sampler`] to the bit, so that a device and the host draw the same tokens
//! from the same logits. Generations differ in a small buffer of parameters, not in the plan.

use super::*;
use crate::sampler::exp::exp_nonpositive;
use crate::sampler::{Candidates, SamplingParams, philox};

dims! {
    /// What one generation asks of the sampler, as the kernel reads it.
    SampleParams {
        /// 1 / temperature; 0 is greedy.
        inverse_temperature: f32,
        /// Keep so many of the largest logits; 0 keeps all.
        top_k: u32,
        /// Keep the most likely tokens with this share of the probability.
        top_p: f32,
        /// Keep tokens at least this many times as likely as the most likely one.
        min_p: f32,
        /// Subtracted once from tokens generated before.
        presence_penalty: f32,
        /// Subtracted per time a token was generated.
        frequency_penalty: f32,
        /// Divides or multiplies tokens seen before.
        repetition_penalty: f32,
        /// Sum of [`USES_BIAS`], [`USES_GENERATED`] and [`USES_SEEN`].
        uses: u32,
        /// Tokens that may be drawn: those below this id.
        vocab: u32,
        /// Seed, low word first.
        seed: [u32; 2],
    }
}

/// `bias` is added to the logits.
pub const USES_BIAS: u32 = 1;
/// Presence and frequency penalties are on.
pub const USES_GENERATED: u32 = 2;
/// The repetition penalty is on.
pub const USES_SEEN: u32 = 4;
/// Mark in `counts` of a token that the prompt holds; the bits below count how often a token was generated.
pub const IN_PROMPT: u32 = 1 << 31;

/// Words of one result: token, [`status`](SAMPLE_OK), and the bits of a logit with its index that tell more of an error:
/// the first that is not finite, else the largest of the raw ones.
pub const RESULT_WORDS: u32 = 4;
/// A token was chosen.
pub const SAMPLE_OK: u32 = 0;
/// A logit is NaN or plus infinity.
pub const SAMPLE_NOT_FINITE: u32 = 1;
/// All logits are minus infinity.
pub const SAMPLE_ALL_MASKED: u32 = 2;
/// All logits are equal.
pub const SAMPLE_FLAT: u32 = 3;
/// Sums of masses are kept in parts that would overflow beyond so many tokens.
pub const SAMPLE_VOCAB_MAX: usize = 1 << 18;
/// Threads of the one threadgroup that chooses.
pub const SAMPLE_THREADS: u32 = 1024;
/// Logits of a stretch, at which a SIMD-group looks; a thread of the threadgroup that chooses takes the word of one.
pub const SCAN_STRETCH: u32 = SAMPLE_VOCAB_MAX as u32 / SAMPLE_THREADS;
/// Threads of a threadgroup of SIMD-groups that look.
pub const SCAN_THREADS: u32 = 128;
/// Words of what a stretch tells: largest and smallest raw logit, largest adjusted one and its token, and the first token
/// whose logit is not finite or all ones.
pub const SCAN_WORDS: u32 = 5;

impl SampleParams {
    /// What `params` ask for of the tokens below `vocab`, with the seed in use.
    pub fn new(params: &SamplingParams, vocab: u32, seed: u64) -> Self {
        let generated = params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
        let uses = [
            (!params.logit_bias.is_empty(), USES_BIAS),
            (generated, USES_GENERATED),
            (params.repetition_penalty != 1.0, USES_SEEN),
        ];
        Self {
            inverse_temperature: if params.temperature == 0.0 { 0.0 } else { 1.0 / params.temperature },
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            repetition_penalty: params.repetition_penalty,
            uses: uses.iter().filter(|(on, _)| *on).map(|(_, bit)| bit).sum(),
            vocab,
            seed: [seed as u32, (seed >> 32) as u32],
        }
    }
}

kernel! {
    /// Decode: what stretches of the logits tell that the choice needs.
    SampleScan, "sample_scan", args SampleScanArgs, views SampleScanViews {
        args {
            /// Logits: rows of the head.
            vocab: u32,
        }
        buffers {
            params: read u32,
            logits: read f32,
            bias: read f32,
            counts: read u32,
            scans: write u32,
            sums: write f32,
        }
        launch: |a| {
            Launch::new([a.vocab.div_ceil(SCAN_STRETCH).div_ceil(SCAN_THREADS / launch::SIMD_WIDTH), 1, 1], SCAN_THREADS)
        },
        cost: |a, _| Cost { activation_bytes: 4.0 * a.vocab as f64, ..Cost::default() },
        tolerance: 1e-4,
        reference: |v| {
            let params = params_of(v.params);
            let (scans, sums) = scan(params, v.logits, v.bias, v.counts);
            v.scans[..scans.len()].copy_from_slice(&scans);
            v.sums[..sums.len()].copy_from_slice(&sums);
        },
    }
}

kernel! {
    /// Decode: chooses the next token from the logits and what their stretches tell, counts it, writes it where the next step reads its input, moves the
    /// step on, and leaves it in one of two result slots, which alternate.
    Sample, "sample", args SampleArgs, views SampleViews {
        args {
            /// Logits: rows of the head.
            vocab: u32,
        }
        buffers {
            params: read u32,
            logits: read f32,
            bias: read f32,
            counts: update u32,
            step: update u32,
            token: write u32,
            draws: update u32,
            results: update u32,
            logprobs: update f32,
            scans: read u32,
            sums: read f32,
        }
        launch: |_| Launch::new([1, 1, 1], SAMPLE_THREADS),
        cost: |a, _| {
            let words = (SCAN_WORDS + 1) * a.vocab.div_ceil(SCAN_STRETCH);
            Cost { activation_bytes: 4.0 * words as f64, ..Cost::default() }
        },
        tolerance: 1e-4,
        reference: sample_reference,
    }
}

fn params_of(words: &[u32]) -> &SampleParams {
    bytemuck::from_bytes(&bytemuck::cast_slice(words)[..size_of::<SampleParams>()])
}

/// What each stretch of the logits tells, in [`SCAN_WORDS`] words; and its sum of exp(logit - largest) over raw logits.
pub fn scan(params: &SampleParams, logits: &[f32], bias: &[f32], counts: &[u32]) -> (Vec<u32>, Vec<f32>) {
    let logits = &logits[..params.vocab as usize];
    let adjusted = adjusted(params, logits, bias, counts);
    let (mut scans, mut sums) = (Vec::new(), Vec::new());
    for (i, raw) in logits.chunks(SCAN_STRETCH as usize).enumerate() {
        let first = i * SCAN_STRETCH as usize;
        let largest = |all: &[f32]| all.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (raw_max, raw_min) = (largest(raw), raw.iter().copied().fold(f32::INFINITY, f32::min));
        let changed = &adjusted[first..first + raw.len()];
        let max = largest(changed);
        let token = changed.iter().position(|l| *l == max).map_or(u32::MAX, |at| (first + at) as u32);
        let broken = raw.iter().position(|l| l.is_nan() || *l == f32::INFINITY);
        let weight = |l: &f32| if raw_max > f32::NEG_INFINITY { exp_nonpositive(l - raw_max) } else { 0.0 };
        sums.push(raw.iter().map(weight).sum());
        let broken = broken.map_or(u32::MAX, |at| (first + at) as u32);
        scans.extend([raw_max.to_bits(), raw_min.to_bits(), max.to_bits(), token, broken]);
    }
    (scans, sums)
}

fn sample_reference(v: SampleViews<'_>) {
    let params = params_of(v.params);
    let logits = &v.logits[..params.vocab as usize];
    let draw = v.draws[0];
    let slot = (draw % 2) as usize;
    let not_finite = logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY);
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (value, index) = not_finite.map_or((max, u32::MAX), |i| (logits[i], i as u32));
    let (token, status) = match status_of(logits) {
        SAMPLE_OK => (choose(params, &adjusted(params, logits, v.bias, v.counts), draw), SAMPLE_OK),
        status => (0, status),
    };
    let sum: f64 = logits.iter().map(|l| f64::from(exp_nonpositive(l - max))).sum();
    v.logprobs[slot] =
        if status == SAMPLE_OK { (f64::from(logits[token as usize] - max) - sum.ln()) as f32 } else { 0.0 };
    v.results[slot * RESULT_WORDS as usize..][..RESULT_WORDS as usize].copy_from_slice(&[
        token,
        status,
        value.to_bits(),
        index,
    ]);
    v.counts[token as usize] += 1;
    v.token[0] = token;
    v.step[0] += 1;
    v.step[1] = 1 - v.step[1];
    v.draws[0] += 1;
}

fn status_of(logits: &[f32]) -> u32 {
    if logits.iter().any(|l| l.is_nan() || *l == f32::INFINITY) {
        SAMPLE_NOT_FINITE
    } else if logits.iter().all(|l| *l == f32::NEG_INFINITY) {
        SAMPLE_ALL_MASKED
    } else if logits.len() > 1 && logits.iter().all(|l| *l == logits[0]) {
        SAMPLE_FLAT
    } else {
        SAMPLE_OK
    }
}

/// Steps 1 and 2 of the sampler.
fn adjusted(params: &SampleParams, logits: &[f32], bias: &[f32], counts: &[u32]) -> Vec<f32> {
    let on = |bit: u32| params.uses & bit != 0;
    let adjust = |i: usize| {
        let (mut logit, generated) = (logits[i], counts[i] & !IN_PROMPT);
        if on(USES_BIAS) {
            logit += bias[i];
        }
        if on(USES_SEEN) && counts[i] != 0 {
            let penalty = params.repetition_penalty;
            logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
        }
        if on(USES_GENERATED) && generated > 0 {
            logit = (logit - generated as f32 * params.frequency_penalty) - params.presence_penalty;
        }
        logit
    };
    (0..logits.len()).map(adjust).collect()
}

/// Steps 3 to 8.
fn choose(params: &SampleParams, logits: &[f32], draw: u32) -> u32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if params.inverse_temperature == 0.0 {
        return logits.iter().position(|l| *l == max).unwrap_or(0) as u32;
    }
    let seed = u64::from(params.seed[0]) | u64::from(params.seed[1]) << 32;
    let mut candidates = Candidates::with_capacity(logits.len(), (params.top_k as usize).min(logits.len()));
    candidates.select(logits, params.top_k as usize, max, params.inverse_temperature);
    candidates.keep_top_p(params.top_p);
    candidates.keep_min_p(params.min_p);
    candidates.draw(philox::draw(seed, u64::from(draw)))
}
