//! A plan: the flat list of kernel launches of one prefill chunk or one decode step.
//!
//! Dispatches are appended by the model in program order; which of them depend on each other is derived from what they
//! declare to read and write ([`stages`]), what they cost from their contracts ([`report`]). Buffers are named here and
//! allocated by a backend. Nothing here runs.

pub mod minimum;
pub mod report;
pub mod stages;

use crate::kernel::{Contract, Cost, Kernel, MAX_BUFFERS, Step};
use crate::weights::FileRange;

/// A buffer of the [`BufferTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub u32);

/// Where the bytes of a buffer live.
#[derive(Clone, Debug)]
pub enum Home {
    /// In the checkpoint's mapped files; never written.
    Weight(FileRange),
    /// A small fp32 constant held in memory (norm gains and the like); never written.
    Vector(Vec<f32>),
    /// In the session: differs from session to session and lives on between steps.
    State,
    /// In the device, reused by every step of every session.
    Scratch,
}

/// A named buffer.
#[derive(Clone, Debug)]
pub struct BufferInfo {
    /// What it holds, for reports and errors.
    pub name: String,
    /// Size in bytes.
    pub bytes: usize,
    /// Where it lives.
    pub home: Home,
}

/// All buffers of a model on a device, shared by its plans.
#[derive(Clone, Debug, Default)]
pub struct BufferTable {
    buffers: Vec<BufferInfo>,
}

impl BufferTable {
    /// Adds a buffer and returns the slot that covers it.
    pub fn add(&mut self, name: impl Into<String>, bytes: usize, home: Home) -> Slot {
        let buffer = BufferId(self.buffers.len() as u32);
        self.buffers.push(BufferInfo { name: name.into(), bytes, home });
        Slot::whole(buffer, bytes)
    }

    /// All buffers, in order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (BufferId, &BufferInfo)> {
        self.buffers.iter().enumerate().map(|(i, info)| (BufferId(i as u32), info))
    }

    /// One buffer.
    pub fn get(&self, id: BufferId) -> &BufferInfo {
        &self.buffers[id.0 as usize]
    }

    /// Bytes of all buffers whose home passes the test.
    pub fn bytes(&self, home: impl Fn(&Home) -> bool) -> usize {
        self.buffers.iter().filter(|b| home(&b.home)).map(|b| b.bytes).sum()
    }
}

/// A byte range of a buffer, bound to one parameter of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// Whose buffer it is, by place among the step's sessions, where each session has one; 0 for all others.
    pub session: u8,
}

impl Slot {
    /// A whole buffer of so many bytes.
    pub fn whole(buffer: BufferId, bytes: usize) -> Slot {
        Slot { buffer, offset: 0, bytes, session: 0 }
    }

    /// The same bytes of another session of the step.
    pub fn of(self, session: usize) -> Slot {
        Slot { session: session as u8, ..self }
    }

    /// A part of this slot.
    ///
    /// # Panics
    /// If the part does not lie inside: a broken invariant of the model.
    pub fn part(self, offset: usize, bytes: usize) -> Slot {
        assert!(offset + bytes <= self.bytes, "part {offset}+{bytes} of a slot of {} bytes", self.bytes);
        Slot { offset: self.offset + offset, bytes, ..self }
    }

    /// The first `bytes` of this slot.
    pub fn first(self, bytes: usize) -> Slot {
        self.part(0, bytes)
    }

    /// Whether every byte of `other` is in this slot.
    pub fn covers(self, other: Slot) -> bool {
        self.buffer == other.buffer
            && self.session == other.session
            && self.offset <= other.offset
            && other.offset + other.bytes <= self.offset + self.bytes
    }

    /// Whether two slots share a byte.
    pub fn overlaps(self, other: Slot) -> bool {
        self.buffer == other.buffer
            && self.session == other.session
            && self.offset < other.offset + other.bytes
            && other.offset < self.offset + self.bytes
    }
}

/// One bound launch of a kernel.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The kernel.
    pub contract: &'static Contract,
    /// Its argument struct, as bytes.
    pub args: Vec<u8>,
    /// Its buffers, in the contract's order.
    pub slots: Vec<Slot>,
}

impl Dispatch {
    /// Binds a kernel.
    ///
    /// # Panics
    /// If a written buffer overlaps another of the same dispatch: a broken invariant of the model.
    pub fn new(contract: &'static Contract, args: &[u8], slots: Vec<Slot>) -> Self {
        assert_eq!(slots.len(), contract.params.len(), "{}: wrong number of buffers", contract.name);
        assert!(slots.len() <= MAX_BUFFERS, "{}: more than {MAX_BUFFERS} buffers", contract.name);
        for (i, param) in contract.params.iter().enumerate().filter(|(_, p)| p.access.writes()) {
            let aliased = slots.iter().enumerate().find(|(j, s)| *j != i && s.overlaps(slots[i]));
            assert!(aliased.is_none(), "{}: `{}` overlaps another buffer", contract.name, param.name);
        }
        Self { contract, args: args.to_vec(), slots }
    }

    /// Its buffers with their parameters.
    pub fn bindings(&self) -> impl Iterator<Item = (&'static crate::kernel::Param, Slot)> {
        self.contract.params.iter().zip(self.slots.iter().copied())
    }

    /// Its cost at the given step.
    pub fn cost(&self, step: Step) -> Cost {
        (self.contract.cost)(&self.args, step)
    }
}

/// The launches of one step, in program order.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The launches.
    pub dispatches: Vec<Dispatch>,
    /// Whether each waits for the one before it, hazard or not.
    pub serial: bool,
}

impl Plan {
    /// Appends a launch.
    pub fn push(&mut self, kernel: impl Kernel) {
        self.dispatches.push(kernel.dispatch());
    }
}
