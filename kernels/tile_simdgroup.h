// Tile sums by simdgroup_matrix, 8x8 at a time: bf16 operands, fp32 sums. Weights are the left operand, so a fragment of
// sums holds 8 outputs (down) of 8 rows (across).
#pragma once
#include <metal_simdgroup_matrix>

// The K loop of a SIMD-group's part of a tile. `stage.step(column)` stages a step; all threads of the threadgroup take it.
template <int Strip, int Matrices, class Stage, class Sink>
inline void multiply_staged(thread Stage& stage, TilePlace place, StripPlace strip, Sink sink,
                            threadgroup uint4* memory) {
    simdgroup_matrix<float, 8, 8> sums[Matrices][4][Strip / 8];
#pragma clang loop unroll(full)
    for (int m = 0; m < Matrices; m++)
#pragma clang loop unroll(full)
        for (int o = 0; o < 4; o++)
#pragma clang loop unroll(full)
            for (int r = 0; r < Strip / 8; r++) sums[m][o][r] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint column = 0; column < stage.cols; column += TILE_K) {
        stage.step(column);
        if (!strip.busy) continue;
        for (int k = 0; k < TILE_K; k += 8) {
            simdgroup_matrix<bfloat, 8, 8> x[Strip / 8];
#pragma clang loop unroll(full)
            for (int r = 0; r < Strip / 8; r++)
                simdgroup_load(x[r], strip.rows + 8 * r * TILE_STRIDE + k, TILE_STRIDE, ulong2(0, 0), true);
#pragma clang loop unroll(full)
            for (int m = 0; m < Matrices; m++) {
#pragma clang loop unroll(full)
                for (int o = 0; o < 4; o++) {
                    simdgroup_matrix<bfloat, 8, 8> w;
                    simdgroup_load(w, strip.weights + (64 * m + 8 * o) * TILE_STRIDE + k, TILE_STRIDE);
#pragma clang loop unroll(full)
                    for (int r = 0; r < Strip / 8; r++)
                        simdgroup_multiply_accumulate(sums[m][o][r], w, x[r], sums[m][o][r]);
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!strip.busy) return;

    // Eight rows at a time go through 512 floats of this SIMD-group alone; a lane hands out one output of each.
    threadgroup float* own = (threadgroup float*)memory + place.simdgroup * 512;
    const uint output = strip.first_output + place.lane;
#pragma clang loop unroll(full)
    for (int r = 0; r < Strip / 8; r++) {
#pragma clang loop unroll(full)
        for (int m = 0; m < Matrices; m++)
#pragma clang loop unroll(full)
            for (int o = 0; o < 4; o++)
                simdgroup_store(sums[m][o][r], own + 256 * m + 8 * o, 32, ulong2(0, 0), true);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < 8; i++) {
            const uint row = strip.first_row + 8 * r + i;
            const float first = own[32 * i + place.lane];
            const float second = Matrices == 2 ? own[256 + 32 * i + place.lane] : 0.0f;
            if (row < place.rows && output < place.outputs) sink.put(row, output, first, second);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}
