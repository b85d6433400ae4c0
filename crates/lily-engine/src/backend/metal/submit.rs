//! Submissions: encoding, waiting, and finding out who failed.
//!
//! A step is one command buffer with one concurrent pass: dispatches of a stage may overlap, barriers stand between
//! stages. At most two are under way, so that the host can encode one while the other runs; a fence orders them, because
//! buffers are not tracked. When a submission fails, its dispatches are run again one by one to name the one that does
//! it: results are lost anyway, and no time is spent on keeping track while all goes well.

use super::device::DeviceRef;
use super::memory::{Memory, StateAreas};
use super::{Ready, refused, words};
use crate::backend::BackendError;
use crate::backend::gpu::encode::Encoded;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBarrierScope, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLComputeCommandEncoder, MTLDevice, MTLDispatchType, MTLFence, MTLSize,
};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

/// Submissions under way at most.
const IN_FLIGHT_MAX: usize = 2;

type Encoder = ProtocolObject<dyn MTLComputeCommandEncoder>;

/// A submission under way, with all that it uses.
struct Flight {
    commands: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
    ready: Arc<Ready>,
    states: Vec<Arc<StateAreas>>,
}

// SAFETY: a committed command buffer may be asked and released from any thread.
unsafe impl Send for Flight {}

/// The queue and what is under way in it.
pub(super) struct Submitter {
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    fence: Retained<ProtocolObject<dyn MTLFence>>,
    flights: VecDeque<Flight>,
}

impl Submitter {
    pub(super) fn new(
        device: &DeviceRef,
        queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    ) -> Result<Self, BackendError> {
        let fence = device.newFence().ok_or_else(|| refused("a fence"))?;
        Ok(Self { queue, fence, flights: VecDeque::with_capacity(IN_FLIGHT_MAX) })
    }

    /// Starts a step; where two are under way, waits for the older one first.
    pub(super) fn submit(
        &mut self,
        ready: &Arc<Ready>,
        memory: &Memory,
        states: Vec<Arc<StateAreas>>,
    ) -> Result<(), BackendError> {
        while self.flights.len() >= IN_FLIGHT_MAX {
            self.wait_oldest(memory)?;
        }
        let commands = autoreleasepool(|_| {
            self.commit(|encoder| {
                for (stage, dispatches) in ready.list.stages.iter().enumerate() {
                    if stage > 0 {
                        encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
                    }
                    dispatches.iter().for_each(|dispatch| encode(encoder, ready, memory, &states, dispatch));
                }
            })
        })?;
        self.flights.push_back(Flight { commands, ready: Arc::clone(ready), states });
        Ok(())
    }

    /// Waits until so many are under way. All others are waited for even if one fails, whose error is given.
    pub(super) fn wait_until(&mut self, under_way: usize, memory: &Memory) -> Result<(), BackendError> {
        let mut result = Ok(());
        while self.flights.len() > under_way {
            result = result.and(self.wait_oldest(memory));
        }
        result
    }

    /// # Panics
    /// If something is under way: the host must not touch what it uses.
    pub(super) fn assert_idle(&self) {
        assert!(self.flights.is_empty(), "a submission is under way; wait for it before touching buffers");
    }

    fn wait_oldest(&mut self, memory: &Memory) -> Result<(), BackendError> {
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        autoreleasepool(|_| match outcome(&flight.commands) {
            Ok(()) => Ok(()),
            Err(message) => {
                // What came after it worked on broken state, and must not run into the search.
                self.flights.drain(..).for_each(|later| later.commands.waitUntilCompleted());
                Err(self.find_fault(&flight, memory, message))
            }
        })
    }

    /// Encodes one pass and commits it.
    fn commit(
        &self,
        encode: impl FnOnce(&Encoder),
    ) -> Result<Retained<ProtocolObject<dyn MTLCommandBuffer>>, BackendError> {
        // References are kept by the flight, which is cheaper than one for each binding.
        let commands = self.queue.commandBufferWithUnretainedReferences().ok_or_else(|| refused("a command buffer"))?;
        let encoder = commands
            .computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
            .ok_or_else(|| refused("a compute encoder"))?;
        encoder.waitForFence(&self.fence);
        encode(&encoder);
        encoder.updateFence(&self.fence);
        encoder.endEncoding();
        commands.commit();
        Ok(commands)
    }

    /// Runs the dispatches of a failed submission one by one until one fails.
    fn find_fault(&self, flight: &Flight, memory: &Memory, message: String) -> BackendError {
        let (ready, stages) = (&flight.ready, flight.ready.list.stages.len());
        for (stage, dispatch) in ready.list.dispatches() {
            let alone = self.commit(|encoder| encode(encoder, ready, memory, &flight.states, dispatch));
            let Err(message) = alone.map_err(|e| e.to_string()).and_then(|commands| outcome(&commands)) else {
                continue;
            };
            let key = &ready.list.pipelines[dispatch.pipeline];
            return BackendError::Fault {
                kernel: format!("kernel `{}`", key.entry),
                stage: stage + 1,
                stages,
                message,
            };
        }
        let count = ready.list.dispatches().count();
        let kernel = format!("one of {count} kernels, none of which fails alone,");
        BackendError::Fault { kernel, stage: 1, stages, message }
    }
}

impl Drop for Submitter {
    fn drop(&mut self) {
        self.flights.drain(..).for_each(|flight| flight.commands.waitUntilCompleted());
    }
}

/// Waits for a submission; the error is in the system's words.
fn outcome(commands: &ProtocolObject<dyn MTLCommandBuffer>) -> Result<(), String> {
    commands.waitUntilCompleted();
    match commands.status() {
        MTLCommandBufferStatus::Completed => Ok(()),
        status => Err(commands.error().map_or_else(|| format!("command buffer status {}", status.0), |e| words(&e))),
    }
}

fn encode(encoder: &Encoder, ready: &Ready, memory: &Memory, states: &[Arc<StateAreas>], dispatch: &Encoded) {
    encoder.setComputePipelineState(ready.pipelines[dispatch.pipeline].state());
    for (index, place) in dispatch.buffers.iter().enumerate() {
        let (buffer, offset) = memory.buffer(states, *place);
        // SAFETY: the place lies inside the buffer, which the flight keeps; the kernel's parameter has this index.
        unsafe { encoder.setBuffer_offset_atIndex(Some(buffer), offset, index) };
    }
    let args = NonNull::from(dispatch.args.as_slice()).cast();
    // SAFETY: the bytes are copied during the call; the kernel's argument struct has this index.
    unsafe { encoder.setBytes_length_atIndex(args, dispatch.args.len(), dispatch.buffers.len()) };
    let [width, height, depth] = dispatch.threadgroups.map(|n| n as usize);
    let threads = MTLSize { width: dispatch.threads as usize, height: 1, depth: 1 };
    encoder.dispatchThreadgroups_threadsPerThreadgroup(MTLSize { width, height, depth }, threads);
}
