//! The scheduler on the model in the box: jobs get the answers that they would get alone, and nothing that happens to one
//! of them happens to another.

use lily_engine::checkpoint::Checkpoint;
use lily_engine::constraint::{Constraint, ConstraintError, TokenMask};
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::generate::{Event, FinishReason, GenerateError, Halt, Request, Summary, generate};
use lily_engine::prompt::Prompter;
use lily_engine::sampler::SamplingParams;
use lily_engine::scheduler::{Job, JobError, JobEvent, JobId, Refused, Scheduler, SchedulerOptions};
use lily_engine::template::ChatInput;
use serde_json::json;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const CONTEXT: usize = 256;

fn engine() -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano");
    let options =
        EngineOptions { context_tokens: CONTEXT, chunk_tokens: Some(32), ..EngineOptions::for_this_machine() };
    Engine::new(Checkpoint::open(&path).unwrap(), &options).unwrap()
}

fn scheduler(queue_jobs: usize) -> Scheduler {
    Scheduler::start(engine(), &SchedulerOptions { queue_jobs }).unwrap()
}

fn request(question: &str, sampling: SamplingParams) -> Request {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano");
    let prompter = Prompter::new(&Checkpoint::open(&path).unwrap()).unwrap();
    let prompt = prompter.chat(&ChatInput::new(json!([{ "role": "user", "content": question }]))).unwrap();
    Request {
        prompt: prompt.tokens,
        boundaries: prompt.boundaries,
        sampling,
        vocab: prompter.tokenizer().vocab_size(),
        stop_ids: prompter.stop_ids().to_vec(),
        max_tokens: Some(24),
        top_logprobs: 0,
    }
}

fn job(request: Request) -> Job {
    Job { request, ..Job::default() }
}

fn submit(scheduler: &Scheduler, job: Job) -> Result<(JobId, Receiver<JobEvent>), Refused> {
    let (sender, receiver) = channel();
    let sink = move |event| match sender.send(event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(Halt::Cancelled),
    };
    Ok((scheduler.submit(job, Box::new(sink))?, receiver))
}

/// The tokens of a job, and how it ended; events are checked for their order.
fn answer(events: &Receiver<JobEvent>) -> (Vec<u32>, Result<Summary, JobError>) {
    let (mut ids, mut started, mut done) = (Vec::new(), false, 0);
    loop {
        match events.recv_timeout(Duration::from_secs(60)).expect("an end") {
            JobEvent::Started { .. } => assert!(!std::mem::replace(&mut started, true)),
            JobEvent::Prefill { done_tokens, total_tokens, cached_tokens } => {
                assert!(started && ids.is_empty() && cached_tokens <= done_tokens && done_tokens <= total_tokens);
                assert!(done <= done_tokens);
                done = done_tokens;
            }
            JobEvent::Token { token, .. } => ids.push(token.id),
            JobEvent::End(result) => {
                assert!(events.recv().is_err(), "nothing comes after the end");
                return (ids, result);
            }
        }
    }
}

fn alone(request: &Request) -> Vec<u32> {
    let mut engine = engine();
    let mut session = engine.new_session().unwrap();
    let mut ids = Vec::new();
    generate(&mut engine, &mut session, request, &mut |event| {
        if let Event::Token { token, .. } = event {
            ids.push(token.id);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    ids
}

fn seeded(seed: u64) -> SamplingParams {
    SamplingParams { seed: Some(seed), ..SamplingParams::default() }
}

/// A prompt that no answer to ends soon.
fn endless() -> Request {
    Request { stop_ids: Vec::new(), max_tokens: None, ..request("Hello!", SamplingParams::greedy()) }
}

#[test]
fn every_job_gets_the_answer_it_would_get_alone() {
    let scheduler = scheduler(64);
    let requests: Vec<Request> = [
        ("What is the capital of France?", SamplingParams::greedy()),
        ("What is 2 plus 3?", seeded(1)),
        ("What is 2 plus 3?", seeded(2)),
        ("Hello!", SamplingParams { presence_penalty: 1.0, ..seeded(3) }),
    ]
    .into_iter()
    .map(|(question, sampling)| request(question, sampling))
    .collect();
    let jobs: Vec<_> = requests.iter().map(|r| submit(&scheduler, job(r.clone())).unwrap()).collect();
    for (request, (_, events)) in requests.iter().zip(&jobs) {
        let (ids, end) = answer(events);
        let summary = end.unwrap();
        assert_eq!(ids, alone(request));
        assert_eq!((summary.generated_tokens, summary.prompt_tokens), (ids.len(), request.prompt.len()));
    }
    assert!(scheduler.drain(Duration::from_secs(60)));
    let status = scheduler.status();
    assert_eq!((status.ended, status.failed, status.running, status.waiting), (4, 0, 0, 0));
}

#[test]
fn what_cannot_be_computed_is_refused_with_the_numbers() {
    let scheduler = scheduler(64);
    let good = request("Hello!", SamplingParams::greedy());
    let check = |request: Request, words: &str| {
        let refused = submit(&scheduler, job(request)).unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
    };
    check(Request { prompt: vec![], ..good.clone() }, "at least one");
    check(Request { prompt: vec![1; CONTEXT], ..good.clone() }, "256 tokens and the context 256");
    check(Request { prompt: vec![1, 999_999], ..good.clone() }, "999999 is not in the model's vocabulary");
    let hot = SamplingParams { temperature: -1.0, ..SamplingParams::default() };
    check(Request { sampling: hot, ..good }, "temperature is -1");
}

#[test]
fn the_queue_is_bounded_and_jobs_can_be_cancelled_in_it_and_at_work() {
    let scheduler = scheduler(2);
    let (first, first_events) = submit(&scheduler, job(endless())).unwrap();
    assert!(matches!(first_events.recv().unwrap(), JobEvent::Started { .. }));
    let (second, second_events) = submit(&scheduler, job(endless())).unwrap();
    let (_, third_events) = submit(&scheduler, job(request("Hello!", seeded(1)))).unwrap();
    let refused = submit(&scheduler, job(endless())).unwrap_err();
    assert_eq!(refused, Refused::QueueFull { waiting: 2, limit: 2 });
    scheduler.cancel(second);
    let (ids, end) = answer(&second_events);
    assert_eq!((ids.len(), end.unwrap().finish_reason), (0, FinishReason::Cancelled));
    scheduler.cancel(first);
    let mut last = None;
    while let Ok(event) = first_events.recv() {
        last = Some(event);
    }
    let Some(JobEvent::End(Ok(summary))) = last else { panic!("{last:?}") };
    assert_eq!(summary.finish_reason, FinishReason::Cancelled);
    assert_eq!(answer(&third_events).0, alone(&request("Hello!", seeded(1))));
    scheduler.cancel(first); // it is gone: nothing happens
}

#[test]
fn a_client_that_is_gone_or_found_a_stop_string_ends_its_job() {
    let scheduler = scheduler(8);
    let (_, events) = submit(&scheduler, job(endless())).unwrap();
    drop(events);
    let (sender, receiver) = channel();
    let mut tokens = 0;
    let sink = move |event: JobEvent| {
        tokens += usize::from(matches!(event, JobEvent::Token { .. }));
        sender.send(event).unwrap();
        if tokens == 3 { ControlFlow::Break(Halt::StopString) } else { ControlFlow::Continue(()) }
    };
    scheduler.submit(job(endless()), Box::new(sink)).unwrap();
    let (ids, end) = answer(&receiver);
    assert_eq!((ids.len(), end.unwrap().finish_reason), (3, FinishReason::StopString));
}

#[test]
fn a_panic_ends_its_own_job_only() {
    let scheduler = scheduler(8);
    let sink = |event| match event {
        JobEvent::Token { .. } => panic!("a client's bug"),
        _ => ControlFlow::Continue(()),
    };
    scheduler.submit(job(endless()), Box::new(sink)).unwrap();
    let (_, events) = submit(&scheduler, job(request("Hello!", seeded(1)))).unwrap();
    assert_eq!(answer(&events).0, alone(&request("Hello!", seeded(1))));
    scheduler.drain(Duration::from_secs(60));
    assert_eq!(scheduler.status().failed, 1);
}

#[test]
fn draining_lets_jobs_end_and_gives_up_in_the_end() {
    let scheduler = scheduler(8);
    let (_, events) = submit(&scheduler, job(request("Hello!", seeded(1)))).unwrap();
    assert!(scheduler.drain(Duration::from_secs(60)));
    assert!(answer(&events).1.is_ok());
    assert_eq!(submit(&scheduler, job(endless())).unwrap_err(), Refused::Draining);

    let impatient = self::scheduler(8);
    // Each step is slow, so that neither has ended when patience is over.
    let (sender, receiver) = channel();
    let sink = move |event| {
        std::thread::sleep(Duration::from_millis(20));
        let _ = sender.send(event);
        ControlFlow::Continue(())
    };
    impatient.submit(job(endless()), Box::new(sink)).unwrap();
    let (_, waiting) = submit(&impatient, job(endless())).unwrap();
    assert!(!impatient.drain(Duration::from_millis(200)));
    assert!(matches!(answer(&receiver).1, Err(JobError::ShutDown)));
    assert!(matches!(answer(&waiting).1, Err(JobError::ShutDown)));
}

/// Allows the tokens of a list, one after another, then those that end the text.
struct Script {
    tokens: Vec<u32>,
    at: usize,
    end: u32,
    mask: TokenMask,
}

impl Constraint for Script {
    fn mask(&mut self) -> Result<Option<&TokenMask>, ConstraintError> {
        self.mask.clear();
        self.mask.allow(self.tokens.get(self.at).copied().unwrap_or(self.end));
        Ok(Some(&self.mask))
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if token == 13 {
            return Err(ConstraintError("unlucky".into()));
        }
        assert_eq!(token, self.tokens[self.at]);
        self.at += 1;
        Ok(())
    }
}

#[test]
fn a_constraint_decides_what_may_come_and_its_error_is_the_jobs() {
    let scheduler = scheduler(8);
    for sampling in [SamplingParams::greedy(), SamplingParams { top_k: 5, top_p: 0.9, min_p: 0.1, ..seeded(5) }] {
        let request = request("Hello!", sampling);
        let script = |tokens: &[u32]| Script {
            tokens: tokens.to_vec(),
            at: 0,
            end: request.stop_ids[0],
            mask: TokenMask::none(request.vocab),
        };
        let constrained = |tokens| Job { constraint: Some(Box::new(script(tokens))), ..job(request.clone()) };
        let (_, events) = submit(&scheduler, constrained(&[40, 50, 60, 70])).unwrap();
        let (ids, end) = answer(&events);
        assert_eq!((ids, end.unwrap().finish_reason), (vec![40, 50, 60, 70], FinishReason::Stop));
        let (_, events) = submit(&scheduler, constrained(&[40, 13])).unwrap();
        let (ids, end) = answer(&events);
        assert_eq!(ids, [40]);
        let error = end.unwrap_err();
        assert!(matches!(error, JobError::Generate(GenerateError::Constraint { generated_tokens: 1, .. })), "{error}");
        let (_, events) = submit(&scheduler, constrained(&[999_999])).unwrap();
        let error = answer(&events).1.unwrap_err();
        assert!(error.to_string().contains("nothing may be generated"), "{error}");
    }
}
