//! The jobs at work: who computes next, and what it tells.
//!
//! [`Core`] owns the engine, the sessions and the jobs that were started, and does one piece of work per
//! [`Core::turn`]: a prefill chunk, or a decode step. It knows no threads and no locks, and takes its time from a clock
//! that it is given; a panic in a job's code ends that job.

use super::job::{JobError, JobEvent, JobId, Sink, Status};
use super::queue::Waiting;
use crate::engine::Engine;
use crate::generate::{Generation, Halt, Pause, Summary};
use crate::sampler::Token;
use crate::session::Session;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Time since some moment.
pub(super) type Clock = Box<dyn Fn() -> Duration + Send>;

/// A job at work.
struct Running {
    id: JobId,
    sink: Sink,
    generation: Generation,
    session: Session,
    started: Duration,
    /// When its prompt was done.
    prefilled: Option<Duration>,
}

pub(super) struct Core {
    engine: Engine,
    clock: Clock,
    running: Vec<Running>,
    idle: Vec<Session>,
    ended: u64,
    failed: u64,
}

impl Core {
    pub fn new(engine: Engine, clock: Clock) -> Self {
        Self { engine, clock, running: Vec::new(), idle: Vec::new(), ended: 0, failed: 0 }
    }

    pub fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Whether nothing is at work.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// How many more jobs can be started.
    pub fn room(&self) -> usize {
        1 - self.running.len()
    }

    /// Jobs that have ended so far.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Its part of the status.
    pub fn status(&self) -> Status {
        let context_tokens = self.engine.model().context_tokens;
        Status {
            running: self.running.len(),
            sessions: 1,
            kv_tokens: self.running.iter().map(|job| job.session.tokens().len()).sum(),
            kv_limit_tokens: context_tokens,
            ended: self.ended,
            failed: self.failed,
            ..Status::default()
        }
    }

    /// Starts a job.
    pub fn start(&mut self, waiting: Waiting) {
        let Waiting { id, job, mut sink, since } = waiting;
        let started = self.now();
        let queue_seconds = (started - since).as_secs_f64();
        let halted = caught(|| Ok(sink(JobEvent::Started { queue_seconds })));
        let prepared = halted.and_then(|halted| {
            caught(|| {
                let mut generation = Generation::new(&self.engine, job.request, job.constraint)?;
                let mut session = match self.idle.pop() {
                    Some(session) => session,
                    None => self.engine.new_session().map_err(|error| JobError::Generate(error.into()))?,
                };
                generation.begin(&mut self.engine, &mut session)?;
                if let ControlFlow::Break(halt) = halted {
                    generation.halt(halt);
                }
                Ok((generation, session))
            })
        });
        match prepared {
            Ok((generation, session)) => {
                let mut job = Running { id, sink, generation, session, started, prefilled: None };
                let told = caught(|| {
                    job.tell_prefill();
                    Ok(())
                });
                match told {
                    Ok(()) => self.running.push(job),
                    Err(error) => self.end(job, Some(error)),
                }
            }
            Err(error) => self.refuse(sink, error),
        }
    }

    /// Ends a job that has no session.
    pub fn refuse(&mut self, mut sink: Sink, error: JobError) {
        self.ended += 1;
        self.failed += 1;
        let _ = caught(|| Ok(sink(JobEvent::End(Err(error)))));
    }

    /// Ends a job that nobody wants any more before it started.
    pub fn dismiss(&mut self, mut waiting: Waiting) {
        self.ended += 1;
        let summary = Summary::cancelled(waiting.job.request.prompt.len());
        let _ = caught(|| Ok((waiting.sink)(JobEvent::End(Ok(summary)))));
    }

    /// Ends a job as cancelled, if it is at work.
    pub fn cancel(&mut self, id: JobId) {
        if let Some(index) = self.running.iter().position(|job| job.id == id) {
            let mut job = self.running.remove(index);
            job.generation.halt(Halt::Cancelled);
            self.end(job, None);
        }
    }

    /// Ends all jobs at work with an error.
    pub fn abandon(&mut self) {
        while let Some(job) = self.running.pop() {
            self.end(job, Some(JobError::ShutDown));
        }
    }

    /// Does one piece of work, or several where the device chooses the tokens of a lone job, until `interrupted`.
    pub fn turn(&mut self, interrupted: &dyn Fn() -> bool) {
        let Some(mut job) = self.running.pop() else { return };
        let (engine, now) = (&mut self.engine, &self.clock);
        let result = caught(|| job.work(engine, now, interrupted));
        match result {
            Ok(()) if job.generation.finish_reason().is_none() => self.running.push(job),
            result => self.end(job, result.err()),
        }
    }

    /// Gives the session back and tells the end.
    fn end(&mut self, mut job: Running, error: Option<JobError>) {
        let now = self.now();
        self.ended += 1;
        let result = match error {
            None => {
                self.idle.push(job.session);
                let prefilled = job.prefilled.unwrap_or(now);
                let seconds = [prefilled - job.started, now - prefilled].map(|d| d.as_secs_f64());
                Ok(job.generation.summary(seconds[0], seconds[1]))
            }
            // Its state may be anything: it goes.
            Some(error) => {
                self.failed += 1;
                Err(error)
            }
        };
        let _ = caught(|| Ok((job.sink)(JobEvent::End(result))));
    }
}

impl Running {
    fn work(&mut self, engine: &mut Engine, now: &Clock, interrupted: &dyn Fn() -> bool) -> Result<(), JobError> {
        if self.generation.finish_reason().is_some() {
            return Ok(());
        }
        if self.generation.prefilling(&self.session) {
            self.generation.prefill(engine, &mut self.session)?;
            self.tell_prefill();
            return Ok(());
        }
        self.prefilled.get_or_insert_with(now);
        if self.generation.can_run_ahead(engine) {
            let sink = &mut self.sink;
            let mut on_token = |token: Token| match sink(JobEvent::Token { token, top: Vec::new() }) {
                ControlFlow::Break(halt) => ControlFlow::Break(Pause::Halted(halt)),
                ControlFlow::Continue(()) if interrupted() => ControlFlow::Break(Pause::Interrupted),
                ControlFlow::Continue(()) => ControlFlow::Continue(()),
            };
            self.generation.run_ahead(engine, &mut self.session, &mut on_token)?;
        } else if let Some((token, top)) = self.generation.next(engine, &mut self.session)? {
            self.tell(JobEvent::Token { token, top });
        }
        Ok(())
    }

    fn tell(&mut self, event: JobEvent) {
        if let ControlFlow::Break(halt) = (self.sink)(event) {
            self.generation.halt(halt);
        }
    }

    fn tell_prefill(&mut self) {
        let total_tokens = self.generation.request().prompt.len();
        let done_tokens = self.session.tokens().len().min(total_tokens);
        let cached_tokens = self.generation.reuse().tokens();
        self.tell(JobEvent::Prefill { done_tokens, total_tokens, cached_tokens });
    }
}

/// Runs code of a job; its panic is the job's error.
fn caught<T>(code: impl FnOnce() -> Result<T, JobError>) -> Result<T, JobError> {
    catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let message = words.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(JobError::Panicked { message: message.unwrap_or_else(|| "a panic without words".to_owned()) })
    })
}
