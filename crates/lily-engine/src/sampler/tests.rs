//! The sampler against brute-force references: exact sets, exact penalties, and empirical distributions.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::exp::{exp_nonpositive, mass};
use super::*;

const NO_HISTORY: History<'_> = History { prompt: &[], generated: &[] };

/// Token ids in the order "before": a full sort.
fn sorted(logits: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logits.len()).filter(|&i| logits[i] > f32::NEG_INFINITY).collect();
    ids.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    ids
}

/// Masses of the tokens that may be drawn, by the definition, with sorts and plain loops.
fn reference_masses(logits: &[f32], params: &SamplingParams) -> BTreeMap<usize, u64> {
    let mut ids = sorted(logits);
    let max = logits[ids[0]];
    let inverse = 1.0 / params.temperature;
    if params.top_k > 0 {
        ids.truncate(params.top_k as usize);
    }
    let masses: Vec<u64> = ids.iter().map(|&i| mass(exp_nonpositive((logits[i] - max) * inverse))).collect();
    let total: u128 = masses.iter().map(|&m| u128::from(m)).sum();
    let p = (f64::from(params.top_p) * f64::from(1u32 << 31) * 2.0).ceil() as u128;
    let mut reached = 0u128;
    let mut kept = BTreeMap::new();
    for (&id, &m) in ids.iter().zip(&masses) {
        // The set is complete when reached / total >= p / 2^32.
        if params.top_p < 1.0 && reached << 32 >= total * p {
            break;
        }
        reached += u128::from(m);
        if m > 0 && m >= mass(params.min_p) {
            kept.insert(id, m);
        }
    }
    kept
}

fn support(logits: &[f32], params: &SamplingParams) -> Vec<u32> {
    let mut sampler = Sampler::new(params.clone(), logits.len()).unwrap();
    sampler.sample(logits, NO_HISTORY).unwrap();
    sampler.candidates.ids()
}

/// Logits with many ties, masked entries and both zeros.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        4 => -8.0f32..8.0,
        3 => (-4i8..4).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
        1 => prop::sample::select(vec![0.0f32, -0.0]),
    ];
    let usable = |l: &Vec<f32>| LogProbs::new(l).is_ok();
    prop_oneof![prop::collection::vec(logit.clone(), 2..80), prop::collection::vec(logit, 1000..3000)]
        .prop_filter("usable", usable)
}

fn filters() -> impl Strategy<Value = SamplingParams> {
    let top_k = prop_oneof![Just(0u32), 1u32..12, 1u32..4000];
    let top_p = prop_oneof![Just(1.0f32), 0.001f32..1.0];
    let min_p = prop_oneof![Just(0.0f32), 0.0f32..0.99];
    (0.05f32..5.0, top_k, top_p, min_p, any::<u64>()).prop_map(|(temperature, top_k, top_p, min_p, seed)| {
        SamplingParams { temperature, top_k, top_p, min_p, seed: Some(seed), ..Default::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn support_is_exactly_the_definition(logits in logits(), params in filters()) {
        let expected: Vec<u32> = reference_masses(&logits, &params).keys().map(|&i| i as u32).collect();
        prop_assert_eq!(support(&logits, &params), expected);
    }

    #[test]
    fn the_draw_is_the_definition(logits in logits(), params in filters(), step in 0usize..50) {
        let masses = reference_masses(&logits, &params);
        let total: u64 = masses.values().sum();
        let random = philox::draw(params.seed.unwrap(), step as u64);
        let mut point = (u128::from(random) * u128::from(total)) >> 64;
        let expected = masses.iter().find(|&(_, &m)| {
            let inside = point < u128::from(m);
            point = point.saturating_sub(u128::from(m));
            inside
        });
        let generated = vec![0u32; step];
        let history = History { prompt: &[], generated: &generated };
        let token = Sampler::new(params.clone(), logits.len()).unwrap().sample(&logits, history).unwrap();
        prop_assert_eq!(Some(token.id as usize), expected.map(|e| *e.0));
    }

    /// The masses are a softmax: against f64, the set kept by top-p has the probability asked for and no token too many.
    #[test]
    fn top_p_holds_in_real_numbers(logits in logits(), top_p in 0.01f32..0.999, temperature in 0.2f32..3.0) {
        let params = SamplingParams { temperature, top_p, seed: Some(1), ..Default::default() };
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let weight = |id: usize| ((f64::from(logits[id]) - max) / f64::from(temperature)).exp();
        let total: f64 = (0..logits.len()).map(weight).sum();
        let kept = support(&logits, &params);
        let share = kept.iter().map(|&id| weight(id as usize)).sum::<f64>() / total;
        let least = kept.iter().map(|&id| weight(id as usize)).fold(f64::INFINITY, f64::min) / total;
        prop_assert!(share >= f64::from(top_p) - 1e-5, "{share} < {top_p}");
        prop_assert!(share - least < f64::from(top_p) + 1e-5, "{} without the last token, {top_p} asked", share - least);
    }

    #[test]
    fn penalties_and_bias_equal_a_dense_computation(
        logits in logits(),
        prompt in prop::collection::vec(0u32..100, 0..30),
        generated in prop::collection::vec(0u32..100, 0..30),
        presence in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        frequency in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        repetition in prop_oneof![Just(1.0f32), 0.5f32..2.0],
        bias in prop::collection::btree_map(0u32..2, -100.0f32..100.0, 0..2),
    ) {
        let expected: Vec<f32> = (0..logits.len() as u32).map(|id| {
            let mut l = logits[id as usize] + bias.get(&id).copied().unwrap_or(-0.0);
            let count = generated.iter().filter(|&&t| t == id).count();
            if repetition != 1.0 && (count > 0 || prompt.contains(&id)) {
                l = if l > 0.0 { l / repetition } else { l * repetition };
            }
            if count > 0 {
                l = l - count as f32 * frequency - presence;
            }
            l
        }).collect();
        let params = SamplingParams {
            temperature: 0.0, presence_penalty: presence, frequency_penalty: frequency, repetition_penalty: repetition,
            logit_bias: bias, ..Default::default()
        };
        let mut sampler = Sampler::new(params, logits.len()).unwrap();
        let history = History { prompt: &prompt, generated: &generated };
        // Twice: the scratch of the first call must not leak into the second.
        for _ in 0..2 {
            let token = sampler.sample(&logits, history).unwrap();
            prop_assert_eq!(token.id as usize, sorted(&expected)[0]);
            if !sampler.adjusted.is_empty() {
                prop_assert_eq!(&sampler.adjusted, &expected);
            }
            prop_assert!(sampler.counts.iter().all(|&c| c == 0));
        }
    }

    #[test]
    fn logprobs_are_a_log_softmax(logits in logits(), n in 1usize..20) {
        let probs = LogProbs::new(&logits).unwrap();
        let max = f64::from(probs.max());
        let log_sum = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln();
        let top = probs.top(n);
        let order = sorted(&logits);
        prop_assert_eq!(top.len(), n.min(order.len()));
        for (token, id) in top.iter().zip(order) {
            prop_assert_eq!(token.id as usize, id);
            prop_assert_eq!(token.logprob, probs.of(token.id));
            prop_assert!((f64::from(token.logprob) - (f64::from(logits[id]) - max - log_sum)).abs() < 1e-5);
        }
    }
}

/// Upper 0.1 % point of the chi-square distribution (Wilson and Hilferty's approximation).
fn chi_square_limit(freedom: f64) -> f64 {
    let a = 2.0 / (9.0 * freedom);
    freedom * (1.0 - a + 3.0902 * a.sqrt()).powi(3)
}

/// Draws `draws` tokens with one seed and compares their counts with the exact probabilities.
fn check_distribution(logits: &[f32], params: &SamplingParams) {
    let draws = 40_000usize;
    let masses = reference_masses(logits, params);
    let total = masses.values().sum::<u64>() as f64;
    let mut sampler = Sampler::new(params.clone(), logits.len()).unwrap();
    let mut counts = vec![0usize; logits.len()];
    let generated = vec![0u32; draws];
    for step in 0..draws {
        let history = History { prompt: &[], generated: &generated[..step] };
        counts[sampler.sample(logits, history).unwrap().id as usize] += 1;
    }
    // Cells with an expectation below 5 are pooled, as the test wants it.
    let (mut statistic, mut cells, mut pooled, mut pooled_count) = (0.0, 0usize, 0.0, 0usize);
    for (id, &count) in counts.iter().enumerate() {
        let expected = masses.get(&id).copied().unwrap_or(0) as f64 / total * draws as f64;
        assert!(expected > 0.0 || count == 0, "token {id} is outside the support");
        if expected < 5.0 {
            pooled += expected;
            pooled_count += count;
        } else {
            statistic += (count as f64 - expected).powi(2) / expected;
            cells += 1;
        }
    }
    if pooled > 0.5 {
        statistic += (pooled_count as f64 - pooled).powi(2) / pooled;
        cells += 1;
    }
    let limit = chi_square_limit((cells - 1) as f64);
    assert!(statistic < limit, "chi-square {statistic:.1} above {limit:.1} with {cells} cells, {params:?}");
}

#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = (0..60).map(|i| ((i * 37 % 60) as f32 / 60.0 - 0.5) * 9.0).collect();
    let base = SamplingParams::default();
    for seed in [1, 2, 3_000_000_000_000] {
        let seed = Some(seed);
        for temperature in [0.5, 1.0, 2.0] {
            check_distribution(&logits, &SamplingParams { temperature, seed, ..base.clone() });
        }
        check_distribution(&logits, &SamplingParams { top_k: 20, top_p: 0.9, seed, ..base.clone() });
        check_distribution(&logits, &SamplingParams { min_p: 0.05, seed, ..base.clone() });
    }
}

fn text(params: &SamplingParams, steps: usize) -> Vec<u32> {
    let logits: Vec<f32> = (0..500).map(|i| (i * 7 % 13) as f32 * 0.3).collect();
    let mut sampler = Sampler::new(params.clone(), logits.len()).unwrap();
    let mut generated = Vec::new();
    for _ in 0..steps {
        let token = sampler.sample(&logits, History { prompt: &[1, 2], generated: &generated }).unwrap();
        generated.push(token.id);
    }
    generated
}

#[test]
fn seeds_decide_the_text() {
    let with = |seed| SamplingParams { seed, top_k: 100, ..Default::default() };
    assert_eq!(text(&with(Some(5)), 30), text(&with(Some(5)), 30));
    assert_ne!(text(&with(Some(5)), 30), text(&with(Some(6)), 30));
    // Without a seed every generation differs, and its seed can be asked for.
    let (a, b) = (Sampler::new(with(None), 500).unwrap(), Sampler::new(with(None), 500).unwrap());
    assert_ne!(a.seed(), b.seed());
    assert_ne!(text(&with(None), 30), text(&with(None), 30));
}

/// A seeded text, written down: it must not change with the compiler, the machine or a faster implementation.
#[test]
fn seeded_text_is_pinned() {
    let params = SamplingParams { temperature: 0.8, top_k: 200, top_p: 0.95, seed: Some(42), ..Default::default() };
    let params = SamplingParams { presence_penalty: 0.5, repetition_penalty: 1.1, ..params };
    assert_eq!(text(&params, 8), [228, 154, 321, 330, 414, 139, 362, 193]);
}

#[test]
fn greedy_takes_the_lowest_of_equal_maxima() {
    let mut sampler = Sampler::new(SamplingParams::greedy(), 5).unwrap();
    assert_eq!(sampler.sample(&[1.0, 3.0, 3.0, 2.0, 3.0], NO_HISTORY).unwrap().id, 1);
    assert_eq!(sampler.sample(&[-1.0, -0.0, 0.0, -2.0, -3.0], NO_HISTORY).unwrap().id, 1);
    let token = sampler.sample(&[0.0, 0.0, f32::NEG_INFINITY, 1.0, 0.0], NO_HISTORY).unwrap();
    assert!((token.logprob + (1.0 + 3.0 * (-1f32).exp()).ln()).abs() < 1e-6);
}

#[test]
fn padding_beyond_the_vocabulary_is_never_drawn() {
    let mut logits = vec![0.0; 100];
    logits[3] = 1.0;
    logits[50..].fill(50.0);
    let params = SamplingParams { seed: Some(1), ..Default::default() };
    let mut sampler = Sampler::new(params, 50).unwrap();
    let generated = [0u32; 200];
    for step in 0..200 {
        assert!(sampler.sample(&logits, History { prompt: &[99], generated: &generated[..step] }).unwrap().id < 50);
    }
}

#[test]
fn broken_logits_are_errors() {
    let check = |logits: &[f32], expect: SampleError| {
        for temperature in [0.0, 1.0] {
            let mut sampler = Sampler::new(SamplingParams { temperature, ..Default::default() }, 20).unwrap();
            let error = sampler.sample(logits, NO_HISTORY).unwrap_err();
            // NaN is not equal to itself; the text is.
            assert_eq!(error.to_string(), expect.to_string());
        }
    };
    let mut logits: Vec<f32> = (0..20).map(|i| i as f32).collect();
    check(&logits[..19], SampleError::WrongLength { expected: 20, found: 19 });
    for index in [0, 7, 15, 16, 19] {
        for value in [f32::NAN, f32::INFINITY] {
            let good = std::mem::replace(&mut logits[index], value);
            check(&logits, SampleError::NotFinite { index, value });
            logits[index] = good;
        }
    }
    check(&[f32::NEG_INFINITY; 20], SampleError::AllMasked { count: 20 });
    check(&[0.0; 20], SampleError::Flat { count: 20, value: 0.0 });
    check(&[-3.5; 20], SampleError::Flat { count: 20, value: -3.5 });
}

#[test]
fn one_allowed_token_is_taken() {
    let mut logits = [f32::NEG_INFINITY; 20];
    logits[13] = -4.0;
    for temperature in [0.0, 1.0] {
        let mut sampler = Sampler::new(SamplingParams { temperature, top_p: 0.5, ..Default::default() }, 20).unwrap();
        assert_eq!(sampler.sample(&logits, NO_HISTORY).unwrap(), Token { id: 13, logprob: 0.0 });
    }
}

#[test]
fn tiny_temperature_is_nearly_greedy_and_never_breaks() {
    let params = SamplingParams { temperature: f32::MIN_POSITIVE, ..Default::default() };
    let mut sampler = Sampler::new(params, 3).unwrap();
    assert_eq!(sampler.sample(&[1.0, 1.5, -2e38], NO_HISTORY).unwrap().id, 1);
}

#[test]
fn the_steady_path_keeps_its_scratch() {
    let logits: Vec<f32> = (0..2000).map(|i| (i * 7919 % 2003) as f32 * 0.01).collect();
    for top_k in [0, 20] {
        let params = SamplingParams { top_k, top_p: 0.9, repetition_penalty: 1.1, ..Default::default() };
        let mut sampler = Sampler::new(params, logits.len()).unwrap();
        let before = (sampler.candidates.capacity(), sampler.adjusted.as_ptr(), sampler.counts.as_ptr());
        let generated: Vec<u32> = (0..300).collect();
        for step in 0..300 {
            sampler.sample(&logits, History { prompt: &[], generated: &generated[..step] }).unwrap();
        }
        let after = (sampler.candidates.capacity(), sampler.adjusted.as_ptr(), sampler.counts.as_ptr());
        assert_eq!(before, after);
    }
}

/// Prints the time per token for the family's vocabulary: `cargo test --release -p lily-engine sampler::tests::speed --
/// --ignored --nocapture`.
#[test]
#[ignore = "a measurement, not a check"]
fn speed() {
    let vocab = 248_320;
    let logits: Vec<f32> = (0..vocab as u64)
        .map(|i| {
            // Bell-shaped, as logits are: a sum of four uniform numbers.
            let bits = philox::draw(9, i);
            let sum: f32 = (0..4).map(|k| (bits >> (16 * k) & 0xFFFF) as f32 / 65536.0).sum();
            (sum - 2.0) * 8.0
        })
        .collect();
    let base = SamplingParams { seed: Some(1), ..Default::default() };
    let generated: Vec<u32> = (0..1000).map(|i| i * 31).collect();
    let cases = [
        ("greedy", SamplingParams::greedy()),
        ("top-k 20, top-p 0.95", SamplingParams { top_k: 20, top_p: 0.95, ..base.clone() }),
        ("the same and presence 1.5", SamplingParams { top_k: 20, top_p: 0.95, presence_penalty: 1.5, ..base.clone() }),
        ("top-p 0.95 alone", SamplingParams { top_p: 0.95, ..base.clone() }),
        ("min-p 0.05 alone", SamplingParams { min_p: 0.05, ..base.clone() }),
        ("temperature 1 alone", base),
    ];
    for (name, params) in cases {
        let mut sampler = Sampler::new(params, vocab).unwrap();
        let mut times: Vec<f64> = (0..51)
            .map(|step| {
                let start = std::time::Instant::now();
                let history = History { prompt: &[], generated: &generated[..900 + step] };
                std::hint::black_box(sampler.sample(&logits, history).unwrap());
                start.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{name}: median {:.3} ms, {:.3} to {:.3}", times[25], times[5], times[45]);
    }
}
