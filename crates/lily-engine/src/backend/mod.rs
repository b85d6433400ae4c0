//! Backends: devices that run plans.
//!
//! A backend owns the memory behind a model's buffers and executes the dispatches of a plan, honouring their hazards.
//! It knows kernels and buffers, not models, sessions or tokens.

pub mod cpu;
mod host;

use crate::plan::{Plan, Slot};
use std::any::Any;

/// Why a device cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// Not the memory that was asked for.
    #[error("cannot allocate {bytes} bytes for {what}; close other programs or ask for a shorter context (--context)")]
    OutOfMemory {
        /// What it was for.
        what: String,
        /// Its size.
        bytes: usize,
    },
    /// The instruction set named in the environment or on the command line cannot be used.
    #[error(transparent)]
    Isa(#[from] cpu::isa::IsaError),
}

/// The state buffers of one session on a device.
pub trait State: Send {
    /// Copies bytes out.
    fn read(&self, slot: Slot, out: &mut [u8]);
    /// Copies bytes in.
    fn write(&mut self, slot: Slot, bytes: &[u8]);
    /// For the backend that made it.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// A device that runs the plans of one model.
pub trait Backend: Send {
    /// What it is, for people: device and instruction set.
    fn describe(&self) -> String;

    /// State buffers of a new session, all zero.
    ///
    /// # Errors
    /// If the device has no memory for them.
    fn new_state(&self) -> Result<Box<dyn State>, BackendError>;

    /// Runs a plan on a session's state; results can be read when it returns.
    ///
    /// # Panics
    /// If the state belongs to another backend: a broken invariant of the engine.
    fn run(&mut self, plan: &Plan, state: &mut dyn State);

    /// Copies bytes into a scratch buffer.
    fn write(&mut self, slot: Slot, bytes: &[u8]);

    /// Copies bytes out of a scratch buffer.
    fn read(&self, slot: Slot, out: &mut [u8]);
}
