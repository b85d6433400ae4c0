// Decode, few blocks of the cache: the merge of attention's partial results inside the output projection.
#include "matvec_rows.h"

// Blocks whose partial results a thread has under way.
#define MERGED_AT_ONCE 4

// The gated attention output as a source of activations, made from the blocks' partial results where it is wanted.
struct MergedRow {
    device const bfloat* q_raw;
    device const float* partials;
    uint heads;
    uint blocks;

    Float8 expect(uint column) const { return Float8(); }
    void begin(threadgroup float* slots, Place place) {}

    Float8 at(uint column, Float8 expected) const {
        uint head = column / HEAD_DIM;
        uint i = column % HEAD_DIM;
        uint stride = heads * (HEAD_DIM + 2);
        device const float* parts = partials + head * (HEAD_DIM + 2);
        float most = EMPTY_BLOCK;
        float total = 0.0f;
        Float8 sum;
        sum.low = float4(0.0f);
        sum.high = float4(0.0f);
        for (uint first = 0; first < blocks; first += MERGED_AT_ONCE) {
            float2 heads_of[MERGED_AT_ONCE];
            Float8 values[MERGED_AT_ONCE];
            #pragma clang loop unroll(full)
            for (uint j = 0; j < MERGED_AT_ONCE; j++) {
                device const float* part = parts + ulong(min(first + j, blocks - 1)) * stride;
                heads_of[j] = float2(part[0], part[1]);
                values[j].low = load_float4(part + 2 + i);
                values[j].high = load_float4(part + 2 + i + 4);
            }
            float larger = most;
            #pragma clang loop unroll(full)
            for (uint j = 0; j < MERGED_AT_ONCE; j++) {
                larger = max(larger, heads_of[j].x);
            }
            float shrink = fast::exp(most - larger);
            most = larger;
            total *= shrink;
            sum.low *= shrink;
            sum.high *= shrink;
            #pragma clang loop unroll(full)
            for (uint j = 0; j < MERGED_AT_ONCE; j++) {
                float weight = first + j < blocks ? fast::exp(heads_of[j].x - most) : 0.0f;
                total += weight * heads_of[j].y;
                sum.low += weight * values[j].low;
                sum.high += weight * values[j].high;
            }
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
    Float8 expect(uint column) const { return Float8(); }

    Float8 at(uint row, bool next, uint column, Float8 expected) const {
        MergedRow one = first;
        one.q_raw = first.q_raw + (row + next) * first.heads * 2 * HEAD_DIM;
        one.partials = first.partials + ulong(row + next) * first.blocks * first.heads * (HEAD_DIM + 2);
        return one.at(column, Float8());
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
    threadgroup float4 vectors[STAGING(2 * STAGED_COLUMNS, VECTOR_SIMDGROUPS, 0)];
    threadgroup float slots[BATCH_SLOTS];
    StoredMatrix m = stored_matrix(codes, scales, biases, FORMAT0, args.dims.heads * HEAD_DIM);
    MergedRow row;
    row.q_raw = q_raw;
    row.partials = partials;
    row.heads = args.dims.heads;
    row.blocks = args.blocks;
    uint first = (group.x * VECTOR_SIMDGROUPS + simdgroup) * NARROW_OUTPUTS;
    Place at = place(thread_index, simdgroup, VECTOR_SIMDGROUPS, lane);
    if (BATCH > 1) {
        MergedRows rows;
        rows.first = row;
        float all[BATCH_MAX * NARROW_OUTPUTS] = {};
        batch_products<NARROW_OUTPUTS>(all, m, first, args.outputs - 1, rows, false, vectors, slots, at);
        #pragma clang loop unroll(full)
        for (uint i = 0; i < BATCH_MAX; i++) {
            if (i < BATCH) {
                float product = simd_sum2(all + i * NARROW_OUTPUTS, lane);
                if (lane < NARROW_OUTPUTS && first + lane < args.outputs) {
                    device bfloat* to = h + i * args.outputs + first + lane;
                    *to = bfloat(float(*to) + product);
                }
            }
        }
        return;
    }
    float sums[NARROW_OUTPUTS] = {};
    row_products<NARROW_OUTPUTS, 4, 2 * STAGED_COLUMNS>(
        sums, m, first, args.outputs - 1, row, false, vectors, slots, at);
    uint output = first + lane;
    bool writes = lane < NARROW_OUTPUTS && output < args.outputs;
    float before = writes ? float(h[output]) : 0.0f;
    float product = simd_sum2(sums, lane);
    if (writes) {
        h[output] = bfloat(before + product);
    }
}
