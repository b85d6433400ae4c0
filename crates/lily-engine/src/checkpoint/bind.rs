//! From a table of named tensors to [`Weights`]: every tensor of the architecture is looked up, checked against the shape
//! and the quantisation table, and bound; nothing may be left over.
//!
//! Works on headers; of the data only the small vectors are read.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;

use super::error::CheckpointError;
use super::quantization::{Affine, Declared, QuantizationTable};
use super::source::FileData;
use super::{Build, TensorInfo};
use crate::shape::{Mixer, Shape};
use crate::weights::{
    AttentionWeights, DeltaWeights, FileRange, Float, Format, LayerWeights, Matrix, MixerWeights, MoeWeights, Weights,
};

const CHECK_CONFIG: &str = "check that config.json belongs to these weights";

/// A checkpoint's tensors, not yet checked.
pub(super) struct Tensors<'a> {
    pub(super) path: &'a Path,
    pub(super) files: &'a [FileData],
    pub(super) file_names: &'a [String],
    pub(super) all: &'a [TensorInfo],
    /// Tensors in the shards that the index does not list, by common name, with their shard.
    pub(super) unlisted: &'a HashMap<String, String>,
}

/// Tensors that are to be copied one after the other into a file-like buffer of their own.
pub(super) struct Stack {
    pub(super) parts: Vec<FileRange>,
}

/// What binding yields.
pub(super) struct Bound {
    pub(super) weights: Weights,
    /// The build that the layouts give away.
    pub(super) build: Build,
    /// Buffers to be made; the weights refer to them as files after the last.
    pub(super) stacks: Vec<Stack>,
}

/// Binds every tensor of the architecture.
pub(super) fn bind(
    tensors: &Tensors,
    shape: &Shape,
    quantization: &QuantizationTable,
) -> Result<Bound, CheckpointError> {
    let mut by_name: HashMap<&str, &TensorInfo> = HashMap::new();
    for tensor in tensors.all {
        let Some(common) = tensor.common.as_deref() else { continue };
        if let Some(twin) = by_name.insert(common, tensor) {
            let expected = "each tensor once".to_owned();
            let found = format!("it also as `{}`", twin.name);
            return Err(tensors.error(tensor, expected, found, "remove one of the two builds from the directory"));
        }
    }
    let build = build(tensors, shape, &by_name)?;
    let mut binder = Binder {
        tensors,
        shape,
        quantization,
        build,
        by_name,
        used: HashSet::new(),
        stacks: Vec::new(),
        missing: Vec::new(),
        fault: None,
    };
    let weights = binder.weights();
    let stacks = binder.finish()?;
    Ok(Bound { weights, build, stacks })
}

impl Tensors<'_> {
    fn error(&self, tensor: &TensorInfo, expected: String, found: String, advice: &'static str) -> CheckpointError {
        let file = self.path.join(&self.file_names[tensor.range.file]).display().to_string();
        CheckpointError::Tensor { file, tensor: tensor.name.clone(), expected, found, advice }
    }
}

/// Tells the MLX build from the Hugging Face build by the layout of the convolutions, on which they cannot agree; where
/// there are none, by how experts are named.
fn build(tensors: &Tensors, shape: &Shape, by_name: &HashMap<&str, &TensorInfo>) -> Result<Build, CheckpointError> {
    let (channels, width) = (shape.delta.conv_channels(), shape.delta.conv_width);
    let mut known = None;
    for layer in (0..shape.layers()).filter(|&i| shape.mixers[i] == Mixer::Delta) {
        let Some(tensor) = by_name.get(format!("layers.{layer}.linear_attn.conv1d.weight").as_str()) else { continue };
        let build = match tensor.dims[..] {
            [c, w, 1] if (c, w) == (channels, width) => Build::Mlx,
            [c, 1, w] if (c, w) == (channels, width) => Build::HuggingFace,
            _ => {
                let expected = format!("shape [{channels}, {width}, 1] or [{channels}, 1, {width}]");
                return Err(tensors.error(tensor, expected, format!("{:?}", tensor.dims), CHECK_CONFIG));
            }
        };
        if *known.get_or_insert(build) != build {
            let expected = "the layout of the layers before it".to_owned();
            return Err(tensors.error(
                tensor,
                expected,
                format!("{:?}", tensor.dims),
                "convert the whole model at once",
            ));
        }
    }
    let fused = by_name.keys().any(|name| name.contains(".mlp.experts."));
    Ok(known.unwrap_or(if fused { Build::HuggingFace } else { Build::Mlx }))
}

/// Looks tensors up and remembers what was wrong, so that all missing names are reported at once.
struct Binder<'a> {
    tensors: &'a Tensors<'a>,
    shape: &'a Shape,
    quantization: &'a QuantizationTable,
    build: Build,
    by_name: HashMap<&'a str, &'a TensorInfo>,
    used: HashSet<&'a str>,
    /// Experts that are stored apart.
    stacks: Vec<Stack>,
    missing: Vec<String>,
    /// The first tensor of a wrong type or shape.
    fault: Option<CheckpointError>,
}

/// Stands for a matrix that could not be bound; never leaves this module.
const UNBOUND: Matrix = Matrix {
    format: Format::Dense(Float::Bf16),
    rows: 0,
    cols: 0,
    experts: 0,
    expert_stride_rows: 0,
    first_row: 0,
    codes: FileRange::EMPTY,
    scales: FileRange::EMPTY,
    biases: FileRange::EMPTY,
};

impl<'a> Binder<'a> {
    fn weights(&mut self) -> Weights {
        let shape = self.shape;
        let (vocab, hidden) = (shape.vocab, shape.hidden);
        let embed = self.matrix("embed_tokens", vocab, hidden);
        let head = if shape.tied_head {
            // Some tied checkpoints carry the matrix a second time.
            let names = self.by_name.keys().copied();
            self.used.extend(names.filter(|name| name.starts_with("lm_head.")));
            embed
        } else {
            self.matrix("lm_head", vocab, hidden)
        };
        let layers = (0..shape.layers()).map(|i| self.layer(i)).collect();
        let final_norm = self.gain("norm.weight", hidden);
        Weights { shape: shape.clone(), embed, layers, final_norm, head }
    }

    fn layer(&mut self, index: usize) -> LayerWeights {
        let at = format!("layers.{index}");
        let hidden = self.shape.hidden;
        let input_norm = self.gain(&format!("{at}.input_layernorm.weight"), hidden);
        let mixer = match self.shape.mixers[index] {
            Mixer::Delta => MixerWeights::Delta(self.delta(&format!("{at}.linear_attn"))),
            Mixer::Attention => MixerWeights::Attention(self.attention(&format!("{at}.self_attn"))),
        };
        let post_norm = self.gain(&format!("{at}.post_attention_layernorm.weight"), hidden);
        LayerWeights { input_norm, mixer, post_norm, moe: self.moe(&format!("{at}.mlp")) }
    }

    fn delta(&mut self, at: &str) -> DeltaWeights {
        let (hidden, delta) = (self.shape.hidden, self.shape.delta);
        let (channels, width, heads) = (delta.conv_channels(), delta.conv_width, delta.value_heads);
        // Both layouts keep a channel's taps side by side, so the bytes are the same.
        let conv_dims = match self.build {
            Build::Mlx => [channels, width, 1],
            Build::HuggingFace => [channels, 1, width],
        };
        DeltaWeights {
            qkv: self.matrix(&format!("{at}.in_proj_qkv"), channels, hidden),
            z: self.matrix(&format!("{at}.in_proj_z"), delta.values_width(), hidden),
            a: self.matrix(&format!("{at}.in_proj_a"), heads, hidden),
            b: self.matrix(&format!("{at}.in_proj_b"), heads, hidden),
            conv: self.vector(&format!("{at}.conv1d.weight"), &conv_dims),
            a_log: self.vector(&format!("{at}.A_log"), &[heads]),
            dt_bias: self.vector(&format!("{at}.dt_bias"), &[heads]),
            norm: self.vector(&format!("{at}.norm.weight"), &[delta.value_dim]),
            out: self.matrix(&format!("{at}.out_proj"), hidden, delta.values_width()),
        }
    }

    fn attention(&mut self, at: &str) -> AttentionWeights {
        let (hidden, attention) = (self.shape.hidden, self.shape.attention);
        let (queries, keys) = (attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim);
        AttentionWeights {
            q: self.matrix(&format!("{at}.q_proj"), 2 * queries, hidden),
            k: self.matrix(&format!("{at}.k_proj"), keys, hidden),
            v: self.matrix(&format!("{at}.v_proj"), keys, hidden),
            o: self.matrix(&format!("{at}.o_proj"), hidden, queries),
            q_norm: self.gain(&format!("{at}.q_norm.weight"), attention.head_dim),
            k_norm: self.gain(&format!("{at}.k_norm.weight"), attention.head_dim),
        }
    }

    fn moe(&mut self, at: &str) -> MoeWeights {
        let (hidden, moe) = (self.shape.hidden, self.shape.moe);
        let shared = moe.shared_width;
        let [gate, up, down] = self.experts(at);
        MoeWeights {
            router: self.matrix(&format!("{at}.gate"), moe.experts, hidden),
            gate,
            up,
            down,
            shared_gate: self.matrix(&format!("{at}.shared_expert.gate_proj"), shared, hidden),
            shared_up: self.matrix(&format!("{at}.shared_expert.up_proj"), shared, hidden),
            shared_down: self.matrix(&format!("{at}.shared_expert.down_proj"), hidden, shared),
            shared_scale: self.matrix(&format!("{at}.shared_expert_gate"), 1, hidden),
        }
    }

    /// Gate, up and down projections of the routed experts, split or with gate and up fused.
    fn experts(&mut self, at: &str) -> [Matrix; 3] {
        let (hidden, moe) = (self.shape.hidden, self.shape.moe);
        let (experts, width) = (moe.experts, moe.expert_width);
        if self.by_name.contains_key(format!("{at}.experts.0.gate_proj.weight").as_str()) {
            return [("gate_proj", width, hidden), ("up_proj", width, hidden), ("down_proj", hidden, width)]
                .map(|(projection, rows, cols)| self.apart(at, projection, rows, cols));
        }
        let fused = format!("{at}.experts.gate_up_proj");
        if self.by_name.keys().any(|name| name.strip_prefix(fused.as_str()).is_some_and(is_suffix)) {
            let both = self.stack(&fused, Some(experts), 2 * width, hidden);
            // `both` strides over its own rows, gate and up together.
            let half = |first_row| Matrix { rows: both.rows / 2, first_row, ..both };
            let down = self.stack(&format!("{at}.experts.down_proj"), Some(experts), hidden, width);
            return [half(0), half(width), down];
        }
        [
            self.stack(&format!("{at}.switch_mlp.gate_proj"), Some(experts), width, hidden),
            self.stack(&format!("{at}.switch_mlp.up_proj"), Some(experts), width, hidden),
            self.stack(&format!("{at}.switch_mlp.down_proj"), Some(experts), hidden, width),
        ]
    }

    /// Experts in a tensor each, unquantised: they are to be copied into one stack.
    fn apart(&mut self, at: &str, projection: &str, rows: usize, cols: usize) -> Matrix {
        let experts = self.shape.moe.experts;
        let mut parts = Vec::with_capacity(experts);
        let mut dtype = None;
        for expert in 0..experts {
            let Some(tensor) = self.find(&format!("{at}.experts.{expert}.{projection}.weight")) else { continue };
            let dtypes = dtype.map_or(FLOATS.to_vec(), |first| vec![first]);
            if self.check(tensor, &dtypes, &[rows, cols], "one expert, not quantised").is_some() {
                dtype = Some(tensor.dtype);
                parts.push(tensor.range);
            }
        }
        let Some(float) = dtype.and_then(float) else { return UNBOUND };
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let codes = FileRange { file: self.tensors.files.len() + self.stacks.len(), offset: 0, bytes };
        self.stacks.push(Stack { parts });
        Matrix { format: Format::Dense(float), experts, expert_stride_rows: rows, rows, cols, codes, ..UNBOUND }
    }

    fn matrix(&mut self, module: &str, rows: usize, cols: usize) -> Matrix {
        self.stack(module, None, rows, cols)
    }

    /// Binds `[rows, cols]`, or `[experts, rows, cols]`, in the format that the table declares.
    fn stack(&mut self, module: &str, experts: Option<usize>, rows: usize, cols: usize) -> Matrix {
        // Any trace of quantisation counts, so that a lost part is reported as missing.
        let part = |ending: &str| self.by_name.get(format!("{module}.{ending}").as_str());
        let quantised = part("scales").is_some()
            || part("biases").is_some()
            || part("weight").is_some_and(|tensor| tensor.dtype == Dtype::U32);
        let affine = match self.quantization.declared(module) {
            Declared::Affine(affine) => Some(affine),
            Declared::Dense => None,
            Declared::Unlisted => self.quantization.global.filter(|_| quantised),
        };
        let bound = match affine {
            Some(affine) => self.affine(module, affine, experts, rows, cols),
            None => self.dense(module, experts, rows, cols),
        };
        let Some((format, [codes, scales, biases])) = bound else { return UNBOUND };
        let experts = experts.unwrap_or(1);
        Matrix { format, rows, cols, experts, expert_stride_rows: rows, first_row: 0, codes, scales, biases }
    }

    fn affine(
        &mut self,
        module: &str,
        affine: Affine,
        experts: Option<usize>,
        rows: usize,
        cols: usize,
    ) -> Option<(Format, [FileRange; 3])> {
        let Affine { bits, group } = affine;
        let codes = self.find(&format!("{module}.weight"));
        let scales = self.find(&format!("{module}.scales"));
        let biases = self.find(&format!("{module}.biases"));
        let (codes, scales, biases) = (codes?, scales?, biases?);
        if !cols.is_multiple_of(group as usize) {
            let expected = format!("a number of inputs that groups of {group} divide");
            return self.fail(codes, expected, format!("{cols} inputs"));
        }
        let why = format!("{bits}-bit codes, groups of {group}");
        self.check(codes, &[Dtype::U32], &dims(experts, rows, cols * bits as usize / 32), &why)?;
        let scale_dims = dims(experts, rows, cols / group as usize);
        self.check(scales, &FLOATS, &scale_dims, &why)?;
        self.check(biases, &[scales.dtype], &scale_dims, &why)?;
        let scale = float(scales.dtype)?;
        Some((Format::Affine { bits, group, scale }, [codes.range, scales.range, biases.range]))
    }

    fn dense(
        &mut self,
        module: &str,
        experts: Option<usize>,
        rows: usize,
        cols: usize,
    ) -> Option<(Format, [FileRange; 3])> {
        // Stacked experts of the published checkpoints are parameters of their own, without `.weight`.
        let bare = self.by_name.contains_key(module);
        let tensor = self.find(&if bare { module.to_owned() } else { format!("{module}.weight") })?;
        self.check(tensor, &FLOATS, &dims(experts, rows, cols), "not quantised")?;
        Some((Format::Dense(float(tensor.dtype)?), [tensor.range, FileRange::EMPTY, FileRange::EMPTY]))
    }

    /// A norm's gain; the Hugging Face build stores it less one.
    fn gain(&mut self, name: &str, len: usize) -> Vec<f32> {
        let mut gain = self.vector(name, &[len]);
        if self.build == Build::HuggingFace {
            gain.iter_mut().for_each(|g| *g += 1.0);
        }
        gain
    }

    /// A copy of a small tensor in f32; empty if something is wrong with it.
    fn vector(&mut self, name: &str, dims: &[usize]) -> Vec<f32> {
        let Some(tensor) = self.find(name) else { return Vec::new() };
        if self.check(tensor, &FLOATS, dims, "not quantised").is_none() {
            return Vec::new();
        }
        let FileRange { file, offset, bytes } = tensor.range;
        widen(tensor.dtype, &self.tensors.files[file][offset..offset + bytes])
    }

    fn find(&mut self, common: &str) -> Option<&'a TensorInfo> {
        match self.by_name.get_key_value(common) {
            Some((&name, &tensor)) => {
                self.used.insert(name);
                Some(tensor)
            }
            None => {
                let unlisted = self.tensors.unlisted.get(common);
                let hint = unlisted.map(|shard| format!(" (in {shard}, but not in the index)"));
                self.missing.push(format!("{}{}", self.full_name(common), hint.unwrap_or_default()));
                None
            }
        }
    }

    /// A name as this checkpoint would spell it.
    fn full_name(&self, common: &str) -> String {
        let model = self.by_name.iter().find(|(name, _)| name.starts_with("layers."));
        let prefix = model.and_then(|(name, tensor)| tensor.name.strip_suffix(name)).unwrap_or("model.");
        match common.starts_with("lm_head.") {
            true if prefix.starts_with("language_model.") => format!("language_model.{common}"),
            true => common.to_owned(),
            false => format!("{prefix}{common}"),
        }
    }

    /// `None`, with the fault remembered, unless the tensor has one of the types and exactly the shape.
    fn check(&mut self, tensor: &TensorInfo, dtypes: &[Dtype], dims: &[usize], why: &str) -> Option<()> {
        if dtypes.contains(&tensor.dtype) && tensor.dims == dims {
            return Some(());
        }
        let dtypes = dtypes.iter().map(Dtype::to_string).collect::<Vec<_>>().join("/");
        let expected = format!("{dtypes} {dims:?} ({why})");
        self.fail(tensor, expected, format!("{} {:?}", tensor.dtype, tensor.dims))
    }

    fn fail<T>(&mut self, tensor: &TensorInfo, expected: String, found: String) -> Option<T> {
        let fault = self.tensors.error(tensor, expected, found, CHECK_CONFIG);
        self.fault.get_or_insert(fault);
        None
    }

    /// Reports what was wrong: names first, as a wrong name explains a wrong shape elsewhere.
    fn finish(self) -> Result<Vec<Stack>, CheckpointError> {
        let unused = self.by_name.iter().filter(|(name, _)| !self.used.contains(**name));
        let mut unknown: Vec<String> = unused.map(|(_, tensor)| tensor.name.clone()).collect();
        unknown.extend(self.tensors.all.iter().filter(|t| t.common.is_none() && !t.ignored).map(|t| t.name.clone()));
        unknown.sort();
        if !self.missing.is_empty() || !unknown.is_empty() {
            let path = self.tensors.path.to_owned();
            return Err(CheckpointError::TensorNames { path, missing: self.missing, unknown });
        }
        self.fault.map_or(Ok(self.stacks), Err)
    }
}

/// Types of unquantised data.
const FLOATS: [Dtype; 3] = [Dtype::BF16, Dtype::F16, Dtype::F32];

pub(super) fn float(dtype: Dtype) -> Option<Float> {
    match dtype {
        Dtype::BF16 => Some(Float::Bf16),
        Dtype::F16 => Some(Float::F16),
        Dtype::F32 => Some(Float::F32),
        _ => None,
    }
}

/// Endings of the tensors of one module.
fn is_suffix(rest: &str) -> bool {
    matches!(rest, "" | ".weight" | ".scales" | ".biases")
}

fn dims(experts: Option<usize>, rows: usize, cols: usize) -> Vec<usize> {
    experts.into_iter().chain([rows, cols]).collect()
}

/// Elements of a float tensor as f32; `bytes` may have any alignment.
pub(super) fn widen(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let halves = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match dtype {
        Dtype::BF16 => halves.map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        Dtype::F16 => halves.map(|bits| f16::from_bits(bits).to_f32()).collect(),
        _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}
