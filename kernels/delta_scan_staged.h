// The scan of the delta rule for GPUs with few SIMD-groups' work at a time, where instructions are the limit: keys and queries
// of some rows lie widened in threadgroup memory, for all columns of a threadgroup, while the rows after them are on their way.
//
// A lane has a part of two state columns; eight lanes have all of them. For each row the lanes add up what the state knows of
// the key, and wait for each other's parts; in that time they compute the result of the row before, whose state it still is.
// What a row computes does not depend on the rows that it lies in threadgroup memory with.
#pragma once
#include "functions.h"

#define SCAN_LANES 8
#define SCAN_COLUMNS 2
// Columns of a threadgroup.
#define SCAN_TILE (ROW_SIMDGROUPS * SIMD_WIDTH / SCAN_LANES * SCAN_COLUMNS)
// Rows in threadgroup memory, of keys of up to 128 elements; half as many of larger ones.
#define SCAN_ROWS 16
#define SCAN_ROWS_FLOATS (SCAN_ROWS * 2 * 128)

// Some rows in threadgroup memory: keys and queries in turns, pairs of columns of values, decay and beta in turns.
struct StagedRows {
    float keys[SCAN_ROWS_FLOATS];
    uint values[SCAN_ROWS * SCAN_TILE / 2];
    float gates[2 * SCAN_ROWS];
};

// Where the rows of a value head are, and what of them a threadgroup needs.
struct ScanInput {
    device const bfloat* q;
    device const bfloat* k;
    device const bfloat* v;
    device const float* decay;
    device const float* beta;
    uint rows;
    uint row_keys;
    uint row_values;
    uint value_heads;
    uint key_dim;
    uint first_column;
    uint value_dim;
    // Whether the lane has columns of its own; those past the last repeat it and write nothing.
    bool writes;
};

// A thread's part of some rows, on its way.
template <int Parts>
struct ScanRequest {
    static constexpr int Padded = SCAN_LANES * Parts;
    static constexpr int Rows = Padded > 128 ? SCAN_ROWS / 2 : SCAN_ROWS;
    static constexpr int Threads = ROW_SIMDGROUPS * SIMD_WIDTH;
    static constexpr int Pieces = Rows * 2 * Padded / 8 / Threads;
    static constexpr int Values = Rows * SCAN_TILE / 2 / Threads;
    uint4 keys[Pieces];
    uint values[Values];
    float gate;

    // Rows past the last repeat it.
    void start(ScanInput in, uint first, uint index) thread {
#pragma clang loop unroll(full)
        for (uint i = 0; i < Pieces; i++) {
            const uint piece = index + i * Threads;
            const uint row = min(first + piece / (Padded / 4), in.rows - 1);
            const uint element = piece % (Padded / 8) * 8;
            const bool active = KEY_DIM == Padded || element < in.key_dim;
            device const bfloat* from = piece / (Padded / 8) % 2 == 0 ? in.k : in.q;
            keys[i] = active ? load_uint4((device const uchar*)(from + row * in.row_keys + element)) : uint4(0);
        }
#pragma clang loop unroll(full)
        for (uint i = 0; i < Values; i++) {
            const uint pair = index + i * Threads;
            const uint row = min(first + pair / (SCAN_TILE / 2), in.rows - 1);
            const uint column = min(in.first_column + pair % (SCAN_TILE / 2) * 2, in.value_dim - 2);
            values[i] = load_uint((device const uchar*)(in.v + row * in.row_values + column));
        }
        const uint row = min(first + index % (2 * Rows) / 2, in.rows - 1);
        gate = (index % 2 == 0 ? in.decay : in.beta)[row * in.value_heads];
    }

    void store(threadgroup StagedRows& to, uint index) const thread {
#pragma clang loop unroll(full)
        for (uint i = 0; i < Pieces; i++) {
            const Float8 x = widen8(keys[i]);
            threadgroup float4* at = (threadgroup float4*)(to.keys + (index + i * Threads) * 8);
            at[0] = x.low;
            at[1] = x.high;
        }
#pragma clang loop unroll(full)
        for (uint i = 0; i < Values; i++) to.values[index + i * Threads] = values[i];
        if (index < 2 * Rows) to.gates[index] = gate;
    }
};

// A lane's elements of a row of keys or queries: runs of four, those of the lanes next to each other.
template <int Parts>
inline void staged_vector(thread float (&x)[Parts], threadgroup const float* row, uint lane) {
#pragma clang loop unroll(full)
    for (int i = 0; i < Parts / 4; i++) {
        const float4 run = *(threadgroup const float4*)(row + (i * SCAN_LANES + lane) * 4);
        x[4 * i] = run.x;
        x[4 * i + 1] = run.y;
        x[4 * i + 2] = run.z;
        x[4 * i + 3] = run.w;
    }
}

// A lane's part of the products of its columns with a vector.
template <int Parts>
inline void scan_products(thread float (&sums)[SCAN_COLUMNS], thread const float (&s)[SCAN_COLUMNS][Parts],
                          thread const float (&vector)[Parts]) {
#pragma clang loop unroll(full)
    for (int c = 0; c < SCAN_COLUMNS; c++) {
        float even = s[c][0] * vector[0];
        float odd = s[c][1] * vector[1];
#pragma clang loop unroll(full)
        for (int i = 2; i < Parts; i += 2) {
            even = fma(s[c][i], vector[i], even);
            odd = fma(s[c][i + 1], vector[i + 1], odd);
        }
        sums[c] = even + odd;
    }
}

// The sum over the lanes of a column.
inline float column_sum(float x) {
#pragma clang loop unroll(full)
    for (uint mask = 1; mask < SCAN_LANES; mask *= 2) x += simd_shuffle_xor(x, ushort(mask));
    return x;
}

// A column's product with a query: that of the first column in even lanes, of the second one in odd ones.
template <int Parts>
inline float scan_result(thread const float (&s)[SCAN_COLUMNS][Parts], thread const float (&query)[Parts], uint lane) {
    float sums[SCAN_COLUMNS];
    scan_products<Parts>(sums, s, query);
    fold_pairs<1>(sums, 1, lane);
#pragma clang loop unroll(full)
    for (uint mask = 2; mask < SCAN_LANES; mask *= 2) sums[0] += simd_shuffle_xor(sums[0], ushort(mask));
    return sums[0];
}

// What a lane carries from row to row: its elements of two state columns, of the key of the next row, and of the query of the
// last one.
template <int Parts>
struct ScanState {
    float s[SCAN_COLUMNS][Parts];
    float key[Parts];
    float query[Parts];
};

// Row `row` of those in threadgroup memory: the state's columns move on. What comes out is the result of the row before. `next`
// is the row whose key is read for the next time.
template <int Parts>
inline float staged_row(thread ScanState<Parts>& state, threadgroup const StagedRows& staged, uint row, uint next,
                        uint pair, uint lane) {
    constexpr int Padded = SCAN_LANES * Parts;
    float known[SCAN_COLUMNS];
    scan_products<Parts>(known, state.s, state.key);
#pragma clang loop unroll(full)
    for (int c = 0; c < SCAN_COLUMNS; c++) known[c] = column_sum(known[c]);
    const float before = scan_result<Parts>(state.s, state.query, lane);
    staged_vector<Parts>(state.query, staged.keys + row * (2 * Padded) + Padded, lane % SCAN_LANES);
    const float decay = staged.gates[2 * row];
    const float beta = staged.gates[2 * row + 1];
    const uint values = staged.values[row * (SCAN_TILE / 2) + pair];
#pragma clang loop unroll(full)
    for (int c = 0; c < SCAN_COLUMNS; c++) {
        const float update = fma(-decay, known[c], c == 0 ? bf16_low(values) : bf16_high(values)) * beta;
#pragma clang loop unroll(full)
        for (int i = 0; i < Parts; i++) state.s[c][i] = fma(update, state.key[i], state.s[c][i] * decay);
    }
    staged_vector<Parts>(state.key, staged.keys + next * (2 * Padded), lane % SCAN_LANES);
    return before;
}

// Writes a lane's elements of the state, or reads them; those that a head does not have are zeros.
template <int Parts>
inline void store_state(thread const float (&s)[SCAN_COLUMNS][Parts], device float* state, uint key_dim, uint lane) {
#pragma clang loop unroll(full)
    for (int c = 0; c < SCAN_COLUMNS; c++)
#pragma clang loop unroll(full)
        for (int i = 0; i < Parts; i++) {
            const uint at = (i / 4 * SCAN_LANES + lane) * 4 + i % 4;
            if (KEY_DIM == SCAN_LANES * Parts || at < key_dim) state[c * key_dim + at] = s[c][i];
        }
}

template <int Parts>
inline void load_state(thread float (&s)[SCAN_COLUMNS][Parts], device const float* state, uint key_dim, uint lane) {
#pragma clang loop unroll(full)
    for (int c = 0; c < SCAN_COLUMNS; c++)
#pragma clang loop unroll(full)
        for (int i = 0; i < Parts; i++) {
            const uint at = (i / 4 * SCAN_LANES + lane) * 4 + i % 4;
            s[c][i] = KEY_DIM == SCAN_LANES * Parts || at < key_dim ? state[c * key_dim + at] : 0.0f;
        }
}

// One row with all that belongs to it: the result of the row before is stored, and the state goes through memory where it is
// to. `y` is where the lane stores the result of the row before the chunk's first.
template <int Parts>
inline void advance(thread ScanState<Parts>& at, ScanInput in, threadgroup const StagedRows& staged, uint first, uint row,
                    device float* state, device bfloat* y, uint index) {
    const uint own = index % SCAN_LANES;
    const uint next = min(row + 1, uint(ScanRequest<Parts>::Rows - 1));
    const float result = staged_row<Parts>(at, staged, row, next, index / SCAN_LANES, index % SIMD_WIDTH);
    if (own < SCAN_COLUMNS && in.writes && first + row != 0) y[(first + row) * in.row_values] = bfloat(result);
    if (BLOCK_ROWS != 0 && (first + row + 1) % BLOCK_ROWS == 0 && first + row + 1 < in.rows) {
        if (in.writes) store_state<Parts>(at.s, state, in.key_dim, own);
        // Nothing may take the stored elements for the loaded ones.
        simdgroup_barrier(mem_flags::mem_device);
        if (in.writes) load_state<Parts>(at.s, state, in.key_dim, own);
    }
}

// The scan of a threadgroup's state columns. `state` and `y` are those of the lane's first column.
template <int Parts>
inline void scan_staged(ScanInput in, device float* state, device bfloat* y, threadgroup StagedRows* staged, uint index,
                        uint lane) {
    typedef ScanRequest<Parts> Request;
    const uint own = lane % SCAN_LANES;
    // Results come one row late. A lane stores those of one of its columns.
    y += own % SCAN_COLUMNS;
    y -= in.row_values;
    ScanState<Parts> at;
    load_state<Parts>(at.s, state, in.key_dim, own);
#pragma clang loop unroll(full)
    for (int i = 0; i < Parts; i++) at.query[i] = 0.0f;
    Request ahead;
    ahead.start(in, 0, index);
    for (uint first = 0; first < in.rows; first += Request::Rows) {
        threadgroup StagedRows& now = staged[first / Request::Rows % 2];
        ahead.store(now, index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        ahead.start(in, first + Request::Rows, index);
        staged_vector<Parts>(at.key, now.keys, own);
        const uint count = min(in.rows - first, uint(Request::Rows));
        uint row = 0;
        for (; row + 4 <= count; row += 4)
#pragma clang loop unroll(full)
            for (uint j = 0; j < 4; j++) advance<Parts>(at, in, now, first, row + j, state, y, index);
        for (; row < count; row++) advance<Parts>(at, in, now, first, row, state, y, index);
    }
    const float result = scan_result<Parts>(at.s, at.query, lane);
    if (!in.writes) return;
    if (own < SCAN_COLUMNS) y[in.rows * in.row_values] = bfloat(result);
    store_state<Parts>(at.s, state, in.key_dim, own);
}
