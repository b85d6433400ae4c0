//! Damaged and foreign weight files, one row each: what was done to them, and what the message must say.

use serde_json::json;

use super::*;

/// A case: its name, the damage, and parts of the message.
type Row<T> = (&'static str, fn(&mut T), &'static [&'static str]);

/// Applies each row to a freshly written MLX build in a single file.
fn check_files(rows: &[Row<Written>]) {
    let parts = Parts::mlx();
    for (case, damage, expected) in rows {
        let mut written = parts.write();
        damage(&mut written);
        assert_refused(case, written.open(), expected);
    }
}

/// Applies each row to the parts of an MLX build before they are written.
pub(super) fn check_parts(rows: &[Row<Parts>]) {
    let sound = Parts::mlx();
    for (case, damage, expected) in rows {
        let mut parts = sound.clone();
        damage(&mut parts);
        assert_refused(case, parts.write().open(), expected);
    }
}

#[test]
fn paths_that_are_no_checkpoint() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    let put = |name: &str, content: &[u8]| {
        std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
        std::fs::write(path(name), content).unwrap();
    };
    put("model.gguf", b"GGUF\x03\0\0\0");
    put("config.json", b"{}");
    put("lfs.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n");
    put("gguf/model-q4.gguf", b"GGUF\x03\0\0\0");
    put("gguf/config.json", b"{}");
    put("empty/README.md", b"hello");
    put("torch/pytorch_model.bin", b"PK");
    put("shards/model-00001-of-00002.safetensors", b"");
    put("bare/model.safetensors", b"");
    for (name, expected) in [
        ("absent", &["absent: no such file or directory", "give the directory"][..]),
        (
            "config.json",
            &["config.json: expected a checkpoint directory, found a file", "give the directory that holds it"],
        ),
        ("model.gguf", &["model.gguf", "found GGUF", "lily quantize"]),
        ("lfs.safetensors", &["lfs.safetensors", "git-lfs pointer", "git lfs pull"]),
        ("gguf", &["model-q4.gguf", "found GGUF"]),
        ("empty", &["expected model.safetensors", "found no weight files", "downloaded model"]),
        ("torch", &["found 1 .bin file", "safetensors"]),
        ("shards", &["1 .safetensors file(s) without an index", "download model.safetensors.index.json"]),
        ("bare", &["config.json", "found no such file", "download it"]),
    ] {
        assert_refused(name, Checkpoint::open(&path(name)), expected);
    }
}

#[test]
fn damaged_weight_files() {
    check_files(&[
        (
            "GGUF by another name",
            |w| w.edit(SINGLE, |b| *b = b"GGUF\x03\0\0\0".to_vec()),
            &["model.safetensors", "found GGUF"],
        ),
        (
            "git-lfs pointer",
            |w| w.edit(SINGLE, |b| *b = b"version https://git-lfs.github.com/spec/v1\n".to_vec()),
            &["model.safetensors", "git-lfs pointer"],
        ),
        (
            "git-lfs config",
            |w| w.edit(CONFIG, |b| *b = b"version https://git-lfs.github.com/spec/v1\n".to_vec()),
            &["config.json", "git lfs pull"],
        ),
        (
            "truncated by one byte",
            |w| w.edit(SINGLE, |b| b.truncate(b.len() - 1)),
            &["model.safetensors: expected", "incomplete"],
        ),
        ("cut in half", |w| w.edit(SINGLE, |b| b.truncate(b.len() / 2)), &["bytes as its header says", "incomplete"]),
        (
            "cut inside the header",
            |w| w.edit(SINGLE, |b| b.truncate(100)),
            &["header of at most 92 bytes", "length field of"],
        ),
        ("one byte more", |w| w.edit(SINGLE, |b| b.push(0)), &["model.safetensors: expected", "damaged"]),
        ("empty", |w| w.edit(SINGLE, Vec::clear), &["model.safetensors", "found only 0 bytes"]),
        ("seven bytes", |w| w.edit(SINGLE, |b| b.truncate(7)), &["found only 7 bytes"]),
        (
            "text",
            |w| w.edit(SINGLE, |b| *b = b"<html><body>404</body></html>".to_vec()),
            &["expected a safetensors file", "<html>"],
        ),
        (
            "zip",
            |w| w.edit(SINGLE, |b| *b = b"PK\x03\x04aaaaaaaaaaaaaaaaaaaaaaa".to_vec()),
            &["expected a safetensors file"],
        ),
        ("greatest length", |w| w.edit(SINGLE, |b| b[..8].fill(0xff)), &["header of at most", "18446744073709551615"]),
        (
            "length past the end",
            |w| w.edit(SINGLE, |b| b[..8].copy_from_slice(&99_999_999u64.to_le_bytes())),
            &["length field of 99999999"],
        ),
        ("length zero", |w| w.edit(SINGLE, |b| b[..8].fill(0)), &["header", "JSON table of tensors"]),
        ("length a byte short", |w| w.edit(SINGLE, |b| b[0] -= 1), &["model.safetensors"]),
        ("not JSON", |w| w.edit_header(SINGLE, |t| t.replacen(':', ";", 1)), &["header", "JSON table of tensors"]),
        ("not UTF-8", |w| w.edit(SINGLE, |b| b[10] = 0xff), &["header", "JSON table of tensors"]),
        (
            "a list",
            |w| w.edit_header(SINGLE, |_| "{}".replace("{}", "{\"a\":[]}")),
            &["header", "JSON table of tensors"],
        ),
    ]);
}

#[test]
fn damaged_headers() {
    // The first tensor of the file is the embedding's codes: 96 x 8 words, 3072 bytes.
    check_files(&[
        ("unknown type", |w| w.edit_entry("norm.weight", |e| e["dtype"] = "Q4".into()), &["header", "Q4"]),
        (
            "type of another size",
            |w| w.edit_entry("A_log", |e| e["dtype"] = "F64".into()),
            &["A_log", "16 bytes for F64 [2]", "offsets of 8 bytes"],
        ),
        (
            "shape of another size",
            |w| w.edit_entry("A_log", |e| e["shape"] = json!([3])),
            &["A_log", "12 bytes for F32 [3]"],
        ),
        (
            "shape that overflows",
            |w| w.edit_entry("A_log", |e| e["shape"] = json!([1u64 << 40, 1u64 << 40])),
            &["A_log", "a size that fits in memory"],
        ),
        ("negative shape", |w| w.edit_entry("A_log", |e| e["shape"] = json!([-2])), &["header", "-2"]),
        (
            "backwards",
            |w| w.edit_entry("embed_tokens.weight", |e| e["data_offsets"] = json!([3072, 0])),
            &["embed_tokens.weight", "do not run backwards", "3072..0"],
        ),
        (
            "overlap",
            |w| w.edit_entry("embed_tokens.scales", |e| shift(e, -64)),
            &["embed_tokens.scales", "from offset 3072 on", "an overlap with", "embed_tokens.weight"],
        ),
        ("gap", |w| w.edit_entry("embed_tokens.scales", |e| shift(e, 64)), &["a gap after"]),
        (
            "outside the file",
            |w| w.edit_entry("embed_tokens.scales", |e| shift(e, 1 << 40)),
            &["embed_tokens.scales", "a range outside the file"],
        ),
        (
            "greatest offset",
            |w| w.edit_entry("A_log", |e| e["data_offsets"] = json!([u64::MAX - 8, u64::MAX])),
            &["A_log", "outside the file"],
        ),
        (
            "name twice",
            |w| w.edit_header(SINGLE, |t| t.replace(".embed_tokens.biases", ".embed_tokens.scales")),
            &["embed_tokens.scales", "the name twice"],
        ),
        (
            "entry without offsets",
            |w| w.edit_entry("A_log", |e| drop(e.as_object_mut().unwrap().shift_remove("data_offsets"))),
            &["header", "data_offsets"],
        ),
    ]);

    fn shift(entry: &mut Value, by: i64) {
        for end in entry["data_offsets"].as_array_mut().unwrap() {
            *end = (end.as_i64().unwrap() + by).into();
        }
    }
}

#[test]
fn every_truncation_and_every_flipped_header_byte_is_an_error_or_opens() {
    // No panic, whatever the bytes; and whatever is cut off is noticed.
    let written = Parts::mlx().write();
    let bytes = std::fs::read(written.file(SINGLE)).unwrap();
    for cut in (0..bytes.len()).step_by(997) {
        std::fs::write(written.file(SINGLE), &bytes[..cut]).unwrap();
        assert!(written.open().is_err(), "cut to {cut} of {} bytes", bytes.len());
    }
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for position in (0..8 + header).step_by(37) {
        let mut flipped = bytes.clone();
        flipped[position] ^= 0x15;
        std::fs::write(written.file(SINGLE), &flipped).unwrap();
        let _ = written.open();
    }
}

#[test]
fn damaged_indexes() {
    fn edit(w: &Written, change: impl FnOnce(&mut Map<String, Value>)) {
        w.edit(INDEX, |bytes| {
            let mut index: Value = serde_json::from_slice(bytes).unwrap();
            change(index["weight_map"].as_object_mut().unwrap());
            *bytes = index.to_string().into_bytes();
        });
    }
    let rows: &[Row<Written>] = &[
        (
            "missing shard",
            |w| std::fs::remove_file(w.file("model-00002-of-00004.safetensors")).unwrap(),
            &[
                "index.json: names 4 file(s), 1 of them not there: model-00002-of-00004.safetensors",
                "incomplete, resume it",
            ],
        ),
        (
            "two missing shards",
            |w| {
                std::fs::remove_file(w.file("model-00001-of-00004.safetensors")).unwrap();
                std::fs::remove_file(w.file("model-00003-of-00004.safetensors")).unwrap();
            },
            &["2 of them not there: model-00001-of-00004.safetensors, model-00003-of-00004.safetensors"],
        ),
        (
            "truncated shard",
            |w| w.edit("model-00003-of-00004.safetensors", |b| b.truncate(b.len() - 1)),
            &["model-00003-of-00004.safetensors: expected", "incomplete"],
        ),
        (
            "missing entry",
            |w| edit(w, |map| drop(map.shift_remove("language_model.model.norm.weight"))),
            &[
                "expected 1 tensor(s) that are not there",
                "language_model.model.norm.weight (in model-0000",
                "but not in the index",
            ],
        ),
        (
            "entry without tensor",
            |w| {
                edit(w, |map| {
                    map.insert("language_model.model.extra".to_owned(), "model-00001-of-00004.safetensors".into());
                })
            },
            &["language_model.model.extra", "expected it in model-00001-of-00004.safetensors", "no such tensor there"],
        ),
        (
            "entry names another shard",
            |w| {
                edit(w, |map| {
                    map.insert(
                        "language_model.model.layers.1.mlp.switch_mlp.up_proj.weight".to_owned(),
                        "model-00001-of-00004.safetensors".into(),
                    );
                })
            },
            &[
                "language_model.model.layers.1.mlp.switch_mlp.up_proj.weight",
                "expected it in model-00001-of-00004.safetensors",
            ],
        ),
        (
            "entry leaves the directory",
            |w| {
                edit(w, |map| {
                    map.insert("language_model.model.norm.weight".to_owned(), "../model.safetensors".into());
                })
            },
            &["language_model.model.norm.weight", "expected a file name", "../model.safetensors"],
        ),
        (
            "entry is a number",
            |w| {
                edit(w, |map| {
                    map.insert("language_model.model.norm.weight".to_owned(), 3.into());
                })
            },
            &["expected a file name, found 3"],
        ),
        ("no entries", |w| edit(w, Map::clear), &["key `weight_map`", "a shard for each tensor"]),
        (
            "not JSON",
            |w| w.edit(INDEX, |b| b.truncate(20)),
            &["index.json: expected an index of tensors", "invalid JSON"],
        ),
    ];
    let mut parts = Parts::mlx();
    let total: usize = parts.tensors.iter().map(|t| t.bytes.len()).sum();
    // Order by size so that four shards hold several tensors each.
    parts.tensors.sort_by_key(|t| t.bytes.len());
    for (case, damage, expected) in rows {
        let mut written = parts.write_sharded(total.div_ceil(4) + 8192);
        assert!(written.file("model-00004-of-00004.safetensors").is_file(), "four shards");
        damage(&mut written);
        assert_refused(case, written.open(), expected);
    }
}

#[test]
fn wrong_tensors() {
    check_parts(&[
        (
            "missing",
            |p| drop(p.remove("layers.1.self_attn.q_proj.scales")),
            &["expected 1 tensor(s) that are not there", "language_model.model.layers.1.self_attn.q_proj.scales"],
        ),
        (
            "several missing",
            |p| p.tensors.retain(|t| !t.name.contains("layers.1.")),
            &["tensor(s) that are not there", "language_model.model.layers.1.input_layernorm.weight", " more"],
        ),
        ("no head", |p| p.tensors.retain(|t| !t.name.contains("lm_head")), &["language_model.lm_head.weight"]),
        (
            "unknown",
            |p| p.tensors.push(bf16_tensor("language_model.model.layers.0.extra.weight", &[4], 0)),
            &["found 1 tensor(s) that this architecture does not have", "layers.0.extra.weight"],
        ),
        (
            "unknown part",
            |p| p.tensors.push(bf16_tensor("audio_tower.conv.weight", &[4], 0)),
            &["audio_tower.conv.weight"],
        ),
        ("misspelt", |p| p.tensor("layers.0.mlp.gate.weight").name.push('s'), &["mlp.gate.weight", "mlp.gate.weights"]),
        ("one layer too many", |p| p.text_config()["num_hidden_layers"] = 1.into(), &["layer_types"]),
        (
            "both builds",
            |p| p.tensors.push(bf16_tensor("model.norm.weight", &[64], 0)),
            &["`model.norm.weight`", "also as `language_model.model.norm.weight`"],
        ),
        (
            "codes of another type",
            |p| p.tensor("lm_head.weight").dtype = Dtype::I32,
            &[
                "model.safetensors: tensor `language_model.lm_head.weight`",
                "expected U32 [96, 8] (4-bit codes, groups of 64)",
                "found I32 [96, 8]",
                "config.json",
            ],
        ),
        (
            "codes of another shape",
            |p| p.tensor("lm_head.weight").dims = vec![48, 16],
            &["expected U32 [96, 8]", "[48, 16]"],
        ),
        ("scales of another shape", |p| p.tensor("lm_head.scales").dims = vec![96], &["lm_head.scales", "[96, 1]"]),
        (
            "scales not floats",
            |p| p.tensor("lm_head.scales").dtype = Dtype::U16,
            &["BF16/F16/F32 [96, 1]", "found U16"],
        ),
        (
            "biases unlike scales",
            |p| p.tensor("lm_head.biases").dtype = Dtype::F16,
            &["lm_head.biases", "expected BF16"],
        ),
        ("vector of another type", |p| p.tensor("A_log").dtype = Dtype::U32, &["A_log", "BF16/F16/F32 [2]", "U32"]),
        (
            "vector of another length",
            |p| *p.tensor("model.norm.weight") = bf16_tensor("language_model.model.norm.weight", &[32], 0),
            &["model.norm.weight", "[64]", "[32]"],
        ),
        (
            "experts flattened",
            |p| p.tensor("switch_mlp.up_proj.weight").dims = vec![256, 8],
            &["U32 [4, 64, 8]", "[256, 8]"],
        ),
        (
            "convolution turned",
            |p| p.tensor("conv1d.weight").dims = vec![4, 128, 1],
            &["conv1d.weight", "[128, 4, 1] or [128, 1, 4]"],
        ),
        (
            "not quantised as declared",
            |p| {
                p.remove("lm_head.scales");
                p.remove("lm_head.biases");
                *p.tensor("lm_head.weight") = bf16_tensor("language_model.lm_head.weight", &[96, 64], 0);
                p.config["quantization"]["language_model.lm_head"] = json!({ "bits": 4 });
            },
            &["language_model.lm_head.scales", "language_model.lm_head.biases"],
        ),
        (
            "quantised against the declaration",
            |p| p.config["quantization"]["lm_head"] = false.into(),
            &["does not have: language_model.lm_head.biases, language_model.lm_head.scales"],
        ),
        (
            "bits other than declared",
            |p| p.config["quantization"]["bits"] = 8.into(),
            &["U32 [96, 16] (8-bit", "found U32 [96, 8]"],
        ),
        (
            "group other than declared",
            |p| p.config["quantization"]["group_size"] = 32.into(),
            &["[96, 2]", "groups of 32"],
        ),
        (
            "group that does not divide",
            |p| p.config["quantization"]["group_size"] = 128.into(),
            &["inputs that groups of 128 divide", "64 inputs"],
        ),
        (
            "no table",
            |p| {
                let root = p.config.as_object_mut().unwrap();
                root.shift_remove("quantization");
                root.shift_remove("quantization_config");
            },
            &["key `quantization`", "embed_tokens.scales", "no such key"],
        ),
    ]);
}

#[test]
fn layers_of_different_builds() {
    let mut parts = Parts::mlx();
    let text = parts.text_config();
    text["layer_types"] = json!(["linear_attention", "linear_attention"]);
    text.shift_remove("full_attention_interval");
    parts.tensors.retain(|t| !t.name.contains("self_attn"));
    let copies: Vec<Tensor> =
        parts.tensors.iter().filter(|t| t.name.contains("layers.0.linear_attn")).cloned().collect();
    parts.tensors.extend(copies.into_iter().map(|t| Tensor { name: t.name.replace("layers.0", "layers.1"), ..t }));
    parts.write().open().unwrap();
    parts.tensor("layers.1.linear_attn.conv1d.weight").dims = vec![128, 1, 4];
    assert_refused(
        "mixed",
        parts.write().open(),
        &["layers.1.linear_attn.conv1d.weight", "the layout of the layers before"],
    );
}

#[test]
fn experts_apart_must_be_alike() {
    let mut parts = loading::hugging_face_apart();
    parts.remove("experts.2.up_proj.weight");
    assert_refused("missing", parts.write().open(), &["model.language_model.layers.0.mlp.experts.2.up_proj.weight"]);
    let mut parts = loading::hugging_face_apart();
    parts.tensor("experts.3.gate_proj.weight").dtype = Dtype::F16;
    assert_refused("other type", parts.write().open(), &["experts.3.gate_proj.weight", "expected BF16", "found F16"]);
}

#[test]
fn experts_apart_without_room_to_stack_them() {
    let written = loading::hugging_face_apart().write();
    let (checkpoint, stacks) = Checkpoint::load(Source::directory(&written.path).unwrap()).unwrap();
    let needed = 2 * 4 * 3 * 64 * 64 * 2;
    let refused = checkpoint.stacked(&stacks, Some(needed - 1));
    assert_refused("no room", refused, &["model: not enough memory", "192.0 KiB to stack", "lily quantize"]);
    let (checkpoint, stacks) = Checkpoint::load(Source::directory(&written.path).unwrap()).unwrap();
    checkpoint.stacked(&stacks, Some(needed)).unwrap();
}
