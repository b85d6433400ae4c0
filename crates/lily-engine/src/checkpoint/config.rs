//! config.json: the model's dimensions and the table of quantised modules.
//!
//! Accepts the text configuration at the top level or under `text_config`, and refuses everything that would change what
//! is computed: another architecture, activation, rotary scheme or routing rule.

use serde_json::{Map, Value};

use super::error::CheckpointError;
use super::quantization::QuantizationTable;
use crate::shape::{AttentionShape, DeltaShape, Mixer, MoeShape, Shape};

/// Model type of an image-text checkpoint; its text part is under `text_config`.
pub(super) const WRAPPED: &str = "qwen3_5_moe";
/// Class of such a checkpoint.
pub(super) const WRAPPED_CLASS: &str = "Qwen3_5MoeForConditionalGeneration";
/// Model type of the text part.
pub(super) const TEXT: &str = "qwen3_5_moe_text";
/// What head sizes and matrix widths are multiples of: the smallest quantisation group, and a SIMD group's lanes.
const WIDTH_UNIT: usize = 32;

const OTHER_MODEL: &str = "lily runs the Qwen3.5/3.6 MoE family only; choose a checkpoint of it";
const INCOMPLETE: &str = "take config.json from the model's repository again";

/// What config.json says.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) shape: Shape,
    pub(super) quantization: QuantizationTable,
    /// End-of-text ids that it names, outer and inner.
    pub(super) eos_token_ids: Vec<u32>,
}

/// Reads the text of config.json.
pub(super) fn parse(file: &str, text: &[u8]) -> Result<Config, CheckpointError> {
    let json = |found| CheckpointError::Json { file: file.to_owned(), expected: "a model configuration", found };
    let root: Value = serde_json::from_slice(text).map_err(|e| json(e.to_string()))?;
    let root = root.as_object().ok_or_else(|| json("not an object".to_owned()))?;
    let section = text_section(file, root)?;
    refuse_variants(&section)?;
    let shape = shape(&section, root)?;
    check_relations(&section, &shape)?;
    let quantization = QuantizationTable::from_config(file, root)?;
    let mut eos_token_ids = Vec::new();
    for map in [root, section.map] {
        eos_token_ids.extend(super::generation::token_ids(map.get("eos_token_id")));
    }
    eos_token_ids.sort_unstable();
    eos_token_ids.dedup();
    Ok(Config { shape, quantization, eos_token_ids })
}

/// The object with the text model's keys, and how to name them.
struct Section<'a> {
    file: &'a str,
    prefix: &'static str,
    map: &'a Map<String, Value>,
}

fn text_section<'a>(file: &'a str, root: &'a Map<String, Value>) -> Result<Section<'a>, CheckpointError> {
    let outer = Section { file, prefix: "", map: root };
    match root.get("model_type").and_then(Value::as_str) {
        Some(TEXT) => Ok(outer),
        Some(WRAPPED) => {
            let map = root.get("text_config").and_then(Value::as_object);
            let map = map.ok_or_else(|| outer.error("text_config", "an object", INCOMPLETE))?;
            let inner = Section { file, prefix: "text_config.", map };
            match map.get("model_type").and_then(Value::as_str) {
                None | Some(TEXT) => Ok(inner),
                Some(_) => Err(inner.error("model_type", &format!("\"{TEXT}\""), OTHER_MODEL)),
            }
        }
        _ => Err(outer.error("model_type", &format!("\"{WRAPPED}\" or \"{TEXT}\""), OTHER_MODEL)),
    }
}

impl Section<'_> {
    /// An error about `key`, a dotted path below this section; what is found there is looked up.
    fn error(&self, key: &str, expected: &str, advice: &'static str) -> CheckpointError {
        let mut found = None;
        let mut map = Some(self.map);
        for part in key.split('.') {
            found = map.and_then(|m| m.get(part));
            map = found.and_then(Value::as_object);
        }
        CheckpointError::Config {
            file: self.file.to_owned(),
            key: format!("{}{key}", self.prefix),
            expected: expected.to_owned(),
            found: found.map_or("no such key".to_owned(), |v| brief(&v.to_string())),
            advice,
        }
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// A whole number between `low` and `high`.
    fn size(&self, key: &str, low: usize, high: usize) -> Result<usize, CheckpointError> {
        let number = self.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        number
            .filter(|n| (low..=high).contains(n))
            .ok_or_else(|| self.error(key, &format!("a whole number from {low} to {high}"), INCOMPLETE))
    }

    /// Refuses every value but those in `allowed`; an absent key is fine.
    fn only(&self, key: &str, allowed: &[Value]) -> Result<(), CheckpointError> {
        match self.get(key) {
            Some(value) if !allowed.contains(value) => {
                let allowed = allowed.iter().map(Value::to_string).collect::<Vec<_>>().join(" or ");
                Err(self.error(key, &format!("{allowed}, or no such key"), OTHER_MODEL))
            }
            _ => Ok(()),
        }
    }
}

/// Long values cut for messages.
fn brief(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text.to_owned(),
    }
}

/// Refuses settings that lily does not compute.
fn refuse_variants(section: &Section) -> Result<(), CheckpointError> {
    section.only("hidden_act", &["silu".into()])?;
    section.only("attention_bias", &[false.into()])?;
    section.only("attn_output_gate", &[true.into()])?;
    section.only("norm_topk_prob", &[true.into()])?;
    section.only("mlp_only_layers", &[Value::Array(Vec::new())])?;
    section.only("decoder_sparse_step", &[1.into()])?;
    section.only("output_gate_type", &["swish".into(), "silu".into()])
}

fn shape(section: &Section, root: &Map<String, Value>) -> Result<Shape, CheckpointError> {
    let eps = section.get("rms_norm_eps").and_then(Value::as_f64).filter(|&e| e > 0.0 && e < 1.0);
    let head_dim = section.size("head_dim", WIDTH_UNIT, 1024)?;
    let (rotary_dim, rope_theta) = rope(section, head_dim)?;
    let tied = section.get("tie_word_embeddings").or_else(|| root.get("tie_word_embeddings"));
    Ok(Shape {
        hidden: section.size("hidden_size", WIDTH_UNIT, 1 << 16)?,
        vocab: section.size("vocab_size", 1, 1 << 24)?,
        rms_eps: eps.ok_or_else(|| section.error("rms_norm_eps", "a number between 0 and 1", INCOMPLETE))? as f32,
        mixers: mixers(section)?,
        attention: AttentionShape {
            heads: section.size("num_attention_heads", 1, 1024)?,
            kv_heads: section.size("num_key_value_heads", 1, 1024)?,
            head_dim,
            rotary_dim,
            rope_theta,
        },
        delta: DeltaShape {
            key_heads: section.size("linear_num_key_heads", 1, 1024)?,
            value_heads: section.size("linear_num_value_heads", 1, 1024)?,
            key_dim: section.size("linear_key_head_dim", WIDTH_UNIT, 1024)?,
            value_dim: section.size("linear_value_head_dim", WIDTH_UNIT, 1024)?,
            conv_width: section.size("linear_conv_kernel_dim", 2, 16)?,
        },
        moe: MoeShape {
            experts: section.size("num_experts", 1, 1 << 16)?,
            top_k: section.size("num_experts_per_tok", 1, 1 << 16)?,
            expert_width: section.size("moe_intermediate_size", WIDTH_UNIT, 1 << 18)?,
            shared_width: section.size("shared_expert_intermediate_size", WIDTH_UNIT, 1 << 18)?,
        },
        tied_head: tied.and_then(Value::as_bool).unwrap_or(false),
        max_context_tokens: section.size("max_position_embeddings", 1, 1 << 30)?,
    })
}

/// The layers' mixers, from `layer_types`, from `full_attention_interval`, or from both where they agree.
fn mixers(section: &Section) -> Result<Vec<Mixer>, CheckpointError> {
    let layers = section.size("num_hidden_layers", 1, 1024)?;
    let by_interval = match section.get("full_attention_interval") {
        None => None,
        Some(_) => {
            let interval = section.size("full_attention_interval", 1, 1024)?;
            let mixer = |i: usize| if (i + 1).is_multiple_of(interval) { Mixer::Attention } else { Mixer::Delta };
            Some((0..layers).map(mixer).collect::<Vec<_>>())
        }
    };
    let Some(types) = section.get("layer_types") else {
        let missing = || section.error("layer_types", "it, or `full_attention_interval`", INCOMPLETE);
        return by_interval.ok_or_else(missing);
    };
    let parse = |value: &Value| match value.as_str() {
        Some("full_attention") => Some(Mixer::Attention),
        Some("linear_attention") => Some(Mixer::Delta),
        _ => None,
    };
    let listed: Option<Vec<Mixer>> = types.as_array().and_then(|list| list.iter().map(parse).collect());
    let listed = listed.filter(|list| list.len() == layers).ok_or_else(|| {
        let expected = format!("{layers} entries, each \"linear_attention\" or \"full_attention\"");
        section.error("layer_types", &expected, INCOMPLETE)
    })?;
    if by_interval.is_some_and(|expected| expected != listed) {
        return Err(section.error("layer_types", "the layers that `full_attention_interval` implies", INCOMPLETE));
    }
    Ok(listed)
}

/// The `full_attention_interval` that describes the layers, if one does.
pub(super) fn attention_interval(shape: &Shape) -> Option<usize> {
    let regular = |interval: &usize| {
        let expected = |i: usize| (i + 1).is_multiple_of(*interval);
        shape.mixers.iter().enumerate().all(|(i, mixer)| (*mixer == Mixer::Attention) == expected(i))
    };
    (1..=shape.layers() + 1).find(regular)
}

/// Rotated dimensions and base, from `rope_parameters` or from the older keys beside it.
fn rope(section: &Section, head_dim: usize) -> Result<(usize, f64), CheckpointError> {
    for block in ["rope_parameters", "rope_scaling"] {
        for key in ["rope_type", "type"] {
            let at = format!("{block}.{key}");
            match section.get(block).and_then(|b| b.get(key)) {
                None => {}
                Some(kind) if kind == "default" => {}
                Some(_) => {
                    let advice = "lily has plain rotary embeddings only; use the model's own config.json, without context extension";
                    return Err(section.error(&at, "\"default\"", advice));
                }
            }
        }
    }
    let number = |key: &str| {
        let block = section.get("rope_parameters").and_then(|b| b.get(key));
        block.or_else(|| section.get(key)).and_then(Value::as_f64)
    };
    let place = |key: &str| match section.get("rope_parameters") {
        Some(_) => format!("rope_parameters.{key}"),
        None => key.to_owned(),
    };
    let theta = number("rope_theta").filter(|t| *t > 1.0 && t.is_finite());
    let theta = theta.ok_or_else(|| section.error(&place("rope_theta"), "a number above 1", INCOMPLETE))?;
    let fraction = number("partial_rotary_factor").filter(|f| *f > 0.0 && *f <= 1.0);
    let dims = fraction.map(|f| f * head_dim as f64);
    let dims = dims.filter(|d| (d - d.round()).abs() < 1e-6).map(|d| d.round() as usize);
    let dims = dims.filter(|d| *d > 0 && d.is_multiple_of(2)).ok_or_else(|| {
        let expected = format!("a fraction of the {head_dim} head dimensions that is an even whole number of them");
        section.error(&place("partial_rotary_factor"), &expected, INCOMPLETE)
    })?;
    Ok((dims, theta))
}

/// Relations between keys that the model's arithmetic needs.
fn check_relations(section: &Section, shape: &Shape) -> Result<(), CheckpointError> {
    let (attention, delta, moe) = (&shape.attention, &shape.delta, &shape.moe);
    for (key, width) in [
        ("hidden_size", shape.hidden),
        ("head_dim", attention.head_dim),
        ("linear_key_head_dim", delta.key_dim),
        ("linear_value_head_dim", delta.value_dim),
        ("moe_intermediate_size", moe.expert_width),
        ("shared_expert_intermediate_size", moe.shared_width),
    ] {
        if !width.is_multiple_of(WIDTH_UNIT) {
            return Err(section.error(key, &format!("a multiple of {WIDTH_UNIT}"), OTHER_MODEL));
        }
    }
    if !attention.heads.is_multiple_of(attention.kv_heads) {
        let expected = format!("a divisor of the {} attention heads", attention.heads);
        return Err(section.error("num_key_value_heads", &expected, INCOMPLETE));
    }
    if !delta.value_heads.is_multiple_of(delta.key_heads) {
        let expected = format!("a divisor of the {} value heads", delta.value_heads);
        return Err(section.error("linear_num_key_heads", &expected, INCOMPLETE));
    }
    if moe.top_k > moe.experts {
        let expected = format!("at most the {} experts", moe.experts);
        return Err(section.error("num_experts_per_tok", &expected, INCOMPLETE));
    }
    Ok(())
}
