//! The Metal backend: GPUs of Apple machines.
//!
//! This is the host layer only. Where buffers lie, what is encoded in which order and where barriers stand is decided in
//! [`super::gpu`], which knows no Metal; here the decisions are carried out. On Linux the same files run against a fake of
//! Metal (tools/fake-metal), which is why they are compiled there under a switch of its own.

mod archive;
mod device;
mod library;
mod memory;
mod submit;

pub use device::MetalDevice;

use super::gpu::encode::EncodeList;
use super::{Backend, BackendError, Program, State};
use crate::plan::{Plan, Slot};
use library::{Libraries, Pipeline};
use memory::{Memory, MetalState};
use objc2::rc::Retained;
use objc2_foundation::NSError;
use std::sync::Arc;
use submit::Submitter;

/// A GPU with a model.
pub struct Metal {
    description: String,
    libraries: Libraries,
    // Before the memory: what is in flight must end before buffers go.
    submitter: Submitter,
    memory: Memory,
}

/// A plan ready to be encoded.
struct Ready {
    list: EncodeList,
    /// Pipelines of the list, by index.
    pipelines: Vec<Pipeline>,
}

impl Metal {
    fn ready(&mut self, plan: &Plan) -> Result<Arc<Ready>, BackendError> {
        let list = EncodeList::new(plan, self.memory.layout())?;
        let pipelines = list.pipelines.iter().map(|key| self.libraries.pipeline(key)).collect::<Result<Vec<_>, _>>()?;
        for (_, dispatch) in list.dispatches() {
            pipelines[dispatch.pipeline].check_threads(&list.pipelines[dispatch.pipeline], dispatch.threads)?;
        }
        self.libraries.save();
        Ok(Arc::new(Ready { list, pipelines }))
    }

    fn start(&mut self, ready: &Arc<Ready>, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        let areas = states.iter_mut().map(|state| {
            let state = state.as_any_mut().downcast_mut::<MetalState>().expect("a state that this backend made");
            Arc::clone(state.areas())
        });
        self.submitter.submit(ready, &self.memory, areas.collect())
    }
}

impl Backend for Metal {
    fn describe(&self) -> String {
        self.description.clone()
    }

    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        Ok(Box::new(self.memory.new_state()?))
    }

    fn prepare(&mut self, plan: Plan) -> Result<Program, BackendError> {
        let ready = self.ready(&plan)?;
        Ok(Program::new(plan, ready))
    }

    fn submit(&mut self, program: &Program, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        self.start(program.ready::<Arc<Ready>>(), states)
    }

    fn wait_until(&mut self, under_way: usize) -> Result<(), BackendError> {
        self.submitter.wait_until(under_way, &self.memory)
    }

    fn run(&mut self, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        let ready = self.ready(plan)?;
        self.start(&ready, states)?;
        self.wait()
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) {
        self.submitter.assert_idle();
        self.memory.write(slot, bytes);
    }

    fn read(&self, slot: Slot, out: &mut [u8]) {
        self.submitter.assert_idle();
        self.memory.read(slot, out);
    }

    fn peek(&self, slot: Slot, out: &mut [u8]) {
        self.memory.read(slot, out);
    }
}

/// What an error object says, in one line.
fn words(error: &NSError) -> String {
    format!("{} ({} {})", error.localizedDescription(), error.domain(), error.code())
}

/// An error for something that Metal gives only in case of success.
fn refused(what: &'static str) -> BackendError {
    BackendError::Refused { what, message: "no reason given".into() }
}

/// As [`refused`], with the reason.
fn refused_because(what: &'static str) -> impl Fn(Retained<NSError>) -> BackendError {
    move |error| BackendError::Refused { what, message: words(&error) }
}
