//! The software Metal as a device of the engine, so that whole models run on kernel text.
//!
//! Weights are copied to addresses that are no better aligned than host code promises: for Metal multiples of 4 bytes and of nothing
//! more; scratch starts as NaN. A kernel's fault is a panic with its message.

use crate::kernels::{self, Text, Variant};
use crate::launch::{Binding, Device, Settings};
use crate::memory::Buffer;
use lily_engine::backend::{self, Backend, BackendError, DeviceMemory, State};
use lily_engine::checkpoint::Checkpoint;
use lily_engine::model::Traits;
use lily_engine::plan::stages::stages;
use lily_engine::plan::{BufferTable, Dispatch, Home, Plan, Slot};
use std::any::Any;
use std::sync::Arc;

/// The software Metal before a model is on it.
#[derive(Clone, Copy, Debug)]
pub struct SoftMetal {
    /// How kernels are compiled.
    pub variant: Variant,
    /// How launches run.
    pub settings: Settings,
    /// Runs the dispatches of a stage in an order drawn from this seed instead of the plan's.
    pub shuffle: Option<u32>,
}

impl backend::Device for SoftMetal {
    fn traits(&self) -> Traits {
        if self.variant.text == Text::Nvidia { Traits::WIDE_GPU } else { Traits::GPU }
    }

    fn memory(&self) -> Option<DeviceMemory> {
        None
    }

    fn load(
        self: Box<Self>,
        checkpoint: Arc<Checkpoint>,
        table: &BufferTable,
    ) -> Result<Box<dyn Backend>, BackendError> {
        let mut loaded = Loaded {
            what: *self,
            device: Device::new(self.settings),
            places: Vec::new(),
            states: Vec::new(),
            random: self.shuffle.unwrap_or(1) | 1,
        };
        for (id, info) in table.iter() {
            let place = match &info.home {
                Home::Weight(range) => {
                    let shift = self.variant.text.weight_shift();
                    let buffer = allocate(&info.name, Buffer::new(info.bytes + shift), info.bytes)?;
                    buffer.write(shift, checkpoint.bytes(*range));
                    Place::Weight(buffer)
                }
                Home::Vector(values) => {
                    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                    Place::Own(allocate(&info.name, Buffer::from_bytes(&bytes), info.bytes)?)
                }
                Home::Scratch => Place::Own(allocate(&info.name, Buffer::new(info.bytes), info.bytes)?),
                Home::State => {
                    loaded.states.push((id.0 as usize, info.name.clone(), info.bytes));
                    Place::State
                }
            };
            loaded.places.push(place);
        }
        Ok(Box::new(loaded))
    }
}

fn allocate(what: &str, buffer: std::io::Result<Buffer>, bytes: usize) -> Result<Buffer, BackendError> {
    buffer.map_err(|_| BackendError::OutOfMemory { what: what.to_owned(), bytes })
}

/// Memory of one buffer.
enum Place {
    /// A copy of the checkpoint's, shifted.
    Weight(Buffer),
    /// Vectors and scratch.
    Own(Buffer),
    /// In the session.
    State,
}

/// A model on the software Metal.
struct Loaded {
    what: SoftMetal,
    device: Device,
    places: Vec<Place>,
    /// Index, name and size of every state buffer.
    states: Vec<(usize, String, usize)>,
    random: u32,
}

/// State of one session.
struct Session {
    buffers: Vec<Option<Buffer>>,
}

impl Session {
    fn buffer(&self, slot: Slot) -> &Buffer {
        self.buffers[slot.buffer.0 as usize].as_ref().expect("a state buffer has memory in every session")
    }
}

impl State for Session {
    fn read(&self, slot: Slot, out: &mut [u8]) {
        self.buffer(slot).read(slot.offset, out);
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) {
        self.buffer(slot).write(slot.offset, bytes);
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Loaded {
    /// Dispatches by stage, in the order in which they run.
    fn order(&mut self, plan: &Plan) -> Vec<Vec<usize>> {
        let stages = stages(plan);
        let mut order = vec![Vec::new(); stages.iter().max().map_or(0, |last| last + 1)];
        stages.iter().enumerate().for_each(|(dispatch, stage)| order[*stage].push(dispatch));
        if self.what.shuffle.is_some() {
            for dispatches in &mut order {
                dispatches.sort_by_cached_key(|_| {
                    self.random = self.random.wrapping_mul(1664525).wrapping_add(1013904223);
                    self.random >> 8
                });
            }
        }
        order
    }

    /// Begins the span of a stage, so that what its dispatches do to each other is seen.
    fn begin_span<'a>(&mut self, sessions: &[&Session], dispatches: impl Iterator<Item = &'a Dispatch>) {
        let bindings = dispatches.flat_map(|d| d.bindings().filter(|(param, _)| param.access.writes()));
        let written = bindings.map(|(_, slot)| {
            let buffer = match &self.places[slot.buffer.0 as usize] {
                Place::Weight(buffer) | Place::Own(buffer) => buffer,
                Place::State => sessions[slot.session as usize].buffer(slot),
            };
            let start = buffer.address() + slot.offset;
            start..start + slot.bytes
        });
        let written: Vec<_> = written.collect();
        self.device.begin_span(written);
    }

    fn dispatch(&mut self, sessions: &[&Session], dispatch: &Dispatch) {
        let contract = dispatch.contract;
        let bind = |(param, slot): (&lily_engine::kernel::Param, Slot)| {
            let (buffer, shift) = match &self.places[slot.buffer.0 as usize] {
                Place::Weight(buffer) => {
                    assert!(!param.access.writes(), "{} writes a weight", contract.name);
                    (buffer, self.what.variant.text.weight_shift())
                }
                Place::Own(buffer) => (buffer, 0),
                Place::State => (sessions[slot.session as usize].buffer(slot), 0),
            };
            Binding { buffer, offset: shift + slot.offset, bytes: slot.bytes, early: kernels::is_early(param) }
        };
        let bindings: Vec<Binding<'_>> = dispatch.bindings().map(bind).collect();
        kernels::run(&mut self.device, self.what.variant, dispatch, &bindings)
            .unwrap_or_else(|fault| panic!("{fault}"));
    }

    fn own(&self, slot: Slot) -> &Buffer {
        match &self.places[slot.buffer.0 as usize] {
            Place::Own(buffer) => buffer,
            _ => panic!("{slot:?} is not scratch"),
        }
    }
}

impl Backend for Loaded {
    fn describe(&self) -> String {
        "software Metal".to_owned()
    }

    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        let mut buffers: Vec<Option<Buffer>> = self.places.iter().map(|_| None).collect();
        for (index, name, bytes) in &self.states {
            buffers[*index] = Some(allocate(name, Buffer::zeroed(*bytes), *bytes)?);
        }
        Ok(Box::new(Session { buffers }))
    }

    fn run(&mut self, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        let sessions: Vec<&Session> = states
            .iter_mut()
            .map(|state| &*state.as_any_mut().downcast_mut().expect("a state that this backend made"))
            .collect();
        for stage in self.order(plan) {
            self.begin_span(&sessions, stage.iter().map(|index| &plan.dispatches[*index]));
            stage.into_iter().for_each(|index| self.dispatch(&sessions, &plan.dispatches[index]));
        }
        self.device.end_span();
        Ok(())
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) {
        self.own(slot).write(slot.offset, bytes);
    }

    fn read(&self, slot: Slot, out: &mut [u8]) {
        self.own(slot).read(slot.offset, out);
    }
}
