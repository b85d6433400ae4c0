//! Unusable config.json and generation_config.json, one row each.

use serde_json::json;

use super::refused::check_parts;
use super::*;

#[test]
fn unusable_configurations() {
    let keys = [
        "hidden_size",
        "num_hidden_layers",
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "max_position_embeddings",
    ];
    let sound = Parts::mlx();
    for key in keys {
        for (value, found) in
            [(None, "found no such key"), (Some(json!("many")), "found \"many\""), (Some(json!(-1)), "found -1")]
        {
            let mut parts = sound.clone();
            match value {
                None => drop(parts.text_config().shift_remove(key)),
                Some(value) => drop(parts.text_config().insert(key.to_owned(), value)),
            }
            let name = format!("config.json: key `text_config.{key}`");
            assert_refused(
                key,
                parts.write().open(),
                &[&name, "expected", found, "config.json from the model's repository"],
            );
        }
    }
}

#[test]
fn configurations_of_other_models() {
    check_parts(&[
        (
            "architecture",
            |p| p.config["model_type"] = "llama".into(),
            &["`model_type`", "qwen3_5_moe", "found \"llama\"", "family only"],
        ),
        (
            "no type",
            |p| drop(p.config.as_object_mut().unwrap().shift_remove("model_type")),
            &["`model_type`", "no such key"],
        ),
        (
            "dense text part",
            |p| p.text_config()["model_type"] = "qwen3_5_text".into(),
            &["`text_config.model_type`", "qwen3_5_text"],
        ),
        (
            "no text part",
            |p| drop(p.config.as_object_mut().unwrap().shift_remove("text_config")),
            &["`text_config`", "an object"],
        ),
        (
            "activation",
            |p| drop(p.text_config().insert("hidden_act".into(), "gelu".into())),
            &["hidden_act", "\"silu\"", "gelu"],
        ),
        ("attention bias", |p| p.text_config()["attention_bias"] = true.into(), &["attention_bias", "found true"]),
        ("no output gate", |p| p.text_config()["attn_output_gate"] = false.into(), &["attn_output_gate"]),
        (
            "weights not renormalised",
            |p| drop(p.text_config().insert("norm_topk_prob".into(), false.into())),
            &["norm_topk_prob", "found false"],
        ),
        (
            "dense layers",
            |p| drop(p.text_config().insert("mlp_only_layers".into(), json!([0]))),
            &["mlp_only_layers", "[0]"],
        ),
        (
            "YaRN",
            |p| p.text_config()["rope_parameters"]["rope_type"] = "yarn".into(),
            &["rope_parameters.rope_type", "\"yarn\"", "default"],
        ),
        (
            "older YaRN",
            |p| drop(p.text_config().insert("rope_scaling".into(), json!({ "type": "yarn" }))),
            &["rope_scaling.type", "yarn"],
        ),
        (
            "no rope base",
            |p| drop(p.text_config()["rope_parameters"].as_object_mut().unwrap().shift_remove("rope_theta")),
            &["rope_parameters.rope_theta"],
        ),
        (
            "no rope",
            |p| drop(p.text_config().shift_remove("rope_parameters")),
            &["`text_config.rope_theta`", "no such key"],
        ),
        (
            "odd rotary",
            |p| p.text_config()["rope_parameters"]["partial_rotary_factor"] = json!(0.03125),
            &["partial_rotary_factor", "even"],
        ),
        (
            "fractional rotary",
            |p| p.text_config()["rope_parameters"]["partial_rotary_factor"] = json!(0.3),
            &["partial_rotary_factor"],
        ),
        (
            "rotary above one",
            |p| p.text_config()["rope_parameters"]["partial_rotary_factor"] = json!(2),
            &["partial_rotary_factor"],
        ),
        ("head size", |p| p.text_config()["head_dim"] = 48.into(), &["head_dim", "multiple of 32", "48"]),
        (
            "KV heads",
            |p| p.text_config()["num_key_value_heads"] = 3.into(),
            &["num_key_value_heads", "divisor of the 2"],
        ),
        (
            "key heads",
            |p| p.text_config()["linear_num_key_heads"] = 3.into(),
            &["linear_num_key_heads", "divisor of the 2"],
        ),
        (
            "too many chosen",
            |p| p.text_config()["num_experts_per_tok"] = 5.into(),
            &["num_experts_per_tok", "at most the 4 experts"],
        ),
        ("no experts", |p| p.text_config()["num_experts"] = 0.into(), &["num_experts", "found 0"]),
        (
            "absurd width",
            |p| p.text_config()["hidden_size"] = json!(1u64 << 60),
            &["hidden_size", "whole number from 32 to"],
        ),
        (
            "short layer list",
            |p| p.text_config()["layer_types"] = json!(["full_attention"]),
            &["layer_types", "2 entries"],
        ),
        (
            "unknown layer",
            |p| p.text_config()["layer_types"] = json!(["linear_attention", "sliding_attention"]),
            &["layer_types"],
        ),
        (
            "layers disagree",
            |p| p.text_config()["full_attention_interval"] = 1.into(),
            &["layer_types", "full_attention_interval"],
        ),
        (
            "no layers",
            |p| {
                p.text_config().shift_remove("layer_types");
                p.text_config().shift_remove("full_attention_interval");
            },
            &["layer_types", "or `full_attention_interval`"],
        ),
        (
            "three-valued mode",
            |p| p.config["quantization"]["mode"] = "mxfp4".into(),
            &["quantization.mode", "\"affine\"", "mxfp4"],
        ),
        (
            "bits",
            |p| p.config["quantization"]["bits"] = 7.into(),
            &["quantization.bits", "[2, 3, 4, 5, 6, 8]", "found 7"],
        ),
        ("group", |p| p.config["quantization"]["group_size"] = 48.into(), &["quantization.group_size", "found 48"]),
        (
            "override's bits",
            |p| p.config["quantization"]["language_model.lm_head"] = json!({ "bits": 1 }),
            &["quantization.language_model.lm_head.bits"],
        ),
        (
            "another tool's block",
            |p| {
                p.config.as_object_mut().unwrap().shift_remove("quantization");
                p.config["quantization_config"] = json!({ "quant_method": "awq", "bits": 4 });
            },
            &["quantization_config.quant_method", "awq"],
        ),
    ]);
    let written = Parts::mlx().write();
    for (text, expected) in [("{", "invalid JSON"), ("[]", "not an object"), ("", "invalid JSON")] {
        std::fs::write(written.file(CONFIG), text).unwrap();
        assert_refused(text, written.open(), &["config.json: expected a model configuration", expected]);
    }
}

#[test]
fn generation_settings_that_are_not_json() {
    let written = Parts::mlx().write();
    std::fs::write(written.file(GENERATION_CONFIG), "temperature: 1").unwrap();
    assert_refused("yaml", written.open(), &["generation_config.json: expected generation settings", "invalid JSON"]);
}
