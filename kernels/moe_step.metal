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
    threadgroup float4 vectors[STAGED_VECTORS];
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

// Chunks of its rows that a lane has under way.
#if defined(LILY_MMA)
#define GATED_STEPS 2
#else
#define GATED_STEPS 1
#endif

// A threadgroup's outputs of silu(gate x) * (up x), from row `first_row` of both matrices on. The pair shares each staged
// stretch of x, and matrices of one format what is under way; the source has begun, and gains of the first stretch are
// where `expect_row` leaves them.
inline void gated_rows(
    StoredMatrix gate, StoredMatrix up, uint first_row, uint outputs, uint block, thread NormedRow& source,
    device bfloat* act, threadgroup float4* vectors, threadgroup float* slots, Place at) {
    uint output = (block * GATED_SIMDGROUPS + at.simdgroup) * GATED_OUTPUTS;
    uint first = first_row + output;
    uint last = first_row + outputs - 1;
    float sums[2 * GATED_OUTPUTS] = {};
    thread float* products = sums + GATED_OUTPUTS;
    StoredPair pair = stored_pair(gate, up);
    for (uint base = 0; base < gate.cols; base += STAGED_COLUMNS) {
        uint end = min(base + STAGED_COLUMNS, gate.cols);
        Ahead<2 * GATED_OUTPUTS, GATED_STEPS> ahead;
        if (gate.format == up.format) {
            request<2 * GATED_OUTPUTS, GATED_STEPS>(ahead, pair, first, last, base, end, at.lane);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        StagedRow staged = stage(source, base == 0, base, end, vectors, at);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (gate.format == up.format) {
            add_stretch<2 * GATED_OUTPUTS, GATED_STEPS>(sums, ahead, pair, first, last, staged, base, end, at.lane);
        } else {
            Ahead<GATED_OUTPUTS, 1> one;
            request<GATED_OUTPUTS, 1>(one, gate, first, last, base, end, at.lane);
            add_stretch<GATED_OUTPUTS, 1>(sums, one, gate, first, last, staged, base, end, at.lane);
            request<GATED_OUTPUTS, 1>(one, up, first, last, base, end, at.lane);
            add_stretch<GATED_OUTPUTS, 1>(products, one, up, first, last, staged, base, end, at.lane);
        }
    }
    float gated = simd_sum2(sums, at.lane);
    float product = simd_sum2(products, at.lane);
    if (at.lane < GATED_OUTPUTS && output + at.lane < outputs) {
        act[output + at.lane] = bfloat(silu(gated) * product);
    }
}

// Experts of which a lane knows the logits, and the most likely ones of all SIMD-groups' shares together.
#define SHARE (EXPERTS_MAX / SIMD_WIDTH / VECTOR_SIMDGROUPS)
#define CANDIDATES (TOP_K_MAX * VECTOR_SIMDGROUPS)

// Every SIMD-group leaves the `top_k` most likely ones of its share of the experts, with the keys of their logits. A share
// with fewer leaves keys of 0.
inline void choose_of_share(
    device const float* logits, uint experts, uint top_k, threadgroup uint2* candidates, uint simdgroup, uint lane) {
    uint keys[SHARE];
    #pragma clang loop unroll(full)
    for (uint j = 0; j < SHARE; j++) {
        uint expert = (j * VECTOR_SIMDGROUPS + simdgroup) * SIMD_WIDTH + lane;
        keys[j] = expert < experts ? ordered(logits[expert]) : 0;
    }
    #pragma clang loop unroll(disable)
    for (uint i = 0; i < top_k; i++) {
        uint best = 0;
        uint at = EXPERTS_MAX;
        #pragma clang loop unroll(full)
        for (uint j = 0; j < SHARE; j++) {
            at = keys[j] > best ? (j * VECTOR_SIMDGROUPS + simdgroup) * SIMD_WIDTH + lane : at;
            best = max(best, keys[j]);
        }
        uint top = simd_max(best);
        uint expert = simd_min(best == top ? at : EXPERTS_MAX);
        #pragma clang loop unroll(full)
        for (uint j = 0; j < SHARE; j++) {
            keys[j] = (j * VECTOR_SIMDGROUPS + simdgroup) * SIMD_WIDTH + lane == expert ? 0 : keys[j];
        }
        if (lane == 0) {
            candidates[simdgroup * top_k + i] = uint2(top, expert);
        }
    }
}

// The most likely experts of all candidates: lane i knows the i-th, for i below `top_k`.
inline uint chosen_of(threadgroup const uint2* candidates, uint top_k, uint lane) {
    uint2 mine[CANDIDATES / SIMD_WIDTH];
    #pragma clang loop unroll(full)
    for (uint j = 0; j < CANDIDATES / SIMD_WIDTH; j++) {
        uint candidate = j * SIMD_WIDTH + lane;
        mine[j] = candidate < VECTOR_SIMDGROUPS * top_k ? candidates[candidate] : uint2(0);
    }
    uint chosen = 0;
    #pragma clang loop unroll(disable)
    for (uint i = 0; i < top_k; i++) {
        uint2 best = mine[0];
        #pragma clang loop unroll(full)
        for (uint j = 1; j < CANDIDATES / SIMD_WIDTH; j++) {
            bool better = mine[j].x > best.x || (mine[j].x == best.x && mine[j].y < best.y);
            best = better ? mine[j] : best;
        }
        uint top = simd_max(best.x);
        uint expert = simd_min(best.x == top ? best.y : EXPERTS_MAX);
        #pragma clang loop unroll(full)
        for (uint j = 0; j < CANDIDATES / SIMD_WIDTH; j++) {
            mine[j].x = mine[j].y == expert ? 0 : mine[j].x;
        }
        chosen = lane == i ? expert : chosen;
    }
    return chosen;
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
    // So that two threadgroups fit a multiprocessor.
    limit_registers<96>();
    threadgroup float4 vectors[STAGED_VECTORS];
    threadgroup float slots[GATED_SIMDGROUPS];
    threadgroup uint2 candidates[CANDIDATES];
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
    uint first_row = 0;
    uint outputs = expert_width;
    uint block = group.x % blocks;
    device bfloat* out = act + (group.y * top_k + slot) * expert_width;
    expect_row(row, min(width, uint(STAGED_COLUMNS)), vectors, at);
    if (of_shared) {
        gate = stored_matrix(shared_gate_codes, shared_gate_scales, shared_gate_biases, FORMAT0, width);
        up = stored_matrix(shared_up_codes, shared_up_scales, shared_up_biases, FORMAT1, width);
        outputs = args.dims.shared_width;
        block = group.x - blocks * top_k;
        out = shared_act + group.y * args.dims.shared_width;
    }
    wait_for_inputs();
    device const float* row_logits = logits + group.y * args.dims.experts;
    if (!of_shared && simdgroup < VECTOR_SIMDGROUPS) {
        choose_of_share(row_logits, args.dims.experts, top_k, candidates, simdgroup, lane);
    }
    // Its barrier lets everyone see the candidates.
    row.begin(slots, at);
    if (!of_shared) {
        uint chosen = chosen_of(candidates, top_k, lane);
        first_row = simd_shuffle(chosen, ushort(slot)) * args.stride_rows;
        if (group.x == 0 && simdgroup == 0) {
            float score = score_of(row_logits, chosen, top_k, lane);
            if (lane < top_k) {
                experts[group.y * top_k + lane] = chosen;
                scores[group.y * top_k + lane] = score;
            }
        }
    }
    // Code is fetched anew by every kernel, so that matrices of one format share one path.
    if ((FORMAT2 == FORMAT0 && FORMAT3 == FORMAT1) || !of_shared) {
        gated_rows(gate, up, first_row, outputs, block, row, out, vectors, slots, at);
    } else {
        gate.format = FORMAT2;
        up.format = FORMAT3;
        gated_rows(gate, up, first_row, outputs, block, row, out, vectors, slots, at);
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
    threadgroup float4 vectors[STAGED_VECTORS];
    threadgroup float slots[VECTOR_SIMDGROUPS];
    threadgroup uint2 candidates[CANDIDATES];
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
        choose_of_share(logits, args.dims.experts, top_k, candidates, simdgroup, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint chosen = chosen_of(candidates, top_k, lane);
        uint slot = group.x / blocks;
        uint first_row = simd_shuffle(chosen, ushort(slot)) * args.stride_rows;
        if (group.x + group.y + simdgroup == 0) {
            float score = score_of(logits, chosen, top_k, lane);
            if (lane < top_k) {
                experts[lane] = chosen;
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

// One SIMD-group's products of up to DOWN_OUTPUTS rows with a short activation row, rounded to bf16 and weighted. A row
// shorter than a SIMD-group's reach takes only some of its lanes, so that the others read further rows meanwhile. The
// activations are read for each set of four requests; no other SIMD-group wants the same ones.
inline void weighted_rows(
    StoredMatrix m, uint first_row, uint rows, device const bfloat* act, float weight, threadgroup float* out, uint lane) {
    PlainRow source;
    source.x = act;
    uint chunk = chunk_columns(m.format);
    uint span = 4;
    while (span < SIMD_WIDTH && span * chunk < m.cols) {
        span *= 2;
    }
    uint at_once = SIMD_WIDTH / span;
    uint last = first_row + rows - 1;
    for (uint r = 0; r < DOWN_OUTPUTS; r += 4 * at_once) {
        float sums[4] = {};
        uint first = first_row + r + lane / span;
        for (uint column = lane % span * chunk; column < m.cols; column += span * chunk) {
            if (is_wide(m.format)) {
                Chunk<4> codes;
                request_chunk<4>(codes, m, first, at_once, last, column);
                add_chunk<4>(sums, codes, m.format, source, column);
            } else {
                add_plain<4>(sums, m, first, at_once, last, source, column);
            }
        }
        // Lane i of a span has the sum of request i % 4.
        float product = simd_sum4(sums, span, lane);
        uint output = r + lane % 4 * at_once + lane / span;
        if (lane % span < 4 && output < DOWN_OUTPUTS) {
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
        weighted_rows(m, row, rows, row_act, weight, out, lane);
    } else {
        m.format = FORMAT1;
        weighted_rows(m, row, rows, row_act, weight, out, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < rows) {
        float sum = weighted[top_k * DOWN_OUTPUTS + thread_index];
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
    uint top_k = args.dims.top_k;
    uint first = group.x * DOWN_OUTPUTS;
    uint rows = min(args.dims.width - first, uint(DOWN_OUTPUTS));
    threadgroup float* out = products + simdgroup * DOWN_OUTPUTS;
    device bfloat* to = shared_y + first;
    if (simdgroup < top_k) {
        StoredMatrix m = stored_matrix(codes, scales, biases, FORMAT0, args.dims.expert_width);
        uint row = experts[simdgroup] * args.stride_rows + first;
        weighted_rows(m, row, rows, act + simdgroup * args.dims.expert_width, 1.0f, out, lane);
        to = y + simdgroup * args.dims.width + first;
    } else {
        StoredMatrix m = stored_matrix(shared_codes, shared_scales, shared_biases, FORMAT1, args.dims.shared_width);
        weighted_rows(m, first, rows, shared_act, 1.0f, out, lane);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (lane < rows) {
        to[lane] = bfloat(out[lane]);
    }
}
