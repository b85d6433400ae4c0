//! One operating-system thread's emulator: runs the threads of a threadgroup as fibers, with SIMD-group semantics.
//!
//! A lane runs until it reaches a meeting of its SIMD-group or a barrier. A meeting is over when all lanes that have not
//! returned stand at the same call; a threadgroup barrier when all threads do. What else happens is refused as a
//! [`Halt`], or served and counted ([`Divergence::Serve`]). Which lane runs next is free, hence the [`Order`]s.

use crate::abi::{self, LANES, Launch, Thread};
use crate::entries::fiber;
use crate::fiber::{Stacks, switch};
use crate::memory::{PAGE, Region};
use crate::race::{Checker, Conflict, Kind, Place};
use crate::simdgroup::{Batches, Group, Lane, State};
use std::cell::Cell;
use std::ops::Range;
use std::ptr::null_mut;

/// Most threads of a threadgroup.
pub const THREADS_MAX: usize = 1024;
/// Barriers of some of a threadgroup's threads.
pub const BARRIERS: usize = 16;

/// Which of several runnable lanes, SIMD-groups and threadgroups goes first. Right kernels do not care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Lowest first.
    Forward,
    /// Highest first.
    Reverse,
    /// Drawn from this seed.
    Random(u32),
}

/// What happens when lanes of a SIMD-group stand at different meetings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divergence {
    /// The launch fails.
    Refuse,
    /// The lanes at one call meet among themselves, and it is counted.
    Serve,
}

/// Whose rules kernels are held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    /// Apple's GPUs: threads of a threadgroup wait at the same barrier of the text.
    Apple,
    /// NVIDIA's: any of the barriers will do, and orders all memory. Kernels start before those that they depend on have ended.
    Nvidia,
}

impl Machine {
    /// Most bytes of threadgroup memory, in whole pages.
    pub(crate) fn threadgroup_bytes(self) -> usize {
        match self {
            Machine::Apple => 32 << 10,
            Machine::Nvidia => 224 << 10,
        }
    }

    /// What a barrier with these flags orders: device memory, and threadgroup memory.
    pub(crate) fn ordered(self, flags: u32) -> u32 {
        if self == Machine::Nvidia { 3 } else { flags }
    }
}

/// What a worker counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Meetings of SIMD-groups, barriers included.
    pub meetings: u64,
    /// Threadgroup barriers.
    pub barriers: u64,
    /// Meetings of fewer lanes than the SIMD-group started with.
    pub divergent: u64,
    /// Threads that ran.
    pub threads: u64,
    /// Bytes of threadgroup memory that the kernel declares.
    pub threadgroup_bytes: u32,
}

/// Threads at a barrier of some of a threadgroup's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Party {
    pub arrived: u32,
    pub any: bool,
}

/// Why a threadgroup was stopped; addresses are code addresses.
#[derive(Clone, Copy, Debug)]
pub enum Halt {
    /// Lanes of a SIMD-group stand at different meetings, or one at a meeting and another at a threadgroup barrier.
    Divergent { simdgroup: u32, site: usize, other: usize },
    /// Lanes returned before a meeting of the others.
    EarlyReturn { simdgroup: u32, site: usize },
    /// Threads wait at different threadgroup barriers.
    BarrierSites { site: usize, other: usize },
    /// Threads returned before a threadgroup barrier of the others.
    BarrierReturn { site: usize },
    /// A lane brought too much.
    SlotTooLarge { site: usize, bytes: u32 },
    /// An access to what launches before this one may be writing, before the thread has waited for them.
    Early { address: usize, bytes: usize, kind: Kind, site: usize, thread: u32 },
    /// An access outside of what is bound, or a write to what is only read.
    Undeclared { address: usize, bytes: usize, kind: Kind, site: usize, thread: u32 },
    /// The processor refused an instruction.
    Signal { number: i32, address: usize, site: usize, thread: u32 },
}

/// The emulator of one operating-system thread.
pub struct Worker {
    pub(crate) scheduler: *mut u8,
    pub(crate) group: *mut Group,
    pub(crate) lane: *mut Lane,
    pub(crate) halt: Option<Halt>,
    /// Boxed, because fibers hold pointers to them while the list may grow.
    #[allow(clippy::vec_box)]
    groups: Vec<Box<Group>>,
    pub(crate) stacks: Stacks,
    arena: Region,
    pub(crate) machine: Machine,
    pub(crate) arena_used: u32,
    pub(crate) entry: Option<abi::Entry>,
    launch: Box<Launch>,
    pub(crate) order: Order,
    divergence: Divergence,
    random: u32,
    /// Linear index of the threadgroup.
    pub(crate) linear: u32,
    /// What the barrier at which the threads wait orders.
    pub(crate) barrier_flags: u32,
    /// Barriers that some threads wait at.
    pub(crate) parties: [Party; BARRIERS],
    /// Batches of products that every four SIMD-groups have done.
    pub(crate) products_done: [u32; THREADS_MAX / LANES / 4],
    /// Barriers of the threadgroup that order device memory, and threadgroup memory.
    pub(crate) epochs: [u32; 2],
    /// Watches the accesses of instrumented kernels.
    pub(crate) checker: Option<Box<Checker>>,
    pub(crate) counts: Counts,
}

// SAFETY: the pointers lead into the worker's own memory, and are used only while it runs, on one thread.
unsafe impl Send for Worker {}

thread_local! {
    /// The worker that runs on this thread, for calls from kernels and for signals.
    static CURRENT: Cell<*mut Worker> = const { Cell::new(null_mut()) };
}

/// The worker that is running a fiber on this thread, or null.
pub fn current() -> *mut Worker {
    CURRENT.get()
}

impl Worker {
    /// Reserves stacks and threadgroup memory.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(machine: Machine) -> std::io::Result<Self> {
        let threadgroup_bytes = machine.threadgroup_bytes();
        // The arena lies between closed pages.
        let arena = Region::reserve(threadgroup_bytes + 2 * PAGE)?;
        arena.open(PAGE, threadgroup_bytes)?;
        Ok(Self {
            scheduler: null_mut(),
            group: null_mut(),
            lane: null_mut(),
            halt: None,
            groups: Vec::new(),
            stacks: Stacks::reserve(THREADS_MAX)?,
            arena,
            machine,
            arena_used: 0,
            entry: None,
            launch: Box::new(Launch { buffers: [0; abi::BUFFERS], threadgroups: [0; 3], threads: 0 }),
            order: Order::Forward,
            divergence: Divergence::Refuse,
            random: 1,
            linear: 0,
            barrier_flags: 0,
            parties: [Party::default(); BARRIERS],
            products_done: [0; _],
            epochs: [0; 2],
            checker: None,
            counts: Counts::default(),
        })
    }

    /// Prepares for the threadgroups of a launch.
    ///
    /// # Errors
    /// If the system has no memory for the stacks.
    pub fn begin(
        &mut self,
        entry: abi::Entry,
        launch: &Launch,
        order: Order,
        divergence: Divergence,
    ) -> std::io::Result<()> {
        let threads = launch.threads as usize;
        self.stacks.open(threads)?;
        while self.groups.len() < threads.div_ceil(LANES) {
            self.groups.push(Group::new());
        }
        self.entry = Some(entry);
        *self.launch = *launch;
        self.order = order;
        self.divergence = divergence;
        self.random = if let Order::Random(seed) = order { seed | 1 } else { 1 };
        self.counts = Counts::default();
        self.arena_used = 0;
        Ok(())
    }

    /// Watches the accesses of the launch that [`Worker::begin`] has prepared, which may run at the same time as the one before
    /// if it `continues` a span. `places` is what it binds, `image` the library's own memory.
    pub fn watch(&mut self, continues: bool, places: Vec<Place>, image: Range<usize>) {
        fn of<T>(value: &T) -> Range<usize> {
            let start = value as *const T as usize;
            start..start + size_of::<T>()
        }
        let mut ignored = vec![image, of(&*self.launch), of(&self.arena_used)];
        for group in &self.groups {
            ignored.extend([of(&**group), of(&*group.area)]);
        }
        let arena = self.arena();
        self.checker.get_or_insert_default().begin(continues, places, arena, ignored);
    }

    /// Accesses of a watched launch that nothing orders.
    pub fn conflicts(&self) -> &[Conflict] {
        self.checker.as_ref().map_or(&[], |c| c.conflicts())
    }

    /// What was counted since [`Worker::begin`].
    pub fn counts(&self) -> Counts {
        Counts { threadgroup_bytes: self.arena_used, ..self.counts }
    }

    /// Addresses of threadgroup memory.
    pub fn arena(&self) -> std::ops::Range<usize> {
        let start = self.arena.start() + PAGE;
        start..start + self.machine.threadgroup_bytes()
    }

    /// Stacks of the fibers.
    pub fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// Runs one threadgroup to its end.
    ///
    /// # Errors
    /// Why it was stopped.
    ///
    /// # Safety
    /// The kernel may do anything to the memory of its bindings, which must stay valid meanwhile.
    pub unsafe fn run(&mut self, position: [u32; 3]) -> Result<(), Halt> {
        // What a kernel declares is known when its first threadgroup has run.
        let used = if self.arena_used == 0 { self.arena().len() } else { self.arena_used as usize };
        // SAFETY: fresh threadgroup memory is poison; the arena is open and nobody else uses it.
        unsafe { std::ptr::write_bytes(self.arena().start as *mut u8, 0xff, used) };
        self.prepare(position);
        self.halt = None;
        let size = self.launch.threadgroups;
        self.linear = position[0] + size[0] * (position[1] + size[1] * position[2]);
        self.epochs = [0; 2];
        self.parties = [Party::default(); BARRIERS];
        self.products_done = [0; _];
        let before = CURRENT.replace(self);
        // SAFETY: the caller vouches for the kernel's memory.
        let result = unsafe { schedule(self) };
        CURRENT.set(before);
        self.counts.threads += self.launch.threads as u64;
        result
    }

    /// Puts every thread at the start of the kernel.
    fn prepare(&mut self, position: [u32; 3]) {
        let threads = self.launch.threads as usize;
        let count = threads.div_ceil(LANES);
        let arena = self.arena().start as u64;
        for (g, group) in self.groups.iter_mut().take(count).enumerate() {
            let lanes = (threads - g * LANES).min(LANES);
            group.all = if lanes == LANES { u32::MAX } else { (1 << lanes) - 1 };
            (group.live, group.runnable, group.waiting, group.mixed) = (group.all, group.all, 0, false);
            group.epochs = [0; 2];
            for (i, lane) in group.lanes.iter_mut().take(lanes).enumerate() {
                let index = g * LANES + i;
                lane.state = State::Runnable;
                lane.meetings = 0;
                lane.copies = Batches::new();
                lane.products = Batches::new();
                lane.waited = self.machine == Machine::Apple;
                // SAFETY: `begin` has opened this many stacks, and none is in use between threadgroups.
                lane.stack = unsafe { self.stacks.prepare(index, fiber) };
                lane.thread = Thread {
                    lane: i as u32,
                    simdgroup: g as u32,
                    index: index as u32,
                    simdgroups: count as u32,
                    group: position,
                    reserved: 0,
                    launch: &raw const *self.launch,
                    arena,
                    arena_used: &raw mut self.arena_used,
                };
            }
        }
    }

    /// The SIMD-groups of the current lane, which does products together with those of three others.
    pub(crate) fn product_groups(&mut self) -> (usize, &mut [Box<Group>]) {
        // SAFETY: called from a fiber, whose lane is the current one.
        let four = unsafe { (*self.lane).thread.simdgroup } as usize / 4;
        let end = self.groups.len().min(4 * four + 4);
        (four, &mut self.groups[4 * four..end])
    }

    /// Lets those at a barrier of some threads go on, and tells them whether any of them said yes.
    pub(crate) fn pass_party(&mut self, id: u32, any: bool) {
        for group in &mut self.groups {
            for (i, lane) in group.lanes.iter_mut().enumerate().filter(|(_, lane)| lane.state == State::Party(id)) {
                (lane.state, lane.told) = (State::Runnable, any);
                group.runnable |= 1 << i;
            }
        }
    }

    pub(crate) fn draw(&mut self) -> u32 {
        self.random = self.random.wrapping_mul(1664525).wrapping_add(1013904223);
        self.random >> 8
    }

    /// A lane of a mask that is not empty.
    pub(crate) fn pick(&mut self, mask: u32) -> usize {
        match self.order {
            Order::Forward => mask.trailing_zeros() as usize,
            Order::Reverse => 31 - mask.leading_zeros() as usize,
            Order::Random(_) => {
                // The first at or after a place that is drawn.
                let from = self.draw() % LANES as u32;
                ((from + mask.rotate_right(from).trailing_zeros()) % LANES as u32) as usize
            }
        }
    }
}

/// Runs all fibers of the prepared threadgroup.
unsafe fn schedule(worker: *mut Worker) -> Result<(), Halt> {
    // SAFETY: only this thread uses the worker. Fibers change it while they run, which is why no reference to it is kept
    // across a switch.
    unsafe {
        let count = ((*worker).launch.threads as usize).div_ceil(LANES);
        loop {
            let (mut alive, mut progress) = (false, false);
            let first = if let Order::Random(_) = (*worker).order { (*worker).draw() as usize } else { 0 };
            for i in 0..count {
                let index = match (*worker).order {
                    Order::Forward => i,
                    Order::Reverse => count - 1 - i,
                    Order::Random(_) => (first + i) % count,
                };
                let group: *mut Group = &raw mut *(&mut (*worker).groups)[index];
                progress |= run_group(worker, group)?;
                alive |= (*group).live != 0;
            }
            if !alive {
                return Ok(());
            }
            if !progress {
                pass_barrier(worker, count)?;
            }
        }
    }
}

/// Runs a SIMD-group until all of its lanes have returned or wait for the threadgroup; in random order, until its lanes
/// first give way to the other groups. Says whether anything ran.
unsafe fn run_group(worker: *mut Worker, group: *mut Group) -> Result<bool, Halt> {
    let mut progress = false;
    // SAFETY: as in `schedule`.
    unsafe {
        loop {
            if (*group).runnable != 0 {
                progress = true;
                let lane = (*worker).pick((*group).runnable);
                (*worker).group = group;
                (*worker).lane = &raw mut (*group).lanes[lane];
                switch(&raw mut (*worker).scheduler, (*(*worker).lane).stack);
                if let Some(halt) = (*worker).halt {
                    return Err(halt);
                }
                if let Order::Random(_) = (*worker).order {
                    return Ok(true);
                }
            } else if (*group).waiting != 0 {
                diverge(worker, group)?;
            } else {
                return Ok(progress);
            }
        }
    }
}

/// No lane of the group can run and they do not stand at one meeting: refuses, or serves the lanes at one of the calls.
unsafe fn diverge(worker: *mut Worker, group: *mut Group) -> Result<(), Halt> {
    // SAFETY: as in `schedule`.
    unsafe {
        let (worker, group) = (&mut *worker, &mut *group);
        let waiting = || (0..LANES).filter(|i| group.waiting >> i & 1 == 1);
        // Who is furthest behind goes first, so that lanes come together again.
        let Some(first) = waiting().min_by_key(|i| (group.lanes[*i].meetings, group.lanes[*i].site)) else {
            return Ok(());
        };
        let site = group.lanes[first].site;
        if worker.divergence == Divergence::Refuse {
            let elsewhere = (0..LANES).filter(|i| group.live >> i & 1 == 1).find(|i| group.lanes[*i].site != site);
            let simdgroup = group.lanes[first].thread.simdgroup;
            return Err(match elsewhere {
                Some(i) => Halt::Divergent { simdgroup, site, other: group.lanes[i].site },
                None => Halt::EarlyReturn { simdgroup, site },
            });
        }
        let mask = waiting().filter(|i| group.lanes[*i].site == site).fold(0, |mask, i| mask | 1 << i);
        worker.counts.divergent += 1;
        worker.counts.meetings += 1;
        group.release(mask);
        Ok(())
    }
}

/// All threads wait at threadgroup barriers, or have returned: lets them pass if it is one barrier.
unsafe fn pass_barrier(worker: *mut Worker, count: usize) -> Result<(), Halt> {
    // SAFETY: as in `schedule`.
    unsafe {
        let worker = &mut *worker;
        let mut site = None;
        for group in &worker.groups[..count] {
            for (i, lane) in group.lanes.iter().enumerate().filter(|(i, _)| group.live >> i & 1 == 1) {
                debug_assert!(matches!(lane.state, State::Barrier | State::Party(_)), "lane {i} waits");
                match site {
                    None => site = Some(lane.site),
                    Some(site) if site != lane.site && worker.machine == Machine::Apple => {
                        return Err(Halt::BarrierSites { site, other: lane.site });
                    }
                    Some(_) => {}
                }
            }
        }
        // Those who wait for a part of the threadgroup wait in vain.
        let lanes = || worker.groups[..count].iter().flat_map(|group| &group.lanes);
        if let Some(lane) = lanes().find(|lane| matches!(lane.state, State::Party(_))) {
            return Err(Halt::BarrierReturn { site: lane.site });
        }
        let returned = worker.groups[..count].iter().any(|g| g.live != g.all);
        if let (Some(site), true, Divergence::Refuse) = (site, returned, worker.divergence) {
            return Err(Halt::BarrierReturn { site });
        }
        worker.counts.barriers += 1;
        for (memory, epoch) in worker.epochs.iter_mut().enumerate() {
            *epoch += worker.barrier_flags >> memory & 1;
        }
        for group in &mut worker.groups[..count] {
            let live = group.live;
            group.lanes.iter_mut().enumerate().filter(|(i, _)| live >> i & 1 == 1).for_each(|(_, lane)| {
                lane.state = State::Runnable;
            });
            group.runnable = live;
        }
        Ok(())
    }
}
