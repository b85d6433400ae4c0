//! What kernels call: meetings, barriers, and the accesses of instrumented code. And how a fiber begins and ends.

use crate::abi::{Meeting, SLOT_BYTES};
use crate::fiber::{resume, switch};
use crate::race::{Actor, Kind, Verdict};
use crate::simdgroup::{Group, Lane, State};
use crate::worker::{Halt, Order, Worker, current};
use std::ptr::{addr_of_mut, null};

/// What every fiber starts with.
///
/// # Safety
/// Entered by a switch from the scheduler of the current worker.
pub unsafe extern "C" fn fiber() -> ! {
    // SAFETY: a fiber runs only while a worker runs; `begin` has set the entry.
    unsafe {
        let worker = current();
        let lane = (*worker).lane;
        if let Some(entry) = (*worker).entry {
            entry(&raw const (*lane).thread);
        }
        let (worker, group) = (current(), (*current()).group);
        let bit = 1 << (*lane).thread.lane;
        (*lane).state = State::Returned;
        (*lane).site = 0;
        (*group).live &= !bit;
        (*group).runnable &= !bit;
        leave(worker, group, lane);
        // A fiber that has returned is never switched to.
        std::process::abort()
    }
}

/// Switches from a lane that cannot run to the next that can, or to the scheduler.
#[inline]
unsafe fn leave(worker: *mut Worker, group: *mut Group, lane: *mut Lane) {
    // SAFETY: the caller's lane is the current one; a runnable lane's stack was saved or prepared.
    unsafe {
        let to = if (*group).runnable != 0 {
            let next = (*worker).pick((*group).runnable);
            (*worker).lane = &raw mut (*group).lanes[next];
            (*(*worker).lane).stack
        } else {
            (*worker).scheduler
        };
        switch(&raw mut (*lane).stack, to);
    }
}

/// Stops the launch from within a fiber.
unsafe fn stop(worker: *mut Worker, halt: Halt) -> ! {
    // SAFETY: the scheduler's stack was saved when it entered the fiber.
    unsafe {
        (*worker).halt = Some(halt);
        resume((*worker).scheduler)
    }
}

/// The current lane waits at a meeting.
#[inline]
unsafe fn arrive(value: *const u8, bytes: u32, flags: u32, site: usize) -> (*mut Group, *mut Lane) {
    // SAFETY: called from a fiber of the current worker.
    unsafe {
        let worker = current();
        let (group, lane) = ((*worker).group, (*worker).lane);
        if bytes as usize > SLOT_BYTES {
            stop(worker, Halt::SlotTooLarge { site, bytes });
        }
        ((*lane).value, (*lane).bytes, (*lane).site, (*lane).state) = (value, bytes, site, State::Meeting);
        let bit = 1 << (*lane).thread.lane;
        (*group).flags = flags;
        (*group).runnable &= !bit;
        if (*group).waiting == 0 {
            ((*group).site, (*group).bytes) = (site, bytes);
        } else if (*group).site != site || (*group).bytes != bytes {
            (*group).mixed = true;
        }
        (*group).waiting |= bit;
        if (*group).waiting == (*group).all && !(*group).mixed {
            (*worker).counts.meetings += 1;
            (*group).release((*group).all);
            match (*worker).order {
                // The last to come goes on; in random order it now and then lets another group go first.
                Order::Random(_) if (*worker).draw().is_multiple_of(4) => {
                    switch(&raw mut (*lane).stack, (*worker).scheduler)
                }
                _ => {}
            }
        } else {
            leave(worker, group, lane);
        }
        (group, lane)
    }
}

/// Entry of the run time: see shim/sm/abi.h.
///
/// # Safety
/// Called from a kernel that a worker runs.
pub unsafe extern "C" fn meet(value: *const u8, bytes: u32, site: usize) -> Meeting {
    // SAFETY: called from a fiber of the current worker.
    unsafe {
        let (group, lane) = arrive(value, bytes, 0, site);
        Meeting { area: addr_of_mut!(*(*group).area), lane: (*lane).thread.lane as u64 }
    }
}

/// Entry of the run time: a meeting at which nobody brings anything.
///
/// # Safety
/// As for [`meet`].
pub unsafe extern "C" fn simdgroup_barrier(flags: u32, site: usize) {
    // SAFETY: called from a fiber of the current worker.
    unsafe { arrive(null(), 0, flags, site) };
}

/// Entry of the run time: waits for the threadgroup.
///
/// # Safety
/// As for [`meet`].
pub unsafe extern "C" fn threadgroup_barrier(flags: u32, site: usize) {
    // SAFETY: called from a fiber of the current worker.
    unsafe {
        let worker = current();
        let (group, lane) = ((*worker).group, (*worker).lane);
        ((*lane).site, (*lane).state) = (site, State::Barrier);
        (*worker).barrier_flags = flags;
        (*group).runnable &= !(1 << (*lane).thread.lane);
        leave(worker, group, lane);
    }
}

/// Entry of the run time: index of the thread in its threadgroup.
///
/// # Safety
/// As for [`meet`].
pub unsafe extern "C" fn thread_index() -> u32 {
    // SAFETY: called from a fiber of the current worker.
    unsafe { (*(*current()).lane).thread.index }
}

/// Stops the launch because the processor refused an instruction of the running fiber. Returns where to go on: the stack
/// pointer for [`resume`].
///
/// # Safety
/// Called from a signal handler while the current worker runs a fiber.
pub unsafe fn interrupt(worker: *mut Worker, number: i32, address: usize, site: usize) -> *mut u8 {
    // SAFETY: the handler runs on the worker's thread; the fiber will not go on.
    unsafe {
        let thread = (*(*worker).lane).thread.index;
        (*worker).halt = Some(Halt::Signal { number, address, site, thread });
        (*worker).scheduler
    }
}

/// Entry of the run time for instrumented code: a memory access.
///
/// # Safety
/// As for [`meet`]; the host's own calls into the library are not watched.
pub unsafe extern "C" fn access(address: usize, bytes: usize, kind: u32, site: usize) {
    let worker = current();
    if worker.is_null() {
        return;
    }
    // SAFETY: called from a fiber of the current worker.
    unsafe {
        if (*worker).stacks.range().contains(&address) {
            return;
        }
        let (group, lane) = ((*worker).group, (*worker).lane);
        let actor = Actor {
            group: (*worker).linear,
            thread: (*lane).thread.index as u16,
            threadgroup_epochs: (*worker).epochs,
            simdgroup_epochs: (*group).epochs,
        };
        let (kind, used) = (Kind::of(kind), (*worker).arena_used as usize);
        if let Some(checker) = &mut (*worker).checker
            && checker.access(address, bytes, kind, site, actor, used) == Verdict::Undeclared
        {
            let thread = (*lane).thread.index;
            stop(worker, Halt::Undeclared { address, bytes, kind, site, thread });
        }
    }
}
