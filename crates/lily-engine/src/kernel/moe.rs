//! Mixture of experts: router, top-k, grouping of rows by expert, grouped products, combination; and the three decode
//! steps that fuse them.
//!
//! An *assignment* is one (token, chosen expert) pair, numbered `t * K + i`. Grouped kernels work on assignments sorted
//! by expert (stable), so that each expert's rows are neighbours and its weights are read once. Routing stays fp32 and
//! ties go to the lowest expert.

use super::linear::{norm_row, product_row, silu};
use super::quant::HostMatrix;
use super::*;
use half::bf16;

/// Fills the tile map where there is no tile.
pub const NO_TILE: u32 = u32::MAX;

/// Most experts that a token may choose; checked when a checkpoint is loaded.
pub const TOP_K_MAX: usize = 16;

dims! {
    /// MoE dimensions as kernel arguments.
    MoeDims {
        /// Tokens.
        rows: u32,
        /// Model width.
        width: u32,
        /// Experts.
        experts: u32,
        /// Experts chosen per token.
        top_k: u32,
        /// Width of a routed expert.
        expert_width: u32,
        /// Width of the shared expert.
        shared_width: u32,
        /// Epsilon of the norm before the block.
        eps: f32,
    }
}

impl MoeDims {
    /// Assignments of the chunk.
    pub fn assignments(&self) -> usize {
        (self.rows * self.top_k) as usize
    }

    /// Most tiles of so many rows that the chunk's assignments can make.
    pub fn tiles(&self, tile_rows: u32) -> u32 {
        launch::expert_tiles(self.assignments() as u32, self.experts, tile_rows)
    }

    /// A grouped matrix-matrix kernel with so many outputs.
    fn expert_launch(&self, outputs: u32, products: u32, tile_rows: u32) -> Launch {
        launch::tiled(outputs, products, self.tiles(tile_rows), tile_rows)
    }

    /// Experts that the chunk is expected to touch under even routing.
    fn touched(&self) -> f64 {
        let experts = self.experts as f64;
        experts * (1.0 - (1.0 - self.top_k as f64 / experts).powi(self.rows as i32))
    }
}

/// The `K` largest of `logits`, ties to the lowest index, with their softmax over the chosen ones.
///
/// Renormalising a softmax over all experts gives the same numbers, the sum over the others cancelling out.
pub(crate) fn top_k(logits: &[f32], experts: &mut [u32], scores: &mut [f32]) {
    for i in 0..experts.len() {
        let (chosen, rest) = experts.split_at_mut(i);
        let mut best = usize::MAX;
        for (e, &logit) in logits.iter().enumerate() {
            let taken = chosen.contains(&(e as u32));
            if !taken && (best == usize::MAX || logit > logits[best]) {
                best = e;
            }
        }
        rest[0] = best as u32;
    }
    let most = logits[experts[0] as usize];
    scores.iter_mut().zip(experts.iter()).for_each(|(s, &e)| *s = (logits[e as usize] - most).exp());
    let total: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|s| *s /= total);
}

kernel! {
    /// Router logits and the shared expert's scale: `logits[t] = Wr x[t]`, `shared[t] = sigmoid(ws x[t])`, fp32.
    Router, "router", args RouterArgs, views RouterViews {
        args {
            /// Dimensions.
            dims: MoeDims,
            /// Storage of the router.
            router_format: PackedFormat,
            /// Storage of the shared expert's scale row.
            shared_format: PackedFormat,
        }
        buffers {
            x: read bf16,
            router_codes: read u8, router_scales: read u8, router_biases: read u8,
            shared_codes: read u8, shared_scales: read u8, shared_biases: read u8,
            logits: write f32,
            shared: write f32,
        }
        launch: |a| {
            let groups = [launch::vector_threadgroups(a.dims.experts + 1), a.dims.rows.div_ceil(launch::ROUTER_ROWS), 1];
            Launch::new(groups, launch::VECTOR_SIMDGROUPS * launch::SIMD_WIDTH).formats(&[a.router_format, a.shared_format])
        },
        cost: |a, _| {
            let (d, rows) = (a.dims, a.dims.rows as f64);
            Cost {
                weight_bytes: matrix_bytes(a.router_format, d.experts, d.width) + matrix_bytes(a.shared_format, 1, d.width),
                activation_bytes: rows * (2.0 * d.width as f64 + 4.0 * (d.experts + 1) as f64),
                flops: product_flops(d.rows, d.experts + 1, d.width),
                ..Cost::default()
            }
        },
        tolerance: 1e-4,
        reference: |v| {
            let width = v.args.dims.width as usize;
            let router = HostMatrix {
                format: v.args.router_format.format(), cols: width,
                codes: v.router_codes, scales: v.router_scales, biases: v.router_biases,
            };
            let shared = HostMatrix {
                format: v.args.shared_format.format(), cols: width,
                codes: v.shared_codes, scales: v.shared_scales, biases: v.shared_biases,
            };
            let experts = v.args.dims.experts as usize;
            for (t, x) in v.x.chunks_exact(width).enumerate() {
                let logits = &mut v.logits[t * experts..][..experts];
                logits.iter_mut().enumerate().for_each(|(n, l)| *l = product_row(&router, n, x));
                v.shared[t] = sigmoid(product_row(&shared, 0, x));
            }
        },
    }
}

kernel! {
    /// The chosen experts of every token and their renormalised softmax scores.
    Route, "route", args RouteArgs, views RouteViews {
        args {
            /// Dimensions.
            dims: MoeDims,
        }
        buffers {
            logits: read f32,
            experts: write u32,
            scores: write f32,
        }
        launch: |a| launch::items(a.dims.rows, 1),
        cost: |a, _| Cost {
            activation_bytes: 4.0 * a.dims.rows as f64 * (a.dims.experts + 2 * a.dims.top_k) as f64,
            ..Cost::default()
        },
        tolerance: 1e-5,
        reference: |v| {
            let k = v.args.dims.top_k as usize;
            let chosen = v.experts.chunks_exact_mut(k).zip(v.scores.chunks_exact_mut(k));
            for (logits, (experts, scores)) in v.logits.chunks_exact(v.args.dims.experts as usize).zip(chosen) {
                top_k(logits, experts, scores);
            }
        },
    }
}

kernel! {
    /// Assignments sorted by expert: `order` lists them, expert `e` owns `order[offsets[e]..offsets[e + 1]]`; and the tile
    /// map: pairs of an expert and its tile's first place in `order`, [`NO_TILE`] twice where there is none.
    GroupRows, "group_rows", args GroupRowsArgs, views GroupRowsViews {
        args {
            /// Dimensions.
            dims: MoeDims,
            /// Rows of a tile.
            tile_rows: u32,
        }
        buffers {
            experts: read u32,
            offsets: write u32,
            order: write u32,
            tiles: write u32,
        }
        launch: |a| Launch::new([a.dims.experts, 1, 1], launch::ROW_THREADS),
        cost: |a, _| Cost {
            activation_bytes: 4.0
                * (2 * a.dims.assignments() + a.dims.experts as usize + 1 + 2 * a.dims.tiles(a.tile_rows) as usize) as f64,
            ..Cost::default()
        },
        tolerance: 0.0,
        reference: |v| {
            v.offsets.fill(0);
            v.experts.iter().for_each(|&e| v.offsets[e as usize + 1] += 1);
            for e in 1..v.offsets.len() {
                v.offsets[e] += v.offsets[e - 1];
            }
            let mut next = v.offsets.to_vec();
            for (assignment, &expert) in v.experts.iter().enumerate() {
                v.order[next[expert as usize] as usize] = assignment as u32;
                next[expert as usize] += 1;
            }
            v.tiles.fill(NO_TILE);
            let mut tiles = v.tiles.chunks_exact_mut(2);
            for (expert, span) in v.offsets.windows(2).enumerate() {
                for first in (span[0]..span[1]).step_by(v.args.tile_rows as usize) {
                    tiles.next().expect("as many tiles as `MoeDims::tiles`").copy_from_slice(&[expert as u32, first]);
                }
            }
        },
    }
}

kernel! {
    /// Grouped gated activation by the tile map: row `i` of `y` is `silu(Wg[e] x[t]) * (Wu[e] x[t])` for assignment `order[i]`.
    ExpertGateUp, "expert_gate_up", args ExpertGateUpArgs, views ExpertGateUpViews {
        args {
            /// Dimensions.
            dims: MoeDims,
            /// Storage of the gate matrices.
            gate_format: PackedFormat,
            /// Storage of the up matrices.
            up_format: PackedFormat,
            /// Rows from one expert to the next.
            stride_rows: u32,
            /// Rows of a tile.
            tile_rows: u32,
        }
        buffers {
            x: read bf16,
            offsets: read u32,
            order: read u32,
            tiles: read u32,
            gate_codes: read u8, gate_scales: read u8, gate_biases: read u8,
            up_codes: read u8, up_scales: read u8, up_biases: read u8,
            y: write bf16,
        }
        launch: |a| a.dims.expert_launch(a.dims.expert_width, 2, a.tile_rows).formats(&[a.gate_format, a.up_format]),
        cost: |a, _| {
            let d = a.dims;
            let expert = matrix_bytes(a.gate_format, d.expert_width, d.width) + matrix_bytes(a.up_format, d.expert_width, d.width);
            let rows = d.assignments() as f64;
            Cost {
                weight_bytes: d.touched() * expert,
                activation_bytes: 2.0 * rows * (d.width + d.expert_width) as f64,
                flops: product_flops(d.rows * d.top_k, 2 * d.expert_width, d.width),
                ..Cost::default()
            }
        },
        tolerance: 8e-3,
        reference: |v| {
            let (width, outputs) = (v.args.dims.width as usize, v.args.dims.expert_width as usize);
            let gates = HostMatrix {
                format: v.args.gate_format.format(), cols: width,
                codes: v.gate_codes, scales: v.gate_scales, biases: v.gate_biases,
            };
            let ups = HostMatrix {
                format: v.args.up_format.format(), cols: width,
                codes: v.up_codes, scales: v.up_scales, biases: v.up_biases,
            };
            for e in 0..v.args.dims.experts as usize {
                let row = e * v.args.stride_rows as usize;
                for i in v.offsets[e] as usize..v.offsets[e + 1] as usize {
                    let x = &v.x[(v.order[i] / v.args.dims.top_k) as usize * width..][..width];
                    for (n, y) in v.y[i * outputs..][..outputs].iter_mut().enumerate() {
                        let gate = product_row(&gates, row + n, x);
                        *y = bf16::from_f32(silu(gate) * product_row(&ups, row + n, x));
                    }
                }
            }
        },
    }
}

kernel! {
    /// Grouped down projection: row `order[i]` of `y` is `Wd[e]` times row `i` of `act`.
    ExpertDown, "expert_down", args ExpertDownArgs, views ExpertDownViews {
        args {
            /// Dimensions.
            dims: MoeDims,
            /// Storage of the down matrices.
            format: PackedFormat,
            /// Rows from one expert to the next.
            stride_rows: u32,
            /// Rows of a tile.
            tile_rows: u32,
        }
        buffers {
            act: read bf16,
            offsets: read u32,
            order: read u32,
            tiles: read u32,
            codes: read u8, scales: read u8, biases: read u8,
            y: write bf16,
        }
        launch: |a| a.dims.expert_launch(a.dims.width, 1, a.tile_rows).formats(&[a.format]),
        cost: |a, _| {
            let d = a.dims;
            Cost {
                weight_bytes: d.touched() * matrix_bytes(a.format, d.width, d.expert_width),
                activation_bytes: 2.0 * d.assignments() as f64 * (d.width + d.expert_width) as f64,
                flops: product_flops(d.rows * d.top_k, d.width, d.expert_width),
                ..Cost::default()
            }
        },
        tolerance: 8e-3,
        reference: |v| {
            let (width, inputs) = (v.args.dims.width as usize, v.args.dims.expert_width as usize);
            let matrix = HostMatrix {
                format: v.args.format.format(), cols: inputs, codes: v.codes, scales: v.scales, biases: v.biases,
            };
            for e in 0..v.args.dims.experts as usize {
                for i in v.offsets[e] as usize..v.offsets[e + 1] as usize {
                    let act = &v.act[i * inputs..][..inputs];
                    let y = &mut v.y[v.order[i] as usize * width..][..width];
                    for (n, y) in y.iter_mut().enumerate() {
                        *y = bf16::from_f32(product_row(&matrix, e * v.args.stride_rows as usize + n, act));
                    }
                }
            }
        },
    }
}

kernel! {
    /// Sum of the experts into the residual stream: `h[t] += sum_i scores[t, i] y[t, i] + shared[t] shared_y[t]`.
    Combine, "combine", args CombineArgs, views CombineViews {
        args {
            /// Dimensions.
            dims: MoeDims,
        }
        buffers {
            y: read bf16,
            scores: read f32,
            shared_y: read bf16,
            shared: read f32,
            h: update bf16,
        }
        launch: |a| {
            let elements = launch::COMBINE_ELEMENTS * launch::ROW_THREADS;
            Launch::new([a.dims.width.div_ceil(elements), a.dims.rows, 1], launch::ROW_THREADS)
        },
        cost: |a, _| {
            let (d, rows) = (a.dims, a.dims.rows as f64);
            Cost {
                activation_bytes: rows * (2.0 * (d.top_k + 3) as f64 * d.width as f64 + 4.0 * (d.top_k + 1) as f64),
                flops: rows * 2.0 * (d.top_k + 1) as f64 * d.width as f64,
                ..Cost::default()
            }
        },
        tolerance: 8e-3,
        reference: |v| {
            let (width, k) = (v.args.dims.width as usize, v.args.dims.top_k as usize);
            for (at, h) in v.h.iter_mut().enumerate() {
                let (t, c) = (at / width, at % width);
                let mut sum = v.shared[t] * v.shared_y[at].to_f32();
                for i in 0..k {
                    sum += v.scores[t * k + i] * v.y[(t * k + i) * width + c].to_f32();
                }
                *h = bf16::from_f32(h.to_f32() + sum);
            }
        },
    }
}

kernel! {
    /// Decode: norm, router logits and shared scale of every token.
    RouterStep, "router_step", args RouterStepArgs, views RouterStepViews {
        args {
            /// Dimensions; at most [`launch::BATCH_MAX`] rows.
            dims: MoeDims,
            /// Storage of the router.
            router_format: PackedFormat,
            /// Storage of the shared expert's scale row.
            shared_format: PackedFormat,
        }
        buffers {
            h: read bf16,
            gain: read f32,
            router_codes: read u8, router_scales: read u8, router_biases: read u8,
            shared_codes: read u8, shared_scales: read u8, shared_biases: read u8,
            logits: write f32,
            shared: write f32,
        }
        launch: |a| {
            let threadgroups = a.dims.experts.div_ceil(launch::VECTOR_SIMDGROUPS) + 1;
            Launch::new([threadgroups, 1, 1], launch::VECTOR_SIMDGROUPS * launch::SIMD_WIDTH)
                .formats(&[a.router_format, a.shared_format])
                .constant(Constant::Batch, a.dims.rows)
        },
        cost: |a, _| {
            let d = a.dims;
            Cost {
                weight_bytes: 4.0 * d.width as f64 + matrix_bytes(a.router_format, d.experts, d.width)
                    + matrix_bytes(a.shared_format, 1, d.width),
                activation_bytes: d.rows as f64 * (2.0 * d.width as f64 + 4.0 * (d.experts + 1) as f64),
                flops: product_flops(d.rows, d.experts + 1, d.width),
                ..Cost::default()
            }
        },
        tolerance: 1e-4,
        reference: |v| {
            let rows = v.h.chunks_exact(v.args.dims.width as usize);
            let x: Vec<bf16> = rows.flat_map(|h| norm_row(h, v.gain, v.args.dims.eps)).collect();
            let slices = HostSlices::new([
                HostSlice::Read(bytemuck::cast_slice(&x)),
                HostSlice::Read(v.router_codes), HostSlice::Read(v.router_scales), HostSlice::Read(v.router_biases),
                HostSlice::Read(v.shared_codes), HostSlice::Read(v.shared_scales), HostSlice::Read(v.shared_biases),
                HostSlice::Write(bytemuck::cast_slice_mut(v.logits)),
                HostSlice::Write(bytemuck::cast_slice_mut(v.shared)),
            ]);
            (Router::contract().reference)(bytemuck::bytes_of(&v.args), slices);
        },
    }
}

kernel! {
    /// Decode: norm, top-k, and the gated activation of the chosen experts and of the shared one.
    ExpertsGateUpStep, "experts_gate_up_step", args ExpertsGateUpStepArgs, views ExpertsGateUpStepViews {
        args {
            /// Dimensions; few rows.
            dims: MoeDims,
            /// Storage of the routed gate matrices.
            gate_format: PackedFormat,
            /// Storage of the routed up matrices.
            up_format: PackedFormat,
            /// Storage of the shared gate matrix.
            shared_gate_format: PackedFormat,
            /// Storage of the shared up matrix.
            shared_up_format: PackedFormat,
            /// Rows from one routed expert to the next.
            stride_rows: u32,
        }
        buffers {
            h: read bf16,
            gain: read f32,
            logits: read f32,
            gate_codes: read u8, gate_scales: read u8, gate_biases: read u8,
            up_codes: read u8, up_scales: read u8, up_biases: read u8,
            shared_gate_codes: read u8, shared_gate_scales: read u8, shared_gate_biases: read u8,
            shared_up_codes: read u8, shared_up_scales: read u8, shared_up_biases: read u8,
            experts: write u32,
            scores: write f32,
            act: write bf16,
            shared_act: write bf16,
        }
        launch: |a| {
            let routed = launch::gated_threadgroups(a.dims.expert_width) * a.dims.top_k;
            let threadgroups = routed + launch::gated_threadgroups(a.dims.shared_width);
            Launch::new([threadgroups, a.dims.rows, 1], launch::GATED_SIMDGROUPS * launch::SIMD_WIDTH)
                .formats(&[a.gate_format, a.up_format, a.shared_gate_format, a.shared_up_format])
        },
        cost: |a, _| {
            let d = a.dims;
            let expert = matrix_bytes(a.gate_format, d.expert_width, d.width) + matrix_bytes(a.up_format, d.expert_width, d.width);
            let shared = matrix_bytes(a.shared_gate_format, d.shared_width, d.width)
                + matrix_bytes(a.shared_up_format, d.shared_width, d.width);
            let (rows, outputs) = (d.rows as f64, d.top_k * d.expert_width + d.shared_width);
            Cost {
                weight_bytes: 4.0 * d.width as f64 + d.touched() * expert + shared,
                activation_bytes: rows * (2.0 * (d.width + outputs) as f64 + 4.0 * (d.experts + 2 * d.top_k) as f64),
                flops: product_flops(d.rows, 2 * outputs, d.width),
                ..Cost::default()
            }
        },
        tolerance: 8e-3,
        reference: experts_gate_up_step_reference,
    }
}

fn experts_gate_up_step_reference(v: ExpertsGateUpStepViews<'_>) {
    let d = v.args.dims;
    let matrix = |format: PackedFormat, codes, scales, biases| HostMatrix {
        format: format.format(),
        cols: d.width as usize,
        codes,
        scales,
        biases,
    };
    let gates = matrix(v.args.gate_format, v.gate_codes, v.gate_scales, v.gate_biases);
    let ups = matrix(v.args.up_format, v.up_codes, v.up_scales, v.up_biases);
    let gate = matrix(v.args.shared_gate_format, v.shared_gate_codes, v.shared_gate_scales, v.shared_gate_biases);
    let up = matrix(v.args.shared_up_format, v.shared_up_codes, v.shared_up_scales, v.shared_up_biases);
    let (k, width) = (d.top_k as usize, d.expert_width as usize);
    for t in 0..d.rows as usize {
        let x = norm_row(&v.h[t * d.width as usize..][..d.width as usize], v.gain, d.eps);
        let experts = &mut v.experts[t * k..][..k];
        top_k(&v.logits[t * d.experts as usize..][..d.experts as usize], experts, &mut v.scores[t * k..][..k]);
        for (e, act) in experts.iter().zip(v.act[t * k * width..].chunks_exact_mut(width)) {
            let row = (e * v.args.stride_rows) as usize;
            for (n, act) in act.iter_mut().enumerate() {
                *act = bf16::from_f32(silu(product_row(&gates, row + n, &x)) * product_row(&ups, row + n, &x));
            }
        }
        let shared_act = &mut v.shared_act[t * d.shared_width as usize..][..d.shared_width as usize];
        for (n, act) in shared_act.iter_mut().enumerate() {
            *act = bf16::from_f32(silu(product_row(&gate, n, &x)) * product_row(&up, n, &x));
        }
    }
}

kernel! {
    /// Decode: down projections of the chosen experts and of the shared one, weighted and added to the residual stream.
    ExpertsDownStep, "experts_down_step", args ExpertsDownStepArgs, views ExpertsDownStepViews {
        args {
            /// Dimensions; few rows.
            dims: MoeDims,
            /// Storage of the routed down matrices.
            format: PackedFormat,
            /// Storage of the shared down matrix.
            shared_format: PackedFormat,
            /// Rows from one routed expert to the next.
            stride_rows: u32,
        }
        buffers {
            act: read bf16,
            shared_act: read bf16,
            experts: read u32,
            scores: read f32,
            shared: read f32,
            codes: read u8, scales: read u8, biases: read u8,
            shared_codes: read u8, shared_scales: read u8, shared_biases: read u8,
            h: update bf16,
        }
        launch: |a| {
            let threads = (a.dims.top_k + 1) * launch::SIMD_WIDTH;
            Launch::new([a.dims.width.div_ceil(launch::DOWN_OUTPUTS), a.dims.rows, 1], threads)
                .formats(&[a.format, a.shared_format])
        },
        cost: |a, _| {
            let d = a.dims;
            Cost {
                weight_bytes: d.touched() * matrix_bytes(a.format, d.width, d.expert_width)
                    + matrix_bytes(a.shared_format, d.width, d.shared_width),
                activation_bytes: 2.0 * (d.rows * (d.top_k * d.expert_width + d.shared_width + 2 * d.width)) as f64,
                flops: product_flops(d.rows, d.width, d.top_k * d.expert_width + d.shared_width),
                ..Cost::default()
            }
        },
        tolerance: 8e-3,
        reference: |v| {
            let d = v.args.dims;
            let routed = HostMatrix {
                format: v.args.format.format(), cols: d.expert_width as usize,
                codes: v.codes, scales: v.scales, biases: v.biases,
            };
            let shared = HostMatrix {
                format: v.args.shared_format.format(), cols: d.shared_width as usize,
                codes: v.shared_codes, scales: v.shared_scales, biases: v.shared_biases,
            };
            let (k, width) = (d.top_k as usize, d.expert_width as usize);
            for (at, h) in v.h.iter_mut().enumerate() {
                let (t, c) = (at / d.width as usize, at % d.width as usize);
                let shared_act = &v.shared_act[t * d.shared_width as usize..][..d.shared_width as usize];
                let mut sum = v.shared[t] * bf16::from_f32(product_row(&shared, c, shared_act)).to_f32();
                for (i, act) in v.act.chunks_exact(width).enumerate().skip(t * k).take(k) {
                    let row = (v.experts[i] * v.args.stride_rows) as usize + c;
                    sum += v.scores[i] * bf16::from_f32(product_row(&routed, row, act)).to_f32();
                }
                *h = bf16::from_f32(h.to_f32() + sum);
            }
        },
    }
}
