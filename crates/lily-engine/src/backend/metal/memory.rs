//! Memory: windows of the checkpoint's files, areas of the device and of sessions, and their residency.
//!
//! Every buffer wraps pages that this process has already: of a mapped file, or fresh zeroed ones. So nothing is copied
//! on the way to the GPU, new state is zero without being touched, and the host reads and writes through the pages.

use super::device::DeviceRef;
use super::{refused, refused_because};
use crate::backend::gpu::layout::{Layout, Place};
use crate::backend::{BackendError, State};
use crate::checkpoint::Checkpoint;
use crate::plan::{BufferTable, Home, Slot};
use memmap2::MmapMut;
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBuffer, MTLCommandQueue, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor, MTLResource, MTLResourceOptions,
};
use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// A reference to a buffer.
pub(super) type BufferRef = Retained<ProtocolObject<dyn MTLBuffer>>;

/// The name of the buffer that is bound where one has no bytes.
const NOTHING: &str = "nothing";

/// A buffer over pages of this process; `label` is for tools that look at GPU work.
fn wrap(device: &DeviceRef, label: &str, pages: NonNull<c_void>, bytes: usize) -> Result<BufferRef, BackendError> {
    let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
    // SAFETY: the pages are valid; whoever calls this keeps them mapped for as long as the buffer lives, so no
    // deallocator is needed.
    let buffer = unsafe { device.newBufferWithBytesNoCopy_length_options_deallocator(pages, bytes, options, None) }
        .ok_or_else(|| refused("a buffer over mapped pages"))?;
    buffer.setLabel(Some(&NSString::from_str(label)));
    Ok(buffer)
}

/// Zeroed pages with the buffer that wraps them.
pub(super) struct Area {
    // Before the pages: the buffer must not outlive them.
    buffer: BufferRef,
    start: NonNull<u8>,
    _pages: MmapMut,
}

// SAFETY: a buffer object may be used and released from any thread, and the pages belong to the area.
unsafe impl Send for Area {}
// SAFETY: as above; through `&` the pages are only read.
unsafe impl Sync for Area {}

impl Area {
    fn new(device: &DeviceRef, what: &str, bytes: usize, page_bytes: usize) -> Result<Self, BackendError> {
        let bytes = bytes.max(1).next_multiple_of(page_bytes);
        let none = |_| BackendError::OutOfMemory { what: what.to_owned(), bytes };
        let mut pages = MmapMut::map_anon(bytes).map_err(none)?;
        let start = NonNull::from(&mut pages[0]);
        Ok(Self { buffer: wrap(device, what, start.cast(), bytes)?, start, _pages: pages })
    }

    /// Copies bytes out. A submission may be using other bytes, so no reference to the pages is made.
    fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= self.buffer.length(), "bytes of the area");
        // SAFETY: the range is inside the pages, and the engine reads no bytes that a submission may be writing.
        unsafe { self.start.add(offset).copy_to_nonoverlapping(NonNull::from(&mut *out).cast(), out.len()) }
    }

    /// Copies bytes in.
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.buffer.length(), "bytes of the area");
        // SAFETY: the range is inside the pages, and the engine writes nothing that a submission may be using.
        unsafe { self.start.add(offset).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) }
    }
}

/// State areas of one session; a submission keeps them until it has ended.
pub(super) struct StateAreas {
    areas: Vec<Area>,
    residency: Arc<Residency>,
}

impl Drop for StateAreas {
    fn drop(&mut self) {
        self.residency.remove(&self.areas);
    }
}

/// The set of buffers that stay resident, where the system has such sets (macOS 15); elsewhere each submission makes
/// resident what it binds.
struct Residency {
    set: Option<Mutex<ResidencySet>>,
}

struct ResidencySet(Retained<ProtocolObject<dyn MTLResidencySet>>);

// SAFETY: the set may be used from any thread, one at a time, which the mutex around it sees to.
unsafe impl Send for ResidencySet {}

impl Residency {
    fn new(device: &DeviceRef, queue: &ProtocolObject<dyn MTLCommandQueue>) -> Result<Self, BackendError> {
        if !device.respondsToSelector(sel!(newResidencySetWithDescriptor:error:)) {
            return Ok(Self { set: None });
        }
        let set = device
            .newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new())
            .map_err(refused_because("a residency set"))?;
        queue.addResidencySet(&set);
        Ok(Self { set: Some(Mutex::new(ResidencySet(set))) })
    }

    fn change<'a>(&self, buffers: impl Iterator<Item = &'a BufferRef>, add: bool) {
        let Some(set) = &self.set else { return };
        let set = &set.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        for buffer in buffers {
            let allocation = ProtocolObject::from_ref(&**buffer);
            if add { set.addAllocation(allocation) } else { set.removeAllocation(allocation) }
        }
        set.commit();
        set.requestResidency();
    }

    fn remove(&self, areas: &[Area]) {
        self.change(areas.iter().map(|a| &a.buffer), false);
    }
}

/// All buffers of a model that do not belong to a session.
pub(super) struct Memory {
    device: DeviceRef,
    layout: Layout,
    page_bytes: usize,
    windows: Vec<Window>,
    owned: Vec<Area>,
    /// Bound where a buffer has no bytes.
    nothing: Area,
    residency: Arc<Residency>,
    // After the windows: the files must outlive the buffers that wrap them.
    _checkpoint: Arc<Checkpoint>,
}

/// A buffer over a mapped file.
struct Window(BufferRef);

// SAFETY: a buffer object may be used and released from any thread; its pages are only read, by the GPU.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Memory {
    pub(super) fn new(
        device: &DeviceRef,
        queue: &ProtocolObject<dyn MTLCommandQueue>,
        layout: Layout,
        checkpoint: Arc<Checkpoint>,
        table: &BufferTable,
        page_bytes: usize,
    ) -> Result<Self, BackendError> {
        let mut windows = Vec::new();
        for window in &layout.windows {
            let file = checkpoint.mapped_file(window.file).expect("windows are of mapped files");
            // The last window may end past the file, but not past its last page, which is mapped as a whole.
            let start = NonNull::from(&file[window.offset]).cast();
            windows.push(Window(wrap(device, "weights", start, window.bytes)?));
        }
        let owned = layout.owned.iter().map(|bytes| Area::new(device, "vectors and scratch", *bytes, page_bytes));
        let owned = owned.collect::<Result<Vec<_>, _>>()?;
        let nothing = Area::new(device, NOTHING, 0, page_bytes)?;
        let residency = Arc::new(Residency::new(device, queue)?);
        let buffers = windows.iter().map(|w| &w.0).chain(owned.iter().map(|a| &a.buffer)).chain([&nothing.buffer]);
        residency.change(buffers, true);
        let device = device.clone();
        let mut memory = Self {
            device,
            layout,
            page_bytes,
            windows,
            owned,
            nothing,
            residency,
            _checkpoint: Arc::clone(&checkpoint),
        };
        memory.fill(&checkpoint, table);
        Ok(memory)
    }

    /// Writes vectors and copied weights.
    fn fill(&mut self, checkpoint: &Checkpoint, table: &BufferTable) {
        for (buffer, info) in table.iter() {
            if let Home::Vector(values) = &info.home {
                self.write(Slot::whole(buffer, info.bytes), bytemuck::cast_slice(values));
            }
        }
        for (buffer, range) in std::mem::take(&mut self.layout.copies) {
            let bytes = checkpoint.bytes(range);
            self.write(Slot::whole(buffer, bytes.len()), bytes);
        }
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn new_state(&self) -> Result<MetalState, BackendError> {
        let areas = self.layout.state.iter().map(|bytes| Area::new(&self.device, "a session", *bytes, self.page_bytes));
        let areas = areas.collect::<Result<Vec<_>, _>>()?;
        self.residency.change(areas.iter().map(|a| &a.buffer), true);
        let areas = Arc::new(StateAreas { areas, residency: Arc::clone(&self.residency) });
        Ok(MetalState { areas, layout: self.layout.clone() })
    }

    /// The buffer and offset of a place.
    pub(super) fn buffer<'a>(&'a self, states: &'a [Arc<StateAreas>], place: Place) -> (&'a BufferRef, usize) {
        let buffer = match place {
            Place::Window { index, .. } => &self.windows[index].0,
            Place::Owned { index, .. } => &self.owned[index].buffer,
            Place::State { index, session, .. } => &states[session].areas[index].buffer,
            Place::Nothing => &self.nothing.buffer,
        };
        (buffer, place.offset())
    }

    /// Copies bytes into one of the device's areas.
    ///
    /// # Panics
    /// If the slot is elsewhere: a broken invariant of the engine.
    pub(super) fn write(&mut self, slot: Slot, bytes: &[u8]) {
        match self.layout.place(slot) {
            Place::Owned { index, offset } => self.owned[index].write(offset, bytes),
            place => panic!("{slot:?} is at {place:?}, not in an area of the device"),
        }
    }

    /// Copies bytes out of one of the device's areas.
    ///
    /// # Panics
    /// As [`Memory::write`].
    pub(super) fn read(&self, slot: Slot, out: &mut [u8]) {
        match self.layout.place(slot) {
            Place::Owned { index, offset } => self.owned[index].read(offset, out),
            place => panic!("{slot:?} is at {place:?}, not in an area of the device"),
        }
    }
}

/// State of one session.
pub(super) struct MetalState {
    areas: Arc<StateAreas>,
    layout: Layout,
}

impl MetalState {
    pub(super) fn areas(&self) -> &Arc<StateAreas> {
        &self.areas
    }

    fn place(&self, slot: Slot) -> (usize, usize) {
        match self.layout.place(slot) {
            Place::State { index, offset, .. } => (index, offset),
            place => panic!("{slot:?} is at {place:?}, not in a session's state"),
        }
    }
}

impl State for MetalState {
    fn read(&self, slot: Slot, out: &mut [u8]) {
        if slot.bytes == 0 {
            return;
        }
        let (index, offset) = self.place(slot);
        self.areas.areas[index].read(offset, out);
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) {
        if slot.bytes == 0 {
            return;
        }
        let (index, offset) = self.place(slot);
        let areas = Arc::get_mut(&mut self.areas).expect("no submission is under way while the host writes state");
        areas.areas[index].write(offset, bytes);
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
