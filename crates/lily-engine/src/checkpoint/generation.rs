//! generation_config.json: how the model's makers sample from it.
//!
//! Only reads the values; the sampler decides what they mean.

use serde_json::{Map, Value};

use super::error::CheckpointError;

/// Sampling defaults and special ids; `None` where the file does not say.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct GenerationConfig {
    /// Whether to sample at all; `Some(false)` means greedy.
    pub do_sample: Option<bool>,
    /// Softmax temperature.
    pub temperature: Option<f32>,
    /// Nucleus mass.
    pub top_p: Option<f32>,
    /// Candidates kept.
    pub top_k: Option<u32>,
    /// Least probability relative to the best candidate.
    pub min_p: Option<f32>,
    /// Divides (multiplies) logits of tokens seen.
    pub repetition_penalty: Option<f32>,
    /// Subtracted once from logits of tokens generated.
    pub presence_penalty: Option<f32>,
    /// Subtracted per occurrence from logits of tokens generated.
    pub frequency_penalty: Option<f32>,
    /// Every id that ends generation, those of config.json included; sorted.
    pub eos_token_ids: Vec<u32>,
    /// Padding id.
    pub pad_token_id: Option<u32>,
}

impl GenerationConfig {
    /// Reads the file's text; `None` for a checkpoint without one. `eos_token_ids` are those of config.json.
    pub(super) fn parse(file: &str, text: Option<&[u8]>, mut eos_token_ids: Vec<u32>) -> Result<Self, CheckpointError> {
        let Some(text) = text else {
            return Ok(Self { eos_token_ids, ..Self::default() });
        };
        let map: Map<String, Value> = serde_json::from_slice(text).map_err(|e| CheckpointError::Json {
            file: file.to_owned(),
            expected: "generation settings",
            found: e.to_string(),
        })?;
        eos_token_ids.extend(token_ids(map.get("eos_token_id")));
        eos_token_ids.sort_unstable();
        eos_token_ids.dedup();
        let number = |key: &str| map.get(key).and_then(Value::as_f64).map(|n| n as f32);
        let whole = |key: &str| map.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
        Ok(Self {
            do_sample: map.get("do_sample").and_then(Value::as_bool),
            temperature: number("temperature"),
            top_p: number("top_p"),
            top_k: whole("top_k"),
            min_p: number("min_p"),
            repetition_penalty: number("repetition_penalty"),
            presence_penalty: number("presence_penalty"),
            frequency_penalty: number("frequency_penalty"),
            eos_token_ids,
            pad_token_id: whole("pad_token_id"),
        })
    }
}

/// Token ids written as one number or as a list of them.
pub(super) fn token_ids(value: Option<&Value>) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}
