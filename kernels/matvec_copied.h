// Products of codes of 4 or 8 bits by the integer units of NVIDIA's GPUs, where an instruction takes four codes and one byte each
// of four activations. Where a SIMD-group has much to read before it waits for other kernels (or of an expert), it copies
// codes to threadgroup memory, so that registers do not decide how much is under way nor how many threadgroups fit.
//
// Activations are staged as fixed-point numbers of 16 bits. Columns come in groups of 32 with a power of two as their unit, of
// which the largest of a group has 2^13 to 2^14; so numbers are off by at most 2^-14 of it, a 64th of what rounding it to bf16
// costs. Sums of their products with codes are exact. Included by matvec.h.
#pragma once

// Vectors of a group: four with eight columns each, as upper and lower bytes of two sets of four; then its unit and the sums
// of its first half, of its second and of all of it.
#define FIXED_VECTORS 5
// Vectors that a SIMD-group copies at a time: 16 bytes of codes a lane of each of eight chunks, then the scales and the biases.
#define COPIED_WORDS (8 * SIMD_WIDTH)
#define COPIED_VECTORS (COPIED_WORDS + SIMD_WIDTH)

// Where the group is that has the column `offset` behind the first.
inline uint fixed_index(uint offset) { return offset / 32 * FIXED_VECTORS; }

// Four numbers as their upper bytes and their lower ones.
inline uint2 upper_and_lower(float4 fixed) {
    uint first = ptx::bytes(as_type<uint>(fixed.x), as_type<uint>(fixed.y), 0x5140u);
    uint second = ptx::bytes(as_type<uint>(fixed.z), as_type<uint>(fixed.w), 0x5140u);
    return uint2(ptx::bytes(first, second, 0x7632u), ptx::bytes(first, second, 0x5410u));
}

// Leaves eight columns of a group, of which four neighbouring lanes have all; every lane of the SIMD-group calls it, and those
// with `wanted` write. The codes that will be multiplied come as the even ones of eight and the odd ones if they have 4 bits,
// and four by four if they have 8.
inline void put_fixed(threadgroup uint4* groups, uint offset, Float8 x, bool wanted, uint format) {
    float4 both = fmax(fabs(x.low), fabs(x.high));
    float most = fmax(fmax(both.x, both.y), fmax(both.z, both.w));
    float4 sums = x.low + x.high;
    float total = (sums.x + sums.y) + (sums.z + sums.w);
    most = fmax(most, simd_shuffle_xor(most, 1));
    total += simd_shuffle_xor(total, 1);
    most = fmax(most, simd_shuffle_xor(most, 2));
    float other = simd_shuffle_xor(total, 2);
    // Groups that are too small for a unit of their own share the smallest. What is not finite makes the sums so.
    uint exponent = max(as_type<uint>(most) >> 23, 14u);
    float scale = as_type<float>((267 - exponent) << 23);
    // With so much added, the lower half of the bits is the number.
    float4 low = x.low * scale + 12582912.0f;
    float4 high = x.high * scale + 12582912.0f;
    uint2 first;
    uint2 second;
    if (bits_of(format) == 4) {
        first = upper_and_lower(float4(low.x, low.z, high.x, high.z));
        second = upper_and_lower(float4(low.y, low.w, high.y, high.w));
    } else {
        first = upper_and_lower(low);
        second = upper_and_lower(high);
    }
    if (wanted) {
        threadgroup uint4* group = groups + fixed_index(offset);
        group[offset / 8 % 4] = uint4(first, second);
        if (offset % 32 == 0) {
            uint4 sums_of = uint4(0, as_type<uint>(total), as_type<uint>(other), as_type<uint>(total + other));
            sums_of.x = (exponent - 13) << 23;
            group[4] = sums_of;
        }
    }
}

// Columns that `put_fixed` has left, from column `base` on.
struct FixedRow {
    threadgroup const uint4* groups;
    uint base;
};

// Stages columns `base..end`, of up to `columns`, for codes of a format; if they are `expected`, with what `expect_row` left.
template <typename Source>
inline void stage_fixed(
    thread const Source& source, bool expected, uint base, uint end, uint columns, uint format,
    threadgroup float4* vectors, Place place) {
    threadgroup uint4* groups = (threadgroup uint4*)(vectors + columns / 32 * 10);
    // All lanes of a SIMD-group go round as often.
    for (uint first = base + 8 * (place.thread_index - place.lane); first < end;
         first += 8 * SIMD_WIDTH * place.simdgroups) {
        uint column = first + 8 * place.lane;
        Float8 x;
        x.low = float4(0.0f);
        x.high = float4(0.0f);
        if (column < end) {
            uint index = staged_index(column - base);
            Float8 known;
            if (expected) {
                known.low = vectors[index];
                known.high = vectors[index + 1];
            } else {
                known = source.expect(column);
            }
            x = source.at(column, known);
        }
        put_fixed(groups, column - base, x, column < end, format);
    }
}

// What is staged of columns from `base` on, where there is room for so many.
inline FixedRow fixed_row(threadgroup float4* vectors, uint columns, uint base) {
    FixedRow staged;
    staged.groups = (threadgroup const uint4*)(vectors + columns / 32 * 10);
    staged.base = base;
    return staged;
}

// Stages columns `base..end`, which one SIMD-group reads afterwards, in memory of its own.
inline FixedRow stage_short(PlainRow source, uint base, uint end, uint format, threadgroup uint4* groups, uint lane) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint first = base; first < end; first += 8 * SIMD_WIDTH) {
        uint column = first + 8 * lane;
        Float8 x;
        x.low = float4(0.0f);
        x.high = float4(0.0f);
        if (column < end) {
            x = source.at(column);
        }
        put_fixed(groups, column - base, x, column < end, format);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    FixedRow staged;
    staged.groups = groups;
    staged.base = base;
    return staged;
}

// Eight codes of a chunk as bytes: the even ones and the odd ones of a word, or the words' own.
inline uint2 codes_of(uint4 words, uint part, bool nibbles) {
    if (nibbles) {
        // Chosen like this, so that no compiler makes a choice of addresses of it.
        uint word = part == 0 ? words.x : part == 1 ? words.y : part == 2 ? words.z : words.w;
        return uint2(word & 0x0f0f0f0fu, word >> 4 & 0x0f0f0f0fu);
    }
    return part == 0 ? words.xy : words.zw;
}

// Adds each row's share of a chunk to its sum.
template <uint ROWS>
inline void add_chunk(
    thread float* sums, thread const Chunk<ROWS>& chunk, uint format, FixedRow source, uint column) {
    threadgroup const uint4* group = source.groups + fixed_index(column - source.base);
    int upper[ROWS] = {};
    int lower[ROWS] = {};
    bool nibbles = bits_of(format) == 4;
    uint half_of = nibbles ? 0 : column / 16 % 2;
    #pragma clang loop unroll(full)
    for (uint part = 0; part < 4; part++) {
        if (nibbles || part < 2) {
            uint4 x = group[2 * half_of + part];
            #pragma clang loop unroll(full)
            for (uint r = 0; r < ROWS; r++) {
                uint2 codes = codes_of(chunk.words[r], part, nibbles);
                upper[r] = ptx::dot_signed(codes.x, x.x, upper[r]);
                lower[r] = ptx::dot_unsigned(codes.x, x.y, lower[r]);
                upper[r] = ptx::dot_signed(codes.y, x.z, upper[r]);
                lower[r] = ptx::dot_unsigned(codes.y, x.w, lower[r]);
            }
        }
    }
    uint4 known = group[4];
    uint of_half = half_of == 0 ? known.y : known.z;
    float total = as_type<float>(nibbles ? known.w : of_half);
    float unit = as_type<float>(known.x);
    #pragma clang loop unroll(full)
    for (uint r = 0; r < ROWS; r++) {
        float dot = float(upper[r] * 256 + lower[r]) * unit;
        sums[r] += group_share(chunk.groups[r], dot, 0.0f, total);
    }
}

// What `add_stretch` does, of a format with codes of 4 or 8 bits.
template <uint ROWS, uint STEPS>
inline void add_stretch(
    thread float* sums, thread Ahead<ROWS, STEPS>& ahead, StoredMatrix m, uint first, uint last, FixedRow staged,
    uint from, uint end, uint lane) {
    uint chunk = chunk_columns(m.format);
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
}

// A row that a matrix, or a pair of matrices, has under a number; the pair has half of the numbers each.
struct RowOf {
    StoredMatrix m;
    uint row;
};

template <uint ROWS>
inline RowOf row_of(StoredMatrix m, uint first, uint r, uint last) {
    RowOf one;
    one.m = m;
    one.row = min(first + r, last);
    return one;
}

template <uint ROWS>
inline RowOf row_of(StoredPair pair, uint first, uint r, uint last) {
    RowOf one;
    one.m = pair.first;
    if (r >= ROWS / 2) {
        one.m = pair.second;
    }
    one.row = min(first + r % (ROWS / 2), last);
    return one;
}

// Adds the share of row `r`, of which only the codes were copied.
template <uint ROWS>
inline void add_one(
    thread float* sums, uint r, uint4 words, RowOf one, uint format, FixedRow staged, uint column) {
    Chunk<1> codes;
    codes.words[0] = words;
    codes.groups[0] = load_group(one.m, one.row, column);
    float share[1] = {};
    add_chunk<1>(share, codes, format, staged, column);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < ROWS; i++) {
        sums[i] += i == r ? share[0] : 0.0f;
    }
}

// Chunks of a row that a lane copies, and columns of a SIMD-group's copies.
template <uint ROWS>
struct Copies {
    static uint steps() { return ROWS == 1 ? 4 : 8 / ROWS; }
    static uint columns(uint format) { return steps() * SIMD_WIDTH * chunk_columns(format); }
    // Vectors of a row's scales that there is room for.
    static uint parts() { return SIMD_WIDTH / 2 / ROWS; }
};

// Whether a SIMD-group can copy scales and biases: they are as short as its place for them, and whole vectors.
template <uint ROWS, typename Matrix>
inline bool copies_groups(Matrix m) {
    uint shift = group_shift(m.format);
    return float_bytes_of(m.format) == 2 && Copies<ROWS>::columns(m.format) >> shift <= 8 * Copies<ROWS>::parts()
        && (m.cols >> shift) % 8 == 0;
}

// Starts the copies of rows `first` to `first + ROWS - 1`, none beyond `last`, from column `from` on, as one batch.
template <uint ROWS, typename Matrix>
inline void copy_rows(Matrix m, uint first, uint last, uint from, uint end, threadgroup uint4* copied, uint lane) {
    uint chunk = chunk_columns(m.format);
    #pragma clang loop unroll(full)
    for (uint s = 0; s < Copies<ROWS>::steps(); s++) {
        uint column = from + (s * SIMD_WIDTH + lane) * chunk;
        if (column < end) {
            #pragma clang loop unroll(full)
            for (uint r = 0; r < ROWS; r++) {
                RowOf one = row_of<ROWS>(m, first, r, last);
                device const uchar* codes = row_codes(one.m, one.row) + column / 8 * bits_of(m.format);
                ptx::copy_16(copied + (s * ROWS + r) * SIMD_WIDTH + lane, codes, true);
            }
        }
    }
    if (copies_groups<ROWS>(m)) {
        // A lane copies eight scales or eight biases of one row.
        uint shift = group_shift(m.format);
        uint parts = Copies<ROWS>::parts();
        RowOf one = row_of<ROWS>(m, first, lane / parts % ROWS, last);
        uint group = (from >> shift) + 8 * (lane % parts);
        if (group < end >> shift && 8 * (lane % parts) < Copies<ROWS>::columns(m.format) >> shift) {
            device const uchar* values = lane < SIMD_WIDTH / 2 ? one.m.scales : one.m.biases;
            ulong index = ulong(one.row) * (m.cols >> shift) + group;
            ptx::copy_16(copied + COPIED_WORDS + lane, values + 2 * index, true);
        }
    }
    ptx::end_copies();
}

// What is stored as bf16 or half.
inline float short_float(uint type, ushort bits) {
    return type == 0 ? as_type<float>(uint(bits) << 16) : float(as_type<half>(bits));
}

// Adds a lane's share of their products with the staged row, when all but the last UNDER_WAY batches have come.
template <uint ROWS, int UNDER_WAY, typename Matrix>
inline void add_copied(
    thread float* sums, Matrix m, uint first, uint last, uint from, uint end, threadgroup const uint4* copied,
    FixedRow staged, uint lane) {
    ptx::wait_copies<UNDER_WAY>();
    simdgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup const uint4* words = copied + lane;
    uint chunk = chunk_columns(m.format);
    uint column = from + lane * chunk;
    if (copies_groups<ROWS>(m)) {
        threadgroup const ushort* scales = (threadgroup const ushort*)(copied + COPIED_WORDS);
        uint type = float_type_of(m.format);
        #pragma clang loop unroll(full)
        for (uint s = 0; s < Copies<ROWS>::steps(); s++) {
            if (column < end) {
                uint group = (column - from) >> group_shift(m.format);
                Chunk<ROWS> codes;
                #pragma clang loop unroll(full)
                for (uint r = 0; r < ROWS; r++) {
                    threadgroup const ushort* scale = scales + r * 8 * Copies<ROWS>::parts() + group;
                    codes.words[r] = words[r * SIMD_WIDTH];
                    codes.groups[r].scale = short_float(type, scale[0]);
                    codes.groups[r].bias = short_float(type, scale[SIMD_WIDTH / 2 * 8]);
                }
                add_chunk<ROWS>(sums, codes, m.format, staged, column);
            }
            column += SIMD_WIDTH * chunk;
            words += ROWS * SIMD_WIDTH;
        }
        return;
    }
    // Row by row, so that this decides no registers.
    #pragma clang loop unroll(disable)
    for (uint i = 0; i < Copies<ROWS>::steps() * ROWS && column + i / ROWS * SIMD_WIDTH * chunk < end; i++) {
        RowOf one = row_of<ROWS>(m, first, i % ROWS, last);
        uint at = column + i / ROWS * SIMD_WIDTH * chunk;
        add_one<ROWS>(sums, i % ROWS, words[i * SIMD_WIDTH], one, m.format, staged, at);
    }
}

// Copies and adds the products with the staged columns `base..end`. The first copies are under way if they are `begun`.
template <uint ROWS, typename Matrix>
inline void add_stretch_copied(
    thread float* sums, Matrix m, uint first, uint last, bool begun, uint base, uint end, threadgroup uint4* copied,
    FixedRow staged, uint lane) {
    #pragma clang loop unroll(disable)
    for (uint from = base; from < end; from += Copies<ROWS>::columns(m.format)) {
        if (from > base || !begun) {
            simdgroup_barrier(mem_flags::mem_threadgroup);
            copy_rows<ROWS>(m, first, last, from, end, copied, lane);
        }
        add_copied<ROWS, 0>(sums, m, first, last, from, end, copied, staged, lane);
    }
}

// A SIMD-group's place for what it copies, where so many columns are staged.
inline threadgroup uint4* copies_of(threadgroup float4* vectors, uint columns, uint simdgroup) {
    return (threadgroup uint4*)(vectors + columns / 32 * 15) + simdgroup * COPIED_VECTORS;
}

// Adds the products of rows of any format with columns `base..end`, which are staged for it.
template <uint ROWS>
inline void add_rows(
    thread float* sums, StoredMatrix m, uint first, uint last, uint base, uint end, threadgroup float4* vectors, Place place) {
    if (is_wide(m.format)) {
        FixedRow staged = fixed_row(vectors, STAGED_COLUMNS, base);
        threadgroup uint4* own = copies_of(vectors, STAGED_COLUMNS, place.simdgroup);
        add_stretch_copied<ROWS>(sums, m, first, last, false, base, end, own, staged, place.lane);
        return;
    }
    StagedRow staged;
    staged.vectors = vectors;
    staged.base = base;
    for (uint column = base + 8 * place.lane; column < end; column += 8 * SIMD_WIDTH) {
        add_plain<ROWS>(sums, m, first, 1, last, staged, column);
    }
}

// What `row_products` does, of a format with codes of 4 or 8 bits.
template <uint ROWS, uint COLUMNS, typename Source>
inline void copied_products(
    thread float* sums, StoredMatrix m, uint first, uint last, thread Source& source, bool again,
    threadgroup float4* vectors, threadgroup float* slots, Place place) {
    threadgroup uint4* own = copies_of(vectors, COLUMNS, place.simdgroup);
    bool whole = m.cols <= COLUMNS;
    #pragma clang loop unroll(disable)
    for (uint base = 0; base < m.cols; base += COLUMNS) {
        uint end = min(base + COLUMNS, m.cols);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        copy_rows<ROWS>(m, first, last, base, end, own, place.lane);
        if (!(again && whole)) {
            bool begins = base == 0 && !again;
            if (begins) {
                expect_row(source, end, vectors, place);
                wait_for_inputs();
                source.begin(slots, place);
            } else {
                threadgroup_barrier(mem_flags::mem_threadgroup);
            }
            stage_fixed(source, begins, base, end, COLUMNS, m.format, vectors, place);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (begins) {
                source.end(slots, place);
            }
        }
        FixedRow staged = fixed_row(vectors, COLUMNS, base);
        add_stretch_copied<ROWS>(sums, m, first, last, true, base, end, own, staged, place.lane);
    }
}
