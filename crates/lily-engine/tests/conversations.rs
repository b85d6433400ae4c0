//! Seeded random conversations, computed in every way there is: cold, on one session, from the prefix cache, from the cache
//! directory after a restart, in other chunks, and beside each other. All give the same tokens.

use lily_engine::cache::CacheOptions;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::generate::{Event, Request, Summary, generate};
use lily_engine::sampler::SamplingParams;
use lily_engine::scheduler::{Job, JobEvent, Scheduler, SchedulerOptions};
use lily_engine::session::Session;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;
use tempfile::TempDir;

/// Conversations that are tried on each checkpoint.
const SEEDS: u64 = 5;
const TURNS: usize = 6;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) % limit as u64) as usize
    }
}

fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints").join(name)
}

fn engine(name: &str, chunk_tokens: usize, sessions: usize, cache: CacheOptions) -> Engine {
    let threads = 1; // there is little to compute, and other tests run beside
    let options = EngineOptions {
        context_tokens: 512,
        chunk_tokens: Some(chunk_tokens),
        sessions,
        threads,
        cache,
        ..EngineOptions::for_this_machine()
    };
    Engine::new(Checkpoint::open(&checkpoint(name)).unwrap(), &options).unwrap()
}

fn nothing() -> CacheOptions {
    CacheOptions { bytes: 0, ..CacheOptions::default() }
}

fn run(engine: &mut Engine, session: &mut Session, request: &Request) -> (Vec<u32>, Summary) {
    let mut tokens = Vec::new();
    let summary = generate(engine, session, request, &mut |event| {
        if let Event::Token { token, .. } = event {
            tokens.push(token.id);
        }
        ControlFlow::Continue(())
    });
    (tokens, summary.unwrap())
}

/// On a session of its own.
fn run_anew(engine: &mut Engine, request: &Request) -> (Vec<u32>, Summary) {
    let mut session = engine.new_session().unwrap();
    run(engine, &mut session, request)
}

/// The requests of one conversation with their answers, each from a lone cold run: appended to, edited, branched, repeated.
fn conversation(name: &str, seed: u64) -> Vec<(Request, Vec<u32>)> {
    let mut cold = engine(name, 64, 1, nothing());
    let vocab = cold.model().shape.vocab;
    let mut random = Random(seed);
    let (mut text, mut ends) = (Vec::new(), Vec::new());
    let mut turns: Vec<(Request, Vec<u32>)> = Vec::new();
    for _ in 0..TURNS {
        match random.below(6) {
            0 if !ends.is_empty() => {
                ends.truncate(1 + random.below(ends.len()));
                text.truncate(*ends.last().unwrap());
            }
            1 if !turns.is_empty() => {
                let (earlier, _) = &turns[random.below(turns.len())];
                (text, ends) = (earlier.prompt.clone(), earlier.boundaries.clone());
            }
            _ => {}
        }
        if random.below(6) > 0 || text.is_empty() {
            text.extend((0..1 + random.below(60)).map(|_| random.below(vocab) as u32));
            ends.push(text.len());
        }
        let seeded = SamplingParams { seed: Some(seed), top_k: 40, ..SamplingParams::default() };
        let request = Request {
            prompt: [&text[..], &[7, 8, 9]].concat(),
            boundaries: ends.clone(),
            sampling: [SamplingParams::greedy(), seeded][random.below(2)].clone(),
            vocab,
            stop_ids: vec![1, 2, 3],
            max_tokens: Some(1 + random.below(12)),
            top_logprobs: 0,
        };
        let (answer, _) = run_anew(&mut cold, &request);
        // As a template renders the turn afterwards: as it was written, or without the tail.
        if random.below(2) == 0 {
            text.extend([7, 8, 9]);
        }
        text.extend(&answer);
        ends.push(text.len());
        turns.push((request, answer));
    }
    turns
}

#[test]
fn whatever_is_reused_the_answer_is_that_of_a_cold_run() {
    let (mut session_tokens, mut memory_tokens, mut disk_tokens, mut computed, mut prompts) = (0, 0, 0, 0, 0);
    for name in ["mlx/base-q4g64", "hf/family_heads", "mlx/experts-q8g32"] {
        for seed in 0..SEEDS {
            let turns = conversation(name, seed);
            let dir = TempDir::new().unwrap();
            let on_disk = CacheOptions { dir: Some(dir.path().to_owned()), ..CacheOptions::default() };
            let mut one_session = engine(name, 16, 1, nothing());
            let mut session = one_session.new_session().unwrap();
            // Room for some of the snapshots only.
            let mut small = engine(name, 13, 1, CacheOptions { bytes: 300_000, ..nothing() });
            let mut large = engine(name, 64, 1, CacheOptions::default());
            for (turn, (request, want)) in turns.iter().enumerate() {
                let place = format!("{name}, seed {seed}, turn {turn}");
                let (got, summary) = run(&mut one_session, &mut session, request);
                assert_eq!(&got, want, "on one session: {place}");
                session_tokens += summary.reuse.session_tokens;
                let (got, _) = run_anew(&mut small, request);
                assert_eq!(&got, want, "with a small cache: {place}");
                let (got, summary) = run_anew(&mut large, request);
                assert_eq!(&got, want, "with a cache: {place}");
                memory_tokens += summary.reuse.memory_tokens;
                (computed, prompts) = (computed + summary.prefill_tokens, prompts + summary.prompt_tokens);
                let mut restarted = engine(name, 32, 1, on_disk.clone());
                let (got, summary) = run_anew(&mut restarted, request);
                assert_eq!(&got, want, "after a restart: {place}");
                disk_tokens += summary.reuse.disk_tokens;
            }
        }
    }
    eprintln!("session {session_tokens}, memory {memory_tokens}, disk {disk_tokens}, computed {computed} of {prompts}");
    assert!(session_tokens > 0 && computed * 2 < prompts, "{computed} of {prompts} tokens computed");
    assert!(disk_tokens > 0 && disk_tokens <= memory_tokens, "disk {disk_tokens}, memory {memory_tokens}");
}

#[test]
fn beside_each_other_conversations_get_the_same_answers() {
    let name = "mlx/base-q4g64";
    for sessions in [2, 3, 5] {
        let conversations: Vec<_> = (100..106).map(|seed| conversation(name, seed)).collect();
        let cache = CacheOptions { bytes: 2_000_000, ..CacheOptions::default() };
        let scheduler =
            Scheduler::start(engine(name, 16, sessions, cache), &SchedulerOptions { queue_jobs: 100 }).unwrap();
        for turn in 0..TURNS {
            let answers: Vec<_> = conversations
                .iter()
                .map(|turns| {
                    let (sender, receiver) = channel();
                    let job = Job { request: turns[turn].0.clone(), ..Job::default() };
                    let sink = move |event| {
                        sender.send(event).unwrap();
                        ControlFlow::Continue(())
                    };
                    scheduler.submit(job, Box::new(sink)).unwrap();
                    receiver
                })
                .collect();
            for (receiver, turns) in answers.iter().zip(&conversations) {
                let mut tokens = Vec::new();
                let end = loop {
                    match receiver.recv_timeout(Duration::from_secs(60)).expect("an end") {
                        JobEvent::Token { token, .. } => tokens.push(token.id),
                        JobEvent::End(end) => break end,
                        _ => {}
                    }
                };
                end.unwrap();
                assert_eq!(tokens, turns[turn].1, "{sessions} sessions, turn {turn}");
            }
        }
        assert!(scheduler.drain(Duration::from_secs(60)));
        assert!(scheduler.status().cache.hits > 0);
    }
}
