//! `lily kernels`: what every kernel of a decode step and of a prefill chunk reaches, beside the bandwidth of this machine.
//!
//! Bytes and FLOPs are those of the kernels' contracts: the least that a launch must move, and what the formulas say. How
//! times are measured is in the engine's `timing`.

use crate::cli::KernelsArgs;
use crate::failure::Failure;
use crate::hardware::read_bandwidth;
use crate::load::{EngineArgs, open};
use crate::measure::{self, Rate};
use crate::output;
use crate::record::{Origin, publish};
use lily_engine::engine::{Engine, StepTimes};
use lily_engine::plan::report::Report;
use lily_engine::plan::stages::stages;
use lily_engine::sampler::{Sampler, SamplingParams};
use lily_engine::session::Session;
use serde::Serialize;
use std::ops::ControlFlow;

/// One kernel of a step.
#[derive(Clone, Debug, Serialize)]
struct Kernel {
    kernel: &'static str,
    /// Launches in the step.
    launches: usize,
    /// Milliseconds of all of them back to back, each waiting for the one before it.
    alone_ms: f64,
    /// Milliseconds that the step is shorter without them; on a CPU their sum one by one.
    within_ms: f64,
    /// Bytes of weights that all of them must move at least.
    weight_bytes: f64,
    /// The same of KV cache and recurrent state.
    state_bytes: f64,
    /// The same of activations.
    activation_bytes: f64,
    flops: f64,
}

/// One launch of a step, measured one by one.
#[derive(Clone, Debug, Serialize)]
struct Launch {
    kernel: &'static str,
    /// Launches of one stage do not depend on each other.
    stage: usize,
    ms: f64,
}

/// A step.
#[derive(Clone, Debug, Serialize)]
struct Phase {
    /// `prefill` or `decode`.
    phase: &'static str,
    /// Tokens before it.
    context_tokens: usize,
    /// Tokens that it computes.
    rows: usize,
    /// Milliseconds of the step as it is run, from its start to its end on the host.
    step_ms: Rate,
    kernels: Vec<Kernel>,
    /// Every launch in the plan's order; only of a decode step, and where the device can say.
    launches: Option<Vec<Launch>>,
}

/// Everything measured.
#[derive(Clone, Debug, Serialize)]
struct Record {
    #[serde(flatten)]
    origin: Origin,
    /// Threads of the CPU backend.
    threads: usize,
    repeats: usize,
    /// Bytes per second that all threads together read, or that a copy within the device's own memory reads and writes.
    bandwidth: f64,
    phases: Vec<Phase>,
}

/// Runs the command.
pub fn run(args: &KernelsArgs) -> Result<(), Failure> {
    let model = args.model.resolve()?;
    args.model.introduce(&model);
    let checkpoint = open(&model)?;
    let engine = EngineArgs { context: Some(args.context + args.rows), device: args.device.clone() };
    let mut options = engine.options(checkpoint.weights.shape.max_context_tokens)?;
    options.chunk_tokens = Some(args.rows);
    options.sessions = args.sessions;
    options.cache.bytes = 0; // the same context again is computed again
    let mut engine = Engine::new(checkpoint, &options)?;
    if args.sessions > engine.model().batch {
        return Err(Failure::usage(format_args!(
            "--sessions {}: expected at most {}, which is what one step of this model decodes here",
            args.sessions,
            engine.model().batch
        )));
    }
    let bandwidth = engine.bandwidth()?.unwrap_or_else(|| read_bandwidth(options.threads));
    let bar = output::count_bar("measuring", 2);
    let sampler = Sampler::new(SamplingParams::greedy(), engine.model().shape.vocab)?;
    let mut contexts = vec![fill(&mut engine, args)?];
    for _ in 1..args.sessions {
        contexts.push(engine.fork(&contexts[0])?);
    }
    let decode = phase("decode", args.sessions, engine.time_decode(contexts, &sampler, args.repeats)?);
    bar.inc(1);
    let context = fill(&mut engine, args)?;
    let rows = measure::random_tokens(engine.model().shape.vocab, args.seed.wrapping_add(1), args.rows);
    let chunk = phase("prefill", args.rows, engine.time_chunk(context, rows, args.repeats.div_ceil(4))?);
    bar.finish_and_clear();
    let record = Record {
        origin: Origin::new(&model, engine.checkpoint(), engine.device(), args.seed),
        threads: options.threads,
        repeats: args.repeats,
        bandwidth,
        phases: vec![decode, Phase { launches: None, ..chunk }],
    };
    publish(&record, &table(&record), &args.publish)
}

/// A session with the context, and logits.
fn fill(engine: &mut Engine, args: &KernelsArgs) -> Result<Session, Failure> {
    let tokens = measure::random_tokens(engine.model().shape.vocab, args.seed, args.context);
    let mut session = engine.new_session()?;
    engine.advance(&mut session, &tokens, &[], &mut |_, _| ControlFlow::Continue(()))?;
    Ok(session)
}

fn phase(phase: &'static str, rows: usize, times: StepTimes) -> Phase {
    let report = Report::new(&times.plan, times.step);
    let kernels = report.rows.iter().zip(&times.kernels).map(|(row, time)| {
        assert_eq!(row.kernel, time.kernel, "both are in order of first use");
        Kernel {
            kernel: row.kernel,
            launches: row.launches,
            alone_ms: 1e3 * time.alone,
            within_ms: 1e3 * time.within,
            weight_bytes: row.weight_bytes,
            state_bytes: row.state_bytes,
            activation_bytes: row.activation_bytes,
            flops: row.flops,
        }
    });
    let launches = times.launches.as_ref().map(|seconds| {
        let places = times.plan.dispatches.iter().zip(stages(&times.plan)).zip(seconds);
        places.map(|((d, stage), s)| Launch { kernel: d.contract.name, stage, ms: 1e3 * s }).collect()
    });
    Phase {
        phase,
        context_tokens: times.step.position as usize,
        rows,
        step_ms: Rate::new(times.whole.iter().map(|seconds| 1e3 * seconds).collect()),
        kernels: kernels.collect(),
        launches,
    }
}

impl Kernel {
    fn bytes(&self) -> f64 {
        self.weight_bytes + self.state_bytes + self.activation_bytes
    }
}

fn table(record: &Record) -> String {
    let mut text = record.origin.heading();
    text += &format!("memory bandwidth {:.1} GB/s\n", record.bandwidth / 1e9);
    for phase in &record.phases {
        let step = &phase.step_ms;
        text += &format!(
            "\n{} of {} rows after {} tokens: {:.3} ms ({:.3}..{:.3})\n",
            phase.phase, phase.rows, phase.context_tokens, step.median, step.min, step.max
        );
        text += &format!(
            "{:<22} {:>8} {:>10} {:>10} {:>10} {:>9} {:>12} {:>10} {:>9}\n",
            "kernel", "launches", "alone ms", "within ms", "MB", "GB/s", "of bandwidth", "GFLOP", "TFLOP/s"
        );
        for k in &phase.kernels {
            let seconds = k.alone_ms / 1e3;
            text += &format!(
                "{:<22} {:>8} {:>10.3} {:>10.3} {:>10.1} {:>9.1} {:>10.1} % {:>10.3} {:>9.3}\n",
                k.kernel,
                k.launches,
                k.alone_ms,
                k.within_ms,
                k.bytes() / 1e6,
                k.bytes() / seconds / 1e9,
                100.0 * k.bytes() / seconds / record.bandwidth,
                k.flops / 1e9,
                k.flops / seconds / 1e12
            );
        }
        let sum = |of: fn(&Kernel) -> f64| phase.kernels.iter().map(of).sum::<f64>();
        text += &format!(
            "{:<22} {:>8} {:>10.3} {:>10.3} {:>10.1} {:>9} {:>12} {:>10.3}\n",
            "all",
            phase.kernels.iter().map(|k| k.launches).sum::<usize>(),
            sum(|k| k.alone_ms),
            sum(|k| k.within_ms),
            sum(Kernel::bytes) / 1e6,
            "",
            "",
            sum(|k| k.flops) / 1e9
        );
    }
    text
}
