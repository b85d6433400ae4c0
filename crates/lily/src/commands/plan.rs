//! `lily plan`: kernels, stages, bytes and FLOPs of a step, beside the least bytes that it could move.

use super::convert::named_shape;
use crate::cli::{Phase, PlanArgs};
use crate::failure::Failure;
use crate::load::open;
use crate::model::Caches;
use crate::output;
use lily_engine::kernel::Step;
use lily_engine::model::{Mechanisms, Model, Traits};
use lily_engine::outline::outline;
use lily_engine::plan::minimum::DecodeMinimum;
use lily_engine::plan::report::Report;
use lily_engine::weights::{Float, Format, Weights};
use serde_json::json;

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<(), Failure> {
    let weights = weights(args)?;
    let limit = weights.shape.max_context_tokens;
    let rows = if args.phase == Phase::Prefill { args.rows } else { 1 };
    if args.context + rows > limit {
        return Err(Failure::usage(format_args!(
            "--context {}: expected at most {} for a model of {limit} tokens; ask for less",
            args.context,
            limit.saturating_sub(rows)
        )));
    }
    let mechanisms = args.without.iter().fold(Mechanisms::ALL, |all, mechanism| all.without(*mechanism));
    let model = Model::new(&weights, Traits::GPU.with(mechanisms), rows, args.context + rows);
    let plan = match args.phase {
        Phase::Prefill => model.prefill(rows, true),
        // As a GPU runs it: the token is handed on without the host.
        Phase::Decode => model.decode(args.context, true),
    };
    let report = Report::new(&plan, Step { position: args.context as u32, window: 0 });
    let total = report.total();
    let minimum = (args.phase == Phase::Decode).then(|| DecodeMinimum::new(&weights, args.context));
    if args.json {
        let total = json!({
            "weight_bytes": total.weight_bytes,
            "state_bytes": total.state_bytes,
            "activation_bytes": total.activation_bytes,
            "bytes": total.bytes(),
            "flops": total.flops,
        });
        return output::json(&json!({ "rows": rows, "report": report, "total": total, "minimum": minimum }));
    }
    output::line(&report.to_string())?;
    let Some(minimum) = minimum else {
        return output::line(&format!(
            "{:.1} MB and {:.1} GFLOP for {rows} rows",
            total.bytes() / 1e6,
            total.flops / 1e9
        ));
    };
    let least = minimum.total_bytes() as f64;
    output::line(&format!(
        "{:.1} MB a token; the least is {:.1} MB (weights {:.1}, KV {:.1}, recurrent state {:.1}), so {:.1} % above it",
        total.bytes() / 1e6,
        least / 1e6,
        minimum.weight_bytes as f64 / 1e6,
        minimum.kv_bytes as f64 / 1e6,
        minimum.recurrent_bytes as f64 / 1e6,
        (total.bytes() / least - 1.0) * 100.0
    ))
}

fn weights(args: &PlanArgs) -> Result<Weights, Failure> {
    if args.model.is_some() {
        return Ok(open(&Caches::of_this_machine().resolve(args.model.as_deref())?)?.weights.clone());
    }
    let affine = |bits| Format::Affine { bits, group: 64, scale: Float::Bf16 };
    Ok(outline(&named_shape(&args.shape)?, affine(4), affine(8)))
}
