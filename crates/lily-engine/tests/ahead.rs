//! Tokens chosen on the device, one step ahead of the host: the same text as the host's own choice, and a session whose
//! state is what its tokens say.

use lily_engine::backend::stand_in::{Behaviour, Behind, StandIn};
use lily_engine::backend::{Backend, BackendError, State};
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::generate::{Event, FinishReason, GenerateError, Halt, Request, Summary, generate};
use lily_engine::model::Traits;
use lily_engine::plan::Plan;
use lily_engine::sampler::{History, SampleError, Sampler, SamplingParams, Token};
use lily_engine::session::Session;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

/// Spoils the logits of the head's n-th run, counted from 1.
#[derive(Default)]
struct Spoiler {
    heads: usize,
    spoil: Option<usize>,
}

impl Behaviour for Spoiler {
    fn run(&mut self, behind: &mut Behind, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        for dispatch in &plan.dispatches {
            behind.cpu.run(&Plan { dispatches: vec![dispatch.clone()], ..Plan::default() }, states)?;
            if dispatch.contract.name == "head" {
                self.heads += 1;
                if self.spoil == Some(self.heads) {
                    behind.cpu.write(dispatch.slots[dispatch.slots.len() - 1].part(8, 4), &f32::NAN.to_le_bytes());
                }
            }
        }
        Ok(())
    }
}

const CHOOSING: Traits = Traits { chooses_tokens: true, ..Traits::CPU };

fn engine(traits: Traits) -> Engine {
    engine_on(traits, None)
}

fn engine_on(traits: Traits, spoil: Option<usize>) -> Engine {
    let device = StandIn::new(traits, Spoiler { spoil, ..Spoiler::default() });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints/mlx/family_heads-q4g64");
    let options =
        EngineOptions { context_tokens: 64, chunk_tokens: Some(16), sessions: 5, ..EngineOptions::for_this_machine() };
    Engine::on(Box::new(device), Checkpoint::open(&path).unwrap(), &options).unwrap()
}

fn request(engine: &Engine, sampling: SamplingParams) -> Request {
    let prompt = (0..30).map(|i| i * 7 % 100).collect();
    Request { prompt, sampling, vocab: engine.model().shape.vocab - 3, max_tokens: Some(12), ..Request::default() }
}

fn run(engine: &mut Engine, session: &mut Session, request: &Request, halt_after: usize) -> (Vec<(u32, f32)>, Summary) {
    let mut tokens = Vec::new();
    let summary = generate(engine, session, request, &mut |event| {
        if let Event::Token { token, .. } = event {
            tokens.push((token.id, token.logprob));
        }
        if tokens.len() == halt_after { ControlFlow::Break(Halt::Cancelled) } else { ControlFlow::Continue(()) }
    });
    (tokens, summary.unwrap())
}

fn sampling() -> Vec<SamplingParams> {
    let seeded = SamplingParams { seed: Some(7), ..SamplingParams::default() };
    vec![
        SamplingParams::greedy(),
        seeded.clone(),
        SamplingParams { temperature: 0.8, top_k: 20, top_p: 0.95, presence_penalty: 1.5, ..seeded.clone() },
        SamplingParams { min_p: 0.05, repetition_penalty: 1.3, ..seeded.clone() },
        SamplingParams { frequency_penalty: 1.0, logit_bias: BTreeMap::from([(4, 3.0), (9, -50.0)]), ..seeded },
    ]
}

#[test]
fn the_device_chooses_what_the_host_would() {
    let (mut host, mut device) = (engine(Traits::CPU), engine(CHOOSING));
    for params in sampling() {
        let request = request(&host, params);
        let (mut a, mut b) = (host.new_session().unwrap(), device.new_session().unwrap());
        let (want, host_summary) = run(&mut host, &mut a, &request, usize::MAX);
        let (got, summary) = run(&mut device, &mut b, &request, usize::MAX);
        let ids = |tokens: &[(u32, f32)]| tokens.iter().map(|t| t.0).collect::<Vec<_>>();
        assert_eq!(ids(&got), ids(&want), "{:?}", request.sampling);
        got.iter().zip(&want).for_each(|(g, w)| assert!((g.1 - w.1).abs() < 1e-4, "{} and {}", g.1, w.1));
        assert_eq!((summary.finish_reason, summary.decode_steps), (FinishReason::Length, host_summary.decode_steps));
    }
}

/// However a generation ends, the session's state belongs to its tokens: going on from it gives what a new session gives.
#[test]
fn the_session_is_what_its_tokens_say() {
    let mut device = engine(CHOOSING);
    let whole = request(&device, SamplingParams::greedy());
    let mut session = device.new_session().unwrap();
    let (all, _) = run(&mut device, &mut session, &whole, usize::MAX);
    let stop = Request { stop_ids: vec![all[5].0], ..whole.clone() };
    let full = Request { max_tokens: None, ..whole.clone() };
    for (request, halt_after) in
        [(&whole, usize::MAX), (&whole, 1), (&whole, 4), (&stop, usize::MAX), (&full, usize::MAX)]
    {
        let mut session = device.new_session().unwrap();
        let (tokens, summary) = run(&mut device, &mut session, request, halt_after);
        if request.max_tokens.is_none() {
            assert_eq!((summary.finish_reason, tokens.len()), (FinishReason::ContextFull, 34));
        }
        let held = session.tokens().to_vec();
        assert!(held.len() >= 30 + tokens.len() - 1 && held[30..].iter().zip(&tokens).all(|(h, t)| *h == t.0));
        let logits = session.logits().expect("logits of the last token").to_vec();
        let mut cold = device.new_session().unwrap();
        device.advance(&mut cold, &held, &[], &mut |_, _| ControlFlow::Continue(())).unwrap();
        assert!(cold.logits().unwrap() == logits, "after {:?} at {}", summary.finish_reason, held.len());
    }
}

/// Tokens chosen for these sessions together, round by round, and the sessions' logits afterwards.
fn chosen(
    engine: &mut Engine,
    sessions: &mut [Session],
    params: &[SamplingParams],
    rounds: &[usize],
) -> Vec<Vec<Token>> {
    let vocab = engine.model().shape.vocab - 3;
    let samplers: Vec<Sampler> = params.iter().map(|p| Sampler::new(p.clone(), vocab).unwrap()).collect();
    let prompts: Vec<Vec<u32>> = sessions.iter().map(|session| session.tokens().to_vec()).collect();
    let mut tokens = vec![Vec::new(); sessions.len()];
    for &steps in rounds {
        let generated: Vec<Vec<u32>> =
            tokens.iter().map(|all: &Vec<Token>| all.iter().map(|t| t.id).collect()).collect();
        let histories = prompts.iter().zip(&generated).map(|(prompt, generated)| History { prompt, generated });
        let choices: Vec<_> = samplers.iter().zip(histories).collect();
        let mut ahead = engine.ahead(sessions.iter_mut().collect(), &choices).unwrap();
        for _ in 0..steps {
            let next = ahead.next(true).unwrap();
            tokens.iter_mut().zip(next).for_each(|(all, token)| all.push(token.clone().unwrap()));
        }
        ahead.finish().unwrap();
    }
    tokens
}

fn prompted(engine: &mut Engine, seed: u32) -> Session {
    let prompt: Vec<u32> = (0..9 + 4 * seed).map(|i| (i * 7 + 13 * seed) % 100).collect();
    let mut session = engine.new_session().unwrap();
    engine.advance(&mut session, &prompt, &[], &mut |_, _| ControlFlow::Continue(())).unwrap();
    session
}

/// Each session of a step has its own parameters, draws, counts and logits.
#[test]
fn several_sessions_get_the_tokens_that_each_gets_alone() {
    let mut device = engine(CHOOSING);
    let params = sampling();
    let mut together: Vec<Session> = (0..5).map(|i| prompted(&mut device, i)).collect();
    let tokens = chosen(&mut device, &mut together, &params, &[3, 6]);
    for (i, (params, tokens)) in params.into_iter().zip(tokens).enumerate() {
        let mut alone = [prompted(&mut device, i as u32)];
        assert_eq!(chosen(&mut device, &mut alone, &[params], &[9]), [tokens], "session {i}");
        assert_eq!(alone[0].tokens(), together[i].tokens());
        assert!(alone[0].logits().unwrap() == together[i].logits().unwrap(), "session {i}");
    }
}

#[test]
fn broken_logits_are_told_for_their_session() {
    // The head's third run is the first step of both; what is spoilt are the logits of one.
    let mut device = engine_on(CHOOSING, Some(3));
    let mut sessions = [prompted(&mut device, 0), prompted(&mut device, 1)];
    let sampler = Sampler::new(SamplingParams::greedy(), device.model().shape.vocab).unwrap();
    let choices = [(&sampler, History::default()); 2];
    let mut ahead = device.ahead(sessions.iter_mut().collect(), &choices).unwrap();
    assert!(ahead.next(true).unwrap().iter().all(Result::is_ok));
    let results = ahead.next(false).unwrap();
    let broken = |result: &Result<Token, SampleError>| matches!(result, Err(SampleError::NotFinite { index: 2, .. }));
    assert!(broken(&results[0]) && results[1].is_ok(), "{results:?}");
}

/// A GPU's plans, by the reference functions of their kernels, choose the same tokens too.
#[test]
fn the_plans_of_a_gpu_choose_the_same() {
    let (mut host, mut gpu) = (engine(Traits::CPU), engine(Traits::GPU));
    let request = request(&host, SamplingParams::greedy());
    let (mut a, mut b) = (host.new_session().unwrap(), gpu.new_session().unwrap());
    let (want, _) = run(&mut host, &mut a, &request, usize::MAX);
    let (got, _) = run(&mut gpu, &mut b, &request, usize::MAX);
    assert_eq!(got.iter().map(|t| t.0).collect::<Vec<_>>(), want.iter().map(|t| t.0).collect::<Vec<_>>());
}

/// A NaN in the middle of a text is an error that names it, and the engine goes on with the next request.
#[test]
fn broken_logits_end_one_generation_only() {
    let mut device = engine_on(CHOOSING, Some(4));
    let request = request(&device, SamplingParams::greedy());
    let mut session = device.new_session().unwrap();
    let mut tokens = 0;
    let error = generate(&mut device, &mut session, &request, &mut |event| {
        tokens += usize::from(matches!(event, Event::Token { .. }));
        ControlFlow::Continue(())
    });
    let Err(GenerateError::Sample { tokens: at, source: SampleError::NotFinite { index: 2, value } }) = error else {
        panic!("{error:?}")
    };
    assert!(value.is_nan());
    assert_eq!((tokens, at), (3, 33));
    let (all, _) = run(&mut device, &mut session, &request, usize::MAX);
    let mut other = engine(CHOOSING);
    let mut fresh = other.new_session().unwrap();
    assert_eq!(all, run(&mut other, &mut fresh, &request, usize::MAX).0);
}
