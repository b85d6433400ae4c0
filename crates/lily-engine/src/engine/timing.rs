//! How long the kernels of a step take: back to back, within the step, and one by one.
//!
//! Three times of the same kernel, since each hides something. *Back to back*: a plan of its launches alone, one waiting for
//! the other, so that nothing but the kernel is measured; launches of different layers read different weights, which
//! caches do not hold unless all of them fit. *Within the step*: how much shorter the step is without it. *One by one*:
//! each launch between two points in time, in the plan's order, gaps included ([`crate::backend::Backend::time`]).
//!
//! What is left out or repeated leaves other values behind, but none that a kernel could not take: every index that kernels
//! read is one that the step before it wrote.

use super::{Engine, EngineError};
use crate::backend::{BackendError, State};
use crate::kernel::Step;
use crate::plan::Plan;
use crate::sampler::{History, Sampler};
use crate::session::Session;
use std::time::Instant;

/// Launches that a kernel has at least while it is measured back to back, so that starting them does not count.
const LAUNCHES_MIN: usize = 32;

/// Times of one kernel, in seconds for all its launches of a step.
#[derive(Clone, Debug)]
pub struct KernelTime {
    /// Entry name.
    pub kernel: &'static str,
    /// Back to back.
    pub alone: f64,
    /// How much shorter the step is without it; on a CPU, which overlaps nothing, the sum of its launches one by one.
    pub within: f64,
}

/// Times of a step.
#[derive(Clone, Debug)]
pub struct StepTimes {
    /// What was measured.
    pub plan: Plan,
    /// At which step, of the first session.
    pub step: Step,
    /// Every run of the whole, in seconds.
    pub whole: Vec<f64>,
    /// Its kernels, in order of first use.
    pub kernels: Vec<KernelTime>,
    /// Every launch one by one, in seconds and in the plan's order; none where the device cannot say.
    pub launches: Option<Vec<f64>>,
}

/// What a step is run on.
struct Setup {
    sessions: Vec<Session>,
    steps: Vec<Step>,
    tokens: Vec<u32>,
    repeats: usize,
}

impl Engine {
    /// Times a decode step after what `sessions` hold, which must have logits; each takes another token. The sessions are
    /// given up: their state is none of any tokens afterwards.
    ///
    /// # Errors
    /// If a context is full, or the device fails.
    ///
    /// # Panics
    /// If there are no sessions, or more than the model's batch: a broken invariant of the caller.
    pub fn time_decode(
        &mut self,
        sessions: Vec<Session>,
        sampler: &Sampler,
        repeats: usize,
    ) -> Result<StepTimes, EngineError> {
        let chooses = self.model.traits.chooses_tokens;
        for (place, session) in sessions.iter().enumerate() {
            self.check_fit(session.tokens().len() + 1)?;
            if chooses {
                self.write_sampler(place, session, (sampler, History { prompt: &[], generated: &[] }));
            }
        }
        let classes: Vec<_> = sessions.iter().map(|session| self.model.decode_class(session.tokens().len())).collect();
        let plan = self.model.decode_batch(&classes, chooses);
        let tokens = (0..sessions.len() as u32).collect();
        self.time_plan(plan, sessions, tokens, repeats)
    }

    /// Times a chunk of a prompt, `tokens`, after what `session` holds; the session is given up.
    ///
    /// # Errors
    /// If the tokens do not fit the context, or the device fails.
    ///
    /// # Panics
    /// If they are none, or more than the engine's chunk: a broken invariant of the caller.
    pub fn time_chunk(&mut self, session: Session, tokens: Vec<u32>, repeats: usize) -> Result<StepTimes, EngineError> {
        assert!((1..=self.model.chunk_tokens).contains(&tokens.len()), "{} tokens are no chunk", tokens.len());
        self.check_fit(session.tokens().len() + tokens.len())?;
        self.check_ids(&tokens)?;
        let plan = self.model.prefill(tokens.len(), true);
        self.time_plan(plan, vec![session], tokens, repeats)
    }

    fn time_plan(
        &mut self,
        plan: Plan,
        sessions: Vec<Session>,
        tokens: Vec<u32>,
        repeats: usize,
    ) -> Result<StepTimes, EngineError> {
        let step = |s: &Session| Step { position: s.tokens().len() as u32, window: s.window };
        let steps: Vec<Step> = sessions.iter().map(step).collect();
        let step = steps[0];
        let mut setup = Setup { sessions, steps, tokens, repeats };
        let whole = self.runs(&mut setup, &[&plan])?.swap_remove(0);
        let launches = self.one_by_one(&mut setup, &plan)?;
        let mut names: Vec<&'static str> = Vec::new();
        for dispatch in &plan.dispatches {
            if !names.contains(&dispatch.contract.name) {
                names.push(dispatch.contract.name);
            }
        }
        let mut kernels = Vec::new();
        for kernel in names {
            let (only, rest) = split(&plan, kernel);
            let copies = LAUNCHES_MIN.div_ceil(only.dispatches.len());
            let repeated = Plan { dispatches: vec![only.dispatches; copies].concat(), serial: true };
            let alone = median(self.runs(&mut setup, &[&repeated])?.swap_remove(0)) / copies as f64;
            let within = match &launches {
                // Nothing overlaps on a CPU, and its launches are measured better than differences.
                Some(seconds) if !self.traits.split_attention => {
                    let named = plan.dispatches.iter().zip(seconds).filter(|(d, _)| d.contract.name == kernel);
                    named.map(|(_, seconds)| seconds).sum()
                }
                _ => {
                    let mut both = self.runs(&mut setup, &[&plan, &rest])?.into_iter().map(median);
                    let mut next = || both.next().expect("times of two plans");
                    next() - next()
                }
            };
            kernels.push(KernelTime { kernel, alone, within });
        }
        Ok(StepTimes { plan, step, whole, kernels, launches })
    }

    /// Seconds of every run of these plans, which take turns, after a run of each that does not count.
    fn runs(&mut self, setup: &mut Setup, plans: &[&Plan]) -> Result<Vec<Vec<f64>>, EngineError> {
        let programs = plans.iter().map(|plan| self.backend.prepare((*plan).clone()));
        let programs = programs.collect::<Result<Vec<_>, BackendError>>()?;
        let mut seconds = vec![Vec::new(); plans.len()];
        for run in 0..=setup.repeats {
            for (program, seconds) in programs.iter().zip(&mut seconds) {
                self.write_step(setup);
                let start = Instant::now();
                self.backend.submit(program, &mut setup.states())?;
                self.backend.wait()?;
                if run > 0 {
                    seconds.push(start.elapsed().as_secs_f64());
                }
            }
        }
        Ok(seconds)
    }

    /// Seconds of every launch of a plan, the median of the runs.
    fn one_by_one(&mut self, setup: &mut Setup, plan: &Plan) -> Result<Option<Vec<f64>>, EngineError> {
        let mut runs: Vec<Vec<f64>> = vec![Vec::new(); plan.dispatches.len()];
        for _ in 0..setup.repeats {
            self.write_step(setup);
            let Some(seconds) = self.backend.time(plan, &mut setup.states())? else {
                return Ok(None);
            };
            runs.iter_mut().zip(seconds).for_each(|(runs, seconds)| runs.push(seconds));
        }
        Ok(Some(runs.into_iter().map(median).collect()))
    }

    /// The kernels that end a step move it on, so that every run is told again where it is.
    fn write_step(&mut self, setup: &Setup) {
        let scratch = &self.model.scratch;
        let steps = bytemuck::cast_slice(&setup.steps);
        self.backend.write(scratch.steps.first(steps.len()), steps);
        self.backend.write(scratch.tokens.first(4 * setup.tokens.len()), bytemuck::cast_slice(&setup.tokens));
    }
}

impl Setup {
    fn states(&mut self) -> Vec<&mut dyn State> {
        self.sessions.iter_mut().map(|session| &mut *session.state as &mut dyn State).collect()
    }
}

/// The launches of one kernel, and a plan without them.
fn split(plan: &Plan, kernel: &str) -> (Plan, Plan) {
    let (only, rest) = plan.dispatches.iter().cloned().partition(|d| d.contract.name == kernel);
    (Plan { dispatches: only, serial: plan.serial }, Plan { dispatches: rest, serial: plan.serial })
}

/// The middle one, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    (values[(n - 1) / 2] + values[n / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
    }
}
