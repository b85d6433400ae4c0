//! The jobs at work: their sessions, their turns, and what they tell.
//!
//! [`Core`] owns the engine, the sessions and the jobs that were started. What they compute is in [`super::work`]. It knows
//! no threads and no locks, and takes its time from a clock that it is given; what goes wrong with a job ends that job.

use super::job::{Job, JobError, JobEvent, JobId, Sink, Status};
use super::queue::Waiting;
use super::turns::Turns;
use crate::engine::{Engine, EngineError};
use crate::generate::{Generation, Halt, Summary, leave};
use crate::session::Session;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Time since some moment.
pub(super) type Clock = Box<dyn Fn() -> Duration + Send>;

/// A job at work.
pub(super) struct Running {
    pub id: JobId,
    pub sink: Sink,
    pub generation: Generation,
    pub session: Session,
    cache_key: Option<String>,
    started: Duration,
    /// When its prompt was done.
    pub prefilled: Option<Duration>,
}

/// A session that waits for its next job.
struct Idle {
    session: Session,
    cache_key: Option<String>,
}

pub(super) struct Core {
    pub engine: Engine,
    pub clock: Clock,
    /// In the order of their ids.
    pub running: Vec<Running>,
    /// The one that was used last comes last.
    idle: Vec<Idle>,
    pub turns: Turns,
    ended: u64,
    failed: u64,
}

impl Core {
    pub fn new(engine: Engine, clock: Clock) -> Self {
        let (running, idle, turns) = (Vec::new(), Vec::new(), Turns::default());
        Self { engine, clock, running, idle, turns, ended: 0, failed: 0 }
    }

    pub fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Whether nothing is at work.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// How many more jobs can be started: each has a session, and the memory plan says how many there are.
    pub fn room(&self) -> usize {
        self.engine.memory_plan().sessions - self.running.len()
    }

    /// Jobs that have ended so far.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Its part of the status.
    pub fn status(&self) -> Status {
        let plan = self.engine.memory_plan();
        Status {
            running: self.running.len(),
            sessions: plan.sessions,
            kv_tokens: self.running.iter().map(|job| job.session.tokens().len()).sum(),
            kv_limit_tokens: plan.sessions * plan.context_tokens,
            ended: self.ended,
            failed: self.failed,
            cache: self.engine.cache_status(),
            ..Status::default()
        }
    }

    /// Checks that it is what it says; returns how many sessions it has.
    #[cfg(test)]
    pub fn audit(&self) -> usize {
        self.engine.audit_cache();
        assert!(self.running.is_sorted_by_key(|job| job.id));
        let sessions = self.running.len() + self.idle.len();
        assert!(sessions <= self.engine.memory_plan().sessions, "{sessions} sessions");
        sessions
    }

    /// Waits until the cache directory has everything that it was to get.
    pub fn settle(&mut self) {
        self.engine.settle_cache();
    }

    /// Starts a job: gives it a session with what is known of its prompt.
    pub fn start(&mut self, waiting: Waiting) {
        let Waiting { id, job, mut sink, since } = waiting;
        let started = self.now();
        let queue_seconds = started.saturating_sub(since).as_secs_f64();
        let cache_key = job.cache_key.clone();
        let prepared = caught(|| {
            let told = sink(JobEvent::Started { queue_seconds });
            let mut session = self.session_for(&job).map_err(|error| JobError::Generate(error.into()))?;
            let mut generation = Generation::new(&self.engine, job.request, job.constraint)?;
            generation.begin(&mut self.engine, &mut session)?;
            if let ControlFlow::Break(halt) = told {
                generation.halt(halt);
            }
            Ok((generation, session))
        });
        match prepared {
            Ok((generation, session)) => {
                let mut job = Running { id, sink, generation, session, cache_key, started, prefilled: None };
                let told = caught(|| {
                    // Who has left already hears of the end only.
                    if job.generation.finish_reason().is_none() {
                        job.tell_prefill();
                    }
                    Ok(())
                });
                match told {
                    Ok(()) if job.generation.finish_reason().is_none() => self.running.push(job),
                    told => self.end(job, told.err()),
                }
            }
            Err(error) => self.refuse(sink, error),
        }
    }

    /// A session for a job: one that the prompt continues, one of the same conversation, a new one if the memory plan and the device have
    /// any left, or the one that was used longest ago, of those that belong to no named conversation if there is one.
    fn session_for(&mut self, job: &Job) -> Result<Session, EngineError> {
        let continued = |idle: &Idle| {
            let tokens = idle.session.tokens();
            if job.request.prompt.starts_with(tokens) { tokens.len() } else { 0 }
        };
        let longest = (0..self.idle.len()).max_by_key(|&i| continued(&self.idle[i]));
        let place = longest.filter(|&i| continued(&self.idle[i]) > 0).or_else(|| {
            let same = |idle: &Idle| job.cache_key.is_some() && idle.cache_key == job.cache_key;
            self.idle.iter().position(same)
        });
        if let Some(place) = place {
            return Ok(self.idle.remove(place).session);
        }
        if self.running.len() + self.idle.len() < self.engine.memory_plan().sessions {
            match self.engine.new_session() {
                // Others have taken what the memory plan counted on.
                Err(error) if error.is_out_of_memory() && !self.idle.is_empty() => {}
                made => return made,
            }
        }
        let unnamed = self.idle.iter().position(|idle| idle.cache_key.is_none());
        // As many sessions are idle as there is room for jobs, and this job has room; or it is one that there was memory for.
        Ok(self.idle.remove(unnamed.unwrap_or(0)).session)
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

    /// Takes the session back, keeps what its state is good for, and tells the end.
    pub fn end(&mut self, job: Running, error: Option<JobError>) {
        let now = self.now();
        let Running { mut sink, generation, mut session, cache_key, started, prefilled, .. } = job;
        self.ended += 1;
        self.failed += u64::from(error.is_some());
        let engine = &mut self.engine;
        let kept: Result<(), JobError> = caught(|| {
            match &error {
                Some(JobError::Panicked) => engine.discard(&mut session),
                Some(JobError::Generate(error)) => leave(engine, &mut session, Some(error)),
                Some(JobError::ShutDown) | None => leave(engine, &mut session, None),
            }
            Ok(())
        });
        // A session that cannot even be emptied is not used again; there is room for another in its place.
        debug_assert!(kept.is_ok(), "the cache failed: {kept:?}");
        if kept.is_ok() {
            self.idle.push(Idle { session, cache_key });
        }
        let prefilled = prefilled.unwrap_or(now);
        let seconds = [prefilled.saturating_sub(started), now.saturating_sub(prefilled)].map(|d| d.as_secs_f64());
        let result = error.map_or_else(|| Ok(generation.summary(seconds[0], seconds[1])), Err);
        let _ = caught(|| Ok(sink(JobEvent::End(result))));
    }
}

/// Runs code of a job; its panic is the job's error.
pub(super) fn caught<T>(code: impl FnOnce() -> Result<T, JobError>) -> Result<T, JobError> {
    catch_unwind(AssertUnwindSafe(code)).unwrap_or(Err(JobError::Panicked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::engine::EngineOptions;
    use std::path::Path;

    /// The keys of the sessions that are left when a job with the key `asked` has taken one. There are as many sessions
    /// idle as keys, the first one used longest ago, and room for `more`.
    fn left(keys: &[Option<&str>], more: usize, asked: Option<&str>) -> Vec<Option<String>> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints/mlx/experts-q8g32");
        let sessions = keys.len() + more;
        let options = EngineOptions { context_tokens: 64, sessions, ..EngineOptions::for_this_machine() };
        let engine = Engine::new(Checkpoint::open(&path).unwrap(), &options).unwrap();
        let mut core = Core::new(engine, Box::new(|| Duration::ZERO));
        for key in keys {
            let session = core.engine.new_session().unwrap();
            core.idle.push(Idle { session, cache_key: key.map(str::to_owned) });
        }
        core.session_for(&Job { cache_key: asked.map(str::to_owned), ..Job::default() }).unwrap();
        core.idle.into_iter().map(|idle| idle.cache_key).collect()
    }

    #[test]
    fn a_key_chooses_the_session_of_its_conversation_and_spares_those_of_others() {
        let (a, b, c) = (Some("a"), Some("b"), Some("c"));
        let some = |key: &str| Some(key.to_owned());
        // Its own, wherever it stands, and also where there is room for a new one.
        assert_eq!(left(&[a, b], 0, b), [some("a")]);
        assert_eq!(left(&[a, b], 0, a), [some("b")]);
        assert_eq!(left(&[None, b], 0, b), [None]);
        assert_eq!(left(&[b, None], 1, b), [None]);
        // Otherwise one of nobody's, though another was used longer ago.
        assert_eq!(left(&[a, None], 0, c), [some("a")]);
        assert_eq!(left(&[a, None], 0, None), [some("a")], "no key is not the key of those without");
        // Of named ones, the one that was used longest ago.
        assert_eq!(left(&[a, b], 0, c), [some("b")]);
        assert_eq!(left(&[a, b], 0, None), [some("b")]);
        // Nobody's is taken while there is room.
        assert_eq!(left(&[a, None], 1, c), [some("a"), None]);
        assert_eq!(left(&[None, None], 1, None), [None, None], "no key is no conversation");
    }
}
