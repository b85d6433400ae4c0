//! Products with matrices: the driver that splits them into tiles, and the kernels that are little more than a product.

use super::rows::norm_row;
use super::{Context, Workspace, tile};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::kernels::vector_kernel;
use crate::backend::cpu::pool::{Pool, SharedMut};
use crate::backend::cpu::product::{Layout, MatrixView, Operand, OperandScratch, XRows, product};
use crate::kernel::{GateUpViews, HeadViews, MatMulAddViews, MatMulViews, MatVecAddViews, PackedFormat, ProjectViews};
use half::bf16;
use std::ops::Range;

/// Weight rows of one tile: their codes stay in the first-level cache while the activation rows pass.
pub const TILE_OUTPUTS: usize = 64;
/// Activation rows of one tile: the results of a tile stay in the first-level cache.
pub const TILE_ROWS: usize = 64;

/// Weight rows that a task of a decode step takes of a matrix: memory is read fastest in runs of about 512 KiB, but every
/// thread should get several tasks, those of `others` matrices of the same size counted in. At most [`STEP_OUTPUTS_MAX`].
pub fn step_outputs(matrix: &MatrixView<'_>, others: usize, threads: usize) -> usize {
    let run = (512 << 10) / matrix.format.total_row_bytes(matrix.cols);
    let share = matrix.rows / (4 * threads).div_ceil(others);
    run.min(share).next_multiple_of(TILE_OUTPUTS).clamp(TILE_OUTPUTS, STEP_OUTPUTS_MAX)
}

/// See [`step_outputs`].
pub const STEP_OUTPUTS_MAX: usize = 512;

/// The matrix behind three stored buffers.
pub fn view<'a>(
    format: PackedFormat,
    rows: usize,
    cols: u32,
    [codes, scales, biases]: [&'a [u8]; 3],
) -> MatrixView<'a> {
    let (format, cols) = (format.format(), cols as usize);
    let scale_bytes = rows * format.scale_row_bytes(cols);
    MatrixView {
        format,
        rows,
        cols,
        codes: &codes[..rows * format.row_bytes(cols)],
        scales: &scales[..scale_bytes],
        biases: &biases[..scale_bytes],
    }
}

/// The `index`-th matrix of a stack whose members start `stride_rows` rows apart.
pub fn expert<'a>(
    format: PackedFormat,
    rows: u32,
    cols: u32,
    stride_rows: u32,
    index: usize,
    [codes, scales, biases]: [&'a [u8]; 3],
) -> MatrixView<'a> {
    let (stored, first) = (format.format(), index * stride_rows as usize);
    let scales_at = first * stored.scale_row_bytes(cols as usize);
    let parts = [&codes[first * stored.row_bytes(cols as usize)..], &scales[scales_at..], &biases[scales_at..]];
    view(format, rows as usize, cols, parts)
}

/// Rearranges activations for one or two formats; where both want the same layout, once.
pub fn operands<'a>(
    isa: Isa,
    pool: &Pool,
    formats: [PackedFormat; 2],
    x: &[bf16],
    cols: u32,
    scratch: &'a mut [OperandScratch; 2],
) -> [Operand<'a>; 2] {
    let [first, second] = formats.map(|f| Layout::of(isa, f.format()));
    let [a, b] = scratch;
    let a = Operand::prepare_on(pool, first, x, cols as usize, a);
    let b = if second == first { a } else { Operand::prepare_on(pool, second, x, cols as usize, b) };
    [a, b]
}

/// A finished tile: fp32 products of `x_rows` with `w_rows`, `[x_rows, w_rows]`.
pub struct Tile<'a> {
    /// Activation rows.
    pub x_rows: Range<usize>,
    /// Weight rows.
    pub w_rows: Range<usize>,
    /// Products.
    pub values: &'a mut [f32],
}

/// Multiplies all rows of the operand with the matrix, tile by tile over the pool; `finish` takes every tile.
pub fn products(
    pool: &Pool,
    tiles: &mut [Vec<f32>],
    matrix: &MatrixView<'_>,
    operand: &Operand<'_>,
    finish: &(dyn Fn(Tile<'_>) + Sync),
) {
    let rows = operand.rows();
    let tiles = SharedMut::new(tiles);
    let step = if rows == 1 { step_outputs(matrix, 1, pool.threads()) } else { TILE_OUTPUTS };
    pool.run(matrix.rows.div_ceil(step), &|task, worker| {
        let w_rows = task * step..matrix.rows.min((task + 1) * step);
        for start in (0..rows).step_by(TILE_ROWS) {
            let x_rows = start..rows.min(start + TILE_ROWS);
            // SAFETY: `worker` is this task's own for as long as it runs.
            let values = unsafe { tile(&tiles, worker, x_rows.len() * w_rows.len()) };
            product(matrix, operand, XRows::Range(x_rows.clone()), w_rows.clone(), values);
            finish(Tile { x_rows, w_rows: w_rows.clone(), values });
        }
    });
}

/// Writes the tile's part of a matrix with rows of `width`: `store(part, values)`.
pub fn store_rows<T>(y: &SharedMut<'_, T>, width: usize, tile: Tile<'_>, store: impl Fn(&mut [T], &[f32])) {
    let columns = tile.w_rows.len();
    for (row, values) in tile.x_rows.zip(tile.values.chunks_exact(columns)) {
        let at = row * width + tile.w_rows.start;
        // SAFETY: tiles cover different rows or columns, and each is finished once.
        store(unsafe { y.range_mut(at..at + columns) }, values);
    }
}

fn round(y: &mut [bf16], values: &[f32]) {
    y.iter_mut().zip(values).for_each(|(y, v)| *y = bf16::from_f32(*v));
}

fn round_add(h: &mut [bf16], values: &[f32]) {
    h.iter_mut().zip(values).for_each(|(h, v)| *h = bf16::from_f32(h.to_f32() + v));
}

vector_kernel! {
    /// `y = silu(gate) * up`, rounded.
    Activate<'a> { gate: &'a [f32], up: &'a [f32], y: &'a mut [bf16] } -> (), |simd| {
        let lanes = gate.chunks(S::LANES).zip(up.chunks(S::LANES)).zip(y.chunks_mut(S::LANES));
        for ((gate, up), y) in lanes {
            if y.len() == S::LANES {
                simd.store_bf16(y, simd.mul(simd.silu(simd.load(gate)), simd.load(up)));
            } else {
                let v = simd.mul(simd.silu(simd.load_partial(gate)), simd.load_partial(up));
                simd.store_bf16_partial(y, v);
            }
        }
    }
}

/// `y = silu(gate) * up`, rounded once.
pub fn activate(isa: Isa, gate: &[f32], up: &[f32], y: &mut [bf16]) {
    isa.dispatch(Activate { gate, up, y });
}

pub fn matmul(context: Context<'_>, v: MatMulViews<'_>) {
    let (a, Workspace { operands, tiles, .. }) = (v.args, context.workspace);
    let matrix = view(a.format, a.outputs as usize, a.cols, [v.codes, v.scales, v.biases]);
    let layout = Layout::of(context.isa, matrix.format);
    let operand = Operand::prepare_on(context.pool, layout, v.x, matrix.cols, &mut operands[0]);
    let y = SharedMut::new(v.y);
    products(context.pool, tiles, &matrix, &operand, &|tile| store_rows(&y, matrix.rows, tile, round));
}

pub fn matmul_add(context: Context<'_>, v: MatMulAddViews<'_>) {
    let (a, Workspace { operands, tiles, .. }) = (v.args, context.workspace);
    let matrix = view(a.format, a.outputs as usize, a.cols, [v.codes, v.scales, v.biases]);
    let layout = Layout::of(context.isa, matrix.format);
    let operand = Operand::prepare_on(context.pool, layout, v.x, matrix.cols, &mut operands[0]);
    let h = SharedMut::new(v.h);
    products(context.pool, tiles, &matrix, &operand, &|tile| store_rows(&h, matrix.rows, tile, round_add));
}

pub fn matvec_add(context: Context<'_>, v: MatVecAddViews<'_>) {
    matmul_add(context, v.into_matmul());
}

pub fn gate_up(context: Context<'_>, v: GateUpViews<'_>) {
    let (a, isa, Workspace { operands: scratch, tiles, .. }) = (v.args, context.isa, context.workspace);
    let outputs = a.outputs as usize;
    let gate = view(a.gate_format, outputs, a.cols, [v.gate_codes, v.gate_scales, v.gate_biases]);
    let up = view(a.up_format, outputs, a.cols, [v.up_codes, v.up_scales, v.up_biases]);
    let [gate_x, up_x] = operands(isa, context.pool, [a.gate_format, a.up_format], v.x, a.cols, scratch);
    let (rows, y, tiles) = (a.rows as usize, SharedMut::new(v.y), SharedMut::new(tiles));
    context.pool.run(outputs.div_ceil(TILE_OUTPUTS), &|task, worker| {
        let w_rows = task * TILE_OUTPUTS..outputs.min((task + 1) * TILE_OUTPUTS);
        for start in (0..rows).step_by(TILE_ROWS) {
            let x_rows = start..rows.min(start + TILE_ROWS);
            let len = x_rows.len() * w_rows.len();
            // SAFETY: `worker` is this task's own for as long as it runs.
            let (g, u) = unsafe { tile(&tiles, worker, 2 * len) }.split_at_mut(len);
            product(&gate, &gate_x, XRows::Range(x_rows.clone()), w_rows.clone(), g);
            product(&up, &up_x, XRows::Range(x_rows.clone()), w_rows.clone(), u);
            for (i, row) in x_rows.enumerate() {
                let part = i * w_rows.len()..(i + 1) * w_rows.len();
                let at = row * outputs + w_rows.start;
                // SAFETY: tasks have different columns.
                let y = unsafe { y.range_mut(at..at + w_rows.len()) };
                activate(isa, &g[part.clone()], &u[part], y);
            }
        }
    });
}

pub fn head(context: Context<'_>, v: HeadViews<'_>) {
    let a = v.args;
    let width = a.width as usize;
    let mut x = std::mem::take(&mut context.workspace.row);
    x.resize(a.rows as usize * width, bf16::ZERO);
    for (h, x) in v.h[a.row as usize * width..].chunks_exact(width).zip(x.chunks_exact_mut(width)) {
        norm_row(&context, h, v.gain, a.eps, x);
    }
    let matrix = view(a.format, a.vocab as usize, a.width, [v.codes, v.scales, v.biases]);
    let Workspace { operands, tiles, .. } = &mut *context.workspace;
    let layout = Layout::of(context.isa, matrix.format);
    let operand = Operand::prepare(layout, &x, width, &mut operands[0]);
    let logits = SharedMut::new(v.logits);
    products(context.pool, tiles, &matrix, &operand, &|tile| {
        store_rows(&logits, matrix.rows, tile, <[f32]>::copy_from_slice)
    });
    context.workspace.row = x;
}

pub fn project(context: Context<'_>, v: ProjectViews<'_>) {
    let a = v.args;
    let width = a.width as usize;
    let mut x = std::mem::take(&mut context.workspace.row);
    x.resize(width, bf16::ZERO);
    norm_row(&context, v.h, v.gain, a.eps, &mut x);
    let stored = [
        [v.codes0, v.scales0, v.biases0],
        [v.codes1, v.scales1, v.biases1],
        [v.codes2, v.scales2, v.biases2],
        [v.codes3, v.scales3, v.biases3],
    ];
    let matrices: [MatrixView<'_>; 4] =
        std::array::from_fn(|i| view(a.formats[i], a.outputs[i] as usize, a.width, stored[i]));
    let Workspace { operands: scratch, tiles, .. } = &mut *context.workspace;
    // All four formats are usually one; matrices of the first format share an operand and a run over the pool.
    let outputs = [v.y0, v.y1, v.y2, v.y3].map(SharedMut::new);
    let mut done = [false; 4];
    while let Some(first) = (0..4).find(|&i| !done[i] && matrices[i].rows > 0) {
        let layout = Layout::of(context.isa, matrices[first].format);
        let operand = Operand::prepare(layout, &x, width, &mut scratch[0]);
        let same = |i: usize| matrices[i].rows > 0 && Layout::of(context.isa, matrices[i].format) == layout;
        let steps: [usize; 4] = std::array::from_fn(|i| step_outputs(&matrices[i], 1, context.pool.threads()));
        let starts =
            task_starts(std::array::from_fn(
                |i| {
                    if !done[i] && same(i) { matrices[i].rows.div_ceil(steps[i]) } else { 0 }
                },
            ));
        let tiles = SharedMut::new(&mut tiles[..]);
        context.pool.run(starts[4], &|task, worker| {
            let i = (0..4).find(|&i| task < starts[i + 1]).expect("tasks are counted in `starts`");
            let start = (task - starts[i]) * steps[i];
            let w_rows = start..matrices[i].rows.min(start + steps[i]);
            // SAFETY: `worker` is this task's own for as long as it runs.
            let values = unsafe { tile(&tiles, worker, w_rows.len()) };
            product(&matrices[i], &operand, XRows::Range(0..1), w_rows.clone(), values);
            // SAFETY: tasks have different columns of different outputs.
            round(unsafe { outputs[i].range_mut(w_rows) }, values);
        });
        (0..4).filter(|&i| same(i)).for_each(|i| done[i] = true);
    }
    context.workspace.row = x;
}

/// First task of each matrix, and the number of all tasks.
fn task_starts(tasks: [usize; 4]) -> [usize; 5] {
    let mut starts = [0; 5];
    for i in 0..4 {
        starts[i + 1] = starts[i] + tasks[i];
    }
    starts
}
