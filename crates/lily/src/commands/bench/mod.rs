//! `lily bench`: prefill and decode speed by the protocol of published comparisons, alone or beside another engine.
//!
//! This process measures nothing. It starts each engine as a process of its own, by turns and round after round, refuses
//! figures that do not hold, and makes a record of those that do. lily's own process is this program with `--arm`.

mod arm;
pub mod peer;
mod process;
mod record;
mod rounds;
mod spec;

use crate::cli::BenchArgs;
use crate::failure::Failure;
use crate::model::Model;
use crate::output;
use crate::record::{Origin, publish};
use arm::Arm;
use lily_engine::checkpoint::Checkpoint;
use peer::Peer;
use spec::Spec;
use std::path::PathBuf;
use std::process::Command;

/// Medians of rounds that are further apart than this are refused, as in the published comparisons.
const DRIFT_MAX_PERCENT: f64 = 3.0;
/// How long an engine computes before the first length is timed, so that clocks have risen.
const WARM_SECONDS: f64 = 1.0;
/// Runs go on for so long at least, so that the median of short ones is steady.
const FIGURE_SECONDS: f64 = 1.0;
/// Decode steps before those that are timed.
const WARM_STEPS: usize = 4;

/// What every engine measured in every round; lily is the first engine.
type Engines = Vec<Vec<Arm>>;

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    if args.arm {
        return output::line(&serde_json::to_string(&arm::measure(args)?).expect("plain JSON"));
    }
    if args.measure.publish.record.is_some() && args.rounds < 2 {
        return Err(Failure::usage("--rounds 1: a record needs two rounds at least, to see whether figures hold"));
    }
    let model = args.measure.model.resolve()?;
    args.measure.model.introduce(&model);
    let peer = match &args.peer {
        Some(peer) => Some((peer, peer_model(args, peer, &model)?)),
        None => None,
    };
    let checkpoint = crate::load::open(&model)?;
    let engines = measure(args, &checkpoint, peer)?;
    let names = ["lily", args.peer.as_ref().map_or("", Peer::name)];
    rounds::check_tokens(&engines[0])?;
    let (kept, refused) = rounds::sift(&names, engines.clone());
    let nothing_holds = kept[0][0].lengths.is_empty();
    // Where nothing holds, all is shown to whoever looks for the reason.
    let shown = if nothing_holds { &engines } else { &kept };
    let origin = Origin::new(&model, &checkpoint, engines[0][0].device.clone(), args.measure.seed);
    let record = record::Record::new(args, origin, shown, &refused);
    let table = record::table(&record);
    if nothing_holds {
        output::note(&table);
        return Err(rounds::refusal(&refused, "nothing was recorded"));
    }
    publish(&record, &table, &args.measure.publish)?;
    if refused.is_empty() { Ok(()) } else { Err(rounds::refusal(&refused, "the others hold")) }
}

/// What the peer reads.
fn peer_model(args: &BenchArgs, peer: &Peer, model: &Model) -> Result<PathBuf, Failure> {
    match (peer, model, &args.peer_model) {
        (Peer::LlamaBench { .. }, _, Some(path)) => Ok(path.clone()),
        (Peer::LlamaBench { .. }, _, None) => Err(Failure::usage(
            "--peer llama-bench: it reads another format; name its file with --peer-model FILE.gguf",
        )),
        (Peer::MlxLm { .. }, _, Some(_)) => {
            Err(Failure::usage("--peer-model: mlx-lm reads the same checkpoint as lily; leave it out"))
        }
        (Peer::MlxLm { .. }, Model::Directory { path, .. }, None) => Ok(path.clone()),
        (Peer::MlxLm { .. }, Model::Nano, None) => Err(Failure::usage(
            "--peer mlx-lm: it cannot read the model in the box; name the directory of a checkpoint with --model",
        )),
    }
}

fn measure(args: &BenchArgs, checkpoint: &Checkpoint, peer: Option<(&Peer, PathBuf)>) -> Result<Engines, Failure> {
    let spec = Spec::new(args, checkpoint.weights.shape.vocab);
    let count = 1 + usize::from(peer.is_some());
    let bar = output::count_bar("measuring", count * args.rounds);
    let engines = rounds::alternate(count, args.rounds, &mut |engine| {
        let arm = match &peer {
            Some((peer, model)) if engine == 1 => peer.measure(model, &spec),
            _ => lily(&spec),
        };
        bar.inc(1);
        arm
    });
    bar.finish_and_clear();
    engines
}

/// Runs this program again, as the process that measures lily.
fn lily(spec: &Spec) -> Result<Arm, Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::other(format_args!("cannot find this program: {e}")))?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).arg("--arm");
    let ended = process::run(&mut command, Vec::new()).map_err(Failure::other)?;
    if !ended.status.success() {
        // A failure of this very program, which has said what it is.
        let words = ended.last_words();
        return Err(Failure::of_process(ended.status.code(), words.strip_prefix("error: ").unwrap_or(&words)));
    }
    let arm: Arm = serde_json::from_slice(&ended.stdout)
        .map_err(|e| Failure::other(format_args!("lily's own process printed no figures: {e}")))?;
    arm.check(spec).map_err(|message| Failure::other(format_args!("lily: {message}")))?;
    Ok(arm)
}
