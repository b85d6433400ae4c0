//! The dimensions of a model of the family, as one plain value.
//!
//! Everything that computes reads its sizes from here. Parsing and validating `config.json` is the checkpoint's work.
//! Dimension letters used in comments everywhere: `T` tokens, `C` model width, `H` query heads, `G` KV heads, `D` head
//! size, `Dk`/`Dv` DeltaNet key/value head sizes, `E` experts, `K` experts chosen, `F` expert width, `V` vocabulary.

/// Which mixer a layer has; its MoE block is the same in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Gated DeltaNet: a fixed-size fp32 recurrent state and a short convolution window.
    Delta,
    /// Full attention over the KV cache.
    Attention,
}

/// Full-attention dimensions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads, `H`.
    pub heads: usize,
    /// Key/value heads, `G`; divides `heads`.
    pub kv_heads: usize,
    /// Head size, `D`.
    pub head_dim: usize,
    /// Leading dimensions of a head that are rotated; even and at most `head_dim`.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
}

/// Gated DeltaNet dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Key (and query) heads; divides `value_heads`.
    pub key_heads: usize,
    /// Value heads: one recurrent state each.
    pub value_heads: usize,
    /// Key head size, `Dk`.
    pub key_dim: usize,
    /// Value head size, `Dv`.
    pub value_dim: usize,
    /// Width of the causal convolution, current token included.
    pub conv_width: usize,
}

impl DeltaShape {
    /// Width of all query (or key) heads together.
    pub fn keys_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all value heads together.
    pub fn values_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values side by side.
    pub fn conv_channels(&self) -> usize {
        2 * self.keys_width() + self.values_width()
    }

    /// Elements of one layer's recurrent state `[value_heads, Dv, Dk]`, fp32.
    pub fn state_elements(&self) -> usize {
        self.value_heads * self.value_dim * self.key_dim
    }
}

/// Mixture-of-experts dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeShape {
    /// Routed experts, `E`.
    pub experts: usize,
    /// Experts chosen per token, `K`.
    pub top_k: usize,
    /// Width of a routed expert, `F`.
    pub expert_width: usize,
    /// Width of the shared expert.
    pub shared_width: usize,
}

/// A whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Model width, `C`.
    pub hidden: usize,
    /// Rows of the embedding and of the head, `V` (padding included).
    pub vocab: usize,
    /// Epsilon of every RMS norm.
    pub rms_eps: f32,
    /// One entry per layer, in order.
    pub mixers: Vec<Mixer>,
    /// Full-attention dimensions.
    pub attention: AttentionShape,
    /// Gated DeltaNet dimensions.
    pub delta: DeltaShape,
    /// Mixture-of-experts dimensions.
    pub moe: MoeShape,
    /// The head is the embedding matrix.
    pub tied_head: bool,
    /// Longest context the checkpoint was made for, in tokens.
    pub max_context_tokens: usize,
}

impl Shape {
    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.mixers.len()
    }

    /// Number of layers with the given mixer.
    pub fn count(&self, mixer: Mixer) -> usize {
        self.mixers.iter().filter(|&&m| m == mixer).count()
    }

    /// Bytes of KV cache per context token over all attention layers (bf16 keys and values).
    pub fn kv_bytes_per_token(&self) -> usize {
        self.count(Mixer::Attention) * 2 * self.attention.kv_heads * self.attention.head_dim * 2
    }

    /// Bytes of recurrent (fp32) and convolution (bf16) state of one session.
    pub fn recurrent_bytes(&self) -> usize {
        let delta = &self.delta;
        let conv = delta.conv_channels() * (delta.conv_width - 1) * 2;
        self.count(Mixer::Delta) * (delta.state_elements() * 4 + conv)
    }

    /// The published Qwen3.6-35B-A3B.
    pub fn qwen36_35b_a3b() -> Self {
        let mixers = (0..40).map(|i| if i % 4 == 3 { Mixer::Attention } else { Mixer::Delta }).collect();
        Self {
            hidden: 2048,
            vocab: 248_320,
            rms_eps: 1e-6,
            mixers,
            attention: AttentionShape { heads: 16, kv_heads: 2, head_dim: 256, rotary_dim: 64, rope_theta: 1e7 },
            delta: DeltaShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, conv_width: 4 },
            moe: MoeShape { experts: 256, top_k: 8, expert_width: 512, shared_width: 512 },
            tied_head: false,
            max_context_tokens: 262_144,
        }
    }
}
