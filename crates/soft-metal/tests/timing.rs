//! Kernels are timed by plans that repeat some launches and leave out others: none of them may read or write astray, which
//! a GPU would not forgive and the software Metal refuses.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions, StepTimes};
use lily_engine::sampler::{Sampler, SamplingParams};
use lily_engine::session::Session;
use soft_metal::kernels::Variant;
use soft_metal::{Settings, SoftMetal};
use std::ops::ControlFlow;
use std::path::Path;

fn filled(engine: &mut Engine, count: u32) -> Session {
    let vocab = engine.model().shape.vocab as u32;
    let tokens: Vec<u32> = (0..count).map(|i| (i * 37 + 5) % vocab).collect();
    let mut session = engine.new_session().unwrap();
    engine.advance(&mut session, &tokens, &[], &mut |_, _| ControlFlow::Continue(())).unwrap();
    session
}

fn check(times: &StepTimes, kernels: &[&str]) {
    assert_eq!((times.whole.len(), times.launches.is_none()), (1, true), "one run, and no time of a launch");
    for kernel in kernels {
        assert!(times.kernels.iter().any(|k| k.kernel == *kernel && k.alone > 0.0), "{kernel}: {:?}", times.kernels);
    }
}

#[test]
fn what_is_repeated_or_left_out_leads_nobody_astray() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints/mlx/base-q4g64");
    let options = EngineOptions { context_tokens: 64, chunk_tokens: Some(6), ..EngineOptions::for_this_machine() };
    let device = SoftMetal { variant: Variant::PLAIN, settings: Settings::default(), shuffle: Some(3) };
    let mut engine = Engine::on(Box::new(device), Checkpoint::open(&path).unwrap(), &options).unwrap();
    let sampler = Sampler::new(SamplingParams::greedy(), engine.model().shape.vocab).unwrap();
    let session = filled(&mut engine, 6);
    let decode = engine.time_decode(vec![session], &sampler, 1).unwrap();
    check(&decode, &["project", "delta_step", "attend_blocks", "experts_gate_up_step", "sample"]);
    let session = filled(&mut engine, 6);
    let chunk = engine.time_chunk(session, (0..3).collect(), 1).unwrap();
    check(&chunk, &["matmul", "delta_scan", "attend", "group_rows", "expert_down", "head"]);
}
