//! `lily inspect`: what a checkpoint is and what running it takes.

use crate::cli::InspectArgs;
use crate::failure::Failure;
use crate::load::open;
use crate::model::Caches;
use crate::output;
use lily_engine::checkpoint::inspect::Report;
use lily_engine::memory::{Asked, MemoryPlan};
use lily_engine::model::{Model, Traits};

/// Contexts that memory plans are shown for, in tokens.
const CONTEXTS: [usize; 4] = [4096, 16_384, 65_536, 262_144];

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<(), Failure> {
    let checkpoint = open(&Caches::of_this_machine().resolve(Some(&args.model))?)?;
    let limit = checkpoint.weights.shape.max_context_tokens;
    let mut contexts: Vec<usize> = CONTEXTS.into_iter().filter(|&c| c < limit).collect();
    contexts.push(limit.min(CONTEXTS[CONTEXTS.len() - 1]));
    let plan = |context: usize| {
        let model = Model::new(&checkpoint.weights, Traits::CPU, Traits::CPU.chunk_tokens.min(context), context);
        MemoryPlan::new(&checkpoint, &model, Asked::default(), None)
    };
    let report = Report::new(&checkpoint, contexts.into_iter().map(plan).collect());
    if args.json { output::json(&report) } else { output::line(&report.to_string()) }
}
