// Decode, few blocks of the cache: the merge of attention's partial results inside the output projection.
#include "matvec_rows.h"

// The gated attention output as a source of activations, made from the blocks' partial results where it is wanted.
struct MergedRow {
    device const bfloat* q_raw;
    device const float* partials;
    uint heads;
    uint blocks;

    void begin(threadgroup float* slots, Place place) {}

    Float8 at(uint column) const {
        uint head = column / HEAD_DIM;
        uint i = column % HEAD_DIM;
        uint stride = heads * (HEAD_DIM + 2);
        device const float* parts = partials + head * (HEAD_DIM + 2);
        float most = EMPTY_BLOCK;
        for (uint block = 0; block < blocks; block++) {
            most = max(most, parts[ulong(block) * stride]);
        }
        float total = 0.0f;
        Float8 sum;
        sum.low = float4(0.0f);
        sum.high = float4(0.0f);
        for (uint block = 0; block < blocks; block++) {
            device const float* part = parts + ulong(block) * stride;
            float weight = fast::exp(part[0] - most);
            total += weight * part[1];
            sum.low += weight * load_float4(part + 2 + i);
            sum.high += weight * load_float4(part + 2 + i + 4);
        }
        Float8 gate = load_bf16x8(q_raw + (head * 2 + 1) * HEAD_DIM + i);
        #pragma clang loop unroll(full)
        for (uint e = 0; e < 4; e++) {
            sum.low[e] = round_bf16(sum.low[e] / total * sigmoid(gate.low[e]));
            sum.high[e] = round_bf16(sum.high[e] / total * sigmoid(gate.high[e]));
        }
        return sum;
    }
};

// The same of several tokens: what is one token's lies behind what is the one's before.
struct MergedRows {
    MergedRow first;

    void begin(threadgroup float* slots, Place place) {}

    Float8 at(uint row, uint column) const {
        MergedRow one = first;
        one.q_raw = first.q_raw + row * first.heads * 2 * HEAD_DIM;
        one.partials = first.partials + ulong(row) * first.blocks * first.heads * (HEAD_DIM + 2);
        return one.at(column);
    }
};

kernel void merge_matvec_add(
    device const bfloat* q_raw [[buffer(0)]],
    device const float* partials [[buffer(1)]],
    device const uchar* codes [[buffer(2)]],
    device const uchar* scales [[buffer(3)]],
    device const uchar* biases [[buffer(4)]],
    device bfloat* h [[buffer(5)]],
    constant MergeMatVecAddArgs& args [[buffer(6)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 vectors[STAGED_VECTORS];
    threadgroup float slots[VECTOR_SIMDGROUPS];
    StoredMatrix m = stored_matrix(codes, scales, biases, FORMAT0, args.dims.heads * HEAD_DIM);
    MergedRow row;
    row.q_raw = q_raw;
    row.partials = partials;
    row.heads = args.dims.heads;
    row.blocks = args.blocks;
    uint first = (group.x * VECTOR_SIMDGROUPS + simdgroup) * VECTOR_OUTPUTS;
    Place at = place(thread_index, simdgroup, VECTOR_SIMDGROUPS, lane);
    if (BATCH > 1) {
        MergedRows rows;
        rows.first = row;
        float all[BATCH_MAX * VECTOR_OUTPUTS] = {};
        batch_products<VECTOR_OUTPUTS>(all, m, first, args.outputs - 1, rows, vectors, slots, at);
        #pragma clang loop unroll(full)
        for (uint i = 0; i < BATCH_MAX; i++) {
            if (i < BATCH) {
                float product = simd_sum4(all + i * VECTOR_OUTPUTS, SIMD_WIDTH, lane);
                if (lane < VECTOR_OUTPUTS && first + lane < args.outputs) {
                    device bfloat* to = h + i * args.outputs + first + lane;
                    *to = bfloat(float(*to) + product);
                }
            }
        }
        return;
    }
    float sums[VECTOR_OUTPUTS] = {};
    row_products<VECTOR_OUTPUTS, VECTOR_STEPS>(sums, m, first, args.outputs - 1, row, false, vectors, slots, at);
    float product = simd_sum4(sums, SIMD_WIDTH, lane);
    uint output = first + lane;
    if (lane < VECTOR_OUTPUTS && output < args.outputs) {
        h[output] = bfloat(float(h[output]) + product);
    }
}
