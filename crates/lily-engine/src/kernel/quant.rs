//! Reading stored matrices on the host, one row at a time: the plain truth that fast code is compared with.

use crate::weights::{Float, Format};
use half::{bf16, f16};

/// A stored matrix in host memory: `rows` x `cols`, rows one after another. Bytes may be unaligned.
#[derive(Clone, Copy, Debug)]
pub struct HostMatrix<'a> {
    /// Storage format.
    pub format: Format,
    /// Inputs.
    pub cols: usize,
    /// Codes or plain elements.
    pub codes: &'a [u8],
    /// Scales.
    pub scales: &'a [u8],
    /// Biases.
    pub biases: &'a [u8],
}

impl<'a> HostMatrix<'a> {
    /// The matrix that starts at `row` of this one.
    pub fn from_row(self, row: usize) -> Self {
        let scale_bytes = row * self.format.scale_row_bytes(self.cols);
        Self {
            codes: &self.codes[row * self.format.row_bytes(self.cols)..],
            scales: &self.scales[scale_bytes..],
            biases: &self.biases[scale_bytes..],
            ..self
        }
    }

    /// Writes row `row` as fp32: `scale * code + bias`, both operations in fp32.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols);
        let codes = &self.codes[row * self.format.row_bytes(self.cols)..];
        match self.format {
            Format::Dense(float) => {
                out.iter_mut().enumerate().for_each(|(i, o)| *o = load(float, codes, i));
            }
            Format::Affine { bits, group, scale } => {
                let first = row * self.cols / group as usize;
                for (i, o) in out.iter_mut().enumerate() {
                    let g = first + i / group as usize;
                    *o = load(scale, self.scales, g) * code(codes, bits, i) as f32 + load(scale, self.biases, g);
                }
            }
        }
    }
}

/// Element `index` of an unaligned float array.
pub fn load(float: Float, bytes: &[u8], index: usize) -> f32 {
    let at = index * float.bytes();
    match float {
        Float::Bf16 => bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        Float::F16 => f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        Float::F32 => f32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")),
    }
}

/// Code `index` of a row: a little-endian bit stream, first code in the lowest bits.
pub fn code(row: &[u8], bits: u8, index: usize) -> u32 {
    let first = index * bits as usize;
    let low = row[first / 8] as u32;
    let high = row.get(first / 8 + 1).copied().unwrap_or(0) as u32;
    ((low | high << 8) >> (first % 8)) & ((1 << bits) - 1)
}
