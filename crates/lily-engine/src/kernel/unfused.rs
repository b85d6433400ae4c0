//! What plans without one of the fusions are made of: the fused kernels' parts, with results in memory between them.
//!
//! Only plans for GPUs in which a mechanism is turned off hold these ([`crate::model::Mechanism`]); so the CPU backend
//! runs their reference functions.

use super::attention::blocks_reference;
use super::delta::update_reference;
use super::linear::{norm_row, product_row, silu};
use super::quant::HostMatrix;
use super::*;
use half::bf16;

kernel! {
    /// A stored matrix, or those of all experts one behind the other, expanded to bf16.
    Dequantize, "dequantize", args DequantizeArgs, views DequantizeViews {
        args {
            /// Matrices.
            experts: u32,
            /// Rows of a matrix.
            rows: u32,
            /// Columns.
            cols: u32,
            /// Rows from one matrix to the next.
            stride_rows: u32,
            /// Storage.
            format: PackedFormat,
        }
        buffers {
            codes: read u8,
            scales: read u8,
            biases: read u8,
            y: write bf16,
        }
        launch: |a| {
            Launch::new([(a.cols / 8).div_ceil(launch::SIMD_WIDTH), a.rows.div_ceil(launch::ROW_SIMDGROUPS), a.experts],
                launch::ROW_SIMDGROUPS * launch::SIMD_WIDTH).formats(&[a.format])
        },
        cost: |a, _| Cost {
            weight_bytes: matrix_bytes(a.format, a.experts * a.rows, a.cols),
            activation_bytes: 2.0 * (a.experts * a.rows) as f64 * a.cols as f64,
            flops: product_flops(1, a.experts * a.rows, a.cols),
            ..Cost::default()
        },
        tolerance: 8e-3,
        reference: |v| {
            let a = v.args;
            let matrix = HostMatrix {
                format: a.format.format(), cols: a.cols as usize, codes: v.codes, scales: v.scales, biases: v.biases,
            };
            for (i, y) in v.y.chunks_exact_mut(a.cols as usize).enumerate() {
                let (expert, n) = (i / a.rows as usize, i % a.rows as usize);
                matrix.dequantize_row(expert * a.stride_rows as usize + n, |column, x| y[column] = bf16::from_f32(x));
            }
        },
    }
}

kernel! {
    /// Decode: norm, top-k, and the gate and up products of the chosen experts and of the shared one, not yet activated:
    /// `products` is fp32 `[2, K We + Ws]`, gates first.
    ExpertsProductsStep, "experts_products_step", args ExpertsProductsStepArgs, views ExpertsProductsStepViews {
        args {
            /// Dimensions; one row.
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
            products: write f32,
        }
        launch: |a| {
            let routed = launch::vector_threadgroups(a.dims.expert_width) * a.dims.top_k;
            let threadgroups = routed + launch::vector_threadgroups(a.dims.shared_width);
            Launch::new([threadgroups, 2, 1], launch::VECTOR_SIMDGROUPS * launch::SIMD_WIDTH)
                .formats(&[a.gate_format, a.up_format, a.shared_gate_format, a.shared_up_format])
        },
        cost: |a, step| {
            let d = a.dims;
            let fused = bytemuck::bytes_of(&a);
            let mut cost = (ExpertsGateUpStep::contract().cost)(fused, step);
            cost.activation_bytes += 6.0 * (d.top_k * d.expert_width + d.shared_width) as f64;
            cost
        },
        tolerance: 1e-4,
        reference: experts_products_reference,
    }
}

fn experts_products_reference(v: ExpertsProductsStepViews<'_>) {
    let (a, d) = (v.args, v.args.dims);
    let x = norm_row(v.h, v.gain, d.eps);
    top_k(v.logits, v.experts, v.scores);
    let matrix = |format: PackedFormat, codes, scales, biases| HostMatrix {
        format: format.format(),
        cols: d.width as usize,
        codes,
        scales,
        biases,
    };
    let routed = [
        matrix(a.gate_format, v.gate_codes, v.gate_scales, v.gate_biases),
        matrix(a.up_format, v.up_codes, v.up_scales, v.up_biases),
    ];
    let shared = [
        matrix(a.shared_gate_format, v.shared_gate_codes, v.shared_gate_scales, v.shared_gate_biases),
        matrix(a.shared_up_format, v.shared_up_codes, v.shared_up_scales, v.shared_up_biases),
    ];
    let half = v.products.len() / 2;
    let (width, of_experts) = (d.expert_width as usize, (d.top_k * d.expert_width) as usize);
    for (i, product) in v.products.iter_mut().enumerate() {
        let (which, output) = (i / half, i % half);
        *product = match output.checked_sub(of_experts) {
            Some(row) => product_row(&shared[which], row, &x),
            None => {
                let first = (v.experts[output / width] * a.stride_rows) as usize;
                product_row(&routed[which], first + output % width, &x)
            }
        };
    }
}

kernel! {
    /// Decode: the gated activation of what [`ExpertsProductsStep`] left: `silu(gate) * up`.
    GateProducts, "gate_products", args GateProductsArgs, views GateProductsViews {
        args {
            /// Dimensions; one row.
            dims: MoeDims,
        }
        buffers {
            products: read f32,
            act: write bf16,
            shared_act: write bf16,
        }
        launch: |a| {
            let outputs = a.dims.top_k * a.dims.expert_width + a.dims.shared_width;
            Launch::new([outputs.div_ceil(launch::ROW_THREADS), 1, 1], launch::ROW_THREADS)
        },
        cost: |a, _| Cost {
            activation_bytes: 10.0 * (a.dims.top_k * a.dims.expert_width + a.dims.shared_width) as f64,
            ..Cost::default()
        },
        tolerance: 8e-3,
        reference: |v| {
            let (gates, ups) = v.products.split_at(v.products.len() / 2);
            let outputs = v.act.iter_mut().chain(v.shared_act.iter_mut());
            outputs.zip(gates.iter().zip(ups)).for_each(|(y, (gate, up))| *y = bf16::from_f32(silu(*gate) * up));
        },
    }
}

kernel! {
    /// Decode: the down projection of every chosen expert and of the shared one, bf16 `[K, width]` and `[width]`.
    ExpertsEachStep, "experts_each_step", args ExpertsEachStepArgs, views ExpertsEachStepViews {
        args {
            /// Dimensions; one row.
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
            codes: read u8, scales: read u8, biases: read u8,
            shared_codes: read u8, shared_scales: read u8, shared_biases: read u8,
            y: write bf16,
            shared_y: write bf16,
        }
        launch: |a| {
            let threads = (a.dims.top_k + 1) * launch::SIMD_WIDTH;
            Launch::new([a.dims.width.div_ceil(launch::DOWN_OUTPUTS), 1, 1], threads)
                .formats(&[a.format, a.shared_format])
        },
        cost: |a, step| {
            let mut cost = (ExpertsDownStep::contract().cost)(bytemuck::bytes_of(&a), step);
            cost.activation_bytes += 2.0 * (a.dims.top_k - 1) as f64 * a.dims.width as f64;
            cost
        },
        tolerance: 8e-3,
        reference: |v| {
            let (a, d) = (v.args, v.args.dims);
            let routed = HostMatrix {
                format: a.format.format(), cols: d.expert_width as usize,
                codes: v.codes, scales: v.scales, biases: v.biases,
            };
            let shared = HostMatrix {
                format: a.shared_format.format(), cols: d.shared_width as usize,
                codes: v.shared_codes, scales: v.shared_scales, biases: v.shared_biases,
            };
            let each = v.act.chunks_exact(d.expert_width as usize).zip(v.y.chunks_exact_mut(d.width as usize));
            for ((act, y), expert) in each.zip(v.experts) {
                let first = (expert * a.stride_rows) as usize;
                y.iter_mut().enumerate().for_each(|(n, y)| *y = bf16::from_f32(product_row(&routed, first + n, act)));
            }
            let products = v.shared_y.iter_mut().enumerate();
            products.for_each(|(n, y)| *y = bf16::from_f32(product_row(&shared, n, v.shared_act)));
        },
    }
}

kernel! {
    /// Decode: preparation and one step of the delta rule of one token, not yet normed.
    DeltaUpdate, "delta_update", args DeltaUpdateArgs, views DeltaUpdateViews {
        args {
            /// Dimensions; one row.
            dims: DeltaDims,
        }
        buffers {
            step: read u32,
            qkv: read bf16,
            a: read bf16,
            b: read bf16,
            taps: read f32,
            a_log: read f32,
            dt_bias: read f32,
            window: update bf16,
            state: update f32,
            results: write bf16,
        }
        launch: |a| (DeltaStep::contract().launch)(bytemuck::bytes_of(&a)),
        cost: |a, step| {
            let mut cost = (DeltaStep::contract().cost)(bytemuck::bytes_of(&a), step);
            cost.weight_bytes -= 4.0 * a.dims.value_dim as f64;
            cost.activation_bytes -= 2.0 * a.dims.values_width() as f64;
            cost
        },
        tolerance: 8e-3,
        reference: update_reference,
    }
}

kernel! {
    /// Decode: [`AttendBlocks`] with queries, and the token's own key and value in the cache, prepared by [`QkPrep`].
    AttendPrepared, "attend_prepared", args AttendPreparedArgs, views AttendPreparedViews {
        args {
            /// Dimensions; one row.
            dims: AttentionDims,
            /// How the cache is split and read.
            reading: CacheReading,
        }
        buffers {
            step: read u32,
            q: read bf16,
            keys: read bf16,
            values: read bf16,
            partials: write f32,
        }
        launch: |a| (AttendBlocks::contract().launch)(bytemuck::bytes_of(&a)),
        cost: |a, step| {
            let mut cost = (AttendBlocks::contract().cost)(bytemuck::bytes_of(&a), step);
            cost.weight_bytes = 0.0;
            cost.state_bytes -= 4.0 * a.dims.kv_width() as f64;
            cost.activation_bytes -= 4.0 * a.dims.kv_width() as f64;
            cost
        },
        tolerance: 1e-3,
        reference: |v| blocks_reference(v.args.dims, v.args.reading, v.step[0], v.q, [v.keys, v.values], v.partials),
    }
}
