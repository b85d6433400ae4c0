// Matrix tiles: products of activations with stored matrices, dequantised on the way. A primitive owns its K loop and the
// threadgroup memory; the kernel passes matrices, the place of the tile, where rows come from and where results go.
//
// A tile has 64 outputs and 16, 32 or 64 rows of activations (in tile_mma.h also 128 rows, with 128 outputs). A SIMD-group
// computes 32 outputs of 16 or 32 of the rows.
// Every element is the sum over K in steps of 8, ascending, in fp32, whatever the tile's height: a row's result does not
// depend on the tile that it is in. Weights are rounded to bf16 after dequantisation.
//
// `multiply_staged`, the K loop over staged steps, has one body for each kind of Apple's matrix hardware: in tile_simdgroup.h
// (every GPU) and in tile_tensor.h (Metal 4 tensor operations; the host defines LILY_TENSOR_OPS where the device has them).
// NVIDIA's GPUs (LILY_MMA) have the whole product to themselves, in tile_mma.h.
#pragma once
#include "generated/args.h"
#include "quant.h"

// Steps of the K loop, in elements. A multiple of the steps of any body, and no longer than a group of codes.
#define TILE_K 32
// Elements from one row of a staged tile to the next: 16-byte aligned, rows spread over the memory banks.
#define TILE_STRIDE 40
// 16-byte words of threadgroup memory that a tile needs: two matrices of 64 rows, and 64 rows of activations; or four
// steps of activations, and what their alignment may cost (tile_mma.h). Tiles of experts have up to 64 rows.
#if defined(LILY_MMA)
#define TILE_MEMORY (4 * 128 * 128 / 16 + 64)
#define EXPERT_TILE_MEMORY (4 * 64 * 128 / 16 + 64)
#else
#define TILE_MEMORY (3 * 64 * TILE_STRIDE * 2 / 16)
#define EXPERT_TILE_MEMORY TILE_MEMORY
#endif

// Which tile, and who computes it.
struct TilePlace {
    // First row of the matrix that belongs to the product, its rows (outputs), and the tile's first output among them.
    uint matrix_row;
    uint outputs;
    uint first_output;
    // Rows of activations that the tile has.
    uint rows;
    // Thread and SIMD-group in the threadgroup, lane in the SIMD-group.
    uint thread_index;
    uint simdgroup;
    uint lane;
};

// A SIMD-group's part of a tile: its first row and output, and where their staged steps lie.
struct StripPlace {
    uint first_row;
    uint first_output;
    threadgroup bfloat* rows;
    threadgroup bfloat* weights;
    // Whether any of its elements exists.
    bool busy;
};

#if defined(LILY_MMA)
#include "tile_mma.h"
#elif defined(LILY_TENSOR_OPS)
#include "tile_tensor.h"
#else
#include "tile_simdgroup.h"
#endif

#if !defined(LILY_MMA)
// Dequantises one K step of 64 rows into `staged`. Rows past the last output repeat it; nobody uses their results.
template <int Threads>
inline void stage_weights(StoredMatrix m, TilePlace place, uint column, threadgroup bfloat* staged) {
    // A unit is half a row's step: 16 elements.
#pragma clang loop unroll(full)
    for (int i = 0; i < 128 / Threads; i++) {
        const uint unit = place.thread_index + i * Threads;
        const uint output = min(place.first_output + unit / 2, place.outputs - 1);
        const uint row = place.matrix_row + output;
        const uint first = column + unit % 2 * 16;
        const Group group = load_group(m, row, first);
        device const uchar* codes = row_codes(m, row);
        threadgroup bfloat4* to = (threadgroup bfloat4*)(staged + unit / 2 * TILE_STRIDE + unit % 2 * 16);
#pragma clang loop unroll(full)
        for (int j = 0; j < 2; j++) {
            const Float8 x = load_codes8(m.format, codes, first + 8 * j);
            to[2 * j] = bfloat4(group.scale * x.low + group.bias);
            to[2 * j + 1] = bfloat4(group.scale * x.high + group.bias);
        }
    }
}

// Stages the steps of a tile. A thread dequantises the same part of the weights in every step, and copies the same pieces,
// of 8 elements, of the same rows.
template <int Strip, int Matrices, int Threads>
struct TileStage {
    StoredMatrix first;
    StoredMatrix second;
    TilePlace place;
    uint cols;
    device const uchar* from[Strip / 16];
    threadgroup bfloat* weights;
    threadgroup bfloat* rows;

    // Leaves step `column` to all threads of the threadgroup, when they are done with the one before.
    void step(uint column) thread {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        stage_weights<Threads>(first, place, column, weights);
        if (Matrices == 2) stage_weights<Threads>(second, place, column, weights + 64 * TILE_STRIDE);
#pragma clang loop unroll(full)
        for (int i = 0; i < Strip / 16; i++) {
            const uint piece = place.thread_index + i * Threads;
            *(threadgroup uint4*)(rows + piece / 4 * TILE_STRIDE + piece % 4 * 8) = load_uint4(from[i] + 2 * column);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
};

// The product of a tile. `Strip` is the rows of a SIMD-group, 16 or 32; `Matrices` is 1 or 2, products of the same
// activations. `source.row(i)` points to row i of the activations; `sink.put(row, output, first, second)` receives every
// result. All threads of the threadgroup call it.
template <int Strip, int Matrices, int Threads, class Source, class Sink>
inline void multiply_strips(StoredMatrix first, StoredMatrix second, TilePlace place, Source source, Sink sink,
                            threadgroup uint4* memory) {
    TileStage<Strip, Matrices, Threads> stage;
    stage.first = first;
    stage.second = second;
    stage.place = place;
    stage.cols = first.cols;
    stage.weights = (threadgroup bfloat*)memory;
    stage.rows = stage.weights + Matrices * 64 * TILE_STRIDE;
#pragma clang loop unroll(full)
    for (int i = 0; i < Strip / 16; i++) {
        const uint piece = place.thread_index + i * Threads;
        // Rows past the last repeat it; nobody uses their results.
        stage.from[i] = (device const uchar*)source.row(min(piece / 4, place.rows - 1)) + piece % 4 * 16;
    }
    StripPlace strip;
    strip.first_row = place.simdgroup / 2 * Strip;
    strip.first_output = place.first_output + place.simdgroup % 2 * SIMDGROUP_OUTPUTS;
    strip.rows = stage.rows + strip.first_row * TILE_STRIDE;
    strip.weights = stage.weights + place.simdgroup % 2 * SIMDGROUP_OUTPUTS * TILE_STRIDE;
    strip.busy = strip.first_row < place.rows && strip.first_output < place.outputs;
    multiply_staged<Strip, Matrices>(stage, place, strip, sink, memory);
}

#endif

// A tile of TILE_ROWS rows, of which no kernel of its has more than `Tallest`.
template <int Matrices, int Tallest, class Source, class Sink>
inline void multiply_tile(StoredMatrix first, StoredMatrix second, TilePlace place, Source source, Sink sink,
                          threadgroup uint4* memory) {
#if defined(LILY_MMA)
    constexpr int Strips = Matrices;
    if (Tallest == 128 && TILE_ROWS == 128) {
        if (place.rows <= 32)
            multiply_wide<32, 2, 1, Matrices>(first, second, place, source, sink, memory);
        else if (place.rows <= 64)
            multiply_wide<64, 2, 1, Matrices>(first, second, place, source, sink, memory);
        else if (place.rows <= 96)
            multiply_wide<96, 2, 1, Matrices>(first, second, place, source, sink, memory);
        else
            multiply_wide<128, 2, 1, Matrices>(first, second, place, source, sink, memory);
    } else if (place.rows <= 16) {
        multiply_wide<16, 1, Strips, Matrices>(first, second, place, source, sink, memory);
    } else if (TILE_ROWS == 64 && place.rows > 32) {
        multiply_wide<64, 1, Strips, Matrices>(first, second, place, source, sink, memory);
    } else {
        multiply_wide<32, 1, Strips, Matrices>(first, second, place, source, sink, memory);
    }
#else
    if (TILE_ROWS == 64)
        multiply_strips<32, Matrices, 128>(first, second, place, source, sink, memory);
    else if (TILE_ROWS == 32)
        multiply_strips<16, Matrices, 128>(first, second, place, source, sink, memory);
    else
        multiply_strips<16, Matrices, 64>(first, second, place, source, sink, memory);
#endif
}

// Outputs of a tile that computes so many products.
inline uint tile_outputs(uint matrices) { return TILE_ROWS == 128 && matrices == 1 ? 2 * TILE_OUTPUTS : TILE_OUTPUTS; }

// The place of a tile in a grid of tiles of outputs by tiles of rows.
template <int Matrices>
inline TilePlace tile_place(uint outputs, uint rows, uint output_tile, uint thread_index, uint simdgroup, uint lane) {
    TilePlace place;
    place.matrix_row = 0;
    place.outputs = outputs;
    place.first_output = output_tile * tile_outputs(Matrices);
    place.rows = rows;
    place.thread_index = thread_index;
    place.simdgroup = simdgroup;
    place.lane = lane;
    return place;
}

// Where rows come from: neighbours.
struct DenseRows {
    device const bfloat* x;
    uint cols;

    device const bfloat* row(uint i) const thread { return x + ulong(i) * cols; }
};

// Where results go: stored as they are, added to what is there, or the gated activation of two.
struct Store {
    device bfloat* y;
    uint outputs;

    void put(uint row, uint output, float value, float) const thread {
        y[ulong(row) * outputs + output] = bfloat(value);
    }
};

struct Add {
    device bfloat* h;
    uint outputs;

    void put(uint row, uint output, float value, float) const thread {
        device bfloat* to = h + ulong(row) * outputs + output;
        *to = bfloat(float(*to) + value);
    }
};

struct Gate {
    device bfloat* y;
    uint outputs;

    void put(uint row, uint output, float gate, float up) const thread {
        y[ulong(row) * outputs + output] = bfloat(silu(gate) * up);
    }
};

// Rows from row `first` on.
inline DenseRows dense_rows(device const bfloat* x, uint cols, uint first) {
    DenseRows rows;
    rows.x = x + ulong(first) * cols;
    rows.cols = cols;
    return rows;
}
