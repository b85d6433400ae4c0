// Norms and dense products of a prefill chunk.
#include "functions.h"
#include "tile.h"

// Neighbouring elements of a row that a thread has at a time.
#define NORM_ELEMENTS 8

// A threadgroup norms one row.
kernel void rms_norm(device const bfloat* x [[buffer(0)]],
                     device const float* gain [[buffer(1)]],
                     device bfloat* y [[buffer(2)]],
                     constant RmsNormArgs& args [[buffer(3)]],
                     uint3 group [[threadgroup_position_in_grid]],
                     uint index [[thread_index_in_threadgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float slots[ROW_THREADS / SIMD_WIDTH];
    const ulong first = ulong(group.x) * args.width;
    float square = 0.0f;
    for (uint c = NORM_ELEMENTS * index; c < args.width; c += NORM_ELEMENTS * ROW_THREADS) {
        const Float8 value = load_bf16x8(x + first + c);
        square += dot8(value, value);
    }
    const float sum = threadgroup_sum(square, slots, simdgroup, ROW_THREADS / SIMD_WIDTH, lane);
    const float scale = precise::rsqrt(sum / float(args.width) + args.eps);
    for (uint c = NORM_ELEMENTS * index; c < args.width; c += NORM_ELEMENTS * ROW_THREADS) {
        Float8 value = load_bf16x8(x + first + c);
        value.low = value.low * scale * load_float4(gain + c);
        value.high = value.high * scale * load_float4(gain + c + 4);
        store_bf16x8(y + first + c, value);
    }
}

kernel void matmul(device const bfloat* x [[buffer(0)]],
                   device const uchar* codes [[buffer(1)]],
                   device const uchar* scales [[buffer(2)]],
                   device const uchar* biases [[buffer(3)]],
                   device bfloat* y [[buffer(4)]],
                   constant MatMulArgs& args [[buffer(5)]],
                   uint3 group [[threadgroup_position_in_grid]],
                   uint index [[thread_index_in_threadgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint4 memory[TILE_MEMORY];
    const StoredMatrix m = stored_matrix(codes, scales, biases, FORMAT0, args.cols);
    const uint first = group.y * TILE_ROWS;
    const uint rows = min(args.rows - first, TILE_ROWS);
    Store sink;
    sink.y = y + ulong(first) * args.outputs;
    sink.outputs = args.outputs;
    multiply_tile<1, 128>(m, m, tile_place<1>(args.outputs, rows, group.x, index, simdgroup, lane),
                     dense_rows(x, args.cols, first), sink, memory);
}

kernel void matmul_add(device const bfloat* x [[buffer(0)]],
                       device const uchar* codes [[buffer(1)]],
                       device const uchar* scales [[buffer(2)]],
                       device const uchar* biases [[buffer(3)]],
                       device bfloat* h [[buffer(4)]],
                       constant MatMulAddArgs& args [[buffer(5)]],
                       uint3 group [[threadgroup_position_in_grid]],
                       uint index [[thread_index_in_threadgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint4 memory[TILE_MEMORY];
    const StoredMatrix m = stored_matrix(codes, scales, biases, FORMAT0, args.cols);
    const uint first = group.y * TILE_ROWS;
    const uint rows = min(args.rows - first, TILE_ROWS);
    Add sink;
    sink.h = h + ulong(first) * args.outputs;
    sink.outputs = args.outputs;
    multiply_tile<1, 128>(m, m, tile_place<1>(args.outputs, rows, group.x, index, simdgroup, lane),
                     dense_rows(x, args.cols, first), sink, memory);
}

kernel void gate_up(device const bfloat* x [[buffer(0)]],
                    device const uchar* gate_codes [[buffer(1)]],
                    device const uchar* gate_scales [[buffer(2)]],
                    device const uchar* gate_biases [[buffer(3)]],
                    device const uchar* up_codes [[buffer(4)]],
                    device const uchar* up_scales [[buffer(5)]],
                    device const uchar* up_biases [[buffer(6)]],
                    device bfloat* y [[buffer(7)]],
                    constant GateUpArgs& args [[buffer(8)]],
                    uint3 group [[threadgroup_position_in_grid]],
                    uint index [[thread_index_in_threadgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint4 memory[TILE_MEMORY];
    const StoredMatrix gate = stored_matrix(gate_codes, gate_scales, gate_biases, FORMAT0, args.cols);
    const StoredMatrix up = stored_matrix(up_codes, up_scales, up_biases, FORMAT1, args.cols);
    const uint first = group.y * TILE_ROWS;
    const uint rows = min(args.rows - first, TILE_ROWS);
    Gate sink;
    sink.y = y + ulong(first) * args.outputs;
    sink.outputs = args.outputs;
    multiply_tile<2, 128>(gate, up, tile_place<2>(args.outputs, rows, group.x, index, simdgroup, lane),
                     dense_rows(x, args.cols, first), sink, memory);
}

// A thread expands eight elements of one row; threadgroups are stretches of columns x rows x matrices.
kernel void dequantize(device const uchar* codes [[buffer(0)]],
                       device const uchar* scales [[buffer(1)]],
                       device const uchar* biases [[buffer(2)]],
                       device bfloat* y [[buffer(3)]],
                       constant DequantizeArgs& args [[buffer(4)]],
                       uint3 group [[threadgroup_position_in_grid]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
    const uint column = 8 * (group.x * SIMD_WIDTH + lane);
    const uint row = group.y * ROW_SIMDGROUPS + simdgroup;
    if (column >= args.cols || row >= args.rows) return;
    const StoredMatrix m = stored_matrix(codes, scales, biases, FORMAT0, args.cols);
    const Float8 x = dequantize8(m, group.z * args.stride_rows + row, column);
    device bfloat4* to = (device bfloat4*)(y + (ulong(group.z) * args.rows + row) * args.cols + column);
    to[0] = bfloat4(x.low);
    to[1] = bfloat4(x.high);
}
