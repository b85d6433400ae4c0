//! `lily eval determinism`: whether the same tokens give the same bits, whatever came before and however they were cut.
//!
//! A prompt is computed again, in chunks of other lengths, and from what the prefix cache kept of it; a greedy answer is
//! written again. Logits must be the same to the bit.

use crate::cli::EvalDeterminismArgs;
use crate::failure::Failure;
use crate::load::open;
use crate::{measure, output};
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::generate::{Event, Request, generate};
use lily_engine::sampler::SamplingParams;
use serde::Serialize;
use std::ops::ControlFlow;

/// Other lengths of chunks: neither divides the usual ones.
const CHUNKS: [usize; 2] = [77, 192];

/// One way to compute the same, and what came of it.
#[derive(Clone, Debug, Serialize)]
struct Check {
    way: String,
    /// Tokens whose state was there already.
    reused_tokens: usize,
    same: bool,
    /// Largest difference of a logit; 0 where tokens were compared.
    max_abs_difference: f32,
}

#[derive(Clone, Debug, Serialize)]
struct Report {
    device: String,
    prompt_tokens: usize,
    answer_tokens: usize,
    checks: Vec<Check>,
}

/// Runs the command.
pub fn run(args: &EvalDeterminismArgs) -> Result<(), Failure> {
    let model = args.model.resolve()?;
    args.model.introduce(&model);
    let checkpoint = open(&model)?;
    let vocab = checkpoint.weights.shape.vocab;
    let mut options = args.engine.options(checkpoint.weights.shape.max_context_tokens)?;
    let tokens = measure::random_tokens(vocab, args.seed, args.tokens);
    let cache_bytes = std::mem::take(&mut options.cache.bytes);
    let bar = output::count_bar("computing", 4 + CHUNKS.len());
    let mut engine = Engine::new(checkpoint, &options)?;
    let device = engine.device();
    let want = in_chunks(&mut engine, &tokens, usize::MAX)?;
    bar.inc(1);
    let mut checks = vec![compare("again", 0, &want, &in_chunks(&mut engine, &tokens, usize::MAX)?)];
    bar.inc(1);
    for most in CHUNKS.into_iter().filter(|most| *most < tokens.len()) {
        let way = format!("in chunks of {most}");
        checks.push(compare(&way, 0, &want, &in_chunks(&mut engine, &tokens, most)?));
        bar.inc(1);
    }
    let first = answer(&mut engine, &tokens, args.answer)?;
    let again = answer(&mut engine, &tokens, args.answer)?;
    checks.push(Check {
        way: "answer again".to_owned(),
        reused_tokens: 0,
        same: first == again,
        max_abs_difference: 0.0,
    });
    bar.inc(1);
    drop(engine);
    options.cache.bytes = cache_bytes;
    checks.extend(from_the_cache(Engine::new(open(&model)?, &options)?, &options, &tokens, &want)?);
    bar.finish_and_clear();
    let report = Report { device, prompt_tokens: tokens.len(), answer_tokens: first.len(), checks };
    if args.json {
        output::json(&report)?
    } else {
        output::write(&table(&report))?
    }
    if report.checks.iter().all(|check| check.same) { Ok(()) } else { Err(Failure::silent()) }
}

/// Logits of the last of some tokens, computed from nothing in chunks of at most so many.
fn in_chunks(engine: &mut Engine, tokens: &[u32], most_tokens: usize) -> Result<Vec<f32>, Failure> {
    let mut session = engine.new_session()?;
    engine.check(tokens)?;
    while session.tokens().len() < tokens.len() {
        engine.prefill(&mut session, tokens, &[], most_tokens)?;
    }
    Ok(session.logits().expect("the last chunk leaves logits").to_vec())
}

/// The tokens of a greedy answer.
fn answer(engine: &mut Engine, tokens: &[u32], most: usize) -> Result<Vec<u32>, Failure> {
    let mut session = engine.new_session()?;
    let request = Request {
        prompt: tokens.to_vec(),
        vocab: engine.model().shape.vocab,
        sampling: SamplingParams::greedy(),
        max_tokens: Some(most),
        ..Request::default()
    };
    let mut answer = Vec::new();
    generate(engine, &mut session, &request, &mut |event| {
        if let Event::Token { token, .. } = event {
            answer.push(token.id);
        }
        ControlFlow::Continue(())
    })?;
    Ok(answer)
}

/// Computes the prompt on an engine that remembers, and then in a new session from what it remembers.
fn from_the_cache(
    mut engine: Engine,
    options: &EngineOptions,
    tokens: &[u32],
    want: &[f32],
) -> Result<Vec<Check>, Failure> {
    let half = [tokens.len() / 2];
    let mut checks = Vec::new();
    for way in ["on another engine", "from the prefix cache"] {
        let mut session = engine.new_session()?;
        let advance = engine.advance(&mut session, tokens, &half, &mut |_, _| ControlFlow::Continue(()))?;
        let logits = session.logits().expect("a prompt leaves logits");
        checks.push(compare(way, advance.reused_tokens, want, logits));
    }
    if checks[1].reused_tokens == 0 {
        return Err(Failure::other(format_args!(
            "the prefix cache of {} bytes kept nothing of {} tokens; expected room for their state",
            options.cache.bytes,
            tokens.len()
        )));
    }
    Ok(checks)
}

fn compare(way: &str, reused_tokens: usize, want: &[f32], got: &[f32]) -> Check {
    let differences = want.iter().zip(got).map(|(w, g)| (w - g).abs());
    Check {
        way: way.to_owned(),
        reused_tokens,
        same: want.iter().map(|x| x.to_bits()).eq(got.iter().map(|x| x.to_bits())),
        max_abs_difference: differences.fold(0.0, f32::max),
    }
}

fn table(report: &Report) -> String {
    let mut text = format!(
        "{} tokens on {}, and a greedy answer of {}\n\n{:<24} {:>8} {:>10} {:>20}\n",
        report.prompt_tokens, report.device, report.answer_tokens, "", "reused", "same bits", "largest difference"
    );
    for c in &report.checks {
        let same = if c.same { "yes" } else { "NO" };
        text += &format!("{:<24} {:>8} {same:>10} {:>20}\n", c.way, c.reused_tokens, c.max_abs_difference);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_with_other_bits_are_not_the_same() {
        assert!(compare("", 0, &[1.0, 2.0], &[1.0, 2.0]).same);
        let check = compare("", 0, &[1.0, 0.0], &[1.0, -0.0]);
        assert!(!check.same && check.max_abs_difference == 0.0);
        assert_eq!(compare("", 0, &[1.0, 2.0], &[1.0, 2.5]).max_abs_difference, 0.5);
    }
}
