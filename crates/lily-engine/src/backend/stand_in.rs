//! A device that stands in for another in tests: the CPU's memory and kernels, and before them what a test has it do with plans.
//!
//! It is as strict as a GPU about who touches buffers when. What a model's state is where none is computed is in
//! [`super::script`].

use super::cpu::isa::Isa;
use super::cpu::{Cpu, CpuMode};
use super::script::Places;
use super::{Backend, BackendError, Device, DeviceMemory, Program, State};
use crate::checkpoint::Checkpoint;
use crate::model::Traits;
use crate::plan::{BufferTable, Plan, Slot};
use std::sync::Arc;

/// Submissions that may be under way at once.
const UNDER_WAY: usize = 2;

/// The CPU behind a stand-in.
pub struct Behind {
    /// Memory of the model's buffers, and kernels.
    pub cpu: Cpu,
    /// Where state and logits are.
    pub places: Places,
}

/// What a stand-in does.
pub trait Behaviour: Send + 'static {
    /// Runs a plan on the states of its sessions, with the CPU or without it.
    ///
    /// # Errors
    /// Those of the CPU, and those that are to happen.
    fn run(&mut self, behind: &mut Behind, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError>;

    /// Called when what was submitted is waited for.
    fn waited(&mut self) {}

    /// State buffers of a new session.
    ///
    /// # Errors
    /// Those of the CPU.
    fn new_state(&self, behind: &Behind) -> Result<Box<dyn State>, BackendError> {
        behind.cpu.new_state()
    }
}

/// A device that behaves so.
pub struct StandIn<B> {
    /// What plans for it depend on.
    pub traits: Traits,
    /// What it can give to a model.
    pub memory: Option<DeviceMemory>,
    /// Code of the kernels.
    pub mode: CpuMode,
    /// What it does.
    pub behaviour: B,
}

impl<B: Behaviour> StandIn<B> {
    /// One with the CPU's fast kernels and as much memory as is asked for.
    pub fn new(traits: Traits, behaviour: B) -> Self {
        Self { traits, memory: None, mode: CpuMode::Fast(Isa::detect()), behaviour }
    }
}

impl<B: Behaviour> Device for StandIn<B> {
    fn traits(&self) -> Traits {
        self.traits
    }

    fn memory(&self) -> Option<DeviceMemory> {
        self.memory
    }

    fn load(
        self: Box<Self>,
        checkpoint: Arc<Checkpoint>,
        table: &BufferTable,
    ) -> Result<Box<dyn Backend>, BackendError> {
        let places = Places::new(&checkpoint.weights.shape, table);
        let behind = Behind { cpu: Cpu::new(checkpoint, table, self.mode, 1)?, places };
        Ok(Box::new(Loaded { behind, behaviour: self.behaviour, under_way: 0 }))
    }
}

struct Loaded<B> {
    behind: Behind,
    behaviour: B,
    under_way: usize,
}

impl<B: Behaviour> Backend for Loaded<B> {
    fn describe(&self) -> String {
        "a stand-in".into()
    }

    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        self.behaviour.new_state(&self.behind)
    }

    fn submit(&mut self, program: &Program, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        assert!(self.under_way < UNDER_WAY, "more than {UNDER_WAY} submissions under way");
        self.run(program.plan(), states)?;
        self.under_way += 1; // what failed or panicked is not
        Ok(())
    }

    fn wait_until(&mut self, under_way: usize) -> Result<(), BackendError> {
        if self.under_way > under_way {
            self.behaviour.waited();
        }
        self.under_way = self.under_way.min(under_way);
        Ok(())
    }

    fn run(&mut self, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        self.behaviour.run(&mut self.behind, plan, states)
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) {
        assert_eq!(self.under_way, 0, "a buffer is written while a submission is under way");
        self.behind.cpu.write(slot, bytes);
    }

    fn read(&self, slot: Slot, out: &mut [u8]) {
        assert_eq!(self.under_way, 0, "a buffer is read while a submission is under way");
        self.behind.cpu.read(slot, out);
    }

    fn peek(&self, slot: Slot, out: &mut [u8]) {
        self.behind.cpu.read(slot, out);
    }
}
