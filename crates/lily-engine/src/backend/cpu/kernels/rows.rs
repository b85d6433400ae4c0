//! Kernels that work row by row with no product: embedding and norms.

use super::{Context, for_rows, sum_squares_bf16, vector_kernel};
use crate::backend::cpu::pool::SharedMut;
use crate::kernel::quant::HostMatrix;
use crate::kernel::{EmbedViews, RmsNormViews};
use half::bf16;

pub fn embed(context: Context<'_>, v: EmbedViews<'_>) {
    let width = v.args.width as usize;
    let format = v.args.format.format();
    let matrix = HostMatrix { format, cols: width, codes: v.codes, scales: v.scales, biases: v.biases };
    let y = SharedMut::new(v.y);
    for_rows(context.pool, v.tokens.len(), &|row| {
        // SAFETY: every task has rows of its own.
        let y = unsafe { y.range_mut(row * width..(row + 1) * width) };
        matrix.dequantize_row(v.tokens[row] as usize, |column, x| y[column] = bf16::from_f32(x));
    });
}

vector_kernel! {
    /// RMS norm of one row.
    NormRow<'a> { x: &'a [bf16], gain: &'a [f32], eps: f32, y: &'a mut [bf16] } -> (), |simd| {
        let mean = sum_squares_bf16(simd, x) / x.len() as f32;
        let scale = simd.splat(1.0 / (mean + eps).sqrt());
        let lanes = x.chunks_exact(S::LANES).zip(gain.chunks_exact(S::LANES)).zip(y.chunks_exact_mut(S::LANES));
        for ((x, gain), y) in lanes {
            simd.store_bf16(y, simd.mul(simd.mul(simd.load_bf16(x), scale), simd.load(gain)));
        }
    }
}

/// RMS norm of one row, rounded once.
pub fn norm_row(context: &Context<'_>, x: &[bf16], gain: &[f32], eps: f32, y: &mut [bf16]) {
    context.isa.dispatch(NormRow { x, gain, eps, y });
}

pub fn rms_norm(context: Context<'_>, v: RmsNormViews<'_>) {
    let width = v.args.width as usize;
    let y = SharedMut::new(v.y);
    for_rows(context.pool, v.args.rows as usize, &|row| {
        // SAFETY: every task has rows of its own.
        let y = unsafe { y.range_mut(row * width..(row + 1) * width) };
        norm_row(&context, &v.x[row * width..][..width], v.gain, v.args.eps, y);
    });
}
