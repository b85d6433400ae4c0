// Router logits by the matrix units of NVIDIA's GPUs, as exact as by fp32. Included where the host's headers have `ptx`.
//
// An element of a stored matrix is `scale * code + bias`, and codes of up to 8 bits, less half of their range, are bf16
// numbers, as activations are. So their products are exact, and the scale comes after the sum over a group's columns:
// `scale * sum(code * x) + bias * sum(x)`, in fp32. Matrix units add the few products of a group; what is added up over
// groups is fp32 as it is elsewhere.
//
// Weights are the left operand and activations the right one, both straight from device memory: of a step's columns, lane
// l takes a run of neighbours, the run l % 4 of four, the same ones of both. Which columns an operation takes depends on
// nothing else, and SIMD-groups add fixed parts of a row, so that a row's sums do not depend on the chunk.
#pragma once
#include "quant.h"

// Rows and outputs of a threadgroup.
#define ROUTER_TILE_ROWS 32
#define ROUTER_TILE_OUTPUTS 64
// Parts of a row's columns. Two SIMD-groups share one, each with half of the outputs.
#define ROUTER_PARTS 4
// Floats from one row of results to the next: the rows that a SIMD-group stores at once meet different banks.
#define ROUTER_STRIDE 68

// Whether a format's codes are bf16 numbers.
inline bool has_exact_codes(uint format) { return bits_of(format) != 0 || float_type_of(format) == 0; }

// Columns of a step: no more than share a scale.
inline uint router_span(uint format) { return bits_of(format) != 0 && group_of(format) >= 64 ? 64 : 32; }

// What is taken off codes, so that they lie around 0 and their sums stay small.
inline float code_centre(uint format) { return bits_of(format) == 0 ? 0.0f : float(1u << (bits_of(format) - 1)); }

// Two pairs of centred codes from a word of four 8-bit codes. With its highest bit taken away, a code in the lower byte
// of 0x4300 is that number plus 128 in bf16; 128 goes off again, and 128 more where that bit was not set.
inline void centre_bytes(uint word, thread uint* pairs) {
#pragma clang loop unroll(full)
    for (int i = 0; i < 2; i++) {
        const uint codes = ptx::bytes(word, 0, i == 0 ? 0x4140u : 0x4342u);
        const uint raised = (codes & 0x007f007fu) | 0x43004300u;
        const uint taken = (codes & 0x00800080u) ^ 0xc380c380u;
        pairs[i] = ptx::fma_bf16x2(raised, 0x3f803f80u, taken);
    }
}

// A lane's part of a step as it is stored: activations of four blocks of eight rows, and 8-bit codes of two blocks of 16
// outputs.
template <int Span>
struct RouterInputs {
    uint4 x[4][Span / 32];
    uint codes[4][Span / 16];
};

// What a lane reads: rows of activations, one of each block, and outputs, two of each. Rows lie at so many elements from the
// first; that takes half of the registers that pointers would.
struct RouterPlace {
    device const bfloat* x;
    uint rows[4];
    uint outputs[4];
};

// Where the scale and the bias of an output's columns from `column` on are.
inline Group router_group(StoredMatrix m, uint output, uint column) {
    Group g;
    g.scale = 1.0f;
    g.bias = 0.0f;
    if (bits_of(m.format) == 0) return g;
    const uint size = group_of(m.format);
    const uint index = output * (m.cols / size) + column / size;
    g.scale = stored_float(float_type_of(m.format), m.scales, index);
    g.bias = stored_float(float_type_of(m.format), m.biases, index);
    return g;
}

template <int Span>
inline void request_router(thread RouterInputs<Span>& in, StoredMatrix m, thread const RouterPlace& at, uint column) {
#pragma clang loop unroll(full)
    for (int i = 0; i < 4; i++) {
#pragma clang loop unroll(full)
        for (int j = 0; j < Span / 32; j++) in.x[i][j] = load_uint4((device const uchar*)(at.x + at.rows[i] + column + 8 * j));
        if (bits_of(m.format) != 8) continue;
        device const uchar* codes = m.codes + (at.outputs[i] * m.cols + column);
        if (Span == 64) {
            const uint4 words = load_uint4(codes);
            in.codes[i][0] = words.x;
            in.codes[i][1] = words.y;
            in.codes[i][Span / 16 - 2] = words.z;
            in.codes[i][Span / 16 - 1] = words.w;
        } else {
            const uint2 words = load_uint2(codes);
            in.codes[i][0] = words.x;
            in.codes[i][1] = words.y;
        }
    }
}

// Pairs of a lane's centred codes of one output.
template <int Span>
inline void router_codes_of(thread uint (&pairs)[Span / 8], thread const RouterInputs<Span>& in, int i, StoredMatrix m,
                            uint output, uint column) {
    if (bits_of(m.format) == 8) {
#pragma clang loop unroll(full)
        for (int j = 0; j < Span / 16; j++) centre_bytes(in.codes[i][j], pairs + 2 * j);
        return;
    }
    const float centre = code_centre(m.format);
#pragma clang loop unroll(full)
    for (int j = 0; j < Span / 32; j++) {
        const Float8 codes = load_codes8(m.format, row_codes(m, output), column + 8 * j);
        const float4 low = codes.low - centre;
        const float4 high = codes.high - centre;
        pairs[4 * j] = bf16_pair(low.x, low.y);
        pairs[4 * j + 1] = bf16_pair(low.z, low.w);
        pairs[4 * j + 2] = bf16_pair(high.x, high.y);
        pairs[4 * j + 3] = bf16_pair(high.z, high.w);
    }
}

inline uint word_of_four(uint4 words, int i) { return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w; }

// Adds a step to the sums of 32 rows (blocks of 8) and 32 outputs (blocks of 16) of a SIMD-group.
template <int Span>
inline void add_router_step(thread float (&sums)[2][4][4], thread const RouterInputs<Span>& in, StoredMatrix m,
                            thread const RouterPlace& at, uint step_column, uint column) {
    float of_x[4][4];
#pragma clang loop unroll(full)
    for (int n = 0; n < 4; n++) {
#pragma clang loop unroll(full)
        for (int i = 0; i < 4; i++) of_x[n][i] = 0.0f;
#pragma clang loop unroll(full)
        for (int k = 0; k < Span / 16; k++)
            ptx::multiply_16x8x16(of_x[n], 0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u,
                                  word_of_four(in.x[n][k / 2], k % 2 * 2), word_of_four(in.x[n][k / 2], k % 2 * 2 + 1));
    }
#pragma clang loop unroll(full)
    for (int b = 0; b < 2; b++) {
        uint codes[2][Span / 8];
        float scales[2];
        float biases[2];
#pragma clang loop unroll(full)
        for (int i = 0; i < 2; i++) {
            router_codes_of<Span>(codes[i], in, 2 * b + i, m, at.outputs[2 * b + i], column);
            const Group group = router_group(m, at.outputs[2 * b + i], step_column);
            scales[i] = group.scale;
            biases[i] = fma(code_centre(m.format), group.scale, group.bias);
        }
#pragma clang loop unroll(full)
        for (int n = 0; n < 4; n++) {
            float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma clang loop unroll(full)
            for (int k = 0; k < Span / 16; k++)
                ptx::multiply_16x8x16(part, codes[0][2 * k], codes[1][2 * k], codes[0][2 * k + 1], codes[1][2 * k + 1],
                                      word_of_four(in.x[n][k / 2], k % 2 * 2),
                                      word_of_four(in.x[n][k / 2], k % 2 * 2 + 1));
#pragma clang loop unroll(full)
            for (int i = 0; i < 4; i++)
                sums[b][n][i] = fma(scales[i / 2], part[i], fma(biases[i / 2], of_x[n][i % 2], sums[b][n][i]));
        }
    }
}

// The logits of a tile of rows and outputs, by eight SIMD-groups.
template <int Span>
inline void router_tile(device const bfloat* x, StoredMatrix m, device float* logits, uint first_row, uint rows,
                        uint first_output, uint outputs, threadgroup float* memory, uint index, uint simdgroup,
                        uint lane) {
    const uint half_of = simdgroup / ROUTER_PARTS;
    const uint part = simdgroup % ROUTER_PARTS;
    const uint own_column = lane % 4 * (Span / 4);
    // Rows and outputs past the last repeat it; nobody uses their results.
    RouterPlace at;
    at.x = x;
#pragma clang loop unroll(full)
    for (uint i = 0; i < 4; i++) {
        at.rows[i] = min(first_row + 8 * i + lane / 4, rows - 1) * m.cols;
        at.outputs[i] = min(first_output + 32 * half_of + 8 * i + lane / 4, outputs - 1);
    }
    float sums[2][4][4];
#pragma clang loop unroll(full)
    for (int b = 0; b < 2; b++)
#pragma clang loop unroll(full)
        for (int n = 0; n < 4; n++)
#pragma clang loop unroll(full)
            for (int i = 0; i < 4; i++) sums[b][n][i] = 0.0f;

    const uint steps = m.cols / Span;
    const uint end = steps * (part + 1) / ROUTER_PARTS;
    uint step = steps * part / ROUTER_PARTS;
    RouterInputs<Span> ahead;
    request_router<Span>(ahead, m, at, min(step, steps - 1) * Span + own_column);
    for (; step < end; step++) {
        const RouterInputs<Span> in = ahead;
        request_router<Span>(ahead, m, at, min(step + 1, steps - 1) * Span + own_column);
        add_router_step<Span>(sums, in, m, at, step * Span, step * Span + own_column);
    }

    threadgroup float* results = memory + part * (ROUTER_TILE_ROWS * ROUTER_STRIDE);
#pragma clang loop unroll(full)
    for (int b = 0; b < 2; b++)
#pragma clang loop unroll(full)
        for (int n = 0; n < 4; n++)
#pragma clang loop unroll(full)
            for (int i = 0; i < 4; i++)
                results[(8 * n + lane % 4 * 2 + i % 2) * ROUTER_STRIDE + 32 * half_of + 16 * b + 8 * (i / 2) + lane / 4] =
                    sums[b][n][i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint output = first_output + index % ROUTER_TILE_OUTPUTS;
    if (output >= outputs) return;
    for (uint row = index / ROUTER_TILE_OUTPUTS; row < ROUTER_TILE_ROWS && first_row + row < rows;
         row += VECTOR_SIMDGROUPS * SIMD_WIDTH / ROUTER_TILE_OUTPUTS) {
        float sum = 0.0f;
#pragma clang loop unroll(full)
        for (uint p = 0; p < ROUTER_PARTS; p++)
            sum += memory[(p * ROUTER_TILE_ROWS + row) * ROUTER_STRIDE + index % ROUTER_TILE_OUTPUTS];
        logits[ulong(first_row + row) * outputs + output] = sum;
    }
}
