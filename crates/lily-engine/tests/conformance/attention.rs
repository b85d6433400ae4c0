//! Full attention.

use super::*;

/// Dimensions with `heads` query heads on two KV heads of 64, half of them rotated.
fn attention_dims(rows: u32, heads: u32) -> AttentionDims {
    AttentionDims { rows, heads, kv_heads: 2, head_dim: 64, rotary_dim: 32, eps: 1e-6 }
}

fn prep(device: &dyn Runs, dims: AttentionDims, position: u32, scale: f32) {
    let mut c = Case::new(14);
    let (rows, d) = (dims.rows, dims.head_dim);
    let (kv, q) = (dims.kv_width() as u32, dims.q_width() as u32);
    let kernel = QkPrep {
        args: QkPrepArgs { dims },
        step: c.u32(&[position, 0]),
        q_raw: c.bf16(rows * 2 * q, scale),
        k_raw: c.bf16(rows * kv, scale),
        v_raw: c.bf16(rows * kv, scale),
        q_gain: c.f32(d, 0.5, 1.5),
        k_gain: c.f32(d, 0.5, 1.5),
        inv_freq: c.f32(dims.rotary_dim / 2, 0.0, 1.0),
        keys: c.bf16((position + rows) * kv, 1.0),
        values: c.bf16((position + rows) * kv, 1.0),
        q: c.poison(2 * rows * q),
    };
    c.check(kernel.dispatch(), &format!("at {position}, {dims:?}"), device);
}

pub fn qk_prep(device: &dyn Runs) {
    ROWS.into_iter().for_each(|rows| prep(device, attention_dims(rows, 6), 70, 2.0));
    prep(device, AttentionDims { head_dim: 128, rotary_dim: 128, ..attention_dims(3, 2) }, 0, 2.0);
    prep(device, AttentionDims { head_dim: 256, rotary_dim: 64, ..attention_dims(5, 4) }, 1, 2.0);
    // Angles of thousands of turns.
    prep(device, AttentionDims { kv_heads: 1, ..attention_dims(2, 1) }, 32_767, 2.0);
    // So small that the norm's epsilon is most of the sum.
    prep(device, attention_dims(3, 6), 5, 1e-3);
}

fn attend_at(device: &dyn Runs, dims: AttentionDims, position: u32, scale: f32) {
    attend_segments_at(device, dims, Segments::ONE, position, scale);
}

fn attend_segments_at(device: &dyn Runs, dims: AttentionDims, segments: Segments, position: u32, scale: f32) {
    let mut c = Case::new(15);
    let (rows, kv, q) = (dims.rows, dims.kv_width() as u32, dims.q_width() as u32);
    // What lies behind the last key is never looked at.
    let mut cache = |scale| {
        let visible = (0..(position + rows) * kv).map(|_| bf16::from_f32(c.uniform() * scale));
        let values: Vec<bf16> = visible.chain((0..3 * kv).map(|_| bf16::NAN)).collect();
        c.bytes(bytemuck::cast_slice(&values).to_vec())
    };
    let (keys, values) = (cache(scale), cache(1.0));
    // What is not an output of this kernel is there already.
    let partials = c.f32((segments.partials_bytes(&dims) / 4) as u32, -1.0, 1.0);
    let (step, q_raw, out) = (c.u32(&[position, 0]), c.bf16(rows * 2 * q, 2.0), c.bf16(rows * q, 1.0));
    let args = AttendArgs { dims, segments };
    let kernel = Attend { args, step, q: c.bf16(rows * q, 4.0), q_raw, keys, values, partials, out };
    let label = format!("at {position}, {dims:?}, {segments:?}");
    if segments.count > 1 {
        let mut merged = c.copy();
        let contents = merged.contents.iter_mut().find(|(slot, _)| *slot == partials).expect("partial results");
        contents.1 = c.reference(&kernel.dispatch()).swap_remove(0);
        let kernel = MergeSegments { args: MergeSegmentsArgs { dims, segments }, step, q_raw, partials, out };
        merged.check(kernel.dispatch(), &label, device);
    }
    c.check(kernel.dispatch(), &label, device);
}

pub fn attend_by_segments(device: &dyn Runs) {
    // Tokens before, on and behind the ends of segments, in chunks that begin in the first one or later and end in any; every
    // head size, groups of 3, 8, 9 and 16 heads; fewer segments than there might be.
    for (rows, position, head_dim, heads, kv_heads, keys, count) in [
        (1, 63, 64, 6, 2, 64, 3),
        (1, 64, 64, 6, 2, 64, 3),
        (70, 0, 64, 6, 2, 64, 2),
        (17, 55, 128, 16, 2, 64, 4),
        (33, 100, 256, 8, 1, 128, 2),
        (40, 300, 256, 16, 2, 128, 3),
        (3, 130, 128, 9, 1, 64, 5),
        (9, 700, 256, 16, 1, 192, 4),
        (65, 190, 64, 2, 2, 128, 2),
    ] {
        let dims = AttentionDims { head_dim, kv_heads, ..attention_dims(rows, heads) };
        for scale in [1.0, 30.0] {
            attend_segments_at(device, dims, Segments { count, keys }, position, scale);
        }
    }
    merge_segments_far_apart(device);
}

/// Scores so far apart that one segment takes all, another one for each token.
fn merge_segments_far_apart(device: &dyn Runs) {
    let (dims, segments) = (attention_dims(3, 2), Segments { count: 3, keys: 64 });
    let mut c = Case::new(61);
    let mut partials = Vec::new();
    for part in 0..dims.rows * segments.count * dims.heads {
        let (token, segment) = (part / dims.heads / segments.count, part / dims.heads % segments.count);
        partials.extend([200.0 * ((token + segment) % segments.count) as f32, 20.0]);
        partials.extend((0..dims.head_dim).map(|_| c.uniform() * 20.0));
    }
    let kernel = MergeSegments {
        args: MergeSegmentsArgs { dims, segments },
        step: c.u32(&[130, 0]),
        q_raw: c.bf16(dims.rows * 2 * dims.q_width() as u32, 2.0),
        partials: c.bytes(bytemuck::cast_slice(&partials).to_vec()),
        out: c.poison(2 * dims.rows * dims.q_width() as u32),
    };
    c.check(kernel.dispatch(), "segments far apart", device);
}

pub fn attend(device: &dyn Runs) {
    // Contexts inside one block of keys, at its border, and over several; groups of 3, 8 and 10 heads.
    for (rows, position, heads) in
        [(1, 0, 6), (5, 0, 16), (1, 128, 20), (17, 250, 6), (3, 254, 20), (2, 700, 16), (65, 200, 6)]
    {
        attend_at(device, attention_dims(rows, heads), position, 2.0);
    }
    for (rows, position) in [(1, 30), (1, 31), (1, 32), (31, 0), (32, 0), (33, 0), (2, 4094), (3, 4094)] {
        attend_at(device, attention_dims(rows, 2), position, 2.0);
    }
    for (head_dim, rows, position) in [(128, 9, 40), (256, 9, 25), (256, 3, 0)] {
        attend_at(device, AttentionDims { head_dim, ..attention_dims(rows, 16) }, position, 2.0);
    }
    // Tiles whose halves have queries of their own, over one block of keys and over several.
    for (head_dim, position) in [(256, 0), (256, 190), (256, 500), (128, 190)] {
        let dims = AttentionDims { head_dim, kv_heads: 1, ..attention_dims(33, 8) };
        attend_at(device, dims, position, 2.0);
    }
    // Scores so large that one key takes all.
    attend_at(device, attention_dims(9, 6), 77, 200.0);
    attend_in_turns(device);
}

/// Of every 16 query heads, eight see their largest score among the first 64 keys and the others theirs behind: one part of what
/// a GPU has of them is rescaled then, and the other is not.
fn attend_in_turns(device: &dyn Runs) {
    let (position, dims) = (100, AttentionDims { kv_heads: 1, ..attention_dims(4, 16) });
    let (rows, d) = (position + dims.rows, dims.head_dim);
    let mut c = Case::new(33);
    let slot = |c: &mut Case, count: u32, element: &dyn Fn(u32, u32) -> f32| {
        let values: Vec<bf16> = (0..count * d).map(|i| bf16::from_f32(element(i / d, i % d))).collect();
        c.bytes(bytemuck::cast_slice(&values).to_vec())
    };
    let large = |is: bool| if is { 8.0 } else { 0.0 };
    let kernel = Attend {
        args: AttendArgs { dims, segments: Segments::ONE },
        step: c.u32(&[position, 0]),
        q: slot(&mut c, dims.rows * dims.heads, &|query, i| large(i == query % dims.heads / 8)),
        q_raw: c.bf16(2 * dims.rows * dims.heads * d, 2.0),
        keys: slot(&mut c, rows, &|key, i| large((key, i) == (5, 0) || (key, i) == (70, 1))),
        values: c.bf16(rows * d, 1.0),
        partials: c.bytes(Vec::new()),
        out: c.poison(2 * dims.rows * dims.heads * d),
    };
    c.check(kernel.dispatch(), &format!("in turns at {position}, {dims:?}"), device);
}

pub fn attend_at_long_contexts(device: &dyn Runs) {
    for (rows, position) in [(1, 32_766), (1, 32_767), (3, 32_766)] {
        attend_at(device, AttentionDims { kv_heads: 1, ..attention_dims(rows, 2) }, position, 2.0);
    }
}

pub fn attend_step(device: &dyn Runs) {
    for (position, heads) in [(0, 6), (1, 16), (255, 20), (256, 6), (900, 16)] {
        let (mut c, dims) = (Case::new(16), attention_dims(1, heads));
        let kernel = AttendStep {
            args: AttendStepArgs { dims },
            step: c.u32(&[position, 0]),
            q_raw: c.bf16(2 * heads * 64, 2.0),
            k_raw: c.bf16(128, 2.0),
            v_raw: c.bf16(128, 2.0),
            q_gain: c.f32(64, 0.5, 1.5),
            k_gain: c.f32(64, 0.5, 1.5),
            inv_freq: c.f32(16, 0.0, 1.0),
            keys: c.bf16((position + 2) * 128, 1.0),
            values: c.bf16((position + 2) * 128, 1.0),
            out: c.poison(2 * heads * 64),
        };
        c.check(kernel.dispatch(), &format!("at {position}, {heads} heads"), device);
    }
}

pub fn attend_blocks_and_merge(device: &dyn Runs) {
    // Even splits and fixed blocks, some of them empty; groups of 3, 8 and 10 heads.
    for (position, heads, blocks, block_keys) in
        [(0, 6, 3, 0), (1, 16, 4, 32), (255, 20, 8, 0), (256, 6, 2, 0), (900, 16, 8, 128)]
    {
        let (mut c, dims) = (Case::new(26), attention_dims(1, heads));
        let q_raw = c.bf16(2 * heads * 64, 2.0);
        let kernel = AttendBlocks {
            args: AttendBlocksArgs {
                dims,
                reading: CacheReading { packed: device.packed_queries(), ..CacheReading::new(blocks, block_keys) },
            },
            step: c.u32(&[position, 0]),
            q_raw,
            k_raw: c.bf16(128, 2.0),
            v_raw: c.bf16(128, 2.0),
            q_gain: c.f32(64, 0.5, 1.5),
            k_gain: c.f32(64, 0.5, 1.5),
            inv_freq: c.f32(16, 0.0, 1.0),
            keys: c.bf16((position + 2) * 128, 1.0),
            values: c.bf16((position + 2) * 128, 1.0),
            partials: c.poison(dims.partial_bytes(blocks) as u32),
        };
        let label = format!("at {position}, {heads} heads, {blocks} blocks of {block_keys}");
        let partials = c.reference(&kernel.dispatch()).pop().unwrap();
        c.check(kernel.dispatch(), &label, device);

        let mut c = Case::new(27);
        let (q_raw, partials) = (c.bf16(2 * heads * 64, 2.0), c.bytes(partials));
        let args = AttendMergeArgs { dims, blocks };
        let kernel = AttendMerge { args, q_raw, partials, out: c.poison(2 * heads * 64) };
        c.copy().check(kernel.dispatch(), &label, device);
        let m = c.matrix(77, heads * 64, Q4);
        let kernel = MergeMatVecAdd {
            args: MergeMatVecAddArgs { dims, blocks, outputs: 77, format: m.format },
            q_raw,
            partials,
            codes: m.codes,
            scales: m.scales,
            biases: m.biases,
            h: c.bf16(77, 2.0),
        };
        c.check(kernel.dispatch(), &label, device);
    }
}

/// Contexts around 32, where a block of an even split is full, around 4,096, and around 32,768, where blocks of fixed size
/// begin; every head size; groups of 1 to 9 query heads: position, head size, query heads of a KV head, blocks and keys of
/// a block.
const BORDERS: [(u32, u32, u32, u32, u32); 11] = [
    (0, 64, 1, 8, 0),
    (30, 256, 8, 8, 0),
    (31, 128, 3, 8, 0),
    (32, 256, 4, 8, 0),
    (33, 64, 9, 2, 32),
    (4094, 64, 2, 8, 0),
    (4095, 128, 1, 8, 0),
    (4096, 256, 1, 9, 512),
    (32_766, 64, 1, 32, 0),
    (32_767, 64, 1, 32, 1024),
    (32_768, 64, 1, 64, 1024),
];

/// Calls `check` with the dimensions, the blocks and a label for every way of reading the cache that a short context has,
/// and for the best of a long one.
pub fn at_borders(device: &dyn Runs, check: &dyn Fn(AttentionDims, u32, CacheReading, String)) {
    for (position, head_dim, group, blocks, block_keys) in BORDERS {
        let kv_heads = if position < 4000 { 2 } else { 1 };
        let dims =
            AttentionDims { rows: 1, heads: group * kv_heads, kv_heads, head_dim, rotary_dim: head_dim / 4, eps: 1e-6 };
        let packed = device.packed_queries();
        let best = CacheReading { packed, ..CacheReading::new(blocks, block_keys) };
        for (packed, coalesced) in [(packed, 1), (packed, 0), (1, 1), (1, 0)] {
            let reading = CacheReading { packed, coalesced, ..best };
            if position < 4000 || reading == best {
                check(dims, position, reading, format!("at {position}, {group} heads of {head_dim}, {reading:?}"));
            }
        }
    }
}

pub fn attend_blocks_at_borders(device: &dyn Runs) {
    at_borders(device, &|dims, position, reading, label| {
        // Scores of hundreds: all weight on few keys, and differences that no fp32 exponential survives.
        for scale in [1.0, 30.0] {
            let (d, row) = (dims.head_dim, dims.kv_width() as u32);
            let mut c = Case::new(29);
            let kernel = AttendBlocks {
                args: AttendBlocksArgs { dims, reading },
                step: c.u32(&[position, 0]),
                q_raw: c.bf16(2 * dims.heads * d, 2.0),
                k_raw: c.bf16(row, 2.0),
                v_raw: c.bf16(row, 2.0),
                q_gain: c.f32(d, 0.5 * scale, 1.5 * scale),
                k_gain: c.f32(d, 0.5, 1.5),
                inv_freq: c.f32(d / 8, 0.0, 1.0),
                keys: c.bf16((position + 2) * row, 1.0),
                values: c.bf16((position + 2) * row, 1.0),
                partials: c.poison(dims.partial_bytes(reading.blocks) as u32),
            };
            c.check(kernel.dispatch(), &label, device);
        }
    });
}

pub fn attend_merge_of_many_blocks(device: &dyn Runs) {
    for (head_dim, heads, blocks) in [(64, 3, 1), (128, 2, 33), (256, 2, 70)] {
        let dims = AttentionDims { rows: 1, heads, kv_heads: 1, head_dim, rotary_dim: 16, eps: 1e-6 };
        let mut c = Case::new(30);
        // Every fourth block is empty; the others have a score, a sum of weights and values of that size.
        let mut partials = Vec::new();
        for block in 0..blocks {
            for _ in 0..heads {
                let (score, sum) = if block % 4 == 3 { (EMPTY_BLOCK, 0.0) } else { (3.0 * c.uniform(), 20.0) };
                partials.extend([score, sum]);
                partials.extend((0..head_dim).map(|_| c.uniform() * sum));
            }
        }
        let kernel = AttendMerge {
            args: AttendMergeArgs { dims, blocks },
            q_raw: c.bf16(2 * heads * head_dim, 2.0),
            partials: c.bytes(bytemuck::cast_slice(&partials).to_vec()),
            out: c.poison(2 * heads * head_dim),
        };
        c.check(kernel.dispatch(), &format!("{blocks} blocks, heads of {head_dim}"), device);
    }
}
