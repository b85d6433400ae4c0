//! A device that breaks on demand: the CPU with its model, whose next step goes wrong as a test says.

use lily_engine::backend::stand_in::{Behaviour, Behind, StandIn};
use lily_engine::backend::{Backend, BackendError, Device, State};
use lily_engine::model::Traits;
use lily_engine::plan::Plan;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

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
    /// Chunks of prompts that were begun, but for the last ones.
    chunks: usize,
    /// They do not go on.
    held: bool,
    /// What is to happen, after so many more steps with logits.
    next: Option<(Trouble, usize)>,
    /// Sessions of the step that it happened to.
    struck: usize,
    /// There is no memory for further sessions.
    full: bool,
}

/// What a test has to say to the device.
#[derive(Clone, Default)]
pub struct Faults(Arc<(Mutex<Plot>, Condvar)>);

/// Holds the device inside a chunk of a prompt, until it is dropped.
pub struct Hold(Faults);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.plot().held = false;
        self.0.0.1.notify_all();
    }
}

impl Faults {
    /// Lets a step go wrong, once `after` further steps with logits have gone well.
    pub fn plan(&self, trouble: Trouble, after: usize) {
        let mut plot = self.plot();
        (plot.next, plot.struck) = (Some((trouble, after)), 0);
    }

    /// Whether there is no memory for further sessions from now on.
    pub fn fill_memory(&self, full: bool) {
        self.plot().full = full;
    }

    fn plot(&self) -> MutexGuard<'_, Plot> {
        self.0.0.lock().unwrap()
    }

    /// Stops at the next chunk of a prompt that is not its last.
    pub fn hold_prompts(&self) -> Hold {
        self.plot().held = true;
        Hold(self.clone())
    }

    /// How many chunks of prompts were begun that were not the last.
    pub fn chunks(&self) -> usize {
        self.plot().chunks
    }

    /// A chunk begins.
    fn chunk(&self) {
        let mut plot = self.plot();
        plot.chunks += 1;
        drop(self.0.1.wait_while(plot, |plot| plot.held).unwrap());
    }

    /// How many sessions shared the step that went wrong; none if it has not come.
    pub fn struck(&self) -> usize {
        self.plot().struck
    }

    /// The device.
    pub fn device(&self) -> Box<dyn Device> {
        Box::new(StandIn::new(Traits::CPU, self.clone()))
    }

    /// What goes wrong with a step of so many sessions.
    fn strike(&self, sessions: usize) -> Option<Trouble> {
        let mut plot = self.plot();
        let (trouble, after) = plot.next?;
        plot.next = (after > 0).then(|| (trouble, after - 1));
        if after > 0 {
            return None;
        }
        plot.struck = sessions;
        Some(trouble)
    }
}

impl Behaviour for Faults {
    fn new_state(&self, behind: &Behind) -> Result<Box<dyn State>, BackendError> {
        if self.plot().full {
            return Err(BackendError::OutOfMemory { what: "a session".into(), bytes: 1 << 30 });
        }
        behind.cpu.new_state()
    }

    fn run(&mut self, behind: &mut Behind, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        let has_logits = plan.dispatches.iter().any(|dispatch| dispatch.contract.name == "head");
        if !has_logits {
            self.chunk();
        }
        behind.cpu.run(plan, states)?;
        let trouble = if has_logits { self.strike(states.len()) } else { None };
        let mut logits = vec![1.0; behind.places.vocab()];
        match trouble {
            None => return Ok(()),
            Some(Trouble::Flat) => {}
            Some(Trouble::NotANumber) => logits[7] = f32::NAN,
            Some(Trouble::Panics) => panic!("a bug, as planned"),
            Some(Trouble::Fails) => {
                states.iter_mut().for_each(|state| behind.places.spoil(*state));
                return Err(BackendError::Refused { what: "a step", message: "as planned".into() });
            }
        }
        behind.places.put_logits(&mut behind.cpu, 0, &logits);
        Ok(())
    }
}
