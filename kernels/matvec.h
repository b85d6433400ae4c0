// Products of stored rows with one activation row: what a decode step mostly consists of.
//
// A SIMD-group takes a few rows, and its lanes read separate parts of each: 16 bytes of codes a lane, with their scale and
// bias. A group of codes is multiplied as it is, then scale * dot + bias * sum(x) is its share. The threadgroup holds a
// stretch of the activations as fp32 in threadgroup memory; codes are requested before the stretch is staged, so that
// they are under way meanwhile. Codes of other widths than 4 and 8 bits take a plain path.
#pragma once
#include "generated/args.h"
#include "quant.h"

// Chunks of a row that a lane has under way.
#define VECTOR_STEPS 2

// Columns of the activations that are staged at a time; twice as many where a threadgroup has few outputs.
#define STAGED_COLUMNS 2048
// Vectors of threadgroup memory in which so many SIMD-groups of a kernel stage so many columns. After 32 columns come 4 unused
// ones: lanes that read 16 or 32 columns each then meet different banks. A batch of rows fits too (matvec_rows.h). On NVIDIA's
// GPUs the columns follow as fixed-point numbers, and what SIMD-groups copy, so many batches each (matvec_copied.h).
#if defined(LILY_MMA)
#define STAGING(columns, simdgroups, batches) ((columns) / 32 * 15 + (simdgroups) * (batches) * COPIED_VECTORS)
#else
#define STAGING(columns, simdgroups, batches) ((columns) / 32 * 10)
#endif

// A thread's place in its threadgroup.
struct Place {
    uint thread_index;
    uint simdgroup;
    uint simdgroups;
    uint lane;
};

inline Place place(uint thread_index, uint simdgroup, uint simdgroups, uint lane) {
    Place at;
    at.thread_index = thread_index;
    at.simdgroup = simdgroup;
    at.simdgroups = simdgroups;
    at.lane = lane;
    return at;
}

// Sources of activations have `begin`, which every thread calls once before the first `at`, and `at`: eight columns. What
// `at` needs besides inputs is told by `expect` before they are there.

// A row as it stands.
struct PlainRow {
    device const bfloat* x;

    Float8 expect(uint column) const { return Float8(); }
    void begin(threadgroup float* slots, Place place) {}
    void end(threadgroup const float* slots, Place place) {}
    Float8 at(uint column) const { return load_bf16x8(x + column); }
    Float8 at(uint column, Float8 expected) const { return at(column); }
};

// A row after its RMS norm. Expected are gains. With `deferred` the norm's factor is left to whoever has the products, and
// nothing is rounded: neither waits for the sum of squares then.
struct NormedRow {
    device const bfloat* x;
    device const float* gain;
    uint width;
    float eps;
    float factor;
    bool deferred;

    Float8 expect(uint column) const {
        Float8 g;
        g.low = load_float4(gain + column);
        g.high = load_float4(gain + column + 4);
        return g;
    }

    void begin(threadgroup float* slots, Place place) {
        float squares = 0.0f;
        for (uint i = 8 * place.thread_index; i < width; i += 8 * SIMD_WIDTH * place.simdgroups) {
            Float8 v = load_bf16x8(x + i);
            squares += dot8(v, v);
        }
        leave_share(squares, slots, place.simdgroup, place.lane);
        if (!deferred) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            find_factor(slots, place);
        }
    }

    void find_factor(threadgroup const float* slots, Place place) {
        factor = precise::rsqrt(sum_of_shares(slots, place.simdgroups, place.lane) / float(width) + eps);
    }

    // After a barrier.
    void end(threadgroup const float* slots, Place place) {
        if (deferred) {
            find_factor(slots, place);
        }
    }

    // What a product with the row is multiplied by.
    float left() const { return deferred ? factor : 1.0f; }

    Float8 at(uint column, Float8 expected) const {
        Float8 v = load_bf16x8(x + column);
        Float8 y;
        if (deferred) {
            y.low = v.low * expected.low;
            y.high = v.high * expected.high;
        } else {
            y.low = float4(bfloat4(v.low * factor * expected.low));
            y.high = float4(bfloat4(v.high * factor * expected.high));
        }
        return y;
    }
};

inline NormedRow normed_row(device const bfloat* x, device const float* gain, uint width, float eps) {
    NormedRow row;
    row.x = x;
    row.gain = gain;
    row.width = width;
    row.eps = eps;
    row.factor = 0.0f;
    row.deferred = false;
    return row;
}

// Where a staged row has the eight columns that are `offset` behind its first.
inline uint staged_index(uint offset) { return offset / 4 + offset / 32; }

// The staged stretch that starts at column `base`.
struct StagedRow {
    threadgroup const float4* vectors;
    uint base;

    Float8 at(uint column) const {
        uint index = staged_index(column - base);
        Float8 x;
        x.low = vectors[index];
        x.high = vectors[index + 1];
        return x;
    }
};

// Leaves what is expected for columns `0..end` in the places of these columns, for the threads that will stage them.
template <typename Source>
inline void expect_row(Source source, uint end, threadgroup float4* vectors, Place place) {
    for (uint column = 8 * place.thread_index; column < end; column += 8 * SIMD_WIDTH * place.simdgroups) {
        Float8 expected = source.expect(column);
        vectors[staged_index(column)] = expected.low;
        vectors[staged_index(column) + 1] = expected.high;
    }
}

// Stages columns `base..end`; if they are `expected`, with what `expect_row` left there.
template <typename Source>
inline StagedRow stage(Source source, bool expected, uint base, uint end, threadgroup float4* vectors, Place place) {
    for (uint column = base + 8 * place.thread_index; column < end; column += 8 * SIMD_WIDTH * place.simdgroups) {
        uint index = staged_index(column - base);
        Float8 known;
        if (expected) {
            known.low = vectors[index];
            known.high = vectors[index + 1];
        } else {
            known = source.expect(column);
        }
        Float8 x = source.at(column, known);
        vectors[index] = x.low;
        vectors[index + 1] = x.high;
    }
    StagedRow staged;
    staged.vectors = vectors;
    staged.base = base;
    return staged;
}

inline bool is_wide(uint format) { return bits_of(format) == 4 || bits_of(format) == 8; }

// Columns that a lane takes at a time: 16 bytes of codes, all of one group, or eight elements.
inline uint chunk_columns(uint format) { return is_wide(format) ? 128 / bits_of(format) : 8; }

// What a lane has requested of a chunk of columns: 16 bytes of codes of each of its rows.
template <uint ROWS>
struct Chunk {
    uint4 words[ROWS];
    Group groups[ROWS];
};

// Two matrices of one format and width, whose rows are asked for in pairs.
struct StoredPair {
    StoredMatrix first;
    StoredMatrix second;
    uint format;
    uint cols;
};

inline StoredPair stored_pair(StoredMatrix first, StoredMatrix second) {
    StoredPair pair;
    pair.first = first;
    pair.second = second;
    pair.format = first.format;
    pair.cols = first.cols;
    return pair;
}

// The chunk at `column` of rows `first`, `first + step`, ... of the first matrix, then of the same rows of the second.
template <uint ROWS>
inline void request_chunk(thread Chunk<ROWS>& chunk, StoredPair m, uint first, uint step, uint last, uint column) {
    #pragma clang loop unroll(full)
    for (uint r = 0; r < ROWS; r++) {
        uint row = min(first + r % (ROWS / 2) * step, last);
        StoredMatrix one = m.first;
        if (r >= ROWS / 2) {
            one = m.second;
        }
        chunk.words[r] = load_uint4(row_codes(one, row) + column / 8 * bits_of(m.format));
        chunk.groups[r] = load_group(one, row, column);
    }
}

// Requests the chunk at `column` of rows `first`, `first + step`, ..., none beyond `last`.
template <uint ROWS>
inline void request_chunk(
    thread Chunk<ROWS>& chunk, StoredMatrix m, uint first, uint step, uint last, uint column) {
    #pragma clang loop unroll(full)
    for (uint r = 0; r < ROWS; r++) {
        uint row = min(first + r * step, last);
        chunk.words[r] = load_uint4(row_codes(m, row) + column / 8 * bits_of(m.format));
        chunk.groups[r] = load_group(m, row, column);
    }
}

// What a group adds to a product: of its codes, each `offset` too large, and activations the dot product is `dot`; the sum
// of those activations is `total`. Every operation is spelled out, so that all kernels round alike.
inline float group_share(Group group, float dot, float offset, float total) {
    return fma(group.scale, fma(-offset, total, dot), group.bias * total);
}

// Adds each row's share of a requested chunk to its sum.
template <uint ROWS, typename Source>
inline void add_chunk(thread float* sums, thread const Chunk<ROWS>& chunk, uint format, Source source, uint column) {
    float dots[ROWS] = {};
    float total = 0.0f;
    bool nibbles = bits_of(format) == 4;
    #pragma clang loop unroll(full)
    for (uint part = 0; part < 4; part++) {
        if (nibbles || part < 2) {
            Float8 x = source.at(column + 8 * part);
            float4 both = x.low + x.high;
            total += both.x + both.y + both.z + both.w;
            #pragma clang loop unroll(full)
            for (uint r = 0; r < ROWS; r++) {
                uint4 words = chunk.words[r];
                if (nibbles) {
                    dots[r] += dot8(offset_nibbles(words[part]), x);
                } else {
                    dots[r] += dot8(byte_codes(part == 0 ? words.xy : words.zw), x);
                }
            }
        }
    }
    float offset = nibbles ? NIBBLE_OFFSET : 0.0f;
    #pragma clang loop unroll(full)
    for (uint r = 0; r < ROWS; r++) {
        sums[r] += group_share(chunk.groups[r], dots[r], offset, total);
    }
}

// The same for a format without a wide path: eight columns, read here.
template <uint ROWS, typename Source>
inline void add_plain(
    thread float* sums, StoredMatrix m, uint first, uint step, uint last, Source source, uint column) {
    Float8 x = source.at(column);
    float4 both = x.low + x.high;
    float total = both.x + both.y + both.z + both.w;
    #pragma clang loop unroll(full)
    for (uint r = 0; r < ROWS; r++) {
        uint row = min(first + r * step, last);
        Group g = load_group(m, row, column);
        sums[r] += group_share(g, dot8(load_codes8(m.format, row_codes(m, row), column), x), 0.0f, total);
    }
}

template <uint ROWS, typename Source>
inline void add_plain(
    thread float* sums, StoredPair m, uint first, uint step, uint last, Source source, uint column) {
    add_plain<ROWS / 2>(sums, m.first, first, step, last, source, column);
    add_plain<ROWS / 2>(sums + ROWS / 2, m.second, first, step, last, source, column);
}

// Codes of a whole stretch that a lane has under way: STEPS chunks of each of its rows.
template <uint ROWS, uint STEPS>
struct Ahead {
    Chunk<ROWS> chunks[STEPS];
};

template <uint ROWS, uint STEPS, typename Matrix>
inline void request(
    thread Ahead<ROWS, STEPS>& ahead, Matrix m, uint first, uint last, uint from, uint end, uint lane) {
    uint chunk = chunk_columns(m.format);
    if (is_wide(m.format)) {
        #pragma clang loop unroll(full)
        for (uint s = 0; s < STEPS; s++) {
            uint column = from + (s * SIMD_WIDTH + lane) * chunk;
            if (column < end) {
                request_chunk<ROWS>(ahead.chunks[s], m, first, 1, last, column);
            }
        }
    }
}

// Adds a lane's share of the products with the staged columns `from..end`; their first chunks have been requested.
template <uint ROWS, uint STEPS, typename Matrix>
inline void add_stretch(
    thread float* sums, thread Ahead<ROWS, STEPS>& ahead, Matrix m, uint first, uint last, StagedRow staged,
    uint from, uint end, uint lane) {
    uint chunk = chunk_columns(m.format);
    if (is_wide(m.format)) {
        while (from < end) {
            #pragma clang loop unroll(full)
            for (uint s = 0; s < STEPS; s++) {
                uint column = from + (s * SIMD_WIDTH + lane) * chunk;
                if (column < end) {
                    add_chunk<ROWS>(sums, ahead.chunks[s], m.format, staged, column);
                }
            }
            from += STEPS * SIMD_WIDTH * chunk;
            request<ROWS, STEPS>(ahead, m, first, last, from, end, lane);
        }
    } else {
        for (uint column = from + 8 * lane; column < end; column += 8 * SIMD_WIDTH) {
            add_plain<ROWS>(sums, m, first, 1, last, staged, column);
        }
    }
}

// How the lanes of a SIMD-group share the rows of a matrix: `1 << shift` lanes to a row, each with `chunk` columns at a time.
struct Shares {
    uint shift;
    uint chunk;
    uint lane;

    uint span() const { return 1 << shift; }
    // Rows at once.
    uint at_once() const { return SIMD_WIDTH >> shift; }
    uint columns() const { return chunk << shift; }
    // Place in the row, and the row of those at once.
    uint within() const { return lane & (span() - 1); }
    uint row() const { return lane >> shift; }
};

inline Shares shares_of(StoredMatrix m, uint lane) {
    Shares shares;
    shares.shift = 2;
    shares.chunk = chunk_columns(m.format);
    shares.lane = lane;
    while (shares.shift < 5 && shares.columns() < m.cols) {
        shares.shift++;
    }
    return shares;
}

#if defined(LILY_MMA)
#include "matvec_copied.h"
#endif

// Stages columns `base..end` of the `columns` that there is room for, in the form that products with the matrix want.
template <typename Source>
inline void stage_for(
    StoredMatrix m, thread const Source& source, bool expected, uint base, uint end, uint columns,
    threadgroup float4* vectors, Place place) {
#if defined(LILY_MMA)
    if (is_wide(m.format)) {
        stage_fixed(source, expected, base, end, columns, m.format, vectors, place);
        return;
    }
#endif
    stage(source, expected, base, end, vectors, place);
}

// Whether a norm is deferred for products with a format.
inline bool defers(uint format) {
#if defined(LILY_MMA)
    return is_wide(format);
#else
    return false;
#endif
}

// A lane's shares of the products of rows `first..first + ROWS` with the source; rows beyond `last` repeat it. All threads
// of the threadgroup call it with the same matrix. With `again` the staged row of the last call is used if it was whole.
template <uint ROWS, uint STEPS, uint COLUMNS, typename Source>
inline void row_products(
    thread float* sums, StoredMatrix m, uint first, uint last, thread Source& source, bool again,
    threadgroup float4* vectors, threadgroup float* slots, Place place) {
    Ahead<ROWS, STEPS> ahead;
    bool whole = m.cols <= COLUMNS;
    for (uint base = 0; base < m.cols; base += COLUMNS) {
        uint end = min(base + COLUMNS, m.cols);
        bool begins = base == 0 && !again;
        request<ROWS, STEPS>(ahead, m, first, last, base, end, place.lane);
        StagedRow staged;
        staged.vectors = vectors;
        staged.base = base;
        if (!(again && whole)) {
            if (begins) {
                expect_row(source, end, vectors, place);
                wait_for_inputs();
                source.begin(slots, place);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            stage_for(m, source, begins, base, end, COLUMNS, vectors, place);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
#if defined(LILY_MMA)
        if (is_wide(m.format)) {
            FixedRow fixed = fixed_row(vectors, COLUMNS, base);
            add_stretch<ROWS, STEPS>(sums, ahead, m, first, last, fixed, base, end, place.lane);
            continue;
        }
#endif
        add_stretch<ROWS, STEPS>(sums, ahead, m, first, last, staged, base, end, place.lane);
    }
}
