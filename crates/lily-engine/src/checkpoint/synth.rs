//! Random checkpoints of any shape, in MLX's affine form: for benchmarks and tests, not for talking to.
//!
//! Codes are uniform and weights have zero mean, so activations keep a sane size through any number of layers; decay
//! rates are spread as a trained model's are. Every byte is a pure function of the seed, the tensor's name and the
//! position, whatever the number of threads.

use std::f64::consts::TAU;
use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::error::CheckpointError;
use super::layout::{self, Part, Vector};
use super::quantization::Affine;
use super::quantize::{QuantizeOptions, affine_tensors, narrow, quantization_block};
use super::writer::{OutTensor, Progress, SHARD_BYTES_MAX, Writer, pretty, run_jobs};
use super::{CONFIG, config};
use crate::shape::{Mixer, Shape};
use crate::weights::Float;

/// Bytes of codes that one job makes; whole words.
const JOB_BYTES: usize = 4 << 20;
/// Groups whose scales and biases one job makes.
const JOB_GROUPS: usize = 1 << 18;
/// Standard deviation of weights.
const SIGMA: f64 = 0.02;
/// Names of the shapes that [`preset`] knows.
pub const PRESETS: [&str; 4] = ["qwen3.6-35b-a3b", "mid8", "small", "tiny"];

/// A shape by name: the published model, its layers but only 8 of them, and two scaled down.
pub fn preset(name: &str) -> Option<Shape> {
    let full = Shape::qwen36_35b_a3b();
    let small = || {
        let mut shape = with_layers(&full, 8);
        (shape.hidden, shape.vocab) = (512, 32_000);
        (shape.attention.heads, shape.attention.kv_heads) = (4, 1);
        (shape.delta.key_heads, shape.delta.value_heads) = (4, 8);
        (shape.moe.experts, shape.moe.top_k) = (32, 4);
        (shape.moe.expert_width, shape.moe.shared_width) = (256, 256);
        shape
    };
    match name {
        "qwen3.6-35b-a3b" => Some(full),
        "mid8" => Some(with_layers(&full, 8)),
        "small" => Some(small()),
        "tiny" => {
            let mut shape = with_layers(&small(), 4);
            (shape.vocab, shape.moe.experts) = (4096, 16);
            Some(shape)
        }
        _ => None,
    }
}

/// The same model with another number of layers; the pattern of mixers goes on.
pub fn with_layers(shape: &Shape, layers: usize) -> Shape {
    let mut longer = shape.clone();
    longer.mixers = shape.mixers.iter().copied().cycle().take(layers).collect();
    longer
}

/// What to write besides the shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynthOptions {
    /// Same seed, same bytes.
    pub seed: u64,
    /// Formats of the matrices.
    pub format: QuantizeOptions,
}

/// Writes a random checkpoint of `shape` to the new directory `output`; returns the bytes of its tensors.
///
/// # Errors
/// If the shape is not one that config.json may describe, if a group size does not divide a matrix, or if the output
/// exists or cannot be written. The output is there whole or not at all.
pub fn synth(
    shape: &Shape,
    output: &Path,
    options: &SynthOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<usize, CheckpointError> {
    // What config.json cannot describe is no shape of the family; asked first, as all else multiplies its sizes.
    let unquantised = pretty(&config_json(shape, &Value::Null));
    config::parse(&output.join(CONFIG).display().to_string(), &unquantised)?;
    let slots = layout::slots(shape);
    options.format.check(&slots)?;

    let (mut tensors, mut jobs) = (Vec::new(), Vec::new());
    for slot in &slots {
        let out = tensors.len();
        match &slot.part {
            Part::Matrix { .. } => {
                let affine = options.format.of(slot);
                tensors.extend(affine_tensors(slot, affine, Dtype::BF16));
                let bytes = tensors[out].bytes();
                let key = key(options.seed, &tensors[out].name);
                jobs.extend((0..bytes).step_by(JOB_BYTES).map(|offset| Job {
                    out,
                    key,
                    kind: JobKind::Codes { offset, bytes: JOB_BYTES.min(bytes - offset) },
                }));
                let groups = tensors[out + 1].bytes() / Float::Bf16.bytes();
                let key = self::key(options.seed, &slot.name);
                jobs.extend((0..groups).step_by(JOB_GROUPS).map(|start| {
                    let groups = start..(start + JOB_GROUPS).min(groups);
                    Job { out, key, kind: JobKind::Scales { affine, groups } }
                }));
            }
            Part::Vector { role, dims } => {
                // Decay rates span orders of magnitude and are small tensors: they stay in single precision.
                let (dtype, float) =
                    if *role == Vector::ALog { (Dtype::F32, Float::F32) } else { (Dtype::BF16, Float::Bf16) };
                let name = layout::mlx_name(&slot.name);
                let elements = dims.iter().product();
                let kind = JobKind::Vector { role: *role, float, elements };
                jobs.push(Job { out, key: key(options.seed, &name), kind });
                tensors.push(OutTensor { name, dtype, dims: dims.clone() });
            }
        }
    }
    let writer = Writer::create(output, &tensors, SHARD_BYTES_MAX)?;
    run_jobs(&jobs, writer.total_bytes(), progress, |job, buffer| job.run(&writer, buffer))?;
    let config = config_json(shape, &quantization_block(&slots, &options.format));
    writer.side_file(CONFIG, &pretty(&config))?;
    let bytes = writer.total_bytes();
    writer.finish()?;
    Ok(bytes)
}

/// A piece of a tensor to make.
struct Job {
    /// Output tensor; for scales, the codes that they belong to.
    out: usize,
    /// Start of the tensor's random stream.
    key: u64,
    kind: JobKind,
}

enum JobKind {
    Codes { offset: usize, bytes: usize },
    Scales { affine: Affine, groups: Range<usize> },
    Vector { role: Vector, float: Float, elements: usize },
}

impl Job {
    /// Makes the piece and writes it; returns the bytes written.
    fn run(&self, writer: &Writer, buffer: &mut Vec<u8>) -> Result<usize, CheckpointError> {
        match &self.kind {
            &JobKind::Codes { offset, bytes } => {
                buffer.resize(bytes, 0);
                let first = (offset / 8) as u64;
                let (words, rest) = buffer.as_chunks_mut::<8>();
                for (index, word) in (first..).zip(words) {
                    *word = random(self.key, index).to_le_bytes();
                }
                let last = random(self.key, first + (bytes / 8) as u64).to_le_bytes();
                rest.copy_from_slice(&last[..rest.len()]);
                writer.write(self.out, offset, buffer)?;
                Ok(bytes)
            }
            JobKind::Scales { affine, groups } => {
                let levels = f64::from((1u32 << affine.bits) - 1);
                // Deviation of a uniform code; scales are spread by half around the one that gives SIGMA.
                let code_sigma = (((levels + 1.0).powi(2) - 1.0) / 12.0).sqrt();
                let scale = |i| ((0.5 + uniform(self.key, i)) * SIGMA / code_sigma) as f32;
                let scales: Vec<f32> = (groups.start as u64..groups.end as u64).map(scale).collect();
                let stored = narrow(Float::Bf16, &scales);
                let centre = |scale: &f32| half::bf16::from_f32(*scale).to_f32() * (-levels / 2.0) as f32;
                let biases: Vec<f32> = scales.iter().map(centre).collect();
                let offset = groups.start * Float::Bf16.bytes();
                writer.write(self.out + 1, offset, &stored)?;
                writer.write(self.out + 2, offset, &narrow(Float::Bf16, &biases))?;
                Ok(2 * stored.len())
            }
            &JobKind::Vector { role, float, elements } => {
                let values: Vec<f32> = (0..elements as u64).map(|i| vector_value(role, self.key, i) as f32).collect();
                let bytes = narrow(float, &values);
                writer.write(self.out, 0, &bytes)?;
                Ok(bytes.len())
            }
        }
    }
}

/// One element of an unquantised tensor.
fn vector_value(role: Vector, key: u64, index: u64) -> f64 {
    match role {
        Vector::Gain | Vector::OutputGain => 1.0 + 0.05 * normal(key, index),
        Vector::Conv => 0.3 * normal(key, index),
        // Decay rates from 1 to 16 and time steps from 1e-3 to 1e-1, as Mamba starts them.
        Vector::ALog => (1.0 + 15.0 * uniform(key, index)).ln(),
        Vector::DtBias => {
            let step = (1e-3f64.ln() + (1e-1f64.ln() - 1e-3f64.ln()) * uniform(key, index)).exp();
            // Inverse of softplus.
            step + (-(-step).exp_m1()).ln()
        }
    }
}

/// The stream of a tensor: FNV-1a over its name, mixed with the seed.
fn key(seed: u64, name: &str) -> u64 {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    random(name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fnv), seed)
}

/// Word `index` of the stream `key`: SplitMix64's output function on a counter.
fn random(key: u64, index: u64) -> u64 {
    let mut z = key.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Uniform in [0, 1).
fn uniform(key: u64, index: u64) -> f64 {
    (random(key, index) >> 11) as f64 / (1u64 << 53) as f64
}

/// Standard normal, by Box and Muller's transform of two uniforms.
fn normal(key: u64, index: u64) -> f64 {
    let radius = (-2.0 * (1.0 - uniform(key, 2 * index)).ln()).sqrt();
    radius * (TAU * uniform(key, 2 * index + 1)).cos()
}

/// A config.json that describes `shape`, wrapped as the published one is.
pub(super) fn config_json(shape: &Shape, quantization: &Value) -> Value {
    let (attention, delta, moe) = (&shape.attention, &shape.delta, &shape.moe);
    let name = |mixer: &Mixer| if *mixer == Mixer::Attention { "full_attention" } else { "linear_attention" };
    let layer_types: Vec<&str> = shape.mixers.iter().map(name).collect();
    // The shortest decimal form, not the f32's f64 digits.
    let rms_norm_eps: f64 = shape.rms_eps.to_string().parse().unwrap_or(f64::from(shape.rms_eps));
    let mut text = json!({
        "model_type": config::TEXT,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers(),
        "layer_types": layer_types,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "attn_output_gate": true,
        "attention_bias": false,
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.value_heads,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "linear_conv_kernel_dim": delta.conv_width,
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert_width,
        "shared_expert_intermediate_size": moe.shared_width,
        "hidden_act": "silu",
        "rms_norm_eps": rms_norm_eps,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied_head,
        "max_position_embeddings": shape.max_context_tokens,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": attention.rope_theta,
            "partial_rotary_factor": attention.rotary_dim as f64 / attention.head_dim as f64,
        },
        "dtype": "bfloat16",
    });
    if let Some(interval) = config::attention_interval(shape) {
        text["full_attention_interval"] = interval.into();
    }
    let mut root = Map::new();
    root.insert("architectures".to_owned(), json!([config::WRAPPED_CLASS]));
    root.insert("model_type".to_owned(), config::WRAPPED.into());
    root.insert("text_config".to_owned(), text);
    root.insert("quantization".to_owned(), quantization.clone());
    root.insert("quantization_config".to_owned(), quantization.clone());
    Value::Object(root)
}
