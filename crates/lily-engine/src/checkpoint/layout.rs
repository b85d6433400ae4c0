//! The tensors of an MLX build of a given shape: their names, dimensions and roles, in file order.
//!
//! What `quantize` and `synth` write, and hence what [`bind`](super::bind) must find.

use crate::shape::{Mixer, Shape};

/// Role of a tensor that is not quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vector {
    /// Norm gain that the Hugging Face build stores less one.
    Gain,
    /// Gain of the DeltaNet output norm, direct in both builds.
    OutputGain,
    /// Convolution taps.
    Conv,
    /// Logarithm of the decay rate.
    ALog,
    /// Bias of the time step.
    DtBias,
}

/// What a slot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// `[rows, cols]`, or `experts` of them.
    Matrix { experts: Option<usize>, rows: usize, cols: usize },
    /// A small tensor, in the dimensions of the MLX build.
    Vector { role: Vector, dims: Vec<usize> },
}

/// One module, or one bare parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Common name: of a matrix without, of a vector with its ending (`layers.0.mlp.gate`, `norm.weight`).
    pub(super) name: String,
    pub(super) part: Part,
}

impl Slot {
    /// Router and scalar gate decide which experts run and how much; they are kept at more bits.
    pub(super) fn is_routing(&self) -> bool {
        self.name.ends_with(".mlp.gate") || self.name.ends_with(".mlp.shared_expert_gate")
    }
}

/// A common name as the MLX build spells it.
pub(super) fn mlx_name(common: &str) -> String {
    let inside = if common.starts_with("lm_head") { "" } else { "model." };
    format!("language_model.{inside}{common}")
}

/// All slots of a model.
pub(super) fn slots(shape: &Shape) -> Vec<Slot> {
    let hidden = shape.hidden;
    let mut slots = Slots(Vec::new());
    slots.matrix("", "embed_tokens", shape.vocab, hidden);
    for (index, mixer) in shape.mixers.iter().enumerate() {
        let at = format!("layers.{index}.");
        slots.vector(&at, "input_layernorm.weight", Vector::Gain, vec![hidden]);
        match mixer {
            Mixer::Delta => slots.delta(&format!("{at}linear_attn."), shape),
            Mixer::Attention => slots.attention(&format!("{at}self_attn."), shape),
        }
        slots.vector(&at, "post_attention_layernorm.weight", Vector::Gain, vec![hidden]);
        slots.moe(&format!("{at}mlp."), shape);
    }
    slots.vector("", "norm.weight", Vector::Gain, vec![hidden]);
    if !shape.tied_head {
        slots.matrix("", "lm_head", shape.vocab, hidden);
    }
    slots.0
}

struct Slots(Vec<Slot>);

impl Slots {
    fn stack(&mut self, at: &str, module: &str, experts: Option<usize>, rows: usize, cols: usize) {
        self.0.push(Slot { name: format!("{at}{module}"), part: Part::Matrix { experts, rows, cols } });
    }

    fn matrix(&mut self, at: &str, module: &str, rows: usize, cols: usize) {
        self.stack(at, module, None, rows, cols);
    }

    fn vector(&mut self, at: &str, name: &str, role: Vector, dims: Vec<usize>) {
        self.0.push(Slot { name: format!("{at}{name}"), part: Part::Vector { role, dims } });
    }

    fn delta(&mut self, at: &str, shape: &Shape) {
        let (hidden, delta) = (shape.hidden, &shape.delta);
        self.matrix(at, "in_proj_qkv", delta.conv_channels(), hidden);
        self.matrix(at, "in_proj_z", delta.values_width(), hidden);
        self.matrix(at, "in_proj_a", delta.value_heads, hidden);
        self.matrix(at, "in_proj_b", delta.value_heads, hidden);
        self.vector(at, "conv1d.weight", Vector::Conv, vec![delta.conv_channels(), delta.conv_width, 1]);
        self.vector(at, "A_log", Vector::ALog, vec![delta.value_heads]);
        self.vector(at, "dt_bias", Vector::DtBias, vec![delta.value_heads]);
        self.vector(at, "norm.weight", Vector::OutputGain, vec![delta.value_dim]);
        self.matrix(at, "out_proj", hidden, delta.values_width());
    }

    fn attention(&mut self, at: &str, shape: &Shape) {
        let (hidden, attention) = (shape.hidden, &shape.attention);
        let (queries, keys) = (attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim);
        self.matrix(at, "q_proj", 2 * queries, hidden);
        self.matrix(at, "k_proj", keys, hidden);
        self.matrix(at, "v_proj", keys, hidden);
        self.matrix(at, "o_proj", hidden, queries);
        self.vector(at, "q_norm.weight", Vector::Gain, vec![attention.head_dim]);
        self.vector(at, "k_norm.weight", Vector::Gain, vec![attention.head_dim]);
    }

    fn moe(&mut self, at: &str, shape: &Shape) {
        let (hidden, moe) = (shape.hidden, &shape.moe);
        let experts = Some(moe.experts);
        self.matrix(at, "gate", moe.experts, hidden);
        self.stack(at, "switch_mlp.gate_proj", experts, moe.expert_width, hidden);
        self.stack(at, "switch_mlp.up_proj", experts, moe.expert_width, hidden);
        self.stack(at, "switch_mlp.down_proj", experts, hidden, moe.expert_width);
        self.matrix(at, "shared_expert.gate_proj", moe.shared_width, hidden);
        self.matrix(at, "shared_expert.up_proj", moe.shared_width, hidden);
        self.matrix(at, "shared_expert.down_proj", hidden, moe.shared_width);
        self.matrix(at, "shared_expert_gate", 1, hidden);
    }
}
