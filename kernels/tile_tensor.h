// Tile sums by the tensor operations of Metal 4: operands in threadgroup memory, sums in cooperative tensors, whose layout is
// asked for and never assumed. Rows are the left operand, weights the right one, transposed. One size of operation serves
// all tiles: a row's sums do not depend on the tile's height.
#pragma once
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

// Rows of one operation; its outputs are those of a SIMD-group.
#define TENSOR_ROWS 16

typedef tensor<threadgroup bfloat, dextents<int32_t, 2>, tensor_inline> StagedTensor;

// `rows` rows of a staged step.
inline StagedTensor staged_tensor(threadgroup bfloat* first, int rows) {
    array<int, 2> strides = {1, TILE_STRIDE};
    return StagedTensor(first, dextents<int32_t, 2>(TILE_K, rows), strides);
}

// Hands out the results of one operation: `first` and, with two matrices, the element of `second` that lies beside it.
template <int Matrices, class Sums, class Sink>
inline void hand_out(thread Sums& first, thread Sums& second, TilePlace place, StripPlace strip, uint first_row, Sink sink) {
    for (int i = 0; i < first.get_capacity(); i++) {
        if (!first.is_valid_element(i)) continue;
        const auto at = first.get_multidimensional_index(i);
        const uint output = strip.first_output + uint(at[0]);
        const uint row = first_row + uint(at[1]);
        if (row < place.rows && output < place.outputs)
            sink.put(row, output, first[i], Matrices == 2 ? second[i] : 0.0f);
    }
}

// The K loop of a SIMD-group's part of a tile. `stage.step(column)` stages a step; all threads of the threadgroup take it.
template <int Strip, int Matrices, class Stage, class Sink>
inline void multiply_staged(thread Stage& stage, TilePlace place, StripPlace strip, Sink sink, threadgroup uint4*) {
    constexpr mpp::tensor_ops::matmul2d_descriptor descriptor(
        TENSOR_ROWS, SIMDGROUP_OUTPUTS, TILE_K, false, true, false,
        mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
    mpp::tensor_ops::matmul2d<descriptor, execution_simdgroup> product;
    StagedTensor low = staged_tensor(strip.rows, TENSOR_ROWS);
    // A strip of 32 rows takes two operations. In one of 16 the second is left out.
    StagedTensor high = staged_tensor(strip.rows + (Strip - TENSOR_ROWS) * TILE_STRIDE, TENSOR_ROWS);
    StagedTensor first = staged_tensor(strip.weights, SIMDGROUP_OUTPUTS);
    StagedTensor second = staged_tensor(strip.weights + (Matrices - 1) * 64 * TILE_STRIDE, SIMDGROUP_OUTPUTS);
    auto first_low = product.get_destination_cooperative_tensor<decltype(low), decltype(first), float>();
    auto first_high = product.get_destination_cooperative_tensor<decltype(low), decltype(first), float>();
    auto second_low = product.get_destination_cooperative_tensor<decltype(low), decltype(first), float>();
    auto second_high = product.get_destination_cooperative_tensor<decltype(low), decltype(first), float>();
    for (int i = 0; i < first_low.get_capacity(); i++) {
        first_low[i] = 0.0f;
        first_high[i] = 0.0f;
        second_low[i] = 0.0f;
        second_high[i] = 0.0f;
    }
    for (uint column = 0; column < stage.cols; column += TILE_K) {
        stage.step(column);
        if (!strip.busy) continue;
        product.run(low, first, first_low);
        if (Strip == 32) product.run(high, first, first_high);
        if (Matrices == 2) product.run(low, second, second_low);
        if (Matrices == 2 && Strip == 32) product.run(high, second, second_high);
    }
    if (!strip.busy) return;
    hand_out<Matrices>(first_low, second_low, place, strip, strip.first_row, sink);
    if (Strip == 32) hand_out<Matrices>(first_high, second_high, place, strip, strip.first_row + TENSOR_ROWS, sink);
}
