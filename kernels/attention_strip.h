// Matrix products of prefill attention by simdgroup_matrix: a strip of queries against staged keys and values.
#pragma once
#include <metal_simdgroup_matrix>
#include "platform.h"

// A strip of 8 queries of `Dim` elements against blocks of 32 staged keys and values, rows `Dim + 8` elements apart.
// `own` is memory of this SIMD-group alone; the caller puts barriers around what it reads and writes there.
template <int Dim>
struct AttentionStrip {
    simdgroup_matrix<bfloat, 8, 8> queries[Dim / 8];
    simdgroup_matrix<float, 8, 8> sums[Dim / 8];

    // Takes elements `64 * part` to `64 * part + 63` of the queries from 8 rows of 64.
    void load_queries(int part, threadgroup const bfloat* own) thread {
#pragma clang loop unroll(full)
        for (int i = 0; i < 8; i++) {
            simdgroup_load(queries[8 * part + i], own + 8 * i, 64);
            sums[8 * part + i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }

    // Leaves the products with 32 keys in 8 rows of 32.
    void score(threadgroup const bfloat* keys, threadgroup float* own) thread {
        simdgroup_matrix<float, 8, 8> scores[4];
#pragma clang loop unroll(full)
        for (int i = 0; i < 4; i++) scores[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
#pragma clang loop unroll(full)
        for (int d = 0; d < Dim / 8; d++) {
#pragma clang loop unroll(full)
            for (int i = 0; i < 4; i++) {
                simdgroup_matrix<bfloat, 8, 8> k;
                simdgroup_load(k, keys + 8 * i * (Dim + 8) + 8 * d, Dim + 8, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(scores[i], queries[d], k, scores[i]);
            }
        }
#pragma clang loop unroll(full)
        for (int i = 0; i < 4; i++) simdgroup_store(scores[i], own + 8 * i, 32);
    }

    // Multiplies the sums of row `lane / 4` by `factor`. The order of elements in lanes is not known, so that it takes a
    // product with a diagonal matrix.
    void rescale(float factor, threadgroup float* own, uint lane) thread {
        own[2 * lane] = lane / 4 == lane % 4 * 2 ? factor : 0.0f;
        own[2 * lane + 1] = lane / 4 == lane % 4 * 2 + 1 ? factor : 0.0f;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_matrix<float, 8, 8> diagonal;
        simdgroup_load(diagonal, own, 8);
#pragma clang loop unroll(full)
        for (int d = 0; d < Dim / 8; d++) simdgroup_multiply(sums[d], diagonal, sums[d]);
    }

    // Adds 32 values, weighted by 8 rows of 32.
    void add_values(threadgroup const bfloat* values, threadgroup const bfloat* own) thread {
        simdgroup_matrix<bfloat, 8, 8> weights[4];
#pragma clang loop unroll(full)
        for (int i = 0; i < 4; i++) simdgroup_load(weights[i], own + 8 * i, 32);
#pragma clang loop unroll(full)
        for (int d = 0; d < Dim / 8; d++) {
#pragma clang loop unroll(full)
            for (int i = 0; i < 4; i++) {
                simdgroup_matrix<bfloat, 8, 8> v;
                simdgroup_load(v, values + 8 * i * (Dim + 8) + 8 * d, Dim + 8);
                simdgroup_multiply_accumulate(sums[d], weights[i], v, sums[d]);
            }
        }
    }

    // Leaves elements `32 * part` to `32 * part + 31` of the sums in 8 rows of 32.
    void store(int part, threadgroup float* own) thread {
#pragma clang loop unroll(full)
        for (int i = 0; i < 4; i++) simdgroup_store(sums[4 * part + i], own + 8 * i, 32);
    }
};
