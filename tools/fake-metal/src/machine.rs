//! The machine that tests set up, and what they can see of what was done on it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// A Mac, as it were.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Name of its GPU.
    pub name: &'static str,
    /// Newest Apple family of the GPU, from 1.
    pub family: isize,
    /// Whether it has Metal 4.
    pub metal4: bool,
    /// Whether it reads the host's memory.
    pub unified_memory: bool,
    /// What it recommends to use, in bytes.
    pub working_set_bytes: u64,
    /// Longest buffer, in bytes.
    pub buffer_bytes_max: usize,
    /// Most threads of a threadgroup.
    pub threads_max: usize,
    /// Selectors that this system is too old for.
    pub lacks: &'static [&'static str],
    /// A kernel that fails.
    pub failure: Option<Failure>,
}

/// A kernel that fails.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its name.
    pub kernel: &'static str,
    /// How often.
    pub times: usize,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            name: "Fake M1",
            family: 7,
            metal4: false,
            unified_memory: true,
            working_set_bytes: 16 << 30,
            buffer_bytes_max: 8 << 30,
            threads_max: 1024,
            lacks: &[],
            failure: None,
        }
    }
}

/// A bound buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bound {
    /// First address of the whole buffer.
    pub start: usize,
    /// Its length.
    pub bytes: usize,
    /// First byte bound.
    pub offset: usize,
    /// Whether it stands for a buffer without bytes, which no kernel touches.
    pub nothing: bool,
}

/// A dispatch that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Name of the kernel.
    pub kernel: String,
    /// Function constants: index and value.
    pub constants: Vec<(u32, u32)>,
    /// Buffers, by index.
    pub buffers: Vec<Bound>,
    /// Argument struct.
    pub args: Vec<u8>,
    /// Threadgroups.
    pub threadgroups: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: u32,
}

/// A command buffer that ran: its dispatches between barriers.
pub type Submission = Vec<Vec<Recorded>>;

#[derive(Default)]
struct State {
    machine: Machine,
    live: isize,
    submissions: Vec<Submission>,
    /// Live buffers: first address and length.
    buffers: BTreeMap<usize, usize>,
    /// Texts compiled, pipelines made, pipelines written to archives.
    counts: Counts,
}

/// How often something was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Texts compiled.
    pub libraries: usize,
    /// Pipelines made.
    pub pipelines: usize,
    /// Archives written.
    pub archives: usize,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
static TESTS: Mutex<()> = Mutex::new(());

fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    f(STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert_default())
}

/// A test's hold on the machine; one at a time.
pub struct Session(#[expect(dead_code, reason = "held until the test ends")] MutexGuard<'static, ()>);

/// Sets the machine up and waits for other tests to leave it.
pub fn begin(machine: Machine) -> Session {
    let guard = TESTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    with(|state| *state = State { machine, ..State::default() });
    Session(guard)
}

impl Session {
    /// Objects that somebody still holds.
    pub fn live(&self) -> isize {
        with(|state| state.live)
    }

    /// Lengths of the buffers that there are.
    pub fn buffers(&self) -> Vec<usize> {
        with(|state| state.buffers.values().copied().collect())
    }

    /// What ran since the last call.
    pub fn submissions(&self) -> Vec<Submission> {
        with(|state| std::mem::take(&mut state.submissions))
    }

    /// How often something was done.
    pub fn counts(&self) -> Counts {
        with(|state| state.counts)
    }

    /// Changes the machine.
    pub fn change(&self, change: impl FnOnce(&mut Machine)) {
        with(|state| change(&mut state.machine));
    }
}

pub fn live(by: isize) {
    with(|state| state.live += by);
}

pub fn machine() -> Machine {
    with(|state| state.machine.clone())
}

pub fn lacks(selector: &str) -> bool {
    with(|state| state.machine.lacks.contains(&selector))
}

pub fn count(change: impl FnOnce(&mut Counts)) {
    with(|state| change(&mut state.counts));
}

pub fn record(submission: Submission) {
    with(|state| state.submissions.push(submission));
}

pub fn add_buffer(start: usize, bytes: usize) {
    with(|state| state.buffers.insert(start, bytes));
}

pub fn remove_buffer(start: usize) {
    with(|state| state.buffers.remove(&start));
}

pub fn has_buffer(start: usize, bytes: usize) -> bool {
    with(|state| state.buffers.get(&start) == Some(&bytes))
}

/// Whether this run of a kernel fails.
pub fn fails(kernel: &str) -> bool {
    with(|state| match &mut state.machine.failure {
        Some(failure) if failure.kernel == kernel && failure.times > 0 => {
            failure.times -= 1;
            true
        }
        _ => false,
    })
}
