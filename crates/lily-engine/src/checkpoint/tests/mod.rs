//! Tests of the whole module: checkpoints are written, damaged and opened again.
//!
//! Here are the tools: a tiny model, its files as editable values, and ways to damage them.

mod converting;
mod loading;
mod refused;
mod settings;

use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde_json::{Map, Value};
use tempfile::TempDir;

use super::synth::{SynthOptions, config_json, synth};
use super::writer::{OutTensor, SHARD_BYTES_MAX, Writer, pretty};
use super::*;
use crate::shape::{AttentionShape, DeltaShape, Mixer, MoeShape, Shape};

/// A complete model as small as the family allows.
fn tiny_shape() -> Shape {
    Shape {
        hidden: 64,
        vocab: 96,
        rms_eps: 1e-6,
        mixers: vec![Mixer::Delta, Mixer::Attention],
        attention: AttentionShape { heads: 2, kv_heads: 1, head_dim: 32, rotary_dim: 8, rope_theta: 1e4 },
        delta: DeltaShape { key_heads: 1, value_heads: 2, key_dim: 32, value_dim: 32, conv_width: 4 },
        moe: MoeShape { experts: 4, top_k: 2, expert_width: 64, shared_width: 64 },
        tied_head: false,
        max_context_tokens: 512,
    }
}

/// One tensor with its bytes.
#[derive(Clone, Debug, PartialEq)]
struct Tensor {
    name: String,
    dtype: Dtype,
    dims: Vec<usize>,
    bytes: Vec<u8>,
}

/// A checkpoint's files as values.
#[derive(Clone, Debug)]
struct Parts {
    config: Value,
    tensors: Vec<Tensor>,
}

impl Parts {
    /// The tiny model in the MLX build.
    fn mlx() -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("model");
        synth(&tiny_shape(), &path, &SynthOptions::default(), &mut |_| {}).unwrap();
        Self::read(&path)
    }

    /// The tiny model, unquantised, in the Hugging Face build.
    fn hugging_face() -> Self {
        let shape = tiny_shape();
        let mut config = config_json(&shape, &Value::Null);
        let root = config.as_object_mut().unwrap();
        root.shift_remove("quantization");
        root.shift_remove("quantization_config");
        let mut tensors = Vec::new();
        for (index, slot) in super::layout::slots(&shape).into_iter().enumerate() {
            use super::layout::{Part, Vector};
            let (mut name, mut dims) = match slot.part {
                Part::Matrix { experts, rows, cols } => {
                    (format!("{}.weight", slot.name), experts.into_iter().chain([rows, cols]).collect::<Vec<_>>())
                }
                Part::Vector { role: Vector::Conv, dims } => (slot.name, vec![dims[0], 1, dims[1]]),
                Part::Vector { dims, .. } => (slot.name, dims),
            };
            if let Some((at, projection)) = name.split_once("switch_mlp.") {
                match projection {
                    "gate_proj.weight" => {
                        name = format!("{at}experts.gate_up_proj");
                        dims[1] *= 2;
                    }
                    "up_proj.weight" => continue,
                    _ => name = format!("{at}experts.down_proj"),
                }
            }
            let prefix = if name.starts_with("lm_head") { "" } else { "model.language_model." };
            tensors.push(bf16_tensor(&format!("{prefix}{name}"), &dims, index));
        }
        Self { config, tensors }
    }

    fn read(path: &Path) -> Self {
        let checkpoint = Checkpoint::open(path).unwrap();
        let config = serde_json::from_slice(&checkpoint.side_file(CONFIG).unwrap().unwrap()).unwrap();
        let tensor = |t: &TensorInfo| Tensor {
            name: t.name.clone(),
            dtype: t.dtype,
            dims: t.dims.clone(),
            bytes: checkpoint.bytes(t.range).to_vec(),
        };
        Self { config, tensors: checkpoint.tensors().iter().map(tensor).collect() }
    }

    fn tensor(&mut self, ending: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.name.ends_with(ending)).unwrap_or_else(|| panic!("no tensor {ending}"))
    }

    fn remove(&mut self, ending: &str) -> Tensor {
        let index = self.tensors.iter().position(|t| t.name.ends_with(ending)).unwrap();
        self.tensors.remove(index)
    }

    fn text_config(&mut self) -> &mut Map<String, Value> {
        self.config["text_config"].as_object_mut().unwrap()
    }

    /// Writes the files to a directory of their own.
    fn write(&self) -> Written {
        self.write_sharded(SHARD_BYTES_MAX)
    }

    fn write_sharded(&self, shard_bytes_max: usize) -> Written {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("model");
        let out = |t: &Tensor| OutTensor { name: t.name.clone(), dtype: t.dtype, dims: t.dims.clone() };
        let outs: Vec<OutTensor> = self.tensors.iter().map(out).collect();
        let writer = Writer::create(&path, &outs, shard_bytes_max).unwrap();
        for (index, tensor) in self.tensors.iter().enumerate() {
            writer.write(index, 0, &tensor.bytes).unwrap();
        }
        writer.side_file(CONFIG, &pretty(&self.config)).unwrap();
        writer.finish().unwrap();
        Written { path, _directory: directory }
    }
}

/// Files on disk, removed when dropped.
struct Written {
    path: PathBuf,
    _directory: TempDir,
}

impl Written {
    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Applies a change to the bytes of a file.
    fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(self.file(name)).unwrap();
        change(&mut bytes);
        std::fs::write(self.file(name), bytes).unwrap();
    }

    /// Applies a change to the text of a weight file's header.
    fn edit_header(&self, name: &str, change: impl FnOnce(String) -> String) {
        self.edit(name, |bytes| {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let text = change(String::from_utf8(bytes[8..8 + length].to_vec()).unwrap());
            let mut changed = (text.len() as u64).to_le_bytes().to_vec();
            changed.extend(text.as_bytes());
            changed.extend(&bytes[8 + length..]);
            *bytes = changed;
        });
    }

    /// Applies a change to one tensor's entry in the header of the single weight file.
    fn edit_entry(&self, ending: &str, change: impl FnOnce(&mut Value)) {
        self.edit_header(SINGLE, |text| {
            let mut header: Map<String, Value> = serde_json::from_str(&text).unwrap();
            change(header.iter_mut().find(|(name, _)| name.ends_with(ending)).unwrap().1);
            Value::Object(header).to_string()
        });
    }

    fn open(&self) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::open(&self.path)
    }
}

/// A bf16 tensor whose values are small, distinct and a function of `salt`.
fn bf16_tensor(name: &str, dims: &[usize], salt: usize) -> Tensor {
    let elements: usize = dims.iter().product();
    let value = |i: usize| ((i * 7919 + salt * 104_729) % 2003) as f32 / 2003.0 - 0.5;
    let bytes = (0..elements).flat_map(|i| half::bf16::from_f32(value(i)).to_bits().to_le_bytes()).collect();
    Tensor { name: name.to_owned(), dtype: Dtype::BF16, dims: dims.to_vec(), bytes }
}

/// Asserts that opening fails and that the message contains every part.
fn assert_refused(case: &str, result: Result<Checkpoint, CheckpointError>, parts: &[&str]) {
    let Err(error) = result else { panic!("{case}: opened") };
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{case}: `{part}` is not in: {message}");
    }
}
