//! Launches: bindings in, results in the buffers, faults as errors.

use crate::abi;
use crate::compile::Mode;
use crate::fault::{Fault, describe, races_fault};
use crate::library::{BufferParameter, KernelInfo, Library, Space};
use crate::memory::Buffer;
use crate::race::Place;
use crate::worker::{Counts, Divergence, Halt, Order, THREADS_MAX, Worker};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A range of a buffer, bound to a kernel's parameter.
#[derive(Clone, Copy)]
pub struct Binding<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// First byte.
    pub offset: usize,
    /// Length in bytes, for messages; what lies behind is only guarded at the end of the buffer.
    pub bytes: usize,
    /// Whether it may be read before the launches before this one have ended: none of them writes it.
    pub early: bool,
}

impl<'a> From<&'a Buffer> for Binding<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        Self { buffer, offset: 0, bytes: buffer.len(), early: false }
    }
}

/// One launch.
pub struct Launch<'a> {
    /// Name of the kernel.
    pub kernel: &'a str,
    /// Device buffers in order of their indices, from 0.
    pub buffers: &'a [Binding<'a>],
    /// The argument struct; empty if the kernel has none.
    pub args: &'a [u8],
    /// Index and value of function constants; floats by their bits.
    pub constants: &'a [(u32, u32)],
    /// Threadgroups in each dimension.
    pub threadgroups: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: u32,
}

/// How launches run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Order of lanes, SIMD-groups and threadgroups.
    pub order: Order,
    /// What to do when lanes of a SIMD-group stand at different meetings.
    pub divergence: Divergence,
    /// Most operating-system threads that share the threadgroups of a launch.
    pub workers: usize,
}

impl Default for Settings {
    fn default() -> Self {
        let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self { order: Order::Forward, divergence: Divergence::Refuse, workers }
    }
}

/// Fewest threads of a launch per operating-system thread; below that, starting one costs more than it brings.
const THREADS_PER_WORKER: u64 = 2048;

/// The software device: runs launches one after another.
pub struct Device {
    /// How launches run.
    pub settings: Settings,
    workers: Vec<Worker>,
    /// What the launches of the span that has begun write; `None` outside of any.
    span: Option<Vec<Range<usize>>>,
    /// Whether a launch of the span came before.
    continues: bool,
}

impl Device {
    /// A device with the given settings.
    pub fn new(settings: Settings) -> Self {
        Self { settings, workers: Vec::new(), span: None, continues: false }
    }

    /// Begins a span: the launches from here to the next span may run at the same time on a real device, so nothing orders
    /// their accesses, and watched ones must not be in each other's way. `written` is what they bind for writing.
    pub fn begin_span(&mut self, written: impl IntoIterator<Item = Range<usize>>) {
        (self.span, self.continues) = (Some(written.into_iter().collect()), false);
    }

    /// Ends a span: each launch from here on waits for the one before it.
    pub fn end_span(&mut self) {
        (self.span, self.continues) = (None, false);
    }

    /// Runs a kernel and returns when it is done.
    ///
    /// # Errors
    /// If the bindings do not fit the kernel's signature, or the kernel does what it must not.
    pub fn launch(&mut self, library: &Library, launch: &Launch<'_>) -> Result<Counts, Fault> {
        let (kernel, entry) = library.entry(launch.kernel).ok_or_else(|| Fault::NoKernel {
            kernel: launch.kernel.to_owned(),
            known: library.kernels().map(|k| k.name.as_str()).collect::<Vec<_>>().join(", "),
        })?;
        check(kernel, launch)?;
        let io = |error| Fault::Memory { kernel: launch.kernel.to_owned(), error };
        let args = Buffer::from_bytes(launch.args).map_err(io)?;
        let mut shared =
            abi::Launch { buffers: [0; abi::BUFFERS], threadgroups: launch.threadgroups, threads: launch.threads };
        let mut bindings = launch.buffers.iter();
        let places = places(kernel, launch, &args, self.span.as_deref().unwrap_or_default());
        for parameter in &kernel.buffers {
            shared.buffers[parameter.index as usize] = match parameter.space {
                Space::Constant => args.address() as u64,
                Space::Device => bindings.next().map_or(0, |b| (b.buffer.address() + b.offset) as u64),
            };
        }
        let groups = launch.threadgroups.iter().map(|n| *n as u64).product::<u64>();
        let useful = (groups * launch.threads as u64 / THREADS_PER_WORKER).clamp(1, groups.max(1));
        let races = library.mode() == Mode::Races;
        let count = if races { 1 } else { self.settings.workers.clamp(1, useful as usize) };
        let machine = library.machine();
        self.workers.retain(|worker| worker.machine == machine);
        while self.workers.len() < count {
            self.workers.push(Worker::new(machine).map_err(io)?);
        }
        for worker in &mut self.workers[..count] {
            worker.begin(entry, &shared, self.settings.order, self.settings.divergence).map_err(io)?;
        }
        if races {
            self.workers[0].watch(self.continues, places, library.image());
            self.continues = self.span.is_some();
        }
        let guard = library.set_constants(launch.constants);
        let (halt, index) = run(&mut self.workers[..count], launch.threadgroups, groups, self.settings.order);
        drop(guard);
        if let Some(halt) = halt {
            return Err(describe(library, kernel, launch, &args, &self.workers[index], halt));
        }
        if let Some(i) = launch.buffers.iter().position(|b| !b.buffer.intact()) {
            let name = &kernel.buffers.iter().filter(|b| b.space == Space::Device).nth(i).map_or("", |b| &b.name);
            let message = format!("wrote right before or behind the buffer of `{name}`");
            return Err(Fault::Binding { kernel: kernel.name.clone(), place: kernel.place.clone(), message });
        }
        if races && !self.workers[0].conflicts().is_empty() {
            return Err(races_fault(library, kernel, launch, &args, &self.workers[0]));
        }
        Ok(self.workers[..count].iter().map(Worker::counts).fold(Counts::default(), add))
    }
}

fn add(a: Counts, b: Counts) -> Counts {
    Counts {
        meetings: a.meetings + b.meetings,
        barriers: a.barriers + b.barriers,
        divergent: a.divergent + b.divergent,
        threads: a.threads + b.threads,
        threadgroup_bytes: a.threadgroup_bytes.max(b.threadgroup_bytes),
    }
}

/// What a kernel may touch, where launches of its span write `written`.
fn places(kernel: &KernelInfo, launch: &Launch<'_>, args: &Buffer, written: &[Range<usize>]) -> Vec<Place> {
    let mut bindings = launch.buffers.iter();
    let place = |parameter: &BufferParameter| {
        let (start, bytes, early) = match parameter.space {
            Space::Constant => (args.address(), args.len(), true),
            Space::Device => {
                bindings.next().map_or((0, 0, false), |b| (b.buffer.address() + b.offset, b.bytes, b.early))
            }
        };
        let shared = written.iter().any(|w| w.start < start + bytes && start < w.end);
        Place { range: start..start + bytes, writable: !parameter.is_const, shared, early }
    };
    kernel.buffers.iter().map(place).collect()
}

/// Whether a launch fits the kernel's signature.
fn check(kernel: &KernelInfo, launch: &Launch<'_>) -> Result<(), Fault> {
    let fail =
        |message: String| Err(Fault::Binding { kernel: kernel.name.clone(), place: kernel.place.clone(), message });
    let device = kernel.buffers.iter().filter(|b| b.space == Space::Device).count();
    if device != launch.buffers.len() {
        return fail(format!("takes {device} device buffers, but {} are bound", launch.buffers.len()));
    }
    if let Some((i, parameter)) = kernel.buffers.iter().enumerate().find(|(i, b)| b.index as usize != *i) {
        return fail(format!("`{}` has index {}, but is buffer {i} in order", parameter.name, parameter.index));
    }
    match kernel.args() {
        None if !launch.args.is_empty() => {
            return fail(format!("takes no arguments in constant memory, but gets {} bytes", launch.args.len()));
        }
        Some(p) if p.element_bytes as usize != launch.args.len() => {
            let (name, bytes) = (&p.name, p.element_bytes);
            return fail(format!("`{name}` has {bytes} bytes, but the host's argument struct {}", launch.args.len()));
        }
        _ => {}
    }
    for (binding, parameter) in launch.buffers.iter().zip(&kernel.buffers) {
        let end = binding.offset.checked_add(binding.bytes);
        if end.is_none_or(|end| end > binding.buffer.len()) {
            let (offset, bytes, size) = (binding.offset, binding.bytes, binding.buffer.len());
            return fail(format!("`{}` is bound to {offset}+{bytes} of a buffer of {size} bytes", parameter.name));
        }
    }
    for (i, parameter) in kernel.buffers.iter().enumerate().filter(|(_, p)| !p.is_const) {
        let range = |b: &Binding<'_>| b.buffer.address() + b.offset..b.buffer.address() + b.offset + b.bytes;
        let own = range(&launch.buffers[i]);
        let overlaps = |b: &Binding<'_>| range(b).start < own.end && own.start < range(b).end;
        if let Some(j) = (0..launch.buffers.len()).find(|j| *j != i && overlaps(&launch.buffers[*j])) {
            return fail(format!("`{}` may be written and overlaps `{}`", parameter.name, kernel.buffers[j].name));
        }
    }
    if let Some(index) = kernel.constants.iter().find(|i| !launch.constants.iter().any(|(c, _)| c == *i)) {
        return fail(format!("uses function constant {index}, which the launch does not set"));
    }
    if launch.threads == 0 || launch.threads as usize > THREADS_MAX || launch.threadgroups.contains(&0) {
        let (threads, groups) = (launch.threads, launch.threadgroups);
        return fail(format!(
            "{groups:?} threadgroups of {threads} threads; at least 1 and at most {THREADS_MAX} threads"
        ));
    }
    Ok(())
}

/// Runs all threadgroups; gives the first halt and the worker it happened on.
fn run(workers: &mut [Worker], size: [u32; 3], groups: u64, order: Order) -> (Option<Halt>, usize) {
    let next = AtomicU64::new(0);
    let stopped = AtomicBool::new(false);
    let work = |worker: &mut Worker| -> Option<Halt> {
        loop {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            if turn >= groups || stopped.load(Ordering::Relaxed) {
                return None;
            }
            let index = position(turn, groups, order);
            let (x, y) = (size[0] as u64, size[1] as u64);
            let position = [(index % x) as u32, (index / x % y) as u32, (index / (x * y)) as u32];
            // SAFETY: the bindings borrow the buffers for the launch, whose memory nobody else touches.
            if let Err(halt) = unsafe { worker.run(position) } {
                stopped.store(true, Ordering::Relaxed);
                return Some(halt);
            }
        }
    };
    if let [worker] = workers {
        return (work(worker), 0);
    }
    let halts: Vec<Option<Halt>> = std::thread::scope(|scope| {
        let handles: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(|| work(worker))).collect();
        handles.into_iter().map(|h| h.join().expect("a worker does not panic")).collect()
    });
    let index = halts.iter().position(Option::is_some).unwrap_or(0);
    (halts[index], index)
}

/// The threadgroup that runs at a turn.
fn position(turn: u64, groups: u64, order: Order) -> u64 {
    match order {
        Order::Forward => turn,
        Order::Reverse => groups - 1 - turn,
        Order::Random(seed) => {
            // A step without common divisor visits every threadgroup once.
            let mut step = (seed as u64 % groups).max(1);
            while gcd(step, groups) != 1 {
                step += 1;
            }
            (turn % groups * step + seed as u64) % groups
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_visits_every_threadgroup_once() {
        for groups in [1, 2, 7, 12] {
            for order in [Order::Forward, Order::Reverse, Order::Random(1), Order::Random(12345)] {
                let mut seen: Vec<u64> = (0..groups).map(|t| position(t, groups, order)).collect();
                seen.sort();
                assert_eq!(seen, (0..groups).collect::<Vec<_>>(), "{order:?}");
            }
        }
    }
}
