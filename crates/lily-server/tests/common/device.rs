//! A device that breaks on demand: the CPU with its model, whose next step goes wrong as a test says.

use lily_engine::backend::cpu::isa::Isa;
use lily_engine::backend::cpu::{Cpu, CpuMode};
use lily_engine::backend::script::Places;
use lily_engine::backend::{Backend, BackendError, Device, DeviceMemory, State};
use lily_engine::checkpoint::Checkpoint;
use lily_engine::model::Traits;
use lily_engine::plan::{BufferTable, Plan, Slot};
use std::sync::{Arc, Mutex};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A logit is NaN.
    NotANumber,
    /// All logits are the same.
    Flat,
    /// The device says that it failed.
    Fails,
    /// The code that drives it panics.
    Panics,
}

#[derive(Debug, Default)]
struct Plot {
    /// What is to happen, after so many more steps with logits.
    next: Option<(Trouble, usize)>,
    /// Sessions of the step that it happened to.
    struck: usize,
}

/// What a test has to say to the device.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Plot>>);

impl Faults {
    /// Lets a step go wrong, once `after` further steps with logits have gone well.
    pub fn plan(&self, trouble: Trouble, after: usize) {
        *self.0.lock().unwrap() = Plot { next: Some((trouble, after)), struck: 0 };
    }

    /// How many sessions shared the step that went wrong; none if it has not come.
    pub fn struck(&self) -> usize {
        self.0.lock().unwrap().struck
    }

    /// The device.
    pub fn device(&self) -> Box<dyn Device> {
        Box::new(Fragile(self.clone()))
    }

    /// What goes wrong with a step of so many sessions.
    fn strike(&self, sessions: usize) -> Option<Trouble> {
        let mut plot = self.0.lock().unwrap();
        let (trouble, after) = plot.next?;
        plot.next = (after > 0).then(|| (trouble, after - 1));
        if after > 0 {
            return None;
        }
        plot.struck = sessions;
        Some(trouble)
    }
}

struct Fragile(Faults);

impl Device for Fragile {
    fn traits(&self) -> Traits {
        Traits::CPU
    }

    fn memory(&self) -> Option<DeviceMemory> {
        None
    }

    fn load(
        self: Box<Self>,
        checkpoint: Arc<Checkpoint>,
        table: &BufferTable,
    ) -> Result<Box<dyn Backend>, BackendError> {
        let places = Places::new(&checkpoint.weights.shape, table);
        let cpu = Cpu::new(checkpoint, table, CpuMode::Fast(Isa::detect()), 1)?;
        Ok(Box::new(Breaking { cpu, places, faults: self.0 }))
    }
}

struct Breaking {
    cpu: Cpu,
    places: Places,
    faults: Faults,
}

impl Backend for Breaking {
    fn describe(&self) -> String {
        "a fragile CPU".into()
    }

    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        self.cpu.new_state()
    }

    fn run(&mut self, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        self.cpu.run(plan, states)?;
        let has_logits = plan.dispatches.iter().any(|dispatch| dispatch.contract.name == "head");
        let trouble = if has_logits { self.faults.strike(states.len()) } else { None };
        let mut logits = vec![1.0; self.places.vocab()];
        match trouble {
            None => return Ok(()),
            Some(Trouble::Flat) => {}
            Some(Trouble::NotANumber) => logits[7] = f32::NAN,
            Some(Trouble::Panics) => panic!("a bug, as planned"),
            Some(Trouble::Fails) => {
                states.iter_mut().for_each(|state| self.places.spoil(*state));
                return Err(BackendError::Refused { what: "a step", message: "as planned".into() });
            }
        }
        self.places.put_logits(&mut self.cpu, 0, &logits);
        Ok(())
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) {
        self.cpu.write(slot, bytes);
    }

    fn read(&self, slot: Slot, out: &mut [u8]) {
        self.cpu.read(slot, out);
    }
}
