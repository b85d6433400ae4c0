//! `lily bench`: prefill and decode speed, with what they need to be understood: machine, spread, bytes, bandwidth.

use crate::cli::BenchArgs;
use crate::failure::Failure;
use crate::hardware::{Machine, read_bandwidth};
use crate::load::EngineArgs;
use crate::output;
use lily_engine::engine::Engine;
use lily_engine::kernel::Step;
use lily_engine::plan::report::Report;
use lily_engine::sampler::{History, Sampler, SamplingParams, philox};
use lily_engine::session::Session;
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::Instant;

/// A measured rate over several runs.
#[derive(Clone, Debug, Serialize)]
struct Rate {
    median: f64,
    min: f64,
    max: f64,
    runs: Vec<f64>,
}

impl Rate {
    fn new(runs: Vec<f64>) -> Self {
        let mut sorted = runs.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let n = sorted.len();
        Self { median: (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0, min: sorted[0], max: sorted[n - 1], runs }
    }
}

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
    /// Random token ids, the same for a seed.
    fn tokens(&self, count: usize) -> Vec<u32> {
        let vocab = self.engine.model().shape.vocab as u64;
        // The draw as a fraction of 2^64, times the vocabulary.
        let draw = |i| ((u128::from(philox::draw(self.args.seed, i)) * u128::from(vocab)) >> 64) as u32;
        (0..count as u64).map(draw).collect()
    }

    fn prefill(&mut self, count: usize, done: &dyn Fn()) -> Result<Prefill, Failure> {
        let tokens = self.tokens(count);
        let mut runs = Vec::new();
        for _ in 0..self.args.reps {
            let mut session = self.engine.new_session()?;
            let start = Instant::now();
            self.engine.advance(&mut session, &tokens, &[], &mut |_, _| ControlFlow::Continue(()))?;
            runs.push(count as f64 / start.elapsed().as_secs_f64());
            done();
        }
        Ok(Prefill { tokens: count, tokens_per_second: Rate::new(runs) })
    }

    fn decode(&mut self, context: usize, done: &dyn Fn()) -> Result<Decode, Failure> {
        // A session needs a token before it can decode another.
        let tokens = self.tokens(context.max(1) + self.args.decode);
        let (filled, rest) = tokens.split_at(context.max(1));
        let mut base = self.engine.new_session()?;
        self.engine.advance(&mut base, filled, &[], &mut |_, _| ControlFlow::Continue(()))?;
        let mut runs = Vec::new();
        for _ in 0..self.args.reps {
            let mut session = self.engine.fork(&base)?;
            let start = Instant::now();
            if self.engine.model().traits.chooses_tokens {
                self.decode_ahead(&mut session, rest.len())?;
            } else {
                rest.iter().try_for_each(|&token| self.engine.decode(&mut session, token))?;
            }
            runs.push(rest.len() as f64 / start.elapsed().as_secs_f64());
            done();
        }
        let step = Step { position: (filled.len() + rest.len() / 2) as u32, window: 0 };
        let cost = Report::new(&self.engine.model().decode(context, false), step).total();
        let bytes_per_token = cost.weight_bytes + cost.state_bytes;
        let tokens_per_second = Rate::new(runs);
        Ok(Decode {
            context_tokens: context,
            tokens: rest.len(),
            bandwidth_share: tokens_per_second.median * bytes_per_token / self.bandwidth,
            bytes_per_token,
            tokens_per_second,
        })
    }

    /// Decodes as a generation does on a device that chooses tokens, greedily.
    fn decode_ahead(&mut self, session: &mut Session, count: usize) -> Result<(), Failure> {
        let sampler = Sampler::new(SamplingParams::greedy(), self.engine.model().shape.vocab)?;
        let mut ahead = self.engine.ahead(session, &sampler, History { prompt: &[], generated: &[] })?;
        (0..count).try_for_each(|_| ahead.next(true).map(|_| ()))?;
        Ok(ahead.finish()?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_median_with_its_spread() {
        let rate = Rate::new(vec![3.0, 1.0, 2.0]);
        assert_eq!((rate.median, rate.min, rate.max), (2.0, 1.0, 3.0));
        assert_eq!(Rate::new(vec![1.0, 4.0]).median, 2.5);
    }
}
