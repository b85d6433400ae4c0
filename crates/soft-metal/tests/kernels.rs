//! The kernels of `kernels/` on the software Metal against their reference functions, in several orders of lanes.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../../lily-engine/tests/conformance/mod.rs"]
#[expect(dead_code, reason = "it has cases of kernels that are not for GPUs")]
mod conformance;

use conformance::{Case, Run, Runs};
use lily_engine::plan::Dispatch;
use soft_metal::kernels::{self, Variant};
use soft_metal::{Binding, Buffer, Device, Mode, Order, Settings};
use std::collections::HashMap;

/// Runs a dispatch on buffers of its own and hands out those it writes. Stored matrices start at a multiple of 4 bytes that
/// is none of 8, as they may in a checkpoint.
fn run(order: Order, variant: Variant, case: &Case, dispatch: &Dispatch) -> Vec<Vec<u8>> {
    let contents: HashMap<_, _> = case.contents.iter().map(|(slot, bytes)| (slot.buffer, bytes)).collect();
    let buffers: HashMap<_, (Buffer, usize)> = dispatch
        .bindings()
        .map(|(param, slot)| {
            let shift = if param.element == "u8" { 4 } else { 0 };
            let buffer = Buffer::new(case.table.get(slot.buffer).bytes + shift).unwrap();
            buffer.write(shift, contents[&slot.buffer]);
            (slot.buffer, (buffer, shift))
        })
        .collect();
    let bindings: Vec<Binding<'_>> = dispatch
        .slots
        .iter()
        .map(|slot| {
            let (buffer, shift) = &buffers[&slot.buffer];
            Binding { buffer, offset: shift + slot.offset, bytes: slot.bytes }
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
struct SoftMetal {
    /// Whether matrix tiles use the tensor operations of Metal 4.
    tensor_ops: bool,
}

impl Runs for SoftMetal {
    fn ways(&self) -> Vec<(String, Run)> {
        let tensor_ops = self.tensor_ops;
        let way = |order: Order| -> (String, Run) {
            let run = move |case: &Case, dispatch: &Dispatch| {
                let small = dispatch.slots.iter().map(|s| s.bytes).sum::<usize>() <= WATCHED_BYTES;
                let watched = small && matches!(order, Order::Random(_));
                let mode = if watched { Mode::Races } else { Mode::Plain };
                run(order, Variant { mode, tensor_ops }, case, dispatch)
            };
            (format!("{order:?}"), Box::new(run))
        };
        [Order::Forward, Order::Reverse, Order::Random(7)].map(way).into()
    }

    fn agree(&self) -> bool {
        true
    }
}

gpu_cases!(SoftMetal { tensor_ops: false });

mod with_tensor_operations {
    use super::*;

    cases! { SoftMetal { tensor_ops: true };
        linear: matmul_and_matmul_add, matmul_of_every_format_and_width, gate_up;
        moe: expert_gate_up_and_down;
        chunks: products_do_not_depend_on_the_chunk, experts_do_not_depend_on_the_chunk_or_tile;
    }
}
