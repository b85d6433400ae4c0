//! Every mechanism turned off in turn on a whole model: the plan is another one, the tokens are the same.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use lily_engine::cache::CacheOptions;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::generate::{Event, Request, generate};
use lily_engine::model::{Mechanism, Mechanisms};
use lily_engine::sampler::SamplingParams;
use soft_metal::kernels::Variant;
use soft_metal::{Settings, SoftMetal};
use std::ops::ControlFlow;
use std::path::Path;

/// An engine that can leave any mechanism out.
fn engine() -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints/mlx/base-q4g64");
    let options = EngineOptions {
        context_tokens: 128,
        chunk_tokens: Some(48),
        mechanisms: Mechanisms::NONE,
        // Nothing is kept of the prompt, so that every run computes it in one chunk.
        cache: CacheOptions { bytes: 0, ..CacheOptions::default() },
        ..EngineOptions::for_this_machine()
    };
    let device = SoftMetal { variant: Variant::PLAIN, settings: Settings::default(), shuffle: Some(3) };
    Engine::on(Box::new(device), Checkpoint::open(&path).unwrap(), &options).unwrap_or_else(|e| panic!("{e}"))
}

/// Logits of the last of 40 tokens of prompt, in one chunk; and the six tokens after it.
fn run(engine: &mut Engine, mechanisms: Mechanisms) -> (Vec<f32>, Vec<u32>) {
    engine.switch(mechanisms);
    let vocab = engine.model().shape.vocab;
    let prompt: Vec<u32> = (0..40).map(|i| (i * 37 + 5) % vocab as u32).collect();
    let mut session = engine.new_session().unwrap();
    engine.advance(&mut session, &prompt, &[], &mut |_, _| ControlFlow::Continue(())).unwrap();
    let logits = session.logits().unwrap().to_vec();
    let request =
        Request { prompt, vocab, sampling: SamplingParams::greedy(), max_tokens: Some(6), ..Request::default() };
    let mut tokens = Vec::new();
    generate(engine, &mut session, &request, &mut |event| {
        if let Event::Token { token, .. } = event {
            tokens.push(token.id);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    (logits, tokens)
}

#[test]
fn without_any_mechanism_the_tokens_are_the_same() {
    let mut engine = engine();
    let (want, tokens) = run(&mut engine, Mechanisms::ALL);
    let most = want.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let each = Mechanism::ALL.map(|(mechanism, name)| (name, Mechanisms::ALL.without(mechanism)));
    for (name, mechanisms) in each.into_iter().chain([("everything", Mechanisms::NONE)]) {
        let (got, got_tokens) = run(&mut engine, mechanisms);
        assert_eq!(got_tokens, tokens, "without {name}");
        // Routing on the host has another exponential; all else of prefill adds in the same order.
        let tolerance = if mechanisms.has(Mechanism::DeviceRouting) { 0.0 } else { 1e-2 * most };
        let worst = got.iter().zip(&want).fold(0.0_f32, |worst, (g, w)| worst.max((g - w).abs()));
        assert!(worst <= tolerance, "without {name}: logits differ by {worst} of {most}");
    }
}
