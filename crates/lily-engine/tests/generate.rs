//! The decode loop on a small checkpoint: every way that a generation ends, and what a session keeps of it.

use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineError, EngineOptions};
use lily_engine::generate::{Event, FinishReason, GenerateError, Halt, Request, Summary, generate};
use lily_engine::sampler::SamplingParams;
use lily_engine::session::Session;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const CONTEXT: usize = 96;
const CHUNK: usize = 16;

fn small() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints/mlx/family_heads-q4g64")
}

fn engine(path: &Path) -> Engine {
    let options =
        EngineOptions { context_tokens: CONTEXT, chunk_tokens: Some(CHUNK), ..EngineOptions::for_this_machine() };
    Engine::new(Checkpoint::open(path).unwrap(), &options).unwrap()
}

fn request(engine: &Engine) -> Request {
    let prompt: Vec<u32> = (0..40).map(|i| i * 7 % 100).collect();
    let vocab = engine.model().shape.vocab;
    Request { prompt, sampling: SamplingParams::greedy(), vocab, max_tokens: Some(8), ..Request::default() }
}

/// Runs a request; `halt` may end it at any event.
fn run(
    engine: &mut Engine,
    session: &mut Session,
    request: &Request,
    halt: impl Fn(&Event) -> Option<Halt>,
) -> (Vec<u32>, Summary) {
    let mut ids = Vec::new();
    let summary = generate(engine, session, request, &mut |event| {
        if let Event::Token { token, .. } = &event {
            ids.push(token.id);
        }
        halt(&event).map_or(ControlFlow::Continue(()), ControlFlow::Break)
    });
    (ids, summary.unwrap())
}

#[test]
fn every_ending_is_told_apart() {
    let mut engine = engine(&small());
    let mut session = engine.new_session().unwrap();
    let request = request(&engine);
    let (all, summary) = run(&mut engine, &mut session, &request, |_| None);
    assert_eq!((summary.finish_reason, all.len(), summary.decode_steps), (FinishReason::Length, 8, 7));
    assert_eq!((summary.prompt_tokens, summary.reuse.tokens(), summary.prefill_tokens), (40, 0, 40));

    // A stop token ends the text and is no part of it.
    let at = (1..all.len()).find(|&i| !all[..i].contains(&all[i])).expect("two different tokens");
    let stopping = Request { stop_ids: vec![all[at]], ..request.clone() };
    let (ids, summary) = run(&mut engine, &mut session, &stopping, |_| None);
    assert_eq!((ids.as_slice(), summary.finish_reason), (&all[..at], FinishReason::Stop));

    let (ids, summary) = run(&mut engine, &mut session, &Request { max_tokens: None, ..request.clone() }, |_| None);
    assert_eq!((ids.len(), summary.finish_reason), (CONTEXT - 40, FinishReason::ContextFull));
    assert_eq!(ids[..8], all);

    let is_token = |event: &Event| matches!(event, Event::Token { .. });
    for (halt, reason) in [(Halt::StopString, FinishReason::StopString), (Halt::Cancelled, FinishReason::Cancelled)] {
        let (ids, summary) = run(&mut engine, &mut session, &request, |event| is_token(event).then_some(halt));
        assert_eq!((ids.as_slice(), summary.finish_reason), (&all[..1], reason));
    }
}

#[test]
fn a_prompt_can_be_cancelled_between_chunks_and_taken_up_again() {
    let mut engine = engine(&small());
    let mut session = engine.new_session().unwrap();
    let request = request(&engine);
    let after_one_chunk =
        |event: &Event| matches!(event, Event::Prefill { done_tokens: CHUNK.., .. }).then_some(Halt::Cancelled);
    let (ids, summary) = run(&mut engine, &mut session, &request, after_one_chunk);
    assert_eq!((ids.len(), summary.finish_reason), (0, FinishReason::Cancelled));
    assert_eq!((summary.prefill_tokens, session.tokens().len()), (CHUNK, CHUNK));
    let (ids, summary) = run(&mut engine, &mut session, &request, |_| None);
    assert_eq!(summary.reuse.tokens(), CHUNK);
    let mut fresh = engine.new_session().unwrap();
    assert_eq!(ids, run(&mut engine, &mut fresh, &request, |_| None).0);
}

#[test]
fn the_next_turn_starts_at_a_boundary() {
    let mut engine = engine(&small());
    let mut session = engine.new_session().unwrap();
    let first = Request { boundaries: vec![20, 37], ..request(&engine) };
    run(&mut engine, &mut session, &first, |_| None);
    // As when a template renders a finished turn: the same up to the answer, then something else.
    let mut second = request(&engine);
    second.prompt.truncate(37);
    second.prompt.extend([1, 2, 3, 4, 5]);
    let (ids, summary) = run(&mut engine, &mut session, &second, |_| None);
    assert_eq!((summary.reuse.tokens(), summary.prefill_tokens), (37, 5));
    let mut fresh = engine.new_session().unwrap();
    assert_eq!(ids, run(&mut engine, &mut fresh, &second, |_| None).0, "reuse changes nothing");
}

#[test]
fn alternatives_come_with_every_token() {
    let mut engine = engine(&small());
    let mut session = engine.new_session().unwrap();
    let request = Request { top_logprobs: 3, ..request(&engine) };
    let mut seen = 0;
    generate(&mut engine, &mut session, &request, &mut |event| {
        if let Event::Token { token, top } = event {
            assert_eq!((top.len(), top[0]), (3, token), "greedy takes the first");
            assert!(top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob);
            seen += 1;
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(seen, 8);
}

#[test]
fn a_prompt_without_room_for_an_answer_is_refused() {
    let mut engine = engine(&small());
    let mut session = engine.new_session().unwrap();
    for tokens in [CONTEXT, CONTEXT + 1] {
        let request = Request { prompt: vec![1; tokens], ..request(&engine) };
        let error = generate(&mut engine, &mut session, &request, &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(error, GenerateError::Engine(EngineError::ContextFull { .. })), "{error}");
    }
    assert!(session.tokens().is_empty());
}

#[test]
fn broken_logits_are_an_error_and_never_a_token() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(small().join(name), folder.path().join(name)).unwrap();
    }
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let norm = checkpoint.tensors().iter().find(|t| t.name.ends_with("model.norm.weight")).unwrap().range;
    drop(checkpoint);
    let path = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[norm.offset..norm.offset + norm.bytes].chunks_exact_mut(2).for_each(|b| b.copy_from_slice(&[0xC0, 0x7F]));
    std::fs::write(&path, bytes).unwrap();

    let mut engine = engine(folder.path());
    let mut session = engine.new_session().unwrap();
    let request = request(&engine);
    let result = generate(&mut engine, &mut session, &request, &mut |event| {
        assert!(matches!(event, Event::Prefill { .. }), "{event:?}");
        ControlFlow::Continue(())
    });
    let error = result.unwrap_err();
    assert!(matches!(error, GenerateError::Sample { tokens: 40, .. }), "{error}");
    assert!(error.to_string().contains("NaN"), "{error}");
}
