//! The lanes of a SIMD-group: their meetings, and what each has under way.

use crate::abi::{Area, LANES, RunProduct, Thread};
use std::collections::VecDeque;
use std::ptr::{null, null_mut};

/// What a lane does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Can run.
    Runnable,
    /// At a meeting of the SIMD-group.
    Meeting,
    /// At a threadgroup barrier.
    Barrier,
    /// At a barrier of some of the threadgroup's threads.
    Party(u32),
    /// Has returned.
    Returned,
}

/// What a lane puts in threadgroup memory when it waits for it.
pub struct Copy {
    pub to: *mut [u8; 16],
    pub value: [u8; 16],
    pub site: usize,
}

/// A product that a lane does when it waits for it.
pub struct Product {
    pub run: RunProduct,
    pub operands: Vec<u64>,
}

/// What a lane has under way, by batches, of which the last one grows.
pub struct Batches<T> {
    whole: VecDeque<Vec<T>>,
    last: Vec<T>,
    /// How many have become whole since the kernel started.
    pub ended: u32,
}

impl<T> Batches<T> {
    pub fn new() -> Self {
        Self { whole: VecDeque::new(), last: Vec::new(), ended: 0 }
    }

    /// One more of the last batch.
    pub fn start(&mut self, one: T) {
        self.last.push(one);
    }

    /// The last batch is whole.
    pub fn end(&mut self) {
        self.whole.push_back(std::mem::take(&mut self.last));
        self.ended += 1;
    }

    /// Takes out the oldest batch if it is whole and one of the first so many.
    pub fn among(&mut self, first: u32) -> Option<Vec<T>> {
        (self.ended - (self.whole.len() as u32) < first).then(|| self.whole.pop_front()).flatten()
    }
}

/// One lane.
pub struct Lane {
    pub stack: *mut u8,
    pub value: *const u8,
    pub site: usize,
    pub bytes: u32,
    pub meetings: u32,
    pub state: State,
    pub thread: Thread,
    pub copies: Batches<Copy>,
    pub products: Batches<Product>,
    /// Whether it may touch what launches before this one write.
    pub waited: bool,
    /// What it was told at the last barrier of some threads.
    pub told: bool,
}

/// The lanes of one SIMD-group. Masks have a bit per lane.
pub struct Group {
    pub all: u32,
    pub live: u32,
    pub waiting: u32,
    pub runnable: u32,
    /// Where the first waiting lane waits, and whether another waits elsewhere.
    pub site: usize,
    pub bytes: u32,
    pub mixed: bool,
    /// What the barrier that they wait at orders.
    pub flags: u32,
    /// SIMD-group barriers that order device memory, and threadgroup memory.
    pub epochs: [u32; 2],
    pub area: Box<Area>,
    pub lanes: [Lane; LANES],
}

impl Group {
    /// Lanes that have all returned.
    pub fn new() -> Box<Self> {
        let thread = Thread {
            lane: 0,
            simdgroup: 0,
            index: 0,
            simdgroups: 0,
            group: [0; 3],
            reserved: 0,
            launch: null(),
            arena: 0,
            arena_used: null_mut(),
        };
        let lane = |_| Lane {
            stack: null_mut(),
            value: null(),
            site: 0,
            bytes: 0,
            meetings: 0,
            state: State::Returned,
            thread,
            copies: Batches::new(),
            products: Batches::new(),
            waited: false,
            told: false,
        };
        // SAFETY: all-zero bytes are a value of this plain struct.
        let area = unsafe { Box::<Area>::new_zeroed().assume_init() };
        let lanes = std::array::from_fn(lane);
        Box::new(Self {
            all: 0,
            live: 0,
            waiting: 0,
            runnable: 0,
            site: 0,
            bytes: 0,
            mixed: false,
            flags: 0,
            epochs: [0; 2],
            area,
            lanes,
        })
    }

    /// Ends a meeting of the lanes of a mask: gathers what they brought and lets them run on.
    ///
    /// # Safety
    /// What they brought must still be there.
    pub unsafe fn release(&mut self, mask: u32) {
        self.area.mask = mask;
        self.area.done = 0;
        let mut rest = mask;
        while rest != 0 {
            let i = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let lane = &mut self.lanes[i];
            let bytes = lane.bytes as usize;
            let slot = self.area.slots[i * bytes..].as_mut_ptr();
            // SAFETY: the lane waits, so that what it brought stays on its stack; slots are apart by its size.
            unsafe {
                if bytes == 4 {
                    slot.cast::<u32>().write_unaligned(lane.value.cast::<u32>().read_unaligned());
                } else {
                    std::ptr::copy_nonoverlapping(lane.value, slot, bytes);
                }
            }
            lane.state = State::Runnable;
            lane.meetings += 1;
        }
        for (memory, epoch) in self.epochs.iter_mut().enumerate() {
            *epoch += self.flags >> memory & 1;
        }
        self.waiting &= !mask;
        self.runnable |= mask;
        self.first_waits();
    }

    /// Looks again where the waiting lanes wait.
    fn first_waits(&mut self) {
        self.mixed = false;
        if self.waiting != 0 {
            let first = &self.lanes[self.waiting.trailing_zeros() as usize];
            (self.site, self.bytes) = (first.site, first.bytes);
            let elsewhere = |i: usize| self.waiting >> i & 1 == 1 && self.lanes[i].site != self.site;
            self.mixed = (0..LANES).any(elsewhere);
        }
    }
}
