//! What one engine measured in one process; and lily's own measuring.

use super::spec::{Length, Spec};
use super::{FIGURE_SECONDS, WARM_SECONDS, WARM_STEPS};
use crate::cli::BenchArgs;
use crate::failure::Failure;
use crate::hardware::{peak_resident_bytes, read_bandwidth};
use crate::load::EngineArgs;
use crate::measure::{self, Context};
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::kernel::Step;
use lily_engine::plan::report::Report;
use lily_engine::sampler::SamplingParams;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// New tokens after a cached conversation.
pub const NEW_TOKENS: usize = 100;
/// Memory for that conversation; the engine takes less where there is less.
const CACHE_BYTES: usize = 16 << 30;

/// What one engine measured. Rates are tokens per second of every run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Arm {
    /// Versions of what ran, by name.
    pub versions: BTreeMap<String, String>,
    /// What it ran on.
    pub device: String,
    /// Seconds until the model was ready.
    pub load_seconds: Option<f64>,
    /// Most memory of the process that was resident; mapped weights count.
    pub host_bytes: Option<u64>,
    /// Most memory of the device.
    pub device_bytes: Option<u64>,
    /// One for each length asked for.
    pub lengths: Vec<ArmLength>,
    /// What only lily tells.
    pub own: Own,
}

/// What was measured at a length.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArmLength {
    /// Tokens of the prompt, or of the context decoded after.
    pub tokens: usize,
    /// Prefill.
    pub prefill: Vec<f64>,
    /// Greedy decoding.
    pub decode: Vec<f64>,
    /// The tokens of every greedy run, where the engine tells.
    pub generated: Vec<Vec<u32>>,
    /// Sampled decoding.
    pub sampled: Vec<f64>,
    /// Decoding several sessions at once: how many, and tokens per second of all.
    pub batch: Vec<(usize, Vec<f64>)>,
    /// Weights and state that a decoded token touches by the plan, in the middle of a run.
    pub bytes_per_token: f64,
}

/// What lily tells of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Own {
    /// Threads of the CPU backend.
    pub threads: usize,
    /// Longest prefill chunk.
    pub chunk_tokens: usize,
    /// Bytes per second that all threads together read, or that a copy within the device's own memory reads and writes.
    pub bandwidth: f64,
    /// Milliseconds to the first token after a cached conversation.
    pub first_token: Vec<f64>,
}

impl Arm {
    /// Whether it answers what was asked.
    pub fn check(&self, spec: &Spec) -> Result<(), String> {
        let asked: Vec<usize> = spec.lengths.iter().map(|length| length.tokens).collect();
        let found: Vec<usize> = self.lengths.iter().map(|length| length.tokens).collect();
        if asked != found {
            let list = |all: &[usize]| all.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            return Err(format!("expected figures of {} tokens, found {:?}", list(&asked), list(&found)));
        }
        for (length, found) in spec.lengths.iter().zip(&self.lengths) {
            for (what, wanted, runs) in
                [("prefill of", length.prefill, &found.prefill), ("decode at", length.decode, &found.decode)]
            {
                let (least, found) = (if wanted { spec.reps } else { 0 }, runs.len());
                if found < least || found > 0 && !wanted {
                    return Err(format!("{what} {}: expected {least} runs or more, found {found}", length.tokens));
                }
                if let Some(wrong) = runs.iter().find(|rate| !(rate.is_finite() && **rate > 0.0)) {
                    return Err(format!("{what} {}: expected rates above 0, found {wrong}", length.tokens));
                }
            }
        }
        Ok(())
    }
}

/// Measures lily in this process.
///
/// # Errors
/// Those of the engine.
pub fn measure(args: &BenchArgs) -> Result<Arm, Failure> {
    let start = Instant::now();
    let options = options(args)?;
    let free_before = device_free_bytes(&options);
    let mut engine = Engine::new(args.measure.model.resolve().and_then(|model| crate::load::open(&model))?, &options)?;
    let load_seconds = start.elapsed().as_secs_f64();
    if let Some(sessions) = args.batch.iter().find(|sessions| **sessions > engine.model().batch) {
        return Err(Failure::usage(format_args!(
            "--batch {sessions}: expected at most {} sessions, which is what one step of this model decodes here",
            engine.model().batch
        )));
    }
    let spec = Spec::new(args, engine.model().shape.vocab);
    let mut arm = Arm { device: engine.device(), load_seconds: Some(load_seconds), ..Arm::default() };
    let warming = Instant::now();
    while warming.elapsed().as_secs_f64() < WARM_SECONDS {
        Context::fill(&mut engine, &spec.tokens[..spec.lengths[0].warm_up])?;
    }
    let mut used = 0;
    for length in &spec.lengths {
        arm.lengths.push(at_length(&mut engine, args, &spec, length, &mut || {
            let free = device_free_bytes(&options);
            used = used.max(free_before.zip(free).map_or(0, |(before, now)| before.saturating_sub(now)));
        })?);
    }
    arm.device_bytes = (used > 0).then_some(used as u64);
    arm.host_bytes = peak_resident_bytes();
    arm.own.bandwidth = engine.bandwidth()?.unwrap_or_else(|| read_bandwidth(options.threads));
    arm.own.threads = options.threads;
    arm.own.chunk_tokens = engine.model().chunk_tokens;
    drop(engine);
    if let Some(cached) = args.cached {
        arm.own.first_token = first_token(args, options, cached)?;
    }
    Ok(arm)
}

/// The engine's options: memory for the longest of what is asked, and no prefix cache, as the same prompt again is to be
/// computed again.
fn options(args: &BenchArgs) -> Result<EngineOptions, Failure> {
    // Sessions of a batch go on from run to run, after a token of their own.
    let runs = if args.batch.is_empty() { 1 } else { args.reps };
    let steps = WARM_STEPS + runs * args.measure.decode + 2;
    let contexts = args.measure.contexts().iter().map(|context| context + steps);
    let longest = args.measure.prefill.0.iter().copied().chain(contexts).max().unwrap_or(1);
    let engine = EngineArgs { context: Some(longest), device: args.measure.device.clone() };
    let mut options = engine.options(longest)?;
    options.chunk_tokens = args.measure.chunk;
    options.cache.bytes = 0;
    options.sessions = args.batch.iter().copied().max().unwrap_or(1);
    Ok(options)
}

/// Memory that a device of its own has left; `None` where it is the host's, or nobody says.
fn device_free_bytes(options: &EngineOptions) -> Option<usize> {
    let device = options.device().ok()?;
    device.traits().chooses_tokens.then(|| device.memory())?.map(|memory| memory.bytes)
}

fn at_length(
    engine: &mut Engine,
    args: &BenchArgs,
    spec: &Spec,
    length: &Length,
    look: &mut dyn FnMut(),
) -> Result<ArmLength, Failure> {
    let tokens = &spec.tokens[..length.tokens];
    let mut result = ArmLength { tokens: length.tokens, ..ArmLength::default() };
    let mut context = Some(Context::fill(engine, &tokens[..length.warm_up])?.0);
    repeat(if length.prefill { spec.reps } else { 0 }, || {
        context = None; // one context's memory at a time
        let (filled, rate) = Context::fill(engine, tokens)?;
        result.prefill.push(rate);
        context = Some(filled);
        Ok(())
    })?;
    let context = match context.filter(|_| length.prefill) {
        Some(context) => context,
        None => Context::fill(engine, tokens)?.0,
    };
    if length.decode {
        decode(engine, args, &context, &mut result)?;
        let step = Step { position: (length.tokens + spec.decode / 2) as u32, window: 0 };
        let cost = Report::new(&engine.model().decode(length.tokens, false), step).total();
        result.bytes_per_token = cost.weight_bytes + cost.state_bytes;
    }
    look();
    for &sessions in args.batch.iter().filter(|_| length.decode) {
        let rates = context.decode_batch(engine, sessions, spec.decode, spec.reps, WARM_STEPS)?;
        result.batch.push((sessions, rates));
    }
    Ok(result)
}

/// Greedy and sampled runs by turns, so that both meet the machine in the same state.
fn decode(engine: &mut Engine, args: &BenchArgs, context: &Context, result: &mut ArmLength) -> Result<(), Failure> {
    let greedy = SamplingParams::greedy();
    let sampled = SamplingParams {
        temperature: 0.7,
        top_k: 20,
        top_p: 0.8,
        presence_penalty: 1.5,
        seed: Some(args.measure.seed),
        ..SamplingParams::default()
    };
    context.decode(engine, WARM_STEPS, &greedy)?;
    if args.sampled {
        context.decode(engine, WARM_STEPS, &sampled)?;
    }
    repeat(args.reps, || {
        let decoded = context.decode(engine, args.measure.decode, &greedy)?;
        result.decode.push(decoded.tokens_per_second);
        result.generated.push(decoded.tokens);
        if args.sampled {
            result.sampled.push(context.decode(engine, args.measure.decode, &sampled)?.tokens_per_second);
        }
        Ok(())
    })
}

/// Runs something so many times, if at all, and until it has taken as long as a figure must.
fn repeat(reps: usize, mut run: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    let (start, mut done) = (Instant::now(), 0);
    while reps > 0 && (done < reps || start.elapsed().as_secs_f64() < FIGURE_SECONDS) {
        run()?;
        done += 1;
    }
    Ok(())
}

/// Times first tokens with an engine that has a prefix cache; the first one is not counted.
fn first_token(args: &BenchArgs, mut options: EngineOptions, cached: usize) -> Result<Vec<f64>, Failure> {
    options.context_tokens = cached + NEW_TOKENS + 1;
    options.sessions = 1;
    options.cache.bytes = CACHE_BYTES;
    let mut engine = Engine::new(crate::load::open(&args.measure.model.resolve()?)?, &options)?;
    let vocab = engine.model().shape.vocab;
    let conversation = measure::random_tokens(vocab, args.measure.seed, cached);
    measure::remember(&mut engine, &conversation)?;
    let mut times = Vec::new();
    repeat(args.reps + 1, || {
        // Other words each time: those of the last run are remembered too.
        let message = measure::random_tokens(vocab, args.measure.seed.wrapping_add(1 + times.len() as u64), NEW_TOKENS);
        times.push(measure::first_token(&mut engine, &[&*conversation, &message].concat(), cached)?);
        Ok(())
    })?;
    Ok(times.split_off(1))
}
