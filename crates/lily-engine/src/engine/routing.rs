//! A prefill chunk whose experts the host chooses and groups: what routing on the device saves.

use crate::backend::{Backend, BackendError, State};
use crate::kernel::{GroupRows, HostSlice, HostSlices, Kernel, Route};
use crate::plan::{Dispatch, Plan};

/// Runs a plan that stops inside every layer: the host waits for the router's logits, runs the two routing kernels'
/// reference functions, and hands their results back.
pub(super) fn run_with_host_routing(
    backend: &mut dyn Backend,
    plan: Plan,
    states: &mut [&mut dyn State],
) -> Result<(), BackendError> {
    let mut part = Plan { dispatches: Vec::new(), serial: plan.serial };
    for dispatch in plan.dispatches {
        let routes = [Route::contract(), GroupRows::contract()].iter().any(|c| std::ptr::eq(*c, dispatch.contract));
        if routes {
            backend.run(&part, states)?;
            part.dispatches.clear();
            run_on_host(backend, &dispatch);
        } else {
            part.dispatches.push(dispatch);
        }
    }
    backend.run(&part, states)
}

/// Runs a dispatch on copies of its buffers, all of them scratch.
fn run_on_host(backend: &mut dyn Backend, dispatch: &Dispatch) {
    // Words, so that views of every element type are aligned.
    let mut buffers: Vec<Vec<u32>> = dispatch.slots.iter().map(|slot| vec![0; slot.bytes / 4]).collect();
    for (buffer, (param, slot)) in buffers.iter_mut().zip(dispatch.bindings()) {
        if !param.access.writes() {
            backend.read(slot, bytemuck::cast_slice_mut(buffer));
        }
    }
    let slices = buffers.iter_mut().zip(dispatch.bindings()).map(|(buffer, (param, _))| match param.access.writes() {
        true => HostSlice::Write(bytemuck::cast_slice_mut(buffer)),
        false => HostSlice::Read(bytemuck::cast_slice(buffer)),
    });
    (dispatch.contract.reference)(&dispatch.args, HostSlices::new(slices));
    for (buffer, (param, slot)) in buffers.iter().zip(dispatch.bindings()) {
        if param.access.writes() {
            backend.write(slot, bytemuck::cast_slice(buffer));
        }
    }
}
