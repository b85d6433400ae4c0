//! What a plan costs: kernels, stages, bytes and FLOPs, per kernel and in total, as data and as a table.

use super::{Plan, stages};
use crate::kernel::{Cost, Step};
use serde::Serialize;
use std::fmt;

/// Cost of all launches of one kernel.
#[derive(Clone, Debug, Serialize)]
pub struct KernelRow {
    /// Entry name.
    pub kernel: &'static str,
    /// Launches in the plan.
    pub launches: usize,
    /// Bytes of weights.
    pub weight_bytes: f64,
    /// Bytes of KV cache and recurrent state.
    pub state_bytes: f64,
    /// Bytes of activations.
    pub activation_bytes: f64,
    /// Floating-point operations.
    pub flops: f64,
}

/// Cost of a plan at one step.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Tokens before the step.
    pub position: usize,
    /// Kernel launches.
    pub kernels: usize,
    /// Sequential stages.
    pub stages: usize,
    /// One row per kernel, in order of first use.
    pub rows: Vec<KernelRow>,
}

impl Report {
    /// Adds up a plan.
    pub fn new(plan: &Plan, step: Step) -> Self {
        let mut rows: Vec<KernelRow> = Vec::new();
        for dispatch in &plan.dispatches {
            let cost = dispatch.cost(step);
            let name = dispatch.contract.name;
            let index = rows.iter().position(|r| r.kernel == name).unwrap_or_else(|| {
                rows.push(KernelRow {
                    kernel: name,
                    launches: 0,
                    weight_bytes: 0.0,
                    state_bytes: 0.0,
                    activation_bytes: 0.0,
                    flops: 0.0,
                });
                rows.len() - 1
            });
            let row = &mut rows[index];
            row.launches += 1;
            row.weight_bytes += cost.weight_bytes;
            row.state_bytes += cost.state_bytes;
            row.activation_bytes += cost.activation_bytes;
            row.flops += cost.flops;
        }
        let stages = stages::stages(plan).into_iter().max().map_or(0, |s| s + 1);
        Self { position: step.position as usize, kernels: plan.dispatches.len(), stages, rows }
    }

    /// Cost of all kernels together.
    pub fn total(&self) -> Cost {
        let mut total = Cost::default();
        for row in &self.rows {
            total += Cost {
                weight_bytes: row.weight_bytes,
                state_bytes: row.state_bytes,
                activation_bytes: row.activation_bytes,
                flops: row.flops,
            };
        }
        total
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, name: &str, launches: usize, cost: Cost| {
            writeln!(
                f,
                "{name:<22} {launches:>8} {:>12.3} {:>12.3} {:>12.3} {:>12.3}",
                cost.weight_bytes / 1e6,
                cost.state_bytes / 1e6,
                cost.activation_bytes / 1e6,
                cost.flops / 1e9
            )
        };
        writeln!(
            f,
            "{:<22} {:>8} {:>12} {:>12} {:>12} {:>12}",
            "kernel", "launches", "weights MB", "state MB", "activ. MB", "GFLOP"
        )?;
        for r in &self.rows {
            let cost = Cost {
                weight_bytes: r.weight_bytes,
                state_bytes: r.state_bytes,
                activation_bytes: r.activation_bytes,
                flops: r.flops,
            };
            line(f, r.kernel, r.launches, cost)?;
        }
        line(f, "total", self.kernels, self.total())?;
        write!(f, "{} kernels in {} stages at position {}", self.kernels, self.stages, self.position)
    }
}
