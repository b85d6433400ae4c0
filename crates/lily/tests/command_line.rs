//! The binary from outside: exit codes, stdout and stderr of every command, in order and out of it.

mod common;

use common::{Output, lily, random_checkpoint};

/// The code and a part of the message.
fn check_failure(output: &Output, code: i32, message: &str) {
    assert_eq!(output.code, Some(code), "{output:?}");
    assert!(output.stderr.contains(message), "{message:?} is not in {output:?}");
    assert_eq!(output.stdout, "", "{output:?}");
    assert!(!output.stderr.contains("panicked") && !output.stderr.contains("backtrace"), "{output:?}");
}

#[test]
fn usage_errors_are_code_2() {
    for args in [&[][..], &["frobnicate"], &["run", "--temperature", "warm", "x"], &["plan", "--phase", "sideways"]] {
        let output = lily(args).output();
        assert_eq!(output.code, Some(2), "{args:?}: {output:?}");
        assert_eq!(output.stdout, "", "{args:?}");
    }
    check_failure(&lily(&["run"]).input("").output(), 2, "error: the prompt is empty");
    check_failure(&lily(&["run", "hi", "--top-p", "1.5"]).output(), 2, "error: top_p is 1.5; it must be above 0");
    check_failure(&lily(&["run", "hi", "--context", "999999"]).output(), 2, "made for at most 4096");
    check_failure(&lily(&["plan", "--shape", "huge"]).output(), 2, "expected one of qwen3.6-35b-a3b");
    check_failure(&lily(&["eval", "nano", "--set", "riddles"]).output(), 2, "expected one of qa");
}

#[test]
fn missing_and_refused_models_are_code_3() {
    let empty = tempfile::tempdir().unwrap();
    let cache = empty.path().to_str().unwrap();
    let output = lily(&["run", "--model", "some/model@v2", "hi"]).env("HF_HUB_CACHE", cache).output();
    check_failure(&output, 3, "hf download some/model --revision v2");
    assert!(output.stderr.contains("models--some--model"), "says where it looked: {output:?}");
    check_failure(&lily(&["run", "--model", "no-such-folder", "hi"]).output(), 3, "found no such directory");
    check_failure(&lily(&["inspect", cache]).output(), 3, "expected model.safetensors");
    check_failure(&lily(&["tokenize", "--model", cache, "hi"]).output(), 3, "expected model.safetensors");
    let file = empty.path().join("x.gguf");
    std::fs::write(&file, b"GGUF....").unwrap();
    check_failure(&lily(&["doctor", "--model", file.to_str().unwrap()]).output(), 3, "found GGUF");
}

#[test]
fn a_model_that_does_not_fit_is_code_4_with_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random");
    random_checkpoint(&path);
    // A context of a terabyte, which the model claims to be made for.
    let config = std::fs::read_to_string(path.join("config.json")).unwrap();
    let long = config.replace("262144", "1073741824");
    assert_ne!(config, long);
    std::fs::write(path.join("config.json"), long).unwrap();
    let output = lily(&["run", "hi", "--context", "1073741824", "--model"]).arg(&path).output();
    check_failure(&output, 4, "not enough memory");
    assert!(output.stderr.contains("KV cache") && output.stderr.contains("--context"), "{output:?}");
}

#[test]
fn an_unknown_instruction_set_is_code_5() {
    check_failure(
        &lily(&["run", "hi"]).env("LILY_CPU", "abacus").output(),
        5,
        "unknown CPU instruction set \"abacus\"",
    );
    check_failure(&lily(&["doctor", "--cpu", "abacus"]).output(), 5, "expected one of");
}

#[test]
fn a_backend_that_is_not_there_is_code_5() {
    check_failure(&lily(&["run", "hi", "--backend", "abacus"]).output(), 2, "expected auto, cpu, metal or cuda");
    if !cfg!(target_os = "macos") {
        check_failure(&lily(&["run", "hi", "--backend", "metal"]).output(), 5, "needs macOS on Apple silicon");
        check_failure(&lily(&["doctor"]).env("LILY_BACKEND", "metal").output(), 5, "use --backend cpu");
    }
    assert_eq!(lily(&["doctor", "--backend", "cpu"]).output().code, Some(0));
}

#[test]
fn a_model_from_the_hugging_face_cache_is_found_by_name() {
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("models--org--tiny");
    std::fs::create_dir_all(folder.join("refs")).unwrap();
    std::fs::write(folder.join("refs/main"), "0123abc").unwrap();
    std::fs::create_dir_all(folder.join("snapshots")).unwrap();
    random_checkpoint(&folder.join("snapshots/0123abc"));
    let output = lily(&["tokenize", "--model", "org/tiny", "hi", "--json"]).env("HF_HUB_CACHE", cache.path()).output();
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stderr.contains("org/tiny@0123abc"), "says what was resolved: {output:?}");
    assert_eq!(output.json()[0]["text"], "hi");
}

#[test]
fn plan_shows_kernels_stages_and_the_minimum() {
    let output = lily(&["plan", "--json"]).output();
    let plan = output.json();
    assert!(plan["report"]["kernels"].as_u64().unwrap() <= 400, "{plan}");
    assert!(plan["report"]["stages"].as_u64().unwrap() <= 250, "{plan}");
    let bytes = plan["total"]["bytes"].as_f64().unwrap();
    let parts = ["weight_bytes", "kv_bytes", "recurrent_bytes"];
    let least: f64 = parts.iter().map(|p| plan["minimum"][p].as_f64().unwrap()).sum();
    assert!((least / 1e6 - 1882.2).abs() < 0.1 && bytes >= least && bytes <= 1.05 * least, "{bytes} of {least}");

    let text =
        lily(&["plan", "--phase", "prefill", "--rows", "64", "--context", "128", "--shape", "tiny"]).output().stdout;
    assert!(text.contains(" stages at position 128") && text.contains("64 rows"), "{text}");
    let text = lily(&["plan", "--model", "lily-nano", "--context", "0"]).output().stdout;
    assert!(text.contains("the least is"), "{text}");
    check_failure(&lily(&["plan", "--context", "262144"]).output(), 2, "expected at most 262143");

    let apart = lily(&["plan", "--without", "fused-down", "--without", "fused-qk-prep", "--json"]).output().json();
    let kernels = |plan: &serde_json::Value| plan["report"]["kernels"].as_u64().unwrap();
    assert_eq!(kernels(&apart), kernels(&plan) + 50, "{apart}");
    check_failure(&lily(&["plan", "--without", "warp"]).output(), 2, "expected one of fused-dequantize, ");
}

#[test]
fn synth_inspect_and_quantize_work_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random");
    let path = path.to_str().unwrap();
    let output = lily(&["synth", "tiny", path, "--seed", "3", "--layers", "2"]).output();
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), ""), "{output:?}");
    let report = lily(&["inspect", path, "--json"]).output().json();
    assert_eq!(report["model"]["delta_layers"], 2);
    assert!(report["memory"][0]["total_bytes"].as_u64() > report["weight_bytes"].as_u64(), "{}", report["memory"]);
    let text = lily(&["inspect", path]).output().stdout;
    assert!(text.contains("4-bit") && text.contains("lm_head"), "{text}");
    check_failure(&lily(&["synth", "tiny", path]).output(), 2, path);
    check_failure(&lily(&["synth", "tiny", "unused", "--bits", "7"]).output(), 2, "choose other bits");

    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/checkpoints/hf/family_heads");
    let quantized = folder.path().join("quantized");
    let quantized = quantized.to_str().unwrap();
    let output = lily(&["quantize", source, quantized]).output();
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), ""), "{output:?}");
    assert!(lily(&["inspect", quantized]).output().stdout.contains("4-bit"));
    check_failure(&lily(&["quantize", quantized, "unused"]).output(), 2, "quantised already");
}

#[test]
fn tokenize_shows_ids_and_texts() {
    let output = lily(&["tokenize", "--model", "lily-nano", "hi <|im_end|>", "--json"]).output();
    let tokens = output.json();
    let texts: Vec<&str> = tokens.as_array().unwrap().iter().map(|t| t["text"].as_str().unwrap()).collect();
    assert_eq!(texts.concat(), "hi <|im_end|>");
    assert_eq!(*texts.last().unwrap(), "<|im_end|>");
    let plain = lily(&["tokenize", "--model", "lily-nano", "--plain", "--json"]).input("<|im_end|>").output().json();
    assert!(plain.as_array().unwrap().len() > 1, "{plain}");
}

#[test]
fn doctor_names_the_device_and_the_memory_plan() {
    let output = lily(&["doctor", "--threads", "1", "--cpu", "scalar"]).output();
    assert!(output.stdout.contains("CPU (scalar, 1 threads)") && output.stdout.contains("KV cache"), "{output:?}");
    let report = lily(&["doctor", "--json"]).output().json();
    assert_eq!(report["model"], "lily-nano");
    assert!(report["memory_plan"]["weight_bytes"].as_u64().unwrap() > 1_000_000);
}

#[test]
fn kernels_are_measured_with_what_they_cost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kernels.json");
    let args = ["kernels", "--context", "8", "--rows", "16", "--repeats", "2", "--record"];
    let output = lily(&args).arg(&path).output();
    assert_eq!(output.code, Some(0), "{output:?}");
    let table = &output.stdout;
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for phase in record["phases"].as_array().unwrap() {
        assert!(phase["step_ms"]["median"].as_f64().unwrap() > 0.0, "{phase}");
        for kernel in phase["kernels"].as_array().unwrap() {
            assert!(table.contains(kernel["kernel"].as_str().unwrap()), "{kernel}");
            assert!(kernel["alone_ms"].as_f64().unwrap() > 0.0 && kernel["flops"].as_f64().is_some(), "{kernel}");
        }
    }
    let page = folder.path().join("page.html");
    let output = lily(&["report", path.to_str().unwrap(), "--output"]).arg(&page).output();
    assert_eq!(output.code, Some(0), "{output:?}");
    let text = std::fs::read_to_string(&page).unwrap();
    for part in ["Kernels under the roof", "One decode step", "prefers-color-scheme", "delta_step"] {
        assert!(text.contains(part), "{part}");
    }
    let namespace = "xmlns=\"http://www.w3.org/2000/svg\"";
    assert!(!text.replace(namespace, "").contains("://"), "the page asks for something else");
    check_failure(&lily(&["report", "Cargo.toml", "--output", "x"]).output(), 1, "expected a record");
    let decode = &record["phases"][0];
    let launches = decode["launches"].as_array().unwrap();
    let counted: u64 = decode["kernels"].as_array().unwrap().iter().map(|k| k["launches"].as_u64().unwrap()).sum();
    assert_eq!((decode["phase"].as_str(), launches.len() as u64), (Some("decode"), counted));
    // Within a step on a CPU, which overlaps nothing, is the sum of the launches.
    let ms = |list: &serde_json::Value, key: &str| -> f64 {
        list.as_array().unwrap().iter().map(|entry| entry[key].as_f64().unwrap()).sum()
    };
    let (within, each) = (ms(&decode["kernels"], "within_ms"), ms(&decode["launches"], "ms"));
    assert!((within - each).abs() < 1e-9 * each, "{within} and {each}");
}

/// Arguments of a bench that takes little time, in one round, as figures of busy machines differ.
const BENCH: [&str; 9] = ["bench", "--prefill", "8,16", "--context", "16", "--decode", "4", "--rounds", "1"];

#[test]
fn bench_measures_what_is_asked() {
    let more = ["--reps", "2", "--sampled", "--batch", "2,3", "--cached", "32", "--json"];
    let record = lily(&[&BENCH[..], &more].concat()).output().json();
    let (prefill, decode) = (&record["lengths"][0], &record["lengths"][1]);
    assert_eq!((prefill["tokens"].as_u64(), decode["tokens"].as_u64()), (Some(8), Some(16)));
    assert!(
        prefill["decode_tps"].is_null() && prefill["prefill_tps"]["runs"].as_array().unwrap().len() > 2,
        "{record}"
    );
    for rate in [&decode["prefill_tps"], &decode["decode_tps"], &decode["sampled_tps"], &decode["batches"][1]["tps"]] {
        assert!(rate["min"].as_f64() <= rate["median"].as_f64() && rate["median"].as_f64() <= rate["max"].as_f64());
        assert!(rate["min"].as_f64().unwrap() > 0.0, "{record}");
    }
    assert_eq!(decode["tokens_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(
        (decode["batches"][1]["sessions"].as_u64(), record["first_token"]["new_tokens"].as_u64()),
        (Some(3), Some(100))
    );
    assert!(record["bandwidth"].as_f64().unwrap() > 1e8 && record["load_seconds"]["median"].as_f64().unwrap() > 0.0);
    assert_eq!(record["checkpoint"]["name"], "lily-nano");
    let table = lily(&BENCH).output();
    assert!(table.stdout.contains("prefill 8") && table.stdout.contains("decode at 16"), "{table:?}");
}

#[test]
fn chunk_lengths_are_measured_in_pairs() {
    let args =
        ["ablate", "--backend", "cpu", "--chunk", "16", "--chunk-sizes", "8,16", "--prefill", "8,32", "--pairs", "2"];
    let record = lily(&[&args[..], &["--json"]].concat()).output().json();
    // Prompts of 8 tokens are one chunk either way.
    let effects = record["effects"].as_array().unwrap();
    let found: Vec<_> =
        effects.iter().map(|e| (e["mechanism"].as_str().unwrap(), e["tokens"].as_u64().unwrap())).collect();
    assert_eq!(found, [("chunks-of-8", 32)]);
    assert_eq!(effects[0]["percent"]["runs"].as_array().unwrap().len(), 2);
    assert_eq!(record["chunk_tokens"], 16);
    // Chunks longer than everything would be shorter ones under another name.
    let longer = ["ablate", "--prefill", "8,32", "--context", "8", "--decode", "4", "--chunk-sizes", "8,64"];
    check_failure(&lily(&longer).output(), 2, "--chunk-sizes 64: nothing that is measured has more than 32 tokens");
}

#[test]
fn guesses_are_measured_beside_plain_steps() {
    let args =
        ["ablate", "--backend", "cpu", "--speculation", "2,3", "--context", "24", "--decode", "12", "--pairs", "1"];
    let record = lily(&[&args[..], &["--json"]].concat()).output().json();
    assert_eq!(record["effects"].as_array().unwrap().len(), 0, "no mechanism was asked for");
    let measured = record["speculation"].as_array().unwrap();
    let rows: Vec<_> = measured.iter().map(|s| (s["rows"].as_u64().unwrap(), s["tokens"].as_u64().unwrap())).collect();
    assert_eq!(rows, [(2, 24), (3, 24)]);
    for source in measured.iter().flat_map(|s| s["sources"].as_array().unwrap()) {
        let count = |name: &str| source[name].as_u64().unwrap();
        assert!(count("generated") > 12, "{source}");
        match source["guesses"].as_str().unwrap() {
            "all-right" => assert!(count("guessed") > 0 && count("accepted") == count("guessed"), "{source}"),
            "none-right" => assert!(count("guessed") > 0 && count("accepted") == 0, "{source}"),
            name => assert_eq!(name, "look-up"),
        }
    }
    let table = lily(&args).output();
    assert!(table.stdout.contains("3 at 24, none-right"), "{table:?}");
    let short = [&args[..], &["--chunk", "8"]].concat();
    check_failure(
        &lily(&short).output(),
        2,
        "--speculation 2: this model checks at most 0 tokens of a session in one step",
    );
}

#[test]
fn what_bench_cannot_measure_is_refused() {
    check_failure(&lily(&["bench", "--prefill", "0"]).output(), 2, "at least 1 token");
    check_failure(&lily(&BENCH).arg("--record").arg("unwritten.json").output(), 2, "a record needs two rounds");
    check_failure(&lily(&[&BENCH[..], &["--peer", "mlx-lm"]].concat()).output(), 2, "cannot read the model in the box");
    check_failure(&lily(&[&BENCH[..], &["--peer", "llama-bench=x"]].concat()).output(), 2, "--peer-model FILE.gguf");
    // Words and code of the process that measures.
    check_failure(&lily(&[&BENCH[..], &["--batch", "9"]].concat()).output(), 2, "error: --batch 9: expected at most 8");
    check_failure(&lily(&["bench", "--context", "9999"]).output(), 2, "error: a context of 10069 tokens was asked for");
    check_failure(
        &lily(&["ablate", "--backend", "cpu", "--prefill", "16", "--context", "16"]).output(),
        2,
        "it is a mechanism of GPUs",
    );
}

#[test]
#[cfg(unix)]
fn bench_sets_a_peer_beside_lily() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let peer = folder.path().join("llama-bench");
    let script = r#"#!/bin/sh
        row() { echo "{\"build_commit\": \"abc\", \"build_number\": 7, \"gpu_info\": \"its GPU\", \"n_prompt\": $1, \"n_gen\": $2,
            \"n_depth\": $3, \"samples_ts\": [1.5, 2.5, 9.0]}"; }
        case "$*" in *"-n 0 -d 0"*) echo "[$(row 8 0 0), $(row 16 0 0)]" ;; *) echo "[$(row 0 4 16)]" ;; esac"#;
    std::fs::write(&peer, script).unwrap();
    std::fs::set_permissions(&peer, std::fs::Permissions::from_mode(0o755)).unwrap();
    let engine = format!("llama-bench={}", peer.display());
    let beside = [&BENCH[..], &["--peer", &engine, "--peer-model", "some/file.gguf"]].concat();
    let record = lily(&beside).arg("--json").output().json();
    assert_eq!((&record["peer"]["device"], &record["peer"]["model"]), (&"its GPU".into(), &"file.gguf".into()));
    assert_eq!(record["lengths"][1]["peer_decode_tps"]["median"], 2.5);
    assert!(record["lengths"][1]["decode_tps"]["median"].as_f64().unwrap() > 0.0, "{record}");
    let table = lily(&beside).output();
    assert!(table.stdout.contains("beside llama.cpp (build 7 (abc)") && table.stdout.contains("ratio"), "{table:?}");

    // One whose decoding is twice as fast in the second round: what else was measured is recorded.
    let drifts = script.replace(
        "*) echo \"[$(row 0 4 16)]\"",
        "*) echo >> \"$0.calls\"; echo \"[$(row 0 4 16)]\" | sed \"s/1.5, 2.5, 9.0/$(wc -l < \"$0.calls\").0/\"",
    );
    std::fs::write(&peer, drifts).unwrap();
    let file = folder.path().join("record.json");
    let twice = beside.iter().map(|arg| if *arg == "1" { "2" } else { arg }).collect::<Vec<_>>();
    let output = lily(&twice).arg("--reps").arg("1").arg("--json").arg("--record").arg(&file).output();
    let words = "refused, the others hold";
    // On a busy machine lily's own figures may drift too.
    let drifted = "llama.cpp, decode at 16: 1.00, 2.00 (100.0 % apart)";
    assert!(output.code == Some(1) && output.stderr.contains(drifted), "{output:?}");
    if output.stderr.contains(words) {
        let record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let lengths: Vec<_> = record["lengths"].as_array().unwrap().iter().map(|l| l["tokens"].clone()).collect();
        assert_eq!(lengths, [8]);
        assert!(record["refused"].as_array().unwrap().contains(&drifted.into()), "{record}");
    } else {
        assert!(output.stderr.contains("refused, nothing was recorded") && !file.exists(), "{output:?}");
    }

    std::fs::write(&peer, "#!/bin/sh\necho unknown model architecture >&2; exit 1\n").unwrap();
    check_failure(&lily(&beside).output(), 1, "llama.cpp: it failed (exit status: 1):\nunknown model architecture");
}

#[test]
fn eval_nano_prints_scores() {
    let output = lily(&["eval", "nano", "--set", "two_turn", "--limit", "3", "--json"]).output();
    assert_eq!(output.json()["sets"][0]["score"]["cases"], 3, "{output:?}");
    let table = lily(&["eval", "nano", "--set", "no_tool", "--limit", "2"]).output();
    assert!(table.code == Some(0) && table.stdout.contains("no_tool"), "{table:?}");
}

/// The published figures of such a comparison: perplexity within 0.04 %, the same first choice at 96.35 % of positions.
#[test]
fn lily_nano_follows_the_reference_closer_than_the_published_figures() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/");
    let file = format!("{folder}teacher/lily-nano.safetensors");
    let report = lily(&["eval", "teacher-forced", &file, "--model", "lily-nano", "--json"]).output().json();
    assert!(report["positions"].as_u64().unwrap() >= 192, "{report}");
    let truth = report["comparisons"].as_array().unwrap().iter().find(|c| c["run"] == "mlx_f32").unwrap();
    assert!(truth["perplexity_difference_percent"].as_f64().unwrap().abs() < 0.04, "{truth}");
    assert!(truth["top1_agreement_percent"].as_f64().unwrap() > 96.35, "{truth}");
    let args = ["eval", "teacher-forced", &file, "--model", "lily-nano", "--prompt", "--json"];
    assert_eq!(lily(&args).output().json(), report, "a CPU computes a prompt as it computes an answer");

    check_failure(&lily(&["eval", "teacher-forced", "no-such-file"]).output(), 1, "cannot read the reference");
    let other = format!("{folder}checkpoints/mlx/family_heads-q4g64");
    let output = lily(&["eval", "teacher-forced", &file, "--model", &other]).output();
    check_failure(&output, 3, "found another");
}

#[test]
fn the_same_tokens_give_the_same_bits() {
    let output = lily(&["eval", "determinism", "--tokens", "100", "--answer", "8", "--json"]).output();
    assert_eq!(output.code, Some(0), "{output:?}");
    let report = output.json();
    let checks = report["checks"].as_array().unwrap();
    assert_eq!((checks.len(), report["answer_tokens"].as_u64()), (5, Some(8)), "{report}");
    let cached = checks.iter().find(|c| c["way"] == "from the prefix cache").unwrap();
    assert!(cached["reused_tokens"].as_u64().unwrap() >= 50, "{report}");
}

#[test]
fn completions_and_manual_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let output = lily(&["completions", shell]).output();
        assert!(output.code == Some(0) && output.stdout.contains("quantize"), "{shell}");
    }
    let page = lily(&["man"]).output().stdout;
    for part in [
        ".TH lily",
        "LILY RUN",
        "LILY EVAL NANO",
        "LILY_TEMPERATURE",
        "LILY_THINK",
        ".SH EXIT STATUS",
        "not enough memory",
        "130",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn colours_are_for_terminals_or_on_demand() {
    let plain = lily(&["doctor"]).output();
    assert!(!plain.stderr.contains('\x1b') && !plain.stdout.contains('\x1b'), "{plain:?}");
    let run = |args: &[&str]| lily(args).output().stderr;
    assert!(run(&["tokenize", "hi", "--color", "always"]).contains("\x1b[2m"));
    assert!(!run(&["tokenize", "hi", "--color", "never"]).contains('\x1b'));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = lily(&["plan", "--json"]).spawn();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!error.contains("error") && !error.contains("panicked"), "{error}");
}
