//! The two ends of the model.

use super::*;
use lily_engine::sampler::{History, Sampler, SamplingParams};

pub fn embed(device: &dyn Runs) {
    let formats = [Q4, Q8, PLAIN].into_iter().chain(RARE);
    // The last rows are longer than what a GPU's threadgroup does at once.
    let widths = std::iter::repeat_n(128, 12).chain([2080]);
    for ((rows, width), format) in ROWS.into_iter().cycle().zip(widths).zip(formats.chain([Q8])) {
        let mut c = Case::new(1);
        let m = c.matrix(40, width, format);
        let ids: Vec<u32> = (0..rows).map(|i| i * 7 % 40).collect();
        let kernel = Embed {
            args: EmbedArgs { rows, width, format: m.format },
            tokens: c.u32(&ids),
            codes: m.codes,
            scales: m.scales,
            biases: m.biases,
            y: c.poison(2 * rows * width),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows of {width}, {format:?}"), device);
    }
}

pub fn head(device: &dyn Runs) {
    // The first rows are wider than what a GPU stages of them at a time, or a lane has under way.
    let wide = [(290, 2304, RARE[4]), (77, 2112, Q4), (40, 1280, Q8)];
    let copied = [(300, 2048, Q4), (300, 512, Q4), (130, 1024, Q8)];
    let narrow = [(1, 128, Q4), (63, 128, Q4), (200, 128, Q8), (130, 128, PLAIN)];
    for (vocab, width, format) in wide.into_iter().chain(copied).chain(narrow) {
        let mut c = Case::new(2);
        let m = c.matrix(vocab, width, format);
        let kernel = Head {
            args: HeadArgs { row: 2, rows: 1, width, vocab, eps: 1e-6, format: m.format },
            h: c.bf16(3 * width, 4.0),
            gain: c.f32(width, 0.5, 1.5),
            codes: m.codes,
            scales: m.scales,
            biases: m.biases,
            logits: c.poison(4 * vocab),
        };
        c.check(kernel.dispatch(), &format!("vocab {vocab}, {format:?}"), device);
    }
}

/// Bytes as elements.
fn elements<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Parameters of the sampler that use every step, alone and together.
fn sample_params() -> Vec<SamplingParams> {
    let plain = SamplingParams::default();
    let bias = std::collections::BTreeMap::from([(3, 2.5), (17, -100.0)]);
    vec![
        SamplingParams { temperature: 0.0, ..plain.clone() },
        plain.clone(),
        SamplingParams { temperature: 0.7, top_k: 20, top_p: 0.95, ..plain.clone() },
        SamplingParams { top_k: 1, ..plain.clone() },
        // As many as are compared with each other one by one, and more.
        SamplingParams { top_k: 64, top_p: 0.9, min_p: 0.3, temperature: 2.0, ..plain.clone() },
        SamplingParams { top_k: 65, top_p: 0.9, ..plain.clone() },
        SamplingParams { top_p: 0.3, ..plain.clone() },
        SamplingParams { min_p: 0.2, temperature: 3.0, ..plain.clone() },
        SamplingParams { temperature: 0.0, repetition_penalty: 1.7, presence_penalty: 0.4, ..plain.clone() },
        SamplingParams { frequency_penalty: 0.9, top_k: 6, min_p: 0.01, logit_bias: bias, ..plain },
    ]
}

/// Logits of which the last argument says how many distinct values they have.
fn some_logits(draw: u32, vocab: u32, values: u32) -> Vec<f32> {
    let mut c = Case::new(29 + u64::from(draw));
    (0..vocab).map(|_| (c.next() % values) as f32 * (9.0 / values as f32) - 4.0).collect()
}

/// Buffers that a look at the logits and a choice share.
struct Choice {
    params: Slot,
    logits: Slot,
    bias: Slot,
    counts: Slot,
    vocab: u32,
}

/// Parameters, logits and history for the sampler; and what stretches of the logits tell.
fn choice(c: &mut Case, params: &SamplingParams, logits: &[f32]) -> (Choice, Vec<u32>, Vec<f32>) {
    let vocab = logits.len() as u32;
    let counts: Vec<u32> = (0..vocab).map(|i| [0, 0, 2, IN_PROMPT, IN_PROMPT | 1][i as usize % 5]).collect();
    let mut bias = vec![0.0_f32; vocab as usize];
    params.logit_bias.iter().for_each(|(&token, &value)| bias[token as usize] = value);
    let params = SampleParams::new(params, vocab, 0x1234_5678_9abc_def0);
    let (scans, sums) = scan(&params, logits, &bias, &counts);
    // The head has a few rows more than there are tokens to draw.
    let padded = [logits, &[9.0; 9]].concat();
    let choice = Choice {
        params: c.bytes(bytemuck::bytes_of(&params).to_vec()),
        logits: c.bytes(bytemuck::cast_slice(&padded).to_vec()),
        bias: c.bytes(bytemuck::cast_slice(&bias).to_vec()),
        counts: c.u32(&counts),
        vocab: vocab + 9,
    };
    (choice, scans, sums)
}

/// A choice from logits.
fn sample_case(params: &SamplingParams, draw: u32, logits: &[f32]) -> (Case, Dispatch) {
    let mut c = Case::new(29);
    let (of, scans, sums) = choice(&mut c, params, logits);
    let kernel = Sample {
        args: SampleArgs { vocab: of.vocab },
        params: of.params,
        logits: of.logits,
        bias: of.bias,
        counts: of.counts,
        step: c.u32(&[41, draw % 2]),
        token: c.poison(4),
        draws: c.u32(&[draw]),
        results: c.u32(&[7; 8]),
        logprobs: c.f32(2, -3.0, -2.0),
        scans: c.u32(&scans),
        sums: c.bytes(bytemuck::cast_slice(&sums).to_vec()),
    };
    let dispatch = kernel.dispatch();
    (c, dispatch)
}

/// A look at all stretches of logits.
fn scan_case(params: &SamplingParams, logits: &[f32]) -> (Case, Dispatch) {
    let mut c = Case::new(30);
    let (of, ..) = choice(&mut c, params, logits);
    let stretches = of.vocab.div_ceil(SCAN_STRETCH);
    let kernel = SampleScan {
        args: SampleScanArgs { vocab: of.vocab },
        params: of.params,
        logits: of.logits,
        bias: of.bias,
        counts: of.counts,
        scans: c.poison(4 * SCAN_WORDS * stretches),
        sums: c.poison(4 * stretches),
    };
    let dispatch = kernel.dispatch();
    (c, dispatch)
}

pub fn sample_scan(device: &dyn Runs) {
    for (i, params) in sample_params().iter().enumerate() {
        for (vocab, values) in [(18, 7), (255, 1 << 20), (256, 50), (257, 1 << 20), (5000, 50)] {
            let (case, dispatch) = scan_case(params, &some_logits(5, vocab, values));
            case.check(dispatch, &format!("parameters {i}, {vocab} tokens, {values} values"), device);
        }
    }
}

/// Logits that are not finite: which is the first of a stretch, and what the others tell nevertheless.
pub fn sample_scan_of_broken_logits(device: &dyn Runs) {
    let masked = vec![f32::NEG_INFINITY; 300];
    let (mut one, mut two) = (some_logits(5, 700, 50), masked.clone());
    (one[299], one[290], one[511]) = (f32::NAN, f32::NAN, f32::NEG_INFINITY);
    (two[7], two[270]) = (f32::NAN, 0.5);
    for (logits, what) in [(masked, "all masked"), (one, "two of many"), (two, "one, the rest masked")] {
        let (case, dispatch) = scan_case(&SamplingParams::default(), &logits);
        for (way, run) in device.ways() {
            let (scans, sums) = (run(&case, &dispatch).remove(0), run(&case, &dispatch).remove(1));
            let want = case.reference(&dispatch);
            assert_eq!(elements::<u32>(&scans), elements::<u32>(&want[0]), "{what}, {way}");
            // The sum of a stretch with a broken logit is never asked for.
            let stretches = logits.chunks(SCAN_STRETCH as usize).map(|l| l.iter().any(|l| l.is_nan()));
            let sums = elements::<f32>(&sums).into_iter().zip(elements::<f32>(&want[1]));
            for (i, ((got, want), broken)) in sums.zip(stretches).enumerate() {
                assert!(broken || (got - want).abs() <= 1e-4 * want, "{what}, sum {i} is {got}, not {want}, {way}");
            }
        }
    }
}

pub fn sample(device: &dyn Runs) {
    for (i, params) in sample_params().iter().enumerate() {
        // Few values make many ties, at the cuts too.
        for (draw, vocab, values) in [(0, 300, 1 << 20), (1, 300, 7), (2, 5000, 1 << 20), (3, 5000, 50)] {
            let (case, dispatch) = sample_case(params, draw, &some_logits(draw, vocab, values));
            case.check(dispatch, &format!("parameters {i}, draw {draw}, {values} values"), device);
        }
    }
}

/// More stretches that hold drawable tokens than there are SIMD-groups to walk them.
pub fn sample_lists_many_stretches(device: &dyn Runs) {
    let mut logits = vec![0.0_f32; 40 * SCAN_STRETCH as usize];
    // Half of the mass lies behind what the SIMD-groups take first.
    logits[32 * SCAN_STRETCH as usize..].fill(1.4);
    // With a small top_k there are more candidates for it than threads.
    for top_k in [0, 20] {
        let params = SamplingParams { top_k, ..SamplingParams::default() };
        for draw in 0..3 {
            let (case, dispatch) = sample_case(&params, draw, &logits);
            case.check(dispatch, &format!("top-k {top_k}, draw {draw}"), device);
        }
    }
}

/// Greedy, or one of one: the lowest id of equals, of zeros of either sign, and of a row that is all the same but one.
pub fn sample_takes_the_lowest_of_equals(device: &dyn Runs) {
    let mut many = vec![-1.0_f32; 5000];
    (many[4997], many[1030], many[2054]) = (0.5, 0.5, 0.5);
    let zeros = [vec![-0.0], vec![0.0; 40], vec![-1.0]].concat();
    let lowest = [vec![f32::MIN; 70], vec![f32::NEG_INFINITY]].concat();
    // Stretches of which the last is full.
    let full = [vec![-1.0_f32; 511], vec![2.0]].concat();
    let some = vec![1.0, 3.0, 3.0, 2.0, 3.0];
    for (logits, want) in [(some, 1_u32), (many, 1030), (lowest, 0), (zeros, 0), (full, 511)] {
        for params in [
            SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            SamplingParams { top_k: 1, ..SamplingParams::default() },
        ] {
            let (case, dispatch) = sample_case(&params, 0, &logits);
            for (way, run) in device.ways() {
                assert_eq!(run(&case, &dispatch)[2], want.to_le_bytes(), "top-k {}, {way}", params.top_k);
            }
        }
    }
}

/// Of two tokens, top-p keeps one or both by a millionth, and min-p by the last bit: weights are right to more digits than a
/// draw would show.
pub fn sample_cuts_where_the_host_does(device: &dyn Runs) {
    for gap in [0.2_f32, 0.34, 1.05, 2.4] {
        let weight = (-f64::from(gap)).exp();
        let plain = SamplingParams::default();
        let by_mass = [-1e-6, 1e-6].map(|side| ((1.0 + side) / (1.0 + weight)) as f32);
        let by_mass = by_mass.map(|top_p| SamplingParams { top_p, ..plain.clone() });
        let by_weight = [(weight as f32).next_down(), weight as f32, (weight as f32).next_up()];
        let by_weight = by_weight.map(|min_p| SamplingParams { min_p, ..plain.clone() });
        for params in by_mass.iter().chain(&by_weight) {
            for draw in 0..6 {
                let (case, dispatch) = sample_case(params, draw, &[0.0, -gap]);
                let (top_p, min_p) = (params.top_p, params.min_p);
                case.check(dispatch, &format!("{gap} apart, top-p {top_p}, min-p {min_p}, draw {draw}"), device);
            }
        }
    }
}

/// What the host's sampler draws, the kernel draws.
pub fn sample_as_the_host(device: &dyn Runs) {
    for params in sample_params() {
        let params = SamplingParams { seed: Some(0x1234_5678_9abc_def0), ..params };
        for draw in 0..4 {
            let logits = some_logits(draw, 300, 90);
            let (case, dispatch) = sample_case(&params, draw, &logits);
            let counts: Vec<u32> = elements(&case.contents[3].1);
            let times = |i: u32| (counts[i as usize] & !IN_PROMPT) as usize;
            let prompt: Vec<u32> = (0..300).filter(|&i| counts[i as usize] & IN_PROMPT != 0).collect();
            let mut generated: Vec<u32> = (0..300).flat_map(|i| std::iter::repeat_n(i, times(i))).collect();
            // The host takes the number of the draw from the length of the text.
            if params.presence_penalty == 0.0 && params.frequency_penalty == 0.0 && params.repetition_penalty == 1.0 {
                generated.truncate(draw as usize);
            } else if params.temperature != 0.0 {
                continue;
            }
            let history = History { prompt: &prompt, generated: &generated };
            let token = Sampler::new(params.clone(), 300).unwrap().sample(&logits, history).unwrap();
            for (way, run) in device.ways() {
                let out = run(&case, &dispatch);
                assert_eq!(out[2], token.id.to_le_bytes(), "{params:?}, draw {draw}, {way}");
                let logprob = elements::<f32>(&out[5])[draw as usize % 2];
                assert!((logprob - token.logprob).abs() < 1e-4, "{logprob} and {}, {way}", token.logprob);
            }
        }
    }
}

pub fn sample_reports_broken_logits(device: &dyn Runs) {
    let cases = [
        (vec![0.5, f32::NAN, 1.0], SAMPLE_NOT_FINITE),
        (vec![0.5, f32::INFINITY, 1.0], SAMPLE_NOT_FINITE),
        (vec![f32::NEG_INFINITY; 3], SAMPLE_ALL_MASKED),
        (vec![0.25; 3], SAMPLE_FLAT),
        (vec![0.25, f32::NEG_INFINITY, 0.5], SAMPLE_OK),
    ];
    for (logits, status) in cases {
        let (case, dispatch) = sample_case(&SamplingParams::default(), 0, &logits);
        for (way, run) in device.ways() {
            let results: Vec<u32> = elements(&run(&case, &dispatch)[4]);
            assert_eq!(results[1], status, "{logits:?}, {way}");
        }
    }
}
