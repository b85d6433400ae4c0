// Tiles by the matrix units of NVIDIA's GPUs: bf16 operands, fp32 sums, 16x8x16 at a time. Included where the host's headers
// have `ptx`, which wraps the instructions.
//
// Weights are the left operand and never pass through threadgroup memory: a lane dequantises what it multiplies. Rows of
// activations are the right operand; steps of them are copied to threadgroup memory while earlier ones are multiplied.
//
// A step is 64 columns. Of these, lane l takes columns 16 t to 16 t + 15, where t = l % 4: eight bytes of 4-bit codes, and for
// both operands the same ones, in four operations that take four columns each. So an operation's columns are not
// neighbours, but which they are depends on nothing else; a row's sums do not depend on the tile's height.
#pragma once

// Elements from one row of a staged step to the next: 16-byte aligned, and eight rows meet different banks.
#define MMA_STRIDE 72
// Steps in threadgroup memory.
#define MMA_STAGES 3
// Steps of codes that are under way.
#define MMA_AHEAD 2

// A lane's part of a step of two rows of weights, 8 apart, as it is stored.
struct WeightStep {
    uint2 codes[2];
    uint scales[2];
    uint biases[2];
};

// A lane's sixteen weights of a row in bf16, in pairs of neighbours.
struct WeightPairs {
    uint pairs[8];
};

// Whether a format is the one that is dequantised in bf16: 4-bit codes with scales and biases in bf16.
inline bool is_packed(uint format) { return bits_of(format) == 4 && float_type_of(format) == 0; }

// Two values rounded to bf16.
inline uint rounded_pair(float low, float high) { return as_type<uint>(bfloat2(bfloat(low), bfloat(high))); }

// Requests columns `column` to `column + 15` of rows `row` and `last`.
inline void request_weights(thread WeightStep& step, StoredMatrix m, uint row, uint other, uint column) {
    const uint size = group_of(m.format);
#pragma clang loop unroll(full)
    for (int i = 0; i < 2; i++) {
        const uint at = i == 0 ? row : other;
        const ulong group = ulong(at) * (m.cols / size) + column / size;
        step.codes[i] = load_uint2(row_codes(m, at) + column / 2);
        step.scales[i] = ((device const ushort*)m.scales)[group] * 0x10001u;
        step.biases[i] = ((device const ushort*)m.biases)[group] * 0x10001u;
    }
}

// Sixteen requested weights: the code plus 128 is a bf16 whose lower byte is the code, so that 128 is taken off exactly.
inline WeightPairs dequantize_pairs(uint2 codes, uint scale, uint bias) {
    WeightPairs w;
#pragma clang loop unroll(full)
    for (int half_of = 0; half_of < 2; half_of++) {
        const uint word = half_of == 0 ? codes.x : codes.y;
        const uint odd = word >> 4;
#pragma clang loop unroll(full)
        for (uint i = 0; i < 4; i++) {
            // Byte i of the even and of the odd codes, in the lower bytes of both halves.
            const uint both = (ptx::bytes(word, odd, i | i << 4 | (i + 4) << 8 | (i + 4) << 12) & 0x000f000fu) | 0x43004300u;
            w.pairs[4 * half_of + i] = ptx::fma_bf16x2(ptx::fma_bf16x2(both, 0x3f803f80u, 0xc300c300u), scale, bias);
        }
    }
    return w;
}

// Sixteen weights of any format, rounded from fp32. Columns past the end are 0.
inline WeightPairs load_pairs(StoredMatrix m, uint row, uint column) {
    WeightPairs w;
    const bool inside = column < m.cols;
    const uint first = inside ? column : 0;
    const Group group = load_group(m, row, first);
#pragma clang loop unroll(full)
    for (int half_of = 0; half_of < 2; half_of++) {
        const Float8 x = load_codes8(m.format, row_codes(m, row), first + 8 * half_of);
        const float4 low = inside ? group.scale * x.low + group.bias : float4(0.0f);
        const float4 high = inside ? group.scale * x.high + group.bias : float4(0.0f);
        w.pairs[4 * half_of] = rounded_pair(low.x, low.y);
        w.pairs[4 * half_of + 1] = rounded_pair(low.z, low.w);
        w.pairs[4 * half_of + 2] = rounded_pair(high.x, high.y);
        w.pairs[4 * half_of + 3] = rounded_pair(high.z, high.w);
    }
    return w;
}

// Copies of steps of activations. A thread copies the same 16-byte pieces of the same rows in every step.
template <int Rows, int Threads>
struct RowCopies {
    device const uchar* from[Rows * 8 / Threads];
    threadgroup uchar* to;
    uint cols;
    uint piece;

    // Starts the copies of step `step`; columns past the end become 0.
    void start(uint step) thread {
        const uint column = step * 64 + piece * 8;
#pragma clang loop unroll(full)
        for (int i = 0; i < Rows * 8 / Threads; i++) {
            threadgroup uchar* stage = to + (step % MMA_STAGES) * (Rows * MMA_STRIDE * 2) + i * (Threads / 8) * (MMA_STRIDE * 2);
            ptx::copy_16(stage, from[i] + (column < cols ? 2 * column : 0), column < cols);
        }
        ptx::end_copies();
    }
};

// The product of a tile of `Rows` rows and 64 outputs, of which a SIMD-group computes 16 (of four) or 32 (of two).
template <int Rows, int Matrices, int Threads, class Source, class Sink>
inline void multiply_mma(StoredMatrix first, StoredMatrix second, TilePlace place, Source source, Sink sink,
                         threadgroup uint4* memory) {
    constexpr int Parts = 128 / Threads;
    constexpr int Blocks = Rows / 8;
    const uint lane_row = place.lane / 4;
    const uint lane_column = place.lane % 4 * 16;
    const uint own_output = place.simdgroup * 16 * Parts + lane_row;
    const bool packed = is_packed(first.format) && (Matrices == 1 || is_packed(second.format)) && first.cols % 64 == 0;

    RowCopies<Rows, Threads> copies;
    copies.cols = first.cols;
    copies.piece = place.thread_index % 8;
    copies.to = (threadgroup uchar*)memory + place.thread_index / 8 * (MMA_STRIDE * 2) + copies.piece * 16;
#pragma clang loop unroll(full)
    for (int i = 0; i < Rows * 8 / Threads; i++) {
        const uint row = min(place.thread_index / 8 + i * (Threads / 8), place.rows - 1);
        copies.from[i] = (device const uchar*)source.row(row);
    }
    // Rows of weights past the last output repeat it; nobody uses their results.
    uint rows[Parts][2];
#pragma clang loop unroll(full)
    for (int p = 0; p < Parts; p++)
#pragma clang loop unroll(full)
        for (int i = 0; i < 2; i++)
            rows[p][i] = place.matrix_row + min(place.first_output + own_output + 16 * p + 8 * i, place.outputs - 1);

    float sums[Matrices][Parts][Blocks][4];
#pragma clang loop unroll(full)
    for (int m = 0; m < Matrices; m++)
#pragma clang loop unroll(full)
        for (int p = 0; p < Parts; p++)
#pragma clang loop unroll(full)
            for (int b = 0; b < Blocks; b++)
#pragma clang loop unroll(full)
                for (int i = 0; i < 4; i++) sums[m][p][b][i] = 0.0f;

    const uint steps = (first.cols + 63) / 64;
    WeightStep ahead[MMA_AHEAD][Matrices][Parts];
#pragma clang loop unroll(full)
    for (int s = 0; s < MMA_STAGES - 1; s++) copies.start(s);
    if (packed) {
#pragma clang loop unroll(full)
        for (int s = 0; s < MMA_AHEAD; s++)
#pragma clang loop unroll(full)
            for (int p = 0; p < Parts; p++) {
                const uint column = min(s * 64 + lane_column, first.cols - 16);
                request_weights(ahead[s][0][p], first, rows[p][0], rows[p][1], column);
                if (Matrices == 2) request_weights(ahead[s][Matrices - 1][p], second, rows[p][0], rows[p][1], column);
            }
    }
    for (uint step = 0; step < steps; step += MMA_AHEAD) {
#pragma clang loop unroll(full)
        for (int s = 0; s < MMA_AHEAD; s++) {
            if (step + s >= steps) continue;
            const uint column = (step + s) * 64 + lane_column;
            WeightPairs weights[Matrices][Parts][2];
#pragma clang loop unroll(full)
            for (int m = 0; m < Matrices; m++)
#pragma clang loop unroll(full)
                for (int p = 0; p < Parts; p++) {
                    const StoredMatrix matrix = m == 0 ? first : second;
#pragma clang loop unroll(full)
                    for (int i = 0; i < 2; i++) {
                        if (packed) {
                            const thread WeightStep& w = ahead[s][m][p];
                            weights[m][p][i] = dequantize_pairs(w.codes[i], w.scales[i], w.biases[i]);
                        } else {
                            weights[m][p][i] = load_pairs(matrix, rows[p][i], column);
                        }
                    }
                    if (packed) {
                        const uint later = min(column + 64 * MMA_AHEAD, first.cols - 16);
                        request_weights(ahead[s][m][p], matrix, rows[p][0], rows[p][1], later);
                    }
                }
            ptx::wait_copies<MMA_STAGES - 2>();
            threadgroup_barrier(mem_flags::mem_threadgroup);
            copies.start(step + s + MMA_STAGES - 1);
            threadgroup const uchar* staged = (threadgroup const uchar*)memory +
                                              ((step + s) % MMA_STAGES) * (Rows * MMA_STRIDE * 2) +
                                              lane_row * (MMA_STRIDE * 2) + lane_column * 2;
#pragma clang loop unroll(full)
            for (int b = 0; b < Blocks; b++) {
                threadgroup const uint4* at = (threadgroup const uint4*)(staged + b * 8 * (MMA_STRIDE * 2));
                const uint4 x[2] = {at[0], at[1]};
#pragma clang loop unroll(full)
                for (int k = 0; k < 4; k++) {
                    const uint4 words = x[k / 2];
                    const uint low = k % 2 == 0 ? words.x : words.z;
                    const uint high = k % 2 == 0 ? words.y : words.w;
#pragma clang loop unroll(full)
                    for (int m = 0; m < Matrices; m++)
#pragma clang loop unroll(full)
                        for (int p = 0; p < Parts; p++)
                            ptx::multiply_16x8x16(sums[m][p][b], weights[m][p][0].pairs[2 * k],
                                                  weights[m][p][1].pairs[2 * k], weights[m][p][0].pairs[2 * k + 1],
                                                  weights[m][p][1].pairs[2 * k + 1], low, high);
                }
            }
        }
    }
    ptx::wait_copies<0>();

    // Sixteen rows at a time go through threadgroup memory, so that neighbouring threads hand out neighbouring outputs.
    threadgroup float* results = (threadgroup float*)memory;
#pragma clang loop unroll(full)
    for (int pass = 0; pass < Rows / 16; pass++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma clang loop unroll(full)
        for (int m = 0; m < Matrices; m++)
#pragma clang loop unroll(full)
            for (int p = 0; p < Parts; p++)
#pragma clang loop unroll(full)
                for (int b = 0; b < 2; b++)
#pragma clang loop unroll(full)
                    for (int i = 0; i < 4; i++) {
                        const uint row = 8 * b + place.lane % 4 * 2 + i % 2;
                        results[(16 * m + row) * 68 + own_output + 16 * p + i / 2 * 8] = sums[m][p][2 * pass + b][i];
                    }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint output = place.first_output + place.thread_index % 64;
        for (uint r = place.thread_index / 64; r < 16; r += Threads / 64) {
            const uint row = 16 * pass + r;
            const uint at = r * 68 + place.thread_index % 64;
            if (row < place.rows && output < place.outputs)
                sink.put(row, output, results[at], Matrices == 2 ? results[at + 16 * 68] : 0.0f);
        }
    }
}
