//! `lily ablate`: what each mechanism of the GPU plans is worth, by running the engine against itself.
//!
//! Two runs make a pair, one with all mechanisms and one without a single one, on the same engine and the same tokens;
//! which comes first alternates. A pair's effect is how much faster the first is; the median over pairs is reported with
//! the interval from the least to the greatest, which covers the true median with probability 1 - 2^(1 - pairs).

use crate::cli::AblateArgs;
use crate::failure::Failure;
use crate::load::{EngineArgs, open};
use crate::measure::{self, Context, Rate};
use crate::output;
use crate::record::{Origin, publish};
use lily_engine::engine::Engine;
use lily_engine::model::{Mechanism, Mechanisms, Model};
use lily_engine::plan::Plan;
use lily_engine::sampler::SamplingParams;
use serde::Serialize;

/// What was measured of one mechanism at one length.
#[derive(Clone, Debug, Serialize)]
struct Effect {
    mechanism: &'static str,
    /// `prefill` or `decode`.
    phase: &'static str,
    /// Tokens of the prompt, or of the context decoded after.
    tokens: usize,
    /// Tokens per second with every mechanism.
    with: Rate,
    /// Tokens per second without this one.
    without: Rate,
    /// How much faster it makes the phase, in percent, of every pair.
    percent: Rate,
}

/// Everything measured.
#[derive(Clone, Debug, Serialize)]
struct Record {
    #[serde(flatten)]
    origin: Origin,
    effects: Vec<Effect>,
}

/// Runs the command.
pub fn run(args: &AblateArgs) -> Result<(), Failure> {
    let measured = &args.measure;
    let model = measured.model.resolve()?;
    measured.model.introduce(&model);
    let (prefill_lengths, contexts) = (&measured.prefill.0, measured.contexts());
    let decoding = contexts.iter().map(|context| context + measured.decode + 1);
    let longest = prefill_lengths.iter().copied().chain(decoding).max().unwrap_or(1);
    let engine = EngineArgs { context: Some(longest), device: measured.device.clone() };
    let mut options = engine.options(longest)?;
    options.chunk_tokens = measured.chunk.unwrap_or(options.chunk_tokens);
    options.cache.bytes = 0; // the same prompt again is computed again
    // Memory for what replaces any of them.
    options.mechanisms = Mechanisms::NONE;
    let mut engine = Engine::new(open(&model)?, &options)?;
    let mechanisms: Vec<Mechanism> = match args.mechanism.is_empty() {
        true => Mechanism::ALL.map(|(mechanism, _)| mechanism).to_vec(),
        false => args.mechanism.clone(),
    };
    let bar = output::count_bar("measuring", prefill_lengths.len() + contexts.len());
    let mut effects = Vec::new();
    for &tokens in prefill_lengths {
        effects.extend(prefill(&mut engine, &mechanisms, tokens, args)?);
        bar.inc(1);
    }
    for &tokens in contexts {
        effects.extend(decode(&mut engine, &mechanisms, tokens, args)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let origin = Origin::new(&model, engine.checkpoint(), measured, engine.device(), options.chunk_tokens);
    let record = Record { origin, effects };
    publish(&record, &table(&record), measured)
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
            let (with, without) =
                pairs(engine, mechanism, args.pairs, &mut |engine| Ok(Context::fill(engine, &prompt)?.1))?;
            effects.push(effect(mechanism, "prefill", tokens, with, without));
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
    engine.switch(Mechanisms::ALL);
    let filled = measure::random_tokens(engine.model().shape.vocab, args.measure.seed, tokens);
    let (context, _) = Context::fill(engine, &filled)?;
    let (steps, greedy) = (args.measure.decode, SamplingParams::greedy());
    let mut run = |engine: &mut Engine| Ok(context.decode(engine, steps, &greedy)?.tokens_per_second);
    let mut effects = Vec::new();
    for &mechanism in mechanisms {
        let acts =
            mechanism == Mechanism::DeviceTokens || changes(engine, mechanism, |model| model.decode(tokens, true));
        if acts {
            let (with, without) = pairs(engine, mechanism, args.pairs, &mut run)?;
            effects.push(effect(mechanism, "decode", tokens, with, without));
        }
    }
    Ok(effects)
}

/// Whether a plan is another one without the mechanism.
fn changes(engine: &mut Engine, mechanism: Mechanism, plan: impl Fn(&Model) -> Plan) -> bool {
    engine.switch(Mechanisms::ALL);
    let with = plan(engine.model());
    engine.switch(Mechanisms::ALL.without(mechanism));
    let without = plan(engine.model());
    let words = |plan: &Plan| -> Vec<(&'static str, Vec<u8>)> {
        plan.dispatches.iter().map(|d| (d.contract.name, d.args.clone())).collect()
    };
    with.serial != without.serial || words(&with) != words(&without)
}

/// Measures with and without a mechanism in turn, after a run of each that is not counted.
fn pairs(
    engine: &mut Engine,
    mechanism: Mechanism,
    pairs: usize,
    run: &mut dyn FnMut(&mut Engine) -> Result<f64, Failure>,
) -> Result<(Vec<f64>, Vec<f64>), Failure> {
    let arms = [Mechanisms::ALL, Mechanisms::ALL.without(mechanism)];
    let mut rates = [Vec::new(), Vec::new()];
    for pair in 0..=pairs {
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for arm in order {
            engine.switch(arms[arm]);
            let rate = run(engine)?;
            if pair > 0 {
                rates[arm].push(rate);
            }
        }
    }
    engine.switch(Mechanisms::ALL);
    let [with, without] = rates;
    Ok((with, without))
}

fn effect(mechanism: Mechanism, phase: &'static str, tokens: usize, with: Vec<f64>, without: Vec<f64>) -> Effect {
    let percent = with.iter().zip(&without).map(|(with, without)| 100.0 * (with / without - 1.0)).collect();
    Effect {
        mechanism: mechanism.name(),
        phase,
        tokens,
        with: Rate::new(with),
        without: Rate::new(without),
        percent: Rate::new(percent),
    }
}

fn table(record: &Record) -> String {
    let mut text = record.origin.heading();
    text += &format!(
        "\n{:<18} {:<16} {:>12} {:>12} {:>10} {:>20}\n",
        "", "tokens/s", "with", "without", "effect", "min..max"
    );
    for e in &record.effects {
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
