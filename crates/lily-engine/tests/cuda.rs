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

cases! { Gpu;
    ends: embed, head, sample, sample_as_the_host, sample_cuts_where_the_host_does, sample_takes_the_lowest_of_equals, sample_reports_broken_logits;
    linear: rms_norm, matmul_and_matmul_add, matmul_of_every_format_and_width, gate_up, project, matvec_add;
    delta: delta_prep, delta_scan_and_gated_norm, delta_step;
    attention: qk_prep, attend, attend_at_long_contexts, attend_blocks_and_merge, attend_blocks_at_borders,
        attend_merge_of_many_blocks;
    moe: router_and_router_step, route_and_group_rows, route_breaks_ties_towards_the_lowest_expert,
        expert_gate_up_and_down, combine, experts_gate_up_step, experts_down_step;
    chunks: products_do_not_depend_on_the_chunk, router_does_not_depend_on_the_chunk,
        experts_do_not_depend_on_the_chunk_or_tile, attention_does_not_depend_on_the_chunk,
        delta_does_not_depend_on_the_chunk;
}

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
