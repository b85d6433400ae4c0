//! Stacks, and the switch from one to another.

use crate::memory::{PAGE, Region};
use std::arch::naked_asm;

/// Bytes of one stack, its guard page included.
pub const STACK_BYTES: usize = 64 << 10;

/// Saves the registers that a call must keep on the current stack and its pointer in `save`; goes on at `to`.
///
/// # Safety
/// `to` must have been saved by this function or made by [`Stacks::prepare`], and must not be in use.
#[unsafe(naked)]
pub unsafe extern "C" fn switch(save: *mut *mut u8, to: *mut u8) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// The second half of [`switch`]: goes on at the stack pointer in `rdi`. A signal handler leaves a broken fiber by it.
///
/// # Safety
/// As for [`switch`].
#[unsafe(naked)]
pub unsafe extern "C" fn resume(to: *mut u8) -> ! {
    naked_asm!("mov rsp, rdi", "pop r15", "pop r14", "pop r13", "pop r12", "pop rbx", "pop rbp", "ret")
}

/// One stack per thread of a threadgroup.
pub struct Stacks {
    region: Region,
    ready: usize,
}

impl Stacks {
    /// Reserves address space for `count` stacks.
    ///
    /// # Errors
    /// What the system says.
    pub fn reserve(count: usize) -> std::io::Result<Self> {
        Ok(Self { region: Region::reserve(count * STACK_BYTES)?, ready: 0 })
    }

    /// Makes the first `count` stacks usable. The lowest page of each stays closed, so that an overflow is noticed.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(&mut self, count: usize) -> std::io::Result<()> {
        while self.ready < count {
            self.region.open(self.ready * STACK_BYTES + PAGE, STACK_BYTES - PAGE)?;
            self.ready += 1;
        }
        Ok(())
    }

    /// A stack pointer from which [`switch`] enters `entry` on stack `index`.
    ///
    /// # Safety
    /// The stack must be open and not in use.
    pub unsafe fn prepare(&self, index: usize, entry: unsafe extern "C" fn() -> !) -> *mut u8 {
        // Stacks that all start at the same offset would compete for the same cache sets.
        let skew = (index % 16) * 192;
        let top = self.region.start() + (index + 1) * STACK_BYTES - 64 - skew;
        // As after a call: the return address lies 8 bytes below a multiple of 16. Six registers lie below it.
        let frame = (top - 16) as *mut usize;
        // SAFETY: the frame lies in the open part of the stack.
        unsafe {
            frame.write(entry as *const () as usize);
            frame.add(1).write(0);
            for register in 1..=6 {
                frame.sub(register).write(0);
            }
            frame.sub(6) as *mut u8
        }
    }

    /// The stack whose guard page holds an address.
    pub fn overflowed(&self, address: usize) -> Option<usize> {
        let offset = address.checked_sub(self.region.start())?;
        (offset < self.ready * STACK_BYTES && offset % STACK_BYTES < PAGE).then_some(offset / STACK_BYTES)
    }

    /// Addresses of all stacks.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.region.start()..self.region.start() + self.ready * STACK_BYTES
    }
}
