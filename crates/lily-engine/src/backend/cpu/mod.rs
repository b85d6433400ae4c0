//! The CPU backend: fast Rust kernels over the vector instructions of the machine, run by a small thread pool.
//!
//! Every kernel has a fast form here; [`CpuMode::Reference`] runs the contracts' reference functions instead, which is
//! slow and plainly readable, and what the fast forms are compared with. Dispatches run one after another, each split
//! over the pool, so hazards between them need no further care.

pub mod isa;
mod kernels;
pub mod pool;
pub mod product;

use super::host::{HostMemory, HostState};
use super::{Backend, BackendError, Device, DeviceMemory, State};
use crate::checkpoint::Checkpoint;
use crate::kernel::launch::UnsupportedShape;
use crate::memory::available_bytes;
use crate::model::Traits;
use crate::plan::{BufferTable, Plan, Slot};
use crate::shape::Shape;
use isa::Isa;
use kernels::{Context, Workspace};
use pool::Pool;
use std::sync::Arc;
use std::time::Instant;

/// Which code computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuMode {
    /// The contracts' reference functions.
    Reference,
    /// Fast kernels for an instruction set.
    Fast(Isa),
}

impl CpuMode {
    /// Reads the name of a mode: `reference`, or an instruction set; empty means the best of this machine.
    ///
    /// # Errors
    /// If the name is unknown, or this machine lacks the instructions.
    pub fn parse(name: &str) -> Result<Self, BackendError> {
        match name {
            "" => Ok(CpuMode::Fast(Isa::detect())),
            "reference" => Ok(CpuMode::Reference),
            name => Ok(CpuMode::Fast(Isa::parse(name)?)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            CpuMode::Reference => "reference",
            CpuMode::Fast(isa) => isa.name(),
        }
    }
}

/// Elements of the widest vector registers: heads are taken in whole ones.
const HEAD_MULTIPLE: usize = 16;
/// Largest head that kernels have room for.
const HEAD_MAX: usize = 512;

/// The CPU as a device.
#[derive(Clone, Copy, Debug)]
pub struct CpuDevice {
    /// Which code computes.
    pub mode: CpuMode,
    /// How many threads.
    pub threads: usize,
}

impl Device for CpuDevice {
    fn traits(&self) -> Traits {
        Traits::CPU
    }

    fn memory(&self) -> Option<DeviceMemory> {
        available_bytes().map(|bytes| DeviceMemory { bytes, limit: "available memory" })
    }

    fn check(&self, shape: &Shape) -> Result<(), BackendError> {
        let heads = [
            ("size of an attention head", shape.attention.head_dim),
            ("size of a key head of DeltaNet", shape.delta.key_dim),
            ("size of a value head of DeltaNet", shape.delta.value_dim),
        ];
        let odd = heads.into_iter().find(|(_, found)| found % HEAD_MULTIPLE != 0 || *found > HEAD_MAX);
        match (self.mode, odd) {
            (CpuMode::Fast(_), Some((what, found))) => Err(BackendError::Shape(UnsupportedShape {
                kernels: "vector",
                instead: "--cpu reference, which is slow",
                what,
                expected: "multiples of 16 up to 512",
                found,
            })),
            _ => Ok(()),
        }
    }

    fn load(
        self: Box<Self>,
        checkpoint: Arc<Checkpoint>,
        table: &BufferTable,
    ) -> Result<Box<dyn Backend>, BackendError> {
        Ok(Box::new(Cpu::new(checkpoint, table, self.mode, self.threads)?))
    }
}

/// The CPU with a model.
pub struct Cpu {
    mode: CpuMode,
    pool: Pool,
    memory: HostMemory,
    workspace: Workspace,
}

impl Cpu {
    /// Allocates vectors and scratch and starts the threads.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(
        checkpoint: Arc<Checkpoint>,
        table: &BufferTable,
        mode: CpuMode,
        threads: usize,
    ) -> Result<Self, BackendError> {
        let memory = HostMemory::new(checkpoint, table)?;
        Ok(Self { mode, pool: Pool::new(threads), memory, workspace: Workspace::new(threads) })
    }

    /// Runs a plan; `after` is called after every dispatch.
    fn run_each(&mut self, plan: &Plan, states: &mut [&mut dyn State], after: &mut dyn FnMut()) {
        let mut states: Vec<&mut HostState> = states
            .iter_mut()
            .map(|state| state.as_any_mut().downcast_mut().expect("a state that this backend made"))
            .collect();
        for dispatch in &plan.dispatches {
            let slices = self.memory.slices(&mut states, dispatch);
            match self.mode {
                CpuMode::Reference => (dispatch.contract.reference)(&dispatch.args, slices),
                CpuMode::Fast(isa) => {
                    let context = Context { isa, pool: &self.pool, workspace: &mut self.workspace };
                    kernels::run(context, dispatch.contract, &dispatch.args, slices);
                }
            }
            after();
        }
    }
}

impl Backend for Cpu {
    fn describe(&self) -> String {
        format!("CPU ({}, {} threads)", self.mode.name(), self.pool.threads())
    }

    fn numerics(&self) -> String {
        format!("CPU {}", self.mode.name())
    }

    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        Ok(Box::new(self.memory.new_state()?))
    }

    fn run(&mut self, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        self.run_each(plan, states, &mut || ());
        Ok(())
    }

    fn time(&mut self, plan: &Plan, states: &mut [&mut dyn State]) -> Result<Option<Vec<f64>>, BackendError> {
        let (mut seconds, mut before) = (Vec::with_capacity(plan.dispatches.len()), Instant::now());
        self.run_each(plan, states, &mut || {
            let now = Instant::now();
            seconds.push((now - before).as_secs_f64());
            before = now;
        });
        Ok(Some(seconds))
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) {
        self.memory.scratch_mut(slot).copy_from_slice(bytes);
    }

    fn read(&self, slot: Slot, out: &mut [u8]) {
        out.copy_from_slice(self.memory.scratch(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_that_vectors_do_not_divide_are_refused() {
        let fast = CpuDevice { mode: CpuMode::Fast(Isa::Scalar), threads: 1 };
        let mut shape = Shape::qwen36_35b_a3b();
        fast.check(&shape).unwrap();
        shape.delta.value_dim = 52;
        let told = fast.check(&shape).unwrap_err().to_string();
        let wanted = "the vector kernels take multiples of 16 up to 512 as size of a value head of DeltaNet, this model has 52; ";
        assert!(told.starts_with(wanted) && told.ends_with("run it with --cpu reference, which is slow"), "{told}");
        CpuDevice { mode: CpuMode::Reference, ..fast }.check(&shape).unwrap();
    }
}
