//! Mixture of experts: grouped products over (expert, tile) tasks, and the decode steps.

use super::linear::{
    STEP_OUTPUTS_MAX, TILE_OUTPUTS, TILE_ROWS, activate, expert, operands, products, step_outputs, view,
};
use super::rows::norm_row;
use super::{Context, Workspace, for_rows, tile, vector_kernel};
use crate::backend::cpu::pool::SharedMut;
use crate::backend::cpu::product::{Layout, MatrixView, Operand, XRows, product};
use crate::kernel::{
    CombineViews, ExpertDownViews, ExpertGateUpViews, ExpertsDownStepViews, ExpertsGateUpStepViews, GroupRows,
    GroupRowsViews, HostSlice, HostSlices, Kernel, PackedFormat, RouteViews, RouterArgs, RouterStepViews, RouterViews,
    TOP_K_MAX, sigmoid, top_k,
};
use half::bf16;

/// Buffers and formats of the router and of the shared expert's scale row.
struct Routers<'a> {
    args: RouterArgs,
    router: [&'a [u8]; 3],
    shared: [&'a [u8]; 3],
}

fn route_logits(context: Context<'_>, w: Routers<'_>, x: &[bf16], logits: &mut [f32], shared: &mut [f32]) {
    let (dims, Workspace { operands: scratch, tiles, .. }) = (w.args.dims, context.workspace);
    let experts = dims.experts as usize;
    let router = view(w.args.router_format, experts, dims.width, w.router);
    let scale = view(w.args.shared_format, 1, dims.width, w.shared);
    let formats = [w.args.router_format, w.args.shared_format];
    let [router_x, scale_x] = operands(context.isa, context.pool, formats, x, dims.width, scratch);
    let logits = SharedMut::new(logits);
    products(context.pool, tiles, &router, &router_x, &|tile| {
        let columns = tile.w_rows.len();
        for (row, values) in tile.x_rows.zip(tile.values.chunks_exact(columns)) {
            let at = row * experts + tile.w_rows.start;
            // SAFETY: tiles cover different rows or columns.
            unsafe { logits.range_mut(at..at + columns) }.copy_from_slice(values);
        }
    });
    product(&scale, &scale_x, XRows::Range(0..shared.len()), 0..1, shared);
    shared.iter_mut().for_each(|s| *s = sigmoid(*s));
}

pub fn router(context: Context<'_>, v: RouterViews<'_>) {
    let weights = Routers {
        args: v.args,
        router: [v.router_codes, v.router_scales, v.router_biases],
        shared: [v.shared_codes, v.shared_scales, v.shared_biases],
    };
    route_logits(context, weights, v.x, v.logits, v.shared);
}

pub fn router_step(context: Context<'_>, v: RouterStepViews<'_>) {
    let a = v.args;
    let mut x = std::mem::take(&mut context.workspace.row);
    x.resize(a.dims.width as usize, bf16::ZERO);
    norm_row(&context, v.h, v.gain, a.dims.eps, &mut x);
    let weights = Routers {
        args: RouterArgs { dims: a.dims, router_format: a.router_format, shared_format: a.shared_format },
        router: [v.router_codes, v.router_scales, v.router_biases],
        shared: [v.shared_codes, v.shared_scales, v.shared_biases],
    };
    let Context { isa, pool, workspace } = context;
    route_logits(Context { isa, pool, workspace: &mut *workspace }, weights, &x, v.logits, v.shared);
    workspace.row = x;
}

pub fn route(context: Context<'_>, v: RouteViews<'_>) {
    let (k, experts) = (v.args.dims.top_k as usize, v.args.dims.experts as usize);
    let (chosen, scores) = (SharedMut::new(v.experts), SharedMut::new(v.scores));
    for_rows(context.pool, v.args.dims.rows as usize, &|row| {
        // SAFETY: every task has rows of its own.
        let (chosen, scores) =
            unsafe { (chosen.range_mut(row * k..row * k + k), scores.range_mut(row * k..row * k + k)) };
        top_k(&v.logits[row * experts..][..experts], chosen, scores);
    });
}

/// The reference: one pass over a few thousand numbers.
pub fn group_rows(_: Context<'_>, v: GroupRowsViews<'_>) {
    let slices = [
        HostSlice::Read(bytemuck::cast_slice(v.experts)),
        HostSlice::Write(bytemuck::cast_slice_mut(v.offsets)),
        HostSlice::Write(bytemuck::cast_slice_mut(v.order)),
        HostSlice::Write(bytemuck::cast_slice_mut(v.tiles)),
    ];
    (GroupRows::contract().reference)(bytemuck::bytes_of(&v.args), HostSlices::new(slices));
}

/// The rows of `order` that a grouped task works on: a piece of one expert's.
fn pieces(offsets: &[u32], e: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let (start, end) = (offsets[e] as usize, offsets[e + 1] as usize);
    (start..end).step_by(TILE_ROWS).map(move |i| i..end.min(i + TILE_ROWS))
}

pub fn expert_gate_up(context: Context<'_>, v: ExpertGateUpViews<'_>) {
    let (a, d, isa) = (v.args, v.args.dims, context.isa);
    let Workspace { operands: scratch, tiles, indices, .. } = context.workspace;
    let outputs = d.expert_width as usize;
    let [gate_x, up_x] = operands(isa, context.pool, [a.gate_format, a.up_format], v.x, d.width, scratch);
    indices.clear();
    indices.extend(v.order.iter().map(|assignment| assignment / d.top_k));
    let (indices, y, tiles) = (&*indices, SharedMut::new(v.y), SharedMut::new(tiles));
    let blocks = outputs.div_ceil(TILE_OUTPUTS);
    context.pool.run(d.experts as usize * blocks, &|task, worker| {
        let (e, start) = (task / blocks, task % blocks * TILE_OUTPUTS);
        let w_rows = start..outputs.min(start + TILE_OUTPUTS);
        if v.offsets[e] == v.offsets[e + 1] {
            return;
        }
        let stored = [v.gate_codes, v.gate_scales, v.gate_biases];
        let gate = expert(a.gate_format, d.expert_width, d.width, a.stride_rows, e, stored);
        let stored = [v.up_codes, v.up_scales, v.up_biases];
        let up = expert(a.up_format, d.expert_width, d.width, a.stride_rows, e, stored);
        for rows in pieces(v.offsets, e) {
            let len = rows.len() * w_rows.len();
            // SAFETY: `worker` is this task's own for as long as it runs.
            let (g, u) = unsafe { tile(&tiles, worker, 2 * len) }.split_at_mut(len);
            product(&gate, &gate_x, XRows::List(&indices[rows.clone()]), w_rows.clone(), g);
            product(&up, &up_x, XRows::List(&indices[rows.clone()]), w_rows.clone(), u);
            for (i, row) in rows.enumerate() {
                let part = i * w_rows.len()..(i + 1) * w_rows.len();
                let at = row * outputs + w_rows.start;
                // SAFETY: tasks have different experts, hence rows, or different columns.
                activate(isa, &g[part.clone()], &u[part], unsafe { y.range_mut(at..at + w_rows.len()) });
            }
        }
    });
}

pub fn expert_down(context: Context<'_>, v: ExpertDownViews<'_>) {
    let (a, d) = (v.args, v.args.dims);
    let Workspace { operands: scratch, tiles, .. } = context.workspace;
    let width = d.width as usize;
    let layout = Layout::of(context.isa, a.format.format());
    let act = Operand::prepare_on(context.pool, layout, v.act, d.expert_width as usize, &mut scratch[0]);
    let (y, tiles) = (SharedMut::new(v.y), SharedMut::new(tiles));
    let blocks = width.div_ceil(TILE_OUTPUTS);
    context.pool.run(d.experts as usize * blocks, &|task, worker| {
        let (e, start) = (task / blocks, task % blocks * TILE_OUTPUTS);
        let w_rows = start..width.min(start + TILE_OUTPUTS);
        if v.offsets[e] == v.offsets[e + 1] {
            return;
        }
        let down = expert(a.format, d.width, d.expert_width, a.stride_rows, e, [v.codes, v.scales, v.biases]);
        for rows in pieces(v.offsets, e) {
            // SAFETY: `worker` is this task's own for as long as it runs.
            let values = unsafe { tile(&tiles, worker, rows.len() * w_rows.len()) };
            product(&down, &act, XRows::Range(rows.clone()), w_rows.clone(), values);
            for (row, values) in rows.zip(values.chunks_exact(w_rows.len())) {
                let at = v.order[row] as usize * width + w_rows.start;
                // SAFETY: an assignment belongs to one expert; tasks of one expert have different columns.
                let y = unsafe { y.range_mut(at..at + w_rows.len()) };
                y.iter_mut().zip(values).for_each(|(y, v)| *y = bf16::from_f32(*v));
            }
        }
    });
}

vector_kernel! {
    /// `h += shared * shared_y + sum_i scores[i] * y[i]` for a range of columns; `y[i]` starts `stride` after `y[i - 1]`.
    CombineRow<'a> {
        y: &'a [bf16], stride: usize, scores: &'a [f32], shared_y: &'a [bf16], shared: f32, h: &'a mut [bf16]
    } -> (), |simd| {
        for (block, h) in h.chunks_mut(S::LANES).enumerate() {
            let at = block * S::LANES..block * S::LANES + h.len();
            let mut sum = simd.mul(simd.splat(shared), simd.load_bf16_partial(&shared_y[at.clone()]));
            for (i, score) in scores.iter().enumerate() {
                let part = i * stride + at.start..i * stride + at.end;
                sum = simd.fma(simd.splat(*score), simd.load_bf16_partial(&y[part]), sum);
            }
            let v = simd.add(simd.load_bf16_partial(h), sum);
            simd.store_bf16_partial(h, v);
        }
    }
}

pub fn combine(context: Context<'_>, v: CombineViews<'_>) {
    let (width, k) = (v.args.dims.width as usize, v.args.dims.top_k as usize);
    let h = SharedMut::new(v.h);
    for_rows(context.pool, v.args.dims.rows as usize, &|row| {
        context.isa.dispatch(CombineRow {
            y: &v.y[row * k * width..][..k * width],
            stride: width,
            scores: &v.scores[row * k..][..k],
            shared_y: &v.shared_y[row * width..][..width],
            shared: v.shared[row],
            // SAFETY: every task has rows of its own.
            h: unsafe { h.range_mut(row * width..(row + 1) * width) },
        });
    });
}

/// Gated activation of one row by a list of matrix pairs, `outputs` values for each, one after another in `y`.
fn gate_up_row<'a>(
    context: &mut Context<'_>,
    x: &[bf16],
    formats: [PackedFormat; 2],
    pairs: (usize, &(dyn Fn(usize) -> [MatrixView<'a>; 2] + Sync)),
    y: &mut [bf16],
) {
    let (isa, Workspace { operands: scratch, tiles, .. }) = (context.isa, &mut *context.workspace);
    let [gate_x, up_x] = operands(isa, context.pool, formats, x, x.len() as u32, scratch);
    let (count, outputs) = (pairs.0, y.len() / pairs.0);
    let (y, tiles) = (SharedMut::new(y), SharedMut::new(tiles));
    let step = step_outputs(&pairs.1(0)[0], count, context.pool.threads());
    let blocks = outputs.div_ceil(step);
    context.pool.run(count * blocks, &|task, worker| {
        let (i, start) = (task / blocks, task % blocks * step);
        let w_rows = start..outputs.min(start + step);
        let [gate, up] = pairs.1(i);
        // SAFETY: `worker` is this task's own for as long as it runs.
        let (g, u) = unsafe { tile(&tiles, worker, 2 * w_rows.len()) }.split_at_mut(w_rows.len());
        product(&gate, &gate_x, XRows::Range(0..1), w_rows.clone(), g);
        product(&up, &up_x, XRows::Range(0..1), w_rows.clone(), u);
        let at = i * outputs + w_rows.start;
        // SAFETY: tasks have different columns.
        activate(isa, g, u, unsafe { y.range_mut(at..at + w_rows.len()) });
    });
}

pub fn experts_gate_up_step(mut context: Context<'_>, v: ExpertsGateUpStepViews<'_>) {
    let (a, d) = (v.args, v.args.dims);
    let mut x = std::mem::take(&mut context.workspace.row);
    x.resize(d.width as usize, bf16::ZERO);
    norm_row(&context, v.h, v.gain, d.eps, &mut x);
    top_k(v.logits, v.experts, v.scores);
    let chosen = &*v.experts;
    let routed = |i: usize| {
        let (e, rows, stride) = (chosen[i] as usize, d.expert_width, a.stride_rows);
        [
            expert(a.gate_format, rows, d.width, stride, e, [v.gate_codes, v.gate_scales, v.gate_biases]),
            expert(a.up_format, rows, d.width, stride, e, [v.up_codes, v.up_scales, v.up_biases]),
        ]
    };
    gate_up_row(&mut context, &x, [a.gate_format, a.up_format], (chosen.len(), &routed), v.act);
    let shared = |_: usize| {
        let (rows, gate) = (d.shared_width as usize, [v.shared_gate_codes, v.shared_gate_scales, v.shared_gate_biases]);
        let up = [v.shared_up_codes, v.shared_up_scales, v.shared_up_biases];
        [view(a.shared_gate_format, rows, d.width, gate), view(a.shared_up_format, rows, d.width, up)]
    };
    gate_up_row(&mut context, &x, [a.shared_gate_format, a.shared_up_format], (1, &shared), v.shared_act);
    context.workspace.row = x;
}

pub fn experts_down_step(context: Context<'_>, v: ExpertsDownStepViews<'_>) {
    let (a, d, isa) = (v.args, v.args.dims, context.isa);
    let Workspace { operands: [routed_scratch, shared_scratch], tiles, .. } = context.workspace;
    let (width, k) = (d.width as usize, d.top_k as usize);
    let layout = Layout::of(isa, a.format.format());
    let act = Operand::prepare(layout, v.act, d.expert_width as usize, routed_scratch);
    let layout = Layout::of(isa, a.shared_format.format());
    let shared_act = Operand::prepare(layout, v.shared_act, d.shared_width as usize, shared_scratch);
    let shared = view(a.shared_format, width, d.shared_width, [v.shared_codes, v.shared_scales, v.shared_biases]);
    let (h, tiles) = (SharedMut::new(v.h), SharedMut::new(tiles));
    let step = step_outputs(&shared, 1, context.pool.threads());
    context.pool.run(width.div_ceil(step), &|task, worker| {
        let w_rows = task * step..width.min((task + 1) * step);
        let columns = w_rows.len();
        // SAFETY: `worker` is this task's own for as long as it runs.
        let values = unsafe { tile(&tiles, worker, columns) };
        // Rounded as the separate down projections would be, so that both forms give the same bits.
        let mut y = [bf16::ZERO; (TOP_K_MAX + 1) * STEP_OUTPUTS_MAX];
        for (i, y) in y.chunks_exact_mut(columns).enumerate().take(k + 1) {
            if i < k {
                let (e, stored) = (v.experts[i] as usize, [v.codes, v.scales, v.biases]);
                let down = expert(a.format, d.width, d.expert_width, a.stride_rows, e, stored);
                product(&down, &act, XRows::Range(i..i + 1), w_rows.clone(), values);
            } else {
                product(&shared, &shared_act, XRows::Range(0..1), w_rows.clone(), values);
            }
            y.iter_mut().zip(&*values).for_each(|(y, v)| *y = bf16::from_f32(*v));
        }
        isa.dispatch(CombineRow {
            y: &y[..k * columns],
            stride: columns,
            scores: v.scores,
            shared_y: &y[k * columns..(k + 1) * columns],
            shared: v.shared[0],
            // SAFETY: tasks have different columns.
            h: unsafe { h.range_mut(w_rows) },
        });
    });
}
