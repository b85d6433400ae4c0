//! Arguments of the commands that measure, and of the one that draws what they measured. How lengths are read and measured
//! is `crate::measure`.

use crate::commands::bench::peer::Peer;
use crate::load::{DeviceArgs, ModelArgs};
use crate::measure::{Lengths, parse_tokens};
use clap::Args;
use lily_engine::model::Mechanism;
use std::path::PathBuf;

/// What `lily bench` and `lily ablate` have in common: what to measure, on what.
#[derive(Args, Clone, Debug)]
pub struct MeasureArgs {
    /// Prompt lengths to prefill, in tokens: such as 512,4K, or 256..128K for every doubling
    #[arg(long, default_value = "512,2K", value_name = "TOKENS,...")]
    pub prefill: Lengths,
    /// Contexts to decode at, in tokens [default: the lengths of --prefill]
    #[arg(long, value_name = "TOKENS,...")]
    pub context: Option<Lengths>,
    /// Tokens to decode at every context
    #[arg(long, default_value_t = 64, value_name = "TOKENS", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub decode: usize,
    /// Longest prefill chunk, in tokens [default: what suits the device]
    #[arg(long, value_name = "TOKENS", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub chunk: Option<usize>,
    /// Seed of the random tokens
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub publish: PublishArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Where figures go.
#[derive(Args, Clone, Debug)]
pub struct PublishArgs {
    /// Write a record of the figures, as JSON
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Write a page with the figures drawn, as HTML that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print the record instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lily report`.
#[derive(Args, Debug)]
#[command(long_about = "\
Draw the figures of records that bench, ablate and kernels wrote with --record, all of one machine, on one page that needs nothing \
else.")]
pub struct ReportArgs {
    /// Records
    #[arg(required = true, value_name = "FILE")]
    pub records: Vec<PathBuf>,
    /// Page to write, as HTML
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

impl MeasureArgs {
    /// Contexts to decode at.
    pub fn contexts(&self) -> &[usize] {
        &self.context.as_ref().unwrap_or(&self.prefill).0
    }
}

/// Arguments of `lily bench`.
#[derive(Args, Debug)]
#[command(long_about = "\
Measure prefill and decode, by the protocol of published comparisons.

Every round starts each engine as a process of its own, and which comes first alternates. A run whose medians differ by more \
than 3 % between rounds, or whose greedy tokens differ, is refused, and no record of it is written. Before a length is timed, \
up to 4,096 tokens of it and a few steps are computed uncounted.")]
pub struct BenchArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Runs of each in a round; short ones are repeated for a second
    #[arg(long, default_value_t = 3, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub reps: usize,
    /// Rounds; a record needs two
    #[arg(long, default_value_t = 2, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub rounds: usize,
    /// Engine to measure beside lily: mlx-lm, or mlx-lm=PYTHON with the Python that has it, or llama-bench=PATH
    #[arg(long, value_name = "ENGINE")]
    pub peer: Option<Peer>,
    /// The GGUF file that llama-bench measures
    #[arg(long, value_name = "FILE")]
    pub peer_model: Option<PathBuf>,
    /// Decode with temperature 0.7, top-k 20, top-p 0.8 and a presence penalty as well, by turns with greedy runs
    #[arg(long)]
    pub sampled: bool,
    /// Decode so many sessions at once as well, at every context
    #[arg(long, value_delimiter = ',', value_name = "SESSIONS,...", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..))]
    pub batch: Vec<usize>,
    /// Time the first token after a conversation of so many cached tokens and 100 new ones
    #[arg(long, value_name = "TOKENS", value_parser = parse_tokens)]
    pub cached: Option<usize>,
    /// Measure lily in this process, and print it for the process that compares.
    #[arg(long, hide = true)]
    pub arm: bool,
}

/// Arguments of `lily ablate`.
#[derive(Args, Debug)]
pub struct AblateArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// A mechanism to measure, as `lily plan --without` names them; may be given several times [default: all, or none beside
    /// --chunk-sizes or --speculation]
    #[arg(long, value_name = "MECHANISM")]
    pub mechanism: Vec<Mechanism>,
    /// Prefill with chunks of these lengths, each against that of --chunk, on an engine of its own beside the first
    #[arg(long, value_name = "TOKENS,...")]
    pub chunk_sizes: Option<Lengths>,
    /// Decode with steps that check guesses, of so many tokens with the one that is certain, against plain steps: guesses by
    /// look-up in the text, guesses that are all right, and guesses of which none is
    #[arg(long, value_delimiter = ',', value_name = "TOKENS,...", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..=8))]
    pub speculation: Vec<usize>,
    /// Pairs of runs, with and without
    #[arg(long, default_value_t = 6, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub pairs: usize,
}

/// Arguments of `lily kernels`.
#[derive(Args, Debug)]
#[command(long_about = "\
Measure what every kernel of a decode step and of a prefill chunk reaches: bytes and FLOPs a second, beside this machine's \
memory bandwidth, alone and within the step.")]
pub struct KernelsArgs {
    /// Tokens in the context before the step
    #[arg(long, default_value_t = 4096, value_name = "TOKENS", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub context: usize,
    /// Tokens of the prefill chunk
    #[arg(long, default_value_t = 512, value_name = "ROWS", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65536))]
    pub rows: usize,
    /// Sessions that the decode step extends at once
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub sessions: usize,
    /// Runs of each measurement of decoding; prefill gets a quarter
    #[arg(long, default_value_t = 20, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub repeats: usize,
    /// Seed of the random tokens
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub publish: PublishArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}
