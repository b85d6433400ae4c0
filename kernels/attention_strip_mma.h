// Matrix products of prefill attention by the matrix units of NVIDIA's GPUs, 16x8x16 at a time: as attention_strip.h, whose words
// on memory hold here too. Keys, and dimensions of values, are the 16; the strip's 8 queries are the 8, so that no part of
// an operation is idle.
#pragma once
#include "platform.h"

template <int Dim>
struct AttentionStrip {
    // Query lane / 4, in pairs of dimensions 16 d + 2 (lane % 4) and 8 further.
    uint queries[Dim / 16][2];
    // Dimensions 16 d + lane / 4 and 8 further of queries 2 (lane % 4) and the next.
    float sums[Dim / 16][4];
    uint lane;

    // Takes elements `64 * part` to `64 * part + 63` of the queries from 8 rows of 64.
    void load_queries(int part, threadgroup const bfloat* own) thread {
        lane = ptx::lane();
        threadgroup const bfloat* row = own + lane / 4 * 64 + lane % 4 * 2;
#pragma clang loop unroll(full)
        for (int i = 0; i < 4; i++) {
            queries[4 * part + i][0] = *(threadgroup const uint*)(row + 16 * i);
            queries[4 * part + i][1] = *(threadgroup const uint*)(row + 16 * i + 8);
#pragma clang loop unroll(full)
            for (int e = 0; e < 4; e++) sums[4 * part + i][e] = 0.0f;
        }
    }

    // Leaves the products with 32 keys in 8 rows of 32.
    void score(threadgroup const bfloat* keys, threadgroup float* own) thread {
        float scores[2][4];
#pragma clang loop unroll(full)
        for (int i = 0; i < 2; i++)
#pragma clang loop unroll(full)
            for (int e = 0; e < 4; e++) scores[i][e] = 0.0f;
        threadgroup const bfloat* from = keys + lane % 16 * (Dim + 8) + lane / 16 * 8;
#pragma clang loop unroll(full)
        for (int d = 0; d < Dim / 16; d++) {
#pragma clang loop unroll(full)
            for (int i = 0; i < 2; i++) {
                uint a[4];
                ptx::load_16x16(a, from + 16 * i * (Dim + 8) + 16 * d);
                ptx::multiply_16x8x16(scores[i], a[0], a[1], a[2], a[3], queries[d][0], queries[d][1]);
            }
        }
#pragma clang loop unroll(full)
        for (int i = 0; i < 2; i++)
#pragma clang loop unroll(full)
            for (int e = 0; e < 4; e++)
                own[(lane % 4 * 2 + e % 2) * 32 + 16 * i + lane / 4 + e / 2 * 8] = scores[i][e];
    }

    // Multiplies the sums of query `lane / 4` by `factor`.
    void rescale(float factor, threadgroup float*, uint) thread {
        const float even = simd_shuffle(factor, ushort(lane % 4 * 8));
        const float odd = simd_shuffle(factor, ushort(lane % 4 * 8 + 4));
#pragma clang loop unroll(full)
        for (int d = 0; d < Dim / 16; d++)
#pragma clang loop unroll(full)
            for (int e = 0; e < 4; e++) sums[d][e] *= e % 2 == 0 ? even : odd;
    }

    // Adds 32 values, weighted by 8 rows of 32.
    void add_values(threadgroup const bfloat* values, threadgroup const bfloat* own) thread {
        uint weights[2][2];
        threadgroup const bfloat* row = own + lane / 4 * 32 + lane % 4 * 2;
#pragma clang loop unroll(full)
        for (int i = 0; i < 2; i++) {
            weights[i][0] = *(threadgroup const uint*)(row + 16 * i);
            weights[i][1] = *(threadgroup const uint*)(row + 16 * i + 8);
        }
        // Transposed on the way: dimensions become rows.
        threadgroup const bfloat* from = values + (lane % 8 + lane / 16 * 8) * (Dim + 8) + lane / 8 % 2 * 8;
#pragma clang loop unroll(full)
        for (int d = 0; d < Dim / 16; d++) {
#pragma clang loop unroll(full)
            for (int i = 0; i < 2; i++) {
                uint a[4];
                ptx::load_16x16_transposed(a, from + 16 * i * (Dim + 8) + 16 * d);
                ptx::multiply_16x8x16(sums[d], a[0], a[1], a[2], a[3], weights[i][0], weights[i][1]);
            }
        }
    }

    // Leaves elements `32 * part` to `32 * part + 31` of the sums in 8 rows of 32.
    void store(int part, threadgroup float* own) thread {
#pragma clang loop unroll(full)
        for (int i = 0; i < 2; i++)
#pragma clang loop unroll(full)
            for (int e = 0; e < 4; e++)
                own[(lane % 4 * 2 + e % 2) * 32 + 16 * i + lane / 4 + e / 2 * 8] = sums[2 * part + i][e];
    }
};
