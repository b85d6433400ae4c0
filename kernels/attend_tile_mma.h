// Prefill attention by the matrix units of NVIDIA's GPUs, 16x8x16 at a time: what attend_tile.h does, whose words on tiles
// hold here too. Included where the host's headers have `ptx`, which wraps the instructions.
//
// A SIMD-group has 16 queries, and one half of every block of keys; its scores, weights and sums stay in registers, and the
// halves meet at the end. Blocks of keys and values are copied to threadgroup memory while the one before is worked on.
#pragma once
#include "attention.h"

// Keys of a block, and of a half.
#define TILE_KEYS 64
#define HALF_KEYS (TILE_KEYS / 2)
// Queries of a tile.
#define TILE_QUERIES (8 * ATTEND_SIMDGROUPS)
// Strips of 16 queries.
#define TILE_STRIPS (TILE_QUERIES / 16)
// Elements of a staged row behind its own: rows then meet different banks.
#define ROW_PAD 8
// 16-byte words of threadgroup memory: the queries, and two blocks of keys and values each.
#define ATTEND_MEMORY ((TILE_QUERIES + 4 * TILE_KEYS) * (HEAD_DIM_MAX + ROW_PAD) / 8)

// Starts the copies of 64 rows: row i begins at `from.row(i)`.
template <int Dim, class Source>
inline void copy_rows(Source from, threadgroup bfloat* to, uint index) {
    const uint pieces = Dim / 8;
#pragma clang loop unroll(full)
    for (uint i = 0; i < 64 * pieces / (ATTEND_SIMDGROUPS * SIMD_WIDTH); i++) {
        const uint piece = index + i * ATTEND_SIMDGROUPS * SIMD_WIDTH;
        const uint row = piece / pieces;
        ptx::copy_16(to + row * (Dim + ROW_PAD) + piece % pieces * 8, from.row(row) + piece % pieces * 8, true);
    }
}

// Queries of a tile. Those past the last repeat it.
struct QueryRows {
    device const bfloat* q;
    uint first;
    uint queries;
    uint per_kv;
    uint heads;
    uint head;
    uint dim;

    // Of query i of the KV head, its row in `q` and in the output: head i % G of token i / G.
    ulong at(uint query) const { return ulong(query / per_kv) * heads + head + query % per_kv; }

    device const bfloat* row(uint i) const { return q + at(min(first + i, queries - 1)) * dim; }
};

// Rows of a cache column. Those past the last repeat it: what lies behind it in the cache is anything.
struct CacheRows {
    device const bfloat* cache;
    uint width;
    uint first;
    uint last;

    device const bfloat* row(uint i) const { return cache + ulong(min(first + i, last)) * width; }
};

// A SIMD-group's 16 queries: lane l has rows l / 4 and 8 further, in columns 2 (l % 4) and the next of every eight.
template <int Dim>
struct Strip {
    float sums[Dim / 8][4];
    // Of each row the largest score, and this lane's part of the sum of weights.
    float most[2];
    float total[2];

    void begin() thread {
#pragma clang loop unroll(full)
        for (int d = 0; d < Dim / 8; d++)
#pragma clang loop unroll(full)
            for (int e = 0; e < 4; e++) sums[d][e] = 0.0f;
        most[0] = most[1] = EMPTY_BLOCK;
        total[0] = total[1] = 0.0f;
    }

    // Products of the queries with 32 keys.
    void score(thread float (&scores)[HALF_KEYS / 8][4], threadgroup const bfloat* queries, threadgroup const bfloat* keys,
               uint lane) thread {
        const uint at = lane % 16 * (Dim + ROW_PAD) + lane / 16 * 8;
#pragma clang loop unroll(full)
        for (int d = 0; d < Dim / 16; d++) {
            uint a[4];
            ptx::load_16x16(a, queries + at + 16 * d);
#pragma clang loop unroll(full)
            for (int n = 0; n < HALF_KEYS / 16; n++) {
                uint b[4];
                ptx::load_16x16(b, keys + at + 16 * n * (Dim + ROW_PAD) + 16 * d);
                ptx::multiply_16x8x16(scores[2 * n], a[0], a[1], a[2], a[3], b[0], b[2]);
                ptx::multiply_16x8x16(scores[2 * n + 1], a[0], a[1], a[2], a[3], b[1], b[3]);
            }
        }
    }

    // Turns scores, in units of ln 2 after `scale`, into weights; those of keys behind the last one that a row sees are 0.
    void weigh(thread float (&scores)[HALF_KEYS / 8][4], float scale, bool all_seen, uint key, uint last_of_row,
               uint last_of_other, uint lane) thread {
        float factors[2];
#pragma clang loop unroll(full)
        for (int r = 0; r < 2; r++) {
            const uint last = r == 0 ? last_of_row : last_of_other;
            float highest = most[r];
#pragma clang loop unroll(full)
            for (int n = 0; n < HALF_KEYS / 8; n++)
#pragma clang loop unroll(full)
                for (int e = 0; e < 2; e++) {
                    const uint column = key + 8 * n + lane % 4 * 2 + e;
                    const float s = scores[n][2 * r + e] * scale;
                    scores[n][2 * r + e] = all_seen || column <= last ? s : EMPTY_BLOCK;
                    highest = max(highest, scores[n][2 * r + e]);
                }
            highest = max(highest, simd_shuffle_xor(highest, ushort(1)));
            highest = max(highest, simd_shuffle_xor(highest, ushort(2)));
            // A row that sees no key yet has weights of 0.
            const float base = highest == EMPTY_BLOCK ? 0.0f : highest;
            factors[r] = fast::exp2(most[r] - base);
            most[r] = highest;
            float sum = 0.0f;
#pragma clang loop unroll(full)
            for (int n = 0; n < HALF_KEYS / 8; n++)
#pragma clang loop unroll(full)
                for (int e = 0; e < 2; e++) {
                    const float weight = round_bf16(fast::exp2(scores[n][2 * r + e] - base));
                    scores[n][2 * r + e] = weight;
                    sum += weight;
                }
            total[r] = total[r] * factors[r] + sum;
        }
        if (simd_any(factors[0] != 1.0f || factors[1] != 1.0f)) {
#pragma clang loop unroll(full)
            for (int d = 0; d < Dim / 8; d++)
#pragma clang loop unroll(full)
                for (int e = 0; e < 4; e++) sums[d][e] *= factors[e / 2];
        }
    }

    // Adds 32 values by their weights.
    void add_values(thread const float (&weights)[HALF_KEYS / 8][4], threadgroup const bfloat* values, uint lane) thread {
        const uint at = lane % 16 * (Dim + ROW_PAD) + lane / 16 * 8;
#pragma clang loop unroll(full)
        for (int n = 0; n < HALF_KEYS / 16; n++) {
            uint a[4];
#pragma clang loop unroll(full)
            for (int i = 0; i < 4; i++)
                a[i] = bf16_pair(weights[2 * n + i / 2][i % 2 * 2], weights[2 * n + i / 2][i % 2 * 2 + 1]);
#pragma clang loop unroll(full)
            for (int d = 0; d < Dim / 16; d++) {
                uint b[4];
                ptx::load_16x16_transposed(b, values + at + 16 * n * (Dim + ROW_PAD) + 16 * d);
                ptx::multiply_16x8x16(sums[2 * d], a[0], a[1], a[2], a[3], b[0], b[1]);
                ptx::multiply_16x8x16(sums[2 * d + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
            }
        }
    }

    // Adds up the totals of the lanes that share a row.
    void end() thread {
#pragma clang loop unroll(full)
        for (int r = 0; r < 2; r++) {
            total[r] += simd_shuffle_xor(total[r], ushort(1));
            total[r] += simd_shuffle_xor(total[r], ushort(2));
        }
    }

    // Leaves sums, and what they are in proportion to, for the other half: 16 rows of Dim + 4, the last two of them.
    void leave(threadgroup float* to, uint lane) thread {
#pragma clang loop unroll(full)
        for (int r = 0; r < 2; r++) {
            threadgroup float* row = to + (lane / 4 + 8 * r) * (Dim + 4);
#pragma clang loop unroll(full)
            for (int d = 0; d < Dim / 8; d++) {
                row[8 * d + lane % 4 * 2] = sums[d][2 * r];
                row[8 * d + lane % 4 * 2 + 1] = sums[d][2 * r + 1];
            }
            if (lane % 4 == 0) {
                row[Dim] = most[r];
                row[Dim + 1] = total[r];
            }
        }
    }

    // Makes results of its own sums and what the other half left, in its place.
    void meet(threadgroup float* with, uint lane) thread {
#pragma clang loop unroll(full)
        for (int r = 0; r < 2; r++) {
            threadgroup float* row = with + (lane / 4 + 8 * r) * (Dim + 4);
            const float highest = max(most[r], row[Dim]);
            const float own = fast::exp2(most[r] - highest);
            const float other = fast::exp2(row[Dim] - highest);
            const float all = total[r] * own + row[Dim + 1] * other;
#pragma clang loop unroll(full)
            for (int d = 0; d < Dim / 8; d++)
#pragma clang loop unroll(full)
                for (int e = 0; e < 2; e++) {
                    const uint at = 8 * d + lane % 4 * 2 + e;
                    row[at] = (sums[d][2 * r + e] * own + row[at] * other) / all;
                }
        }
    }
};

// Writes the results of a tile, gated.
template <int Dim>
inline void put_tile(threadgroup const float* results, QueryRows rows, device const bfloat* q_raw, device bfloat* out,
                     uint index) {
    for (uint i = index; i < TILE_QUERIES * Dim; i += ATTEND_SIMDGROUPS * SIMD_WIDTH) {
        const uint query = rows.first + i / Dim;
        if (query < rows.queries) {
            const ulong at = rows.at(query);
            const float gate = float(q_raw[(2 * at + 1) * Dim + i % Dim]);
            out[at * Dim + i % Dim] = bfloat(results[i / Dim * (Dim + 4) + i % Dim] * sigmoid(gate));
        }
    }
}

// One tile of 64 queries of a KV head, all of whose heads share what is staged. Blocks of keys start at multiples of 64 and
// are taken in order; one without a visible key leaves a query's sums as they are. So a query's result depends on its
// position alone.
template <int Dim>
inline void attend_tile(device const bfloat* q, device const bfloat* q_raw, device const bfloat* keys,
                        device const bfloat* values, device bfloat* out, constant AttentionDims& a, uint position,
                        uint tile, uint kv_head, uint index, uint simdgroup, uint lane, threadgroup uint4* memory) {
    const uint per_kv = a.heads / a.kv_heads;
    const uint queries = a.rows * per_kv;
    const uint first = tile * TILE_QUERIES;
    const uint last_key = position + (min(first + TILE_QUERIES, queries) - 1) / per_kv;
    threadgroup bfloat* staged_queries = (threadgroup bfloat*)memory;
    threadgroup bfloat* blocks = staged_queries + TILE_QUERIES * (Dim + ROW_PAD);
    const uint block_size = TILE_KEYS * (Dim + ROW_PAD);

    QueryRows rows = {q, first, queries, per_kv, a.heads, kv_head * per_kv, uint(Dim)};
    CacheRows key_rows = {keys + kv_head * Dim, a.kv_heads * Dim, 0, last_key};
    CacheRows value_rows = {values + kv_head * Dim, a.kv_heads * Dim, 0, last_key};
    copy_rows<Dim>(rows, staged_queries, index);
    copy_rows<Dim>(key_rows, blocks, index);
    copy_rows<Dim>(value_rows, blocks + block_size, index);
    ptx::end_copies();

    const uint strip_first = first + simdgroup % TILE_STRIPS * 16;
    const uint half_of = simdgroup / TILE_STRIPS;
    const uint last_of_row = position + min(strip_first + lane / 4, queries - 1) / per_kv;
    const uint last_of_other = position + min(strip_first + lane / 4 + 8, queries - 1) / per_kv;
    const uint seen_by_all = position + min(strip_first, queries - 1) / per_kv;
    const uint seen_by_any = position + min(strip_first + 15, queries - 1) / per_kv;
    const float scale = precise::rsqrt(float(Dim)) * 1.44269504088896340736f;
    threadgroup const bfloat* own_queries = staged_queries + simdgroup % TILE_STRIPS * 16 * (Dim + ROW_PAD);
    Strip<Dim> strip;
    strip.begin();
    for (uint key = 0; key <= last_key; key += TILE_KEYS) {
        threadgroup bfloat* block = blocks + key / TILE_KEYS % 2 * 2 * block_size;
        ptx::wait_copies<0>();
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (key + TILE_KEYS <= last_key) {
            threadgroup bfloat* next = blocks + (key / TILE_KEYS + 1) % 2 * 2 * block_size;
            key_rows.first = value_rows.first = key + TILE_KEYS;
            copy_rows<Dim>(key_rows, next, index);
            copy_rows<Dim>(value_rows, next + block_size, index);
        }
        ptx::end_copies();
        const uint own_key = key + half_of * HALF_KEYS;
        if (own_key <= seen_by_any) {
            float scores[HALF_KEYS / 8][4] = {};
            threadgroup const bfloat* half_block = block + half_of * HALF_KEYS * (Dim + ROW_PAD);
            strip.score(scores, own_queries, half_block, lane);
            const bool all_seen = own_key + HALF_KEYS - 1 <= seen_by_all;
            strip.weigh(scores, scale, all_seen, own_key, last_of_row, last_of_other, lane);
            strip.add_values(scores, half_block + block_size, lane);
        }
    }

    strip.end();
    threadgroup float* results = (threadgroup float*)memory;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float* own_results = results + simdgroup % TILE_STRIPS * 16 * (Dim + 4);
    if (half_of == 1) strip.leave(own_results, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (half_of == 0) strip.meet(own_results, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    put_tile<Dim>(results, rows, q_raw, out, index);
}
