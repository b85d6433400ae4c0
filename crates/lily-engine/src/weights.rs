//! The bound tensors of a model: which bytes of which file hold each matrix, and the small vectors in memory.
//!
//! Matrices stay where they are (mapped file pages); nothing here copies them. Reading files, checking names and
//! shapes, and producing a [`Weights`] is the checkpoint's work; computing with it is a backend's.

use crate::shape::Shape;

/// Element type of unquantised data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Float {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

impl Float {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Float::Bf16 | Float::F16 => 2,
            Float::F32 => 4,
        }
    }
}

/// How the elements of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// MLX affine quantisation: element = scale * code + bias, one scale and bias per `group` inputs; the codes of a row
    /// are one little-endian bit stream, first element in the lowest bits.
    Affine {
        /// Bits of a code: 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Inputs that share a scale and a bias: 32, 64 or 128.
        group: u8,
        /// Element type of scales and biases.
        scale: Float,
    },
    /// Plain elements, row-major.
    Dense(Float),
}

impl Format {
    /// Bytes that `cols` elements of one row occupy, scales and biases not counted.
    pub fn row_bytes(self, cols: usize) -> usize {
        match self {
            Format::Affine { bits, .. } => cols * bits as usize / 8,
            Format::Dense(float) => cols * float.bytes(),
        }
    }

    /// Bytes of the scales (or of the biases) of one row; 0 for plain elements.
    pub fn scale_row_bytes(self, cols: usize) -> usize {
        match self {
            Format::Affine { group, scale, .. } => cols / group as usize * scale.bytes(),
            Format::Dense(_) => 0,
        }
    }

    /// Bytes of one row with everything that belongs to it.
    pub fn total_row_bytes(self, cols: usize) -> usize {
        self.row_bytes(cols) + 2 * self.scale_row_bytes(cols)
    }
}

/// A range of bytes in one of the checkpoint's mapped files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileRange {
    /// Index into the checkpoint's list of files.
    pub file: usize,
    /// First byte, counted from the start of the file.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

impl FileRange {
    /// The range that stands for "no data": scales and biases of a plain matrix.
    pub const EMPTY: FileRange = FileRange { file: 0, offset: 0, bytes: 0 };
}

/// One matrix `[rows, cols]` (outputs x inputs), or a stack of `experts` of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matrix {
    /// How elements are stored.
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Matrices in the stack; 1 for an ordinary one.
    pub experts: usize,
    /// Rows from the start of one expert to the start of the next; larger than `rows` where gate and up are fused.
    pub expert_stride_rows: usize,
    /// Row of the stored tensor where expert 0 starts; 0 except for the second half of a fused tensor.
    pub first_row: usize,
    /// Codes, or plain elements: the whole stored tensor.
    pub codes: FileRange,
    /// Scales of the whole stored tensor; empty for plain elements.
    pub scales: FileRange,
    /// Biases of the whole stored tensor; empty for plain elements.
    pub biases: FileRange,
}

impl Matrix {
    /// Bytes of one of the stacked matrices, scales and biases included.
    pub fn expert_bytes(&self) -> usize {
        self.rows * self.format.total_row_bytes(self.cols)
    }
}

/// Weights of one layer's mixer.
#[derive(Clone, Debug)]
pub enum MixerWeights {
    /// Gated DeltaNet.
    Delta(DeltaWeights),
    /// Full attention.
    Attention(AttentionWeights),
}

/// Gated DeltaNet weights. Vectors are fp32 copies.
#[derive(Clone, Debug)]
pub struct DeltaWeights {
    /// Queries, keys, values: `[conv_channels, C]`.
    pub qkv: Matrix,
    /// Output gate: `[values_width, C]`.
    pub z: Matrix,
    /// Decay input: `[value_heads, C]`.
    pub a: Matrix,
    /// Update strength input: `[value_heads, C]`.
    pub b: Matrix,
    /// Convolution taps `[conv_channels, conv_width]`, oldest first.
    pub conv: Vec<f32>,
    /// `A_log`, per value head.
    pub a_log: Vec<f32>,
    /// `dt_bias`, per value head.
    pub dt_bias: Vec<f32>,
    /// Gain of the gated output norm, `[Dv]`, applied as it is.
    pub norm: Vec<f32>,
    /// Output projection: `[C, values_width]`.
    pub out: Matrix,
}

/// Full-attention weights. Vectors are fp32 copies, norm gains direct (a stored gain-1 has had its 1 added).
#[derive(Clone, Debug)]
pub struct AttentionWeights {
    /// Queries and output gates: `[H * 2 * D, C]`, per head `D` query rows then `D` gate rows.
    pub q: Matrix,
    /// Keys: `[G * D, C]`.
    pub k: Matrix,
    /// Values: `[G * D, C]`.
    pub v: Matrix,
    /// Output projection: `[C, H * D]`.
    pub o: Matrix,
    /// Query norm gain, `[D]`.
    pub q_norm: Vec<f32>,
    /// Key norm gain, `[D]`.
    pub k_norm: Vec<f32>,
}

/// Weights of one layer's MoE block.
#[derive(Clone, Debug)]
pub struct MoeWeights {
    /// Router: `[E, C]`.
    pub router: Matrix,
    /// Routed gate projections: `E` x `[F, C]`.
    pub gate: Matrix,
    /// Routed up projections: `E` x `[F, C]`.
    pub up: Matrix,
    /// Routed down projections: `E` x `[C, F]`.
    pub down: Matrix,
    /// Shared expert's gate projection: `[shared, C]`.
    pub shared_gate: Matrix,
    /// Shared expert's up projection: `[shared, C]`.
    pub shared_up: Matrix,
    /// Shared expert's down projection: `[C, shared]`.
    pub shared_down: Matrix,
    /// Scalar gate of the shared expert: `[1, C]`.
    pub shared_scale: Matrix,
}

/// One layer.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// Gain of the norm before the mixer, `[C]`, direct.
    pub input_norm: Vec<f32>,
    /// The mixer.
    pub mixer: MixerWeights,
    /// Gain of the norm before the MoE block, `[C]`, direct.
    pub post_norm: Vec<f32>,
    /// The MoE block.
    pub moe: MoeWeights,
}

/// A whole model, bound and validated.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Its dimensions.
    pub shape: Shape,
    /// Token embedding `[V, C]`.
    pub embed: Matrix,
    /// One entry per layer.
    pub layers: Vec<LayerWeights>,
    /// Gain of the last norm, `[C]`, direct.
    pub final_norm: Vec<f32>,
    /// Head `[V, C]`; the same matrix as `embed` where the head is tied.
    pub head: Matrix,
}
