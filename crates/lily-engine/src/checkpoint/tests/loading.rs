//! Sound checkpoints in all their forms, and what is read from them.

use serde_json::json;

use super::*;
use crate::checkpoint::inspect::Report;
use crate::memory::{Asked, MemoryPlan};
use crate::model::Model;
use crate::weights::{Float, Format, Matrix, MixerWeights};

/// The Hugging Face build with a tensor for each expert, as transformers saves it.
pub(super) fn hugging_face_apart() -> Parts {
    let mut parts = Parts::hugging_face();
    let (stacked, mut tensors): (Vec<Tensor>, Vec<Tensor>) =
        parts.tensors.into_iter().partition(|t| t.name.contains(".experts."));
    for tensor in stacked {
        let (at, fused) = tensor.name.rsplit_once('.').unwrap();
        let projections: &[&str] = if fused == "gate_up_proj" { &["gate_proj", "up_proj"] } else { &["down_proj"] };
        let pieces = tensor.dims[0] * projections.len();
        for (piece, bytes) in tensor.bytes.chunks(tensor.bytes.len() / pieces).enumerate() {
            let (expert, projection) = (piece / projections.len(), projections[piece % projections.len()]);
            tensors.push(Tensor {
                name: format!("{at}.{expert}.{projection}.weight"),
                dtype: tensor.dtype,
                dims: vec![tensor.dims[1] / projections.len(), tensor.dims[2]],
                bytes: bytes.to_vec(),
            });
        }
    }
    // As transformers sorts: expert 10 before expert 2.
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    parts.tensors = tensors;
    parts
}

/// Elements of one row of an unquantised matrix.
fn row(checkpoint: &Checkpoint, matrix: &Matrix, expert: usize, row: usize) -> Vec<f32> {
    let Format::Dense(Float::Bf16) = matrix.format else { panic!("{:?}", matrix.format) };
    let stored_row = matrix.first_row + expert * matrix.expert_stride_rows + row;
    let bytes = &checkpoint.bytes(matrix.codes)[stored_row * matrix.cols * 2..][..matrix.cols * 2];
    super::super::bind::widen(Dtype::BF16, bytes)
}

fn values(tensor: &Tensor) -> Vec<f32> {
    super::super::bind::widen(tensor.dtype, &tensor.bytes)
}

#[test]
fn the_mlx_build() {
    let mut parts = Parts::mlx();
    let checkpoint = parts.write().open().unwrap();
    assert_eq!(checkpoint.build, Build::Mlx);
    assert_eq!(checkpoint.weights.shape, tiny_shape());
    assert_eq!(checkpoint.weight_bytes(), parts.tensors.iter().map(|t| t.bytes.len()).sum::<usize>());

    let layer = &checkpoint.weights.layers[0];
    let four = Format::Affine { bits: 4, group: 64, scale: Float::Bf16 };
    let eight = Format::Affine { bits: 8, group: 64, scale: Float::Bf16 };
    assert_eq!((layer.moe.router.format, layer.moe.shared_scale.format), (eight, eight));
    assert_eq!((layer.moe.gate.format, checkpoint.weights.head.format), (four, four));
    let up = layer.moe.up;
    assert_eq!((up.experts, up.rows, up.cols, up.expert_stride_rows, up.first_row), (4, 64, 64, 64, 0));
    assert_eq!(checkpoint.bytes(up.codes), parts.tensor("layers.0.mlp.switch_mlp.up_proj.weight").bytes);
    assert_eq!(checkpoint.bytes(up.biases), parts.tensor("layers.0.mlp.switch_mlp.up_proj.biases").bytes);

    let MixerWeights::Delta(delta) = &layer.mixer else { panic!("layer 0 is DeltaNet") };
    assert_eq!(delta.conv, values(parts.tensor("conv1d.weight")));
    assert_eq!(delta.a_log, values(parts.tensor("A_log")));
    assert_eq!(layer.input_norm, values(parts.tensor("layers.0.input_layernorm.weight")));
}

#[test]
fn the_hugging_face_build() {
    let mut parts = Parts::hugging_face();
    let checkpoint = parts.write().open().unwrap();
    assert_eq!(checkpoint.build, Build::HuggingFace);
    let layer = &checkpoint.weights.layers[0];

    // Gains less one get it back in f32; the DeltaNet output norm is direct.
    let plus_one = |t: &Tensor| values(t).iter().map(|v| v + 1.0).collect::<Vec<f32>>();
    assert_eq!(layer.input_norm, plus_one(parts.tensor("layers.0.input_layernorm.weight")));
    assert_eq!(checkpoint.weights.final_norm, plus_one(parts.tensor("language_model.norm.weight")));
    let MixerWeights::Attention(attention) = &checkpoint.weights.layers[1].mixer else {
        panic!("layer 1 is attention")
    };
    assert_eq!(attention.k_norm, plus_one(parts.tensor("k_norm.weight")));
    let MixerWeights::Delta(delta) = &layer.mixer else { panic!("layer 0 is DeltaNet") };
    assert_eq!(delta.norm, values(parts.tensor("linear_attn.norm.weight")));
    assert_eq!(delta.conv, values(parts.tensor("conv1d.weight")));

    // Gate and up are the halves of one tensor [4, 128, 64].
    let fused = values(parts.tensor("layers.0.mlp.experts.gate_up_proj"));
    for (matrix, half) in [(&layer.moe.gate, 0), (&layer.moe.up, 64)] {
        for (expert, index) in [(0, 0), (1, 5), (3, 63)] {
            let start = (expert * 128 + half + index) * 64;
            assert_eq!(row(&checkpoint, matrix, expert, index), fused[start..start + 64], "{expert} {index}");
        }
    }
}

#[test]
fn experts_stored_one_by_one_are_stacked() {
    let (fused, apart) = (Parts::hugging_face().write(), hugging_face_apart().write());
    let (fused, apart) = (fused.open().unwrap(), apart.open().unwrap());
    for (a, b) in fused.weights.layers.iter().zip(&apart.weights.layers) {
        for (a, b) in [(&a.moe.gate, &b.moe.gate), (&a.moe.up, &b.moe.up), (&a.moe.down, &b.moe.down)] {
            for (expert, index) in [(0, 0), (1, 7), (3, 63)] {
                assert_eq!(row(&fused, a, expert, index), row(&apart, b, expert, index));
            }
        }
    }
    let report = Report::new(&apart, Vec::new());
    assert_eq!(report.copied_bytes, 2 * 4 * 3 * 64 * 64 * 2);
    assert!(report.to_string().contains("experts are stored one by one"));
}

#[test]
fn names_may_have_other_prefixes() {
    let check = |parts: Parts, build: Build| assert_eq!(parts.write().open().unwrap().build, build);
    let renamed = |from: &str, to: &str| {
        let mut parts = Parts::hugging_face();
        parts.tensors.iter_mut().for_each(|t| t.name = t.name.replace(from, to));
        parts
    };
    check(renamed("model.language_model.", "model."), Build::HuggingFace);
    check(renamed("model.language_model.", "language_model.model."), Build::HuggingFace);
    check(renamed("gate_up_proj", "gate_up_proj.weight"), Build::HuggingFace);
    let mut parts = Parts::mlx();
    for tensor in &mut parts.tensors {
        tensor.name =
            tensor.name.replace("language_model.model.", "model.").replace("language_model.lm_head", "lm_head");
    }
    check(parts, Build::Mlx);
}

#[test]
fn without_convolutions_names_tell_the_build() {
    for (mut parts, build) in [(Parts::mlx(), Build::Mlx), (Parts::hugging_face(), Build::HuggingFace)] {
        let text = parts.text_config();
        (text["layer_types"], text["num_hidden_layers"]) = (json!(["full_attention"]), 1.into());
        text["full_attention_interval"] = 1.into();
        parts.tensors.retain(|t| !t.name.contains("layers.0."));
        parts.tensors.iter_mut().for_each(|t| t.name = t.name.replace("layers.1.", "layers.0."));
        assert_eq!(parts.write().open().unwrap().build, build);
    }
}

#[test]
fn other_parts_and_stray_files_are_left_alone() {
    let mut parts = Parts::mlx();
    for name in
        ["vision_tower.blocks.0.attn.qkv.weight", "language_model.mtp.fc.weight", "mtp.norm.weight", "visual.merger"]
    {
        parts.tensors.push(bf16_tensor(name, &[8, 4], 0));
    }
    // Ignored tensors may be of any type.
    parts.tensors.push(Tensor { name: "mtp.map".into(), dtype: Dtype::I64, dims: vec![1], bytes: vec![0; 8] });
    let written = parts.write();
    std::fs::write(written.file("extra.safetensors"), "not even safetensors").unwrap();
    std::fs::write(written.file("model-00001-of-00002.safetensors"), "stale").unwrap();
    let checkpoint = written.open().unwrap();
    let report = Report::new(&checkpoint, Vec::new());
    assert_eq!((report.ignored.tensors, report.ignored.bytes), (5, 4 * 64 + 8));
    assert_eq!(report.weight_bytes, Parts::mlx().tensors.iter().map(|t| t.bytes.len()).sum::<usize>());
}

#[test]
fn the_index_decides() {
    let parts = Parts::mlx();
    let written = parts.write_sharded(20_000);
    // A stale single file beside the index, and a stray tensor in a shard that the index does not list.
    std::fs::write(written.file(SINGLE), "stale").unwrap();
    let checkpoint = written.open().unwrap();
    assert!(checkpoint.file_names().len() > 2);
    assert_eq!(checkpoint.tensors().len(), parts.tensors.len());

    let mut more = parts.clone();
    more.tensors.push(bf16_tensor("language_model.model.stray", &[4], 0));
    let written = more.write_sharded(20_000);
    assert_refused("listed", written.open(), &["language_model.model.stray"]);
    written.edit(INDEX, |bytes| {
        let mut index: Value = serde_json::from_slice(bytes).unwrap();
        index["weight_map"].as_object_mut().unwrap().shift_remove("language_model.model.stray").unwrap();
        *bytes = index.to_string().into_bytes();
    });
    written.open().unwrap();
}

#[test]
fn a_tied_head_is_the_embedding() {
    let mut parts = Parts::mlx();
    parts.text_config()["tie_word_embeddings"] = true.into();
    // A second copy of the matrix is tolerated, and so is its absence.
    assert_eq!(tied(&parts), tied(&Parts { tensors: without_head(&parts), ..parts.clone() }));

    fn without_head(parts: &Parts) -> Vec<Tensor> {
        parts.tensors.iter().filter(|t| !t.name.contains("lm_head")).cloned().collect()
    }
    fn tied(parts: &Parts) -> Vec<u8> {
        let checkpoint = parts.write().open().unwrap();
        let weights = &checkpoint.weights;
        assert!(weights.shape.tied_head);
        assert_eq!(weights.head, weights.embed);
        checkpoint.bytes(weights.head.codes).to_vec()
    }
}

#[test]
fn forms_of_the_quantisation_table() {
    // The same files under every way to say that routing is 8-bit and the rest 4-bit.
    let rows: &[fn(&mut Map<String, Value>)] = &[
        |_| {},
        |root| drop(root.shift_remove("quantization")),
        |root| drop(root.shift_remove("quantization_config")),
        |root| root["quantization_config"] = Value::Null,
        |root| overrides(root, |_, entry| *entry = json!({ "bits": 8 })),
        |root| overrides(root, |_, entry| *entry = json!({ "bits": 8, "mode": "affine", "other": 1 })),
        |root| overrides(root, |name, _| *name = name.replace("language_model.model.", "")),
        |root| overrides(root, |name, _| *name = name.replace("language_model.model.", "model.language_model.")),
        |root| root["quantization"]["language_model.model.layers.0.linear_attn.in_proj_z"] = true.into(),
        |root| root["quantization"]["vision_tower.blocks.0.attn"] = false.into(),
        |root| drop(root["quantization"].as_object_mut().unwrap().shift_remove("mode")),
        |root| drop(root["quantization"].as_object_mut().unwrap().shift_remove("bits")),
        |root| {
            // 8-bit by default, with every 4-bit module listed.
            let names = super::super::layout::slots(&tiny_shape());
            let mut table = json!({ "group_size": 64, "bits": 8 });
            for slot in names.iter().filter(|slot| !slot.is_routing()) {
                table[super::super::layout::mlx_name(&slot.name)] = json!({ "group_size": 64 });
            }
            root["quantization"] = table;
        },
    ];
    let sound = Parts::mlx();
    for (index, change) in rows.iter().enumerate() {
        let mut parts = sound.clone();
        change(parts.config.as_object_mut().unwrap());
        let opened = parts.write().open();
        let weights = opened.unwrap_or_else(|error| panic!("form {index}: {error}")).weights;
        assert!(matches!(weights.layers[1].moe.router.format, Format::Affine { bits: 8, .. }), "form {index}");
        assert!(matches!(weights.layers[1].moe.down.format, Format::Affine { bits: 4, .. }), "form {index}");
    }

    fn overrides(root: &mut Map<String, Value>, change: impl Fn(&mut String, &mut Value)) {
        let block = root["quantization"].as_object_mut().unwrap();
        *block = std::mem::take(block)
            .into_iter()
            .map(|(mut name, mut entry)| {
                if entry.is_object() {
                    change(&mut name, &mut entry);
                }
                (name, entry)
            })
            .collect();
    }
}

#[test]
fn modules_may_stay_unquantised() {
    for declared in [Some(Value::Bool(false)), None] {
        let mut parts = Parts::mlx();
        parts.remove("layers.0.linear_attn.in_proj_a.scales");
        parts.remove("layers.0.linear_attn.in_proj_a.biases");
        *parts.tensor("in_proj_a.weight") =
            bf16_tensor("language_model.model.layers.0.linear_attn.in_proj_a.weight", &[2, 64], 1);
        if let Some(value) = declared {
            parts.config["quantization"]["language_model.model.layers.0.linear_attn.in_proj_a"] = value;
        }
        let checkpoint = parts.write().open().unwrap();
        let MixerWeights::Delta(delta) = &checkpoint.weights.layers[0].mixer else { panic!("layer 0 is DeltaNet") };
        assert_eq!(delta.a.format, Format::Dense(Float::Bf16));
        assert_eq!(row(&checkpoint, &delta.a, 0, 1), values(parts.tensor("in_proj_a.weight"))[64..]);
    }
}

#[test]
fn configurations_may_be_bare_or_of_an_older_form() {
    let rows: &[fn(&mut Parts)] = &[
        |parts| {
            let (mut text, quantization) = (parts.config["text_config"].clone(), parts.config["quantization"].clone());
            text["quantization"] = quantization;
            parts.config = text;
        },
        |parts| drop(parts.text_config().shift_remove("model_type")),
        |parts| drop(parts.text_config().shift_remove("layer_types")),
        |parts| drop(parts.text_config().shift_remove("full_attention_interval")),
        |parts| drop(parts.text_config().insert("norm_topk_prob".into(), true.into())),
        |parts| drop(parts.text_config().shift_remove("hidden_act")),
        |parts| {
            let rope = parts.text_config().shift_remove("rope_parameters").unwrap();
            for key in ["rope_theta", "partial_rotary_factor"] {
                parts.text_config().insert(key.into(), rope[key].clone());
            }
            parts.text_config().insert("rope_scaling".into(), Value::Null);
        },
        |parts| parts.text_config()["rope_parameters"]["mrope_section"] = json!([11, 11, 10]),
        |parts| parts.text_config()["rope_parameters"]["rope_theta"] = json!(10_000),
    ];
    let sound = Parts::mlx();
    for (index, change) in rows.iter().enumerate() {
        let mut parts = sound.clone();
        change(&mut parts);
        let checkpoint = parts.write().open().unwrap_or_else(|error| panic!("form {index}: {error}"));
        assert_eq!(checkpoint.weights.shape, tiny_shape(), "form {index}");
    }
}

#[test]
fn generation_settings_and_end_of_text_ids() {
    let mut parts = Parts::mlx();
    parts.text_config().insert("eos_token_id".into(), 44.into());
    let written = parts.write();
    assert_eq!(written.open().unwrap().generation, GenerationConfig { eos_token_ids: vec![44], ..Default::default() });
    let text = r#"{"do_sample": true, "temperature": 0.5, "top_p": 0.95, "top_k": 20, "eos_token_id": [46, 44], "pad_token_id": 44}"#;
    std::fs::write(written.file(GENERATION_CONFIG), text).unwrap();
    let expected = GenerationConfig {
        do_sample: Some(true),
        temperature: Some(0.5),
        top_p: Some(0.95),
        top_k: Some(20),
        eos_token_ids: vec![44, 46],
        pad_token_id: Some(44),
        ..Default::default()
    };
    assert_eq!(written.open().unwrap().generation, expected);
}

#[test]
fn a_model_in_the_binary_opens_like_one_on_disk() {
    let written = Parts::mlx().write();
    let leak = |name: &str| {
        // One byte in front makes the file as unaligned as a slice in a binary may be.
        let mut bytes = vec![0];
        bytes.extend(std::fs::read(written.file(name)).unwrap());
        &bytes.leak()[1..]
    };
    let files: Vec<(&'static str, &'static [u8])> =
        vec![(CONFIG, leak(CONFIG)), (SINGLE, leak(SINGLE)), ("tokenizer.json", b"{}")];
    let embedded = Checkpoint::embedded(files.leak()).unwrap();
    let opened = written.open().unwrap();
    assert_eq!(embedded.weights.layers[0].input_norm, opened.weights.layers[0].input_norm);
    assert_eq!(embedded.bytes(embedded.weights.head.codes), opened.bytes(opened.weights.head.codes));
    assert_eq!(embedded.side_file("tokenizer.json").unwrap().as_deref(), Some(&b"{}"[..]));
    assert_eq!(embedded.side_file("chat_template.jinja").unwrap(), None);
    assert_refused("nothing", Checkpoint::embedded(&[]), &["(built-in model)", "no weight files"]);
}

/// What a model and one session leave: half of it for remembered prefixes where further sessions are asked for.
#[test]
fn what_is_left_is_shared() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("model");
    synth(&tiny_shape(), &path, &SynthOptions::default(), &mut |_| {}).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let model = Model::new(&checkpoint.weights, crate::model::Traits::CPU, 16, 128);
    let plan = |sessions, cache_bytes, available| {
        MemoryPlan::new(&checkpoint, &model, Asked { sessions, cache_bytes }, available)
    };
    let least = plan(1, 0, None);
    let one = least.kv_bytes + least.recurrent_bytes;
    let available = least.total_bytes() + 6 * one;
    for (sessions, cache_bytes, want) in [
        (1, usize::MAX, (1, 6 * one)),
        (2, usize::MAX, (2, 3 * one)),
        (9, usize::MAX, (4, 3 * one)),
        (9, one, (6, one)),
    ] {
        let plan = plan(sessions, cache_bytes, Some(available));
        assert_eq!((plan.sessions, plan.cache_bytes), want, "{sessions} sessions");
        assert!(plan.total_bytes() <= available);
    }
}

#[test]
fn the_report() {
    let mut shape = tiny_shape();
    shape.vocab = 128;
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("model");
    synth(&shape, &path, &SynthOptions::default(), &mut |_| {}).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let plan = |context| {
        let model = Model::new(&checkpoint.weights, crate::model::Traits::CPU, 16, context);
        MemoryPlan::new(&checkpoint, &model, Asked::default(), None)
    };
    let report = Report::new(&checkpoint, vec![plan(128), plan(512)]);

    let format_bytes: usize = report.formats.iter().map(|row| row.bytes).sum();
    let vector_bytes: usize = report
        .tensors
        .iter()
        .filter(|t| t.dtype != "U32" && !t.name.contains("scales") && !t.name.contains("biases"))
        .map(|t| t.bytes)
        .sum();
    assert_eq!(format_bytes + vector_bytes, report.weight_bytes);
    assert_eq!(
        report.formats.iter().map(|row| (row.format.as_str(), row.matrices)).collect::<Vec<_>>(),
        [("4-bit, groups of 64, bf16 scales", 23), ("8-bit, groups of 64, bf16 scales", 4),]
    );
    assert!((report.mean_norm_gain - 1.0).abs() < 0.02);
    let row = &report.memory[1];
    assert_eq!((row.plan.context_tokens, row.plan.kv_bytes), (512, 512 * 2 * 32 * 2));
    assert_eq!(row.total_bytes, row.plan.total_bytes());

    let text = report.to_string();
    for part in [
        "MLX; norm gains average",
        "2: 1 Gated DeltaNet, 1 attention",
        "4-bit, groups of 64",
        "KV cache",
        "lm_head.weight",
    ] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    let value = serde_json::to_value(&report).unwrap();
    assert_eq!((&value["build"], &value["model"]["experts"]), (&json!("mlx"), &json!(4)));
    assert_eq!(value["memory"][0]["context_tokens"], 128);
}

#[test]
fn the_published_shape_counts_its_parameters() {
    let facts = crate::checkpoint::inspect::ModelFacts::of(&Shape::qwen36_35b_a3b());
    assert_eq!((facts.delta_layers, facts.attention_layers), (30, 10));
    assert!((34.6e9..34.8e9).contains(&(facts.parameters as f64)), "{}", facts.parameters);
    assert!((2.8e9..3.1e9).contains(&(facts.active_parameters as f64)), "{}", facts.active_parameters);
}
