//! The model in the box: lily-nano and its held-out questions, part of the binary.

use crate::failure::Failure;
use lily_engine::checkpoint::{Checkpoint, EmbeddedFiles};

/// What a user is told who named no model.
pub const INTRODUCTION: &str = "\
lily-nano, the small model in the box: good at little. A real one: `hf download mlx-community/Qwen3.6-35B-A3B-4bit`, \
then add `--model mlx-community/Qwen3.6-35B-A3B-4bit`.";

/// A file of the model's directory.
macro_rules! file {
    ($include:ident, $name:literal) => {
        ($name, $include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lily-nano/", $name)))
    };
}

const FILES: EmbeddedFiles = &[
    file!(include_bytes, "config.json"),
    file!(include_bytes, "generation_config.json"),
    file!(include_bytes, "model.safetensors"),
    file!(include_bytes, "tokenizer.json"),
    file!(include_bytes, "tokenizer_config.json"),
    file!(include_bytes, "chat_template.jinja"),
];

/// Held-out questions, one JSON object a line; `models/lily-nano/eval/README.md` says what they mean.
pub const QUESTIONS: [(&str, &str); 6] = [
    file!(include_str, "eval/qa.jsonl"),
    file!(include_str, "eval/two_turn.jsonl"),
    file!(include_str, "eval/think.jsonl"),
    file!(include_str, "eval/tool.jsonl"),
    file!(include_str, "eval/tool_result.jsonl"),
    file!(include_str, "eval/no_tool.jsonl"),
];

/// Opens the model.
pub fn open() -> Result<Checkpoint, Failure> {
    Ok(Checkpoint::embedded(FILES)?)
}
