//! Whole models on the software Metal: kernel text, contracts and plans together, against another implementation's logits.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use lily_engine::backend::{Backend, BackendError, Device, DeviceMemory};
use lily_engine::cache::CacheOptions;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::kernel::codegen::contracts;
use lily_engine::model::Traits;
use lily_engine::plan::{BufferTable, Home};
use safetensors::SafeTensors;
use soft_metal::kernels::{self, Text, Variant};
use soft_metal::{Mode, Order, Settings, SoftMetal};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(path)
}

fn engine(device: SoftMetal) -> Engine {
    engine_on(Box::new(device), 32)
}

fn engine_on(device: Box<dyn Device>, chunk_tokens: usize) -> Engine {
    let checkpoint = Checkpoint::open(&golden("checkpoints/mlx/base-q4g64")).unwrap();
    // Nothing is kept of a prompt, so that it ends with a chunk of several rows.
    let cache = CacheOptions { bytes: 0, ..CacheOptions::default() };
    let options = EngineOptions {
        context_tokens: 128,
        chunk_tokens: Some(chunk_tokens),
        sessions: 8,
        cache,
        ..EngineOptions::for_this_machine()
    };
    Engine::on(device, checkpoint, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// Tokens of the golden, and logits of a float32 run at each.
fn wanted() -> (Vec<u32>, Vec<f32>) {
    let bytes = std::fs::read(golden("mlx/base-q4g64.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<[u8; 4]> {
        file.tensor(name).unwrap().data().chunks_exact(4).map(|c| c.try_into().unwrap()).collect()
    };
    let tokens = words("tokens").into_iter().map(u32::from_le_bytes).collect();
    (tokens, words("logits_f32").into_iter().map(f32::from_le_bytes).collect())
}

/// What bf16 at kernel boundaries costs the reference itself, relative to its logits; see lily-engine's golden test.
fn spread() -> f64 {
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden("mlx/base-q4g64.json")).unwrap()).unwrap();
    let run = json.get("bf16k_vs_f32").or(json.get("bf16_vs_f32")).unwrap();
    run["rms"].as_f64().unwrap() / run["logit_rms"].as_f64().unwrap()
}

fn relative_rms(got: &[f32], want: &[f32]) -> f64 {
    let square = |v: f32| (v as f64).powi(2);
    let error: f64 = got.iter().zip(want).map(|(g, w)| square(g - w)).sum();
    (error / want.iter().map(|w| square(*w)).sum::<f64>()).sqrt()
}

/// Logits of the first `count` positions, token by token.
fn decoded(device: SoftMetal, tokens: &[u32]) -> Vec<f32> {
    let mut engine = engine(device);
    let mut session = engine.new_session().unwrap();
    let mut all = Vec::new();
    for token in tokens {
        engine.decode(&mut session, *token).unwrap();
        all.extend_from_slice(session.logits().unwrap());
    }
    all
}

fn plain(order: Order) -> SoftMetal {
    SoftMetal { variant: Variant::PLAIN, settings: Settings { order, ..Settings::default() }, shuffle: None }
}

#[test]
fn kernel_text_agrees_with_the_contracts() {
    for contract in contracts().into_iter().filter(|c| c.on_gpu()) {
        let library = kernels::library(contract.name, Variant::PLAIN).unwrap_or_else(|error| panic!("{error}"));
        let info = library.kernel(contract.name).unwrap();
        kernels::agree(info, contract).unwrap_or_else(|difference| panic!("{difference}"));
    }
}

#[test]
fn decoding_follows_the_reference() {
    let (tokens, want) = wanted();
    let got = decoded(plain(Order::Forward), &tokens);
    let error = relative_rms(&got, &want);
    assert!(error < 2.0 * spread(), "relative rms error {error}; the reference's bf16 run has {}", spread());
}

#[test]
fn prefill_follows_the_reference() {
    let (tokens, want) = wanted();
    let mut engine = engine(plain(Order::Random(3)));
    let mut session = engine.new_session().unwrap();
    engine.advance(&mut session, &tokens, &[], &mut |_, _| ControlFlow::Continue(())).unwrap();
    let got = session.logits().unwrap();
    let error = relative_rms(got, &want[want.len() - got.len()..]);
    assert!(error < 2.0 * spread(), "relative rms error {error}; the reference's bf16 run has {}", spread());
}

/// A device that attends by segments in short contexts too.
struct Segmented(SoftMetal);

impl Device for Segmented {
    fn traits(&self) -> Traits {
        Traits { segment_keys: 64, ..self.0.traits() }
    }

    fn memory(&self) -> Option<DeviceMemory> {
        self.0.memory()
    }

    fn load(
        self: Box<Self>,
        checkpoint: Arc<Checkpoint>,
        table: &BufferTable,
    ) -> Result<Box<dyn Backend>, BackendError> {
        Box::new(self.0).load(checkpoint, table)
    }
}

#[test]
fn a_prompt_by_segments_follows_the_same_in_one_and_does_not_depend_on_chunks() {
    let tokens: Vec<u32> = wanted().0.into_iter().cycle().take(100).collect();
    for text in [Text::Metal, Text::Nvidia] {
        let device = SoftMetal { variant: Variant { text, ..Variant::PLAIN }, ..plain(Order::Random(5)) };
        let logits = |device: Box<dyn Device>, chunk_tokens| {
            let mut engine = engine_on(device, chunk_tokens);
            let mut session = engine.new_session().unwrap();
            engine.advance(&mut session, &tokens, &[], &mut |_, _| ControlFlow::Continue(())).unwrap();
            session.logits().unwrap().to_vec()
        };
        let (whole, by_segments) = (logits(Box::new(device), 32), logits(Box::new(Segmented(device)), 32));
        let error = relative_rms(&by_segments, &whole);
        assert!(error > 0.0 && error < spread(), "{text:?}: relative rms error {error}; bf16 costs {}", spread());
        assert_eq!(logits(Box::new(Segmented(device)), 7), by_segments, "{text:?}: chunks of 7 change bits");
    }
}

#[test]
fn no_order_of_lanes_or_dispatches_changes_a_bit() {
    let tokens = &wanted().0[..6];
    let want = decoded(plain(Order::Forward), tokens);
    for seed in [1, 2] {
        let device = SoftMetal { shuffle: Some(seed), ..plain(Order::Random(seed)) };
        assert_eq!(decoded(device, tokens), want, "seed {seed}");
    }
    assert_eq!(decoded(plain(Order::Reverse), tokens), want);
}

#[test]
fn a_model_has_no_races() {
    let tokens = &wanted().0[..4];
    for text in [Text::Metal, Text::Nvidia] {
        let [watched, plain] = [Mode::Races, Mode::Plain]
            .map(|mode| SoftMetal { variant: Variant { mode, text }, ..plain(Order::Forward) });
        assert_eq!(decoded(watched, tokens), decoded(plain, tokens), "{text:?}");
    }
}

#[test]
fn sessions_decode_together_as_they_do_alone() {
    let tokens = wanted().0;
    let device = SoftMetal { shuffle: Some(4), ..plain(Order::Random(2)) };
    let mut engine = engine(device);
    for sessions in [2, 5] {
        let state = |engine: &mut Engine, i: usize| {
            let mut session = engine.new_session().unwrap();
            engine.advance(&mut session, &tokens[i..2 * i + 3], &[], &mut |_, _| ControlFlow::Continue(())).unwrap();
            session
        };
        let mut alone: Vec<_> = (0..sessions).map(|i| state(&mut engine, i)).collect();
        let mut together: Vec<_> = (0..sessions).map(|i| state(&mut engine, i)).collect();
        for step in 0..2 {
            let next = &tokens[step..][..sessions];
            alone.iter_mut().zip(next).for_each(|(session, token)| engine.decode(session, *token).unwrap());
            let mut batch: Vec<_> = together.iter_mut().collect();
            engine.decode_batch(&mut batch, next, || ()).unwrap();
            for (i, (a, b)) in alone.iter().zip(&together).enumerate() {
                assert!(a.logits() == b.logits(), "session {i} of {sessions} has other logits after step {step}");
            }
        }
    }
}

#[test]
fn what_kernels_may_read_early_is_what_no_kernel_computes() {
    let engine = engine(plain(Order::Forward));
    let model = engine.model();
    let class = model.decode_class(100);
    let mut early = 0;
    for plan in [model.decode_batch(&[class; 2], true), model.prefill(32, true)] {
        let bindings = plan.dispatches.iter().flat_map(|dispatch| dispatch.bindings());
        for (param, slot) in bindings.filter(|(_, slot)| slot.bytes > 0) {
            let is_there = !matches!(model.table.get(slot.buffer).home, Home::Scratch) || param.name == "step";
            assert_eq!(kernels::is_early(param), is_there, "`{}` of {:?}", param.name, model.table.get(slot.buffer));
            early += usize::from(is_there);
        }
    }
    assert!(early > 100, "{early}");
}
