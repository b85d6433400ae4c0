//! Gated DeltaNet.

use super::*;

pub fn delta_dims(rows: u32) -> DeltaDims {
    DeltaDims { rows, key_heads: 2, value_heads: 4, key_dim: 64, value_dim: 96, conv_width: 4, eps: 1e-6 }
}

/// Other sizes of heads and of the convolution.
fn other_dims(rows: u32, i: usize) -> DeltaDims {
    let (key_dim, value_dim, conv_width) = [(128, 128, 4), (256, 64, 2), (32, 48, 5)][i];
    DeltaDims { rows, key_heads: 1, value_heads: 3, key_dim, value_dim, conv_width, eps: 1e-6 }
}

fn prep(device: &dyn Runs, dims: DeltaDims, window: u32, scale: f32) {
    let mut c = Case::new(10);
    let (rows, heads, channels) = (dims.rows, dims.value_heads, dims.channels() as u32);
    let (keys, values) = (dims.keys_width() as u32, dims.values_width() as u32);
    let kernel = DeltaPrep {
        args: DeltaPrepArgs { dims },
        step: c.u32(&[5, window]),
        qkv: c.bf16(rows * channels, scale),
        a: c.bf16(rows * heads, 8.0),
        b: c.bf16(rows * heads, 4.0),
        taps: c.f32(dims.conv_width * channels, -0.6, 0.6),
        a_log: c.f32(heads, -1.0, 2.5),
        dt_bias: c.f32(heads, -6.0, 1.0),
        window: c.bf16(2 * (dims.conv_width - 1) * channels, scale),
        q: c.poison(2 * rows * keys),
        k: c.poison(2 * rows * keys),
        v: c.poison(2 * rows * values),
        decay: c.poison(4 * rows * heads),
        beta: c.poison(4 * rows * heads),
    };
    c.check(kernel.dispatch(), &format!("window {window}, {dims:?}"), device);
}

pub fn delta_prep(device: &dyn Runs) {
    for (rows, window) in ROWS.into_iter().chain([129]).zip([0, 1].into_iter().cycle()) {
        prep(device, delta_dims(rows), window, 2.0);
    }
    for i in 0..3 {
        [1, 7].into_iter().for_each(|rows| prep(device, other_dims(rows, i), 1, 2.0));
    }
    // So small that the epsilon of queries and keys is part of their length.
    prep(device, delta_dims(3), 0, 3e-3);
}

fn scan(device: &dyn Runs, dims: DeltaDims, block_rows: u32) {
    let mut c = Case::new(11);
    let (rows, heads) = (dims.rows, dims.value_heads);
    let (keys, values) = (dims.keys_width() as u32, dims.values_width() as u32);
    let kernel = DeltaScan {
        args: DeltaScanArgs { dims, block_rows },
        q: c.bf16(rows * keys, 0.1),
        k: c.bf16(rows * keys, 0.15),
        v: c.bf16(rows * values, 1.0),
        decay: c.f32(rows * heads, 0.5, 1.0),
        beta: c.f32(rows * heads, 0.0, 1.0),
        state: c.f32(values * dims.key_dim, -1.0, 1.0),
        y: c.poison(2 * rows * values),
    };
    c.check(kernel.dispatch(), &format!("{dims:?}, blocks of {block_rows}"), device);
}

fn norm(device: &dyn Runs, dims: DeltaDims) {
    let mut c = Case::new(12);
    let (rows, values) = (dims.rows, dims.values_width() as u32);
    let kernel = GatedNorm {
        args: GatedNormArgs { dims },
        y: c.bf16(rows * values, 0.3),
        z: c.bf16(rows * values, 4.0),
        gain: c.f32(dims.value_dim, 0.5, 1.5),
        out: c.poison(2 * rows * values),
    };
    c.check(kernel.dispatch(), &format!("{dims:?}"), device);
}

pub fn delta_scan_and_gated_norm(device: &dyn Runs) {
    ROWS.into_iter().for_each(|rows| scan(device, delta_dims(rows), 0));
    MANY_ROWS.into_iter().for_each(|rows| norm(device, delta_dims(rows)));
    for i in 0..3 {
        [1, 7].into_iter().for_each(|rows| scan(device, other_dims(rows, i), 0));
        norm(device, other_dims(5, i));
    }
    // More rows than a GPU stages at a time.
    for (key_dim, value_dim, rows) in [(128, 128, 16), (128, 128, 33), (256, 64, 8), (256, 64, 17)] {
        scan(device, DeltaDims { key_dim, value_dim, ..delta_dims(rows) }, 0);
    }
    scan(device, DeltaDims { key_dim: 128, ..delta_dims(33) }, 4);
    // Columns that do not fill the last threadgroup.
    [0, 1].into_iter().for_each(|block| scan(device, DeltaDims { value_dim: 50, ..delta_dims(3) }, block));
    // The state through memory: after every row, after some, at the end, and never.
    [(1, 1), (5, 1), (9, 4), (8, 4), (3, 32)]
        .into_iter()
        .for_each(|(rows, block)| scan(device, delta_dims(rows), block));
}

/// The decode step and its part before the norm, with the same buffers; a [`Case`] for each shape.
pub fn steps() -> Vec<(Case, DeltaStep, DeltaUpdate, String)> {
    // Key heads of their own and shared ones; heads that fill a GPU's SIMD-groups and heads that do not.
    let shapes = [
        (2, 4, 64, 96, 4),
        (1, 4, 128, 128, 4),
        (3, 3, 192, 32, 2),
        (2, 2, 96, 160, 4),
        (1, 2, 128, 256, 3),
        // More channels of a head than a GPU's threadgroup has threads.
        (1, 2, 256, 48, 4),
    ];
    // The last case is so small that the epsilon of query and key is part of their length.
    let scales = [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3e-3];
    let cases = shapes.into_iter().cycle().zip([0, 1].into_iter().cycle()).zip(scales);
    let case = |((shape, half), scale)| {
        let (key_heads, value_heads, key_dim, value_dim, conv_width) = shape;
        let dims = DeltaDims { rows: 1, key_heads, value_heads, key_dim, value_dim, conv_width, eps: 1e-6 };
        let (channels, values) = (dims.channels() as u32, value_heads * value_dim);
        let mut c = Case::new(13);
        let step = c.u32(&[5, half]);
        let qkv = c.bf16(channels, scale);
        let (z, a, b) = (c.bf16(values, 4.0), c.bf16(value_heads, 8.0), c.bf16(value_heads, 4.0));
        let taps = c.f32(conv_width * channels, -0.6, 0.6);
        let (a_log, dt_bias) = (c.f32(value_heads, -1.0, 2.5), c.f32(value_heads, -6.0, 1.0));
        let gain = c.f32(value_dim, 0.5, 1.5);
        let window = c.bf16(2 * (conv_width - 1) * channels, scale);
        let state = c.f32(values * key_dim, -1.0, 1.0);
        let out = c.poison(2 * values);
        let args = DeltaUpdateArgs { dims };
        let update = DeltaUpdate { args, step, qkv, a, b, taps, a_log, dt_bias, window, state, results: out };
        let args = DeltaStepArgs { dims };
        let step = DeltaStep { args, step, qkv, z, a, b, taps, a_log, dt_bias, gain, window, state, out };
        (c, step, update, format!("window {half}, scale {scale}, {shape:?}"))
    };
    cases.map(case).collect()
}

pub fn delta_step(device: &dyn Runs) {
    steps().into_iter().for_each(|(c, step, _, label)| c.check(step.dispatch(), &label, device));
}
