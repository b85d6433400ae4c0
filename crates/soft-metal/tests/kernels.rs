//! The kernels of `kernels/` on the software Metal against their reference functions, in several orders of lanes.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../../lily-engine/tests/conformance/mod.rs"]
#[expect(dead_code, reason = "it has cases of kernels that are not for GPUs")]
mod conformance;

use conformance::{Case, Run, Runs};
use lily_engine::model::Traits;
use lily_engine::plan::Dispatch;
use soft_metal::kernels::{self, Text, Variant};
use soft_metal::{Binding, Buffer, Device, Mode, Order, Settings};
use std::collections::HashMap;

/// Runs a dispatch on buffers of its own and hands out those it writes. Stored matrices are as badly aligned as they may be.
fn run(order: Order, variant: Variant, case: &Case, dispatch: &Dispatch) -> Vec<Vec<u8>> {
    let contents: HashMap<_, _> = case.contents.iter().map(|(slot, bytes)| (slot.buffer, bytes)).collect();
    let buffers: HashMap<_, (Buffer, usize)> = dispatch
        .bindings()
        .map(|(param, slot)| {
            let shift = if param.element == "u8" { variant.text.weight_shift() } else { 0 };
            let buffer = Buffer::new(case.table.get(slot.buffer).bytes + shift).unwrap();
            buffer.write(shift, contents[&slot.buffer]);
            (slot.buffer, (buffer, shift))
        })
        .collect();
    let bindings: Vec<Binding<'_>> = dispatch
        .bindings()
        .map(|(param, slot)| {
            let (buffer, shift) = &buffers[&slot.buffer];
            Binding { buffer, offset: shift + slot.offset, bytes: slot.bytes, early: kernels::is_early(param) }
        })
        .collect();
    let mut device = Device::new(Settings { order, ..Settings::default() });
    kernels::run(&mut device, variant, dispatch, &bindings).unwrap_or_else(|fault| panic!("{fault}"));
    let written = dispatch.bindings().filter(|(param, _)| param.access.writes());
    written
        .map(|(_, slot)| {
            let mut bytes = vec![0; slot.bytes];
            let (buffer, shift) = &buffers[&slot.buffer];
            buffer.read(shift + slot.offset, &mut bytes);
            bytes
        })
        .collect()
}

/// Most bytes of buffers with which a case is also watched for races, which makes it several times slower.
const WATCHED_BYTES: usize = 1 << 20;

/// The software Metal, with the lanes of a SIMD-group in three orders; small cases are watched for races in one of them.
struct SoftMetal(Text);

impl Runs for SoftMetal {
    fn ways(&self) -> Vec<(String, Run)> {
        let text = self.0;
        let way = |order: Order| -> (String, Run) {
            let run = move |case: &Case, dispatch: &Dispatch| {
                let small = dispatch.slots.iter().map(|s| s.bytes).sum::<usize>() <= WATCHED_BYTES;
                let watched = small && matches!(order, Order::Random(_));
                let mode = if watched { Mode::Races } else { Mode::Plain };
                run(order, Variant { mode, text }, case, dispatch)
            };
            (format!("{order:?}"), Box::new(run))
        };
        [Order::Forward, Order::Reverse, Order::Random(7)].map(way).into()
    }

    fn agree(&self) -> bool {
        true
    }

    fn packed_queries(&self) -> u32 {
        if self.0 == Text::Nvidia { Traits::WIDE_GPU.packed_queries } else { Traits::GPU.packed_queries }
    }

    fn tile_heights(&self) -> [u32; 3] {
        if self.0 == Text::Nvidia { [32, 64, 128] } else { [16, 32, 64] }
    }
}

gpu_cases!(SoftMetal(Text::Metal));

mod with_tensor_operations {
    use super::*;

    cases! { SoftMetal(Text::Metal4);
        linear: matmul_and_matmul_add, matmul_of_every_format_and_width, gate_up;
        moe: expert_gate_up_and_down;
        chunks: products_do_not_depend_on_the_chunk, experts_do_not_depend_on_the_chunk_or_tile;
    }
}

/// Kernels whose text, or that of what they share, is another for NVIDIA's GPUs.
mod with_instructions_of_nvidia {
    use super::*;

    cases! { SoftMetal(Text::Nvidia);
        ends: head, sample;
        linear: rms_norm, matmul_and_matmul_add, matmul_of_every_height, matmul_of_every_format_and_width, gate_up,
            project, matvec_add;
        delta: delta_scan_and_gated_norm, delta_step;
        drift: the_state_keeps_32768_tokens;
        attention: attend, attend_by_segments, attend_at_long_contexts, attend_blocks_and_merge, attend_blocks_at_borders;
        moe: router_and_router_step, expert_gate_up_and_down, experts_gate_up_step, experts_down_step;
        chunks: products_do_not_depend_on_the_chunk, router_does_not_depend_on_the_chunk,
            experts_do_not_depend_on_the_chunk_or_tile, attention_does_not_depend_on_the_chunk,
            delta_does_not_depend_on_the_chunk;
        batch: project_rows, matvec_add_rows, merge_matvec_add_rows, head_rows, router_step_rows, experts_rows;
        unfused: dequantize, delta_update, attend_prepared, experts_products_and_gate, experts_each_step;
    }
}
