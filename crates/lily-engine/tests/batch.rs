//! A decode step of several sessions gives each of them the bits that it gets alone.

#[expect(dead_code, reason = "the rest is for other devices than the CPU")]
mod nano;

use lily_engine::backend::cpu::{CpuDevice, CpuMode, isa::Isa};
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::session::Session;
use std::ops::ControlFlow;
use std::path::Path;

fn engine(checkpoint: &str, cpu: CpuMode) -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(checkpoint);
    let options = EngineOptions {
        context_tokens: 128,
        chunk_tokens: Some(16),
        threads: 2,
        sessions: 8,
        cpu,
        ..EngineOptions::for_this_machine()
    };
    Engine::new(Checkpoint::open(&path).unwrap(), &options).unwrap()
}

/// A session with a prompt of its own length and tokens.
fn session(engine: &mut Engine, seed: u32) -> Session {
    let vocab = engine.model().shape.vocab as u32;
    let prompt: Vec<u32> = (0..5 + 9 * seed).map(|i| (i * 31 + seed * 17 + 3) % vocab).collect();
    let mut session = engine.new_session().unwrap();
    engine.advance(&mut session, &prompt, &[], &mut |_, _| ControlFlow::Continue(())).unwrap();
    session
}

fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best }) as u32
}

/// Steps together, sessions joining and leaving, against steps alone.
fn together_as_alone(mut engine: Engine, sessions: usize) {
    let mut alone: Vec<Session> = (0..sessions).map(|i| session(&mut engine, i as u32)).collect();
    let mut together: Vec<Session> = (0..sessions).map(|i| session(&mut engine, i as u32)).collect();
    for step in 0..6 {
        let chosen: Vec<usize> = (0..sessions).filter(|i| (step + i) % 3 != 0 || step == 0).collect();
        let tokens: Vec<u32> = chosen.iter().map(|i| best(alone[*i].logits().unwrap())).collect();
        chosen.iter().zip(&tokens).for_each(|(i, token)| engine.decode(&mut alone[*i], *token).unwrap());
        let mut batch: Vec<&mut Session> =
            together.iter_mut().enumerate().filter(|(i, _)| chosen.contains(i)).map(|(_, session)| session).collect();
        engine.decode_batch(&mut batch, &tokens, || ()).unwrap();
        for (i, (a, b)) in alone.iter().zip(&together).enumerate() {
            assert_eq!(a.tokens(), b.tokens(), "session {i}");
            assert!(a.logits() == b.logits(), "session {i} has other logits after step {step}");
        }
    }
}

#[test]
fn together_is_as_alone_on_every_instruction_set() {
    for isa in Isa::supported() {
        together_as_alone(engine("tests/golden/checkpoints/mlx/base-q4g64", CpuMode::Fast(isa)), 8);
    }
    together_as_alone(engine("tests/golden/checkpoints/mlx/experts-q8g32", CpuMode::Fast(Isa::detect())), 3);
    nano::sessions_together_are_as_alone(Box::new(CpuDevice { mode: CpuMode::Fast(Isa::detect()), threads: 2 }), 4, 6);
}

#[test]
fn a_batch_that_cannot_be_computed_changes_nothing() {
    let mut engine = engine("tests/golden/checkpoints/mlx/base-q4g64", CpuMode::Fast(Isa::detect()));
    let (mut a, mut b) = (session(&mut engine, 1), session(&mut engine, 2));
    let before = (a.tokens().to_vec(), b.tokens().to_vec());
    let vocab = engine.model().shape.vocab as u32;
    let error = engine.decode_batch(&mut [&mut a, &mut b], &[1, vocab], || ()).unwrap_err();
    assert!(error.to_string().contains("not in the model's vocabulary"), "{error}");
    assert_eq!((a.tokens(), b.tokens()), (&before.0[..], &before.1[..]));
    assert!(a.logits().is_some() && b.logits().is_some());
}
