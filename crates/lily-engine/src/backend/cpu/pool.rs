//! A fixed set of threads for one process, and fork-join over them.
//!
//! One [`Pool::run`] splits work into tasks that threads claim one by one, the calling thread included, and returns when
//! all are done. What a task computes must not depend on which thread runs it. Idle threads spin for a fraction of a
//! millisecond, so that the many short runs of a decode step cost about a microsecond each, and then sleep, so that an
//! idle engine uses no CPU. The pool knows nothing of the work; [`SharedMut`] lets tasks write disjoint parts of a slice.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread without work spins before it sleeps.
const SPIN: Duration = Duration::from_micros(300);

/// Waking a sleeping thread costs tens of microseconds; looking at the clock, tens of nanoseconds. Spins between looks.
const SPINS_PER_LOOK: usize = 64;

thread_local! {
    /// This thread is running a task of some pool.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

/// A fixed set of threads.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a run: one at a time.
    running: Mutex<()>,
}

/// A task function with its lifetime erased; see [`Pool::run`] for why that is sound.
type Task = *const (dyn Fn(usize, usize) + Sync);

/// The run in progress.
#[derive(Clone, Copy)]
struct Job {
    task: Task,
    tasks: usize,
}

/// A value on cache lines of its own (two, because processors fetch pairs), so that its writers disturb nobody else.
#[repr(align(128))]
struct Alone<T>(T);

struct Shared {
    /// Written by the caller while `unclaimed` is 0; read by whoever has claimed a task that is not yet `done`.
    job: UnsafeCell<Job>,
    /// Tasks of the current run that nobody has claimed.
    unclaimed: Alone<AtomicUsize>,
    /// Tasks of the current run that have ended.
    done: Alone<AtomicUsize>,
    /// Threads that sleep or are about to.
    sleeping: Alone<AtomicUsize>,
    stop: AtomicBool,
    /// What the first task to panic in the current run panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not `Sync` by itself. It is written only between runs, under `Pool::running`,
// when `unclaimed` is 0 and every claimed task has ended; it is read only by the holder of a claim, whose successful
// exchange on `unclaimed` happens after the release store that published the job, and whose task has not ended.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is to a `Sync` closure and is used as `Sync` says.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] being one of them.
    ///
    /// # Panics
    /// `threads` is 0, or the system refuses to start a thread.
    pub fn new(threads: usize) -> Self {
        assert!(threads > 0, "a pool needs at least one thread");
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(Job { task: &|_, _| (), tasks: 0 }),
            unclaimed: Alone(AtomicUsize::new(0)),
            done: Alone(AtomicUsize::new(0)),
            sleeping: Alone(AtomicUsize::new(0)),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let workers = (1..threads).map(|worker| {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("lily-cpu-{worker}"));
            thread.spawn(move || shared.work(worker)).expect("the system starts a worker thread")
        });
        let workers = workers.collect();
        Self { shared, workers, running: Mutex::new(()) }
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(task_index, worker_index)` once for every task index below `tasks`, and returns when all have ended.
    /// Indices are claimed in ascending order. Worker indices are below [`Pool::threads`], the caller's is 0, and no two
    /// tasks run at once with the same one. Runs from several threads take turns.
    ///
    /// # Panics
    /// A task panicked (the first panic goes on here once all tasks have ended; the pool stays usable), or `run` was
    /// called from inside a task.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        assert!(!IN_TASK.get(), "a task of the pool cannot start another run");
        if tasks == 0 {
            return;
        }
        let running = lock(&self.running);
        let shared = &*self.shared;
        shared.publish(task, tasks, &self.workers);
        while shared.claim_and_run(0) {}
        shared.wait_for(tasks);
        let panic = lock(&shared.panic).take();
        drop(running);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            worker.join().expect("workers catch the panics of tasks");
        }
    }
}

impl Shared {
    /// Offers a job to all threads. The caller holds `Pool::running` and the last job has ended.
    fn publish(&self, task: &(dyn Fn(usize, usize) + Sync), tasks: usize, workers: &[JoinHandle<()>]) {
        // SAFETY: only the lifetime changes. `Pool::run` keeps `task` borrowed until `done` says that every task has
        // ended, and nobody calls it later, because calls need a claim and all claims are used up by then.
        let task = unsafe { std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync + '_), Task>(task) };
        // SAFETY: see `Sync for Shared`: nobody reads between runs.
        unsafe { *self.job.get() = Job { task, tasks } };
        self.done.0.store(0, Relaxed);
        // Sequentially consistent with `sleep`: either the sleeper sees the tasks, or this sees the sleeper.
        self.unclaimed.0.store(tasks, SeqCst);
        if tasks > 1 && self.sleeping.0.load(SeqCst) > 0 {
            workers.iter().map(JoinHandle::thread).for_each(Thread::unpark);
        }
    }

    /// Claims one task and runs it; false where none is left.
    fn claim_and_run(&self, worker: usize) -> bool {
        let mut unclaimed = self.unclaimed.0.load(Relaxed);
        loop {
            if unclaimed == 0 {
                return false;
            }
            match self.unclaimed.0.compare_exchange_weak(unclaimed, unclaimed - 1, Acquire, Relaxed) {
                Ok(_) => break,
                Err(now) => unclaimed = now,
            }
        }
        // SAFETY: this thread holds a claim on a task that has not ended, so the job is published and stays.
        let job = unsafe { *self.job.get() };
        // SAFETY: as above; the caller keeps the closure alive.
        let task = unsafe { &*job.task };
        IN_TASK.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| task(job.tasks - unclaimed, worker)));
        IN_TASK.set(false);
        if let Err(panic) = result {
            lock(&self.panic).get_or_insert(panic);
        }
        self.done.0.fetch_add(1, Release);
        true
    }

    /// Waits until `tasks` tasks have ended. They are running, so this spins; yielding helps where threads outnumber
    /// processors.
    fn wait_for(&self, tasks: usize) {
        let mut spins = 0_usize;
        while self.done.0.load(Acquire) < tasks {
            spins += 1;
            if spins.is_multiple_of(1 << 14) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// A worker's life.
    fn work(&self, worker: usize) {
        while !self.stop.load(SeqCst) {
            while self.claim_and_run(worker) {}
            if !self.spin() {
                self.sleep();
            }
        }
    }

    /// Spins for a while; true as soon as there may be work.
    fn spin(&self) -> bool {
        let start = Instant::now();
        while start.elapsed() < SPIN {
            for _ in 0..SPINS_PER_LOOK {
                if self.unclaimed.0.load(Relaxed) > 0 {
                    return true;
                }
                std::hint::spin_loop();
            }
            if self.stop.load(Relaxed) {
                return true;
            }
        }
        false
    }

    /// Sleeps until there may be work. Spurious returns are harmless.
    fn sleep(&self) {
        self.sleeping.0.fetch_add(1, SeqCst);
        if self.unclaimed.0.load(SeqCst) == 0 && !self.stop.load(SeqCst) {
            std::thread::park();
        }
        self.sleeping.0.fetch_sub(1, SeqCst);
    }
}

/// Locks; a panic elsewhere leaves nothing half-done behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mutable slice whose disjoint parts are written by different tasks.
pub struct SharedMut<'a, T> {
    start: *mut T,
    length: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing it lets several threads take `&mut` to parts, which the contract of `range_mut` keeps disjoint; each
// part is then used by one thread at a time, as `T: Send` allows.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Takes the slice for the time of the borrow.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), borrow: PhantomData }
    }

    /// Elements of the whole slice.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The part `range`.
    ///
    /// # Safety
    /// No other part that overlaps `range` is alive while the result is.
    ///
    /// # Panics
    /// `range` is not inside the slice.
    #[allow(clippy::mut_from_ref, reason = "the contract above is what `&mut self` would have ensured")]
    pub unsafe fn range_mut(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} of {} elements", self.length);
        // SAFETY: inside the borrowed slice, and by the contract not aliased.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_and_workers_are_exclusive() {
        for threads in 1..=4 {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 1000] {
                let ran: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                let busy: Vec<AtomicBool> = (0..threads).map(|_| AtomicBool::new(false)).collect();
                pool.run(tasks, &|task, worker| {
                    assert!(!busy[worker].swap(true, SeqCst), "worker {worker} runs two tasks at once");
                    ran[task].fetch_add(1, SeqCst);
                    busy[worker].store(false, SeqCst);
                });
                assert!(ran.iter().all(|count| count.load(SeqCst) == 1), "{tasks} tasks on {threads} threads");
            }
        }
    }

    #[test]
    fn tasks_write_disjoint_parts() {
        let pool = Pool::new(3);
        let mut values = vec![0; 1003];
        for round in 1..=200 {
            let shared = SharedMut::new(&mut values);
            pool.run(shared.len().div_ceil(10), &|task, _| {
                let range = task * 10..(task * 10 + 10).min(shared.len());
                // SAFETY: ranges of different tasks do not overlap.
                let part = unsafe { shared.range_mut(range.clone()) };
                part.iter_mut().zip(range).for_each(|(value, index)| *value = index * round);
            });
            assert!(values.iter().enumerate().all(|(index, &value)| value == index * round));
        }
    }

    #[test]
    fn sleeping_workers_take_part_again() {
        let pool = Pool::new(2);
        for _ in 0..3 {
            std::thread::sleep(SPIN * 4);
            let met = AtomicUsize::new(0);
            // Each of the two tasks waits for the other, so one thread alone could not end them.
            pool.run(2, &|_, _| {
                met.fetch_add(1, SeqCst);
                while met.load(SeqCst) < 2 {
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            let ran = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(50, &|task, _| {
                    ran.fetch_add(1, SeqCst);
                    assert_ne!(task, 20, "task twenty fails");
                });
            }));
            let message = *result.unwrap_err().downcast::<String>().unwrap();
            assert!(message.contains("task twenty fails"), "{message}");
            assert_eq!(ran.load(SeqCst), 50, "the other tasks still run");
            let after = AtomicUsize::new(0);
            pool.run(10, &|_, _| _ = after.fetch_add(1, SeqCst));
            assert_eq!(after.load(SeqCst), 10);
        }
    }

    #[test]
    #[should_panic(expected = "cannot start another run")]
    fn nested_runs_are_refused() {
        let pool = Pool::new(2);
        pool.run(1, &|_, _| pool.run(1, &|_, _| ()));
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = Pool::new(2);
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..200).for_each(|_| pool.run(3, &|_, _| _ = total.fetch_add(1, SeqCst))));
            }
        });
        assert_eq!(total.load(SeqCst), 3 * 200 * 3);
    }
}
