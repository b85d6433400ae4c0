//! The engine on a device that fails, and on one whose decode steps are not prefill chunks.

use lily_engine::backend::stand_in::{Behaviour, Behind, StandIn};
use lily_engine::backend::{Backend, BackendError, DeviceMemory, State};
use lily_engine::cache::CacheOptions;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineError, EngineOptions};
use lily_engine::model::Traits;
use lily_engine::plan::Plan;
use lily_engine::session::Session;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// What the device does and did.
#[derive(Default)]
struct Log {
    /// Kernels of every plan that was run.
    plans: Vec<Vec<&'static str>>,
    /// Runs until one fails; 0: none does.
    fail_in: usize,
}

/// The CPU, watched.
struct Watched(Arc<Mutex<Log>>);

impl Behaviour for Watched {
    fn run(&mut self, behind: &mut Behind, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        let mut log = self.0.lock().unwrap();
        log.plans.push(plan.dispatches.iter().map(|d| d.contract.name).collect());
        behind.cpu.run(plan, states)?;
        if log.fail_in == 1 {
            log.fail_in = 0;
            return Err(BackendError::OutOfMemory { what: "a test".into(), bytes: 1 });
        }
        log.fail_in = log.fail_in.saturating_sub(1);
        Ok(())
    }
}

fn engine(traits: Traits, memory: Option<DeviceMemory>) -> (Arc<Mutex<Log>>, Result<Engine, EngineError>) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints/mlx/base-q4g64");
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{e}"));
    let log = Arc::new(Mutex::new(Log::default()));
    let device = StandIn { memory, ..StandIn::new(traits, Watched(Arc::clone(&log))) };
    // Without a prefix cache, so that the same prompt runs the same plans again.
    let cache = CacheOptions { bytes: 0, ..CacheOptions::default() };
    let options =
        EngineOptions { context_tokens: 64, chunk_tokens: Some(4), cache, ..EngineOptions::for_this_machine() };
    (log, Engine::on(Box::new(device), checkpoint, &options))
}

fn advance(engine: &mut Engine, session: &mut Session, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
    engine.advance(session, tokens, &[], &mut |_, _| ControlFlow::Continue(()))?;
    Ok(session.logits().unwrap().to_vec())
}

#[test]
fn a_failed_step_empties_the_session_and_the_next_one_starts_over() {
    let (log, engine) = engine(Traits::CPU, None);
    let mut engine = engine.unwrap();
    let mut session = engine.new_session().unwrap();
    let prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    let want = advance(&mut engine, &mut session, &prompt).unwrap();
    for fail_in in 1..=3 {
        let mut session = engine.new_session().unwrap();
        log.lock().unwrap().fail_in = fail_in;
        let error = advance(&mut engine, &mut session, &prompt).unwrap_err();
        assert!(matches!(error, EngineError::Backend(_)), "{error}");
        assert!(session.tokens().is_empty() && session.logits().is_none());
        assert_eq!(advance(&mut engine, &mut session, &prompt).unwrap(), want, "state was left behind");
    }
    log.lock().unwrap().fail_in = 1;
    engine.decode(&mut session, 1).unwrap_err();
    assert!(session.tokens().is_empty());
    assert_eq!(advance(&mut engine, &mut session, &prompt).unwrap(), want);
}

#[test]
fn prompt_tokens_take_the_prefill_plan_unless_a_decode_step_is_one() {
    let prefill_kernels = |traits| {
        let (log, engine) = engine(traits, None);
        let mut engine = engine.unwrap();
        let mut session = engine.new_session().unwrap();
        advance(&mut engine, &mut session, &[1, 2, 3, 4, 5]).unwrap(); // a chunk of four and one of one
        engine.decode(&mut session, 6).unwrap();
        let plans = std::mem::take(&mut log.lock().unwrap().plans);
        plans.iter().map(|kernels| kernels.contains(&"route")).collect::<Vec<_>>()
    };
    assert_eq!(prefill_kernels(Traits::CPU), [true, false, false]);
    assert_eq!(prefill_kernels(Traits { decode_is_prefill: false, ..Traits::CPU }), [true, true, false]);
}

#[test]
fn the_refusal_names_whose_limit_it_is() {
    let (_, engine) = engine(Traits::GPU, Some(DeviceMemory { bytes: 1000, limit: "what a test allows" }));
    let message = engine.err().unwrap().to_string();
    assert!(message.contains("what a test allows: 0.00 GB") && message.contains("KV cache"), "{message}");
}

#[test]
fn an_engine_takes_the_mechanisms_that_are_worth_having_on_its_device() {
    for traits in [Traits::GPU, Traits::WIDE_GPU] {
        let mut engine = engine(traits, None).1.unwrap();
        let own = engine.own_mechanisms();
        engine.switch(own);
        assert_eq!((own, engine.model().traits), (traits.mechanisms, traits));
    }
}
