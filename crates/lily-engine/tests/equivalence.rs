//! One session, many ways: whatever the chunks, the reuse and the order of branches, the logits are the same bits.

use lily_engine::backend::cpu::{CpuMode, isa::Isa};
use lily_engine::cache::CacheOptions;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Advance, Engine, EngineOptions};
use lily_engine::session::Session;
use std::ops::ControlFlow;
use std::path::PathBuf;

const CHECKPOINTS: [&str; 3] = ["hf/family_heads", "mlx/base-q4g64", "mlx/experts-q8g32"];

/// An engine that remembers nothing but what its sessions hold.
fn engine(name: &str, chunk_tokens: usize, cpu: CpuMode) -> Engine {
    engine_with(name, chunk_tokens, cpu, CacheOptions { bytes: 0, ..CacheOptions::default() })
}

fn engine_with(name: &str, chunk_tokens: usize, cpu: CpuMode, cache: CacheOptions) -> Engine {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints").join(name);
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{e}"));
    let options = EngineOptions {
        context_tokens: 640,
        chunk_tokens: Some(chunk_tokens),
        cpu,
        cache,
        ..EngineOptions::for_this_machine()
    };
    Engine::new(checkpoint, &options).unwrap_or_else(|e| panic!("{e}"))
}

fn fast() -> impl Iterator<Item = CpuMode> {
    Isa::supported().map(CpuMode::Fast)
}

/// Token ids from a small generator: the same seed, the same ids.
fn tokens(engine: &Engine, seed: u64, count: usize) -> Vec<u32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 33) as u32 % engine.model().shape.vocab as u32
    };
    (0..count).map(|_| next()).collect()
}

fn advance(engine: &mut Engine, session: &mut Session, tokens: &[u32], boundaries: &[usize]) -> Advance {
    engine.advance(session, tokens, boundaries, &mut |_, _| ControlFlow::Continue(())).unwrap()
}

fn bits(session: &Session) -> Vec<u32> {
    session.logits().unwrap().iter().map(|x| x.to_bits()).collect()
}

fn cold(engine: &mut Engine, tokens: &[u32]) -> Vec<u32> {
    let mut session = engine.new_session().unwrap();
    advance(engine, &mut session, tokens, &[]);
    bits(&session)
}

#[test]
fn chunks_do_not_matter_and_a_prefill_is_its_decode_steps() {
    for (name, cpu) in CHECKPOINTS.into_iter().flat_map(|name| fast().map(move |cpu| (name, cpu))) {
        let mut whole = engine(name, 512, cpu);
        let prompt = tokens(&whole, 1, 70);
        let want = cold(&mut whole, &prompt);
        for chunk_tokens in [1, 2, 3, 7, 32, 64] {
            let got = cold(&mut engine(name, chunk_tokens, cpu), &prompt);
            assert!(got == want, "{name} {cpu:?}: chunks of {chunk_tokens} change the logits");
        }
        let mut session = whole.new_session().unwrap();
        prompt.iter().for_each(|&token| whole.decode(&mut session, token).unwrap());
        assert!(bits(&session) == want, "{name} {cpu:?}: decode steps change the logits");
    }
}

#[test]
fn chunks_do_not_matter_beyond_one_block_of_keys() {
    let cpu = fast().last().unwrap();
    let mut whole = engine("mlx/base-q4g64", 512, cpu);
    let prompt = tokens(&whole, 2, 600);
    let want = cold(&mut whole, &prompt);
    assert!(cold(&mut engine("mlx/base-q4g64", 100, cpu), &prompt) == want);
    let mut session = whole.new_session().unwrap();
    prompt.iter().for_each(|&token| whole.decode(&mut session, token).unwrap());
    assert!(bits(&session) == want);
}

#[test]
fn threads_do_not_matter() {
    let want: Vec<Vec<u32>> = [1, 2, 5]
        .map(|threads| {
            let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints/mlx/base-q4g64");
            let options = EngineOptions { context_tokens: 128, threads, ..EngineOptions::for_this_machine() };
            let mut engine = Engine::new(Checkpoint::open(&path).unwrap(), &options).unwrap();
            let prompt = tokens(&engine, 3, 50);
            cold(&mut engine, &prompt)
        })
        .into();
    assert!(want.iter().all(|w| *w == want[0]));
}

#[test]
fn reuse_is_exact_and_reported() {
    for cpu in fast().chain([CpuMode::Reference]) {
        let mut cold_engine = engine("mlx/base-q4g64", 16, cpu);
        let mut engine = engine_with("mlx/base-q4g64", 16, cpu, CacheOptions::default());
        let (first, other) = (tokens(&engine, 4, 40), tokens(&engine, 5, 40));
        let mut session = engine.new_session().unwrap();
        let cold_run = advance(&mut engine, &mut session, &first, &[10, 25]);
        assert_eq!((cold_run.reused_tokens, cold_run.computed_tokens), (0, 40));
        assert_eq!(engine.cache_status().entries, 2);
        let want = bits(&session);

        // The same again: nothing to compute.
        assert_eq!(advance(&mut engine, &mut session, &first, &[]).computed_tokens, 0);
        assert!(bits(&session) == want);

        // Extended: everything reused.
        let longer = [&first[..], &other[..5]].concat();
        assert_eq!(advance(&mut engine, &mut session, &longer, &[]).reused_tokens, 40);
        let want_longer = cold(&mut cold_engine, &longer);
        assert!(bits(&session) == want_longer);

        // Branched at 30: back to the snapshot at 25.
        let branch = [&first[..30], &other[..15]].concat();
        assert_eq!(advance(&mut engine, &mut session, &branch, &[]).reused_tokens, 25);
        let want_branch = cold(&mut cold_engine, &branch);
        assert!(bits(&session) == want_branch, "{cpu:?}: a branch differs from a cold run");

        // Another session finds what this one left.
        let mut second = engine.new_session().unwrap();
        assert_eq!(advance(&mut engine, &mut second, &first, &[]).reused_tokens, 25);
        assert!(bits(&second) == want);

        // Shortened to 12: back to the snapshot at 10. Then nothing in common.
        assert_eq!(advance(&mut engine, &mut session, &first[..12], &[]).reused_tokens, 10);
        let want_short = cold(&mut cold_engine, &first[..12]);
        assert!(bits(&session) == want_short);
        assert_eq!(advance(&mut engine, &mut session, &other, &[]).reused_tokens, 0);
        let want_other = cold(&mut cold_engine, &other);
        assert!(bits(&session) == want_other);

        // Without boundaries, all but the last token is there for whoever sends it again.
        assert_eq!(advance(&mut engine, &mut second, &other, &[]).reused_tokens, 39);
        assert!(bits(&second) == want_other);
    }
}

#[test]
fn long_prompts_leave_snapshots_on_the_way() {
    let cpu = fast().last().unwrap();
    let mut engine = engine_with("mlx/base-q4g64", 16, cpu, CacheOptions::default());
    let (prompt, other) = (tokens(&engine, 8, 400), tokens(&engine, 9, 20));
    let mut session = engine.new_session().unwrap();
    advance(&mut engine, &mut session, &prompt, &[]);
    // An edit in the middle costs a stride of eight chunks at most.
    let edited = [&prompt[..300], &other[..]].concat();
    let mut second = engine.new_session().unwrap();
    assert_eq!(advance(&mut engine, &mut second, &edited, &[]).reused_tokens, 256);
    let want = cold(&mut self::engine("mlx/base-q4g64", 16, cpu), &edited);
    assert!(bits(&second) == want);
}

#[test]
fn a_fork_lives_on_its_own() {
    let mut engine = engine("mlx/base-q4g64", 16, fast().last().unwrap());
    let prompt = tokens(&engine, 6, 30);
    let mut session = engine.new_session().unwrap();
    advance(&mut engine, &mut session, &prompt[..20], &[]);
    let mut fork = engine.fork(&session).unwrap();
    assert!(bits(&fork) == bits(&session));
    advance(&mut engine, &mut session, &[&prompt[..20], &[1, 2, 3]].concat(), &[]);
    advance(&mut engine, &mut fork, &prompt, &[]);
    let want = cold(&mut engine, &prompt);
    assert!(bits(&fork) == want);
}

#[test]
fn a_cancelled_prefill_can_go_on() {
    let mut engine = engine("mlx/base-q4g64", 8, fast().last().unwrap());
    let prompt = tokens(&engine, 7, 40);
    let mut session = engine.new_session().unwrap();
    let stop_at_16 =
        |done: usize, _: usize| if done >= 16 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let went = engine.advance(&mut session, &prompt, &[], &mut { stop_at_16 }).unwrap();
    assert!(went.cancelled && session.tokens().len() == 16 && session.logits().is_none());
    assert_eq!(advance(&mut engine, &mut session, &prompt, &[]).reused_tokens, 16);
    let want = cold(&mut engine, &prompt);
    assert!(bits(&session) == want);
}

#[test]
fn bad_sequences_are_refused_and_change_nothing() {
    let mut engine = engine("mlx/base-q4g64", 8, fast().last().unwrap());
    let mut session = engine.new_session().unwrap();
    advance(&mut engine, &mut session, &[1, 2, 3], &[]);
    let mut refuse = |tokens: &[u32], words: &str| {
        let error = engine.advance(&mut session, tokens, &[], &mut |_, _| ControlFlow::Continue(())).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(session.tokens(), [1, 2, 3]);
    };
    refuse(&[], "at least one");
    refuse(&[1, 99_999], "99999 is not in the model's vocabulary");
    refuse(&[1; 641], "641 tokens do not fit into a context of 640");
}
