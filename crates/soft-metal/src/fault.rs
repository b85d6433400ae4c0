//! What a kernel did that it must not, in words.

use crate::abi::SLOT_BYTES;
use crate::launch::Launch;
use crate::library::{KernelInfo, Library, Space, line_of};
use crate::memory::{Buffer, PAGE};
use crate::race::{Conflict, Scope};
use crate::worker::{Halt, Worker};

/// Why a launch failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The library has no such kernel.
    #[error("there is no kernel `{kernel}`; there are: {known}")]
    NoKernel {
        /// What was asked for.
        kernel: String,
        /// What there is.
        known: String,
    },
    /// The launch does not fit the kernel's signature.
    #[error("kernel `{kernel}` ({place}): {message}")]
    Binding {
        /// The kernel.
        kernel: String,
        /// Its file and line.
        place: String,
        /// What does not fit.
        message: String,
    },
    /// The system has no memory.
    #[error("kernel `{kernel}`: {error}")]
    Memory {
        /// The kernel.
        kernel: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// A memory access outside, misaligned, or past the end of an array.
    #[error("kernel `{kernel}`, thread {thread}, {line}: {message}")]
    Access {
        /// The kernel.
        kernel: String,
        /// Thread in its threadgroup.
        thread: u32,
        /// File and line.
        line: String,
        /// What was touched.
        message: String,
    },
    /// Accesses to the same bytes that nothing orders.
    #[error("kernel `{kernel}` has races:\n{}", races.join("\n"))]
    Races {
        /// The kernel.
        kernel: String,
        /// One line each, of different places in the text.
        races: Vec<String>,
    },
    /// A SIMD-group function or barrier that not all threads reached.
    #[error("kernel `{kernel}`, {line}: {message}")]
    Convergence {
        /// The kernel.
        kernel: String,
        /// File and line of the call.
        line: String,
        /// Who was where.
        message: String,
    },
}

/// Puts a halt into words.
pub(crate) fn describe(
    library: &Library,
    kernel: &KernelInfo,
    launch: &Launch<'_>,
    args: &Buffer,
    worker: &Worker,
    halt: Halt,
) -> Fault {
    // A call's line is that of the instruction before the one it returns to.
    let called = |site: usize| library.line(site - 1);
    let convergence =
        |site: usize, message: String| Fault::Convergence { kernel: kernel.name.clone(), line: called(site), message };
    match halt {
        Halt::Divergent { simdgroup, site, other } => convergence(
            site,
            format!("SIMD-group {simdgroup} is divided: some lanes wait here, others at {}", called(other)),
        ),
        Halt::EarlyReturn { simdgroup, site } => {
            convergence(site, format!("lanes of SIMD-group {simdgroup} returned before this call of the others"))
        }
        Halt::BarrierSites { site, other } => {
            convergence(site, format!("some threads wait at this barrier, others at {}", called(other)))
        }
        Halt::BarrierReturn { site } => {
            convergence(site, "some threads wait at this barrier, others have returned".to_owned())
        }
        Halt::SlotTooLarge { site, bytes } => {
            convergence(site, format!("a lane brings {bytes} bytes to a meeting; at most {SLOT_BYTES}"))
        }
        Halt::Undeclared { address, bytes, kind, site, thread } => {
            let (at, verb, size) = place(kernel, launch, args, worker, address);
            let message = format!("{bytes} bytes are {}: {at}, of which {size} bytes {verb}", kind.word());
            Fault::Access { kernel: kernel.name.clone(), thread, line: called(site), message }
        }
        Halt::Early { address, bytes, kind, site, thread } => {
            let (at, ..) = place(kernel, launch, args, worker, address);
            let message = format!(
                "{bytes} bytes are {} before wait_for_inputs(): {at}, which others may be writing",
                kind.word()
            );
            Fault::Access { kernel: kernel.name.clone(), thread, line: called(site), message }
        }
        Halt::Signal { number, address, site, thread } => Fault::Access {
            kernel: kernel.name.clone(),
            thread,
            line: library.line(site),
            message: signal(kernel, launch, args, worker, number, address),
        },
    }
}

/// Puts conflicts into words.
pub(crate) fn races_fault(
    library: &Library,
    kernel: &KernelInfo,
    launch: &Launch<'_>,
    args: &Buffer,
    worker: &Worker,
) -> Fault {
    let conflicts = worker.conflicts();
    let sites: Vec<usize> = conflicts.iter().flat_map(|c| c.accesses.map(|a| a.1 - 1)).collect();
    // A dispatch before this one may be of another library.
    let lines: Vec<String> = sites.iter().map(|site| line_of(*site, library)).collect();
    let describe = |(i, conflict): (usize, &Conflict)| {
        let [earlier, later] = conflict.accesses;
        let shared = worker.arena().contains(&conflict.address);
        let flags = if shared { "mem_threadgroup" } else { "mem_device" };
        let (who, cure) = match conflict.scope {
            Scope::Simdgroup => ("lanes of one SIMD-group", format!("a simdgroup_barrier(mem_flags::{flags})")),
            Scope::Threadgroup => {
                ("SIMD-groups of one threadgroup", format!("a threadgroup_barrier(mem_flags::{flags})"))
            }
            Scope::Grid => ("threadgroups", "nothing but another dispatch".to_owned()),
            Scope::Span => ("dispatches of one span", "a barrier between the two".to_owned()),
        };
        let (at, ..) = place(kernel, launch, args, worker, conflict.address);
        format!(
            "  between {who}: {at} is {} at {} (threadgroup {}, thread {}) and {} at {} (threadgroup {}, thread {}); \
             only {cure} would order them",
            earlier.0.word(),
            lines[2 * i],
            earlier.2,
            earlier.3,
            later.0.word(),
            lines[2 * i + 1],
            later.2,
            later.3
        )
    };
    Fault::Races { kernel: kernel.name.clone(), races: conflicts.iter().enumerate().map(describe).collect() }
}

/// What a signal means.
fn signal(
    kernel: &KernelInfo,
    launch: &Launch<'_>,
    args: &Buffer,
    worker: &Worker,
    number: i32,
    address: usize,
) -> String {
    match number {
        libc::SIGFPE => "an integer is divided by zero".to_owned(),
        // A trap of the compiler's checks.
        libc::SIGILL => "an access that is not aligned to its type, or an index outside of its array".to_owned(),
        _ if address == 0 => "an access at address 0, or of a vector that is not aligned".to_owned(),
        _ => match worker.stacks().overflowed(address) {
            Some(thread) => format!("the stack of thread {thread} is full; local arrays take more than 60 KiB"),
            None => {
                let (at, verb, size) = place(kernel, launch, args, worker, address);
                format!("{at}, of which {size} bytes {verb}")
            }
        },
    }
}

/// The memory at or next to an address, and what there is of it.
fn place(
    kernel: &KernelInfo,
    launch: &Launch<'_>,
    args: &Buffer,
    worker: &Worker,
    address: usize,
) -> (String, &'static str, usize) {
    let arena = worker.arena();
    if address >= arena.start - PAGE && address < arena.end + PAGE {
        let offset = address as i64 - arena.start as i64;
        return (
            format!("byte {offset} of threadgroup memory"),
            "are declared",
            worker.counts().threadgroup_bytes as usize,
        );
    }
    let mut bindings = launch.buffers.iter();
    let mut near = Vec::new();
    for parameter in &kernel.buffers {
        let (start, bytes) = match parameter.space {
            Space::Constant => (args.address(), args.len()),
            Space::Device => match bindings.next() {
                Some(b) => (b.buffer.address() + b.offset, b.bytes),
                None => continue,
            },
        };
        let distance = if address < start { start - address } else { (address + 1).saturating_sub(start + bytes) };
        near.push((distance, parameter, address as i64 - start as i64, bytes));
    }
    match near.iter().min_by_key(|(distance, ..)| *distance) {
        Some((distance, parameter, offset, bytes)) if *distance < 1 << 30 => {
            (format!("byte {offset} of buffer {} `{}`", parameter.index, parameter.name), "are bound", *bytes)
        }
        _ => (format!("address {address:#x}, which is no buffer's"), "are there", 0),
    }
}
