//! Fast forms of the kernels, each split over the pool and written over the vectors of the machine.
//!
//! A fused decode kernel and the prefill kernels that it stands for share their inner functions, and every result depends
//! only on its own row: so a token's values are the same bits whatever chunk it was computed in, or by a decode step.

mod attention;
mod delta;
mod linear;
mod moe;
mod rows;

use super::isa::{Isa, Simd};
use super::pool::{Pool, SharedMut};
use super::product::OperandScratch;
use crate::kernel::{Contract, HostSlices};

/// Memory that kernels reuse: it grows to what the largest dispatch needs.
pub struct Workspace {
    /// Rearranged activations; two, for a pair of matrices of different layout.
    operands: [OperandScratch; 2],
    /// One tile of fp32 results per thread.
    tiles: Vec<Vec<f32>>,
    /// Rows of indices.
    indices: Vec<u32>,
    /// A row of activations.
    row: Vec<half::bf16>,
    /// Partial results of attention.
    partials: Vec<f32>,
}

impl Workspace {
    /// Workspace for a pool of so many threads.
    pub fn new(threads: usize) -> Self {
        Self {
            operands: Default::default(),
            tiles: vec![Vec::new(); threads],
            indices: Vec::new(),
            row: Vec::new(),
            partials: Vec::new(),
        }
    }
}

/// What a kernel computes with.
pub struct Context<'a> {
    /// Instruction set.
    pub isa: Isa,
    /// Threads.
    pub pool: &'a Pool,
    /// Reused memory.
    pub workspace: &'a mut Workspace,
}

/// Runs one dispatch.
///
/// # Panics
/// If the contract has no fast form here: a kernel was declared and not written.
pub fn run(context: Context<'_>, contract: &Contract, args: &[u8], slices: HostSlices<'_>) {
    macro_rules! table {
        ($($name:literal => $module:ident::$function:ident($views:ident);)*) => {
            match contract.name {
                $($name => $module::$function(context, crate::kernel::$views::bind(args, slices)),)*
                // Plans for this backend hold the first three as `attend_step` and `matvec_add`; they do not split the cache, so that
                // nothing is merged; the host samples; and the others are for GPU plans without a mechanism.
                "attend_blocks" | "attend_merge" | "merge_matvec_add" | "merge_segments" | "sample_scan" | "sample"
                | "dequantize" | "experts_products_step" | "gate_products" | "experts_each_step" | "delta_update"
                | "attend_prepared" => (contract.reference)(args, slices),
                name => panic!("the CPU backend has no kernel `{name}`"),
            }
        };
    }
    table! {
        "embed" => rows::embed(EmbedViews);
        "head" => linear::head(HeadViews);
        "rms_norm" => rows::rms_norm(RmsNormViews);
        "matmul" => linear::matmul(MatMulViews);
        "matmul_add" => linear::matmul_add(MatMulAddViews);
        "matvec_add" => linear::matvec_add(MatVecAddViews);
        "gate_up" => linear::gate_up(GateUpViews);
        "project" => linear::project(ProjectViews);
        "delta_prep" => delta::prep(DeltaPrepViews);
        "delta_scan" => delta::scan(DeltaScanViews);
        "gated_norm" => delta::gated_norm(GatedNormViews);
        "delta_step" => delta::step(DeltaStepViews);
        "qk_prep" => attention::qk_prep(QkPrepViews);
        "attend" => attention::attend(AttendViews);
        "attend_step" => attention::step(AttendStepViews);
        "router" => moe::router(RouterViews);
        "route" => moe::route(RouteViews);
        "group_rows" => moe::group_rows(GroupRowsViews);
        "expert_gate_up" => moe::expert_gate_up(ExpertGateUpViews);
        "expert_down" => moe::expert_down(ExpertDownViews);
        "combine" => moe::combine(CombineViews);
        "router_step" => moe::router_step(RouterStepViews);
        "experts_gate_up_step" => moe::experts_gate_up_step(ExpertsGateUpStepViews);
        "experts_down_step" => moe::experts_down_step(ExpertsDownStepViews);
    }
}

/// A function over vectors, as a [`Kernel`](super::isa::Kernel): its parameters are fields, and the body, generic over
/// `S: Simd`, is compiled for each instruction set. Widths are multiples of [`super::isa::MAX_LANES`].
macro_rules! vector_kernel {
    ($(#[$meta:meta])* $name:ident<$lt:lifetime> { $($field:ident: $ty:ty),* $(,)? } -> $out:ty, |$simd:ident| $body:block) => {
        $(#[$meta])*
        struct $name<$lt> { $($field: $ty),* }
        impl<$lt> $crate::backend::cpu::isa::Kernel for $name<$lt> {
            type Output = $out;
            #[inline(always)]
            fn run<S: $crate::backend::cpu::isa::Simd>(self, $simd: S) -> $out {
                let Self { $($field),* } = self;
                $body
            }
        }
    };
}
use vector_kernel;

/// Rows that one task takes where rows are independent and cheap.
const ROWS_PER_TASK: usize = 8;

/// Calls `task(row)` for all rows, in tasks of several rows.
fn for_rows(pool: &Pool, rows: usize, task: &(dyn Fn(usize) + Sync)) {
    pool.run(rows.div_ceil(ROWS_PER_TASK), &|i, _| {
        (i * ROWS_PER_TASK..rows.min((i + 1) * ROWS_PER_TASK)).for_each(task);
    });
}

/// The tile of a worker, grown to `len`.
///
/// # Safety
/// No other task may run with the same worker index meanwhile, which [`Pool::run`] promises.
#[allow(clippy::mut_from_ref, reason = "workers have different tiles; the safety section says what callers promise")]
unsafe fn tile<'a>(tiles: &'a SharedMut<'_, Vec<f32>>, worker: usize, len: usize) -> &'a mut [f32] {
    // SAFETY: the caller's promise; workers have different tiles.
    let tile = &mut unsafe { tiles.range_mut(worker..worker + 1) }[0];
    if tile.len() < len {
        tile.resize(len, 0.0);
    }
    &mut tile[..len]
}

/// Sum over `x` of `f(x)` per vector, in an order that depends on the length alone.
#[inline(always)]
fn sum_squares_bf16<S: Simd>(simd: S, x: &[half::bf16]) -> f32 {
    let mut sum = simd.zero();
    for x in x.chunks_exact(S::LANES) {
        let v = simd.load_bf16(x);
        sum = simd.fma(v, v, sum);
    }
    simd.reduce_add(sum)
}
