//! Every kernel contract on this machine's NVIDIA GPU against its reference function, and lily-nano against the CPU.
//!
//! `cargo test -p lily-engine --features cuda --test cuda` where there is such a GPU; nowhere else is it built.

#![cfg(feature = "cuda")]

#[expect(dead_code, reason = "it has cases of kernels that are not for GPUs")]
mod conformance;
mod nano;

use conformance::{Case, Run, Runs, any_checkpoint};
use lily_engine::backend::cuda_device;
use lily_engine::cache::CacheOptions;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::model::Traits;
use lily_engine::plan::Dispatch;
use std::ops::ControlFlow;
use std::path::Path;

/// The GPU.
struct Gpu;

impl Runs for Gpu {
    fn ways(&self) -> Vec<(String, Run)> {
        let run = |case: &Case, dispatch: &Dispatch| {
            let mut backend = cuda_device().unwrap().load(any_checkpoint(), &case.table).unwrap();
            case.run_on(backend.as_mut(), dispatch)
        };
        vec![("CUDA".into(), Box::new(run))]
    }

    fn packed_queries(&self) -> u32 {
        Traits::WIDE_GPU.packed_queries
    }

    fn tile_heights(&self) -> [u32; 3] {
        [32, 64, 128]
    }
}

gpu_cases!(Gpu);

#[test]
fn lily_nano_answers_as_on_the_cpu() {
    nano::answers_as_on_the_cpu(cuda_device().unwrap());
}

#[test]
fn lily_nano_draws_as_on_the_cpu() {
    nano::draws_as_on_the_cpu(cuda_device().unwrap());
}

#[test]
fn lily_nano_agrees_with_the_cpu_at_every_position() {
    nano::agrees_with_the_cpu_at_every_position(cuda_device().unwrap());
}

#[test]
fn sessions_together_are_as_alone() {
    nano::sessions_together_are_as_alone(cuda_device().unwrap(), 5, 12);
}

#[test]
fn guesses_change_nothing() {
    nano::guesses_change_nothing(cuda_device().unwrap(), 60, &[2, 3, 5]);
}

/// What the cache keeps in the GPU's memory comes back to other sessions, also in part, and through a directory.
#[test]
fn what_is_remembered_comes_back_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let engine = |bytes, with_dir: bool| {
        let dir = with_dir.then(|| dir.path().to_owned());
        let cache = CacheOptions { bytes, dir, ..CacheOptions::default() };
        let options =
            EngineOptions { context_tokens: 256, chunk_tokens: Some(48), cache, ..EngineOptions::for_this_machine() };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano");
        Engine::on(cuda_device().unwrap(), Checkpoint::open(&path).unwrap(), &options).unwrap()
    };
    // Logits after a prompt in a new session, and tokens of it that came from memory and from files.
    let run = |engine: &mut Engine, prompt: &[u32], boundaries: &[usize]| {
        let mut session = engine.new_session().unwrap();
        let reuse = engine.begin(&mut session, prompt).unwrap();
        engine.advance(&mut session, prompt, boundaries, &mut |_, _| ControlFlow::Continue(())).unwrap();
        engine.remember(&mut session);
        (session.logits().unwrap().to_vec(), (reuse.memory_tokens, reuse.disk_tokens))
    };
    let long: Vec<u32> = (0..150).map(|i| (i * 37 + 11) % 300).collect();
    // Parts from it between two snapshots, so that rows are split.
    let branch = [&long[..60], &[1; 50]].concat();
    let mut cold = engine(0, false);
    let want = [&long, &branch].map(|prompt| run(&mut cold, prompt, &[]).0);
    let mut warm = engine(1 << 30, true);
    assert!(run(&mut warm, &long, &[40, 120]) == (want[0].clone(), (0, 0)));
    assert!(run(&mut warm, &branch, &[70]) == (want[1].clone(), (40, 0)));
    assert!(run(&mut warm, &long, &[]) == (want[0].clone(), (120, 0)), "after a split");
    assert!(run(&mut warm, &branch, &[]) == (want[1].clone(), (109, 0)));
    drop(warm);
    let mut next = engine(1 << 30, true);
    assert!(run(&mut next, &long, &[]) == (want[0].clone(), (0, 149)), "from files");
    assert!(run(&mut next, &branch, &[]) == (want[1].clone(), (0, 109)));
}

#[test]
fn lily_nano_reuses_the_turns_before() {
    nano::reuses_the_turns_before(cuda_device().unwrap());
}
