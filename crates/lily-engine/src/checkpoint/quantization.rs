//! The quantisation table of config.json: which format each module is stored in.
//!
//! Only what the file declares; whether the tensors agree is checked when they are bound.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::error::CheckpointError;
use super::names::module_key;

/// What MLX takes where an override does not say.
const DEFAULT_BITS: u64 = 4;
/// What MLX takes where an override does not say.
const DEFAULT_GROUP: u64 = 64;
/// Code widths that are read.
pub(super) const BITS: [u64; 6] = [2, 3, 4, 5, 6, 8];
/// Group sizes that are read.
pub(super) const GROUPS: [u64; 3] = [32, 64, 128];

/// Affine code width and group size of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Affine {
    /// Bits of a code.
    pub bits: u8,
    /// Inputs that share a scale and a bias.
    pub group: u8,
}

/// What the configuration says about one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    /// Quantised like this.
    Affine(Affine),
    /// Plain elements.
    Dense,
    /// Not listed: as the global entry says if it has scales, plain otherwise.
    Unlisted,
}

/// The table: a global entry and overrides by module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantizationTable {
    /// Format of quantised modules without an override; `None` for an unquantised checkpoint.
    pub global: Option<Affine>,
    /// By module path without its prefix; `None` for a module left unquantised.
    overrides: HashMap<String, Option<Affine>>,
}

impl QuantizationTable {
    /// Reads `quantization`, or `quantization_config` where only that exists, from the root of config.json.
    pub(super) fn from_config(file: &str, root: &Map<String, Value>) -> Result<Self, CheckpointError> {
        let present = |key: &'static str| root.get(key).filter(|v| !v.is_null()).map(|v| (key, v));
        let Some((key, value)) = present("quantization").or_else(|| present("quantization_config")) else {
            return Ok(Self::default());
        };
        let Some(block) = value.as_object() else {
            return Err(refused(file, key, "an object", value));
        };
        if let Some(method) = block.get("quant_method") {
            return Err(refused(file, &format!("{key}.quant_method"), "MLX affine quantisation (no such key)", method));
        }
        let global = entry(file, key, block)?;
        let mut overrides = HashMap::new();
        for (module, value) in block {
            let at = format!("{key}.{module}");
            let format = match value {
                Value::Object(fields) => Some(entry(file, &at, fields)?),
                Value::Bool(false) => None,
                Value::Bool(true) => Some(global),
                _ => continue,
            };
            overrides.insert(module_key(module).to_owned(), format);
        }
        Ok(Self { global: Some(global), overrides })
    }

    /// What is declared for a module, named without its prefix (`layers.0.mlp.gate`).
    pub(super) fn declared(&self, module: &str) -> Declared {
        match self.overrides.get(module) {
            Some(Some(affine)) => Declared::Affine(*affine),
            Some(None) => Declared::Dense,
            None => Declared::Unlisted,
        }
    }
}

/// One entry; fields that are absent take MLX's defaults.
fn entry(file: &str, at: &str, fields: &Map<String, Value>) -> Result<Affine, CheckpointError> {
    if let Some(mode) = fields.get("mode")
        && mode.as_str() != Some("affine")
    {
        return Err(refused(file, &format!("{at}.mode"), "\"affine\"", mode));
    }
    let number = |key: &str, default: u64, allowed: &[u64]| match fields.get(key) {
        None => Ok(default),
        Some(value) => match value.as_u64() {
            Some(number) if allowed.contains(&number) => Ok(number),
            _ => Err(refused(file, &format!("{at}.{key}"), &format!("one of {allowed:?}"), value)),
        },
    };
    let bits = number("bits", DEFAULT_BITS, &BITS)?;
    let group = number("group_size", DEFAULT_GROUP, &GROUPS)?;
    Ok(Affine { bits: bits as u8, group: group as u8 })
}

fn refused(file: &str, key: &str, expected: &str, found: &Value) -> CheckpointError {
    CheckpointError::Config {
        file: file.to_owned(),
        key: key.to_owned(),
        expected: expected.to_owned(),
        found: found.to_string(),
        advice: "use a build in MLX's affine form, or run `lily quantize` on the bf16 original",
    }
}
