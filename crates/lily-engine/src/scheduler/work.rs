//! What jobs compute when it is their turn: a prefill chunk of one, a decode step of all streams at once, or many steps of
//! streams whose tokens the device chooses, where nobody else waits.

use super::core::{Core, Running, caught};
use super::job::{JobError, JobEvent};
use super::turns::{Phase, Turn, Turns};
use crate::backend::BackendError;
use crate::engine::{Engine, EngineError};
use crate::generate::{Generation, Pause, run_ahead};
use crate::sampler::Token;
use crate::session::Session;
use std::ops::ControlFlow;

impl Core {
    /// Does one piece of work, or many steps where the device chooses the tokens of all jobs, until `interrupted`.
    pub fn turn(&mut self, interrupted: &dyn Fn() -> bool) {
        let phases: Vec<_> = self.running.iter().map(|job| (job.id, job.phase())).collect();
        let streams = phases.iter().filter(|(_, phase)| *phase == Phase::Stream).count();
        match self.turns.next(&phases) {
            None => {}
            Some(Turn::Chunk { job, most_tokens }) => self.read(job, most_tokens, streams),
            Some(Turn::Token { job }) => {
                let steps = phases[job].1 == Phase::Stream;
                let most = self.engine.model().batch;
                let jobs = if steps { Turns::together(&phases, job, most) } else { vec![job] };
                let all = jobs.len() == phases.len();
                let ahead = all && self.running.iter().all(|job| job.generation.can_run_ahead(&self.engine));
                let start = self.now();
                let last = self.running[jobs[jobs.len() - 1]].id;
                let count = jobs.len();
                if ahead {
                    self.run_ahead(interrupted)
                } else {
                    self.write(jobs)
                }
                if steps {
                    self.turns.spent_on_step(last, count, self.now().saturating_sub(start));
                }
            }
        }
    }

    /// Computes a chunk of a job's prompt.
    fn read(&mut self, index: usize, most_tokens: usize, streams: usize) {
        let start = self.now();
        let (engine, job) = (&mut self.engine, &mut self.running[index]);
        let before = job.session.tokens().len();
        let result = caught(|| job.read(engine, most_tokens));
        let tokens = job.session.tokens().len().saturating_sub(before);
        self.turns.spent_on_chunk(tokens, self.now().saturating_sub(start), streams);
        self.end_those_that_ended(vec![(index, result)]);
    }

    /// Lets the device choose the tokens of all jobs.
    fn run_ahead(&mut self, interrupted: &dyn Fn() -> bool) {
        for job in &mut self.running {
            job.prefilled.get_or_insert_with(&self.clock);
        }
        let results = ahead(&mut self.engine, &mut self.running, interrupted);
        self.end_those_that_ended(results.into_iter().enumerate().collect());
    }

    /// Chooses the next token of each of these jobs.
    fn write(&mut self, indices: Vec<usize>) {
        let mut jobs: Vec<(usize, &mut Running)> =
            self.running.iter_mut().enumerate().filter(|(index, _)| indices.contains(index)).collect();
        let stepped = step(&mut self.engine, &mut jobs);
        let results = jobs.into_iter().zip(stepped).map(|((index, job), stepped)| {
            job.prefilled.get_or_insert_with(&self.clock);
            (index, stepped.and_then(|()| caught(|| job.choose())))
        });
        let results = results.collect();
        self.end_those_that_ended(results);
    }

    /// Ends the jobs that failed or came to their end; `results` come in the order of their indices.
    fn end_those_that_ended(&mut self, results: Vec<(usize, Result<(), JobError>)>) {
        for (index, result) in results.into_iter().rev() {
            if result.is_err() || self.running[index].generation.finish_reason().is_some() {
                let job = self.running.remove(index);
                self.end(job, result.err());
            }
        }
    }
}

/// Takes the last token of each job into its session, in one step for all; their masks are made meanwhile. A device that
/// fails fails for all of them, a constraint for its own job.
fn step(engine: &mut Engine, jobs: &mut [(usize, &mut Running)]) -> Vec<Result<(), JobError>> {
    let due: Vec<Option<u32>> = jobs.iter_mut().map(|(_, job)| job.generation.due(&job.session)).collect();
    let mut results: Vec<Result<(), JobError>> = jobs.iter().map(|_| Ok(())).collect();
    let tokens: Vec<u32> = due.iter().copied().flatten().collect();
    if tokens.is_empty() {
        return results;
    }
    let stepping = jobs.iter_mut().zip(&due).filter(|(_, due)| due.is_some());
    let (mut sessions, mut generations): (Vec<&mut Session>, Vec<&mut Generation>) =
        stepping.map(|((_, job), _)| (&mut job.session, &mut job.generation)).unzip();
    let masks = || generations.iter_mut().map(|generation| caught(|| Ok(generation.prepare_mask()?))).collect();
    let stepped = caught(|| {
        let masks: Vec<_> = engine.decode_batch(&mut sessions, &tokens, masks).map_err(of_engine)?;
        Ok(masks)
    });
    let mut each = for_each(stepped, tokens.len()).into_iter();
    for (result, _) in results.iter_mut().zip(&due).filter(|(_, due)| due.is_some()) {
        *result = each.next().expect("a result for each that had a step");
    }
    results
}

/// Lets the device choose these jobs' tokens until one of them ends, breaks off, or somebody interrupts.
fn ahead(engine: &mut Engine, jobs: &mut [Running], interrupted: &dyn Fn() -> bool) -> Vec<Result<(), JobError>> {
    let mut told: Vec<Result<(), JobError>> = jobs.iter().map(|_| Ok(())).collect();
    let (mut sinks, mut running): (Vec<_>, Vec<_>) =
        jobs.iter_mut().map(|job| (&mut job.sink, (&mut job.generation, &mut job.session))).unzip();
    let mut on_token =
        |i: usize, token: Token| match caught(|| Ok(sinks[i](JobEvent::Token { token, top: Vec::new() }))) {
            Ok(ControlFlow::Break(halt)) => ControlFlow::Break(Pause::Halted(halt)),
            Ok(ControlFlow::Continue(())) if interrupted() => ControlFlow::Break(Pause::Interrupted),
            Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
            Err(error) => {
                told[i] = Err(error);
                ControlFlow::Break(Pause::Interrupted)
            }
        };
    let ran = caught(|| {
        let results = run_ahead(engine, &mut running, &mut on_token).map_err(of_engine)?;
        Ok(results.into_iter().map(|result| result.map_err(JobError::Generate)).collect())
    });
    told.into_iter().zip(for_each(ran, jobs.len())).map(|(told, ran)| told.and(ran)).collect()
}

/// How something went that `count` jobs shared, for each of them.
fn for_each(shared: Result<Vec<Result<(), JobError>>, JobError>, count: usize) -> Vec<Result<(), JobError>> {
    shared.unwrap_or_else(|error| {
        let others: Vec<_> = (1..count).map(|_| Err(as_another_sees(&error))).collect();
        std::iter::once(Err(error)).chain(others).collect()
    })
}

fn of_engine(error: EngineError) -> JobError {
    JobError::Generate(error.into())
}

/// The error of a step that several jobs shared.
fn as_another_sees(error: &JobError) -> JobError {
    match error {
        JobError::Panicked => JobError::Panicked,
        _ => {
            let message = error.to_string();
            of_engine(BackendError::Refused { what: "a step of several sessions", message }.into())
        }
    }
}

impl Running {
    pub fn phase(&self) -> Phase {
        let left_tokens = self.generation.request().prompt.len().saturating_sub(self.session.tokens().len());
        match left_tokens {
            0 if self.generation.generated().is_empty() => Phase::First,
            0 => Phase::Stream,
            left_tokens => Phase::Prompt { left_tokens },
        }
    }

    fn read(&mut self, engine: &mut Engine, most_tokens: usize) -> Result<(), JobError> {
        self.generation.prefill(engine, &mut self.session, most_tokens)?;
        self.tell_prefill();
        Ok(())
    }

    fn choose(&mut self) -> Result<(), JobError> {
        if let Some((token, top)) = self.generation.choose(&self.session)? {
            self.tell(JobEvent::Token { token, top });
        }
        Ok(())
    }

    fn tell(&mut self, event: JobEvent) {
        if let ControlFlow::Break(halt) = (self.sink)(event) {
            self.generation.halt(halt);
        }
    }

    pub fn tell_prefill(&mut self) {
        let total_tokens = self.generation.request().prompt.len();
        let done_tokens = self.session.tokens().len().min(total_tokens);
        let cached_tokens = self.generation.reuse().tokens();
        self.tell(JobEvent::Prefill { done_tokens, total_tokens, cached_tokens });
    }
}
