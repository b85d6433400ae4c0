//! The recurrent state over 32,768 tokens, beside the same rule in 64-bit floats: fp32 keeps it, and what it loses it loses
//! early, since the rule forgets its own errors as it forgets everything else.

use super::*;

const CHUNKS: usize = 16;
const CHUNK_ROWS: u32 = 2048;
const DIMS: DeltaDims =
    DeltaDims { rows: CHUNK_ROWS, key_heads: 1, value_heads: 2, key_dim: 64, value_dim: 16, conv_width: 4, eps: 1e-6 };
/// Least decay of each head: one forgets within some dozens of tokens, the other within tens of thousands.
const DECAY_MIN: [f32; 2] = [0.9, 0.9999];
/// Largest error of the state, relative to its size: some dozens of roundings of 2^-24 that partly cancel.
const TOLERANCE: f64 = 2e-6;

/// What a chunk is computed from.
struct Inputs {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    decay: Vec<f64>,
    beta: Vec<f64>,
}

/// A chunk's dispatch with its buffers, and what is in them as 64-bit floats.
fn chunk(index: usize, state: &[u8]) -> (Case, Dispatch, Inputs) {
    let mut c = Case::new(40 + index as u64);
    let (rows, heads, dk) = (DIMS.rows as usize, DIMS.value_heads as usize, DIMS.key_dim as usize);
    let mut unit = |scale: f32| -> Vec<bf16> {
        let mut rows_of = |_| {
            let row: Vec<f32> = (0..dk).map(|_| c.uniform()).collect();
            let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
            row.into_iter().map(move |x| bf16::from_f32(x * scale / length))
        };
        (0..rows).flat_map(&mut rows_of).collect()
    };
    let (q, k) = (unit((dk as f32).powf(-0.5)), unit(1.0));
    let v: Vec<bf16> = (0..rows * DIMS.values_width()).map(|_| bf16::from_f32(c.uniform())).collect();
    let share = |c: &mut Case| (c.uniform() + 1.0) / 2.0;
    let decay: Vec<f32> =
        (0..rows * heads).map(|i| DECAY_MIN[i % heads] + share(&mut c) * (1.0 - DECAY_MIN[i % heads])).collect();
    let beta: Vec<f32> = (0..rows * heads).map(|_| share(&mut c)).collect();
    let wide = |values: &[bf16]| values.iter().map(|x| x.to_f64()).collect();
    let widen = |values: &[f32]| values.iter().map(|x| f64::from(*x)).collect();
    let inputs = Inputs { q: wide(&q), k: wide(&k), v: wide(&v), decay: widen(&decay), beta: widen(&beta) };
    let half = |c: &mut Case, values: &[bf16]| c.bytes(bytemuck::cast_slice(values).to_vec());
    let scan = DeltaScan {
        args: DeltaScanArgs { dims: DIMS, block_rows: 0 },
        q: half(&mut c, &q),
        k: half(&mut c, &k),
        v: half(&mut c, &v),
        decay: c.bytes(bytemuck::cast_slice(&decay).to_vec()),
        beta: c.bytes(bytemuck::cast_slice(&beta).to_vec()),
        state: c.bytes(state.to_vec()),
        y: c.poison(2 * DIMS.rows * DIMS.values_width() as u32),
    };
    let dispatch = scan.dispatch();
    (c, dispatch, inputs)
}

/// The delta rule in 64-bit floats; `keep` is what memory makes of an element of the state after every token.
fn rule(inputs: &Inputs, state: &mut [f64], keep: fn(f64) -> f64) {
    let (heads, dk, dv) = (DIMS.value_heads as usize, DIMS.key_dim as usize, DIMS.value_dim as usize);
    for t in 0..DIMS.rows as usize {
        let k = &inputs.k[t * dk..][..dk];
        for head in 0..heads {
            let (decay, beta) = (inputs.decay[t * heads + head], inputs.beta[t * heads + head]);
            for column in 0..dv {
                let s = &mut state[(head * dv + column) * dk..][..dk];
                s.iter_mut().for_each(|s| *s *= decay);
                let known: f64 = s.iter().zip(k).map(|(s, k)| s * k).sum();
                let update = (inputs.v[(t * heads + head) * dv + column] - known) * beta;
                s.iter_mut().zip(k).for_each(|(s, k)| *s = keep(*s + update * k));
            }
        }
    }
}

/// The last token's results by a state that is in 64-bit floats.
fn results(inputs: &Inputs, state: &[f64]) -> Vec<f64> {
    let (dk, last) = (DIMS.key_dim as usize, DIMS.rows as usize - 1);
    let q = &inputs.q[last * dk..][..dk];
    state.chunks_exact(dk).map(|s| s.iter().zip(q).map(|(s, q)| s * q).sum()).collect()
}

/// Root of the mean square of a difference, relative to what is right.
fn error(found: impl Iterator<Item = f64>, right: &[f64]) -> f64 {
    let difference: f64 = found.zip(right).map(|(f, r)| (f - r).powi(2)).sum();
    (difference / right.iter().map(|r| r.powi(2)).sum::<f64>()).sqrt()
}

pub fn the_state_keeps_32768_tokens(device: &dyn Runs) {
    let elements = DIMS.values_width() * DIMS.key_dim as usize;
    let mut right = vec![0.0_f64; elements];
    let mut short = right.clone(); // as it would be in bf16
    let ways = device.ways();
    let mut states = vec![vec![0_u8; 4 * elements]; ways.len()];
    let mut errors = vec![Vec::new(); ways.len()];
    for index in 0..CHUNKS {
        let inputs = chunk(index, &[]).2;
        rule(&inputs, &mut right, |s| s);
        rule(&inputs, &mut short, |s| bf16::from_f64(s).to_f64());
        let last = results(&inputs, &right);
        for (((name, run), state), errors) in ways.iter().zip(&mut states).zip(&mut errors) {
            let (case, dispatch, _) = chunk(index, state);
            let written = run(&case, &dispatch);
            let [new, y] = &written[..] else { panic!("a state and results") };
            let floats = new.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())));
            errors.push(error(floats, &right));
            let y = y.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f64());
            let wrong = error(y.skip((DIMS.rows as usize - 1) * DIMS.values_width()), &last);
            assert!(wrong < 3e-3, "{name}: the last of {} results is off by {wrong}", (index + 1) * DIMS.rows as usize);
            *state = new.clone();
        }
    }
    for ((name, _), errors) in ways.iter().zip(&errors) {
        let shown: Vec<String> = errors.iter().map(|e| format!("{e:.1e}")).collect();
        println!("{name}: error of the state after 2K, 4K, ... 32K tokens: {}", shown.join(" "));
        let (early, late) = errors.split_at(CHUNKS / 2);
        let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
        assert!(most(errors) < TOLERANCE, "{name}: the state is off by {errors:?}");
        assert!(most(late) < 2.0 * most(early), "{name}: the error grows: {errors:?}");
    }
    // What is looked for can be seen: a state of bf16 is off by far more.
    let short = error(short.into_iter(), &right);
    println!("a state of bf16: {short:.2e}");
    assert!(short > 100.0 * TOLERANCE, "a state of bf16 is off by {short} only");
}
