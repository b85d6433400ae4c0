//! lily-nano on a device under test: it generates what the CPU backend generates.

use lily_engine::backend::Device;
use lily_engine::backend::cpu::{CpuDevice, CpuMode, isa::Isa};
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::generate::{Event, Request, generate};
use lily_engine::prompt::Prompter;
use lily_engine::sampler::SamplingParams;
use lily_engine::template::ChatInput;
use serde_json::json;
use std::ops::ControlFlow;
use std::path::Path;

fn engine(device: Box<dyn Device>) -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano");
    let options = EngineOptions { context_tokens: 256, chunk_tokens: 48, ..EngineOptions::for_this_machine() };
    Engine::on(device, Checkpoint::open(&path).unwrap(), &options).unwrap_or_else(|e| panic!("{e}"))
}

fn cpu() -> Box<dyn Device> {
    Box::new(CpuDevice { mode: CpuMode::Fast(Isa::detect()), threads: 2 })
}

/// A conversation whose last question needs the turns before it.
fn conversation() -> ChatInput {
    ChatInput::new(json!([
        {"role": "user", "content": "Hello! What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is Paris."},
        {"role": "user", "content": "Thank you. And how is the word garden spelled?"},
        {"role": "assistant", "content": "garden is spelled g-a-r-d-e-n."},
        {"role": "user", "content": "What is the capital of Spain?"},
    ]))
}

/// Prompt tokens, generated tokens and the text.
fn answer(engine: &mut Engine, sampling: SamplingParams) -> (usize, Vec<u32>, String) {
    let prompter = Prompter::new(engine.checkpoint()).unwrap();
    let prompt = prompter.chat(&conversation()).unwrap();
    let request = Request {
        prompt: prompt.tokens,
        boundaries: prompt.boundaries,
        sampling,
        vocab: prompter.tokenizer().vocab_size(),
        max_tokens: Some(16),
        ..Request::default()
    };
    let mut session = engine.new_session().unwrap();
    let mut tokens = Vec::new();
    generate(engine, &mut session, &request, &mut |event| {
        if let Event::Token { token, .. } = event {
            tokens.push(token.id);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    let text = prompter.tokenizer().decode(&tokens);
    (request.prompt.len(), tokens, text)
}

/// The greedy answer, from a prompt of several chunks.
pub fn answers_as_on_the_cpu(device: Box<dyn Device>) {
    let (prompt_tokens, want, text) = answer(&mut engine(cpu()), SamplingParams::greedy());
    assert!(prompt_tokens >= 64, "{prompt_tokens} tokens");
    assert!(text.contains("Madrid"), "{text:?}");
    let (_, got, text) = answer(&mut engine(device), SamplingParams::greedy());
    println!("{prompt_tokens} tokens of prompt, then {text:?}");
    assert_eq!(got, want);
}

/// Sampled, with the draws on the device. The model is sure of most tokens, so that both round to the same text.
pub fn draws_as_on_the_cpu(device: Box<dyn Device>) {
    let sampling = SamplingParams { temperature: 0.7, top_k: 20, top_p: 0.95, seed: Some(11), ..Default::default() };
    let (_, want, _) = answer(&mut engine(cpu()), sampling.clone());
    let (_, got, _) = answer(&mut engine(device), sampling);
    assert_eq!(got, want);
}

/// Teacher-forced: at every position of a text the two agree on the most likely token, and their logits are close.
pub fn agrees_with_the_cpu_at_every_position(device: Box<dyn Device>) {
    let (mut host, mut gpu) = (engine(cpu()), engine(device));
    let prompter = Prompter::new(host.checkpoint()).unwrap();
    let tokens = prompter.chat(&conversation()).unwrap().tokens;
    let (mut a, mut b) = (host.new_session().unwrap(), gpu.new_session().unwrap());
    let (mut same, mut error, mut size) = (0, 0.0, 0.0);
    for &token in &tokens[..64] {
        host.decode(&mut a, token).unwrap();
        gpu.decode(&mut b, token).unwrap();
        let (want, got) = (a.logits().unwrap(), b.logits().unwrap());
        let best = |logits: &[f32]| (0..logits.len()).max_by(|&i, &j| logits[i].total_cmp(&logits[j]));
        same += usize::from(best(want) == best(got));
        error += want.iter().zip(got).map(|(w, g)| f64::from(w - g).powi(2)).sum::<f64>();
        size += want.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>();
    }
    let relative = (error / size).sqrt();
    println!("{same} of 64 positions agree; relative rms error {relative:.5}");
    assert!(same >= 62, "{same} of 64");
    assert!(relative < 0.02, "{relative}");
}
