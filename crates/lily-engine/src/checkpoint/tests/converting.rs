//! Quantisation against MLX's own results and against its properties; random checkpoints.

use proptest::prelude::*;

use super::*;
use crate::checkpoint::affine::quantize_row;
use crate::checkpoint::bind::widen;
use crate::checkpoint::quantization::Affine;
use crate::checkpoint::quantize::{QuantizeOptions, narrow, quantize};
use crate::checkpoint::synth::{PRESETS, preset, with_layers};
use crate::weights::Float;

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(path)
}

/// Quantises rows of `cols` values: codes, scales and biases as they are stored.
fn quantize_all(values: &[f32], cols: usize, affine: Affine) -> [Vec<u8>; 3] {
    let mut out = [Vec::new(), Vec::new(), Vec::new()];
    for row in values.chunks(cols) {
        let groups = cols / affine.group as usize;
        let (mut codes, mut scales, mut biases) =
            (vec![0; cols * affine.bits as usize / 8], vec![0.0; groups], vec![0.0; groups]);
        quantize_row(row, affine, &mut codes, &mut scales, &mut biases);
        out[0].extend(codes);
        out[1].extend(narrow(Float::Bf16, &scales));
        out[2].extend(narrow(Float::Bf16, &biases));
    }
    out
}

#[test]
fn rows_equal_mlx_bit_for_bit() {
    let bytes = std::fs::read(golden("quantize/quantize.safetensors")).unwrap();
    let entries = header::parse("quantize.safetensors", &bytes).unwrap();
    let data = |name: &str| {
        let entry = entries.iter().find(|e| e.name == name).unwrap_or_else(|| panic!("no {name}"));
        (&bytes[entry.range.clone()], entry.dims.clone())
    };
    let (input, dims) = data("input");
    let (values, cols) = (widen(Dtype::BF16, input), dims[1]);
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            let ours = quantize_all(&values, cols, Affine { bits, group });
            for (ours, part) in ours.iter().zip(["weight", "scales", "biases"]) {
                let name = format!("b{bits}.g{group}.{part}");
                let (theirs, dims) = data(&name);
                let row_bytes = theirs.len() / dims[0];
                for (row, (a, b)) in ours.chunks(row_bytes).zip(theirs.chunks(row_bytes)).enumerate() {
                    assert_eq!(a, b, "{name}, row {row}");
                }
                assert_eq!(ours.len(), theirs.len(), "{name}");
            }
        }
    }
}

/// All tensors of a checkpoint by name.
fn tensors(path: &Path) -> std::collections::BTreeMap<String, Tensor> {
    Parts::read(path).tensors.into_iter().map(|t| (t.name.clone(), t)).collect()
}

#[test]
fn checkpoints_equal_mlx_bit_for_bit() {
    for (input, output, group) in
        [("base", "base-q4g64", 64), ("family_heads", "family_heads-q4g64", 64), ("tied", "tied-q4g32", 32)]
    {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("out");
        let options = QuantizeOptions { affine: Affine { bits: 4, group }, routing: Affine { bits: 8, group } };
        let mut last = None;
        let source = golden("checkpoints/hf").join(input);
        let summary = quantize(&source, &path, options, &mut |progress| last = Some(progress)).unwrap();
        let (ours, theirs) = (tensors(&path), tensors(&golden("checkpoints/mlx").join(output)));
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{input}");
        for (name, theirs) in &theirs {
            assert_eq!(&ours[name], theirs, "{input}: {name}");
        }
        let progress = last.unwrap();
        assert_eq!((progress.done_bytes, progress.total_bytes), (summary.output_bytes, summary.output_bytes));
    }
}

#[test]
fn every_golden_checkpoint_opens() {
    let mut opened = 0;
    for build in ["hf", "mlx"] {
        for entry in std::fs::read_dir(golden("checkpoints").join(build)).unwrap() {
            let path = entry.unwrap().path();
            let checkpoint = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(
                checkpoint.build,
                if build == "hf" { Build::HuggingFace } else { Build::Mlx },
                "{}",
                path.display()
            );
            opened += 1;
        }
    }
    assert_eq!(opened, 12);
}

/// The element that a code stands for.
fn decode(codes: &[u8], index: usize, bits: usize, scale: f32, bias: f32) -> f32 {
    let bit = |bit: usize| u32::from(codes[(index * bits + bit) / 8] >> ((index * bits + bit) % 8) & 1) << bit;
    scale * (0..bits).map(bit).sum::<u32>() as f32 + bias
}

proptest! {
    #[test]
    fn elements_come_back_within_a_scale(
        values in prop::collection::vec(-1.0f32..1.0, 256),
        magnitude in -20i32..20,
        offset in -2.0f32..2.0,
        bits in prop::sample::select(vec![2u8, 3, 4, 5, 6, 8]),
        group in prop::sample::select(vec![32u8, 64, 128]),
    ) {
        let factor = 2f32.powi(magnitude);
        let values: Vec<f32> = values.iter().map(|v| (v + offset) * factor).collect();
        let groups = 256 / group as usize;
        let (mut codes, mut scales, mut biases) = (vec![0; 32 * bits as usize], vec![0.0; groups], vec![0.0; groups]);
        quantize_row(&values, Affine { bits, group }, &mut codes, &mut scales, &mut biases);
        for (index, value) in values.iter().enumerate() {
            let (scale, bias) = (scales[index / group as usize], biases[index / group as usize]);
            let back = decode(&codes, index, bits as usize, scale, bias);
            let slack = 1e-5 * value.abs().max(bias.abs());
            prop_assert!((back - value).abs() <= scale.abs() + slack, "{value} came back as {back}, scale {scale}");
        }
        // The edge of larger magnitude is exact to rounding, and zero is a code wherever the range holds it.
        for (group_values, (scale, bias)) in values.chunks(group as usize).zip(scales.iter().zip(&biases)) {
            let edge = group_values.iter().copied().fold(0.0f32, |a, b| if b.abs() > a.abs() { b } else { a });
            prop_assert!(*bias == 0.0 || *bias == edge, "bias {bias}, edge {edge}");
            let steps = -bias / scale;
            prop_assert!((steps - steps.round()).abs() <= 1e-3, "zero lies between codes: {steps}");
        }
    }
}

#[test]
fn zeros_stay_zero() {
    let mut values = vec![0.0f32; 128];
    values[64..].iter_mut().enumerate().for_each(|(i, v)| *v = if i % 2 == 0 { 0.0 } else { i as f32 - 20.0 });
    for bits in [2, 3, 4, 5, 6, 8] {
        let (mut codes, mut scales, mut biases) = (vec![0xff; 16 * bits as usize], vec![9.0; 2], vec![9.0; 2]);
        quantize_row(&values, Affine { bits, group: 64 }, &mut codes, &mut scales, &mut biases);
        assert_eq!(biases[0], 0.0);
        assert!(codes[..8 * bits as usize].iter().all(|&byte| byte == 0));
        for index in (64..128).step_by(2) {
            let back = decode(&codes, index, bits as usize, scales[1], biases[1]);
            assert!(back.abs() <= 1e-5 * biases[1].abs(), "{bits} bits: zero came back as {back}");
        }
    }
}

#[test]
fn quantised_tiny_models_open_again() {
    for (parts, dropped) in [(Parts::hugging_face(), 0), (loading::hugging_face_apart(), 0), (with_mtp(), 1)] {
        let written = parts.write();
        std::fs::write(written.file("tokenizer.json"), "{\"a\": 1}").unwrap();
        std::fs::write(written.file("notes.txt"), "not part of a model").unwrap();
        let out = written.path.with_file_name("out");
        let summary = quantize(&written.path, &out, QuantizeOptions::default(), &mut |_| {}).unwrap();
        assert_eq!(summary.dropped_tensors, dropped);
        let (source, result) = (written.open().unwrap(), Checkpoint::open(&out).unwrap());
        assert_eq!((result.build, &result.weights.shape), (Build::Mlx, &source.weights.shape));
        assert_eq!(result.weight_bytes(), summary.output_bytes);
        assert_eq!(result.side_file("tokenizer.json").unwrap().as_deref(), Some(&b"{\"a\": 1}"[..]));
        assert!(!out.join("notes.txt").exists());
        assert!(!out.with_file_name("out.partial").exists());
        // Gains got their one back, in bf16.
        let rounded: Vec<f32> = source.weights.final_norm.iter().map(|&g| half::bf16::from_f32(g).to_f32()).collect();
        assert_eq!(result.weights.final_norm, rounded);
    }

    fn with_mtp() -> Parts {
        let mut parts = Parts::hugging_face();
        parts.tensors.push(bf16_tensor("mtp.fc.weight", &[4, 4], 0));
        parts
    }
}

#[test]
fn all_ways_to_store_experts_quantise_alike() {
    let quantised = |parts: Parts| {
        let written = parts.write();
        let out = written.path.with_file_name("out");
        quantize(&written.path, &out, QuantizeOptions::default(), &mut |_| {}).unwrap();
        tensors(&out)
    };
    assert_eq!(quantised(Parts::hugging_face()), quantised(loading::hugging_face_apart()));
}

#[test]
fn requests_that_make_no_sense() {
    let mlx = Parts::mlx().write();
    let hugging_face = Parts::hugging_face().write();
    let mut infinite = Parts::hugging_face();
    infinite.tensor("q_proj.weight").bytes[2 * 64..][..2]
        .copy_from_slice(&half::bf16::INFINITY.to_bits().to_le_bytes());
    let infinite = infinite.write();
    let fresh = mlx.path.with_file_name("out");
    let four = |group| QuantizeOptions { affine: Affine { bits: 4, group }, ..Default::default() };
    let check = |input: &Path, out: &Path, options, parts: &[&str]| {
        let message = quantize(input, out, options, &mut |_| {}).unwrap_err().to_string();
        for part in parts {
            assert!(message.contains(part), "`{part}` is not in: {message}");
        }
        assert!(!fresh.exists() && !fresh.with_file_name("out.partial").exists(), "left something behind");
    };
    check(&mlx.path, &fresh, four(64), &["quantised already", "bf16 original"]);
    check(&hugging_face.path, &fresh, four(128), &["groups that divide its 64 inputs", "found 128"]);
    check(&hugging_face.path, &fresh, four(16), &["group size among", "groups of 16"]);
    check(&hugging_face.path, &mlx.path, four(64), &["a new or empty directory", "with files in it"]);
    check(&hugging_face.path, &mlx.file(CONFIG), four(64), &["a new or empty directory", "a file"]);
    check(&hugging_face.path, Path::new("/"), four(64), &["directory"]);
    check(&infinite.path, &fresh, four(64), &["q_proj.weight", "finite values", "row 1"]);
}

#[test]
fn random_checkpoints_repeat_and_differ_by_seed() {
    let directory = TempDir::new().unwrap();
    let write = |name: &str, seed| {
        let path = directory.path().join(name);
        let options = SynthOptions { seed, ..Default::default() };
        let bytes = synth(&tiny_shape(), &path, &options, &mut |_| {}).unwrap();
        assert_eq!(Checkpoint::open(&path).unwrap().weight_bytes(), bytes);
        std::fs::read(path.join(SINGLE)).unwrap()
    };
    let first = write("a", 1);
    assert_eq!(first, write("b", 1));
    assert_ne!(first, write("c", 2));
    // The reference implementation of the format reads it too.
    let read = safetensors::SafeTensors::deserialize(&first).unwrap();
    assert_eq!(read.tensor("language_model.lm_head.weight").unwrap().shape(), [96, 8]);
}

#[test]
fn random_weights_have_the_statistics_they_claim() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("model");
    synth(&preset("tiny").unwrap(), &path, &SynthOptions::default(), &mut |_| {}).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let head = checkpoint.weights.head;
    let (codes, scales, biases) =
        (checkpoint.bytes(head.codes), checkpoint.bytes(head.scales), checkpoint.bytes(head.biases));
    let (scales, biases) = (widen(Dtype::BF16, scales), widen(Dtype::BF16, biases));
    let elements = head.rows * head.cols;
    let values = (0..elements).map(|i| f64::from(decode(codes, i, 4, scales[i / 64], biases[i / 64])));
    let (sum, squares) = values.fold((0.0, 0.0), |(sum, squares), v| (sum + v, squares + v * v));
    let (mean, deviation) = (sum / elements as f64, (squares / elements as f64).sqrt());
    // Scales are uniform between half and one and a half: a mean square of 13/12.
    assert!(mean.abs() < 1e-4, "mean {mean}");
    assert!((deviation / (0.02 * (13.0f64 / 12.0).sqrt()) - 1.0).abs() < 0.01, "deviation {deviation}");
}

#[test]
fn presets_and_their_layers() {
    assert!(PRESETS.iter().all(|name| preset(name).is_some()));
    assert_eq!(preset("huge"), None);
    assert_eq!(preset("qwen3.6-35b-a3b"), Some(Shape::qwen36_35b_a3b()));
    let mid = preset("mid8").unwrap();
    assert_eq!((mid.count(Mixer::Delta), mid.count(Mixer::Attention), mid.moe.experts), (6, 2, 256));
    assert_eq!(with_layers(&mid, 40), Shape::qwen36_35b_a3b());
}

#[test]
fn synth_refuses_shapes_outside_the_family() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("model");
    let mut shape = tiny_shape();
    shape.attention.heads = 3;
    shape.attention.kv_heads = 2;
    let message = synth(&shape, &path, &SynthOptions::default(), &mut |_| {}).unwrap_err().to_string();
    assert!(message.contains("num_key_value_heads"), "{message}");
    assert!(!path.exists());
}
