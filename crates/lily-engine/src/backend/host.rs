//! Host memory behind a model's buffers: mapped weights, vectors, scratch, and the state of sessions.

use super::{BackendError, State};
use crate::checkpoint::Checkpoint;
use crate::kernel::{HostSlice, HostSlices};
use crate::plan::{BufferId, BufferTable, Dispatch, Home, Slot};
use std::any::Any;
use std::sync::Arc;

/// Alignment of every buffer that is not a mapped weight: a cache line, and the widest vector.
const ALIGN: usize = 64;

/// Zeroed bytes on a cache-line boundary. Pages that are never touched are never backed by memory.
struct Bytes {
    blocks: Vec<u128>,
    start: usize,
    len: usize,
}

impl Bytes {
    fn zeroed(what: &str, len: usize) -> Result<Self, BackendError> {
        let count = (len + ALIGN).div_ceil(size_of::<u128>());
        let fail = |_| BackendError::OutOfMemory { what: what.to_owned(), bytes: len };
        // `try_reserve` asks whether the size is possible at all; `vec!` then takes zeroed pages from the system.
        Vec::<u128>::new().try_reserve_exact(count).map_err(fail)?;
        let blocks = vec![0u128; count];
        let start = (blocks.as_ptr() as *const u8).align_offset(ALIGN);
        Ok(Self { blocks, start, len })
    }

    fn get(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.blocks)[self.start..][..self.len]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.blocks)[self.start..][..self.len]
    }
}

/// Memory of one buffer.
enum Place {
    /// In the checkpoint.
    Weight(crate::weights::FileRange),
    /// Owned: vectors and scratch.
    Owned(Bytes),
    /// In the session.
    State,
}

/// All buffers of a model that do not belong to a session.
pub struct HostMemory {
    checkpoint: Arc<Checkpoint>,
    places: Vec<Place>,
    /// Name and size of every state buffer.
    states: Vec<(BufferId, String, usize)>,
}

impl HostMemory {
    /// Allocates vectors and scratch.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn new(checkpoint: Arc<Checkpoint>, table: &BufferTable) -> Result<Self, BackendError> {
        let mut places = Vec::new();
        let mut states = Vec::new();
        for (id, info) in table.iter() {
            places.push(match &info.home {
                Home::Weight(range) => Place::Weight(*range),
                Home::Vector(values) => {
                    let mut bytes = Bytes::zeroed(&info.name, info.bytes)?;
                    bytes.get_mut().copy_from_slice(bytemuck::cast_slice(values));
                    Place::Owned(bytes)
                }
                Home::Scratch => Place::Owned(Bytes::zeroed(&info.name, info.bytes)?),
                Home::State => {
                    states.push((id, info.name.clone(), info.bytes));
                    Place::State
                }
            });
        }
        Ok(Self { checkpoint, places, states })
    }

    /// State buffers of a new session.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn new_state(&self) -> Result<HostState, BackendError> {
        let mut buffers: Vec<Option<Bytes>> = (0..self.places.len()).map(|_| None).collect();
        for (id, name, bytes) in &self.states {
            buffers[id.0 as usize] = Some(Bytes::zeroed(name, *bytes)?);
        }
        Ok(HostState { buffers })
    }

    /// A scratch buffer's bytes.
    pub fn scratch(&self, slot: Slot) -> &[u8] {
        match &self.places[slot.buffer.0 as usize] {
            Place::Owned(bytes) => &bytes.get()[slot.offset..][..slot.bytes],
            _ => panic!("{slot:?} is not scratch"),
        }
    }

    /// A scratch buffer's bytes, to write.
    pub fn scratch_mut(&mut self, slot: Slot) -> &mut [u8] {
        match &mut self.places[slot.buffer.0 as usize] {
            Place::Owned(bytes) => &mut bytes.get_mut()[slot.offset..][..slot.bytes],
            _ => panic!("{slot:?} is not scratch"),
        }
    }

    /// The buffers of a dispatch.
    ///
    /// # Panics
    /// If a slot lies outside its buffer, or the dispatch writes a weight: broken invariants of the model.
    pub fn slices<'a>(&'a mut self, states: &'a mut [&mut HostState], dispatch: &Dispatch) -> HostSlices<'a> {
        HostSlices::new(dispatch.bindings().map(|(param, slot)| {
            let index = slot.buffer.0 as usize;
            let place = match &mut self.places[index] {
                Place::Weight(range) => {
                    assert!(!param.access.writes(), "{} writes a weight", dispatch.contract.name);
                    return HostSlice::Read(&self.checkpoint.bytes(*range)[slot.offset..][..slot.bytes]).forget();
                }
                Place::Owned(bytes) => bytes,
                Place::State => {
                    let state = &mut states[slot.session as usize];
                    state.buffers[index].as_mut().expect("a state buffer has memory in every session")
                }
            };
            let bytes = &mut place.get_mut()[slot.offset..][..slot.bytes];
            if param.access.writes() { HostSlice::Write(bytes).forget() } else { HostSlice::Read(bytes).forget() }
        }))
    }
}

impl HostSlice<'_> {
    /// The same memory with a free lifetime, so that several slices of one memory can be held at once.
    ///
    /// Only [`HostMemory::slices`] calls this; its result borrows the memory and the states for as long as it lives.
    fn forget<'a>(self) -> HostSlice<'a> {
        // SAFETY: `slices` borrows memory and states exclusively for 'a, so nobody else reaches these bytes, and the
        // buffers are neither moved nor freed meanwhile. Within one dispatch, `Dispatch::new` has asserted that a
        // written slot overlaps no other slot, so no two of the slices alias where one may write.
        unsafe {
            match self {
                HostSlice::Read(bytes) => HostSlice::Read(std::slice::from_raw_parts(bytes.as_ptr(), bytes.len())),
                HostSlice::Write(bytes) => {
                    HostSlice::Write(std::slice::from_raw_parts_mut(bytes.as_mut_ptr(), bytes.len()))
                }
            }
        }
    }
}

/// State of one session in host memory.
pub struct HostState {
    buffers: Vec<Option<Bytes>>,
}

impl State for HostState {
    fn read(&self, slot: Slot, out: &mut [u8]) {
        let bytes = self.buffers[slot.buffer.0 as usize].as_ref().expect("a state buffer");
        out.copy_from_slice(&bytes.get()[slot.offset..][..slot.bytes]);
    }

    fn write(&mut self, slot: Slot, source: &[u8]) {
        let bytes = self.buffers[slot.buffer.0 as usize].as_mut().expect("a state buffer");
        bytes.get_mut()[slot.offset..][..slot.bytes].copy_from_slice(source);
    }

    fn zero(&mut self, slots: &[Slot]) {
        for slot in slots {
            let bytes = self.buffers[slot.buffer.0 as usize].as_mut().expect("a state buffer");
            bytes.get_mut()[slot.offset..][..slot.bytes].fill(0);
        }
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
