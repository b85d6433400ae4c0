//! Gated DeltaNet.

use super::*;

fn delta_dims(rows: u32) -> DeltaDims {
    DeltaDims { rows, key_heads: 2, value_heads: 4, key_dim: 64, value_dim: 96, conv_width: 4, eps: 1e-6 }
}

pub fn delta_prep(device: &dyn Runs) {
    for (rows, window) in ROWS.into_iter().zip([0, 1].into_iter().cycle()) {
        let (mut c, dims) = (Case::new(10), delta_dims(rows));
        let channels = dims.channels() as u32;
        let kernel = DeltaPrep {
            args: DeltaPrepArgs { dims },
            step: c.u32(&[5, window]),
            qkv: c.bf16(rows * channels, 2.0),
            a: c.bf16(rows * 4, 8.0),
            b: c.bf16(rows * 4, 4.0),
            taps: c.f32(4 * channels, -0.6, 0.6),
            a_log: c.f32(4, -1.0, 2.5),
            dt_bias: c.f32(4, -6.0, 1.0),
            window: c.bf16(2 * 3 * channels, 2.0),
            q: c.poison(2 * rows * 128),
            k: c.poison(2 * rows * 128),
            v: c.poison(2 * rows * 384),
            decay: c.poison(4 * rows * 4),
            beta: c.poison(4 * rows * 4),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows, window {window}"), device);
    }
}

pub fn delta_scan_and_gated_norm(device: &dyn Runs) {
    for rows in ROWS {
        let (mut c, dims) = (Case::new(11), delta_dims(rows));
        let kernel = DeltaScan {
            args: DeltaScanArgs { dims },
            q: c.bf16(rows * 128, 0.1),
            k: c.bf16(rows * 128, 0.15),
            v: c.bf16(rows * 384, 1.0),
            decay: c.f32(rows * 4, 0.5, 1.0),
            beta: c.f32(rows * 4, 0.0, 1.0),
            state: c.f32(4 * 96 * 64, -1.0, 1.0),
            y: c.poison(2 * rows * 384),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows"), device);
        let mut c = Case::new(12);
        let kernel = GatedNorm {
            args: GatedNormArgs { dims },
            y: c.bf16(rows * 384, 0.3),
            z: c.bf16(rows * 384, 4.0),
            gain: c.f32(96, 0.5, 1.5),
            out: c.poison(2 * rows * 384),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows"), device);
    }
}

pub fn delta_step(device: &dyn Runs) {
    // Key heads of their own and shared ones; heads that fill a GPU's SIMD-groups and heads that do not.
    let shapes = [(2, 4, 64, 96, 4), (1, 4, 128, 128, 4), (3, 3, 192, 32, 2), (2, 2, 96, 160, 4), (1, 2, 128, 256, 3)];
    for (window, shape) in [0, 1].into_iter().cycle().zip(shapes) {
        let (key_heads, value_heads, key_dim, value_dim, conv_width) = shape;
        let dims = DeltaDims { rows: 1, key_heads, value_heads, key_dim, value_dim, conv_width, eps: 1e-6 };
        let (channels, values) = (dims.channels() as u32, value_heads * value_dim);
        let mut c = Case::new(13);
        let kernel = DeltaStep {
            args: DeltaStepArgs { dims },
            step: c.u32(&[5, window]),
            qkv: c.bf16(channels, 2.0),
            z: c.bf16(values, 4.0),
            a: c.bf16(value_heads, 8.0),
            b: c.bf16(value_heads, 4.0),
            taps: c.f32(conv_width * channels, -0.6, 0.6),
            a_log: c.f32(value_heads, -1.0, 2.5),
            dt_bias: c.f32(value_heads, -6.0, 1.0),
            gain: c.f32(value_dim, 0.5, 1.5),
            window: c.bf16(2 * (conv_width - 1) * channels, 2.0),
            state: c.f32(values * key_dim, -1.0, 1.0),
            out: c.poison(2 * values),
        };
        c.check(kernel.dispatch(), &format!("window {window}, {shape:?}"), device);
    }
}
