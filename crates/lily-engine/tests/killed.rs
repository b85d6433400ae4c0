//! The cache directory of a process that is killed at any moment: what it left is right or not there.

use lily_engine::cache::CacheOptions;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::generate::{Event, Request, Summary, generate};
use lily_engine::sampler::SamplingParams;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Names the directory to the process that is going to be killed.
const DIR: &str = "LILY_TEST_KILLED_DIR";
/// Times that one is killed.
const KILLED: u64 = 6;

fn engine(dir: Option<&Path>) -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints/mlx/experts-q8g32");
    let bytes = if dir.is_some() { 64 << 20 } else { 0 };
    let cache = CacheOptions { bytes, dir: dir.map(Path::to_owned), ..CacheOptions::default() };
    let options = EngineOptions { context_tokens: 512, threads: 1, cache, ..EngineOptions::for_this_machine() };
    Engine::new(Checkpoint::open(&path).unwrap(), &options).unwrap()
}

/// Turn `turn` of a conversation; turns have beginnings in common.
fn request(turn: u32) -> Request {
    let prompt: Vec<u32> = (0..40 + turn % 16 * 20).map(|i| (i * 7 + turn / 16) % 200).collect();
    let boundaries = (1..prompt.len() / 20).map(|i| 20 * i).collect();
    let (sampling, vocab) = (SamplingParams::greedy(), 256);
    Request { prompt, boundaries, sampling, vocab, max_tokens: Some(4), ..Request::default() }
}

fn run(engine: &mut Engine, turn: u32) -> (Vec<u32>, Summary) {
    let mut session = engine.new_session().unwrap();
    let mut tokens = Vec::new();
    let summary = generate(engine, &mut session, &request(turn), &mut |event| {
        if let Event::Token { token, .. } = event {
            tokens.push(token.id);
        }
        ControlFlow::Continue(())
    });
    (tokens, summary.unwrap())
}

#[test]
fn a_killed_process_leaves_a_cache_that_is_right() {
    if let Some(dir) = std::env::var_os(DIR) {
        let mut engine = engine(Some(Path::new(&dir)));
        // It does not live to see the last one.
        (0..5000).for_each(|turn| drop(run(&mut engine, turn)));
        return;
    }
    let dir = TempDir::new().unwrap();
    let mut disk_tokens = 0;
    for round in 0..KILLED {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(150 + 97 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let (mut cold, mut restarted) = (engine(None), engine(Some(dir.path())));
        assert_eq!(restarted.cache_status().disk_failures, 0, "what is found there can be read");
        for turn in [15, 7, 31] {
            let (tokens, summary) = run(&mut restarted, turn);
            assert_eq!(tokens, run(&mut cold, turn).0);
            disk_tokens += summary.reuse.disk_tokens;
        }
        assert_eq!(restarted.cache_status().disk_failures, 0);
    }
    assert!(disk_tokens > 500, "{disk_tokens} tokens from what the killed processes left");
}
