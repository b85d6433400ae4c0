//! Norms and products with stored matrices.
//!
//! Rounding: activations are bf16 at kernel boundaries, everything inside is fp32; a fused kernel rounds where the
//! kernels it stands for would, so that both forms agree bit for bit on a backend that shares their inner functions.

use super::quant::HostMatrix;
use super::*;
use half::bf16;

/// `x / rms(x) * gain`, rounded to bf16 once; the mean of squares is summed in f64.
pub(super) fn norm_row(x: &[bf16], gain: &[f32], eps: f32) -> Vec<bf16> {
    let square: f64 = x.iter().map(|v| v.to_f64().powi(2)).sum();
    let scale = (1.0 / (square / x.len() as f64 + eps as f64).sqrt()) as f32;
    x.iter().zip(gain).map(|(v, g)| bf16::from_f32(v.to_f32() * scale * g)).collect()
}

/// Row `n` of the matrix times `x`, summed in f64.
pub(super) fn product_row(matrix: &HostMatrix<'_>, n: usize, x: &[bf16]) -> f32 {
    let mut sum = 0.0;
    matrix.dequantize_row(n, |i, w| sum += w as f64 * x[i].to_f64());
    sum as f32
}

/// `x * sigmoid(x)` in fp32.
pub(super) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `1 / (1 + exp(-x))` in fp32.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

kernel! {
    /// RMS norm of every row: `y[t] = x[t] / rms(x[t]) * gain`.
    RmsNorm, "rms_norm", args RmsNormArgs, views RmsNormViews {
        args {
            /// Rows.
            rows: u32,
            /// Row length.
            width: u32,
            /// Epsilon.
            eps: f32,
        }
        buffers {
            x: read bf16,
            gain: read f32,
            y: write bf16,
        }
        launch: |a| Launch::new([a.rows, 1, 1], launch::ROW_THREADS),
        cost: |a, _| Cost {
            weight_bytes: 4.0 * a.width as f64,
            activation_bytes: 4.0 * a.rows as f64 * a.width as f64,
            flops: 4.0 * a.rows as f64 * a.width as f64,
            ..Cost::default()
        },
        tolerance: 8e-3,
        reference: |v| {
            let width = v.args.width as usize;
            for (x, y) in v.x.chunks_exact(width).zip(v.y.chunks_exact_mut(width)) {
                y.copy_from_slice(&norm_row(x, v.gain, v.args.eps));
            }
        },
    }
}

kernel! {
    /// Product of every row with a matrix: `y[t] = W * x[t]`.
    MatMul, "matmul", args MatMulArgs, views MatMulViews {
        args {
            /// Rows of `x`.
            rows: u32,
            /// Inputs.
            cols: u32,
            /// Outputs.
            outputs: u32,
            /// Storage of the matrix.
            format: PackedFormat,
            /// Rows of a tile.
            tile_rows: u32,
        }
        buffers {
            x: read bf16,
            codes: read u8,
            scales: read u8,
            biases: read u8,
            y: write bf16,
        }
        launch: |a| launch::tiled(a.outputs, 1, a.rows.div_ceil(a.tile_rows), a.tile_rows).formats(&[a.format]),
        cost: matmul_cost,
        tolerance: 8e-3,
        reference: |v| {
            let matrix = HostMatrix {
                format: v.args.format.format(), cols: v.args.cols as usize,
                codes: v.codes, scales: v.scales, biases: v.biases,
            };
            let rows = v.x.chunks_exact(v.args.cols as usize);
            for (x, y) in rows.zip(v.y.chunks_exact_mut(v.args.outputs as usize)) {
                y.iter_mut().enumerate().for_each(|(n, y)| *y = bf16::from_f32(product_row(&matrix, n, x)));
            }
        },
    }
}

kernel! {
    /// Product added to the residual stream: `h[t] += W * x[t]`, rounded once.
    MatMulAdd, "matmul_add", args MatMulAddArgs, views MatMulAddViews {
        args {
            /// Rows of `x`.
            rows: u32,
            /// Inputs.
            cols: u32,
            /// Outputs.
            outputs: u32,
            /// Storage of the matrix.
            format: PackedFormat,
            /// Rows of a tile.
            tile_rows: u32,
        }
        buffers {
            x: read bf16,
            codes: read u8,
            scales: read u8,
            biases: read u8,
            h: update bf16,
        }
        launch: |a| launch::tiled(a.outputs, 1, a.rows.div_ceil(a.tile_rows), a.tile_rows).formats(&[a.format]),
        cost: |a, step| {
            let mut cost = matmul_cost(bytemuck::cast(a), step);
            cost.activation_bytes += 2.0 * a.rows as f64 * a.outputs as f64;
            cost
        },
        tolerance: 8e-3,
        reference: matmul_add_reference,
    }
}

fn matmul_add_reference(v: MatMulAddViews<'_>) {
    let matrix = HostMatrix {
        format: v.args.format.format(),
        cols: v.args.cols as usize,
        codes: v.codes,
        scales: v.scales,
        biases: v.biases,
    };
    let rows = v.x.chunks_exact(v.args.cols as usize);
    for (x, h) in rows.zip(v.h.chunks_exact_mut(v.args.outputs as usize)) {
        for (n, h) in h.iter_mut().enumerate() {
            *h = bf16::from_f32(h.to_f32() + product_row(&matrix, n, x));
        }
    }
}

kernel! {
    /// Decode: product of one row added to the residual stream: `h += W * x`, rounded once.
    MatVecAdd, "matvec_add", args MatVecAddArgs, views MatVecAddViews {
        args {
            /// Rows of `x`, at most [`launch::BATCH_MAX`].
            rows: u32,
            /// Inputs.
            cols: u32,
            /// Outputs.
            outputs: u32,
            /// Storage of the matrix.
            format: PackedFormat,
        }
        buffers {
            x: read bf16,
            codes: read u8,
            scales: read u8,
            biases: read u8,
            h: update bf16,
        }
        launch: |a| launch::narrow_vector(a.outputs).formats(&[a.format]).constant(Constant::Batch, a.rows),
        cost: |a, step| (MatMulAdd::contract().cost)(bytemuck::bytes_of(&a.into_matmul()), step),
        tolerance: 8e-3,
        reference: |v| matmul_add_reference(v.into_matmul()),
    }
}

impl MatVecAddArgs {
    /// Those of the matrix-matrix kernel.
    fn into_matmul(self) -> MatMulAddArgs {
        let MatVecAddArgs { rows, cols, outputs, format } = self;
        MatMulAddArgs { rows, cols, outputs, format, tile_rows: 16 }
    }
}

impl<'a> MatVecAddViews<'a> {
    /// The same product as a matrix-matrix kernel takes it.
    pub(crate) fn into_matmul(self) -> MatMulAddViews<'a> {
        let args = self.args.into_matmul();
        MatMulAddViews { args, x: self.x, codes: self.codes, scales: self.scales, biases: self.biases, h: self.h }
    }
}

fn matmul_cost(a: MatMulArgs, _: Step) -> Cost {
    Cost {
        weight_bytes: matrix_bytes(a.format, a.outputs, a.cols),
        activation_bytes: 2.0 * a.rows as f64 * (a.cols + a.outputs) as f64,
        flops: product_flops(a.rows, a.outputs, a.cols),
        ..Cost::default()
    }
}

kernel! {
    /// Gated activation of two products of every row: `y[t] = silu(Wg * x[t]) * (Wu * x[t])`.
    GateUp, "gate_up", args GateUpArgs, views GateUpViews {
        args {
            /// Rows of `x`.
            rows: u32,
            /// Inputs.
            cols: u32,
            /// Outputs.
            outputs: u32,
            /// Storage of the gate matrix.
            gate_format: PackedFormat,
            /// Storage of the up matrix.
            up_format: PackedFormat,
            /// Rows of a tile.
            tile_rows: u32,
        }
        buffers {
            x: read bf16,
            gate_codes: read u8,
            gate_scales: read u8,
            gate_biases: read u8,
            up_codes: read u8,
            up_scales: read u8,
            up_biases: read u8,
            y: write bf16,
        }
        launch: |a| {
            let tiles = a.rows.div_ceil(a.tile_rows);
            launch::tiled(a.outputs, 2, tiles, a.tile_rows).formats(&[a.gate_format, a.up_format])
        },
        cost: |a, _| Cost {
            weight_bytes: matrix_bytes(a.gate_format, a.outputs, a.cols) + matrix_bytes(a.up_format, a.outputs, a.cols),
            activation_bytes: 2.0 * a.rows as f64 * (a.cols + a.outputs) as f64,
            flops: product_flops(a.rows, 2 * a.outputs, a.cols),
            ..Cost::default()
        },
        tolerance: 8e-3,
        reference: |v| {
            let cols = v.args.cols as usize;
            let gate = HostMatrix {
                format: v.args.gate_format.format(), cols,
                codes: v.gate_codes, scales: v.gate_scales, biases: v.gate_biases,
            };
            let up = HostMatrix {
                format: v.args.up_format.format(), cols,
                codes: v.up_codes, scales: v.up_scales, biases: v.up_biases,
            };
            for (x, y) in v.x.chunks_exact(cols).zip(v.y.chunks_exact_mut(v.args.outputs as usize)) {
                for (n, y) in y.iter_mut().enumerate() {
                    *y = bf16::from_f32(silu(product_row(&gate, n, x)) * product_row(&up, n, x));
                }
            }
        },
    }
}

kernel! {
    /// Decode: up to four products of one normed row, `y_i = W_i * norm(h)`. An unused matrix has 0 outputs.
    Project, "project", args ProjectArgs, views ProjectViews {
        args {
            /// Rows of `h`, at most [`launch::BATCH_MAX`].
            rows: u32,
            /// Model width.
            width: u32,
            /// Outputs of each matrix.
            outputs: [u32; 4],
            /// Storage of each matrix.
            formats: [PackedFormat; 4],
            /// Epsilon of the norm.
            eps: f32,
        }
        buffers {
            h: read bf16,
            gain: read f32,
            codes0: read u8, scales0: read u8, biases0: read u8,
            codes1: read u8, scales1: read u8, biases1: read u8,
            codes2: read u8, scales2: read u8, biases2: read u8,
            codes3: read u8, scales3: read u8, biases3: read u8,
            y0: write bf16,
            y1: write bf16,
            y2: write bf16,
            y3: write bf16,
        }
        launch: |a| {
            let threadgroups = a.outputs.map(launch::vector_threadgroups).iter().sum();
            Launch::new([threadgroups, 1, 1], launch::VECTOR_SIMDGROUPS * launch::SIMD_WIDTH).formats(&a.formats)
                .constant(Constant::Batch, a.rows)
        },
        cost: |a, _| {
            let outputs: u32 = a.outputs.iter().sum();
            Cost {
                weight_bytes: 4.0 * a.width as f64
                    + (0..4).map(|i| matrix_bytes(a.formats[i], a.outputs[i], a.width)).sum::<f64>(),
                activation_bytes: 2.0 * a.rows as f64 * (a.width + outputs) as f64,
                flops: product_flops(a.rows, outputs, a.width),
                ..Cost::default()
            }
        },
        tolerance: 8e-3,
        reference: |v| {
            let width = v.args.width as usize;
            let rows: Vec<_> = v.h.chunks_exact(width).map(|h| norm_row(h, v.gain, v.args.eps)).collect();
            let sources = [
                (v.codes0, v.scales0, v.biases0), (v.codes1, v.scales1, v.biases1),
                (v.codes2, v.scales2, v.biases2), (v.codes3, v.scales3, v.biases3),
            ];
            for (i, y) in [v.y0, v.y1, v.y2, v.y3].into_iter().enumerate() {
                let (codes, scales, biases) = sources[i];
                let format = v.args.formats[i].format();
                let matrix = HostMatrix { format, cols: width, codes, scales, biases };
                let outputs = v.args.outputs[i].max(1) as usize;
                for (x, y) in rows.iter().zip(y.chunks_exact_mut(outputs)) {
                    y.iter_mut().enumerate().for_each(|(n, y)| *y = bf16::from_f32(product_row(&matrix, n, x)));
                }
            }
        },
    }
}
