//! Every kernel contract on this machine's NVIDIA GPU against its reference function, and lily-nano against the CPU.
//!
//! `cargo test -p lily-engine --features cuda --test cuda` where there is such a GPU; nowhere else is it built.

#![cfg(feature = "cuda")]

#[expect(dead_code, reason = "it has cases of kernels that are not for GPUs")]
mod conformance;
mod nano;

use conformance::{Case, Run, Runs, any_checkpoint};
use lily_engine::backend::cuda_device;
use lily_engine::plan::Dispatch;

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
