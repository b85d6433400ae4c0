//! The model, written once: functions that append dispatches to a plan.
//!
//! [`Model`] names every buffer of a model on a device (weights, session state, scratch) and builds the plan of a
//! prefill chunk ([`prefill`]) and of a decode step ([`decode`]). It decides nothing at run time and touches no data.

mod buffers;
mod decode;
mod mechanism;
mod prefill;
mod unfused;
mod verify;

pub use buffers::{LayerBuffers, MixerBuffers, Scratch};
pub use decode::{Choice, DecodeClass};
pub use mechanism::{Mechanism, Mechanisms, UnknownMechanism};

use crate::kernel::launch::TileHeights;
use crate::kernel::{AttentionDims, DeltaDims, MatrixSlots, MoeDims, PACKED_QUERIES, Segments, WIDE_PACKED_QUERIES};
use crate::plan::{BufferTable, Plan, Slot};
use crate::shape::Shape;
use crate::weights::Weights;

/// What the plans depend on: the device, and the mechanisms that are left on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// A decode step attends to blocks of the cache at once and merges them afterwards, for devices that run many
    /// threadgroups at a time; otherwise one kernel does it.
    pub split_attention: bool,
    /// How many those are.
    pub blocks: AttentionBlocks,
    /// Keys of a segment of the cache; a prefill chunk attends to all its segments at once. `u32::MAX`: no segments.
    pub segment_keys: u32,
    /// Queries of a KV head for which a decode step reads a row of the cache once.
    pub packed_queries: u32,
    /// Tokens of a prefill chunk, unless others are asked for.
    pub chunk_tokens: usize,
    /// Matrix-matrix tiles.
    pub tiles: TileHeights,
    /// A decode step computes the bits that a prefill chunk of one row would, so that either may compute a prompt token.
    pub decode_is_prefill: bool,
    /// The next token is chosen by a kernel, so that the host need not wait for it.
    pub chooses_tokens: bool,
    /// Mechanisms of the plans for GPUs that are worth having there; those for the CPU have none to turn off.
    pub mechanisms: Mechanisms,
}

/// How many blocks of keys a decode step attends to at once: as many as fill the device and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionBlocks {
    /// Of a short context.
    pub short: u32,
    /// Tokens of the longest such.
    pub short_to: usize,
    /// Above, where blocks have no fixed size.
    pub medium: u32,
    /// Tokens from which on blocks have a fixed size.
    pub long_from: usize,
    /// Keys of such a block.
    pub long_keys: u32,
}

impl Traits {
    /// The CPU: few threads, dispatches one after another.
    pub const CPU: Traits = Traits {
        split_attention: false,
        blocks: AttentionBlocks { short: 1, short_to: 8192, medium: 1, long_from: 32_768, long_keys: 1024 },
        segment_keys: Segments::ONE.keys,
        packed_queries: 1,
        chunk_tokens: 512,
        tiles: TileHeights { least: 16, most: 64, busy: 0, exact: false },
        decode_is_prefill: true,
        chooses_tokens: false,
        mechanisms: Mechanisms::ALL,
    };
    /// A GPU. Its matrix-matrix kernels round dequantised weights, its matrix-vector kernels do not.
    pub const GPU: Traits = Traits {
        split_attention: true,
        blocks: AttentionBlocks { short: 8, short_to: 8192, medium: 32, long_from: 32_768, long_keys: 1024 },
        segment_keys: 8192,
        packed_queries: PACKED_QUERIES,
        chunk_tokens: 512,
        tiles: TileHeights { least: 16, most: 64, busy: 0, exact: false },
        decode_is_prefill: false,
        chooses_tokens: true,
        mechanisms: Mechanisms::ALL,
    };
    /// A GPU with more than a hundred multiprocessors, and matrix units that score keys and multiply as many rows as a tile has:
    /// an even split has all of them at work to the end, which blocks of a fixed size have not. These begin at 16K, so that
    /// `lily ablate` can tell.
    pub const WIDE_GPU: Traits = Traits {
        blocks: AttentionBlocks { short: 33, short_to: 4096, medium: 66, long_from: 16_384, long_keys: 512 },
        packed_queries: WIDE_PACKED_QUERIES,
        chunk_tokens: 4096,
        tiles: TileHeights { least: 32, most: 128, busy: 128, exact: true },
        mechanisms: Mechanisms::ALL.without(Mechanism::FixedBlocks),
        ..Traits::GPU
    };

    /// The same device with these mechanisms.
    pub fn with(self, mechanisms: Mechanisms) -> Self {
        let chooses_tokens = self.chooses_tokens && mechanisms.has(Mechanism::DeviceTokens);
        Self { chooses_tokens, mechanisms, ..self }
    }
}

/// A model's buffers, from which its plans are built.
#[derive(Clone, Debug)]
pub struct Model {
    /// Dimensions.
    pub shape: Shape,
    /// What the plans are made for.
    pub traits: Traits,
    /// Longest prefill chunk, in tokens.
    pub chunk_tokens: usize,
    /// Longest context, in tokens.
    pub context_tokens: usize,
    /// Most sessions of a decode step.
    pub batch: usize,
    /// Every buffer.
    pub table: BufferTable,
    /// Buffers of each layer.
    pub layers: Vec<LayerBuffers>,
    /// Embedding.
    pub embed: MatrixSlots,
    /// Gain of the last norm.
    pub final_norm: Slot,
    /// Head.
    pub head: MatrixSlots,
    /// Rotary frequencies, fp32 `[rotary_dim / 2]`.
    pub inv_freq: Slot,
    /// Activations and step inputs.
    pub scratch: Scratch,
}

impl Model {
    /// Names the buffers of `weights` for chunks of up to `chunk_tokens` and contexts of up to `context_tokens`.
    pub fn new(weights: &Weights, traits: Traits, chunk_tokens: usize, context_tokens: usize) -> Self {
        Self::for_sessions(weights, traits, chunk_tokens, context_tokens, 1)
    }

    /// The same with room for decode steps of up to `sessions` sessions, where the model and the device have such steps.
    pub fn for_sessions(
        weights: &Weights,
        traits: Traits,
        chunk_tokens: usize,
        context_tokens: usize,
        sessions: usize,
    ) -> Self {
        buffers::build(weights, traits, chunk_tokens, context_tokens, sessions)
    }

    fn has(&self, mechanism: Mechanism) -> bool {
        self.traits.mechanisms.has(mechanism)
    }

    /// A plan without dispatches.
    fn empty_plan(&self) -> Plan {
        Plan { serial: !self.has(Mechanism::Concurrency), ..Plan::default() }
    }

    fn delta_dims(&self, rows: usize) -> DeltaDims {
        let d = self.shape.delta;
        DeltaDims {
            rows: rows as u32,
            key_heads: d.key_heads as u32,
            value_heads: d.value_heads as u32,
            key_dim: d.key_dim as u32,
            value_dim: d.value_dim as u32,
            conv_width: d.conv_width as u32,
            eps: self.shape.rms_eps,
        }
    }

    fn attention_dims(&self, rows: usize) -> AttentionDims {
        let a = self.shape.attention;
        AttentionDims {
            rows: rows as u32,
            heads: a.heads as u32,
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
            rotary_dim: a.rotary_dim as u32,
            eps: self.shape.rms_eps,
        }
    }

    fn segments(&self) -> Segments {
        Segments::new(self.traits.segment_keys, self.context_tokens)
    }

    fn moe_dims(&self, rows: usize) -> MoeDims {
        let m = self.shape.moe;
        MoeDims {
            rows: rows as u32,
            width: self.shape.hidden as u32,
            experts: m.experts as u32,
            top_k: m.top_k as u32,
            expert_width: m.expert_width as u32,
            shared_width: m.shared_width as u32,
            eps: self.shape.rms_eps,
        }
    }
}
