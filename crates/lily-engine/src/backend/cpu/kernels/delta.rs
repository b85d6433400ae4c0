//! Gated DeltaNet: the same inner functions behind the chunk kernels and the fused decode step.

use super::{Context, for_rows, sum_squares_bf16, vector_kernel};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::pool::SharedMut;
use crate::kernel::{
    DeltaDims, DeltaPrepViews, DeltaScanViews, DeltaStepViews, GatedNormViews, QK_NORM_EPS, decay_of, sigmoid,
};
use half::bf16;
use std::ops::Range;

/// Widest convolution; checked when a checkpoint is loaded.
const CONV_WIDTH_MAX: usize = 8;
/// Largest head.
const HEAD_DIM_MAX: usize = 512;
/// State columns that one scan task carries: 16 KB of state at a key head of 128.
const SCAN_COLUMNS: usize = 32;

/// The rows that the convolution at one position reads, oldest first, the current one last.
#[derive(Clone, Copy)]
struct ConvInput<'a> {
    rows: [&'a [bf16]; CONV_WIDTH_MAX],
    width: usize,
}

impl<'a> ConvInput<'a> {
    /// Rows up to `row` of the chunk; those before it come from the past half of the window.
    fn at(dims: &DeltaDims, past: &'a [bf16], qkv: &'a [bf16], row: usize) -> Self {
        let (width, channels) = (dims.conv_width as usize, dims.channels());
        let rows = std::array::from_fn(|j| match (row + j + 1).checked_sub(width) {
            _ if j >= width => &[][..],
            Some(at) => &qkv[at * channels..][..channels],
            None => &past[(row + j) * channels..][..channels],
        });
        Self { rows, width }
    }
}

vector_kernel! {
    /// Convolution and SiLU of a range of channels.
    Convolve<'a> { input: ConvInput<'a>, taps: &'a [f32], first: usize, out: &'a mut [f32] } -> (), |simd| {
        let channels = input.rows[0].len();
        for (block, out) in out.chunks_exact_mut(S::LANES).enumerate() {
            let at = first + block * S::LANES;
            let mut sum = simd.zero();
            for j in 0..input.width {
                sum = simd.fma(simd.load(&taps[j * channels + at..]), simd.load_bf16(&input.rows[j][at..]), sum);
            }
            simd.store(out, simd.silu(sum));
        }
    }
}

vector_kernel! {
    /// A head scaled to length `scale`, rounded.
    Normalize<'a> { x: &'a [f32], scale: f32, out: &'a mut [bf16] } -> (), |simd| {
        let mut sum = simd.zero();
        for x in x.chunks_exact(S::LANES) {
            let v = simd.load(x);
            sum = simd.fma(v, v, sum);
        }
        let factor = simd.splat(scale / (simd.reduce_add(sum) + QK_NORM_EPS).sqrt());
        for (x, out) in x.chunks_exact(S::LANES).zip(out.chunks_exact_mut(S::LANES)) {
            simd.store_bf16(out, simd.mul(simd.load(x), factor));
        }
    }
}

fn query_or_key(isa: Isa, input: ConvInput<'_>, taps: &[f32], first: usize, scale: f32, out: &mut [bf16]) {
    let mut x = [0.0; HEAD_DIM_MAX];
    let x = &mut x[..out.len()];
    isa.dispatch(Convolve { input, taps, first, out: &mut *x });
    isa.dispatch(Normalize { x, scale, out });
}

fn value(isa: Isa, input: ConvInput<'_>, taps: &[f32], first: usize, out: &mut [bf16]) {
    let mut x = [0.0; HEAD_DIM_MAX];
    let x = &mut x[..out.len()];
    isa.dispatch(Convolve { input, taps, first, out: &mut *x });
    out.iter_mut().zip(x).for_each(|(out, x)| *out = bf16::from_f32(*x));
}

/// The half of the window to read, and the half to write.
fn window_halves<'a>(dims: &DeltaDims, window: &'a mut [bf16], read: u32) -> (&'a [bf16], &'a mut [bf16]) {
    let (first, second) = window.split_at_mut((dims.conv_width as usize - 1) * dims.channels());
    if read == 0 { (first, second) } else { (second, first) }
}

/// Writes the given channels of the last rows to the new half of the window.
fn slide(dims: &DeltaDims, past: &[bf16], qkv: &[bf16], next: &SharedMut<'_, bf16>, channels: Range<usize>) {
    let (rows, kept, width) = (dims.rows as usize, dims.conv_width as usize - 1, dims.channels());
    for row in 0..kept {
        let source = match (rows + row).checked_sub(kept) {
            Some(at) => &qkv[at * width..][channels.clone()],
            None => &past[(rows + row) * width..][channels.clone()],
        };
        let at = row * width;
        // SAFETY: callers have different channels.
        unsafe { next.range_mut(at + channels.start..at + channels.end) }.copy_from_slice(source);
    }
}

pub fn prep(context: Context<'_>, v: DeltaPrepViews<'_>) {
    let (d, isa) = (v.args.dims, context.isa);
    let (keys, values, heads) = (d.keys_width(), d.values_width(), d.value_heads as usize);
    let (dk, dv) = (d.key_dim as usize, d.value_dim as usize);
    let (past, next) = window_halves(&d, v.window, v.step[1]);
    let [q, k, vs] = [v.q, v.k, v.v].map(SharedMut::new);
    let [decay, beta] = [v.decay, v.beta].map(SharedMut::new);
    for_rows(context.pool, d.rows as usize, &|row| {
        let input = ConvInput::at(&d, past, v.qkv, row);
        let at = row * keys..(row + 1) * keys;
        // SAFETY: every task has rows of its own, here and below.
        let (q, k) = unsafe { (q.range_mut(at.clone()), k.range_mut(at)) };
        for (head, (q, k)) in q.chunks_exact_mut(dk).zip(k.chunks_exact_mut(dk)).enumerate() {
            query_or_key(isa, input, v.taps, head * dk, (dk as f32).powf(-0.5), q);
            query_or_key(isa, input, v.taps, keys + head * dk, 1.0, k);
        }
        // SAFETY: as above.
        let vs = unsafe { vs.range_mut(row * values..row * values + values) };
        for (head, out) in vs.chunks_exact_mut(dv).enumerate() {
            value(isa, input, v.taps, 2 * keys + head * dv, out);
        }
        let at = row * heads..(row + 1) * heads;
        // SAFETY: as above.
        let (decay, beta) = unsafe { (decay.range_mut(at.clone()), beta.range_mut(at.clone())) };
        for (head, (decay, beta)) in decay.iter_mut().zip(beta).enumerate() {
            *decay = decay_of(v.a[at.start + head].to_f32(), v.a_log[head], v.dt_bias[head]);
            *beta = sigmoid(v.b[at.start + head].to_f32());
        }
    });
    slide(&d, past, v.qkv, &SharedMut::new(next), 0..d.channels());
}

vector_kernel! {
    /// One token of the delta rule on some state columns, `[columns, Dk]`.
    ScanRow<'a> {
        q: &'a [f32], k: &'a [f32], v: &'a [bf16], decay: f32, beta: f32, state: &'a mut [f32], y: &'a mut [bf16]
    } -> (), |simd| {
        let decay = simd.splat(decay);
        for ((state, v), y) in state.chunks_exact_mut(k.len()).zip(v).zip(y) {
            let mut known = simd.zero();
            for (s, k) in state.chunks_exact_mut(S::LANES).zip(k.chunks_exact(S::LANES)) {
                let decayed = simd.mul(simd.load(s), decay);
                known = simd.fma(decayed, simd.load(k), known);
                simd.store(s, decayed);
            }
            let update = simd.splat((v.to_f32() - simd.reduce_add(known)) * beta);
            let mut out = simd.zero();
            let lanes = k.chunks_exact(S::LANES).zip(q.chunks_exact(S::LANES));
            for (s, (k, q)) in state.chunks_exact_mut(S::LANES).zip(lanes) {
                let updated = simd.fma(update, simd.load(k), simd.load(s));
                out = simd.fma(updated, simd.load(q), out);
                simd.store(s, updated);
            }
            *y = bf16::from_f32(simd.reduce_add(out));
        }
    }
}

/// A head as fp32.
fn widen<'a>(x: &[bf16], out: &'a mut [f32; HEAD_DIM_MAX]) -> &'a [f32] {
    let out = &mut out[..x.len()];
    out.iter_mut().zip(x).for_each(|(out, x)| *out = x.to_f32());
    out
}

pub fn scan(context: Context<'_>, v: DeltaScanViews<'_>) {
    let (d, isa) = (v.args.dims, context.isa);
    let (heads, dk, dv) = (d.value_heads as usize, d.key_dim as usize, d.value_dim as usize);
    let (state, y) = (SharedMut::new(v.state), SharedMut::new(v.y));
    let blocks = dv.div_ceil(SCAN_COLUMNS);
    context.pool.run(heads * blocks, &|task, _| {
        let (head, first) = (task / blocks, task % blocks * SCAN_COLUMNS);
        let columns = first..dv.min(first + SCAN_COLUMNS);
        let base = head * dv;
        // SAFETY: tasks have different columns of different heads, here and below.
        let state = unsafe { state.range_mut((base + columns.start) * dk..(base + columns.end) * dk) };
        let (mut q, mut k) = ([0.0; HEAD_DIM_MAX], [0.0; HEAD_DIM_MAX]);
        for row in 0..d.rows as usize {
            let key = (row * d.key_heads as usize + head / d.values_per_key()) * dk;
            let at = (row * heads + head) * dv;
            isa.dispatch(ScanRow {
                q: widen(&v.q[key..][..dk], &mut q),
                k: widen(&v.k[key..][..dk], &mut k),
                v: &v.v[at + columns.start..at + columns.end],
                decay: v.decay[row * heads + head],
                beta: v.beta[row * heads + head],
                state: &mut *state,
                // SAFETY: as above.
                y: unsafe { y.range_mut(at + columns.start..at + columns.end) },
            });
        }
    });
}

vector_kernel! {
    /// Gated norm of one head.
    NormHead<'a> { y: &'a [bf16], z: &'a [bf16], gain: &'a [f32], eps: f32, out: &'a mut [bf16] } -> (), |simd| {
        let mean = sum_squares_bf16(simd, y) / y.len() as f32;
        let scale = simd.splat(1.0 / (mean + eps).sqrt());
        let lanes = y.chunks_exact(S::LANES).zip(z.chunks_exact(S::LANES)).zip(gain.chunks_exact(S::LANES));
        for (((y, z), gain), out) in lanes.zip(out.chunks_exact_mut(S::LANES)) {
            let normed = simd.mul(simd.mul(simd.load_bf16(y), scale), simd.load(gain));
            simd.store_bf16(out, simd.mul(normed, simd.silu(simd.load_bf16(z))));
        }
    }
}

pub fn gated_norm(context: Context<'_>, v: GatedNormViews<'_>) {
    let (d, isa) = (v.args.dims, context.isa);
    let (width, dv) = (d.values_width(), d.value_dim as usize);
    let out = SharedMut::new(v.out);
    for_rows(context.pool, d.rows as usize, &|row| {
        let at = row * width..(row + 1) * width;
        let heads = v.y[at.clone()].chunks_exact(dv).zip(v.z[at.clone()].chunks_exact(dv));
        // SAFETY: every task has rows of its own.
        let out = unsafe { out.range_mut(at) };
        for ((y, z), out) in heads.zip(out.chunks_exact_mut(dv)) {
            isa.dispatch(NormHead { y, z, gain: v.gain, eps: d.eps, out });
        }
    });
}

/// One task per key head: its query and key, then each value head that shares them.
pub fn step(context: Context<'_>, v: DeltaStepViews<'_>) {
    let (d, isa) = (v.args.dims, context.isa);
    let (dk, dv, keys) = (d.key_dim as usize, d.value_dim as usize, d.keys_width());
    let (past, next) = window_halves(&d, v.window, v.step[1]);
    let input = ConvInput::at(&d, past, v.qkv, 0);
    let next = SharedMut::new(next);
    let (state, out) = (SharedMut::new(v.state), SharedMut::new(v.out));
    context.pool.run(d.key_heads as usize, &|key_head, _| {
        let at = key_head * dk;
        let (mut q, mut k) = ([bf16::ZERO; HEAD_DIM_MAX], [bf16::ZERO; HEAD_DIM_MAX]);
        query_or_key(isa, input, v.taps, at, (dk as f32).powf(-0.5), &mut q[..dk]);
        query_or_key(isa, input, v.taps, keys + at, 1.0, &mut k[..dk]);
        let (mut q_wide, mut k_wide) = ([0.0; HEAD_DIM_MAX], [0.0; HEAD_DIM_MAX]);
        let (q, k) = (widen(&q[..dk], &mut q_wide), widen(&k[..dk], &mut k_wide));
        slide(&d, past, v.qkv, &next, at..at + dk);
        slide(&d, past, v.qkv, &next, keys + at..keys + at + dk);
        for head in key_head * d.values_per_key()..(key_head + 1) * d.values_per_key() {
            let (mut values, mut y) = ([bf16::ZERO; HEAD_DIM_MAX], [bf16::ZERO; HEAD_DIM_MAX]);
            let first = 2 * keys + head * dv;
            value(isa, input, v.taps, first, &mut values[..dv]);
            slide(&d, past, v.qkv, &next, first..first + dv);
            isa.dispatch(ScanRow {
                q,
                k,
                v: &values[..dv],
                decay: decay_of(v.a[head].to_f32(), v.a_log[head], v.dt_bias[head]),
                beta: sigmoid(v.b[head].to_f32()),
                // SAFETY: tasks have different value heads, here and below.
                state: unsafe { state.range_mut(head * dv * dk..(head + 1) * dv * dk) },
                y: &mut y[..dv],
            });
            // SAFETY: as above.
            let out = unsafe { out.range_mut(head * dv..(head + 1) * dv) };
            isa.dispatch(NormHead { y: &y[..dv], z: &v.z[head * dv..][..dv], gain: v.gain, eps: d.eps, out });
        }
    });
}
