//! Everything that can be wrong with a checkpoint, as one error type.
//!
//! Every message names the file, the tensor or key where there is one, what was expected, what was found and what to do
//! about it, so that a person can act on it without reading code.

use std::path::{Path, PathBuf};

/// Names shown in a message before the rest is counted.
const NAMES_SHOWN: usize = 8;

/// Why a checkpoint was refused, or could not be written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Nothing at the path.
    #[error("{}: no such file or directory; give the directory that holds config.json and *.safetensors", .path.display())]
    NotFound {
        /// The path that was given.
        path: PathBuf,
    },
    /// A file where a directory is needed.
    #[error("{}: expected a checkpoint directory, found a file; give the directory that holds it: {}", .path.display(), .parent.display())]
    NotADirectory {
        /// The path that was given.
        path: PathBuf,
        /// Its directory.
        parent: PathBuf,
    },
    /// Another engine's format.
    #[error(
        "{}: expected safetensors, found GGUF, which lily does not read; use an MLX build (for example mlx-community/Qwen3.6-35B-A3B-4bit) or run `lily quantize` on the bf16 original",
        .path.display()
    )]
    Gguf {
        /// The GGUF file.
        path: PathBuf,
    },
    /// A placeholder that git-lfs left instead of the file.
    #[error(
        "{file}: expected the file itself, found a git-lfs pointer to it; run `git lfs pull` in the repository, or download the file again"
    )]
    LfsPointer {
        /// The file.
        file: String,
    },
    /// A directory without weights.
    #[error("{}: expected model.safetensors or model.safetensors.index.json, found {found}; {advice}", .path.display())]
    NoWeights {
        /// The directory.
        path: PathBuf,
        /// What is there instead.
        found: String,
        /// What to do.
        advice: &'static str,
    },
    /// A file that every checkpoint has is absent.
    #[error("{file}: expected in every checkpoint, found no such file; download it from the model's repository")]
    MissingFile {
        /// The file.
        file: String,
    },
    /// Files named by the index are absent.
    #[error("{index}: names {} file(s), {} of them not there: {}; the download is incomplete, resume it", .named, .missing.len(), list(.missing))]
    MissingShards {
        /// The index file.
        index: String,
        /// Files that the index names.
        named: usize,
        /// Those that do not exist.
        missing: Vec<String>,
    },
    /// The index disagrees with the shards, or is not an index.
    #[error(
        "{index}: {entry}: expected {expected}, found {found}; download the index and its shards again, from one revision"
    )]
    Index {
        /// The index file.
        index: String,
        /// Key of the index.
        entry: String,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Text that is not the JSON it should be.
    #[error("{file}: expected {expected}, found invalid JSON: {found}; download the file again")]
    Json {
        /// The file.
        file: String,
        /// Kind of document.
        expected: &'static str,
        /// The parser's words.
        found: String,
    },
    /// A missing or unusable configuration key.
    #[error("{file}: key `{key}`: expected {expected}, found {found}; {advice}")]
    Config {
        /// The file.
        file: String,
        /// Dotted key.
        key: String,
        /// What would have been accepted.
        expected: String,
        /// What is there.
        found: String,
        /// What to do.
        advice: &'static str,
    },
    /// Not a safetensors file at all.
    #[error("{file}: expected a safetensors file, found {found}; download the file again")]
    NotSafetensors {
        /// The file.
        file: String,
        /// What its first bytes say.
        found: String,
    },
    /// A file shorter or longer than its header says.
    #[error(
        "{file}: expected {expected_bytes} bytes as its header says, found {found_bytes}; the download is incomplete or damaged, get the file again"
    )]
    FileSize {
        /// The file.
        file: String,
        /// Length that the header implies.
        expected_bytes: usize,
        /// Length on disk.
        found_bytes: usize,
    },
    /// A header that contradicts itself.
    #[error("{file}: {subject}: expected {expected}, found {found}; the file is damaged, download it again")]
    Header {
        /// The file.
        file: String,
        /// `header`, or the tensor.
        subject: String,
        /// What a sound header has.
        expected: String,
        /// What this one has.
        found: String,
    },
    /// Tensors of the model are absent, or tensors are present that the model does not have.
    #[error("{}: {}", .path.display(), names(.missing, .unknown))]
    TensorNames {
        /// The checkpoint.
        path: PathBuf,
        /// Needed but absent.
        missing: Vec<String>,
        /// Present but not part of the architecture.
        unknown: Vec<String>,
    },
    /// A tensor of the wrong type or shape.
    #[error("{file}: tensor `{tensor}`: expected {expected}, found {found}; {advice}")]
    Tensor {
        /// The file.
        file: String,
        /// Name in the file.
        tensor: String,
        /// Type and shape that config.json implies.
        expected: String,
        /// Type and shape in the file.
        found: String,
        /// What to do.
        advice: &'static str,
    },
    /// Experts that are stored one by one would have to be copied, and there is no room for the copies.
    #[error(
        "{}: not enough memory: expected experts stacked in one tensor, or {} to stack them, found one tensor for each expert and {} available; run `lily quantize` on it, which needs no copies",
        .path.display(), super::inspect::human_bytes(*.needed_bytes), super::inspect::human_bytes(*.available_bytes)
    )]
    StackMemory {
        /// The checkpoint.
        path: PathBuf,
        /// Bytes of the copies.
        needed_bytes: usize,
        /// What the machine can give.
        available_bytes: usize,
    },
    /// The conversion asked for makes no sense for this input.
    #[error("{subject}: expected {expected}, found {found}; {advice}")]
    Request {
        /// What the request was about.
        subject: String,
        /// What would have been accepted.
        expected: String,
        /// What was asked.
        found: String,
        /// What to do.
        advice: &'static str,
    },
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Verb phrase.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl CheckpointError {
    /// Wraps a system error with the path and the action that failed.
    pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| CheckpointError::Io { path, action, source }
    }
}

/// The first names, and how many more there are.
fn list(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn names(missing: &[String], unknown: &[String]) -> String {
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("expected {} tensor(s) that are not there: {}", missing.len(), list(missing)));
    }
    if !unknown.is_empty() {
        parts.push(format!(
            "found {} tensor(s) that this architecture does not have: {}",
            unknown.len(),
            list(unknown)
        ));
    }
    parts.push("check that config.json belongs to these weights and that the download is complete".to_owned());
    parts.join("; ")
}
