//! What kernels call: meetings, barriers, and the accesses of instrumented code. And how a fiber begins and ends.

use crate::abi::{Meeting, RunProduct, SLOT_BYTES};
use crate::fiber::{resume, switch};
use crate::race::{Actor, Kind, Verdict};
use crate::simdgroup::{Copy, Group, Lane, Product, State};
use crate::worker::{BARRIERS, Halt, Order, Party, Worker, current};
use std::ptr::{addr_of_mut, null};

/// What instrumented code calls a write.
const WRITE: u32 = 1;
/// Most sums that a lane has of a product.
const SUMS_MAX: usize = 128;

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
        // What nobody has waited for may come as late as this.
        (*lane).copies.end();
        wait_copies(0);
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
    unsafe { arrive(null(), 0, (*current()).machine.ordered(flags), site) };
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
        (*worker).barrier_flags = (*worker).machine.ordered(flags);
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

/// Entry of the run time: 16 bytes come to threadgroup memory, at once or only when they are waited for; right kernels do not
/// care.
///
/// # Safety
/// As for [`meet`].
pub unsafe extern "C" fn copy_16(to: *mut [u8; 16], value: *const [u8; 16], site: usize) {
    // SAFETY: called from a fiber of the current worker.
    unsafe {
        let worker = current();
        let copy = Copy { to, value: *value, site };
        if (*worker).order == Order::Forward {
            return finish(copy);
        }
        // It may come as early as now.
        watch(&copy);
        (*(*worker).lane).copies.start(copy);
    }
}

/// Takes note of what a copy writes.
unsafe fn watch(copy: &Copy) {
    // SAFETY: called from a fiber of the current worker.
    unsafe {
        if (*current()).checker.is_some() {
            access(copy.to as usize, size_of_val(&copy.value), WRITE, copy.site);
        }
    }
}

/// Does what a copy is to do.
unsafe fn finish(copy: Copy) {
    // SAFETY: the kernel gave the address; one outside of threadgroup memory is a fault like any other of the kernel.
    unsafe {
        watch(&copy);
        copy.to.write_unaligned(copy.value);
    }
}

/// Entry of the run time: the copies so far are a batch.
///
/// # Safety
/// As for [`meet`].
pub unsafe extern "C" fn end_copies() {
    // SAFETY: called from a fiber of the current worker.
    unsafe { (*(*current()).lane).copies.end() };
}

/// Entry of the run time: all batches but so many are there.
///
/// # Safety
/// As for [`meet`].
pub unsafe extern "C" fn wait_copies(under_way: u32) {
    // SAFETY: called from a fiber of the current worker.
    unsafe {
        let lane = (*current()).lane;
        while let Some(batch) = (*lane).copies.among((*lane).copies.ended.saturating_sub(under_way)) {
            batch.into_iter().for_each(|copy| finish(copy));
        }
    }
}

/// Entry of the run time: a product is done, at once or only when it is waited for; right kernels do not care. Copies that come at
/// once meet products that come late in one order, and the other way round in another. The first operand is a pointer to what
/// the product adds to.
///
/// # Safety
/// As for [`meet`].
pub unsafe extern "C" fn start_product(run: RunProduct, operands: *const u64, bytes: u32) {
    // SAFETY: called from a fiber of the current worker; what the operands point to stays until they are waited for.
    unsafe {
        let worker = current();
        if (*worker).order == Order::Reverse {
            return run(operands);
        }
        let mut own = std::slice::from_raw_parts(operands, bytes as usize / size_of::<u64>()).to_vec();
        if (*worker).checker.is_some() {
            // What it reads may be read as early as now.
            let mut sums = [0.0_f32; SUMS_MAX];
            let to = std::mem::replace(&mut own[0], sums.as_mut_ptr() as u64);
            run(own.as_ptr());
            own[0] = to;
        }
        (*(*worker).lane).products.start(Product { run, operands: own });
    }
}

/// Entry of the run time: the products so far are a batch.
///
/// # Safety
/// As for [`meet`].
pub unsafe extern "C" fn end_products() {
    // SAFETY: called from a fiber of the current worker.
    unsafe {
        (*(*current()).lane).products.end();
        do_products(0);
    }
}

/// Entry of the run time: all batches but so many have ended.
///
/// # Safety
/// As for [`meet`].
pub unsafe extern "C" fn wait_products(under_way: u32) {
    // SAFETY: called from a fiber of the current worker.
    unsafe { do_products((*(*current()).lane).products.ended.saturating_sub(under_way)) };
}

/// Does the first so many batches of products, and those that were done before. Four SIMD-groups do them together: what one has
/// waited for is done for all.
unsafe fn do_products(first: u32) {
    // SAFETY: called from a fiber of the current worker; operands are what the kernel started a product with, and what they point to
    // stays until the thread has waited.
    unsafe {
        let worker = current();
        let (four, groups) = (&mut *worker).product_groups();
        let mut due = Vec::new();
        let first = first.max((&(*worker).products_done)[four]);
        for lane in groups.iter_mut().flat_map(|group| &mut group.lanes) {
            while let Some(batch) = lane.products.among(first) {
                due.extend(batch);
            }
        }
        (&mut (*worker).products_done)[four] = first;
        // Who reads now, and after which barriers, says nothing: the reads were taken note of when the product was started.
        let checker = (*worker).checker.take();
        due.into_iter().for_each(|product| (product.run)(product.operands.as_ptr()));
        (*worker).checker = checker;
    }
}

/// Entry of the run time: the launches before this one have ended.
///
/// # Safety
/// As for [`meet`].
pub unsafe extern "C" fn wait_for_inputs() {
    // SAFETY: called from a fiber of the current worker.
    unsafe { (*(*current()).lane).waited = true };
}

/// Entry of the run time: waits for some of the threadgroup's threads, and tells each whether any says yes.
///
/// # Safety
/// As for [`meet`].
pub unsafe extern "C" fn any_at_barrier(id: u32, threads: u32, says: u32, site: usize) -> u32 {
    // SAFETY: called from a fiber of the current worker.
    unsafe {
        let worker = current();
        let (group, lane) = ((*worker).group, (*worker).lane);
        ((*lane).site, (*lane).state) = (site, State::Party(id));
        (*group).runnable &= !(1 << (*lane).thread.lane);
        let party = &mut (&mut (*worker).parties)[id as usize % BARRIERS];
        party.arrived += 1;
        party.any |= says != 0;
        if party.arrived == threads {
            let any = party.any;
            *party = Party::default();
            (*worker).pass_party(id, any);
        } else {
            leave(worker, group, lane);
        }
        u32::from((*lane).told)
    }
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
        let Some(checker) = &mut (*worker).checker else { return };
        let thread = (*lane).thread.index;
        match checker.access(address, bytes, kind, site, actor, used) {
            Verdict::Undeclared => stop(worker, Halt::Undeclared { address, bytes, kind, site, thread }),
            Verdict::Late if !(*lane).waited => stop(worker, Halt::Early { address, bytes, kind, site, thread }),
            Verdict::Late | Verdict::Fine => {}
        }
    }
}
