//! Memory: areas of the device and of sessions. Weights are copied to the device once, when a model is put on it.

use super::driver::{Context, Memory as Area, Stream};
use super::kept::{Keeper, Part};
use super::refused;
use crate::backend::gpu::layout::{FileFacts, Layout, Limits, Place, Stretch, joined};
use crate::backend::{BackendError, Kept, State};
use crate::checkpoint::Checkpoint;
use crate::plan::{BufferTable, Home, Slot};
use std::any::Any;
use std::sync::Arc;

/// Kernels are told of buffers of no bytes too; they do not touch them.
const NOWHERE: u64 = 256;

/// All memory that does not belong to a session.
pub(super) struct Memory {
    layout: Arc<Layout>,
    owned: Vec<Area>,
    stream: Arc<Stream>,
    keeper: Arc<Keeper>,
    /// For copies that need not wait for what is under way.
    aside: Stream,
}

impl Memory {
    /// Allocates, and copies weights and vectors.
    pub fn new(
        context: &Arc<Context>,
        stream: &Arc<Stream>,
        checkpoint: &Checkpoint,
        table: &BufferTable,
    ) -> Result<Self, BackendError> {
        // Not one file is used where it is.
        let files = vec![FileFacts { bytes: 0, mapped: false }; checkpoint.file_count()];
        let limits = Limits { page_bytes: 256, buffer_bytes_max: context.facts.memory_bytes };
        let layout = Layout::new(table, &files, limits)?;
        let area = |bytes: &usize| Area::zeroed(context, stream, "the model", *bytes);
        let owned = layout.owned.iter().map(area).collect::<Result<Vec<_>, _>>()?;
        let memory = Self {
            layout: Arc::new(layout),
            owned,
            stream: Arc::clone(stream),
            keeper: Keeper::new(context, stream)?,
            aside: Stream::new(context)?,
        };
        memory.fill(checkpoint, table)?;
        Ok(memory)
    }

    fn fill(&self, checkpoint: &Checkpoint, table: &BufferTable) -> Result<(), BackendError> {
        for (buffer, info) in table.iter() {
            if let Home::Vector(values) = &info.home {
                self.put(Slot::whole(buffer, info.bytes), bytemuck::cast_slice(values))?;
            }
        }
        for (buffer, range) in &self.layout.copies {
            let bytes = checkpoint.bytes(*range);
            self.put(Slot::whole(*buffer, bytes.len()), bytes)?;
        }
        self.stream.wait().map_err(refused("a copy to its memory"))
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn new_state(&self) -> Result<CudaState, BackendError> {
        let area = |bytes: &usize| {
            let area = self.keeper.memory("a session", *bytes)?;
            area.zero(&self.stream, 0, *bytes)?;
            Ok(area)
        };
        let areas = self.layout.state.iter().map(area).collect::<Result<Vec<_>, BackendError>>()?;
        let (layout, stream, keeper) = (Arc::clone(&self.layout), Arc::clone(&self.stream), Arc::clone(&self.keeper));
        Ok(CudaState { areas: Arc::new(areas), layout, stream, keeper })
    }

    /// The address of a place for the device.
    pub fn address(&self, states: &[Arc<Vec<Area>>], place: Place) -> u64 {
        match place {
            Place::Owned { index, offset } => self.owned[index].address() + offset as u64,
            Place::State { index, offset, session } => states[session][index].address() + offset as u64,
            Place::Nothing => NOWHERE,
            Place::Window { .. } => unreachable!("no file is used where it is"),
        }
    }

    fn place(&self, slot: Slot) -> (&Area, usize) {
        match self.layout.place(slot) {
            Place::Owned { index, offset } => (&self.owned[index], offset),
            place => panic!("{slot:?} is at {place:?}, not in an area of the device"),
        }
    }

    /// Copies bytes into one of the device's areas, after what is under way.
    pub fn put(&self, slot: Slot, bytes: &[u8]) -> Result<(), BackendError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (area, offset) = self.place(slot);
        area.write(&self.stream, offset, bytes)
    }

    /// Copies bytes out of one of the device's areas; with `aside` not after what is under way.
    pub fn get(&self, slot: Slot, out: &mut [u8], aside: bool) -> Result<(), BackendError> {
        if out.is_empty() {
            return Ok(());
        }
        let (area, offset) = self.place(slot);
        area.read(if aside { &self.aside } else { &self.stream }, offset, out)
    }
}

/// State of one session.
pub(super) struct CudaState {
    areas: Arc<Vec<Area>>,
    layout: Arc<Layout>,
    stream: Arc<Stream>,
    keeper: Arc<Keeper>,
}

impl CudaState {
    pub fn areas(&self) -> &Arc<Vec<Area>> {
        &self.areas
    }

    fn place(&self, slot: Slot) -> (&Area, usize) {
        match self.layout.place(slot) {
            Place::State { index, offset, .. } => (&self.areas[index], offset),
            place => panic!("{slot:?} is at {place:?}, not in a session's state"),
        }
    }

    /// What to copy for slots with their places among kept bytes.
    fn stretches(&self, parts: impl Iterator<Item = (Slot, usize)>) -> Vec<(Part<'_>, usize)> {
        let stretch = |(slot, kept): (Slot, usize)| match self.layout.place(slot) {
            Place::State { index: area, offset, .. } => Stretch { area, offset, kept, bytes: slot.bytes },
            place => panic!("{slot:?} is at {place:?}, not in a session's state"),
        };
        let stretches = joined(parts.filter(|(slot, _)| slot.bytes > 0).map(stretch));
        let part = |s: Stretch| (Part { area: &self.areas[s.area], offset: s.offset, bytes: s.bytes }, s.kept);
        stretches.into_iter().map(part).collect()
    }
}

/// # Panics
/// Copies panic if the device has failed: the engine has been told so by the submission that did.
impl State for CudaState {
    fn read(&self, slot: Slot, out: &mut [u8]) {
        if !out.is_empty() {
            let (area, offset) = self.place(slot);
            area.read(&self.stream, offset, out).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) {
        if !bytes.is_empty() {
            let (area, offset) = self.place(slot);
            area.write(&self.stream, offset, bytes).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    fn keep(&self, slots: &[Slot]) -> Box<dyn Kept> {
        let mut kept = 0;
        let one_after_another = slots.iter().map(|slot| {
            kept += slot.bytes;
            (*slot, kept - slot.bytes)
        });
        let parts = self.stretches(one_after_another).into_iter().map(|(part, _)| part);
        self.keeper.keep(&parts.collect::<Vec<_>>())
    }

    fn take(&mut self, kept: &dyn Kept, parts: &[(Slot, usize)]) {
        for (part, from) in self.stretches(parts.iter().copied()) {
            self.keeper.take(kept, from, &part);
        }
    }

    fn zero(&mut self, slots: &[Slot]) {
        for slot in slots.iter().filter(|slot| slot.bytes > 0) {
            let (area, offset) = self.place(*slot);
            area.zero(&self.stream, offset, slot.bytes).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
