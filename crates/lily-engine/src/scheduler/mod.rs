//! Serves many requests with one engine.
//!
//! A [`Scheduler`] is a handle to one worker thread, which owns the engine. Jobs wait in a bounded queue and are computed
//! by turns ([`turns`]), each on a session of its own; every event goes to the job's sink. Requests in the wire's form,
//! text, and everything asynchronous are the work of the layers above.

mod core;
mod job;
mod queue;
#[cfg(test)]
mod simulation;
mod turns;
mod work;
mod worker;

pub use job::{Job, JobError, JobEvent, JobId, Refused, Sink, Status};

use crate::engine::Engine;
use std::sync::Arc;
use std::time::Duration;
use worker::Shared;

/// How a scheduler is set up. Sessions and the cache are the engine's options, as its memory plan has to hold them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Most jobs that wait.
    pub queue_jobs: usize,
}

impl Default for SchedulerOptions {
    /// 64 jobs may wait.
    fn default() -> Self {
        Self { queue_jobs: 64 }
    }
}

/// A handle to the worker; the worker ends, and fails what it has not finished, when the last handle is gone.
#[derive(Clone)]
pub struct Scheduler {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.drain(Duration::ZERO);
    }
}

impl Scheduler {
    /// Starts the worker thread.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(engine: Engine, options: &SchedulerOptions) -> std::io::Result<Self> {
        let shared = Shared::start(engine, options)?;
        Ok(Self { handle: Arc::new(Handle { shared }) })
    }

    /// Puts a job into the queue; from now on its events go to `sink`, the last of them exactly once.
    ///
    /// # Errors
    /// A job that cannot be computed, a full queue, or a scheduler that ends; `sink` is then dropped unused.
    pub fn submit(&self, job: Job, sink: Sink) -> Result<JobId, Refused> {
        self.handle.shared.submit(job, sink)
    }

    /// Ends a job as if its sink had: before its next decode step or chunk. One that has ended already is left alone.
    pub fn cancel(&self, id: JobId) {
        self.handle.shared.cancel(id);
    }

    /// How it is doing; as old as the last job's start or end, or the last chunk.
    pub fn status(&self) -> Status {
        self.handle.shared.status()
    }

    /// Takes no more jobs, and returns when all have ended or `patience` is over; what is left then fails with
    /// [`JobError::ShutDown`]. True if nothing was left. Blocks.
    pub fn drain(&self, patience: Duration) -> bool {
        self.handle.shared.drain(patience);
        self.handle.shared.join()
    }
}
