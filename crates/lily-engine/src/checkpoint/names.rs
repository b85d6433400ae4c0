//! The two ways in which tensors of the family are named, brought to one.
//!
//! The common name is the Hugging Face path inside the text model: `layers.0.mlp.gate.weight`, `norm.weight`,
//! `lm_head.weight`.

/// Paths under which the text model may sit, longest first.
const MODEL_PREFIXES: [&str; 4] = ["language_model.model.", "model.language_model.", "language_model.", "model."];
/// Parts of a checkpoint that lily leaves alone: the image encoder and the multi-token predictor.
const IGNORED: [&str; 3] = ["vision_tower.", "visual.", "mtp."];

/// What a tensor's name says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name<'a> {
    /// Part of the text model, by its common name.
    Model(&'a str),
    /// Left alone by rule.
    Ignored,
    /// Neither.
    Unknown,
}

/// Classifies a tensor name.
pub(super) fn classify(raw: &str) -> Name<'_> {
    let stripped = without_prefix(raw);
    if IGNORED.iter().any(|part| stripped.starts_with(part) || raw.starts_with(part)) {
        return Name::Ignored;
    }
    match stripped {
        // The head sits beside the model, not in it.
        name if name.starts_with("lm_head.") => match raw.strip_suffix(name) {
            Some("" | "language_model.") => Name::Model(name),
            _ => Name::Unknown,
        },
        // `language_model.layers...` without `model` is neither build.
        name => match raw.strip_suffix(name) {
            Some("" | "language_model.") | None => Name::Unknown,
            Some(_) => Name::Model(name),
        },
    }
}

/// The path of a module without the prefix of its build, for keys of the quantisation table.
pub(super) fn module_key(raw: &str) -> &str {
    without_prefix(raw)
}

fn without_prefix(raw: &str) -> &str {
    MODEL_PREFIXES.iter().find_map(|prefix| raw.strip_prefix(prefix)).unwrap_or(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_builds_come_to_one_name() {
        for (raw, expected) in [
            ("language_model.model.layers.0.mlp.gate.weight", Name::Model("layers.0.mlp.gate.weight")),
            ("model.language_model.layers.0.mlp.gate.weight", Name::Model("layers.0.mlp.gate.weight")),
            ("model.layers.0.mlp.gate.weight", Name::Model("layers.0.mlp.gate.weight")),
            ("model.norm.weight", Name::Model("norm.weight")),
            ("language_model.lm_head.weight", Name::Model("lm_head.weight")),
            ("lm_head.weight", Name::Model("lm_head.weight")),
            ("model.lm_head.weight", Name::Unknown),
            ("language_model.layers.0.mlp.gate.weight", Name::Unknown),
            ("layers.0.mlp.gate.weight", Name::Unknown),
            ("vision_tower.blocks.0.attn.qkv.weight", Name::Ignored),
            ("model.visual.blocks.0.attn.qkv.weight", Name::Ignored),
            ("visual.merger.weight", Name::Ignored),
            ("mtp.layers.0.mlp.gate.weight", Name::Ignored),
            ("language_model.mtp.fc.weight", Name::Ignored),
            ("model.mtp.fc.weight", Name::Ignored),
            ("audio_tower.conv.weight", Name::Unknown),
            ("mtpx.fc.weight", Name::Unknown),
        ] {
            assert_eq!(classify(raw), expected, "{raw}");
        }
    }
}
