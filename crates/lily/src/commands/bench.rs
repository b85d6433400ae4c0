//! `lily bench`: prefill and decode speed, with what they need to be understood: machine, spread, bytes, bandwidth.

use crate::cli::BenchArgs;
use crate::failure::Failure;
use crate::hardware::{Machine, read_bandwidth};
use crate::load::EngineArgs;
use crate::measure::{self, Context, Rate};
use crate::output;
use lily_engine::engine::Engine;
use lily_engine::kernel::Step;
use lily_engine::plan::report::Report;
use serde::Serialize;

/// Prefill of a fresh session.
#[derive(Clone, Debug, Serialize)]
struct Prefill {
    tokens: usize,
    tokens_per_second: Rate,
}

/// Decoding after a context.
#[derive(Clone, Debug, Serialize)]
struct Decode {
    context_tokens: usize,
    tokens: usize,
    tokens_per_second: Rate,
    /// Weights and state that a token touches by the plan, in the middle of the run.
    bytes_per_token: f64,
    /// Share of the measured bandwidth that these bytes come to.
    bandwidth_share: f64,
}

/// Everything measured.
#[derive(Clone, Debug, Serialize)]
struct Record {
    lily: &'static str,
    commit: &'static str,
    machine: Machine,
    device: String,
    threads: usize,
    /// Longest prefill chunk.
    chunk_tokens: usize,
    checkpoint: String,
    weight_bytes: usize,
    seed: u64,
    /// Bytes per second that all threads together read, or that a copy within the device's own memory reads and writes.
    bandwidth: f64,
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let longest =
        args.prefill.iter().copied().chain(args.context.iter().map(|c| c + args.decode + 1)).max().unwrap_or(1);
    if args.prefill.contains(&0) {
        return Err(Failure::usage("--prefill 0: expected at least 1 token"));
    }
    let checkpoint = args.model.open()?;
    let engine = EngineArgs { context: Some(longest), device: args.device.clone() };
    let mut options = engine.options(checkpoint.weights.shape.max_context_tokens)?;
    options.chunk_tokens = args.chunk.unwrap_or(options.chunk_tokens);
    options.cache.bytes = 0; // the same prompt again is computed again
    let mut engine = Engine::new(checkpoint, &options)?;
    let bandwidth = engine.bandwidth()?.unwrap_or_else(|| read_bandwidth(options.threads));
    let mut bench = Bench { engine, args, bandwidth };
    let bar = output::count_bar("measuring", (args.prefill.len() + args.context.len()) * args.reps);
    let mut prefill = Vec::new();
    for &tokens in &args.prefill {
        prefill.push(bench.prefill(tokens, &|| bar.inc(1))?);
    }
    let mut decode = Vec::new();
    for &context in &args.context {
        decode.push(bench.decode(context, &|| bar.inc(1))?);
    }
    bar.finish_and_clear();
    let record = Record {
        lily: env!("CARGO_PKG_VERSION"),
        commit: env!("LILY_COMMIT"),
        machine: Machine::this(),
        device: bench.engine.device(),
        threads: options.threads,
        chunk_tokens: options.chunk_tokens,
        checkpoint: bench.engine.checkpoint().path().display().to_string(),
        weight_bytes: bench.engine.checkpoint().weight_bytes(),
        seed: args.seed,
        bandwidth,
        prefill,
        decode,
    };
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&record).expect("plain JSON");
        std::fs::write(path, text + "\n").map_err(|e| Failure::file("write the record", path, e))?;
    }
    if args.json { output::json(&record) } else { output::write(&table(&record)) }
}

struct Bench<'a> {
    engine: Engine,
    args: &'a BenchArgs,
    bandwidth: f64,
}

impl Bench<'_> {
    fn tokens(&self, count: usize) -> Vec<u32> {
        measure::random_tokens(&self.engine, self.args.seed, count)
    }

    fn prefill(&mut self, count: usize, done: &dyn Fn()) -> Result<Prefill, Failure> {
        let tokens = self.tokens(count);
        let mut runs = Vec::new();
        for _ in 0..self.args.reps {
            runs.push(measure::prefill(&mut self.engine, &tokens)?);
            done();
        }
        Ok(Prefill { tokens: count, tokens_per_second: Rate::new(runs) })
    }

    fn decode(&mut self, context: usize, done: &dyn Fn()) -> Result<Decode, Failure> {
        // A session needs a token before it can decode another.
        let (filled, steps) = (self.tokens(context.max(1)), self.args.decode);
        let measured = Context::fill(&mut self.engine, &filled)?;
        let mut runs = Vec::new();
        for _ in 0..self.args.reps {
            runs.push(measured.decode(&mut self.engine, steps)?);
            done();
        }
        let step = Step { position: (filled.len() + steps / 2) as u32, window: 0 };
        let cost = Report::new(&self.engine.model().decode(context, false), step).total();
        let bytes_per_token = cost.weight_bytes + cost.state_bytes;
        let tokens_per_second = Rate::new(runs);
        Ok(Decode {
            context_tokens: context,
            tokens: steps,
            bandwidth_share: tokens_per_second.median * bytes_per_token / self.bandwidth,
            bytes_per_token,
            tokens_per_second,
        })
    }
}

fn table(record: &Record) -> String {
    let mut text = format!(
        "{} on {}\n{} ({:.2} GB of weights), commit {}\nmemory bandwidth {:.1} GB/s\n\n{:<22} {:>10} {:>22} {:>12} {:>12}\n",
        record.device,
        record.machine.processor,
        record.checkpoint,
        record.weight_bytes as f64 / 1e9,
        record.commit,
        record.bandwidth / 1e9,
        "",
        "tokens/s",
        "min..max",
        "MB a token",
        "of bandwidth"
    );
    let spread = |r: &Rate| format!("{:.2}..{:.2}", r.min, r.max);
    for p in &record.prefill {
        let rate = &p.tokens_per_second;
        text += &format!("{:<22} {:>10.2} {:>22}\n", format!("prefill {}", p.tokens), rate.median, spread(rate));
    }
    for d in &record.decode {
        let rate = &d.tokens_per_second;
        text += &format!(
            "{:<22} {:>10.2} {:>22} {:>12.1} {:>10.1} %\n",
            format!("decode {} at {}", d.tokens, d.context_tokens),
            rate.median,
            spread(rate),
            d.bytes_per_token / 1e6,
            100.0 * d.bandwidth_share
        );
    }
    text
}
