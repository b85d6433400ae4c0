// Experts of a prefill chunk: grouped products by the tile map, and their sum into the residual stream.
#include "functions.h"
#include "tile.h"

// The activations of the tokens behind a run of assignments.
struct TokenRows {
    device const bfloat* x;
    device const uint* order;
    uint top_k;
    uint cols;

    device const bfloat* row(uint i) const thread { return x + ulong(order[i] / top_k) * cols; }
};

// Results stored by assignment.
struct StoreByAssignment {
    device bfloat* y;
    device const uint* order;
    uint outputs;

    void put(uint row, uint output, float value, float) const thread {
        y[ulong(order[row]) * outputs + output] = bfloat(value);
    }
};

kernel void expert_gate_up(device const bfloat* x [[buffer(0)]],
                           device const uint* offsets [[buffer(1)]],
                           device const uint* order [[buffer(2)]],
                           device const uint* tiles [[buffer(3)]],
                           device const uchar* gate_codes [[buffer(4)]],
                           device const uchar* gate_scales [[buffer(5)]],
                           device const uchar* gate_biases [[buffer(6)]],
                           device const uchar* up_codes [[buffer(7)]],
                           device const uchar* up_scales [[buffer(8)]],
                           device const uchar* up_biases [[buffer(9)]],
                           device bfloat* y [[buffer(10)]],
                           constant ExpertGateUpArgs& args [[buffer(11)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint index [[thread_index_in_threadgroup]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint4 memory[EXPERT_TILE_MEMORY];
    constant MoeDims& d = args.dims;
    const uint expert = tiles[2 * group.y];
    if (expert == NO_TILE) return;
    const uint first = tiles[2 * group.y + 1];
    const uint rows = min(offsets[expert + 1] - first, TILE_ROWS);
    const StoredMatrix gate = stored_matrix(gate_codes, gate_scales, gate_biases, FORMAT0, d.width);
    const StoredMatrix up = stored_matrix(up_codes, up_scales, up_biases, FORMAT1, d.width);
    TilePlace place = tile_place<2>(d.expert_width, rows, group.x, index, simdgroup, lane);
    place.matrix_row = expert * args.stride_rows;
    TokenRows source;
    source.x = x;
    source.order = order + first;
    source.top_k = d.top_k;
    source.cols = d.width;
    Gate sink;
    sink.y = y + ulong(first) * d.expert_width;
    sink.outputs = d.expert_width;
    multiply_tile<2, 64>(gate, up, place, source, sink, memory);
}

kernel void expert_down(device const bfloat* act [[buffer(0)]],
                        device const uint* offsets [[buffer(1)]],
                        device const uint* order [[buffer(2)]],
                        device const uint* tiles [[buffer(3)]],
                        device const uchar* codes [[buffer(4)]],
                        device const uchar* scales [[buffer(5)]],
                        device const uchar* biases [[buffer(6)]],
                        device bfloat* y [[buffer(7)]],
                        constant ExpertDownArgs& args [[buffer(8)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint index [[thread_index_in_threadgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint4 memory[EXPERT_TILE_MEMORY];
    constant MoeDims& d = args.dims;
    const uint expert = tiles[2 * group.y];
    if (expert == NO_TILE) return;
    const uint first = tiles[2 * group.y + 1];
    const uint rows = min(offsets[expert + 1] - first, TILE_ROWS);
    const StoredMatrix m = stored_matrix(codes, scales, biases, FORMAT0, d.expert_width);
    TilePlace place = tile_place<1>(d.width, rows, group.x, index, simdgroup, lane);
    place.matrix_row = expert * args.stride_rows;
    StoreByAssignment sink;
    sink.y = y;
    sink.order = order + first;
    sink.outputs = d.width;
    multiply_tile<1, 64>(m, m, place, dense_rows(act, d.expert_width, first), sink, memory);
}

// A thread adds the experts of eight neighbouring elements: the shared one first, then from the most to the least likely.
kernel void combine(device const bfloat* y [[buffer(0)]],
                    device const float* scores [[buffer(1)]],
                    device const bfloat* shared_y [[buffer(2)]],
                    device const float* shared [[buffer(3)]],
                    device bfloat* h [[buffer(4)]],
                    constant CombineArgs& args [[buffer(5)]],
                    uint3 group [[threadgroup_position_in_grid]],
                    uint index [[thread_index_in_threadgroup]]) {
    constant MoeDims& d = args.dims;
    const uint column = COMBINE_ELEMENTS * (group.x * ROW_THREADS + index);
    const uint row = group.y;
    if (column >= d.width) return;
    const ulong at = ulong(row) * d.width + column;
    const Float8 first = load_bf16x8(shared_y + at);
    Float8 sum;
    sum.low = shared[row] * first.low;
    sum.high = shared[row] * first.high;
    // Several loads are under way at a time.
#pragma clang loop unroll_count(4)
    for (uint i = 0; i < d.top_k; i++) {
        const ulong assignment = ulong(row) * d.top_k + i;
        const Float8 expert = load_bf16x8(y + assignment * d.width + column);
        sum.low = fma(float4(scores[assignment]), expert.low, sum.low);
        sum.high = fma(float4(scores[assignment]), expert.high, sum.high);
    }
    Float8 result = load_bf16x8(h + at);
    result.low += sum.low;
    result.high += sum.high;
    store_bf16x8(h + at, result);
}
