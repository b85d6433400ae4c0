//! The readable truth that every product is compared with.

use half::{bf16, f16};

use super::MatrixView;
use crate::weights::{Float, Format};

/// `out[i * rows + w] = sum over k of x[i, k] * weight[w, k]`, in `f64` from the exact stored values. `x` is
/// `[x_rows, cols]` and `out` `[x_rows, rows]`, row-major.
pub fn reference_product(view: &MatrixView<'_>, x: &[bf16], out: &mut [f64]) {
    for (x, out) in x.chunks_exact(view.cols).zip(out.chunks_exact_mut(view.rows)) {
        for (row, out) in out.iter_mut().enumerate() {
            *out = x.iter().enumerate().map(|(col, x)| x.to_f64() * weight(view, row, col)).sum();
        }
    }
}

/// The weight at (`row`, `col`), exactly as stored.
pub fn weight(view: &MatrixView<'_>, row: usize, col: usize) -> f64 {
    match view.format {
        Format::Dense(float) => element(float, view.codes, row * view.cols + col),
        Format::Affine { bits, group, scale } => {
            let code = code(view.codes, usize::from(bits), row * view.cols + col);
            let index = row * (view.cols / usize::from(group)) + col / usize::from(group);
            element(scale, view.scales, index) * f64::from(code) + element(scale, view.biases, index)
        }
    }
}

/// Code number `index` of a little-endian bit stream; rows end on whole bytes, so all rows are one stream.
fn code(bytes: &[u8], bits: usize, index: usize) -> u32 {
    (0..bits)
        .map(|bit| index * bits + bit)
        .enumerate()
        .fold(0, |code, (place, position)| code | u32::from(bytes[position / 8] >> (position % 8) & 1) << place)
}

/// Element number `index`.
pub(super) fn element(float: Float, bytes: &[u8], index: usize) -> f64 {
    let bytes = &bytes[index * float.bytes()..][..float.bytes()];
    match float {
        Float::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        Float::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        Float::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
    }
}
