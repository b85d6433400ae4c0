//! `lily ablate`: what each mechanism of the GPU plans, each length of prefill chunks, and checking guesses is worth, by running the engine
//! against itself.
//!
//! Two runs make a pair, one with all mechanisms and one without a single one, on the same engine and the same tokens (for
//! lengths of chunks, on two engines); which comes first alternates. A pair's effect is how much faster the first is; the median over pairs is reported with
//! the interval from the least to the greatest, which covers the true median with probability 1 - 2^(1 - pairs).

mod speculation;

use crate::cli::AblateArgs;
use crate::failure::Failure;
use crate::load::{EngineArgs, open};
use crate::measure::{self, Context, Rate};
use crate::output;
use crate::record::{Origin, publish};
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::model::{Mechanism, Mechanisms, Model};
use lily_engine::plan::Plan;
use lily_engine::sampler::SamplingParams;
use serde::Serialize;
use speculation::Speculation;

/// What was measured of one mechanism at one length.
#[derive(Clone, Debug, Serialize)]
struct Effect {
    /// Its name; `chunks-of-N` for prefill chunks of N tokens, against those of the record.
    mechanism: String,
    /// `prefill` or `decode`.
    phase: &'static str,
    /// Tokens of the prompt, or of the context decoded after.
    tokens: usize,
    /// Tokens per second with every mechanism, or with chunks of this length.
    with: Rate,
    /// Tokens per second without this one, or with chunks of the record's length.
    without: Rate,
    /// How much faster it makes the phase, in percent, of every pair.
    percent: Rate,
}

/// Everything measured.
#[derive(Clone, Debug, Serialize)]
struct Record {
    #[serde(flatten)]
    origin: Origin,
    /// Longest prefill chunk.
    chunk_tokens: usize,
    /// Tokens of a run of decoding.
    decode_tokens: usize,
    effects: Vec<Effect>,
    /// Steps that check guesses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    speculation: Vec<Speculation>,
}

/// Runs the command.
pub fn run(args: &AblateArgs) -> Result<(), Failure> {
    let measured = &args.measure;
    let model = measured.model.resolve()?;
    measured.model.introduce(&model);
    let (prefill_lengths, contexts) = (&measured.prefill.0, measured.contexts());
    let most_guessed = args.speculation.iter().max().copied();
    let decoding = contexts.iter().map(|context| context + measured.decode + 1 + 2 * most_guessed.unwrap_or(0));
    let longest = prefill_lengths.iter().copied().chain(decoding).max().unwrap_or(1);
    let engine = EngineArgs { context: Some(longest), device: measured.device.clone() };
    let mut options = engine.options(longest)?;
    options.chunk_tokens = measured.chunk;
    options.cache.bytes = 0; // the same prompt again is computed again
    let mechanisms: Vec<Mechanism> = match (&args.chunk_sizes, most_guessed, args.mechanism.is_empty()) {
        (None, None, true) => Mechanism::ALL.map(|(mechanism, _)| mechanism).to_vec(),
        _ => args.mechanism.clone(),
    };
    if !mechanisms.is_empty() {
        options.mechanisms = Mechanisms::NONE; // memory for what replaces any of them
    } else {
        options.sessions = most_guessed.unwrap_or(options.sessions);
    }
    let asked = args.chunk_sizes.iter().flat_map(|sizes| &sizes.0);
    if let Some(size) = asked.clone().find(|size| **size > longest) {
        return Err(Failure::usage(format_args!(
            "--chunk-sizes {size}: nothing that is measured has more than {longest} tokens; measure longer prompts (--prefill)"
        )));
    }
    let mut engine = Engine::new(open(&model)?, &options)?;
    let chunk_tokens = engine.model().chunk_tokens;
    let sizes = asked.filter(|size| **size != chunk_tokens);
    let bar = output::count_bar("measuring", prefill_lengths.len() + contexts.len() + sizes.clone().count());
    let mut effects = Vec::new();
    for &tokens in prefill_lengths {
        effects.extend(prefill(&mut engine, &mechanisms, tokens, args)?);
        bar.inc(1);
    }
    for &tokens in contexts.iter().filter(|_| !mechanisms.is_empty()) {
        effects.extend(decode(&mut engine, &mechanisms, tokens, args)?);
        bar.inc(1);
    }
    for &size in sizes {
        let mut other = Engine::new(open(&model)?, &EngineOptions { chunk_tokens: Some(size), ..options.clone() })?;
        effects.extend(chunks(&mut other, &mut engine, args)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let speculation = match most_guessed {
        None => Vec::new(),
        Some(_) if mechanisms.is_empty() => speculation::measure(&mut engine, args)?,
        // Plans that may lack a mechanism have no steps of several tokens.
        Some(sessions) => {
            let own = EngineOptions { sessions, mechanisms: Mechanisms::ALL, ..options.clone() };
            speculation::measure(&mut Engine::new(open(&model)?, &own)?, args)?
        }
    };
    let origin = Origin::new(&model, engine.checkpoint(), engine.device(), measured.seed);
    let record = Record { origin, chunk_tokens, decode_tokens: measured.decode, effects, speculation };
    publish(&record, &table(&record), &measured.publish)
}

fn prefill(
    engine: &mut Engine,
    mechanisms: &[Mechanism],
    tokens: usize,
    args: &AblateArgs,
) -> Result<Vec<Effect>, Failure> {
    let prompt = measure::random_tokens(engine.model().shape.vocab, args.measure.seed, tokens);
    let rows = tokens.min(engine.model().chunk_tokens);
    let mut effects = Vec::new();
    for &mechanism in mechanisms {
        let acts =
            mechanism == Mechanism::DeviceRouting || changes(engine, mechanism, |model| model.prefill(rows, true));
        if acts {
            let runs = switched(engine, mechanism, args.pairs, &mut |engine| Ok(Context::fill(engine, &prompt)?.1))?;
            effects.push(effect(mechanism.to_string(), "prefill", tokens, runs));
        }
    }
    Ok(effects)
}

fn decode(
    engine: &mut Engine,
    mechanisms: &[Mechanism],
    tokens: usize,
    args: &AblateArgs,
) -> Result<Vec<Effect>, Failure> {
    engine.switch(engine.own_mechanisms());
    let filled = measure::random_tokens(engine.model().shape.vocab, args.measure.seed, tokens);
    let (context, _) = Context::fill(engine, &filled)?;
    let (steps, greedy) = (args.measure.decode, SamplingParams::greedy());
    let mut run = |engine: &mut Engine| Ok(context.decode(engine, steps, &greedy)?.tokens_per_second);
    let mut effects = Vec::new();
    for &mechanism in mechanisms {
        let acts =
            mechanism == Mechanism::DeviceTokens || changes(engine, mechanism, |model| model.decode(tokens, true));
        if acts {
            let runs = switched(engine, mechanism, args.pairs, &mut run)?;
            effects.push(effect(mechanism.to_string(), "decode", tokens, runs));
        }
    }
    Ok(effects)
}

/// Whether a plan is another one without the mechanism.
fn changes(engine: &mut Engine, mechanism: Mechanism, plan: impl Fn(&Model) -> Plan) -> bool {
    let own = engine.own_mechanisms();
    engine.switch(own.with(mechanism));
    let with = plan(engine.model());
    engine.switch(own.without(mechanism));
    let without = plan(engine.model());
    engine.switch(own);
    let words = |plan: &Plan| -> Vec<(&'static str, Vec<u8>)> {
        plan.dispatches.iter().map(|d| (d.contract.name, d.args.clone())).collect()
    };
    with.serial != without.serial || words(&with) != words(&without)
}

/// The prompts that are long enough to tell chunks of one engine from those of another.
fn chunks(one: &mut Engine, other: &mut Engine, args: &AblateArgs) -> Result<Vec<Effect>, Failure> {
    let name = format!("chunks-of-{}", one.model().chunk_tokens);
    let shorter = one.model().chunk_tokens.min(other.model().chunk_tokens);
    one.switch(one.own_mechanisms());
    other.switch(other.own_mechanisms());
    let mut effects = Vec::new();
    for &tokens in args.measure.prefill.0.iter().filter(|tokens| **tokens > shorter) {
        let prompt = measure::random_tokens(one.model().shape.vocab, args.measure.seed, tokens);
        let runs = pairs(args.pairs, &mut |first| {
            let engine = if first { &mut *one } else { &mut *other };
            Ok(Context::fill(engine, &prompt)?.1)
        })?;
        effects.push(effect(name.clone(), "prefill", tokens, runs));
    }
    Ok(effects)
}

/// Measures with and without a mechanism in turn.
fn switched(
    engine: &mut Engine,
    mechanism: Mechanism,
    count: usize,
    run: &mut dyn FnMut(&mut Engine) -> Result<f64, Failure>,
) -> Result<[Vec<f64>; 2], Failure> {
    let own = engine.own_mechanisms();
    let runs = pairs(count, &mut |with| {
        engine.switch(if with { own.with(mechanism) } else { own.without(mechanism) });
        run(engine)
    })?;
    engine.switch(engine.own_mechanisms());
    Ok(runs)
}

/// Runs both of a pair so many times, which comes first alternating, after a pair that is not counted; `run` is told whether
/// it is the first kind. The rates of both kinds.
fn pairs(count: usize, run: &mut dyn FnMut(bool) -> Result<f64, Failure>) -> Result<[Vec<f64>; 2], Failure> {
    let mut rates = [Vec::new(), Vec::new()];
    for pair in 0..=count {
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for kind in order {
            let rate = run(kind == 0)?;
            if pair > 0 {
                rates[kind].push(rate);
            }
        }
    }
    Ok(rates)
}

fn effect(mechanism: String, phase: &'static str, tokens: usize, [with, without]: [Vec<f64>; 2]) -> Effect {
    let percent = with.iter().zip(&without).map(|(with, without)| 100.0 * (with / without - 1.0)).collect();
    Effect { mechanism, phase, tokens, with: Rate::new(with), without: Rate::new(without), percent: Rate::new(percent) }
}

fn table(record: &Record) -> String {
    let mut text = record.origin.heading();
    text += &format!("chunks of {} tokens, {} tokens decoded\n", record.chunk_tokens, record.decode_tokens);
    if !record.effects.is_empty() {
        text += &effects_table(&record.effects);
    }
    if !record.speculation.is_empty() {
        text += &speculation::table(&record.speculation);
    }
    text
}

fn effects_table(effects: &[Effect]) -> String {
    let mut text = format!(
        "\n{:<18} {:<16} {:>12} {:>12} {:>10} {:>20}\n",
        "", "tokens/s", "with", "without", "effect", "min..max"
    );
    for e in effects {
        let interval = format!("{:+.1}..{:+.1} %", e.percent.min, e.percent.max);
        text += &format!(
            "{:<18} {:<16} {:>12.1} {:>12.1} {:>+8.1} % {:>20}\n",
            e.mechanism,
            format!("{} {}", e.phase, e.tokens),
            e.with.median,
            e.without.median,
            e.percent.median,
            interval
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_alternate_and_the_first_does_not_count() {
        let mut order = Vec::new();
        let rates = pairs(2, &mut |with| {
            order.push(with);
            Ok(order.len() as f64)
        });
        assert_eq!(order, [true, false, false, true, true, false]);
        let rates = rates.unwrap();
        assert_eq!(rates, [[4.0, 5.0], [3.0, 6.0]]);
        let effect = effect("name".to_owned(), "prefill", 8, rates);
        assert_eq!((effect.with.median, effect.percent.max), (4.5, 100.0 * (4.0 / 3.0 - 1.0)));
    }
}
