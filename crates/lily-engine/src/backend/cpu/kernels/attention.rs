//! Attention over the cache: the same inner functions behind the chunk kernels and the fused decode step.
//!
//! The keys of a row are taken in blocks of [`BLOCK_KEYS`] at fixed positions of the cache. A block gives a maximum, a
//! sum and a weighted value vector for each query head of a group; blocks are merged from first to last. So a row's
//! result does not depend on its chunk, nor on how blocks were spread over threads.

use super::{Context, sum_squares_bf16, vector_kernel};
use crate::backend::cpu::isa::{Isa, Simd};
use crate::backend::cpu::pool::SharedMut;
use crate::kernel::{AttendStepViews, AttendViews, AttentionDims, QkPrepViews, attend_reference};
use half::bf16;
use std::ops::Range;

/// Keys of one block.
const BLOCK_KEYS: usize = 256;
/// Keys whose values are added at once.
const UNROLL: usize = 4;
/// Largest head; checked when a checkpoint is loaded.
const HEAD_DIM_MAX: usize = 512;

vector_kernel! {
    /// Norm and rotation of one head: `rotation` holds the cosines, then the sines.
    PrepareHead<'a> {
        x: &'a [bf16], gain: &'a [f32], rotation: &'a [f32], eps: f32, out: &'a mut [bf16]
    } -> (), |simd| {
        let mean = sum_squares_bf16(simd, x) / x.len() as f32;
        let scale = simd.splat(1.0 / (mean + eps).sqrt());
        let mut y = [0.0; HEAD_DIM_MAX];
        let lanes = x.chunks_exact(S::LANES).zip(gain.chunks_exact(S::LANES)).zip(y.chunks_exact_mut(S::LANES));
        for ((x, gain), y) in lanes {
            simd.store(y, simd.mul(simd.mul(simd.load_bf16(x), scale), simd.load(gain)));
        }
        let (cos, sin) = rotation.split_at(rotation.len() / 2);
        let half = cos.len();
        for i in 0..half {
            let (low, high) = (y[i], y[i + half]);
            y[i] = low * cos[i] - high * sin[i];
            y[i + half] = high * cos[i] + low * sin[i];
        }
        for (y, out) in y.chunks_exact(S::LANES).zip(out.chunks_exact_mut(S::LANES)) {
            simd.store_bf16(out, simd.load(y));
        }
    }
}

/// Cosines, then sines, of a position's angles.
fn rotation<'a>(inv_freq: &[f32], position: usize, out: &'a mut [f32; HEAD_DIM_MAX]) -> &'a [f32] {
    let half = inv_freq.len();
    for (i, freq) in inv_freq.iter().enumerate() {
        (out[half + i], out[i]) = (position as f32 * freq).sin_cos();
    }
    &out[..2 * half]
}

/// Raw rows of one token and what prepares them.
struct RawRow<'a> {
    q_raw: &'a [bf16],
    k_raw: &'a [bf16],
    q_gain: &'a [f32],
    k_gain: &'a [f32],
    inv_freq: &'a [f32],
}

fn prepare_row(isa: Isa, d: &AttentionDims, raw: RawRow<'_>, position: usize, q: &mut [bf16], keys: &mut [bf16]) {
    let (dim, mut angles) = (d.head_dim as usize, [0.0; HEAD_DIM_MAX]);
    let rotation = rotation(raw.inv_freq, position, &mut angles);
    for (x, out) in raw.q_raw.chunks_exact(2 * dim).zip(q.chunks_exact_mut(dim)) {
        isa.dispatch(PrepareHead { x: &x[..dim], gain: raw.q_gain, rotation, eps: d.eps, out });
    }
    for (x, out) in raw.k_raw.chunks_exact(dim).zip(keys.chunks_exact_mut(dim)) {
        isa.dispatch(PrepareHead { x, gain: raw.k_gain, rotation, eps: d.eps, out });
    }
}

pub fn qk_prep(context: Context<'_>, v: QkPrepViews<'_>) {
    let (d, isa) = (v.args.dims, context.isa);
    let (kv, qw, first) = (d.kv_width(), d.q_width(), v.step[0] as usize);
    let (keys, q) = (SharedMut::new(v.keys), SharedMut::new(v.q));
    super::for_rows(context.pool, d.rows as usize, &|row| {
        let position = first + row;
        let raw = RawRow {
            q_raw: &v.q_raw[row * 2 * qw..][..2 * qw],
            k_raw: &v.k_raw[row * kv..][..kv],
            q_gain: v.q_gain,
            k_gain: v.k_gain,
            inv_freq: v.inv_freq,
        };
        // SAFETY: every task has rows of its own.
        let (q, keys) =
            unsafe { (q.range_mut(row * qw..(row + 1) * qw), keys.range_mut(position * kv..(position + 1) * kv)) };
        prepare_row(isa, &d, raw, position, q, keys);
    });
    v.values[first * kv..][..d.rows as usize * kv].copy_from_slice(v.v_raw);
}

/// What a block of keys gives for the query heads of a group: maxima, sums, and weighted values `[heads, D]`.
struct Partial<'a> {
    max: &'a mut [f32],
    sum: &'a mut [f32],
    values: &'a mut [f32],
}

impl<'a> Partial<'a> {
    fn len(heads: usize, dim: usize) -> usize {
        heads * (dim + 2)
    }

    fn of(memory: &'a mut [f32], heads: usize) -> Self {
        let (max, rest) = memory.split_at_mut(heads);
        let (sum, values) = rest.split_at_mut(heads);
        Self { max, sum, values }
    }
}

vector_kernel! {
    /// Attention of the query heads of one group over one block of keys.
    Block<'a> {
        q: &'a [f32], keys: &'a [bf16], values: &'a [bf16], stride: usize, dim: usize, count: usize, partial: Partial<'a>
    } -> (), |simd| {
        let heads = partial.max.len();
        let mut scores = [0.0_f32; BLOCK_KEYS];
        let mut wide = [0.0_f32; UNROLL * HEAD_DIM_MAX];
        let mut all = [0.0_f32; SCORES_MAX];
        for i in 0..count {
            let key = &keys[i * stride..][..dim];
            let mut h = 0;
            while h + 4 <= heads {
                let four = dots::<S, 4>(simd, &q[h * dim..][..4 * dim], key);
                four.into_iter().enumerate().for_each(|(j, score)| all[(h + j) * BLOCK_KEYS + i] = score);
                h += 4;
            }
            for h in h..heads {
                [all[h * BLOCK_KEYS + i]] = dots(simd, &q[h * dim..][..dim], key);
            }
        }
        for h in 0..heads {
            let row = &mut all[h * BLOCK_KEYS..][..BLOCK_KEYS];
            let max = row[..count].iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores[..count].copy_from_slice(&row[..count]);
            scores[count..].fill(f32::NEG_INFINITY);
            let mut sum = simd.zero();
            for (s, row) in scores.chunks_exact(S::LANES).zip(row.chunks_exact_mut(S::LANES)) {
                let weight = simd.exp(simd.sub(simd.load(s), simd.splat(max)));
                sum = simd.add(sum, weight);
                simd.store(row, weight);
            }
            partial.max[h] = max;
            partial.sum[h] = simd.reduce_add(sum);
        }
        partial.values.fill(0.0);
        for i in (0..count).step_by(UNROLL) {
            let unroll = UNROLL.min(count - i);
            for j in 0..unroll {
                let row = values[(i + j) * stride..][..dim].chunks_exact(S::LANES);
                for (x, w) in row.zip(wide[j * dim..].chunks_exact_mut(S::LANES)) {
                    simd.store(w, simd.load_bf16(x));
                }
            }
            for h in 0..heads {
                // A loop and no closure: closures are not compiled for the instruction set unless inlined.
                let mut weights = [simd.zero(); UNROLL];
                for (j, weight) in weights.iter_mut().enumerate().take(unroll) {
                    *weight = simd.splat(all[h * BLOCK_KEYS + i + j]);
                }
                for (block, out) in partial.values[h * dim..][..dim].chunks_exact_mut(S::LANES).enumerate() {
                    let mut sum = simd.load(out);
                    for (j, weight) in weights.iter().enumerate().take(unroll) {
                        sum = simd.fma(*weight, simd.load(&wide[j * dim + block * S::LANES..]), sum);
                    }
                    simd.store(out, sum);
                }
            }
        }
    }
}

/// Query heads of a group times keys of a block.
const SCORES_MAX: usize = HEADS_MAX * BLOCK_KEYS;
/// Most query heads that share a key/value head; larger groups are taken in parts.
const HEADS_MAX: usize = 8;

/// Products of one key with `N` query heads, which share its loads; each head's sum has one order whatever `N` is.
#[inline(always)]
fn dots<S: Simd, const N: usize>(simd: S, q: &[f32], key: &[bf16]) -> [f32; N] {
    let (dim, mut sums) = (key.len(), [simd.zero(); N]);
    for (i, key) in key.chunks_exact(S::LANES).enumerate() {
        let key = simd.load_bf16(key);
        for (h, sum) in sums.iter_mut().enumerate() {
            *sum = simd.fma(simd.load(&q[h * dim + i * S::LANES..]), key, *sum);
        }
    }
    let mut scores = [0.0; N];
    for (score, sum) in scores.iter_mut().zip(sums) {
        *score = simd.reduce_add(sum);
    }
    scores
}

vector_kernel! {
    /// Adds `part` to `total`, both partial results over different keys.
    Merge<'a> { total: Partial<'a>, part: Partial<'a>, dim: usize } -> (), |simd| {
        for h in 0..total.max.len() {
            let max = total.max[h].max(part.max[h]);
            let (keep, add) = ((total.max[h] - max).exp(), (part.max[h] - max).exp());
            total.max[h] = max;
            total.sum[h] = total.sum[h] * keep + part.sum[h] * add;
            let (keep, add) = (simd.splat(keep), simd.splat(add));
            let lanes = total.values[h * dim..][..dim].chunks_exact_mut(S::LANES);
            for (t, p) in lanes.zip(part.values[h * dim..][..dim].chunks_exact(S::LANES)) {
                simd.store(t, simd.fma(simd.load(p), add, simd.mul(simd.load(t), keep)));
            }
        }
    }
}

vector_kernel! {
    /// The attention of one head, normalised, gated and rounded.
    Finish<'a> { values: &'a [f32], sum: f32, gate: &'a [bf16], out: &'a mut [bf16] } -> (), |simd| {
        let scale = simd.splat(1.0 / sum);
        let lanes = values.chunks_exact(S::LANES).zip(gate.chunks_exact(S::LANES));
        for ((v, gate), out) in lanes.zip(out.chunks_exact_mut(S::LANES)) {
            let gate = simd.sigmoid(simd.load_bf16(gate));
            simd.store_bf16(out, simd.mul(simd.mul(simd.load(v), scale), gate));
        }
    }
}

/// The query heads of a task: consecutive heads that share a key/value head, at most [`HEADS_MAX`].
fn head_parts(d: &AttentionDims) -> usize {
    d.queries_per_kv().div_ceil(HEADS_MAX)
}

fn heads_of(d: &AttentionDims, index: usize) -> (usize, Range<usize>) {
    let (parts, group) = (head_parts(d), d.queries_per_kv());
    let (kv, part) = (index / parts, index % parts);
    (kv, kv * group + part * HEADS_MAX..kv * group + group.min((part + 1) * HEADS_MAX))
}

/// Attention of some heads of one row over one block of its keys.
struct BlockTask<'a> {
    dims: &'a AttentionDims,
    keys: &'a [bf16],
    values: &'a [bf16],
    kv_head: usize,
    visible: usize,
}

impl BlockTask<'_> {
    fn run(&self, isa: Isa, q: &[f32], block: usize, memory: &mut [f32]) {
        let (dim, stride) = (self.dims.head_dim as usize, self.dims.kv_width());
        let at = block * BLOCK_KEYS * stride + self.kv_head * dim;
        isa.dispatch(Block {
            q,
            keys: &self.keys[at..],
            values: &self.values[at..],
            stride,
            dim,
            count: BLOCK_KEYS.min(self.visible - block * BLOCK_KEYS),
            partial: Partial::of(memory, q.len() / dim),
        });
    }
}

/// Query heads as fp32, times the score scale.
fn scaled<'a>(d: &AttentionDims, q: &[bf16], out: &'a mut [f32]) -> &'a [f32] {
    let out = &mut out[..q.len()];
    out.iter_mut().zip(q).for_each(|(out, q)| *out = q.to_f32() * d.scale());
    out
}

fn finish(isa: Isa, d: &AttentionDims, total: &Partial<'_>, q_raw: &[bf16], out: &mut [bf16]) {
    let dim = d.head_dim as usize;
    for (h, (raw, out)) in q_raw.chunks_exact(2 * dim).zip(out.chunks_exact_mut(dim)).enumerate() {
        isa.dispatch(Finish { values: &total.values[h * dim..][..dim], sum: total.sum[h], gate: &raw[dim..], out });
    }
}

pub fn attend(context: Context<'_>, v: AttendViews<'_>) {
    if v.args.segments.count > 1 {
        return attend_reference(v); // plans for this backend do not split the cache
    }
    let (d, isa, first) = (v.args.dims, context.isa, v.step[0] as usize);
    let (dim, width, tasks) = (d.head_dim as usize, d.q_width(), d.kv_heads as usize * head_parts(&d));
    let (out, tiles) = (SharedMut::new(v.out), SharedMut::new(&mut context.workspace.tiles));
    context.pool.run(d.rows as usize * tasks, &|task, worker| {
        // Long rows first, so that no thread is left with a long one at the end.
        let (row, (kv_head, heads)) = (d.rows as usize - 1 - task / tasks, heads_of(&d, task % tasks));
        let (partial, visible) = (Partial::len(heads.len(), dim), first + row + 1);
        // SAFETY: `worker` is this task's own for as long as it runs.
        let memory = unsafe { super::tile(&tiles, worker, 2 * partial + heads.len() * dim) };
        let (total, rest) = memory.split_at_mut(partial);
        let (part, q) = rest.split_at_mut(partial);
        let q = scaled(&d, &v.q[row * width + heads.start * dim..][..heads.len() * dim], q);
        let block = BlockTask { dims: &d, keys: v.keys, values: v.values, kv_head, visible };
        block.run(isa, q, 0, total);
        for i in 1..visible.div_ceil(BLOCK_KEYS) {
            block.run(isa, q, i, part);
            let (total, part) = (Partial::of(total, heads.len()), Partial::of(part, heads.len()));
            isa.dispatch(Merge { total, part, dim });
        }
        let at = row * width + heads.start * dim;
        // SAFETY: tasks have different heads of different rows.
        let out = unsafe { out.range_mut(at..at + heads.len() * dim) };
        let raw = &v.q_raw[2 * at..][..2 * heads.len() * dim];
        finish(isa, &d, &Partial::of(total, heads.len()), raw, out);
    });
}

/// Every block of every group of heads is a task; merging follows.
pub fn step(context: Context<'_>, v: AttendStepViews<'_>) {
    let (d, isa, position) = (v.args.dims, context.isa, v.step[0] as usize);
    let (dim, kv, groups) = (d.head_dim as usize, d.kv_width(), d.kv_heads as usize * head_parts(&d));
    let row = &mut context.workspace.row;
    row.resize(d.q_width().max(row.len()), bf16::ZERO);
    let q = &mut row[..d.q_width()];
    let raw = RawRow { q_raw: v.q_raw, k_raw: v.k_raw, q_gain: v.q_gain, k_gain: v.k_gain, inv_freq: v.inv_freq };
    prepare_row(isa, &d, raw, position, q, &mut v.keys[position * kv..][..kv]);
    v.values[position * kv..][..kv].copy_from_slice(v.v_raw);
    let (visible, q, keys, values) = (position + 1, &*q, &*v.keys, &*v.values);
    let (blocks, partial) = (visible.div_ceil(BLOCK_KEYS), Partial::len(HEADS_MAX, dim));
    let partials = &mut context.workspace.partials;
    partials.resize(partials.len().max(groups * blocks * partial), 0.0);
    let memory = SharedMut::new(partials);
    context.pool.run(groups * blocks, &|task, _| {
        let (kv_head, heads) = heads_of(&d, task / blocks);
        let mut wide = [0.0; HEADS_MAX * HEAD_DIM_MAX];
        let q = scaled(&d, &q[heads.start * dim..heads.end * dim], &mut wide);
        let block = BlockTask { dims: &d, keys, values, kv_head, visible };
        let at = task * partial;
        // SAFETY: tasks have different parts of the memory.
        let memory = unsafe { memory.range_mut(at..at + Partial::len(heads.len(), dim)) };
        block.run(isa, q, task % blocks, memory);
    });
    for group in 0..groups {
        let (_, heads) = heads_of(&d, group);
        let len = Partial::len(heads.len(), dim);
        let (first, rest) = partials[group * blocks * partial..][..blocks * partial].split_at_mut(partial);
        for part in rest.chunks_exact_mut(partial) {
            let (total, part) =
                (Partial::of(&mut first[..len], heads.len()), Partial::of(&mut part[..len], heads.len()));
            isa.dispatch(Merge { total, part, dim });
        }
        let at = heads.start * dim..heads.end * dim;
        let raw = &v.q_raw[2 * at.start..2 * at.end];
        finish(isa, &d, &Partial::of(&mut first[..len], heads.len()), raw, &mut v.out[at]);
    }
}
