// Prefill attention by the matrix units of NVIDIA's GPUs: what attend_tile.h does, whose words on tiles hold here too.
// Included where the host's headers have `ptx`, which wraps the instructions.
//
// A party of four SIMD-groups has 64 queries; it starts products and waits for them later. Weights and sums stay in
// registers. The two parties of a tile share what is staged, blocks of keys and values that are copied while others are
// worked on, and take turns: while the products of one are under way, the other makes weights of its scores.
#pragma once
#include "attend_outputs.h"
#include "attention.h"

// Keys of a block.
#define TILE_KEYS 64
// Queries of a tile.
#define TILE_QUERIES (16 * ATTEND_SIMDGROUPS)
#define ATTEND_THREADS (ATTEND_SIMDGROUPS * SIMD_WIDTH)
#define PARTY_SIMDGROUPS 4
#define PARTY_THREADS (PARTY_SIMDGROUPS * SIMD_WIDTH)
// 16-byte words of threadgroup memory: the queries, two blocks of keys and three of values.
#define ATTEND_MEMORY ((TILE_QUERIES + 5 * TILE_KEYS) * HEAD_DIM_MAX / 8)
// Staged rows lie in panels of so many elements.
#define PANEL_DIM 64
// Elements of a row of results behind its own, two of them used: rows then meet different banks.
#define RESULT_PAD 8

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
    uint last;
    uint first;

    device const bfloat* row(uint i) const { return cache + ulong(min(first + i, last)) * width; }
};

// Starts the copies of `Rows` rows by `Threads` threads: row i begins at `from.row(i)`. They lie in panels, swizzled as
// `ptx::swizzled_rows` has it.
template <int Dim, int Rows, uint Threads, class Source>
inline void copy_rows(Source from, threadgroup bfloat* to, uint index) {
    const uint pieces = Dim / 8;
    const uint step = Threads / pieces;
    const uint row = index / pieces;
    const uint piece = index % pieces;
    // `step` is a power of 2 above `row`, so that no bit is both in `row` and in what is added to it.
    threadgroup bfloat* place = to + piece / 8 * Rows * PANEL_DIM + row * PANEL_DIM;
    const uint column = (piece ^ row) % 8;
#pragma clang loop unroll(full)
    for (uint i = 0; i < Rows / step; i++)
        ptx::copy_16(place + i * step * PANEL_DIM + (column ^ i * step % 8) * 8, from.row(row + i * step) + piece * 8, true);
}

// The last keys that rows see: a lane's two rows, and all of its SIMD-group, the first of which is `first`.
struct LastSeen {
    uint by_row;
    uint by_other;
    uint by_all;

    LastSeen(QueryRows rows, uint position, uint first, uint lane) {
        by_row = position + min(first + lane / 4, rows.queries - 1) / rows.per_kv;
        by_other = position + min(first + lane / 4 + 8, rows.queries - 1) / rows.per_kv;
        by_all = position + min(first, rows.queries - 1) / rows.per_kv;
    }
};

// A SIMD-group's 16 queries: lane l has rows l / 4 and 8 further, in columns 2 (l % 4) and the next of every eight.
template <int Dim>
struct Strip {
    float sums[Dim / 2];
    float scores[TILE_KEYS / 2];
    uint weights[TILE_KEYS / 16][4];
    // Of each row the largest score, this lane's part of the sum of weights, and what a block multiplies them by.
    float most[2];
    float total[2];
    float factors[2];

    void begin() thread {
#pragma clang loop unroll(full)
        for (int i = 0; i < Dim / 2; i++) sums[i] = 0.0f;
        most[0] = most[1] = EMPTY_BLOCK;
        total[0] = total[1] = 0.0f;
    }

    // Starts the products of the party's queries with a block of keys.
    void start_scores(ulong left, ulong keys) thread {
        ptx::begin_products();
#pragma clang loop unroll(full)
        for (int d = 0; d < Dim / 16; d++) {
            const ulong a = left + d / 4 * (TILE_QUERIES * PANEL_DIM / 8) + d % 4 * PTX_NEXT_16_COLUMNS;
            const ulong b = keys + d / 4 * (TILE_KEYS * PANEL_DIM / 8) + d % 4 * PTX_NEXT_16_COLUMNS;
            if (d == 0)
                ptx::multiply_rows_64x64x16<false>(scores, a, b);
            else
                ptx::multiply_rows_64x64x16<true>(scores, a, b);
        }
        ptx::end_products();
    }

    // Hides the keys behind the last one that a row sees, of a block that starts at `key`.
    void hide(uint key, LastSeen last) thread {
#pragma clang loop unroll(full)
        for (int i = 0; i < TILE_KEYS / 2; i++) {
            const uint column = key + i / 4 * 8 + ptx::lane() % 4 * 2 + i % 2;
            if (column > (i / 2 % 2 == 0 ? last.by_row : last.by_other)) scores[i] = EMPTY_BLOCK;
        }
    }

    // Turns the scores of a block, which have arrived, into weights; `scale` makes units of ln 2 of them. Every row that
    // sees the segment sees a key of its first block, so that weights of hidden keys are 0.
    void weigh(uint key, float scale, LastSeen last) thread {
        ptx::settle(scores);
        if (key + TILE_KEYS - 1 > last.by_all) hide(key, last);
#pragma clang loop unroll(full)
        for (int r = 0; r < 2; r++) {
            float highest = most[r];
#pragma clang loop unroll(full)
            for (int n = 0; n < TILE_KEYS / 8; n++)
                highest = fmax(highest, fmax(scores[4 * n + 2 * r], scores[4 * n + 2 * r + 1]));
            highest = fmax(highest, simd_shuffle_xor(highest, ushort(1)));
            highest = fmax(highest, simd_shuffle_xor(highest, ushort(2)));
            factors[r] = ptx::power_of_2((most[r] - highest) * scale);
            most[r] = highest;
            const float base = -highest * scale;
            float sum = 0.0f;
#pragma clang loop unroll(full)
            for (int n = 0; n < TILE_KEYS / 8; n++) {
                const int at = 4 * n + 2 * r;
                const uint pair = ptx::narrow_pair(ptx::power_of_2(fma(scores[at], scale, base)),
                                                   ptx::power_of_2(fma(scores[at + 1], scale, base)));
                scores[at] = bf16_low(pair);
                scores[at + 1] = bf16_high(pair);
                sum += scores[at] + scores[at + 1];
            }
            total[r] = total[r] * factors[r] + sum;
        }
        ptx::settle(scores);
    }

    // Makes ready for adding values, once those before have arrived. Where it waits depends on the scores, because the
    // compiler would have weights made after a wait that does not; all of a party wait in the same place, as the hardware asks.
    void prepare_values(uint party) thread {
        if (ptx::any_at_barrier(1 + party, PARTY_THREADS, factors[0] != 1.0f || factors[1] != 1.0f)) {
            ptx::wait_products<0, 1>();
            take_weights();
#pragma clang loop unroll(full)
            for (int i = 0; i < Dim / 2; i++) sums[i] *= factors[i / 2 % 2];
        } else {
            ptx::wait_products<0, 2>();
            take_weights();
        }
    }

    // Products read the weights until they have ended.
    void take_weights() thread {
        ptx::settle(sums);
        ptx::settle(scores);
#pragma clang loop unroll(full)
        for (int i = 0; i < TILE_KEYS / 4; i++)
            weights[i / 4][i % 4] = ptx::bytes(as_type<uint>(scores[2 * i]), as_type<uint>(scores[2 * i + 1]), 0x7632);
    }

    // Starts adding a block of values by their weights.
    void start_values(ulong values) thread {
        ptx::begin_products();
#pragma clang loop unroll(full)
        for (int n = 0; n < TILE_KEYS / 16; n++)
            ptx::ColumnProducts<Dim>::add(sums, weights[n], values + n * PTX_NEXT_16_ROWS);
        ptx::end_products();
    }

    // Leaves the sums in rows of Dim + RESULT_PAD, and behind them the largest score, of which `scale` makes units of ln 2, and
    // the sum of weights.
    void leave(threadgroup float* to, float scale) thread {
        const uint lane = ptx::lane();
        ptx::settle(sums);
#pragma clang loop unroll(full)
        for (int r = 0; r < 2; r++) {
            float all = total[r] + simd_shuffle_xor(total[r], ushort(1));
            all += simd_shuffle_xor(all, ushort(2));
            threadgroup float* row = to + (lane / 4 + 8 * r) * (Dim + RESULT_PAD);
#pragma clang loop unroll(full)
            for (int d = 0; d < Dim / 8; d++)
                *(threadgroup float2*)(row + 8 * d + lane % 4 * 2) = float2(sums[4 * d + 2 * r], sums[4 * d + 2 * r + 1]);
            if (lane % 4 == 0) *(threadgroup float2*)(row + Dim) = float2(most[r] * scale * LN_2, all);
        }
    }
};

// Writes the results of a tile.
template <int Dim>
inline void put_tile(threadgroup const float* results, QueryRows rows, Outputs to, uint index) {
#pragma clang loop unroll_count(4)
    for (uint i = index; i < TILE_QUERIES * Dim / 2; i += ATTEND_THREADS) {
        const uint row = i / (Dim / 2), column = i % (Dim / 2) * 2;
        const uint query = rows.first + row, token = query / rows.per_kv;
        if (query >= rows.queries || !to.sees(token)) continue;
        const ulong at = rows.at(query);
        threadgroup const float* sums = results + row * (Dim + RESULT_PAD);
        const float2 sum = *(threadgroup const float2*)(sums + column);
        const float2 most_and_total = *(threadgroup const float2*)(sums + Dim);
        if (to.is_partial(token)) {
            device float* partial = to.partial(at, token, rows.heads, Dim);
            *(device float2*)(partial + 2 + column) = sum;
            if (column == 0) *(device float2*)partial = most_and_total;
        } else {
            const uint gates = load_uint((device const uchar*)(to.q_raw + (2 * at + 1) * Dim + column));
            const float part = 1.0f / most_and_total.y;
            *(device uint*)(to.out + at * Dim + column) =
                ptx::narrow_pair(sum.x * part * sigmoid(bf16_low(gates)), sum.y * part * sigmoid(bf16_high(gates)));
        }
    }
}

// What is copied waits here until all threads, and products, see it.
template <int UnderWay>
inline void share_copies() {
    ptx::wait_copies<UnderWay>();
    ptx::share_with_products();
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// One tile of queries of a KV head, all of whose heads share what is staged, and a segment of the keys. Blocks of keys start
// at multiples of 64 and are taken in order; one without a visible key leaves a query's sums as they are. So a query's
// result depends on its position alone.
template <int Dim>
inline void attend_tile(device const bfloat* q, device const bfloat* keys, device const bfloat* values, Outputs outputs,
                        constant AttentionDims& a, uint tile, uint kv_head, uint index, uint simdgroup, uint lane,
                        threadgroup uint4* memory) {
    const uint per_kv = a.heads / a.kv_heads;
    const uint queries = a.rows * per_kv;
    const uint first = tile * TILE_QUERIES;
    const uint last_token = (min(first + TILE_QUERIES, queries) - 1) / per_kv;
    if (!outputs.sees(last_token)) return;
    const uint first_key = outputs.first_key();
    const uint last_key = outputs.last_key(outputs.position + last_token);
    const uint blocks = (last_key - first_key) / TILE_KEYS + 1;
    threadgroup bfloat* staged_queries = (threadgroup bfloat*)memory;
    threadgroup bfloat* staged_keys = staged_queries + TILE_QUERIES * Dim;
    threadgroup bfloat* staged_values = staged_keys + 2 * TILE_KEYS * Dim;

    const uint party = simdgroup / PARTY_SIMDGROUPS;
    const uint party_index = index % PARTY_THREADS;
    QueryRows rows = {q, first, queries, per_kv, a.heads, kv_head * per_kv, uint(Dim)};
    // The first party copies values, the second one keys.
    CacheRows own_rows = {(party == 0 ? values : keys) + kv_head * Dim, a.kv_heads * Dim, last_key, first_key};
    threadgroup bfloat* staged = party == 0 ? staged_values : staged_keys;
    copy_rows<Dim, TILE_QUERIES, ATTEND_THREADS>(rows, staged_queries, index);
    copy_rows<Dim, TILE_KEYS, PARTY_THREADS>(own_rows, staged, party_index);
    ptx::end_copies();
    own_rows.first += TILE_KEYS;
    copy_rows<Dim, TILE_KEYS, PARTY_THREADS>(own_rows, staged + TILE_KEYS * Dim, party_index);
    ptx::end_copies();

    const LastSeen last(rows, outputs.position, first + simdgroup * 16, lane);
    const float scale = precise::rsqrt(float(Dim)) * 1.44269504088896340736f;
    const ulong left = ptx::swizzled_rows(staged_queries + party * 64 * PANEL_DIM);
    const ulong keys_at = ptx::swizzled_rows(staged_keys);
    const ulong values_at = ptx::swizzled_columns(staged_values, 2 * TILE_KEYS * PANEL_DIM);
    const ulong block_size = TILE_KEYS * Dim / 8;
    Strip<Dim> strip;
    strip.begin();
    share_copies<1>();
    strip.start_scores(left, keys_at);
    ptx::wait_products<0>();
    strip.weigh(first_key, scale, last);
    strip.prepare_values(party);
    share_copies<0>();
    // The second party is half a round behind; barriers end each half.
    if (party == 1) {
        own_rows.first += TILE_KEYS;
        if (own_rows.first <= last_key) copy_rows<Dim, TILE_KEYS, PARTY_THREADS>(own_rows, staged, party_index);
        ptx::end_copies();
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    // Of the places of values, the one of this block's; of those of what a party copies, the next one.
    uint own = 0;
    uint to = party == 0 ? 2 : 1;
    for (uint block = 0; block + 1 < blocks; block++) {
        strip.start_scores(left, keys_at + (1 - block % 2) * block_size);
        strip.start_values(values_at + own * block_size);
        share_copies<0>();
        // The other party's turn. Both have done with what is copied over: the values before these, or these keys, which
        // the four SIMD-groups of a party read together, so that each one's wait speaks for all.
        ptx::wait_products<1>();
        own_rows.first = first_key + (block + 2 + party) * TILE_KEYS;
        if (own_rows.first <= last_key)
            copy_rows<Dim, TILE_KEYS, PARTY_THREADS>(own_rows, staged + to * TILE_KEYS * Dim, party_index);
        ptx::end_copies();
        to = to == 2 - party ? 0 : to + 1;
        own = own == 2 ? 0 : own + 1;
        strip.weigh(first_key + (block + 1) * TILE_KEYS, scale, last);
        strip.prepare_values(party);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    strip.start_values(values_at + own * block_size);
    if (party == 0) threadgroup_barrier(mem_flags::mem_threadgroup);
    ptx::wait_products<0>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float* results = (threadgroup float*)memory;
    strip.leave(results + simdgroup * 16 * (Dim + RESULT_PAD), scale);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    put_tile<Dim>(results, rows, outputs, index);
}
