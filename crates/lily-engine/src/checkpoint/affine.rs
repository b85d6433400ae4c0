//! MLX's affine quantisation of one row, exactly: the same codes, scales and biases as `mx.quantize`.
//!
//! Found by experiment against MLX's CPU build: everything is computed in f32 on the widened input, the codes with the
//! unrounded scale and bias; only then are scale and bias rounded to their stored type.

use super::quantization::Affine;

/// Least magnitude of a scale: keeps the division of constant groups finite.
const SCALE_MIN: f32 = 1e-7;

/// Quantises `row`, whose length the group size divides.
///
/// `codes` receives the row's little-endian bit stream (`row.len() * bits / 8` bytes); `scales` and `biases` one value per
/// group, unrounded.
///
/// # Panics
/// If a slice has another length.
pub fn quantize_row(row: &[f32], affine: Affine, codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    let (bits, group) = (affine.bits as usize, affine.group as usize);
    assert!(row.len().is_multiple_of(group), "groups of {group} do not divide a row of {}", row.len());
    assert_eq!(codes.len(), row.len() * bits / 8, "bytes of codes");
    assert_eq!((scales.len(), biases.len()), (row.len() / group, row.len() / group), "scales and biases");

    let levels = ((1u32 << bits) - 1) as f32;
    let groups = row.chunks_exact(group).zip(codes.chunks_exact_mut(group * bits / 8));
    for ((values, packed), (scale, bias)) in groups.zip(scales.iter_mut().zip(biases)) {
        (*scale, *bias) = fit(values, levels);
        pack(
            values.iter().map(|value| ((value - *bias) / *scale).round_ties_even().clamp(0.0, levels) as u8),
            bits,
            packed,
        );
    }
}

/// Scale and bias of one group. The edge of larger magnitude is hit exactly by a code, and so is zero: the scale is first
/// the range over the levels, then adjusted so that the edge is a whole number of steps from zero.
fn fit(values: &[f32], levels: f32) -> (f32, f32) {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = ((high - low) / levels).max(SCALE_MIN);
    let (step, edge) = if low.abs() > high.abs() { (step, low) } else { (-step, high) };
    let steps = (edge / step).round_ties_even();
    if steps == 0.0 { (step, 0.0) } else { (edge / steps, edge) }
}

/// Packs codes of `bits` bits into a little-endian bit stream.
fn pack(codes: impl Iterator<Item = u8>, bits: usize, packed: &mut [u8]) {
    let (mut pending, mut pending_bits) = (0u32, 0);
    let mut out = packed.iter_mut();
    for code in codes {
        pending |= u32::from(code) << pending_bits;
        pending_bits += bits;
        while pending_bits >= 8 {
            if let Some(byte) = out.next() {
                *byte = pending as u8;
            }
            pending >>= 8;
            pending_bits -= 8;
        }
    }
}
