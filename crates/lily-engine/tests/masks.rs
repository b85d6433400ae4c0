//! Masks are made while the device works: behind the submission of a step and before the wait for it.

use lily_engine::backend::stand_in::{Behaviour, Behind, StandIn};
use lily_engine::backend::{Backend, BackendError, State};
use lily_engine::checkpoint::Checkpoint;
use lily_engine::constraint::{Constraint, ConstraintError, TokenMask};
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::generate::{Generation, Request};
use lily_engine::model::Traits;
use lily_engine::plan::Plan;
use lily_engine::sampler::SamplingParams;
use lily_engine::scheduler::{Job, JobEvent, Scheduler, SchedulerOptions};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Tokens of every text here.
const TOKENS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Submit,
    Mask,
    Wait,
}

/// In which order things were done.
type Log = Arc<Mutex<Vec<Did>>>;

/// The CPU, watched.
struct Watched(Log);

impl Behaviour for Watched {
    fn run(&mut self, behind: &mut Behind, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        self.0.lock().unwrap().push(Did::Submit);
        behind.cpu.run(plan, states)
    }

    fn waited(&mut self) {
        self.0.lock().unwrap().push(Did::Wait);
    }
}

/// Allows everything, and notes when it was asked.
struct Asked(Log);

impl Constraint for Asked {
    fn mask(&mut self) -> Result<Option<&TokenMask>, ConstraintError> {
        self.0.lock().unwrap().push(Did::Mask);
        Ok(None)
    }

    fn accept(&mut self, _token: u32) -> Result<(), ConstraintError> {
        Ok(())
    }
}

fn engine() -> (Log, Engine) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints/mlx/base-q4g64");
    let log = Log::default();
    let device = StandIn::new(Traits::CPU, Watched(Arc::clone(&log)));
    let options =
        EngineOptions { context_tokens: 64, chunk_tokens: Some(16), sessions: 4, ..EngineOptions::for_this_machine() };
    (log, Engine::on(Box::new(device), Checkpoint::open(&path).unwrap(), &options).unwrap())
}

fn request(engine: &Engine) -> Request {
    let vocab = engine.model().shape.vocab;
    let prompt = (0..10).map(|i| i * 7 % 100).collect();
    Request { prompt, sampling: SamplingParams::greedy(), vocab, max_tokens: Some(TOKENS), ..Request::default() }
}

/// What was done from the first mask on.
fn from_first_mask(log: &Log) -> Vec<Did> {
    let log = log.lock().unwrap();
    log[log.iter().position(|did| *did == Did::Mask).expect("a mask")..].to_vec()
}

#[test]
fn a_mask_is_made_between_the_submission_of_its_step_and_the_wait() {
    let (log, mut engine) = engine();
    let mut session = engine.new_session().unwrap();
    let request = request(&engine);
    let mut text = Generation::new(&engine, request, Some(Box::new(Asked(Arc::clone(&log))))).unwrap();
    text.begin(&mut engine, &mut session).unwrap();
    while text.prefilling(&session) {
        text.prefill(&mut engine, &mut session, 16).unwrap();
    }
    while text.next(&mut engine, &mut session).unwrap().is_some() {}
    // The first token's logits come from the prompt.
    let steps = [Did::Submit, Did::Mask, Did::Wait].repeat(TOKENS - 1);
    assert_eq!(from_first_mask(&log), [vec![Did::Mask], steps].concat());
}

#[test]
fn the_scheduler_makes_masks_in_that_order_too() {
    let (log, engine) = engine();
    let request = request(&engine);
    let scheduler = Scheduler::start(engine, &SchedulerOptions::default()).unwrap();
    let (sender, events) = channel();
    let job = Job { request, constraint: Some(Box::new(Asked(Arc::clone(&log)))), ..Job::default() };
    let sink = move |event| {
        let _ = sender.send(event);
        ControlFlow::Continue(())
    };
    scheduler.submit(job, Box::new(sink)).unwrap();
    while !matches!(events.recv_timeout(Duration::from_secs(60)).expect("an end"), JobEvent::End(_)) {}
    let steps = [Did::Submit, Did::Mask, Did::Wait].repeat(TOKENS - 1);
    let did = from_first_mask(&log);
    assert_eq!(did[..=steps.len()], [vec![Did::Mask], steps].concat());
}

#[test]
fn so_does_a_step_of_several_sessions() {
    let (log, mut engine) = engine();
    let prompt = request(&engine).prompt;
    let mut sessions: Vec<_> = (0..2).map(|_| engine.new_session().unwrap()).collect();
    for session in &mut sessions {
        engine.advance(session, &prompt, &[], &mut |_, _| ControlFlow::Continue(())).unwrap();
    }
    log.lock().unwrap().clear();
    let mut batch: Vec<_> = sessions.iter_mut().collect();
    engine.decode_batch(&mut batch, &[1, 2], || log.lock().unwrap().push(Did::Mask)).unwrap();
    assert_eq!(*log.lock().unwrap(), [Did::Submit, Did::Mask, Did::Wait]);
}
