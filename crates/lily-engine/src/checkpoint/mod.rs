//! Checkpoints: from a directory of files (or slices inside the binary) to validated [`Weights`].
//!
//! [`Checkpoint::open`] parses headers and checks everything before it believes anything; matrices stay in the mapped files.
//! [`inspect`] describes a checkpoint, [`quantize`](mod@quantize) converts one, [`synth`](mod@synth) writes a random one. Computing
//! with weights, the tokenizer and the template are other modules' work.

pub mod affine;
mod bind;
mod config;
pub mod error;
mod fingerprint;
pub mod generation;
mod header;
pub mod inspect;
mod layout;
mod names;
pub mod quantization;
pub mod quantize;
mod source;
pub mod synth;
mod writer;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde_json::Value;

pub use error::CheckpointError;
pub use generation::GenerationConfig;
pub use quantization::QuantizationTable;
pub use source::EmbeddedFiles;
pub use writer::Progress;

use crate::memory::available_bytes;
use crate::weights::{FileRange, Weights};
use names::Name;
use source::{FileData, Source};

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Which tool laid the tensors out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Build {
    /// MLX: direct norm gains, convolutions `[channels, width, 1]`.
    Mlx,
    /// Hugging Face: norm gains less one, convolutions `[channels, 1, width]`.
    HuggingFace,
}

impl Build {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Build::Mlx => "MLX",
            Build::HuggingFace => "Hugging Face",
        }
    }
}

/// One tensor of the checkpoint as its file describes it.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Element type in the file.
    pub dtype: Dtype,
    /// Shape in the file.
    pub dims: Vec<usize>,
    /// Its bytes.
    pub range: FileRange,
    /// Part of the checkpoint that lily leaves alone (image encoder, multi-token predictor).
    pub ignored: bool,
    /// Name inside the text model, without the build's prefix.
    common: Option<String>,
}

/// A validated checkpoint with its files mapped.
///
/// The files must not be changed while it is open: their pages are read when they are first needed.
#[derive(Debug)]
pub struct Checkpoint {
    source: Source,
    files: Vec<FileData>,
    file_names: Vec<String>,
    tensors: Vec<TensorInfo>,
    /// Memory taken by copies of experts that are stored apart.
    copied_bytes: usize,
    /// The bound tensors.
    pub weights: Weights,
    /// Who laid them out.
    pub build: Build,
    /// What config.json declares of quantisation.
    pub quantization: QuantizationTable,
    /// Sampling defaults and end-of-text ids.
    pub generation: GenerationConfig,
}

impl Checkpoint {
    /// Opens the checkpoint in the directory `path`: reads config.json and the headers of the weight files, and binds and
    /// checks every tensor. Matrices are not read.
    ///
    /// # Errors
    /// Whatever is wrong with the files, see [`CheckpointError`].
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (checkpoint, stacks) = Self::load(Source::directory(path)?)?;
        checkpoint.stacked(&stacks, available_bytes())
    }

    /// Opens for reading tensors one by one: where experts are stored apart, the bound weights have no bytes.
    fn open_unstacked(path: &Path) -> Result<Self, CheckpointError> {
        Ok(Self::load(Source::directory(path)?)?.0)
    }

    /// Opens a checkpoint that is part of the binary.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn embedded(files: EmbeddedFiles) -> Result<Self, CheckpointError> {
        let (checkpoint, stacks) = Self::load(Source::Embedded(files))?;
        checkpoint.stacked(&stacks, available_bytes())
    }

    /// Makes the stacked copies of experts that are stored apart, if they fit into `available_bytes` (`None`: unknown).
    /// Published checkpoints have none; for one saved by transformers this reads and copies all experts.
    fn stacked(mut self, stacks: &[bind::Stack], available_bytes: Option<usize>) -> Result<Self, CheckpointError> {
        let needed_bytes = stacks.iter().flat_map(|stack| &stack.parts).map(|part| part.bytes).sum();
        if let Some(available_bytes) = available_bytes.filter(|&available| needed_bytes > available) {
            return Err(CheckpointError::StackMemory { path: self.path(), needed_bytes, available_bytes });
        }
        for stack in stacks {
            let mut buffer = Vec::with_capacity(stack.parts.iter().map(|part| part.bytes).sum());
            stack.parts.iter().for_each(|&part| buffer.extend_from_slice(self.bytes(part)));
            self.files.push(FileData::Owned(buffer));
        }
        self.copied_bytes = needed_bytes;
        Ok(self)
    }

    fn load(source: Source) -> Result<(Self, Vec<bind::Stack>), CheckpointError> {
        let listing = Listing::find(&source)?;
        let config_name = source.describe(CONFIG);
        let Some(text) = source.read(CONFIG)? else {
            return Err(CheckpointError::MissingFile { file: config_name });
        };
        let config = config::parse(&config_name, &text)?;
        let generation_text = source.read(GENERATION_CONFIG)?;
        let generation_name = source.describe(GENERATION_CONFIG);
        let generation = GenerationConfig::parse(&generation_name, generation_text.as_deref(), config.eos_token_ids)?;

        let mut files = Vec::new();
        let mut tensors = Vec::new();
        let mut unlisted = HashMap::new();
        for (file, name) in listing.files.iter().enumerate() {
            let data = source.map(name)?;
            for entry in header::parse(&source.describe(name), &data)? {
                let tensor = TensorInfo::new(file, entry);
                match &listing.shard_of {
                    // The index decides: a tensor that it does not list in this shard is not part of the checkpoint.
                    Some(index) if index.get(&tensor.name) != Some(name) => {
                        unlisted.extend(tensor.common.map(|common| (common, name.clone())));
                    }
                    _ => tensors.push(tensor),
                }
            }
            files.push(data);
        }
        listing.check_index(&source, &tensors)?;
        check_declared(&config_name, &config.quantization, &tensors)?;

        let path = source.path();
        let table = bind::Tensors {
            path: &path,
            files: &files,
            file_names: &listing.files,
            all: &tensors,
            unlisted: &unlisted,
        };
        let bound = bind::bind(&table, &config.shape, &config.quantization)?;
        let checkpoint = Self {
            source,
            files,
            file_names: listing.files,
            tensors,
            copied_bytes: 0,
            weights: bound.weights,
            build: bound.build,
            quantization: config.quantization,
            generation,
        };
        Ok((checkpoint, bound.stacks))
    }

    /// How many files ranges can lie in.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// The content of a file that is mapped, from a page's start on; `None` for one that is in the process otherwise.
    pub fn mapped_file(&self, file: usize) -> Option<&[u8]> {
        match &self.files[file] {
            FileData::Map(map) => Some(map),
            FileData::Static(_) | FileData::Owned(_) => None,
        }
    }

    /// The bytes of a range; of any alignment.
    pub fn bytes(&self, range: FileRange) -> &[u8] {
        &self.files[range.file][range.offset..range.offset + range.bytes]
    }

    /// The directory, or a stand-in for the model in the binary.
    pub fn path(&self) -> PathBuf {
        self.source.path()
    }

    /// The whole of another file of the checkpoint (`tokenizer.json`, `chat_template.jinja`); `None` if there is none.
    ///
    /// # Errors
    /// If the file exists but cannot be read, or is a git-lfs pointer.
    pub fn side_file(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, CheckpointError> {
        self.source.read(name)
    }

    /// Every tensor, ignored ones included, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Names of the weight files, in the order that [`FileRange::file`] counts.
    pub fn file_names(&self) -> &[String] {
        &self.file_names
    }

    /// Bytes of all tensors that the model uses.
    pub fn weight_bytes(&self) -> usize {
        self.tensors.iter().filter(|t| !t.ignored).map(|t| t.range.bytes).sum()
    }
}

impl TensorInfo {
    fn new(file: usize, entry: header::TensorEntry) -> Self {
        let (common, ignored) = match names::classify(&entry.name) {
            Name::Model(common) => (Some(common.to_owned()), false),
            Name::Ignored => (None, true),
            Name::Unknown => (None, false),
        };
        let range = FileRange { file, offset: entry.range.start, bytes: entry.range.len() };
        Self { name: entry.name, dtype: entry.dtype, dims: entry.dims, range, ignored, common }
    }
}

/// The weight files of a checkpoint.
struct Listing {
    /// Names, sorted.
    files: Vec<String>,
    /// The index, where there is one: shard by tensor name.
    shard_of: Option<HashMap<String, String>>,
}

impl Listing {
    /// Finds the weight files: those that the index names, or else the single file. Never by pattern.
    fn find(source: &Source) -> Result<Self, CheckpointError> {
        if let Some(text) = source.read(INDEX)? {
            return Self::from_index(source, &text);
        }
        if source.exists(SINGLE) {
            return Ok(Self { files: vec![SINGLE.to_owned()], shard_of: None });
        }
        let names = source.names()?;
        let ending = |suffix: &str| names.iter().filter(|n| n.ends_with(suffix)).count();
        if let (Some(gguf), 0) = (names.iter().find(|n| n.ends_with(".gguf")), ending(".safetensors")) {
            return Err(CheckpointError::Gguf { path: source.path().join(gguf) });
        }
        let (found, advice) = match (ending(".safetensors"), ending(".bin")) {
            (0, 0) => ("no weight files".to_owned(), "give the directory of a downloaded model"),
            (0, n) => (format!("{n} .bin file(s)"), "use a build with safetensors"),
            (n, _) => {
                (format!("{n} .safetensors file(s) without an index"), "download model.safetensors.index.json as well")
            }
        };
        Err(CheckpointError::NoWeights { path: source.path(), found, advice })
    }

    fn from_index(source: &Source, text: &[u8]) -> Result<Self, CheckpointError> {
        let index = source.describe(INDEX);
        let root: Value = serde_json::from_slice(text).map_err(|e| CheckpointError::Json {
            file: index.clone(),
            expected: "an index of tensors",
            found: e.to_string(),
        })?;
        let error = |entry: &str, expected: &str, found: String| CheckpointError::Index {
            index: index.clone(),
            entry: entry.to_owned(),
            expected: expected.to_owned(),
            found,
        };
        let Some(map) = root.get("weight_map").and_then(Value::as_object).filter(|map| !map.is_empty()) else {
            return Err(error("key `weight_map`", "an object with a shard for each tensor", "none".to_owned()));
        };
        let mut shard_of = HashMap::with_capacity(map.len());
        for (tensor, shard) in map {
            // A plain file name: an index must not reach outside its directory.
            let plain = shard.as_str().filter(|name| Path::new(name).file_name().is_some_and(|f| f == *name));
            let Some(name) = plain else {
                return Err(error(&format!("tensor `{tensor}`"), "a file name", shard.to_string()));
            };
            shard_of.insert(tensor.clone(), name.to_owned());
        }
        let files: Vec<String> = shard_of.values().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        let missing: Vec<String> = files.iter().filter(|name| !source.exists(name)).cloned().collect();
        if !missing.is_empty() {
            return Err(CheckpointError::MissingShards { index, named: files.len(), missing });
        }
        Ok(Self { files, shard_of: Some(shard_of) })
    }

    /// Checks that every tensor of the index was found in its shard.
    fn check_index(&self, source: &Source, tensors: &[TensorInfo]) -> Result<(), CheckpointError> {
        let Some(shard_of) = &self.shard_of else { return Ok(()) };
        let found: std::collections::HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
        let absent = shard_of.iter().filter(|(tensor, _)| !found.contains(tensor.as_str()));
        match absent.min() {
            None => Ok(()),
            Some((tensor, shard)) => Err(CheckpointError::Index {
                index: source.describe(INDEX),
                entry: format!("tensor `{tensor}`"),
                expected: format!("it in {shard}"),
                found: "no such tensor there".to_owned(),
            }),
        }
    }
}

/// Quantised tensors need a table that says how.
fn check_declared(file: &str, table: &QuantizationTable, tensors: &[TensorInfo]) -> Result<(), CheckpointError> {
    let scales = tensors.iter().find(|t| t.common.as_deref().is_some_and(|name| name.ends_with(".scales")));
    match (table.global, scales) {
        (None, Some(tensor)) => Err(CheckpointError::Config {
            file: file.to_owned(),
            key: "quantization".to_owned(),
            expected: format!("bits and group size, as there is `{}`", tensor.name),
            found: "no such key".to_owned(),
            advice: "take config.json from the same build as the weights",
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
