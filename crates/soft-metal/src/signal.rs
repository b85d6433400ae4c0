//! Faults of the processor inside kernels become errors of the launch.

use crate::entries::interrupt;
use crate::fiber::resume;
use crate::worker::current;
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Signals that an instruction can cause.
const SIGNALS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// What was installed before, in the order of [`SIGNALS`].
static BEFORE: [AtomicPtr<libc::sigaction>; 4] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 4];

/// Installs the handler, once.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (number, before) in SIGNALS.iter().zip(&BEFORE) {
            // SAFETY: plain structs that the calls fill; the handler has the signature that SA_SIGINFO asks for. It runs
            // on the alternate stack that Rust's run time gives every thread.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handle as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigemptyset(&mut action.sa_mask);
                let mut old: libc::sigaction = std::mem::zeroed();
                libc::sigaction(*number, std::ptr::null(), &mut old);
                // Kept for the life of the process.
                before.store(Box::into_raw(Box::new(old)), Ordering::Release);
                libc::sigaction(*number, &action, std::ptr::null_mut());
            }
        }
    });
}

extern "C" fn handle(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let worker = current();
    // SAFETY: the system passes valid pointers; `current` is this thread's worker while it runs a kernel. A fault on
    // another stack than a fiber's is not the kernel's and goes to whoever was there before.
    unsafe {
        let registers = &mut (*(context as *mut ucontext_t)).uc_mcontext.gregs;
        let stack = registers[libc::REG_RSP as usize] as usize;
        if worker.is_null() || !(*worker).stacks().range().contains(&stack) {
            let index = SIGNALS.iter().position(|s| *s == number).unwrap_or(0);
            // The instruction runs again and meets the handler from before.
            libc::sigaction(number, BEFORE[index].load(Ordering::Acquire), std::ptr::null_mut());
            return;
        }
        let site = registers[libc::REG_RIP as usize] as usize;
        let address = (*info).si_addr() as usize;
        let to = interrupt(worker, number, address, site);
        // On return the thread goes on in `resume(to)`, on the scheduler's stack.
        registers[libc::REG_RDI as usize] = to as i64;
        registers[libc::REG_RIP as usize] = resume as *const () as i64;
    }
}
