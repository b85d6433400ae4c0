//! Every kernel contract on this machine's GPU against its reference function: for a Mac, where nothing else can say what
//! Apple's compiler makes of the kernel text.

#![cfg(target_os = "macos")]

#[expect(dead_code, reason = "it has cases of kernels that are not for GPUs")]
mod conformance;

use conformance::{Case, Run, Runs, any_checkpoint};
use lily_engine::backend::metal_device;
use lily_engine::plan::Dispatch;

/// The GPU.
struct Gpu;

impl Runs for Gpu {
    fn ways(&self) -> Vec<(String, Run)> {
        let run = |case: &Case, dispatch: &Dispatch| {
            let mut backend = metal_device().unwrap().load(any_checkpoint(), &case.table).unwrap();
            case.run_on(backend.as_mut(), dispatch)
        };
        vec![("Metal".into(), Box::new(run))]
    }
}

gpu_cases!(Gpu);
