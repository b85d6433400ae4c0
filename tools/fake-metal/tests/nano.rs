//! lily-nano through the whole of lily on the fake: the same text as on the CPU.

use fake_metal::{Machine, begin};
use lily_engine::backend::BackendChoice;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::generate::{Event, Request, generate};
use lily_engine::sampler::SamplingParams;
use lily_engine::tokenizer::{ControlTokens, Tokenizer};
use std::ops::ControlFlow;
use std::path::Path;

/// Greedy tokens after each of the prompts, in one session: later prompts reuse what they share with earlier ones.
fn greedy(backend: BackendChoice, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano");
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{e}"));
    let options =
        EngineOptions { context_tokens: 160, chunk_tokens: Some(64), backend, ..EngineOptions::for_this_machine() };
    let mut engine = Engine::new(checkpoint, &options).unwrap_or_else(|e| panic!("{e}"));
    let mut session = engine.new_session().unwrap();
    let vocab = engine.model().shape.vocab;
    let run = |prompt: &Vec<u32>| {
        let request = Request {
            prompt: prompt.clone(),
            sampling: SamplingParams::greedy(),
            vocab,
            max_tokens: Some(24),
            ..Request::default()
        };
        let mut ids = Vec::new();
        let result = generate(&mut engine, &mut session, &request, &mut |event| {
            if let Event::Token { token, .. } = event {
                ids.push(token.id);
            }
            ControlFlow::Continue(())
        });
        result.unwrap_or_else(|e| panic!("{e}"));
        ids
    };
    prompts.iter().map(run).collect()
}

#[test]
fn lily_nano_says_what_it_says_on_the_cpu() {
    let session = begin(Machine::default());
    // SAFETY: the test holds the session while it looks at the environment, and it is the only one in this process.
    unsafe { std::env::set_var("LILY_METAL_CACHE", "") };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano/tokenizer.json");
    let tokenizer = Tokenizer::from_file(&path).unwrap_or_else(|e| panic!("{e}"));
    let texts = [
        "<|im_start|>user\nWhat is 3 plus 4?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nWhat is 3 plus 4?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "Once upon a time there was a small cat who lived by the river and every morning it went down to the water to \
         look for fish. One day the cat met a duck, and the duck said that",
    ];
    let prompts: Vec<Vec<u32>> =
        texts.iter().map(|text| tokenizer.encode(text, ControlTokens::Recognise).unwrap()).collect();
    let want = greedy(BackendChoice::Cpu, &prompts);
    let start = std::time::Instant::now();
    let got = greedy(BackendChoice::Metal, &prompts);
    let tokens: usize = prompts.iter().map(Vec::len).sum::<usize>() + got.iter().map(Vec::len).sum::<usize>();
    println!("{tokens} tokens in {:.1} s on the software Metal", start.elapsed().as_secs_f64());
    assert_eq!(got, want);
    assert!(want.iter().all(|ids| ids.len() == 24));
    assert_eq!(session.live(), 0);
}
