// Tiles by the matrix units of NVIDIA's Hopper GPUs: bf16 operands, fp32 sums, 64 outputs by up to 128 rows by 16 columns at a
// time, which four SIMD-groups together ask for. Included where the host's headers have `ptx`, which wraps the instructions.
//
// Weights are the left operand and never pass through threadgroup memory: a lane dequantises what it multiplies, while the
// products of the step before are under way. Rows of activations are the right operand; steps of 64 columns of them are copied
// to threadgroup memory while earlier ones are multiplied.
//
// A tile of 128 rows has eight SIMD-groups and twice the outputs of a lower one, or as many where it computes two products.
// Tiles multiply with as many rows as they need, in steps of 16 to 32. Each operation takes 16 neighbouring columns, so that a
// row's sums do not depend on any of this.
#pragma once

// Steps of codes that are under way.
#define MMA_AHEAD 2

// A lane's part of a step of two rows of weights, 8 apart, as it is stored.
struct WeightStep {
    uint2 codes[2];
    uint scales[2];
    uint biases[2];
};

// Whether a format is the one that is dequantised in bf16: 4-bit codes with scales and biases in bf16 for at least a step.
inline bool is_packed(uint format) { return bits_of(format) == 4 && float_type_of(format) == 0 && group_of(format) >= 64; }

// Requests columns `column` to `column + 15` of rows `row` and `other`.
inline void request_weights(thread WeightStep& step, StoredMatrix m, uint row, uint other, uint column) {
    // A shift, because the driver's compiler knows the format, but does not turn a division into one.
    const uint shift = 31 - clz(group_of(m.format));
#pragma clang loop unroll(full)
    for (int i = 0; i < 2; i++) {
        const uint at = i == 0 ? row : other;
        const ulong group = ulong(at) * (m.cols >> shift) + (column >> shift);
        step.codes[i] = load_uint2(row_codes(m, at) + column / 2);
        step.scales[i] = ((device const ushort*)m.scales)[group];
        step.biases[i] = ((device const ushort*)m.biases)[group];
    }
}

// Byte t of the words of the four lanes that share lane / 4, where t is the own lane's number among them.
inline uint bytes_across(uint word, uint lane) {
    const uint beside = simd_shuffle_xor(word, ushort(1));
    const uint pairs = ptx::bytes(word, beside, lane % 2 == 0 ? 0x6240 : 0x3715);
    const uint across = simd_shuffle_xor(pairs, ushort(2));
    return ptx::bytes(pairs, across, lane % 4 < 2 ? 0x5410 : 0x3276);
}

// What a lane has of a step's left operands: of operation k two rows in columns 16 k + 2 t and the next, then in columns 8
// further.
struct LeftOperands {
    uint words[4][4];
};

// The weights of a step. A code plus 128 is a bf16 whose lower byte is the code, so that 128 is taken off exactly.
inline void dequantize_step(thread LeftOperands& to, thread const WeightStep& step, uint lane) {
#pragma clang loop unroll(full)
    for (int i = 0; i < 2; i++) {
        const uint scale = step.scales[i] * 0x10001u;
        const uint bias = step.biases[i] * 0x10001u;
#pragma clang loop unroll(full)
        for (int part = 0; part < 2; part++) {
            const uint word = bytes_across(part == 0 ? step.codes[i].x : step.codes[i].y, lane);
            const uint odd = word >> 4;
#pragma clang loop unroll(full)
            for (uint k = 0; k < 4; k++) {
                // Byte k of the even and of the odd codes, in the lower bytes of both halves.
                const uint both = ptx::bytes(word, odd, k | k << 4 | (k + 4) << 8 | (k + 4) << 12);
                const uint offset = ptx::and_or(both, 0x000f000fu, 0x43004300u);
                to.words[k][2 * part + i] = ptx::fma_bf16x2(ptx::fma_bf16x2(offset, 0x3f803f80u, 0xc300c300u), scale, bias);
            }
        }
    }
}

// Two neighbouring weights of any format, rounded from fp32; `column` is even. Columns past the end are 0.
inline uint load_pair(StoredMatrix m, uint row, uint column) {
    if (column >= m.cols) return 0;
    const Float8 x = dequantize8(m, row, column & ~7u);
    const float4 four = column & 4u ? x.high : x.low;
    const float2 two = column & 2u ? four.zw : four.xy;
    return as_type<uint>(bfloat2(two));
}

// The same of a step, of plain bf16 and of all else; the lane's first column is 2 t.
inline void load_step(thread LeftOperands& to, StoredMatrix m, uint row, uint other, uint column) {
    if (bits_of(m.format) == 0 && float_type_of(m.format) == 0) {
#pragma clang loop unroll(full)
        for (uint i = 0; i < 16; i++) {
            const uint at = column + i / 4 * 16 + i / 2 % 2 * 8;
            to.words[i / 4][i % 4] = at < m.cols ? load_uint(row_codes(m, i % 2 == 0 ? row : other) + 2 * at) : 0;
        }
        return;
    }
    // One piece of code for all sixteen: formats are many, and their paths long.
#pragma clang loop unroll(disable)
    for (uint n = 0; n < 16; n++) {
        const uint pair = load_pair(m, n % 2 == 0 ? row : other, column + n / 4 * 16 + n / 2 % 2 * 8);
#pragma clang loop unroll(full)
        for (uint i = 0; i < 16; i++) to.words[i / 4][i % 4] = i == n ? pair : to.words[i / 4][i % 4];
    }
}

// Copies of steps of activations. A thread copies the same 16-byte pieces of the same rows in every step.
template <int Rows, int Threads, int Stages>
struct RowCopies {
    device const uchar* from[Rows * 8 / Threads];
    threadgroup uchar* to;
    uint cols;
    uint piece;

    // The copies of these rows into stages from `memory` on.
    template <class Source>
    void prepare(Source source, TilePlace place, uint columns, threadgroup uchar* memory) thread {
        cols = columns;
        piece = place.thread_index % 8;
        const uint first = place.thread_index / 8;
        to = memory + first * 128 + ((piece ^ (first & 7)) << 4);
#pragma clang loop unroll(full)
        for (int i = 0; i < Rows * 8 / Threads; i++)
            // Rows past the last repeat it; nobody uses their results.
            from[i] = (device const uchar*)source.row(min(first + i * (Threads / 8), place.rows - 1));
    }

    // Starts the copies of step `step`; columns past the end become 0.
    void start(uint step) thread {
        const uint column = step * 64 + piece * 8;
        threadgroup uchar* stage = to + (step % Stages) * (Rows * 128);
#pragma clang loop unroll(full)
        for (int i = 0; i < Rows * 8 / Threads; i++)
            ptx::copy_16(stage + i * (Threads * 16), from[i] + (column < cols ? 2 * column : 0), column < cols);
        ptx::end_copies();
    }
};

// The weights of four SIMD-groups: 64 of a matrix's rows, of which a lane has two.
struct WeightRows {
    StoredMatrix m;
    uint row;
    uint other;
};

// A tile's product. `Rows` is what it is multiplied with, of which `place.rows` exist. Every four SIMD-groups have `Strips` times
// 64 weights; strips take the matrices by turns.
template <int Rows, int Groups, int Strips, int Matrices>
struct WideTile {
    static constexpr constant int Threads = 128 * Groups;
    // Of every matrix.
    static constexpr constant int Outputs = 64 * Groups * Strips / Matrices;
    static constexpr constant int Stages = 4;

    float sums[Strips][Rows / 2];
    WeightRows weights[Strips];
    WeightStep ahead[MMA_AHEAD][Strips];
    RowCopies<Rows, Threads, Stages> copies;
    TilePlace place;

    int strip_index(int s) const thread { return int(place.simdgroup / 4) + Groups * s; }
    // A lane's first output among the tile's.
    uint own_output(int s) const thread {
        return strip_index(s) / Matrices * 64 + place.simdgroup % 4 * 16 + place.lane / 4;
    }

    void begin(StoredMatrix first, StoredMatrix second) thread {
#pragma clang loop unroll(full)
        for (int s = 0; s < Strips; s++) {
            // Weights past the last output repeat it; nobody uses their results.
            const uint output = place.first_output + own_output(s);
            weights[s].m = strip_index(s) % Matrices == 0 ? first : second;
            weights[s].row = place.matrix_row + min(output, place.outputs - 1);
            weights[s].other = place.matrix_row + min(output + 8, place.outputs - 1);
#pragma clang loop unroll(full)
            for (int i = 0; i < Rows / 2; i++) sums[s][i] = 0.0f;
        }
    }

    void request(thread WeightStep& to, int s, uint step) thread {
        const thread WeightRows& w = weights[s];
        request_weights(to, w.m, w.row, w.other, min(step * 64 + place.lane % 4 * 16, w.m.cols - 16));
    }

    // The left operands of a step; requests those of a later one.
    template <bool Packed>
    void take(thread LeftOperands& to, int s, thread WeightStep& held, uint step) thread {
        if (Packed) {
            dequantize_step(to, held, place.lane);
            request(held, s, step + MMA_AHEAD);
            return;
        }
        const thread WeightRows& w = weights[s];
        load_step(to, w.m, w.row, w.other, step * 64 + place.lane % 4 * 2);
    }

    template <bool Packed>
    void multiply(threadgroup uchar* memory) thread {
        // Columns past the end are 0, so that a last step may have none.
        const uint steps = (copies.cols + 63) / 64;
#pragma clang loop unroll(full)
        for (int s = 0; s < Stages - 2; s++) copies.start(s);
        if (Packed) {
#pragma clang loop unroll(full)
            for (int a = 0; a < MMA_AHEAD; a++)
#pragma clang loop unroll(full)
                for (int s = 0; s < Strips; s++) request(ahead[a][s], s, a);
        }
        LeftOperands left[2];
        for (uint step = 0; step < steps; step += MMA_AHEAD) {
#pragma clang loop unroll(full)
            for (int a = 0; a < MMA_AHEAD; a++) {
                const ulong right = ptx::swizzled_rows(memory + ((step + a) % Stages) * (Rows * 128));
#pragma clang loop unroll(full)
                for (int s = 0; s < Strips; s++) {
                    thread LeftOperands& own = left[(a * Strips + s) % 2];
                    take<Packed>(own, s, ahead[a][s], step + a);
                    if (s == 0) {
                        // What the stage two steps back holds has been multiplied by all when all are here.
                        ptx::wait_copies<Stages - 3>();
                        ptx::share_with_products();
                        threadgroup_barrier(mem_flags::mem_threadgroup);
                        copies.start(step + a + Stages - 2);
                    }
                    ptx::begin_products();
#pragma clang loop unroll(full)
                    for (int k = 0; k < 4; k++)
                        ptx::Products<Rows>::add(sums[s], own.words[k], right + k * PTX_NEXT_16_COLUMNS);
                    ptx::end_products();
                    ptx::wait_products<1>();
                }
            }
        }
        ptx::wait_products<0>();
#pragma clang loop unroll(full)
        for (int s = 0; s < Strips; s++) ptx::settle(sums[s]);
        ptx::wait_copies<0>();
    }

    // Some rows at a time go through threadgroup memory, so that neighbouring threads hand out neighbouring outputs.
    template <class Sink>
    void put(Sink sink, threadgroup float* results) const thread {
        constexpr int Pass = Rows > 32 ? 32 : Rows;
        constexpr int Stride = Outputs + 4;
#pragma clang loop unroll(full)
        for (int pass = 0; pass < Rows / Pass; pass++) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma clang loop unroll(full)
            for (int s = 0; s < Strips; s++) {
                threadgroup float* to = results + strip_index(s) % Matrices * (Pass * Stride) + own_output(s);
#pragma clang loop unroll(full)
                for (int b = 0; b < Pass / 8; b++)
#pragma clang loop unroll(full)
                    for (int i = 0; i < 4; i++)
                        to[(8 * b + int(place.lane % 4) * 2 + i % 2) * Stride + i / 2 * 8] = sums[s][(Pass / 8 * pass + b) * 4 + i];
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            const uint own = place.thread_index % Outputs;
            const uint output = place.first_output + own;
            if (output >= place.outputs) continue;
            for (uint r = place.thread_index / Outputs; r < Pass && pass * Pass + r < place.rows; r += Threads / Outputs)
                sink.put(pass * Pass + r, output, results[r * Stride + own],
                         Matrices == 2 ? results[(Pass + r) * Stride + own] : 0.0f);
        }
    }
};

// All threads of the threadgroup call it.
template <int Rows, int Groups, int Strips, int Matrices, class Source, class Sink>
inline void multiply_wide(StoredMatrix first, StoredMatrix second, TilePlace place, Source source, Sink sink,
                          threadgroup uint4* memory) {
    WideTile<Rows, Groups, Strips, Matrices> tile;
    tile.place = place;
    // Stages begin where the swizzle of their rows does.
    threadgroup uchar* stages = (threadgroup uchar*)memory + (1024u - (uint(ulong(memory)) & 1023u)) % 1024u;
    tile.copies.prepare(source, place, first.cols, stages);
    tile.begin(first, second);
    if (is_packed(first.format) && (Matrices == 1 || is_packed(second.format)))
        tile.template multiply<true>(stages);
    else
        tile.template multiply<false>(stages);
    tile.put(sink, (threadgroup float*)memory);
}
