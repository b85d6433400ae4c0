//! The worker thread, and what it shares with the handles: the queue and the status behind one lock.
//!
//! The lock is taken when jobs come, go or are cancelled, never per token: between two tokens the worker looks at one
//! flag.

use super::SchedulerOptions;
use super::core::{Clock, Core};
use super::job::{Job, JobError, JobId, Refused, Sink, Status};
use super::queue::{Limits, Queue, Waiting};
use crate::engine::Engine;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    /// Something came into the inbox, or the worker ended.
    changed: Condvar,
    /// Whether the worker should look into the inbox.
    news: AtomicBool,
    limits: Limits,
    origin: Instant,
}

struct Inbox {
    queue: Queue,
    cancelled: Vec<JobId>,
    /// When to give up what is not finished.
    deadline: Option<Instant>,
    status: Status,
    /// Whether the worker is gone, and whether it left nothing behind.
    over: Option<bool>,
}

impl Shared {
    pub fn start(engine: Engine, options: &SchedulerOptions) -> std::io::Result<Arc<Self>> {
        let limits = Limits::of(&engine, options.queue_jobs);
        let origin = Instant::now();
        let clock: Clock = Box::new(move || origin.elapsed());
        let core = Core::new(engine, clock);
        let inbox = Inbox {
            queue: Queue::new(limits),
            cancelled: Vec::new(),
            deadline: None,
            status: Status::default(),
            over: None,
        };
        let shared = Arc::new(Self {
            inbox: Mutex::new(inbox),
            changed: Condvar::new(),
            news: AtomicBool::new(false),
            limits,
            origin,
        });
        shared.publish(&core);
        let worker = Worker::new(Arc::clone(&shared), core);
        std::thread::Builder::new().name("lily-worker".into()).spawn(move || worker.run())?;
        Ok(shared)
    }

    pub fn submit(&self, job: Job, sink: Sink) -> Result<JobId, Refused> {
        self.limits.check(&job)?;
        let now = self.origin.elapsed();
        let mut inbox = self.lock();
        let id = inbox.queue.push(job, sink, now)?;
        self.tell_news(inbox);
        Ok(id)
    }

    pub fn cancel(&self, id: JobId) {
        let mut inbox = self.lock();
        inbox.cancelled.push(id);
        self.tell_news(inbox);
    }

    pub fn status(&self) -> Status {
        let inbox = self.lock();
        Status {
            waiting: inbox.queue.len(),
            queue_limit: self.limits.waiting,
            draining: inbox.queue.closed,
            ..inbox.status.clone()
        }
    }

    /// Takes no more jobs, and gives up after `patience` what is not finished; an earlier end stands.
    pub fn drain(&self, patience: Duration) {
        let mut inbox = self.lock();
        inbox.queue.closed = true;
        let deadline = Instant::now() + patience;
        inbox.deadline = Some(inbox.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        self.tell_news(inbox);
    }

    /// Waits until the worker is gone; whether it left nothing behind.
    pub fn join(&self) -> bool {
        let mut inbox = self.lock();
        loop {
            if let Some(finished) = inbox.over {
                return finished;
            }
            inbox = self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Nothing that runs under the lock leaves it half changed.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_news(&self, inbox: MutexGuard<'_, Inbox>) {
        self.news.store(true, Ordering::Release);
        drop(inbox);
        self.changed.notify_all();
    }

    fn publish(&self, core: &Core) {
        self.lock().status = core.status();
    }
}

/// Between two looks at the time for the status's sake, at least this much passes.
const STATUS_AGE: Duration = Duration::from_millis(100);

struct Worker {
    shared: Arc<Shared>,
    core: Core,
    /// Jobs that had ended when the inbox was last looked into: another end makes room.
    seen_ended: u64,
    deadline: Option<Instant>,
    published: Instant,
    /// Whether every job came to its own end.
    finished: bool,
}

/// What the inbox asks for.
#[derive(Default)]
struct Orders {
    start: Vec<Waiting>,
    cancel: Vec<JobId>,
    /// Cancelled before they started.
    dismiss: Vec<Waiting>,
    /// Nothing will come any more, and nothing is at work.
    end: bool,
}

impl Worker {
    fn new(shared: Arc<Shared>, core: Core) -> Self {
        Self { shared, core, seen_ended: 0, deadline: None, published: Instant::now(), finished: false }
    }

    fn run(mut self) {
        loop {
            let news = self.shared.news.swap(false, Ordering::Acquire);
            if news || self.core.is_idle() || self.core.ended() != self.seen_ended {
                let orders = self.orders();
                orders.dismiss.into_iter().for_each(|waiting| self.core.dismiss(waiting));
                orders.cancel.into_iter().for_each(|id| self.core.cancel(id));
                orders.start.into_iter().for_each(|waiting| self.core.start(waiting));
                if orders.end {
                    self.finished = true;
                    return;
                }
            }
            let (shared, deadline) = (&self.shared, self.deadline);
            let late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if late() {
                return;
            }
            self.core.turn(&|| shared.news.load(Ordering::Acquire) || late());
            if self.published.elapsed() >= STATUS_AGE {
                self.published = Instant::now();
                self.shared.publish(&self.core);
            }
        }
    }

    /// Empties the inbox; waits for something to do if nothing is at work.
    fn orders(&mut self) -> Orders {
        let mut inbox = self.shared.lock();
        loop {
            self.seen_ended = self.core.ended();
            self.deadline = inbox.deadline;
            inbox.status = self.core.status();
            let mut orders = Orders::default();
            for id in std::mem::take(&mut inbox.cancelled) {
                match inbox.queue.remove(id) {
                    Some(waiting) => orders.dismiss.push(waiting),
                    None => orders.cancel.push(id),
                }
            }
            while orders.start.len() < self.core.room()
                && let Some(waiting) = inbox.queue.pop()
            {
                orders.start.push(waiting);
            }
            let nothing = orders.start.is_empty() && orders.dismiss.is_empty() && self.core.is_idle();
            orders.end = nothing && inbox.queue.closed;
            if !nothing || orders.end {
                return orders;
            }
            inbox = self.shared.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Worker {
    /// However the worker ends, every job is told and nobody waits for it in vain.
    fn drop(&mut self) {
        self.core.abandon();
        let mut left = Vec::new();
        let mut inbox = self.shared.lock();
        inbox.queue.closed = true;
        left.extend(std::iter::from_fn(|| inbox.queue.pop()));
        drop(inbox);
        left.into_iter().for_each(|waiting| self.core.refuse(waiting.sink, JobError::ShutDown));
        self.core.settle();
        let mut inbox = self.shared.lock();
        inbox.status = self.core.status();
        inbox.over = Some(self.finished);
        self.shared.tell_news(inbox);
    }
}
