//! Every command and flag, in one place: help, man page and completions are made from it. Those of the commands that measure
//! are in `measurements`.

mod measurements;

use crate::clients::Client;
use crate::load::{EngineArgs, ModelArgs};
use crate::output::Color;
use crate::sampling::SamplingArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use lily_engine::model::Mechanism;
use std::path::PathBuf;

pub use measurements::{AblateArgs, BenchArgs, KernelsArgs, PublishArgs, ReportArgs};

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed
  2    the command line makes no sense
  3    the model is missing or was refused
  4    not enough memory
  5    the backend or its instruction set is not available
  130  interrupted by Ctrl-C

stdout is data; everything else goes to stderr. Every flag with an environment variable can be set by it; the flag wins.";

/// Runs Qwen3.5/3.6-MoE models on one machine.
#[derive(Parser, Debug)]
#[command(name = "lily", version, after_long_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// When to colour stderr; NO_COLOR and TERM=dumb are heeded
    #[arg(long, global = true, env = "LILY_COLOR", hide_env_values = true, value_enum, default_value_t = Color::Auto,
          value_name = "WHEN", hide_possible_values = true)]
    pub color: Color,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Answer one prompt
    Run(RunArgs),
    /// Talk with a model
    Chat(ChatArgs),
    /// Answer HTTP clients: OpenAI's and Anthropic's APIs, and a chat page
    Serve(ServeArgs),
    /// Show the kernels of a step and what they cost
    Plan(PlanArgs),
    /// Describe a checkpoint
    Inspect(InspectArgs),
    /// Turn a bf16 checkpoint into MLX's affine form
    Quantize(QuantizeArgs),
    /// Write a random checkpoint, for benchmarks and tests
    Synth(SynthArgs),
    /// Show the tokens of a text
    Tokenize(TokenizeArgs),
    /// Judge a model's answers
    #[command(subcommand)]
    Eval(EvalCommand),
    /// Measure prefill and decode
    Bench(BenchArgs),
    /// Measure what each mechanism of the GPU plans is worth
    Ablate(AblateArgs),
    /// Measure what every kernel reaches
    Kernels(KernelsArgs),
    /// Draw the figures of records on a page
    Report(ReportArgs),
    /// Show what lily sees of this machine
    Doctor(DoctorArgs),
    /// Print a completion script
    Completions(CompletionsArgs),
    /// Print the manual page
    Man,
}

/// Arguments of `lily run`.
#[derive(Args, Debug)]
#[command(long_about = "\
Answer one prompt, streaming the answer to stdout.

The prompt is the argument, followed by the content of --file; without either it is read from stdin. What the model \
thinks is shown on stderr while that is a terminal, and is part of --json.")]
pub struct RunArgs {
    /// The prompt
    pub prompt: Option<String>,
    /// Read (the rest of) the prompt from a file
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// System message
    #[arg(long, env = "LILY_SYSTEM", hide_env_values = true, value_name = "TEXT")]
    pub system: Option<String>,
    /// Continue the prompt as plain text, without the chat template
    #[arg(long, conflicts_with_all = ["system", "think", "no_think"])]
    pub raw: bool,
    /// Print one JSON object when done: text, reasoning, finish reason, usage, timings
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Arguments of `lily chat`.
#[derive(Args, Debug)]
#[command(long_about = "\
Talk with a model. Ctrl-C stops the answer, Ctrl-D ends the chat, /help lists the commands.

The lines typed are kept in $XDG_STATE_HOME/lily/history (~/.local/state/lily/history). Where stdin is no terminal, each \
of its lines is a message.")]
pub struct ChatArgs {
    /// System message
    #[arg(long, env = "LILY_SYSTEM", hide_env_values = true, value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Arguments of `lily serve`.
#[derive(Args, Debug)]
#[command(long_about = "\
Answer HTTP clients: OpenAI's chat completions, completions and Responses, Anthropic's Messages, and a chat page at /.

Prints the base URLs to stdout, as variables that clients read, once it answers. Ctrl-C or SIGTERM ends it when the answers \
under way are complete, a second Ctrl-C at once. Prompts and answers are never logged.")]
pub struct ServeArgs {
    /// Model, as --model
    #[arg(value_name = "MODEL")]
    pub name: Option<String>,
    /// Address to listen at; others than loopback need a key
    #[arg(
        long,
        env = "LILY_HOST",
        hide_env_values = true,
        value_name = "ADDRESS",
        default_value = "127.0.0.1",
        help_heading = "Network"
    )]
    pub host: String,
    /// Port to listen at; 0 takes any that is free
    #[arg(
        long,
        env = "LILY_PORT",
        hide_env_values = true,
        value_name = "PORT",
        default_value_t = 8080,
        help_heading = "Network"
    )]
    pub port: u16,
    /// Key that clients must send, as a bearer token or in x-api-key; better in the environment, as others see arguments
    #[arg(long, env = "LILY_API_KEY", hide_env_values = true, value_name = "KEY", help_heading = "Network",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub api_key: Option<String>,
    /// Listen beyond loopback without a key
    #[arg(long, env = "LILY_INSECURE", hide_env_values = true, help_heading = "Network")]
    pub insecure: bool,
    /// Answer to this host name too, such as host.docker.internal; without a key, only localhost and addresses are
    #[arg(
        long,
        env = "LILY_ALLOW_HOST",
        hide_env_values = true,
        value_name = "NAME",
        value_delimiter = ',',
        help_heading = "Network"
    )]
    pub allow_host: Vec<String>,
    /// Let pages of this origin use the server; * is any
    #[arg(
        long,
        env = "LILY_CORS_ORIGIN",
        hide_env_values = true,
        value_name = "ORIGIN",
        value_delimiter = ',',
        help_heading = "Network"
    )]
    pub cors_origin: Vec<String>,
    /// A further name for the model; may be repeated
    #[arg(long, env = "LILY_ALIAS", hide_env_values = true, value_name = "NAME", value_delimiter = ',')]
    pub alias: Vec<String>,
    /// Where chat completions put the reasoning: reasoning_content, reasoning, both or none
    #[arg(long, env = "LILY_REASONING_FIELD", hide_env_values = true, value_name = "NAME", hide_possible_values = true,
          value_enum, default_value_t = ReasoningName::ReasoningContent)]
    pub reasoning_field: ReasoningName,
    /// Requests that may wait; further ones are told to come back
    #[arg(long, env = "LILY_QUEUE", hide_env_values = true, value_name = "N", default_value_t = 64)]
    pub queue: usize,
    /// Requests that are computed by turns, as far as memory allows
    #[arg(long, env = "LILY_SESSIONS", hide_env_values = true, value_name = "N", default_value_t = 4,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub sessions: usize,
    /// Memory for remembered prompts, such as 512M or 2G, as far as there is so much; 0 remembers none
    #[arg(long, env = "LILY_CACHE_BYTES", hide_env_values = true, value_name = "BYTES", value_parser = parse_bytes,
          default_value = "4G")]
    pub cache_bytes: usize,
    /// Directory that keeps remembered prompts over restarts
    #[arg(long, env = "LILY_CACHE_DIR", hide_env_values = true, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Log where a prompt parted from what was remembered: token and message
    #[arg(long, env = "LILY_EXPLAIN_CACHE", hide_env_values = true)]
    pub explain_cache: bool,
    /// What to log: off, error, warn, info or debug
    #[arg(long, env = "LILY_LOG", hide_env_values = true, value_name = "LEVEL", default_value = "info")]
    pub log: tracing_subscriber::filter::LevelFilter,
    /// Print settings for a client of this server instead: codex, claude, opencode, qwen, zed, continue, openwebui or xcode
    #[arg(long, value_name = "CLIENT", value_enum, hide_possible_values = true)]
    pub print_config: Option<Client>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Names for the reasoning in chat completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ReasoningName {
    /// `reasoning_content`.
    ReasoningContent,
    /// `reasoning`.
    Reasoning,
    /// Both.
    Both,
    /// Neither: reasoning is not sent.
    None,
}

/// A number of bytes, with K, M or G for powers of 1,024.
fn parse_bytes(text: &str) -> Result<usize, String> {
    let wrong = || "expected a number of bytes, such as 512M or 2G".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        _ => return Err(wrong()),
    };
    let number: usize = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// A phase of inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// A chunk of prompt tokens.
    Prefill,
    /// One token.
    Decode,
}

/// Arguments of `lily plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Phase
    #[arg(long, value_enum, default_value_t = Phase::Decode)]
    pub phase: Phase,
    /// Tokens in the context before the step
    #[arg(long, default_value_t = 4096, value_name = "TOKENS")]
    pub context: usize,
    /// Tokens of a prefill chunk
    #[arg(long, default_value_t = 512, value_name = "ROWS", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65536))]
    pub rows: usize,
    /// Shape by name, 4-bit with groups of 64: qwen3.6-35b-a3b, mid8, small, tiny
    #[arg(long, default_value = "qwen3.6-35b-a3b", value_name = "NAME", conflicts_with = "model")]
    pub shape: String,
    /// Shape and formats of a model instead: a directory, or org/name[@revision]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Leave a mechanism out, to see what it does to the plan; may be given several times
    #[arg(long, value_name = "MECHANISM")]
    pub without: Vec<Mechanism>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lily inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Model: a directory, org/name[@revision], or lily-nano
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lily quantize`.
#[derive(Args, Debug)]
pub struct QuantizeArgs {
    /// Directory of the bf16 checkpoint
    pub input: PathBuf,
    /// Directory to make
    pub output: PathBuf,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Formats of a checkpoint to write.
#[derive(Args, Debug)]
pub struct FormatArgs {
    /// Bits of a weight: 2, 3, 4, 5, 6, 8
    #[arg(long, default_value_t = 4)]
    pub bits: u8,
    /// Weights that share a scale: 32, 64, 128
    #[arg(long, default_value_t = 64)]
    pub group: u8,
    /// Bits of the router and of the shared expert's gate
    #[arg(long, default_value_t = 8)]
    pub routing_bits: u8,
}

/// Arguments of `lily synth`.
#[derive(Args, Debug)]
pub struct SynthArgs {
    /// Shape by name: qwen3.6-35b-a3b, mid8, small, tiny
    pub shape: String,
    /// Directory to make
    pub output: PathBuf,
    /// Same seed, same bytes
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Another number of layers
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub layers: Option<usize>,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Arguments of `lily tokenize`.
#[derive(Args, Debug)]
pub struct TokenizeArgs {
    /// The text; read from stdin if left out
    pub text: Option<String>,
    /// Take <|im_start|> and the like as ordinary characters
    #[arg(long)]
    pub plain: bool,
    /// Print JSON: a list of {id, text}
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// The evaluations.
#[derive(Subcommand, Debug)]
pub enum EvalCommand {
    /// Put lily-nano's held-out questions to it
    Nano(EvalNanoArgs),
    /// Compare log-probabilities with those of other implementations
    TeacherForced(EvalTeacherArgs),
    /// Compute the same in several ways, and compare the bits
    Determinism(EvalDeterminismArgs),
}

/// Arguments of `lily eval nano`.
#[derive(Args, Debug)]
pub struct EvalNanoArgs {
    /// Directory with the questions [default: those in the box]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Only this set; may be repeated
    #[arg(long = "set", value_name = "NAME")]
    pub sets: Vec<String>,
    /// Only the first N of every set
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Show every wrong answer on stderr
    #[arg(long)]
    pub wrong: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Arguments of `lily eval teacher-forced`.
#[derive(Args, Debug)]
pub struct EvalTeacherArgs {
    /// The other implementations' results (tests/golden/teacher/*.safetensors)
    pub file: PathBuf,
    /// Compute the tokens as those of prompts, which on GPUs other kernels do, and not as an answer
    #[arg(long)]
    pub prompt: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Arguments of `lily eval determinism`.
#[derive(Args, Debug)]
#[command(long_about = "\
Compute the same tokens again, in chunks of other lengths, and from the prefix cache, and compare the logits' bits; write a greedy \
answer twice, and compare its tokens. Fails where anything differs.")]
pub struct EvalDeterminismArgs {
    /// Random tokens of the prompt
    #[arg(long, default_value_t = 1000, value_name = "TOKENS", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..))]
    pub tokens: usize,
    /// Tokens of the answer
    #[arg(long, default_value_t = 32, value_name = "TOKENS", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub answer: usize,
    /// Seed of the random tokens
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Arguments of `lily doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Arguments of `lily completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(parse_bytes("0"), Ok(0));
        assert_eq!(parse_bytes("512M"), Ok(512 << 20));
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
        for wrong in ["", "M", "1.5G", "-1", "1T", "99999999999G"] {
            assert!(parse_bytes(wrong).unwrap_err().contains("512M"), "{wrong}");
        }
    }
}
