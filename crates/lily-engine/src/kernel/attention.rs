//! Full attention: query/key preparation with the cache write, attention over the cache with its output gate, and the
//! decode step that fuses both.
//!
//! Caches are bf16 `[context, G, D]`, keys after norm and rotation. A raw query head is `D` query values and then `D`
//! gate values. Scores, softmax and the weighted sum are fp32; the gated output is rounded once.

use super::linear::{product_row, sigmoid};
use super::quant::HostMatrix;
use super::*;
use half::bf16;

dims! {
    /// Attention dimensions as kernel arguments.
    AttentionDims {
        /// Tokens.
        rows: u32,
        /// Query heads.
        heads: u32,
        /// Key/value heads.
        kv_heads: u32,
        /// Head size.
        head_dim: u32,
        /// Rotated leading dimensions.
        rotary_dim: u32,
        /// Epsilon of the query and key norms.
        eps: f32,
    }
}

impl AttentionDims {
    /// Width of one cache row.
    pub fn kv_width(&self) -> usize {
        (self.kv_heads * self.head_dim) as usize
    }

    /// Width of all query heads.
    pub fn q_width(&self) -> usize {
        (self.heads * self.head_dim) as usize
    }

    /// Query heads that share a key/value head.
    pub fn queries_per_kv(&self) -> usize {
        (self.heads / self.kv_heads) as usize
    }

    /// What the scores are multiplied by.
    pub fn scale(&self) -> f32 {
        (self.head_dim as f32).powf(-0.5)
    }

    /// Keys that all rows together look at.
    fn visible(&self, step: Step) -> f64 {
        let rows = self.rows as f64;
        rows * step.position as f64 + rows * (rows + 1.0) / 2.0
    }

    fn cost(&self, step: Step) -> Cost {
        let rows = self.rows as f64;
        let cache_rows = step.position as f64 + 2.0 * rows;
        Cost {
            state_bytes: 4.0 * self.kv_width() as f64 * cache_rows,
            flops: 4.0 * self.visible(step) * self.q_width() as f64,
            ..Cost::default()
        }
    }
}

kernel! {
    /// Norm and rotation of queries and keys; keys and values go into the cache at the step's position.
    QkPrep, "qk_prep", args QkPrepArgs, views QkPrepViews {
        args {
            /// Dimensions.
            dims: AttentionDims,
        }
        buffers {
            step: read u32,
            q_raw: read bf16,
            k_raw: read bf16,
            v_raw: read bf16,
            q_gain: read f32,
            k_gain: read f32,
            inv_freq: read f32,
            keys: update bf16,
            values: update bf16,
            q: write bf16,
        }
        launch: |a| launch::items(a.dims.rows, a.dims.heads + 2 * a.dims.kv_heads),
        cost: |a, _| {
            let (d, rows) = (a.dims, a.dims.rows as f64);
            Cost {
                weight_bytes: 8.0 * d.head_dim as f64,
                state_bytes: 4.0 * rows * d.kv_width() as f64,
                activation_bytes: rows * (6.0 * d.q_width() as f64 + 4.0 * d.kv_width() as f64),
                flops: rows * 8.0 * (d.q_width() + d.kv_width()) as f64,
            }
        },
        tolerance: 8e-3,
        reference: qk_prep_reference,
    }
}

/// Norm and rotation of one head at `position`, rounded once; element `i` of the rotated part pairs with `i + half`.
fn prepare_head(x: &[bf16], gain: &[f32], inv_freq: &[f32], position: usize, eps: f32, out: &mut [bf16]) {
    let square: f64 = x.iter().map(|v| v.to_f64().powi(2)).sum();
    let scale = (1.0 / (square / x.len() as f64 + eps as f64).sqrt()) as f32;
    let mut y: Vec<f32> = x.iter().zip(gain).map(|(v, g)| v.to_f32() * scale * g).collect();
    let half = inv_freq.len();
    for i in 0..half {
        let (sin, cos) = (position as f32 * inv_freq[i]).sin_cos();
        let (low, high) = (y[i], y[i + half]);
        y[i] = low * cos - high * sin;
        y[i + half] = high * cos + low * sin;
    }
    out.iter_mut().zip(y).for_each(|(o, y)| *o = bf16::from_f32(y));
}

fn qk_prep_reference(v: QkPrepViews<'_>) {
    let a = v.args.dims;
    let (d, kv) = (a.head_dim as usize, a.kv_width());
    for t in 0..a.rows as usize {
        let position = v.step[0] as usize + t;
        for head in 0..a.heads as usize {
            let at = t * a.heads as usize + head;
            let raw = &v.q_raw[at * 2 * d..][..d];
            prepare_head(raw, v.q_gain, v.inv_freq, position, a.eps, &mut v.q[at * d..][..d]);
        }
        for head in 0..a.kv_heads as usize {
            let raw = &v.k_raw[t * kv + head * d..][..d];
            let out = &mut v.keys[position * kv + head * d..][..d];
            prepare_head(raw, v.k_gain, v.inv_freq, position, a.eps, out);
        }
        v.values[position * kv..][..kv].copy_from_slice(&v.v_raw[t * kv..][..kv]);
    }
}

dims! {
    /// How a chunk's attention splits the cache. Where a segment ends depends on nothing but its keys, so that a token's
    /// result does not depend on the chunk it is in.
    Segments {
        /// Most segments that a token sees.
        count: u32,
        /// Keys of a segment: a multiple of 64, unless there is one segment.
        keys: u32,
    }
}

impl Segments {
    /// No splitting.
    pub const ONE: Segments = Segments { count: 1, keys: u32::MAX };

    /// Of so many keys each, for contexts of so many tokens.
    pub fn new(keys: u32, context_tokens: usize) -> Self {
        Self { count: (context_tokens as u32).div_ceil(keys).max(1), keys }
    }

    /// Bytes of the partial results of a chunk: none where nothing is split.
    pub fn partials_bytes(&self, dims: &AttentionDims) -> usize {
        if self.count > 1 { dims.rows as usize * dims.partial_bytes(self.count) } else { 0 }
    }

    /// Segments that a token at this position sees.
    fn seen(&self, position: u32) -> u32 {
        position / self.keys + 1
    }

    /// The tokens of a chunk that see several segments, and how many they see together.
    fn split(&self, rows: u32, step: Step) -> (f64, f64) {
        let seen = (step.position..step.position + rows).map(|position| self.seen(position)).filter(|seen| *seen > 1);
        seen.fold((0.0, 0.0), |(tokens, parts), seen| (tokens + 1.0, parts + f64::from(seen)))
    }
}

kernel! {
    /// Causal attention of a chunk over the cache, by segments. A token that sees one segment gets its output, times the sigmoid of
    /// the output gate; one that sees several gets the partial result of each, fp32 `[rows, segments, heads, 2 + D]`:
    /// largest score, sum, weighted values. All other elements of `partials` and `out` stay as they are.
    Attend, "attend", args AttendArgs, views AttendViews {
        args {
            /// Dimensions.
            dims: AttentionDims,
            /// How the cache is split.
            segments: Segments,
        }
        buffers {
            step: read u32,
            q: read bf16,
            q_raw: read bf16,
            keys: read bf16,
            values: read bf16,
            partials: update f32,
            out: update bf16,
        }
        launch: |a| {
            let queries = a.dims.rows * a.dims.queries_per_kv() as u32;
            let groups = [queries.div_ceil(8 * launch::ATTEND_SIMDGROUPS), a.dims.kv_heads, a.segments.count];
            Launch::new(groups, launch::ATTEND_SIMDGROUPS * launch::SIMD_WIDTH).constant(Constant::HeadDim, a.dims.head_dim)
        },
        cost: |a, step| {
            let (d, mut cost) = (a.dims, a.dims.cost(step));
            let (rows, width) = (d.rows as f64, d.q_width() as f64);
            let (split, parts) = a.segments.split(d.rows, step);
            cost.state_bytes -= 4.0 * rows * d.kv_width() as f64;
            // Gates and outputs are those of tokens that see one segment.
            cost.activation_bytes = 2.0 * rows * width + 4.0 * (rows - split) * width + parts * d.partial_bytes(1) as f64;
            cost
        },
        tolerance: 8e-3,
        reference: attend_reference,
    }
}

/// Attention of one query of a KV head, whose first column is `column`, over these keys: largest score, sum, weighted values.
fn partial_reference(
    a: &AttentionDims,
    q: &[bf16],
    [keys, values]: [&[bf16]; 2],
    column: usize,
    range: std::ops::Range<usize>,
) -> (f64, f64, Vec<f64>) {
    let (d, kv) = (a.head_dim as usize, a.kv_width());
    let score = |i: usize| -> f64 {
        let key = &keys[i * kv + column..][..d];
        key.iter().zip(q).map(|(k, q)| k.to_f64() * q.to_f64()).sum::<f64>() * a.scale() as f64
    };
    let scores: Vec<f64> = range.clone().map(score).collect();
    let most = scores.iter().cloned().fold(EMPTY_BLOCK as f64, f64::max);
    let mut sum = vec![0.0f64; d];
    for (i, score) in range.zip(&scores) {
        let value = &values[i * kv + column..][..d];
        sum.iter_mut().zip(value).for_each(|(s, x)| *s += (score - most).exp() * x.to_f64());
    }
    (most, scores.iter().map(|s| (s - most).exp()).sum(), sum)
}

pub(crate) fn attend_reference(v: AttendViews<'_>) {
    let (a, segments, width) = (v.args.dims, v.args.segments, partial_width(&v.args.dims));
    let (d, heads) = (a.head_dim as usize, a.heads as usize);
    for (at, out) in v.out.chunks_exact_mut(d).enumerate() {
        let (t, head) = (at / heads, at % heads);
        let position = v.step[0] + t as u32;
        let (visible, size) = (position as usize + 1, segments.keys as usize);
        let column = head / a.queries_per_kv() * d;
        let q = &v.q[at * d..][..d];
        let seen = segments.seen(position) as usize;
        for s in 0..seen {
            let range = s * size..visible.min((s + 1) * size);
            let (most, total, sum) = partial_reference(&a, q, [v.keys, v.values], column, range);
            if seen == 1 {
                let gate = &v.q_raw[(at * 2 + 1) * d..][..d];
                let gated = sum.iter().zip(gate).map(|(sum, gate)| (sum / total) as f32 * sigmoid(gate.to_f32()));
                out.iter_mut().zip(gated).for_each(|(out, gated)| *out = bf16::from_f32(gated));
            } else {
                let part = &mut v.partials[((t * segments.count as usize + s) * heads + head) * width..][..width];
                (part[0], part[1]) = (most as f32, total as f32);
                part[2..].iter_mut().zip(sum).for_each(|(p, s)| *p = s as f32);
            }
        }
    }
}

kernel! {
    /// The partial results of [`Attend`] merged and gated, of tokens that see several segments.
    MergeSegments, "merge_segments", args MergeSegmentsArgs, views MergeSegmentsViews {
        args {
            /// Dimensions.
            dims: AttentionDims,
            /// How the cache was split.
            segments: Segments,
        }
        buffers {
            step: read u32,
            q_raw: read bf16,
            partials: read f32,
            out: update bf16,
        }
        launch: |a| launch::items(a.dims.rows, a.dims.heads),
        cost: |a, step| Cost {
            activation_bytes: {
                let (split, parts) = a.segments.split(a.dims.rows, step);
                parts * a.dims.partial_bytes(1) as f64 + 4.0 * split * a.dims.q_width() as f64
            },
            ..Cost::default()
        },
        tolerance: 8e-3,
        reference: |v| {
            let (a, segments) = (v.args.dims, v.args.segments);
            let (q, most) = (a.q_width(), segments.count as usize * a.partial_bytes(1) / 4);
            for (t, out) in v.out.chunks_exact_mut(q).enumerate() {
                let seen = segments.seen(v.step[0] + t as u32);
                if seen > 1 {
                    let one = AttentionDims { rows: 1, ..a };
                    merge_blocks(&one, seen, &v.q_raw[2 * t * q..][..2 * q], &v.partials[t * most..][..most], out);
                }
            }
        },
    }
}

kernel! {
    /// Decode: query/key preparation, cache write, attention and output gate of one token.
    AttendStep, "attend_step", args AttendStepArgs, views AttendStepViews {
        args {
            /// Dimensions; one row.
            dims: AttentionDims,
        }
        buffers {
            step: read u32,
            q_raw: read bf16,
            k_raw: read bf16,
            v_raw: read bf16,
            q_gain: read f32,
            k_gain: read f32,
            inv_freq: read f32,
            keys: update bf16,
            values: update bf16,
            out: write bf16,
        }
        launch: |a| Launch::new([a.dims.kv_heads, 1, 1], 1024),
        cost: |a, step| {
            let mut cost = a.dims.cost(step);
            cost.weight_bytes = 8.0 * a.dims.head_dim as f64;
            cost.activation_bytes = 6.0 * a.dims.q_width() as f64 + 4.0 * a.dims.kv_width() as f64;
            cost
        },
        tolerance: 8e-3,
        reference: |v| {
            let dims = v.args.dims;
            let mut q = vec![bf16::ZERO; dims.q_width()];
            qk_prep_reference(QkPrepViews {
                args: QkPrepArgs { dims },
                step: v.step, q_raw: v.q_raw, k_raw: v.k_raw, v_raw: v.v_raw,
                q_gain: v.q_gain, k_gain: v.k_gain, inv_freq: v.inv_freq,
                keys: &mut *v.keys, values: &mut *v.values, q: &mut q,
            });
            attend_reference(AttendViews {
                args: AttendArgs { dims, segments: Segments::ONE },
                step: v.step, q: &q, q_raw: v.q_raw, keys: v.keys, values: v.values, partials: &mut [], out: v.out,
            });
        },
    }
}

/// Queries of a KV head that one threadgroup of [`AttendBlocks`] serves: they share each load of a cache row.
pub const PACKED_QUERIES: u32 = 4;

/// The same where matrix units score them.
pub const WIDE_PACKED_QUERIES: u32 = 8;

/// Elements of one partial result of attention: the largest score, the sum of `exp(score - largest)`, and that sum's
/// weighted values.
fn partial_width(dims: &AttentionDims) -> usize {
    dims.head_dim as usize + 2
}

impl AttentionDims {
    /// Bytes of the partial results of so many blocks.
    pub fn partial_bytes(&self, blocks: u32) -> usize {
        4 * (blocks * self.heads) as usize * partial_width(self)
    }
}

dims! {
    /// How decode attention splits the cache and reads it.
    CacheReading {
        /// Blocks.
        blocks: u32,
        /// Keys of a block; 0 splits the visible keys evenly.
        block_keys: u32,
        /// Queries of a KV head that share each load of a cache row: up to [`PACKED_QUERIES`], or [`WIDE_PACKED_QUERIES`].
        packed: u32,
        /// 1 if neighbouring lanes read neighbouring bytes, 0 if each reads its own stretch element by element.
        coalesced: u32,
    }
}

impl CacheReading {
    /// So many blocks of so many keys (0: split evenly), read in the best way.
    pub fn new(blocks: u32, block_keys: u32) -> Self {
        Self { blocks, block_keys, packed: PACKED_QUERIES, coalesced: 1 }
    }
}

/// Keys of block `block` when `visible` keys are split: `block_keys` each, or evenly in multiples of 32 if that is 0.
fn block_range(visible: usize, blocks: u32, block_keys: u32, block: usize) -> std::ops::Range<usize> {
    let size = match block_keys as usize {
        0 => visible.div_ceil(blocks as usize).next_multiple_of(32),
        size => size,
    };
    (block * size).min(visible)..((block + 1) * size).min(visible)
}

kernel! {
    /// Decode: query/key preparation, cache write, and attention of one token over blocks of the cache, each block's
    /// partial result fp32 `[blocks, heads, 2 + D]`: largest score, sum, weighted values. An empty block has sum 0.
    AttendBlocks, "attend_blocks", args AttendBlocksArgs, views AttendBlocksViews {
        args {
            /// Dimensions; one row.
            dims: AttentionDims,
            /// How the cache is split and read.
            reading: CacheReading,
        }
        buffers {
            step: read u32,
            q_raw: read bf16,
            k_raw: read bf16,
            v_raw: read bf16,
            q_gain: read f32,
            k_gain: read f32,
            inv_freq: read f32,
            keys: update bf16,
            values: update bf16,
            partials: write f32,
        }
        launch: |a| {
            let packs = a.dims.queries_per_kv().div_ceil(a.reading.packed as usize) as u32;
            Launch::new([a.reading.blocks, packs, a.dims.kv_heads], launch::BLOCK_THREADS)
                .constant(Constant::HeadDim, a.dims.head_dim)
                .constant(Constant::Packed, a.reading.packed)
                .constant(Constant::Coalesced, a.reading.coalesced)
        },
        cost: |a, step| {
            let mut cost = a.dims.cost(step);
            cost.weight_bytes = 8.0 * a.dims.head_dim as f64;
            cost.activation_bytes =
                2.0 * (a.dims.q_width() + 2 * a.dims.kv_width()) as f64 + a.dims.partial_bytes(a.reading.blocks) as f64;
            cost
        },
        tolerance: 1e-3,
        reference: attend_blocks_reference,
    }
}

fn attend_blocks_reference(v: AttendBlocksViews<'_>) {
    let dims = v.args.dims;
    let mut q = vec![bf16::ZERO; dims.q_width()];
    qk_prep_reference(QkPrepViews {
        args: QkPrepArgs { dims },
        step: v.step,
        q_raw: v.q_raw,
        k_raw: v.k_raw,
        v_raw: v.v_raw,
        q_gain: v.q_gain,
        k_gain: v.k_gain,
        inv_freq: v.inv_freq,
        keys: &mut *v.keys,
        values: &mut *v.values,
        q: &mut q,
    });
    blocks_reference(dims, v.args.reading, v.step[0], &q, [v.keys, v.values], v.partials);
}

/// Partial results of prepared queries with a cache that holds the token itself at `position`.
pub(super) fn blocks_reference(
    dims: AttentionDims,
    reading: CacheReading,
    position: u32,
    q: &[bf16],
    [keys, values]: [&[bf16]; 2],
    partials: &mut [f32],
) {
    let (d, width) = (dims.head_dim as usize, partial_width(&dims));
    let visible = position as usize + 1;
    for (at, out) in partials.chunks_exact_mut(width).enumerate() {
        let (block, head) = (at / dims.heads as usize, at % dims.heads as usize);
        let column = head / dims.queries_per_kv() * d;
        let range = block_range(visible, reading.blocks, reading.block_keys, block);
        let q = &q[head * d..][..d];
        let (most, total, sum) = partial_reference(&dims, q, [keys, values], column, range);
        (out[0], out[1]) = (most as f32, total as f32);
        out[2..].iter_mut().zip(sum).for_each(|(o, s)| *o = s as f32);
    }
}

/// Largest score of a block without keys: finite, so that no difference of two such is NaN.
pub const EMPTY_BLOCK: f32 = -1e30;

/// The output of every token's heads from the partial results of its blocks, gated and rounded once.
fn merge_blocks(dims: &AttentionDims, blocks: u32, q_raw: &[bf16], partials: &[f32], out: &mut [bf16]) {
    let (d, width, heads) = (dims.head_dim as usize, partial_width(dims), dims.heads as usize);
    for (at, out) in out.chunks_exact_mut(d).enumerate() {
        let (first, head) = (at / heads * blocks as usize, at % heads);
        let parts = || (0..blocks as usize).map(|b| &partials[((first + b) * heads + head) * width..][..width]);
        let most = parts().map(|p| p[0]).fold(EMPTY_BLOCK, f32::max);
        let weight = |part: &[f32]| (part[0] - most).exp();
        let total: f32 = parts().map(|p| weight(p) * p[1]).sum();
        let gate = &q_raw[(at * 2 + 1) * d..][..d];
        for (i, out) in out.iter_mut().enumerate() {
            let sum: f32 = parts().map(|p| weight(p) * p[2 + i]).sum();
            *out = bf16::from_f32(sum / total * sigmoid(gate[i].to_f32()));
        }
    }
}

kernel! {
    /// Decode: the partial results of [`AttendBlocks`] merged and gated.
    AttendMerge, "attend_merge", args AttendMergeArgs, views AttendMergeViews {
        args {
            /// Dimensions; one row.
            dims: AttentionDims,
            /// Blocks.
            blocks: u32,
        }
        buffers {
            q_raw: read bf16,
            partials: read f32,
            out: write bf16,
        }
        launch: |a| {
            Launch::new([a.dims.heads, a.dims.head_dim / launch::SIMD_WIDTH, 1], launch::BLOCK_THREADS)
                .constant(Constant::HeadDim, a.dims.head_dim)
        },
        cost: |a, _| Cost {
            activation_bytes: a.dims.partial_bytes(a.blocks) as f64 + 4.0 * a.dims.q_width() as f64,
            ..Cost::default()
        },
        tolerance: 8e-3,
        reference: |v| merge_blocks(&v.args.dims, v.args.blocks, v.q_raw, v.partials, v.out),
    }
}

kernel! {
    /// Decode, few blocks: [`AttendMerge`] of every token and the output projection added to the residual stream, in one.
    MergeMatVecAdd, "merge_matvec_add", args MergeMatVecAddArgs, views MergeMatVecAddViews {
        args {
            /// Dimensions; at most [`launch::BATCH_MAX`] rows.
            dims: AttentionDims,
            /// Blocks.
            blocks: u32,
            /// Outputs.
            outputs: u32,
            /// Storage of the matrix.
            format: PackedFormat,
        }
        buffers {
            q_raw: read bf16,
            partials: read f32,
            codes: read u8,
            scales: read u8,
            biases: read u8,
            h: update bf16,
        }
        launch: |a| {
            launch::narrow_vector(a.outputs)
                .formats(&[a.format])
                .constant(Constant::HeadDim, a.dims.head_dim)
                .constant(Constant::Batch, a.dims.rows)
        },
        cost: |a, _| {
            let (rows, cols) = (a.dims.rows, a.dims.q_width() as u32);
            let row_bytes = a.dims.partial_bytes(a.blocks) as f64 + 2.0 * (cols + 2 * a.outputs) as f64;
            Cost {
                weight_bytes: matrix_bytes(a.format, a.outputs, cols),
                activation_bytes: rows as f64 * row_bytes,
                flops: product_flops(rows, a.outputs, cols),
                ..Cost::default()
            }
        },
        tolerance: 8e-3,
        reference: |v| {
            let dims = v.args.dims;
            let mut x = vec![bf16::ZERO; dims.rows as usize * dims.q_width()];
            merge_blocks(&dims, v.args.blocks, v.q_raw, v.partials, &mut x);
            let matrix = HostMatrix {
                format: v.args.format.format(), cols: dims.q_width(), codes: v.codes, scales: v.scales, biases: v.biases,
            };
            for (x, h) in x.chunks_exact(dims.q_width()).zip(v.h.chunks_exact_mut(v.args.outputs as usize)) {
                let outputs = h.iter_mut().enumerate();
                outputs.for_each(|(n, h)| *h = bf16::from_f32(h.to_f32() + product_row(&matrix, n, x)));
            }
        },
    }
}
