// Tile sums by simdgroup_matrix, 8x8 at a time: bf16 operands, fp32 sums. Weights are the left operand, so a fragment of
// sums holds 8 outputs (down) of 8 rows (across).
#pragma once
#include <metal_simdgroup_matrix>

template <int Strip, int Matrices>
struct TileSums {
    simdgroup_matrix<float, 8, 8> sums[Matrices][4][Strip / 8];

    void clear() thread {
#pragma clang loop unroll(full)
        for (int m = 0; m < Matrices; m++)
#pragma clang loop unroll(full)
            for (int o = 0; o < 4; o++)
#pragma clang loop unroll(full)
                for (int r = 0; r < Strip / 8; r++) sums[m][o][r] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }

    // Adds one K step of 32 staged outputs and the strip's staged rows. The second matrix lies 64 rows behind the first.
    void accumulate(threadgroup const bfloat* weights, threadgroup const bfloat* rows) thread {
        for (int k = 0; k < TILE_K; k += 8) {
            simdgroup_matrix<bfloat, 8, 8> x[Strip / 8];
#pragma clang loop unroll(full)
            for (int r = 0; r < Strip / 8; r++)
                simdgroup_load(x[r], rows + 8 * r * TILE_STRIDE + k, TILE_STRIDE, ulong2(0, 0), true);
#pragma clang loop unroll(full)
            for (int m = 0; m < Matrices; m++) {
#pragma clang loop unroll(full)
                for (int o = 0; o < 4; o++) {
                    simdgroup_matrix<bfloat, 8, 8> w;
                    simdgroup_load(w, weights + (64 * m + 8 * o) * TILE_STRIDE + k, TILE_STRIDE);
#pragma clang loop unroll(full)
                    for (int r = 0; r < Strip / 8; r++)
                        simdgroup_multiply_accumulate(sums[m][o][r], w, x[r], sums[m][o][r]);
                }
            }
        }
    }

    // Hands every result to the sink, eight rows at a time through `own`: 512 floats of this SIMD-group alone. A lane
    // takes one output.
    template <class Place, class Sink>
    void finish(Place place, uint strip_row, uint strip_output, Sink sink, threadgroup float* own) thread {
        const uint output = place.first_output + strip_output + place.lane;
#pragma clang loop unroll(full)
        for (int r = 0; r < Strip / 8; r++) {
#pragma clang loop unroll(full)
            for (int m = 0; m < Matrices; m++)
#pragma clang loop unroll(full)
                for (int o = 0; o < 4; o++)
                    simdgroup_store(sums[m][o][r], own + 256 * m + 8 * o, 32, ulong2(0, 0), true);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = 0; i < 8; i++) {
                const uint row = strip_row + 8 * r + i;
                const float first = own[32 * i + place.lane];
                const float second = Matrices == 2 ? own[256 + 32 * i + place.lane] : 0.0f;
                if (row < place.rows && output < place.outputs) sink.put(row, output, first, second);
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
};
