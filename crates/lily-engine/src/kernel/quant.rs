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

    /// Hands out row `row` element by element: `scale * code + bias`, both operations in fp32.
    pub fn dequantize_row(&self, row: usize, mut element: impl FnMut(usize, f32)) {
        let codes = &self.codes[row * self.format.row_bytes(self.cols)..];
        match self.format {
            Format::Dense(float) => (0..self.cols).for_each(|i| element(i, load(float, codes, i))),
            Format::Affine { bits, group, scale } => {
                let group = group as usize;
                for g in 0..self.cols / group {
                    let at = row * self.cols / group + g;
                    let (factor, bias) = (load(scale, self.scales, at), load(scale, self.biases, at));
                    for i in g * group..(g + 1) * group {
                        element(i, factor * code(codes, bits, i) as f32 + bias);
                    }
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
