//! Gated DeltaNet: preparation, recurrent scan, gated norm, and the decode step that fuses the three.
//!
//! Head `j` of the values reads key head `j / (value_heads / key_heads)`. The recurrent state is fp32 `[Hv, Dv, Dk]`
//! and never leaves that precision; convolution taps are fp32 `[W, channels]`, oldest first. The convolution window is bf16 `[2, W-1, channels]`, oldest row first: a step reads
//! the half named by [`Step::window`] and writes the other, so no thread overwrites what another still reads.

use super::linear::{sigmoid, silu};
use super::*;
use half::bf16;

/// Epsilon of the q/k normalisation, on the sum of squares.
pub const QK_NORM_EPS: f32 = 1e-6;

dims! {
    /// DeltaNet dimensions as kernel arguments.
    DeltaDims {
        /// Tokens.
        rows: u32,
        /// Key heads.
        key_heads: u32,
        /// Value heads.
        value_heads: u32,
        /// Key head size.
        key_dim: u32,
        /// Value head size.
        value_dim: u32,
        /// Convolution width.
        conv_width: u32,
        /// Epsilon of the output norm.
        eps: f32,
    }
}

impl DeltaDims {
    /// Width of all queries (or keys) of a token.
    pub fn keys_width(&self) -> usize {
        (self.key_heads * self.key_dim) as usize
    }

    /// Width of all values of a token.
    pub fn values_width(&self) -> usize {
        (self.value_heads * self.value_dim) as usize
    }

    /// Channels of the convolution.
    pub fn channels(&self) -> usize {
        2 * self.keys_width() + self.values_width()
    }

    /// Value heads that share a key head.
    pub fn values_per_key(&self) -> usize {
        (self.value_heads / self.key_heads) as usize
    }

    fn window_bytes(&self) -> f64 {
        2.0 * ((self.conv_width - 1) as usize * self.channels()) as f64
    }

    fn state_bytes(&self) -> f64 {
        4.0 * (self.value_heads * self.value_dim * self.key_dim) as f64
    }

    fn scan_flops(&self) -> f64 {
        7.0 * self.rows as f64 * self.state_bytes() / 4.0
    }
}

kernel! {
    /// Convolution with SiLU, q/k normalisation and gates for a chunk of tokens.
    DeltaPrep, "delta_prep", args DeltaPrepArgs, views DeltaPrepViews {
        args {
            /// Dimensions.
            dims: DeltaDims,
        }
        buffers {
            step: read u32,
            qkv: read bf16,
            a: read bf16,
            b: read bf16,
            taps: read f32,
            a_log: read f32,
            dt_bias: read f32,
            window: update bf16,
            q: write bf16,
            k: write bf16,
            v: write bf16,
            decay: write f32,
            beta: write f32,
        }
        launch: |a| launch::items(a.dims.rows.div_ceil(launch::PREP_ROWS), 2 * a.dims.key_heads + a.dims.value_heads),
        cost: |a, _| {
            let (d, rows) = (a.dims, a.dims.rows as f64);
            Cost {
                weight_bytes: 4.0 * (d.conv_width as usize * d.channels() + 2 * d.value_heads as usize) as f64,
                state_bytes: 2.0 * d.window_bytes(),
                activation_bytes: rows * (4.0 * d.channels() as f64 + 12.0 * d.value_heads as f64),
                flops: rows * 2.0 * (d.conv_width as usize * d.channels()) as f64,
            }
        },
        tolerance: 8e-3,
        reference: prep_reference,
    }
}

/// The value of `channel` at `row` of the chunk, rows before it coming from the window.
fn conv_input(v: &DeltaPrepViews<'_>, row: isize, channel: usize) -> f32 {
    let channels = v.args.dims.channels();
    if row >= 0 {
        return v.qkv[row as usize * channels + channel].to_f32();
    }
    let past = v.args.dims.conv_width as usize - 1;
    let half = v.step[1] as usize * past;
    v.window[(half + (past as isize + row) as usize) * channels + channel].to_f32()
}

fn prep_reference(v: DeltaPrepViews<'_>) {
    let d = v.args.dims;
    let (channels, width, past) = (d.channels(), d.conv_width as usize, d.conv_width as isize - 1);
    let (keys, values) = (d.keys_width(), d.values_width());
    for t in 0..d.rows as usize {
        let conv: Vec<f32> = (0..channels)
            .map(|c| {
                let tap = |j: usize| v.taps[j * channels + c] * conv_input(&v, t as isize - past + j as isize, c);
                silu((0..width).map(tap).sum())
            })
            .collect();
        let scale = (d.key_dim as f32).powf(-0.5);
        normalize_heads(&conv[..keys], d.key_dim as usize, scale, &mut v.q[t * keys..][..keys]);
        normalize_heads(&conv[keys..2 * keys], d.key_dim as usize, 1.0, &mut v.k[t * keys..][..keys]);
        for (out, x) in v.v[t * values..][..values].iter_mut().zip(&conv[2 * keys..]) {
            *out = bf16::from_f32(*x);
        }
        for head in 0..d.value_heads as usize {
            let at = t * d.value_heads as usize + head;
            v.decay[at] = decay_of(v.a[at].to_f32(), v.a_log[head], v.dt_bias[head]);
            v.beta[at] = sigmoid(v.b[at].to_f32());
        }
    }
    let other = (1 - v.step[1] as usize) * past as usize;
    for row in 0..past {
        for c in 0..channels {
            let x = bf16::from_f32(conv_input(&v, d.rows as isize - past + row, c));
            v.window[(other + row as usize) * channels + c] = x;
        }
    }
}

/// `exp(-exp(A_log) * softplus(a + dt_bias))`, fp32.
pub(crate) fn decay_of(a: f32, a_log: f32, dt_bias: f32) -> f32 {
    let x = a + dt_bias;
    let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
    (-a_log.exp() * softplus).exp()
}

/// Scales every head of `x` to length `scale`, rounded to bf16.
fn normalize_heads(x: &[f32], head_dim: usize, scale: f32, out: &mut [bf16]) {
    for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
        let square: f64 = x.iter().map(|&v| (v as f64).powi(2)).sum();
        let factor = scale * ((square + QK_NORM_EPS as f64).powf(-0.5) as f32);
        x.iter().zip(out).for_each(|(x, out)| *out = bf16::from_f32(x * factor));
    }
}

kernel! {
    /// The delta rule, token by token: `S = decay S; S += beta (v - S k) k^T; y = S q`.
    DeltaScan, "delta_scan", args DeltaScanArgs, views DeltaScanViews {
        args {
            /// Dimensions.
            dims: DeltaDims,
            /// Tokens after which the state goes through memory; 0 keeps it in registers for the whole chunk.
            block_rows: u32,
        }
        buffers {
            q: read bf16,
            k: read bf16,
            v: read bf16,
            decay: read f32,
            beta: read f32,
            state: update f32,
            y: write bf16,
        }
        launch: |a| {
            launch::items(a.dims.value_dim, a.dims.value_heads)
                .constant(Constant::KeyDim, a.dims.key_dim)
                .constant(Constant::BlockRows, a.block_rows)
        },
        cost: |a, _| {
            let (d, rows) = (a.dims, a.dims.rows as f64);
            let trips = if a.block_rows == 0 { 1 } else { a.dims.rows.div_ceil(a.block_rows) };
            Cost {
                state_bytes: 2.0 * trips as f64 * d.state_bytes(),
                activation_bytes: rows * (2.0 * (d.channels() + d.values_width()) as f64 + 8.0 * d.value_heads as f64),
                flops: d.scan_flops(),
                ..Cost::default()
            }
        },
        tolerance: 8e-3,
        reference: scan_reference,
    }
}

fn scan_reference(v: DeltaScanViews<'_>) {
    let d = v.args.dims;
    let (heads, dk, dv) = (d.value_heads as usize, d.key_dim as usize, d.value_dim as usize);
    for (row, y) in v.y.iter_mut().enumerate() {
        let (t, head, column) = (row / (heads * dv), row / dv % heads, row % dv);
        let key = (t * d.key_heads as usize + head / d.values_per_key()) * dk;
        let state = &mut v.state[(head * dv + column) * dk..][..dk];
        let (decay, beta) = (v.decay[t * heads + head], v.beta[t * heads + head]);
        let (q, k) = (&v.q[key..][..dk], &v.k[key..][..dk]);
        state.iter_mut().for_each(|s| *s *= decay);
        let known: f32 = state.iter().zip(k).map(|(s, k)| s * k.to_f32()).sum();
        let update = (v.v[row].to_f32() - known) * beta;
        state.iter_mut().zip(k).for_each(|(s, k)| *s += update * k.to_f32());
        *y = bf16::from_f32(state.iter().zip(q).map(|(s, q)| s * q.to_f32()).sum());
    }
}

kernel! {
    /// Norm of every head, gated: `out = y / rms(y) * gain * silu(z)`.
    GatedNorm, "gated_norm", args GatedNormArgs, views GatedNormViews {
        args {
            /// Dimensions.
            dims: DeltaDims,
        }
        buffers {
            y: read bf16,
            z: read bf16,
            gain: read f32,
            out: write bf16,
        }
        launch: |a| launch::items(a.dims.rows * a.dims.value_heads, 1),
        cost: |a, _| Cost {
            weight_bytes: 4.0 * a.dims.value_dim as f64,
            activation_bytes: 6.0 * a.dims.rows as f64 * a.dims.values_width() as f64,
            flops: 10.0 * a.dims.rows as f64 * a.dims.values_width() as f64,
            ..Cost::default()
        },
        tolerance: 8e-3,
        reference: |v| {
            let dv = v.args.dims.value_dim as usize;
            let heads = v.y.chunks_exact(dv).zip(v.z.chunks_exact(dv));
            for ((y, z), out) in heads.zip(v.out.chunks_exact_mut(dv)) {
                let square: f64 = y.iter().map(|v| v.to_f64().powi(2)).sum();
                let scale = (1.0 / (square / dv as f64 + v.args.dims.eps as f64).sqrt()) as f32;
                for i in 0..dv {
                    out[i] = bf16::from_f32(y[i].to_f32() * scale * v.gain[i] * silu(z[i].to_f32()));
                }
            }
        },
    }
}

kernel! {
    /// Decode: preparation, one step of the delta rule and the gated norm of one token.
    DeltaStep, "delta_step", args DeltaStepArgs, views DeltaStepViews {
        args {
            /// Dimensions; one row.
            dims: DeltaDims,
        }
        buffers {
            step: read u32,
            qkv: read bf16,
            z: read bf16,
            a: read bf16,
            b: read bf16,
            taps: read f32,
            a_log: read f32,
            dt_bias: read f32,
            gain: read f32,
            window: update bf16,
            state: update f32,
            out: write bf16,
        }
        launch: |a| {
            Launch::new([a.dims.value_heads, 1, 1], launch::DELTA_STEP_THREADS)
                .constant(Constant::KeyDim, a.dims.key_dim)
        },
        cost: |a, _| {
            let d = a.dims;
            Cost {
                weight_bytes: 4.0 * (d.conv_width as usize * d.channels() + (2 * d.value_heads + d.value_dim) as usize) as f64,
                state_bytes: 2.0 * (d.window_bytes() + d.state_bytes()),
                activation_bytes: 2.0 * (d.channels() + 2 * d.values_width() + 2 * d.value_heads as usize) as f64,
                flops: d.scan_flops(),
            }
        },
        tolerance: 8e-3,
        reference: step_reference,
    }
}

/// The three kernels it stands for, one after another.
fn step_reference(v: DeltaStepViews<'_>) {
    let dims = v.args.dims;
    let mut y = vec![bf16::ZERO; dims.values_width()];
    update_reference(DeltaUpdateViews {
        args: DeltaUpdateArgs { dims },
        step: v.step,
        qkv: v.qkv,
        a: v.a,
        b: v.b,
        taps: v.taps,
        a_log: v.a_log,
        dt_bias: v.dt_bias,
        window: v.window,
        state: v.state,
        results: &mut y,
    });
    let norm = HostSlices::new([
        HostSlice::Read(bytemuck::cast_slice(&y)),
        HostSlice::Read(bytemuck::cast_slice(v.z)),
        HostSlice::Read(bytemuck::cast_slice(v.gain)),
        HostSlice::Write(bytemuck::cast_slice_mut(v.out)),
    ]);
    (GatedNorm::contract().reference)(bytemuck::bytes_of(&GatedNormArgs { dims }), norm);
}

/// Preparation and scan, one after another.
pub(super) fn update_reference(v: DeltaUpdateViews<'_>) {
    let dims = v.args.dims;
    let (mut q, mut k) = (vec![bf16::ZERO; dims.keys_width()], vec![bf16::ZERO; dims.keys_width()]);
    let mut values = vec![bf16::ZERO; dims.values_width()];
    let (mut decay, mut beta) = (vec![0.0; v.a.len()], vec![0.0; v.a.len()]);
    prep_reference(DeltaPrepViews {
        args: DeltaPrepArgs { dims },
        step: v.step,
        qkv: v.qkv,
        a: v.a,
        b: v.b,
        taps: v.taps,
        a_log: v.a_log,
        dt_bias: v.dt_bias,
        window: v.window,
        q: &mut q,
        k: &mut k,
        v: &mut values,
        decay: &mut decay,
        beta: &mut beta,
    });
    scan_reference(DeltaScanViews {
        args: DeltaScanArgs { dims, block_rows: 0 },
        q: &q,
        k: &k,
        v: &values,
        decay: &decay,
        beta: &beta,
        state: v.state,
        y: v.results,
    });
}
