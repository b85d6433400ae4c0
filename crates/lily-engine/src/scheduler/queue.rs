//! The queue: jobs that wait for a session, first come first served, at most so many.

use super::job::{Job, JobId, Refused, Sink};
use crate::engine::Engine;
use std::collections::VecDeque;
use std::time::Duration;

/// A job that waits.
pub(super) struct Waiting {
    pub id: JobId,
    pub job: Job,
    pub sink: Sink,
    /// When it came.
    pub since: Duration,
}

/// What jobs are checked against before they wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub context_tokens: usize,
    pub vocab: usize,
    pub waiting: usize,
}

impl Limits {
    pub fn of(engine: &Engine, waiting: usize) -> Self {
        let model = engine.model();
        Self { context_tokens: model.context_tokens, vocab: model.shape.vocab, waiting }
    }

    /// Whether a job can be computed at all.
    pub fn check(&self, job: &Job) -> Result<(), Refused> {
        let (request, Self { context_tokens, vocab, .. }) = (&job.request, *self);
        let tokens = request.prompt.len();
        if tokens == 0 {
            return Err(Refused::Empty);
        }
        if tokens >= context_tokens {
            return Err(Refused::TooLong { tokens, context_tokens });
        }
        if let Some(&id) = request.prompt.iter().find(|&&id| id as usize >= vocab) {
            return Err(Refused::Token { id, vocab });
        }
        Ok(request.sampling.validate(request.vocab.min(vocab))?)
    }
}

/// The jobs that wait.
pub(super) struct Queue {
    pub limits: Limits,
    /// Whether no more jobs are taken.
    pub closed: bool,
    waiting: VecDeque<Waiting>,
    next_id: u64,
}

impl Queue {
    pub fn new(limits: Limits) -> Self {
        Self { limits, closed: false, waiting: VecDeque::new(), next_id: 1 }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Lets a job wait.
    pub fn push(&mut self, job: Job, sink: Sink, now: Duration) -> Result<JobId, Refused> {
        if self.closed {
            return Err(Refused::Draining);
        }
        if self.waiting.len() >= self.limits.waiting {
            return Err(Refused::QueueFull { waiting: self.waiting.len(), limit: self.limits.waiting });
        }
        let id = JobId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Waiting { id, job, sink, since: now });
        Ok(id)
    }

    /// The job that has waited longest.
    pub fn pop(&mut self) -> Option<Waiting> {
        self.waiting.pop_front()
    }

    /// Takes a job out, if it is here.
    pub fn remove(&mut self, id: JobId) -> Option<Waiting> {
        let index = self.waiting.iter().position(|waiting| waiting.id == id)?;
        self.waiting.remove(index)
    }
}
