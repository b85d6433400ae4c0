// Decode: the mixture of experts of one token, or of BATCH tokens, in three kernels.
#include "matvec_rows.h"
#include "top_k.h"

// Router logits, an expert a SIMD-group; the last threadgroup takes the shared expert's scale instead.
kernel void router_step(
    device const bfloat* h [[buffer(0)]],
    device const float* gain [[buffer(1)]],
    device const uchar* router_codes [[buffer(2)]],
    device const uchar* router_scales [[buffer(3)]],
    device const uchar* router_biases [[buffer(4)]],
    device const uchar* shared_codes [[buffer(5)]],
    device const uchar* shared_scales [[buffer(6)]],
    device const uchar* shared_biases [[buffer(7)]],
    device float* logits [[buffer(8)]],
    device float* shared [[buffer(9)]],
    constant RouterStepArgs& args [[buffer(10)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 vectors[STAGING(STAGED_COLUMNS, VECTOR_SIMDGROUPS, 0)];
    threadgroup float slots[BATCH_SLOTS];
    Place at = place(thread_index, simdgroup, VECTOR_SIMDGROUPS, lane);
    uint width = args.dims.width;
    uint experts = args.dims.experts;
    NormedRow row = normed_row(h, gain, width, args.dims.eps);
    bool of_shared = group.x + 1 == groups.x;
    uint expert = of_shared ? 0 : group.x * VECTOR_SIMDGROUPS + simdgroup;
    if (BATCH > 1) {
        StoredMatrix router = stored_matrix(router_codes, router_scales, router_biases, FORMAT0, width);
        StoredMatrix scale = stored_matrix(shared_codes, shared_scales, shared_biases, FORMAT1, width);
        NormedRows rows = normed_rows(row);
        float all[BATCH_MAX] = {};
        if (of_shared) {
            batch_products<1>(all, scale, 0, 0, rows, false, vectors, slots, at);
        } else {
            batch_products<1>(all, router, expert, experts - 1, rows, false, vectors, slots, at);
        }
        #pragma clang loop unroll(full)
        for (uint i = 0; i < BATCH_MAX; i++) {
            if (i < BATCH) {
                float product = simd_sum(all[i]);
                if (!of_shared && lane == 0 && expert < experts) {
                    logits[i * experts + expert] = product;
                } else if (of_shared && thread_index == 0) {
                    shared[i] = sigmoid(product);
                }
            }
        }
        return;
    }
    float sums[1] = {};
    StoredMatrix m = stored_matrix(router_codes, router_scales, router_biases, FORMAT0, width);
    uint last = experts - 1;
    if (of_shared) {
        m = stored_matrix(shared_codes, shared_scales, shared_biases, FORMAT0, width);
        last = 0;
    }
    if (FORMAT1 == FORMAT0 || !of_shared) {
        row_products<1, 4, STAGED_COLUMNS>(sums, m, expert, last, row, false, vectors, slots, at);
    } else {
        m.format = FORMAT1;
        row_products<1, 4, STAGED_COLUMNS>(sums, m, 0, 0, row, false, vectors, slots, at);
    }
    float product = simd_sum(sums[0]);
    if (of_shared && thread_index == 0) {
        shared[0] = sigmoid(product);
    } else if (!of_shared && lane == 0 && expert < experts) {
        logits[expert] = product;
    }
}

// Adds a SIMD-group's shares of the products of rows `first`, `first + 1` of both matrices with a staged stretch, for which the
// source is still there.
inline void add_gated(
    thread float* sums, StoredMatrix gate, StoredMatrix up, uint first, uint last, uint base, uint end,
    thread const NormedRow& source, threadgroup float4* vectors, Place at) {
    thread float* products = sums + GATED_OUTPUTS;
    bool alike = gate.format == up.format;
#if defined(LILY_MMA)
    threadgroup uint4* own = copies_of(vectors, STAGED_COLUMNS, at.simdgroup);
    FixedRow staged = fixed_row(vectors, STAGED_COLUMNS, base);
    if (alike && is_wide(gate.format)) {
        StoredPair pair = stored_pair(gate, up);
        add_stretch_copied<2 * GATED_OUTPUTS>(sums, pair, first, last, false, base, end, own, staged, at.lane);
        return;
    }
    add_rows<GATED_OUTPUTS>(sums, gate, first, last, base, end, vectors, at);
    if (!alike) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        stage_for(up, source, false, base, end, STAGED_COLUMNS, vectors, at);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    add_rows<GATED_OUTPUTS>(products, up, first, last, base, end, vectors, at);
#else
    StagedRow staged;
    staged.vectors = vectors;
    staged.base = base;
    if (alike) {
        StoredPair pair = stored_pair(gate, up);
        Ahead<2 * GATED_OUTPUTS, 1> ahead;
        request<2 * GATED_OUTPUTS, 1>(ahead, pair, first, last, base, end, at.lane);
        add_stretch<2 * GATED_OUTPUTS, 1>(sums, ahead, pair, first, last, staged, base, end, at.lane);
    } else {
        Ahead<GATED_OUTPUTS, 1> one;
        request<GATED_OUTPUTS, 1>(one, gate, first, last, base, end, at.lane);
        add_stretch<GATED_OUTPUTS, 1>(sums, one, gate, first, last, staged, base, end, at.lane);
        request<GATED_OUTPUTS, 1>(one, up, first, last, base, end, at.lane);
        add_stretch<GATED_OUTPUTS, 1>(products, one, up, first, last, staged, base, end, at.lane);
    }
#endif
}

// A threadgroup's outputs of silu(gate x) * (up x): of the expert that is the `slot`-th choice, or of the shared one if that is
// as many as there are choices. Gains of the first stretch are where `expect_row` leaves them, and the SIMD-groups have left the
// choice's bounds.
inline void gated_rows(
    StoredMatrix gate, StoredMatrix up, thread Choosing& choosing, uint top_k, uint slot, uint stride_rows, uint outputs,
    uint block, thread NormedRow& source, device bfloat* act, threadgroup float4* vectors, threadgroup float* slots,
    Place at) {
    uint output = (block * GATED_SIMDGROUPS + at.simdgroup) * GATED_OUTPUTS;
    uint first = output;
    uint last = outputs - 1;
    float sums[2 * GATED_OUTPUTS] = {};
    source.begin(slots, at);
    #pragma clang loop unroll(disable)
    for (uint base = 0; base < gate.cols; base += STAGED_COLUMNS) {
        uint end = min(base + STAGED_COLUMNS, gate.cols);
        if (base > 0) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        stage_for(gate, source, base == 0, base, end, STAGED_COLUMNS, vectors, at);
        if (base == 0 && slot < top_k) {
            choosing.finish(top_k, at.thread_index, at.simdgroup, at.lane);
            uint first_row = choosing.chosen[slot] * stride_rows;
            first += first_row;
            last += first_row;
        } else {
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        add_gated(sums, gate, up, first, last, base, end, source, vectors, at);
    }
    float gated = simd_sum2(sums, at.lane);
    float product = simd_sum2(sums + GATED_OUTPUTS, at.lane);
    if (at.lane < GATED_OUTPUTS && output + at.lane < outputs) {
        act[output + at.lane] = bfloat(silu(gated) * product);
    }
}

// Softmax of the chosen experts' logits.
inline float score_of(device const float* logits, uint chosen, uint top_k, uint lane) {
    float logit = logits[chosen];
    float most = simd_broadcast(logit, 0);
    float weight = lane < top_k ? precise::exp(logit - most) : 0.0f;
    return weight / simd_sum(weight);
}

// The threadgroups of each chosen expert, most likely first, then those of the shared one. Each chooses the experts for
// itself; the first writes the choice. Tokens of a batch follow along y: their experts are seldom the same.
kernel void experts_gate_up_step(
    device const bfloat* h [[buffer(0)]],
    device const float* gain [[buffer(1)]],
    device const float* logits [[buffer(2)]],
    device const uchar* gate_codes [[buffer(3)]],
    device const uchar* gate_scales [[buffer(4)]],
    device const uchar* gate_biases [[buffer(5)]],
    device const uchar* up_codes [[buffer(6)]],
    device const uchar* up_scales [[buffer(7)]],
    device const uchar* up_biases [[buffer(8)]],
    device const uchar* shared_gate_codes [[buffer(9)]],
    device const uchar* shared_gate_scales [[buffer(10)]],
    device const uchar* shared_gate_biases [[buffer(11)]],
    device const uchar* shared_up_codes [[buffer(12)]],
    device const uchar* shared_up_scales [[buffer(13)]],
    device const uchar* shared_up_biases [[buffer(14)]],
    device uint* experts [[buffer(15)]],
    device float* scores [[buffer(16)]],
    device bfloat* act [[buffer(17)]],
    device bfloat* shared_act [[buffer(18)]],
    constant ExpertsGateUpStepArgs& args [[buffer(19)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    // So that three threadgroups fit a multiprocessor.
    limit_registers<72>();
    threadgroup float4 vectors[STAGING(STAGED_COLUMNS, GATED_SIMDGROUPS, 1)];
    threadgroup float slots[GATED_SIMDGROUPS];
    threadgroup uint bounds[VECTOR_SIMDGROUPS];
    threadgroup atomic_uint listed;
    threadgroup uint2 list[EXPERTS_MAX];
    threadgroup uint chosen[TOP_K_MAX];
    Choosing choosing = choosing_in(bounds, &listed, list, chosen);
    Place at = place(thread_index, simdgroup, GATED_SIMDGROUPS, lane);
    uint width = args.dims.width;
    uint expert_width = args.dims.expert_width;
    uint top_k = args.dims.top_k;
    NormedRow row = normed_row(h + group.y * width, gain, width, args.dims.eps);
    uint per_block = GATED_OUTPUTS * GATED_SIMDGROUPS;
    uint blocks = (expert_width + per_block - 1) / per_block;
    uint slot = group.x / blocks;
    bool of_shared = slot >= top_k;
    StoredMatrix gate = stored_matrix(gate_codes, gate_scales, gate_biases, FORMAT0, width);
    StoredMatrix up = stored_matrix(up_codes, up_scales, up_biases, FORMAT1, width);
    uint outputs = expert_width;
    uint block = group.x - slot * blocks;
    device bfloat* out = act + (group.y * top_k + slot) * expert_width;
    expect_row(row, min(width, uint(STAGED_COLUMNS)), vectors, at);
    if (of_shared) {
        gate = stored_matrix(shared_gate_codes, shared_gate_scales, shared_gate_biases, FORMAT0, width);
        up = stored_matrix(shared_up_codes, shared_up_scales, shared_up_biases, FORMAT1, width);
        outputs = args.dims.shared_width;
        slot = top_k;
        block = group.x - blocks * top_k;
        out = shared_act + group.y * args.dims.shared_width;
    }
    wait_for_inputs();
    device const float* row_logits = logits + group.y * args.dims.experts;
    if (!of_shared && simdgroup < VECTOR_SIMDGROUPS) {
        choosing.bound(row_logits, args.dims.experts, top_k, simdgroup, lane);
    }
    // Code is fetched anew by every kernel, so that matrices of one format share one path.
    if ((FORMAT2 == FORMAT0 && FORMAT3 == FORMAT1) || !of_shared) {
        gated_rows(
            gate, up, choosing, top_k, slot, args.stride_rows, outputs, block, row, out, vectors, slots, at);
    } else {
        gate.format = FORMAT2;
        up.format = FORMAT3;
        gated_rows(
            gate, up, choosing, top_k, slot, args.stride_rows, outputs, block, row, out, vectors, slots, at);
    }
    if (group.x == 0 && simdgroup == 0) {
        uint expert = chosen[min(lane, top_k - 1)];
        float score = score_of(row_logits, expert, top_k, lane);
        if (lane < top_k) {
            experts[group.y * top_k + lane] = expert;
            scores[group.y * top_k + lane] = score;
        }
    }
}

// A threadgroup's products of one matrix, from row `first_row` on.
inline void plain_rows(
    StoredMatrix m, uint first_row, uint outputs, uint block, thread NormedRow& source, device float* out,
    threadgroup float4* vectors, threadgroup float* slots, Place at) {
    uint output = (block * VECTOR_SIMDGROUPS + at.simdgroup) * VECTOR_OUTPUTS;
    float sums[VECTOR_OUTPUTS] = {};
    uint last = first_row + outputs - 1;
    row_products<VECTOR_OUTPUTS, 1, STAGED_COLUMNS>(
        sums, m, first_row + output, last, source, false, vectors, slots, at);
    float product = simd_sum4(sums, SIMD_WIDTH, at.lane);
    if (at.lane < VECTOR_OUTPUTS && output + at.lane < outputs) {
        out[output + at.lane] = product;
    }
}

// As above, but gate products, then (group.y 1) up products go to memory as they are.
kernel void experts_products_step(
    device const bfloat* h [[buffer(0)]],
    device const float* gain [[buffer(1)]],
    device const float* logits [[buffer(2)]],
    device const uchar* gate_codes [[buffer(3)]],
    device const uchar* gate_scales [[buffer(4)]],
    device const uchar* gate_biases [[buffer(5)]],
    device const uchar* up_codes [[buffer(6)]],
    device const uchar* up_scales [[buffer(7)]],
    device const uchar* up_biases [[buffer(8)]],
    device const uchar* shared_gate_codes [[buffer(9)]],
    device const uchar* shared_gate_scales [[buffer(10)]],
    device const uchar* shared_gate_biases [[buffer(11)]],
    device const uchar* shared_up_codes [[buffer(12)]],
    device const uchar* shared_up_scales [[buffer(13)]],
    device const uchar* shared_up_biases [[buffer(14)]],
    device uint* experts [[buffer(15)]],
    device float* scores [[buffer(16)]],
    device float* products [[buffer(17)]],
    constant ExpertsProductsStepArgs& args [[buffer(18)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 vectors[STAGING(STAGED_COLUMNS, VECTOR_SIMDGROUPS, 0)];
    threadgroup float slots[VECTOR_SIMDGROUPS];
    threadgroup uint bounds[VECTOR_SIMDGROUPS];
    threadgroup atomic_uint listed;
    threadgroup uint2 list[EXPERTS_MAX];
    threadgroup uint chosen[TOP_K_MAX];
    Choosing choosing = choosing_in(bounds, &listed, list, chosen);
    Place at = place(thread_index, simdgroup, VECTOR_SIMDGROUPS, lane);
    uint width = args.dims.width;
    uint expert_width = args.dims.expert_width;
    uint top_k = args.dims.top_k;
    NormedRow row = normed_row(h, gain, width, args.dims.eps);
    uint per_block = VECTOR_OUTPUTS * VECTOR_SIMDGROUPS;
    uint blocks = (expert_width + per_block - 1) / per_block;
    device float* out = products + group.y * (top_k * expert_width + args.dims.shared_width);
    if (group.x < blocks * top_k) {
        wait_for_inputs();
        choosing.bound(logits, args.dims.experts, top_k, simdgroup, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        choosing.finish(top_k, thread_index, simdgroup, lane);
        uint slot = group.x / blocks;
        uint first_row = chosen[slot] * args.stride_rows;
        if (group.x + group.y + simdgroup == 0) {
            uint expert = chosen[min(lane, top_k - 1)];
            float score = score_of(logits, expert, top_k, lane);
            if (lane < top_k) {
                experts[lane] = expert;
                scores[lane] = score;
            }
        }
        out += slot * expert_width;
        if (group.y == 0) {
            StoredMatrix gate = stored_matrix(gate_codes, gate_scales, gate_biases, FORMAT0, width);
            plain_rows(gate, first_row, expert_width, group.x % blocks, row, out, vectors, slots, at);
        } else {
            StoredMatrix up = stored_matrix(up_codes, up_scales, up_biases, FORMAT1, width);
            plain_rows(up, first_row, expert_width, group.x % blocks, row, out, vectors, slots, at);
        }
    } else {
        uint block = group.x - blocks * top_k;
        out += top_k * expert_width;
        if (group.y == 0) {
            StoredMatrix gate = stored_matrix(shared_gate_codes, shared_gate_scales, shared_gate_biases, FORMAT2, width);
            plain_rows(gate, 0, args.dims.shared_width, block, row, out, vectors, slots, at);
        } else {
            StoredMatrix up = stored_matrix(shared_up_codes, shared_up_scales, shared_up_biases, FORMAT3, width);
            plain_rows(up, 0, args.dims.shared_width, block, row, out, vectors, slots, at);
        }
    }
}

// The activation of those products.
kernel void gate_products(
    device const float* products [[buffer(0)]],
    device bfloat* act [[buffer(1)]],
    device bfloat* shared_act [[buffer(2)]],
    constant GateProductsArgs& args [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
    uint of_experts = args.dims.top_k * args.dims.expert_width;
    uint outputs = of_experts + args.dims.shared_width;
    uint output = group.x * ROW_THREADS + thread_index;
    if (output < outputs) {
        bfloat result = bfloat(silu(products[output]) * products[outputs + output]);
        if (output < of_experts) {
            act[output] = result;
        } else {
            shared_act[output - of_experts] = result;
        }
    }
}

// Vectors of a SIMD-group's activations: of what its lanes read at a time.
#if defined(LILY_MMA)
#define SHORT_VECTORS (1024 / 32 * FIXED_VECTORS)
#else
#define SHORT_VECTORS 1
#endif

// One SIMD-group's products of up to DOWN_OUTPUTS rows with a short activation row, rounded to bf16 and weighted. A row
// shorter than a SIMD-group's reach takes only some of its lanes, so that the others read further rows meanwhile. The
// activations are read for each set of four requests; no other SIMD-group wants the same ones. `vectors` are this
// SIMD-group's own.
inline void weighted_rows(
    StoredMatrix m, uint first_row, uint rows, device const bfloat* act, float weight, threadgroup float* out,
    threadgroup uint4* vectors, uint lane) {
    PlainRow source;
    source.x = act;
    Shares shares = shares_of(m, lane);
    uint at_once = shares.at_once();
    uint last = first_row + rows - 1;
    #pragma clang loop unroll(disable)
    for (uint r = 0; r < DOWN_OUTPUTS; r += 4 * at_once) {
        float sums[4] = {};
        uint first = first_row + r + shares.row();
        #pragma clang loop unroll(disable)
        for (uint base = 0; base < m.cols; base += shares.columns()) {
            uint column = base + shares.within() * shares.chunk;
            bool wide = is_wide(m.format);
            Chunk<4> codes;
            if (wide && column < m.cols) {
                request_chunk<4>(codes, m, first, at_once, last, column);
            }
#if defined(LILY_MMA)
            FixedRow staged;
            if (wide) {
                uint end = min(base + shares.columns(), m.cols);
                staged = stage_short(source, base, end, m.format, vectors, lane);
            }
#else
            PlainRow staged = source;
#endif
            if (wide) {
                if (column < m.cols) {
                    add_chunk<4>(sums, codes, m.format, staged, column);
                }
            } else if (column < m.cols) {
                add_plain<4>(sums, m, first, at_once, last, source, column);
            }
        }
        // Lane i of a span has the sum of request i % 4.
        float product = simd_sum4(sums, shares.span(), lane);
        uint output = r + lane % 4 * at_once + shares.row();
        if (shares.within() < 4 && output < DOWN_OUTPUTS) {
            out[output] = weight * round_bf16(product);
        }
    }
}

// A SIMD-group an expert, the shared one last; then their weighted outputs are added in the order of the contract.
[[max_total_threads_per_threadgroup((TOP_K_MAX + 1) * SIMD_WIDTH)]]
kernel void experts_down_step(
    device const bfloat* act [[buffer(0)]],
    device const bfloat* shared_act [[buffer(1)]],
    device const uint* experts [[buffer(2)]],
    device const float* scores [[buffer(3)]],
    device const float* shared [[buffer(4)]],
    device const uchar* codes [[buffer(5)]],
    device const uchar* scales [[buffer(6)]],
    device const uchar* biases [[buffer(7)]],
    device const uchar* shared_codes [[buffer(8)]],
    device const uchar* shared_scales [[buffer(9)]],
    device const uchar* shared_biases [[buffer(10)]],
    device bfloat* h [[buffer(11)]],
    constant ExpertsDownStepArgs& args [[buffer(12)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float weighted[(TOP_K_MAX + 1) * DOWN_OUTPUTS];
    threadgroup uint4 vectors[(TOP_K_MAX + 1) * SHORT_VECTORS];
    threadgroup uint4* own = vectors + simdgroup * SHORT_VECTORS;
    uint top_k = args.dims.top_k;
    uint first = group.x * DOWN_OUTPUTS;
    uint rows = min(args.dims.width - first, uint(DOWN_OUTPUTS));
    threadgroup float* out = weighted + simdgroup * DOWN_OUTPUTS;
    act += group.y * top_k * args.dims.expert_width;
    experts += group.y * top_k;
    scores += group.y * top_k;
    h += group.y * args.dims.width;
    wait_for_inputs();
    float before = thread_index < rows ? float(h[first + thread_index]) : 0.0f;
    StoredMatrix m = stored_matrix(codes, scales, biases, FORMAT0, args.dims.expert_width);
    uint row = first;
    device const bfloat* row_act = act + simdgroup * args.dims.expert_width;
    float weight = 0.0f;
    if (simdgroup < top_k) {
        row += experts[simdgroup] * args.stride_rows;
        weight = scores[simdgroup];
    } else {
        m = stored_matrix(shared_codes, shared_scales, shared_biases, FORMAT0, args.dims.shared_width);
        row_act = shared_act + group.y * args.dims.shared_width;
        weight = shared[group.y];
    }
    // Code is fetched anew by every kernel, so that matrices of one format share one path.
    if (FORMAT1 == FORMAT0 || simdgroup < top_k) {
        weighted_rows(m, row, rows, row_act, weight, out, own, lane);
    } else {
        m.format = FORMAT1;
        weighted_rows(m, row, rows, row_act, weight, out, own, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < rows) {
        float sum = weighted[top_k * DOWN_OUTPUTS + thread_index];
        #pragma clang loop unroll_count(4)
        for (uint i = 0; i < top_k; i++) {
            sum += weighted[i * DOWN_OUTPUTS + thread_index];
        }
        h[first + thread_index] = bfloat(before + sum);
    }
}

// A SIMD-group an expert, the shared one last, whose outputs go to memory as they are.
[[max_total_threads_per_threadgroup((TOP_K_MAX + 1) * SIMD_WIDTH)]]
kernel void experts_each_step(
    device const bfloat* act [[buffer(0)]],
    device const bfloat* shared_act [[buffer(1)]],
    device const uint* experts [[buffer(2)]],
    device const uchar* codes [[buffer(3)]],
    device const uchar* scales [[buffer(4)]],
    device const uchar* biases [[buffer(5)]],
    device const uchar* shared_codes [[buffer(6)]],
    device const uchar* shared_scales [[buffer(7)]],
    device const uchar* shared_biases [[buffer(8)]],
    device bfloat* y [[buffer(9)]],
    device bfloat* shared_y [[buffer(10)]],
    constant ExpertsEachStepArgs& args [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float products[(TOP_K_MAX + 1) * DOWN_OUTPUTS];
    threadgroup uint4 vectors[(TOP_K_MAX + 1) * SHORT_VECTORS];
    threadgroup uint4* own = vectors + simdgroup * SHORT_VECTORS;
    uint top_k = args.dims.top_k;
    uint first = group.x * DOWN_OUTPUTS;
    uint rows = min(args.dims.width - first, uint(DOWN_OUTPUTS));
    threadgroup float* out = products + simdgroup * DOWN_OUTPUTS;
    device bfloat* to = shared_y + first;
    if (simdgroup < top_k) {
        StoredMatrix m = stored_matrix(codes, scales, biases, FORMAT0, args.dims.expert_width);
        uint row = experts[simdgroup] * args.stride_rows + first;
        weighted_rows(m, row, rows, act + simdgroup * args.dims.expert_width, 1.0f, out, own, lane);
        to = y + simdgroup * args.dims.width + first;
    } else {
        StoredMatrix m = stored_matrix(shared_codes, shared_scales, shared_biases, FORMAT1, args.dims.shared_width);
        weighted_rows(m, first, rows, shared_act, 1.0f, out, own, lane);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (lane < rows) {
        to[lane] = bfloat(out[lane]);
    }
}
