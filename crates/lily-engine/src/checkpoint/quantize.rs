//! From an unquantised checkpoint to MLX's affine form, tensor by tensor.
//!
//! The input is opened and checked as any checkpoint, so its names and layouts are known; rows are quantised in pieces on
//! all cores and written straight to their place, so memory stays bounded whatever the model's size.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::affine::quantize_row;
use super::bind::{float, widen};
use super::error::CheckpointError;
use super::layout::{self, Part, Slot, Vector};
use super::quantization::{Affine, BITS, GROUPS};
use super::writer::{OutTensor, Progress, SHARD_BYTES_MAX, Writer, pretty, run_jobs};
use super::{Build, CONFIG, Checkpoint, GENERATION_CONFIG, TensorInfo, config};
use crate::weights::Float;

/// Elements that one job quantises, about.
const JOB_ELEMENTS: usize = 1 << 20;
/// Why a look-up in the input cannot fail.
const BOUND: &str = "opening the checkpoint has found and checked every tensor of the layout";
/// Files that go along unchanged where they exist.
const SIDE_FILES: [&str; 8] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    GENERATION_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];

/// How to quantise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizeOptions {
    /// Format of all matrices but the routing ones.
    pub affine: Affine,
    /// Format of the router and of the shared expert's scalar gate.
    pub routing: Affine,
}

impl Default for QuantizeOptions {
    /// 4-bit codes in groups of 64, routing 8-bit: the form of the published MLX build.
    fn default() -> Self {
        Self { affine: Affine { bits: 4, group: 64 }, routing: Affine { bits: 8, group: 64 } }
    }
}

impl QuantizeOptions {
    pub(super) fn of(&self, slot: &Slot) -> Affine {
        if slot.is_routing() { self.routing } else { self.affine }
    }

    /// Checks that the formats exist and that their groups divide the inputs of every matrix.
    pub(super) fn check(&self, slots: &[Slot]) -> Result<(), CheckpointError> {
        let refused = |subject: &str, expected: String, found: String| CheckpointError::Request {
            subject: subject.to_owned(),
            expected,
            found,
            advice: "choose other bits or another group size",
        };
        for Affine { bits, group } in [self.affine, self.routing] {
            if !BITS.contains(&bits.into()) || !GROUPS.contains(&group.into()) {
                let expected = format!("bits among {BITS:?} and a group size among {GROUPS:?}");
                return Err(refused("format", expected, format!("{bits} bits, groups of {group}")));
            }
        }
        for slot in slots {
            let Part::Matrix { cols, .. } = slot.part else { continue };
            let group = self.of(slot).group;
            if !cols.is_multiple_of(group as usize) {
                return Err(refused(&slot.name, format!("groups that divide its {cols} inputs"), format!("{group}")));
            }
        }
        Ok(())
    }
}

/// What a conversion came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizeSummary {
    /// Bytes of the tensors read.
    pub input_bytes: usize,
    /// Bytes of the tensors written.
    pub output_bytes: usize,
    /// Tensors left out (image encoder, multi-token predictor).
    pub dropped_tensors: usize,
}

/// Where the rows of a slot's matrix are in the input.
enum Rows<'a> {
    /// In one tensor, an expert's rows `stride` apart, the first at `first`.
    Stacked { tensor: &'a TensorInfo, stride: usize, first: usize },
    /// In one tensor for each expert.
    Apart(Vec<&'a TensorInfo>),
}

/// A piece of work: some rows of a matrix, or a whole vector.
enum Job<'a> {
    Matrix {
        source: Arc<Rows<'a>>,
        affine: Affine,
        cols: usize,
        /// Rows of one expert.
        expert_rows: usize,
        /// Output rows, counted over all experts.
        rows: std::ops::Range<usize>,
        /// The codes' output tensor; scales and biases follow it.
        out: usize,
    },
    Vector {
        tensor: &'a TensorInfo,
        /// The gain is stored less one.
        add_one: bool,
        out: usize,
    },
}

impl<'a> Rows<'a> {
    /// The tensor and the row in it that hold row `row` of expert `expert`.
    fn locate(&self, expert: usize, row: usize) -> (&'a TensorInfo, usize) {
        match self {
            Rows::Stacked { tensor, stride, first } => (tensor, expert * stride + first + row),
            Rows::Apart(tensors) => (tensors[expert], row),
        }
    }

    fn dtype(&self) -> Dtype {
        self.locate(0, 0).0.dtype
    }
}

/// Buffers of one thread.
#[derive(Default)]
struct Scratch {
    codes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

/// Quantises the checkpoint in `input` to a new directory `output`, in the names and layouts of the MLX build.
///
/// # Errors
/// If the input is not a sound unquantised checkpoint, if a group size does not divide a matrix, if a value is not finite,
/// or if the output exists or cannot be written. The output is there whole or not at all.
pub fn quantize(
    input: &Path,
    output: &Path,
    options: QuantizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<QuantizeSummary, CheckpointError> {
    // Nothing is computed with the input, so experts that are stored apart need no stacked copy.
    let checkpoint = Checkpoint::open_unstacked(input)?;
    let config = converted_config(&checkpoint, &options)?;
    let slots = layout::slots(&checkpoint.weights.shape);
    options.check(&slots)?;
    let sources = Sources::new(&checkpoint);
    let mut tensors = Vec::new();
    let mut jobs = Vec::new();
    for slot in &slots {
        sources.plan(slot, options.of(slot), &mut tensors, &mut jobs);
    }
    let writer = Writer::create(output, &tensors, SHARD_BYTES_MAX)?;
    run_jobs(&jobs, writer.total_bytes(), progress, |job, scratch| run(&checkpoint, &writer, job, scratch))?;
    for name in SIDE_FILES {
        if let Some(content) = checkpoint.side_file(name)? {
            writer.side_file(name, &content)?;
        }
    }
    writer.side_file(CONFIG, &pretty(&config))?;
    let summary = QuantizeSummary {
        input_bytes: checkpoint.weight_bytes(),
        output_bytes: writer.total_bytes(),
        dropped_tensors: checkpoint.tensors().iter().filter(|t| t.ignored).count(),
    };
    writer.finish()?;
    Ok(summary)
}

/// The input's config.json, wrapped as MLX wants it, with the quantisation block in both of its places.
fn converted_config(checkpoint: &Checkpoint, options: &QuantizeOptions) -> Result<Value, CheckpointError> {
    let file = checkpoint.path().join(CONFIG).display().to_string();
    if checkpoint.quantization.global.is_some() {
        return Err(CheckpointError::Request {
            subject: checkpoint.path().display().to_string(),
            expected: "an unquantised checkpoint".to_owned(),
            found: "one that is quantised already".to_owned(),
            advice: "start from the bf16 original",
        });
    }
    let text = checkpoint.side_file(CONFIG)?.unwrap_or_default();
    let mut config: Value = serde_json::from_slice(&text).map_err(|e| CheckpointError::Json {
        file,
        expected: "a model configuration",
        found: e.to_string(),
    })?;
    let shape = &checkpoint.weights.shape;
    // MLX knows the family by the outer type only, and takes the interval for 4 unless it is told.
    if config["model_type"] == config::TEXT {
        let mut outer = json!({ "architectures": [config::WRAPPED_CLASS], "model_type": config::WRAPPED });
        for key in ["dtype", "eos_token_id", "tie_word_embeddings"] {
            if let Some(value) = config.get(key) {
                outer[key] = value.clone();
            }
        }
        outer["text_config"] = config;
        config = outer;
    }
    if let Some(interval) = config::attention_interval(shape) {
        config["text_config"]["full_attention_interval"] = interval.into();
    }
    let block = quantization_block(&layout::slots(shape), options);
    config["quantization"] = block.clone();
    config["quantization_config"] = block;
    Ok(config)
}

/// The quantisation block that describes the output, keyed as MLX does.
pub(super) fn quantization_block(slots: &[Slot], options: &QuantizeOptions) -> Value {
    let Affine { bits, group } = options.affine;
    let mut block = Map::new();
    block.insert("group_size".to_owned(), group.into());
    block.insert("bits".to_owned(), bits.into());
    block.insert("mode".to_owned(), "affine".into());
    for slot in slots.iter().filter(|slot| slot.is_routing() && options.routing != options.affine) {
        let Affine { bits, group } = options.routing;
        block.insert(layout::mlx_name(&slot.name), json!({ "group_size": group, "bits": bits }));
    }
    Value::Object(block)
}

/// The three tensors of a quantised matrix.
pub(super) fn affine_tensors(slot: &Slot, affine: Affine, scale: Dtype) -> [OutTensor; 3] {
    let Part::Matrix { experts, rows, cols } = slot.part else { unreachable!("vectors are not quantised") };
    let (bits, group) = (affine.bits as usize, affine.group as usize);
    let tensor = |ending: &str, dtype: Dtype, width: usize| OutTensor {
        name: layout::mlx_name(&format!("{}.{ending}", slot.name)),
        dtype,
        dims: experts.into_iter().chain([rows, width]).collect(),
    };
    [
        tensor("weight", Dtype::U32, cols * bits / 32),
        tensor("scales", scale, cols / group),
        tensor("biases", scale, cols / group),
    ]
}

/// The input's tensors by common name. Opening has checked that everything asked for is there.
struct Sources<'a> {
    by_name: HashMap<&'a str, &'a TensorInfo>,
    build: Build,
}

impl<'a> Sources<'a> {
    fn new(checkpoint: &'a Checkpoint) -> Self {
        let named = checkpoint.tensors().iter().filter_map(|t| t.common.as_deref().map(|name| (name, t)));
        Self { by_name: named.collect(), build: checkpoint.build }
    }

    /// A module's matrix, with or without `.weight`.
    fn module(&self, name: &str) -> Option<&'a TensorInfo> {
        let bare = self.by_name.get(name);
        bare.or_else(|| self.by_name.get(format!("{name}.weight").as_str())).copied()
    }

    /// The rows of a slot's matrix of `rows` rows: as the slot is named, fused, or apart.
    fn matrix(&self, slot: &str, experts: Option<usize>, rows: usize) -> Rows<'a> {
        if let Some(tensor) = self.module(slot) {
            return Rows::Stacked { tensor, stride: rows, first: 0 };
        }
        let (at, projection) = slot.split_once("switch_mlp.").expect(BOUND);
        let (fused, first, stride) = match projection {
            "gate_proj" => ("gate_up_proj", 0, 2 * rows),
            "up_proj" => ("gate_up_proj", rows, 2 * rows),
            other => (other, 0, rows),
        };
        if let Some(tensor) = self.module(&format!("{at}experts.{fused}")) {
            return Rows::Stacked { tensor, stride, first };
        }
        let apart = |expert| self.module(&format!("{at}experts.{expert}.{projection}")).expect(BOUND);
        Rows::Apart((0..experts.unwrap_or(1)).map(apart).collect())
    }

    /// Adds a slot's output tensors and the jobs that fill them.
    fn plan(&self, slot: &Slot, affine: Affine, tensors: &mut Vec<OutTensor>, jobs: &mut Vec<Job<'a>>) {
        let out = tensors.len();
        match &slot.part {
            &Part::Matrix { experts, rows: expert_rows, cols } => {
                let source = Arc::new(self.matrix(&slot.name, experts, expert_rows));
                tensors.extend(affine_tensors(slot, affine, source.dtype()));
                let all_rows = experts.unwrap_or(1) * expert_rows;
                let job_rows = (JOB_ELEMENTS / cols).max(1);
                jobs.extend((0..all_rows).step_by(job_rows).map(|start| {
                    let rows = start..(start + job_rows).min(all_rows);
                    Job::Matrix { source: source.clone(), affine, cols, expert_rows, rows, out }
                }));
            }
            Part::Vector { role, dims } => {
                let tensor = *self.by_name.get(slot.name.as_str()).expect(BOUND);
                let name = layout::mlx_name(&slot.name);
                tensors.push(OutTensor { name, dtype: tensor.dtype, dims: dims.clone() });
                let add_one = *role == Vector::Gain && self.build == Build::HuggingFace;
                jobs.push(Job::Vector { tensor, add_one, out });
            }
        }
    }
}

/// Does one job; returns the bytes written.
fn run(checkpoint: &Checkpoint, writer: &Writer, job: &Job, scratch: &mut Scratch) -> Result<usize, CheckpointError> {
    match job {
        &Job::Vector { tensor, add_one, out } => write_vector(checkpoint, writer, tensor, add_one, out),
        Job::Matrix { source, affine, cols, expert_rows, rows, out } => {
            let groups = cols / affine.group as usize;
            quantize_rows(checkpoint, source, *affine, *cols, *expert_rows, rows.clone(), scratch)?;
            let float = float(source.dtype()).expect(BOUND);
            let scales = narrow(float, &scratch.scales);
            let biases = narrow(float, &scratch.biases);
            let scale_offset = rows.start * groups * float.bytes();
            writer.write(*out, rows.start * cols * affine.bits as usize / 8, &scratch.codes)?;
            writer.write(out + 1, scale_offset, &scales)?;
            writer.write(out + 2, scale_offset, &biases)?;
            Ok(scratch.codes.len() + scales.len() + biases.len())
        }
    }
}

/// Quantises rows `rows`, counted over experts of `expert_rows` each, into `scratch`.
fn quantize_rows(
    checkpoint: &Checkpoint,
    source: &Rows,
    affine: Affine,
    cols: usize,
    expert_rows: usize,
    rows: std::ops::Range<usize>,
    scratch: &mut Scratch,
) -> Result<(), CheckpointError> {
    let (code_bytes, groups) = (cols * affine.bits as usize / 8, cols / affine.group as usize);
    scratch.codes.resize(rows.len() * code_bytes, 0);
    scratch.scales.resize(rows.len() * groups, 0.0);
    scratch.biases.resize(rows.len() * groups, 0.0);
    for (i, row) in rows.enumerate() {
        let (tensor, source_row) = source.locate(row / expert_rows, row % expert_rows);
        let row_bytes = cols * tensor.dtype.bitsize() / 8;
        let values = widen(tensor.dtype, &checkpoint.bytes(tensor.range)[source_row * row_bytes..][..row_bytes]);
        if values.iter().any(|v| !v.is_finite()) {
            return Err(CheckpointError::Tensor {
                file: checkpoint.path().join(&checkpoint.file_names()[tensor.range.file]).display().to_string(),
                tensor: tensor.name.clone(),
                expected: "finite values".to_owned(),
                found: format!("an infinity or NaN in row {source_row}"),
                advice: "the file is damaged or the training went wrong; get it again",
            });
        }
        let codes = &mut scratch.codes[i * code_bytes..][..code_bytes];
        let scales = &mut scratch.scales[i * groups..][..groups];
        quantize_row(&values, affine, codes, scales, &mut scratch.biases[i * groups..][..groups]);
    }
    Ok(())
}

/// Copies a vector; a gain stored less one gets its one back, rounded to the stored type as MLX's conversion does.
fn write_vector(
    checkpoint: &Checkpoint,
    writer: &Writer,
    tensor: &TensorInfo,
    add_one: bool,
    out: usize,
) -> Result<usize, CheckpointError> {
    let bytes = checkpoint.bytes(tensor.range);
    if add_one {
        let gains: Vec<f32> = widen(tensor.dtype, bytes).iter().map(|gain| gain + 1.0).collect();
        writer.write(out, 0, &narrow(float(tensor.dtype).expect(BOUND), &gains))?;
    } else {
        writer.write(out, 0, bytes)?;
    }
    Ok(bytes.len())
}

/// Rounds to the stored type, nearest even; little-endian bytes.
pub(super) fn narrow(float: Float, values: &[f32]) -> Vec<u8> {
    match float {
        Float::Bf16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_bits().to_le_bytes()).collect(),
        Float::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_bits().to_le_bytes()).collect(),
        Float::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}
