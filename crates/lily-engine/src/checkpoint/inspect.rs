//! What a checkpoint is and what running it takes, as data for programs and as text for people.
//!
//! Only describes; memory plans are made elsewhere and shown here.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::layout::{self, Part};
use super::{Build, Checkpoint, GenerationConfig};
use crate::memory::MemoryPlan;
use crate::shape::{Mixer, Shape};
use crate::weights::{Float, Format, Matrix, MixerWeights, Weights};

/// Everything worth knowing about a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where it is.
    pub path: String,
    /// Who laid it out.
    pub build: Build,
    /// Its dimensions.
    pub model: ModelFacts,
    /// Mean of all norm gains before mixers, near 1 in a sound checkpoint; near 0 or 2 where a conversion went wrong.
    pub mean_norm_gain: f32,
    /// Matrices by storage format, most bytes first.
    pub formats: Vec<FormatRow>,
    /// Bytes of the tensors that the model uses.
    pub weight_bytes: usize,
    /// Memory for copies of experts that are stored one by one; 0 in published checkpoints.
    pub copied_bytes: usize,
    /// Tensors left alone (image encoder, multi-token predictor), and their bytes.
    pub ignored: Ignored,
    /// Sampling defaults and end-of-text ids.
    pub generation: GenerationConfig,
    /// What running it takes, by context.
    pub memory: Vec<MemoryRow>,
    /// Every tensor in the files.
    pub tensors: Vec<TensorRow>,
}

/// A model's dimensions by plain names.
#[derive(Clone, Debug, Serialize)]
pub struct ModelFacts {
    /// All parameters.
    pub parameters: usize,
    /// Parameters that one token touches, the embedding's one row not counted.
    pub active_parameters: usize,
    /// Gated DeltaNet layers.
    pub delta_layers: usize,
    /// Full-attention layers.
    pub attention_layers: usize,
    /// Model width.
    pub hidden: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Whether the head is the embedding.
    pub tied_head: bool,
    /// Longest context it was made for.
    pub max_context_tokens: usize,
    /// Query heads.
    pub query_heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Attention head size.
    pub head_dim: usize,
    /// Rotated dimensions of a head.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// DeltaNet key heads.
    pub delta_key_heads: usize,
    /// DeltaNet value heads.
    pub delta_value_heads: usize,
    /// DeltaNet key head size.
    pub delta_key_dim: usize,
    /// DeltaNet value head size.
    pub delta_value_dim: usize,
    /// Width of the convolution.
    pub conv_width: usize,
    /// Routed experts.
    pub experts: usize,
    /// Experts chosen per token.
    pub experts_per_token: usize,
    /// Width of a routed expert.
    pub expert_width: usize,
    /// Width of the shared expert.
    pub shared_width: usize,
}

/// All matrices of one storage format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FormatRow {
    /// In words: `4-bit, groups of 64, bf16 scales`.
    pub format: String,
    /// Number of matrices, a stack of experts counted once.
    pub matrices: usize,
    /// Their elements.
    pub parameters: usize,
    /// Their bytes, scales and biases included.
    pub bytes: usize,
}

/// Tensors left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ignored {
    /// How many.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// One tensor as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorRow {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: String,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// File that holds it.
    pub file: String,
    /// Its bytes.
    pub bytes: usize,
    /// Left alone by rule.
    pub ignored: bool,
}

/// A memory plan with its sum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryRow {
    /// The parts.
    #[serde(flatten)]
    pub plan: MemoryPlan,
    /// The whole.
    pub total_bytes: usize,
}

impl Report {
    /// Describes `checkpoint`; `memory` holds a plan for each context of interest.
    pub fn new(checkpoint: &Checkpoint, memory: Vec<MemoryPlan>) -> Self {
        let shape = &checkpoint.weights.shape;
        let weight_bytes = checkpoint.weight_bytes();
        let mut ignored = Ignored::default();
        for tensor in checkpoint.tensors().iter().filter(|t| t.ignored) {
            ignored.tensors += 1;
            ignored.bytes += tensor.range.bytes;
        }
        let row = |t: &super::TensorInfo| TensorRow {
            name: t.name.clone(),
            dtype: t.dtype.to_string(),
            shape: t.dims.clone(),
            file: checkpoint.file_names()[t.range.file].clone(),
            bytes: t.range.bytes,
            ignored: t.ignored,
        };
        let memory_row = |plan: MemoryPlan| MemoryRow { total_bytes: plan.total_bytes(), plan };
        Self {
            path: checkpoint.path().display().to_string(),
            build: checkpoint.build,
            model: ModelFacts::of(shape),
            mean_norm_gain: mean_norm_gain(&checkpoint.weights),
            formats: formats(&checkpoint.weights),
            weight_bytes,
            copied_bytes: checkpoint.copied_bytes,
            ignored,
            generation: checkpoint.generation.clone(),
            memory: memory.into_iter().map(memory_row).collect(),
            tensors: checkpoint.tensors().iter().map(row).collect(),
        }
    }
}

impl ModelFacts {
    /// Counts and names the dimensions of `shape`.
    pub fn of(shape: &Shape) -> Self {
        let (mut parameters, mut active_parameters) = (0, 0);
        for slot in layout::slots(shape) {
            let (all, active) = match slot.part {
                Part::Vector { dims, .. } => {
                    let elements = dims.iter().product();
                    (elements, elements)
                }
                Part::Matrix { experts: None, rows, cols } => (rows * cols, rows * cols),
                Part::Matrix { experts: Some(experts), rows, cols } => {
                    (experts * rows * cols, shape.moe.top_k * rows * cols)
                }
            };
            parameters += all;
            active_parameters += if slot.name == "embed_tokens" && !shape.tied_head { 0 } else { active };
        }
        Self {
            parameters,
            active_parameters,
            delta_layers: shape.count(Mixer::Delta),
            attention_layers: shape.count(Mixer::Attention),
            hidden: shape.hidden,
            vocab: shape.vocab,
            tied_head: shape.tied_head,
            max_context_tokens: shape.max_context_tokens,
            query_heads: shape.attention.heads,
            kv_heads: shape.attention.kv_heads,
            head_dim: shape.attention.head_dim,
            rotary_dim: shape.attention.rotary_dim,
            rope_theta: shape.attention.rope_theta,
            delta_key_heads: shape.delta.key_heads,
            delta_value_heads: shape.delta.value_heads,
            delta_key_dim: shape.delta.key_dim,
            delta_value_dim: shape.delta.value_dim,
            conv_width: shape.delta.conv_width,
            experts: shape.moe.experts,
            experts_per_token: shape.moe.top_k,
            expert_width: shape.moe.expert_width,
            shared_width: shape.moe.shared_width,
        }
    }
}

fn mean_norm_gain(weights: &Weights) -> f32 {
    let gains = || weights.layers.iter().flat_map(|layer| &layer.input_norm);
    gains().sum::<f32>() / gains().count().max(1) as f32
}

/// Every matrix of the model once.
fn matrices(weights: &Weights) -> Vec<&Matrix> {
    let mut all = vec![&weights.embed];
    if !weights.shape.tied_head {
        all.push(&weights.head);
    }
    for layer in &weights.layers {
        match &layer.mixer {
            MixerWeights::Delta(delta) => all.extend([&delta.qkv, &delta.z, &delta.a, &delta.b, &delta.out]),
            MixerWeights::Attention(attention) => {
                all.extend([&attention.q, &attention.k, &attention.v, &attention.o]);
            }
        }
        let moe = &layer.moe;
        all.extend([&moe.router, &moe.gate, &moe.up, &moe.down]);
        all.extend([&moe.shared_gate, &moe.shared_up, &moe.shared_down, &moe.shared_scale]);
    }
    all
}

fn formats(weights: &Weights) -> Vec<FormatRow> {
    let mut by_format: BTreeMap<Format, FormatRow> = BTreeMap::new();
    for matrix in matrices(weights) {
        let empty = FormatRow { format: format_words(matrix.format), matrices: 0, parameters: 0, bytes: 0 };
        let row = by_format.entry(matrix.format).or_insert(empty);
        row.matrices += 1;
        row.parameters += matrix.experts * matrix.rows * matrix.cols;
        row.bytes += matrix.experts * matrix.expert_bytes();
    }
    let mut rows: Vec<FormatRow> = by_format.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

fn format_words(format: Format) -> String {
    let float = |float| match float {
        Float::Bf16 => "bf16",
        Float::F16 => "f16",
        Float::F32 => "f32",
    };
    match format {
        Format::Affine { bits, group, scale } => format!("{bits}-bit, groups of {group}, {} scales", float(scale)),
        Format::Dense(element) => float(element).to_owned(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let m = &self.model;
        let gains = format!("norm gains average {:.3}", self.mean_norm_gain);
        writeln!(f, "checkpoint    {}", self.path)?;
        writeln!(f, "build         {}; {gains}", self.build.name())?;
        let (all, active) = (billions(m.parameters), billions(m.active_parameters));
        writeln!(f, "parameters    {all}, {active} active per token; {}", human_bytes(self.weight_bytes))?;
        let layers = m.delta_layers + m.attention_layers;
        writeln!(f, "layers        {layers}: {} Gated DeltaNet, {} attention", m.delta_layers, m.attention_layers)?;
        let head = if m.tied_head { "tied" } else { "separate" };
        writeln!(f, "width         {}, vocabulary {}, {head} head", m.hidden, m.vocab)?;
        let rotary = format!("{} rotated, base {}", m.rotary_dim, m.rope_theta);
        writeln!(f, "attention     {} query and {} KV heads of {}; {rotary}", m.query_heads, m.kv_heads, m.head_dim)?;
        let values = format!("{} value heads of {}", m.delta_value_heads, m.delta_value_dim);
        let keys = format!("{} key heads of {}", m.delta_key_heads, m.delta_key_dim);
        writeln!(f, "DeltaNet      {keys}, {values}; convolution of {}", m.conv_width)?;
        let shared = format!("shared expert {} wide", m.shared_width);
        writeln!(
            f,
            "experts       {}, {} per token, {} wide; {shared}",
            m.experts, m.experts_per_token, m.expert_width
        )?;
        writeln!(f, "context       up to {} tokens", m.max_context_tokens)?;
        if self.ignored.tensors > 0 {
            let bytes = human_bytes(self.ignored.bytes);
            writeln!(f, "left alone    {} tensors (image encoder, token predictor), {bytes}", self.ignored.tensors)?;
        }
        if self.copied_bytes > 0 {
            let bytes = human_bytes(self.copied_bytes);
            writeln!(f, "copied        {bytes}: experts are stored one by one; `lily quantize` stacks them")?;
        }
        self.write_tables(f)
    }
}

impl Report {
    fn write_tables(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "\n{:<38}{:>10}{:>14}{:>12}", "storage", "matrices", "parameters", "bytes")?;
        for row in &self.formats {
            let (parameters, bytes) = (billions(row.parameters), human_bytes(row.bytes));
            writeln!(f, "{:<38}{:>10}{parameters:>14}{bytes:>12}", row.format, row.matrices)?;
        }
        writeln!(
            f,
            "\n{:>10}{:>12}{:>12}{:>12}{:>12}{:>12}",
            "context", "weights", "KV cache", "recurrent", "CPU scratch", "total"
        )?;
        for MemoryRow { plan, total_bytes } in &self.memory {
            write!(f, "{:>10}", plan.context_tokens)?;
            for bytes in [plan.weight_bytes, plan.kv_bytes, plan.recurrent_bytes, plan.scratch_bytes, *total_bytes] {
                write!(f, "{:>12}", human_bytes(bytes))?;
            }
            writeln!(f)?;
        }
        let name_width = self.tensors.iter().map(|t| t.name.len()).max().unwrap_or(0).max("tensor".len());
        writeln!(f, "\n{:<name_width$}  {:<5} {:<20} {:>14}  file", "tensor", "type", "shape", "bytes")?;
        for t in &self.tensors {
            let (shape, mark) = (format!("{:?}", t.shape), if t.ignored { " (left alone)" } else { "" });
            writeln!(f, "{:<name_width$}  {:<5} {shape:<20} {:>14}  {}{mark}", t.name, t.dtype, t.bytes, t.file)?;
        }
        Ok(())
    }
}

/// A count for people.
fn billions(count: usize) -> String {
    match count {
        0..1_000_000 => count.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} M", count as f64 / 1e6),
        _ => format!("{:.2} B", count as f64 / 1e9),
    }
}

/// A byte count for people, in powers of 1024 (`18.2 GiB`).
pub fn human_bytes(bytes: usize) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}
