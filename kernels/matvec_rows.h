// Products of stored rows with up to eight activation rows at once: a decode step of several sessions. A result has the bits
// that `row_products` or `copied_products` gives for its row alone: the same lanes take the same columns in the same order.
//
// Codes are read once for all rows. Activations are staged as bf16, which they are, or as fixed-point numbers (matvec_copied.h),
// a few rows at a time: while one set of rows gives way to the next, codes stay in registers.
#pragma once
#include "matvec.h"

// Rows that are staged at a time, and columns of each: what a SIMD-group takes of 4-bit codes at once.
#define BATCH_ROWS 4
#define BATCH_COLUMNS 1024
// 16-byte vectors of a staged row: after 32 columns comes one that is unused or has what the columns share, so that lanes meet
// different banks.
#define BATCH_VECTORS (BATCH_COLUMNS / 32 * 5)

// Sources of several rows have `begin`, which every thread calls once before the first `at`, and `at`: eight columns of a row,
// or of the `next` one; what it needs besides the row is told by `expect`. `slots` are BATCH_SLOTS.
#define BATCH_SLOTS (BATCH_MAX * VECTOR_SIMDGROUPS)

// Neighbouring rows as they stand.
struct PlainRows {
    device const bfloat* x;
    uint cols;

    void begin(threadgroup float* slots, Place place) {}
    Float8 expect(uint column) const { return Float8(); }
    Float8 at(uint row, bool next, uint column, Float8 expected) const {
        return load_bf16x8(x + (row + next) * cols + column);
    }
};

// Neighbouring rows after their RMS norm.
struct NormedRows {
    NormedRow first;
    float factors[BATCH_MAX];

    // All rows at once: the threads wait once for memory and once for each other. Sums have the order of `NormedRow::begin`.
    void begin(threadgroup float* slots, Place place) {
        float squares[BATCH_MAX] = {};
        for (uint i = 8 * place.thread_index; i < first.width; i += 8 * SIMD_WIDTH * place.simdgroups) {
            #pragma clang loop unroll(full)
            for (uint r = 0; r < BATCH_MAX; r++) {
                if (r < BATCH) {
                    Float8 v = load_bf16x8(first.x + r * first.width + i);
                    squares[r] += dot8(v, v);
                }
            }
        }
        #pragma clang loop unroll(full)
        for (uint r = 0; r < BATCH_MAX; r++) {
            if (r < BATCH) {
                leave_share(squares[r], slots + r * VECTOR_SIMDGROUPS, place.simdgroup, place.lane);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        #pragma clang loop unroll(full)
        for (uint r = 0; r < BATCH_MAX; r++) {
            factors[r] = 0.0f;
            if (r < BATCH) {
                float sum = sum_of_shares(slots + r * VECTOR_SIMDGROUPS, VECTOR_SIMDGROUPS, place.lane);
                factors[r] = precise::rsqrt(sum / float(first.width) + first.eps);
            }
        }
    }

    // What a product with a row is multiplied by.
    float left(uint row) const { return first.deferred ? factors[row] : 1.0f; }

    Float8 expect(uint column) const { return first.expect(column); }
    // `row` is known to the compiler, so that factors stay in registers.
    Float8 at(uint row, bool next, uint column, Float8 expected) const {
        NormedRow one = first;
        one.x = first.x + (row + next) * first.width;
        one.factor = next ? factors[row + 1] : factors[row];
        return one.at(column, expected);
    }
};

// The rows from `first` on.
inline NormedRows normed_rows(NormedRow first) {
    NormedRows rows;
    rows.first = first;
    return rows;
}

// Stages columns `base..end` of rows `from..from + BATCH_ROWS`, as far as there are any, for products with codes of a format. A
// thread has the same columns of every other row: as many threads as twice the vectors of a row.
template <typename Rows>
inline void stage_rows(
    thread Rows& rows, uint from, uint base, uint end, uint format, threadgroup uint4* vectors, Place place) {
    uint piece = place.thread_index % (BATCH_COLUMNS / 8);
    bool next = place.thread_index >= BATCH_COLUMNS / 8;
    uint column = base + 8 * piece;
    bool inside = column < end;
    Float8 expected;
    if (inside) {
        expected = rows.expect(column);
    }
    #pragma clang loop unroll(full)
    for (uint i = 0; i < BATCH_ROWS; i += 2) {
        if (from + i + next < BATCH) {
            threadgroup uint4* row = vectors + (i + next) * BATCH_VECTORS;
#if defined(LILY_MMA)
            if (is_wide(format)) {
                Float8 x;
                x.low = float4(0.0f);
                x.high = float4(0.0f);
                if (inside) {
                    x = rows.at(from + i, next, column, expected);
                }
                put_fixed(row, 8 * piece, x, inside, format);
                continue;
            }
#endif
            if (inside) {
                row[piece + piece / 4] = narrow8(rows.at(from + i, next, column, expected));
            }
        }
    }
}

// Columns of a staged row.
inline Float8 staged_at(threadgroup const uint4* vectors, uint row, uint offset) {
    return widen8(vectors[row * BATCH_VECTORS + offset / 8 + offset / 32]);
}

#if defined(LILY_MMA)
// Adds each pair's share of a requested chunk to its sum, as `add_chunk` does; `sums` holds ROWS sums for every staged row.
template <uint ROWS>
inline void add_chunk_rows(
    thread float* sums, thread const Chunk<ROWS>& chunk, uint format, threadgroup const uint4* vectors, uint from,
    uint offset) {
    #pragma clang loop unroll(full)
    for (uint i = 0; i < BATCH_ROWS; i++) {
        if (from + i < BATCH) {
            FixedRow row;
            row.groups = vectors + i * BATCH_VECTORS;
            row.base = 0;
            add_chunk<ROWS>(sums + i * ROWS, chunk, format, row, offset);
        }
    }
}
#else
// Adds each pair's share of a requested chunk to its sum; `sums` holds ROWS sums for every staged row.
template <uint ROWS>
inline void add_chunk_rows(
    thread float* sums, thread const Chunk<ROWS>& chunk, uint format, threadgroup const uint4* vectors, uint from,
    uint offset) {
    float dots[ROWS * BATCH_ROWS] = {};
    float totals[BATCH_ROWS] = {};
    bool nibbles = bits_of(format) == 4;
    #pragma clang loop unroll(full)
    for (uint part = 0; part < 4; part++) {
        if (nibbles || part < 2) {
            Float8 codes[ROWS];
            #pragma clang loop unroll(full)
            for (uint r = 0; r < ROWS; r++) {
                uint4 words = chunk.words[r];
                codes[r] = nibbles ? offset_nibbles(words[part]) : byte_codes(part == 0 ? words.xy : words.zw);
            }
            #pragma clang loop unroll(full)
            for (uint i = 0; i < BATCH_ROWS; i++) {
                if (from + i < BATCH) {
                    Float8 x = staged_at(vectors, i, offset + 8 * part);
                    float4 both = x.low + x.high;
                    totals[i] += both.x + both.y + both.z + both.w;
                    #pragma clang loop unroll(full)
                    for (uint r = 0; r < ROWS; r++) {
                        dots[i * ROWS + r] += dot8(codes[r], x);
                    }
                }
            }
        }
    }
    float shift = nibbles ? NIBBLE_OFFSET : 0.0f;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < BATCH_ROWS; i++) {
        #pragma clang loop unroll(full)
        for (uint r = 0; r < ROWS; r++) {
            sums[i * ROWS + r] += group_share(chunk.groups[r], dots[i * ROWS + r], shift, totals[i]);
        }
    }
}
#endif

// The same for a format without a wide path: eight columns, read here.
template <uint ROWS>
inline void add_plain_rows(
    thread float* sums, StoredMatrix m, uint first, uint last, threadgroup const uint4* vectors, uint from, uint column,
    uint offset) {
    #pragma clang loop unroll(full)
    for (uint r = 0; r < ROWS; r++) {
        uint row = min(first + r, last);
        Group g = load_group(m, row, column);
        Float8 codes = load_codes8(m.format, row_codes(m, row), column);
        #pragma clang loop unroll(full)
        for (uint i = 0; i < BATCH_ROWS; i++) {
            if (from + i < BATCH) {
                Float8 x = staged_at(vectors, i, offset);
                float4 both = x.low + x.high;
                float total = both.x + both.y + both.z + both.w;
                sums[i * ROWS + r] += group_share(g, dot8(codes, x), 0.0f, total);
            }
        }
    }
}

// A lane's shares of the products of rows `first..first + ROWS` of the matrix with each of BATCH activation rows: `sums[i *
// ROWS + r]` is that of activation row i. Rows of the matrix beyond `last` repeat it. All threads of the threadgroup
// call it with the same matrix; `again` with rows that have begun.
template <uint ROWS, typename Rows>
inline void batch_products(
    thread float* sums, StoredMatrix m, uint first, uint last, thread Rows& rows, bool again,
    threadgroup float4* memory, threadgroup float* slots, Place place) {
    threadgroup uint4* vectors = (threadgroup uint4*)memory;
    uint chunk = chunk_columns(m.format);
    if (!again) {
        wait_for_inputs();
        rows.begin(slots, place);
    }
    for (uint base = 0; base < m.cols; base += BATCH_COLUMNS) {
        uint end = min(base + BATCH_COLUMNS, m.cols);
        Ahead<ROWS, 2> ahead;
        request<ROWS, 2>(ahead, m, first, last, base, end, place.lane);
        #pragma clang loop unroll(full)
        for (uint from = 0; from < BATCH_MAX; from += BATCH_ROWS) {
            if (from < BATCH) {
                threadgroup_barrier(mem_flags::mem_threadgroup);
                stage_rows(rows, from, base, end, m.format, vectors, place);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                if (is_wide(m.format)) {
                    #pragma clang loop unroll(full)
                    for (uint s = 0; s < 2; s++) {
                        uint offset = (s * SIMD_WIDTH + place.lane) * chunk;
                        if (base + offset < end) {
                            add_chunk_rows<ROWS>(sums + from * ROWS, ahead.chunks[s], m.format, vectors, from, offset);
                        }
                    }
                } else {
                    for (uint offset = 8 * place.lane; base + offset < end; offset += 8 * SIMD_WIDTH) {
                        add_plain_rows<ROWS>(sums + from * ROWS, m, first, last, vectors, from, base + offset, offset);
                    }
                }
            }
        }
    }
}
