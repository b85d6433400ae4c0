// Prefill attention: one threadgroup's tile of queries. attend_tile_mma.h has the same for NVIDIA's matrix units.
#pragma once
#include "attend_outputs.h"
#include "attention_strip.h"

// Queries of a tile.
#define TILE_QUERIES (8 * ATTEND_SIMDGROUPS)
// Keys of a block.
#define BLOCK_KEYS 32
// 16-byte words of threadgroup memory: a block of keys or values, and 1 KiB for each SIMD-group.
#define BLOCK_MEMORY (BLOCK_KEYS * (HEAD_DIM_MAX + 8) * 2 / 16)
#define ATTEND_MEMORY (BLOCK_MEMORY + ATTEND_SIMDGROUPS * 64)

// Copies rows `first` to `first + 31` of a cache column, as far as `last`, which is repeated after it: what lies behind
// it in the cache is anything.
template <int Dim>
inline void stage_block(device const bfloat* cache, uint width, uint first, uint last, uint index,
                        threadgroup uint4* block) {
    const uint pieces = Dim / 8;
#pragma clang loop unroll(full)
    for (uint i = 0; i < BLOCK_KEYS * pieces / (ATTEND_SIMDGROUPS * SIMD_WIDTH); i++) {
        const uint piece = index + i * ATTEND_SIMDGROUPS * SIMD_WIDTH;
        const uint key = piece / pieces;
        device const uchar* from = (device const uchar*)(cache + ulong(min(first + key, last)) * width);
        block[key * (Dim + 8) / 8 + piece % pieces] = load_uint4(from + piece % pieces * 16);
    }
}

// Row of a KV head's query i in `q` and in `out`: head i % G of token i / G.
inline ulong query_row(constant AttentionDims& a, uint kv_head, uint query) {
    const uint per_kv = a.heads / a.kv_heads;
    return ulong(query / per_kv) * a.heads + kv_head * per_kv + query % per_kv;
}

// Gives a strip its queries, from `first` on. The last one is repeated.
template <int Dim>
inline void take_queries(thread AttentionStrip<Dim>& strip, device const bfloat* q, constant AttentionDims& a, uint kv_head,
                         uint first, uint lane, threadgroup float* own) {
    const uint queries = a.rows * (a.heads / a.kv_heads);
#pragma clang loop unroll(full)
    for (int part = 0; part < Dim / 64; part++) {
#pragma clang loop unroll(full)
        for (uint i = 0; i < 2; i++) {
            const uint piece = lane + 32 * i;
            const ulong row = query_row(a, kv_head, min(first + piece / 8, queries - 1));
            device const uchar* from = (device const uchar*)(q + row * Dim + 64 * part);
            ((threadgroup uint4*)own)[piece] = load_uint4(from + piece % 8 * 16);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        strip.load_queries(part, (threadgroup bfloat*)own);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Writes the results of a strip. `most` and `total` are the largest score, in units of ln 2, and the sum of weights of row
// lane / 4.
template <int Dim>
inline void put_strip(thread AttentionStrip<Dim>& strip, float most, float total, Outputs to, constant AttentionDims& a,
                      uint kv_head, uint first, uint lane, threadgroup float* own) {
    const uint per_kv = a.heads / a.kv_heads;
    const uint queries = a.rows * per_kv;
#pragma clang loop unroll(full)
    for (int part = 0; part < Dim / 32; part++) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        strip.store(part, own);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < 8; i++) {
            const float sum = own[32 * i + lane];
            const float row_most = simd_shuffle(most, ushort(4 * i));
            const float row_total = simd_shuffle(total, ushort(4 * i));
            const uint query = first + i;
            const uint token = query / per_kv;
            if (query >= queries || !to.sees(token)) continue;
            const ulong row = query_row(a, kv_head, query);
            if (to.is_partial(token)) {
                device float* partial = to.partial(row, token, a.heads, Dim);
                partial[2 + 32 * part + lane] = sum;
                if (part == 0 && lane < 2) partial[lane] = lane == 0 ? row_most * LN_2 : row_total;
            } else {
                const float gate = float(to.q_raw[(2 * row + 1) * Dim + 32 * part + lane]);
                to.out[row * Dim + 32 * part + lane] = bfloat(sum / row_total * sigmoid(gate));
            }
        }
    }
}

// One tile of 64 queries of a KV head, all of whose heads share what is staged, and a segment of the keys. Each SIMD-group has
// a strip of 8. Blocks of keys start at multiples of 32 and are taken in order; one without a visible key leaves a query's
// sums as they are. So a query's result depends on its position alone.
template <int Dim>
inline void attend_tile(device const bfloat* q, device const bfloat* keys, device const bfloat* values, Outputs to,
                        constant AttentionDims& a, uint tile, uint kv_head, uint index, uint simdgroup, uint lane,
                        threadgroup uint4* memory) {
    const uint position = to.position;
    const uint per_kv = a.heads / a.kv_heads;
    const uint queries = a.rows * per_kv;
    const uint width = a.kv_heads * Dim;
    const uint last_query = min(tile * ATTEND_SIMDGROUPS * 8 + ATTEND_SIMDGROUPS * 8, queries) - 1;
    if (!to.sees(last_query / per_kv)) return;
    const uint first = (tile * ATTEND_SIMDGROUPS + simdgroup) * 8;
    const bool busy = first < queries;
    threadgroup uint4* block = memory;
    threadgroup bfloat* staged = (threadgroup bfloat*)block;
    threadgroup float* own = (threadgroup float*)(memory + BLOCK_MEMORY + 64 * simdgroup);
    threadgroup bfloat* own_weights = (threadgroup bfloat*)own;
    keys += kv_head * Dim;
    values += kv_head * Dim;

    AttentionStrip<Dim> strip;
    take_queries<Dim>(strip, q, a, kv_head, first, lane, own);

    // A lane looks after 8 keys of one row. Scores are in units of ln 2.
    const uint row = lane / 4;
    const uint last_key = to.last_key(position + last_query / per_kv);
    const uint strip_last_key = position + min(first + 7, queries - 1) / per_kv;
    const uint own_last_key = position + min(first + row, queries - 1) / per_kv;
    const float scale = precise::rsqrt(float(Dim)) * 1.44269504088896340736f;
    float most = EMPTY_BLOCK;
    float total = 0.0f;
    for (uint key = to.first_key(); key <= last_key; key += BLOCK_KEYS) {
        const bool seen = busy && key <= strip_last_key;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        stage_block<Dim>(keys, width, key, last_key, index, block);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (seen) {
            strip.score(staged, own);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            float score[8];
            float highest = most;
#pragma clang loop unroll(full)
            for (uint i = 0; i < 8; i++) {
                const uint column = lane % 4 * 8 + i;
                const float s = own[32 * row + column] * scale;
                score[i] = key + column <= own_last_key ? s : EMPTY_BLOCK;
                highest = max(highest, score[i]);
            }
            highest = max(highest, simd_shuffle_xor(highest, ushort(1)));
            highest = max(highest, simd_shuffle_xor(highest, ushort(2)));
            const float factor = fast::exp2(most - highest);
            most = highest;
            simdgroup_barrier(mem_flags::mem_threadgroup);
            if (simd_any(factor != 1.0f)) {
                strip.rescale(factor, own, lane);
                simdgroup_barrier(mem_flags::mem_threadgroup);
            }
            float sum = 0.0f;
#pragma clang loop unroll(full)
            for (uint i = 0; i < 8; i++) {
                const bfloat weight = bfloat(fast::exp2(score[i] - highest));
                own_weights[32 * row + lane % 4 * 8 + i] = weight;
                sum += float(weight);
            }
            sum += simd_shuffle_xor(sum, ushort(1));
            sum += simd_shuffle_xor(sum, ushort(2));
            total = total * factor + sum;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        stage_block<Dim>(values, width, key, last_key, index, block);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (seen) strip.add_values(staged, own_weights);
    }

    if (busy) put_strip<Dim>(strip, most, total, to, a, kv_head, first, lane, own);
}
