// Norm and rotation of one query or key head, shared by prefill and decode.
#pragma once
#include "generated/args.h"
#include "functions.h"

// Leaves `head` of `head_dim` elements normed, rotated and rounded to bf16 in `row`. One SIMD-group does it, all its lanes
// together; they may read `row` afterwards. Element i of the rotated part pairs with element i + rotary_dim / 2.
inline void prepare_head(
    device const bfloat* head, device const float* gain, device const float* inv_freq, uint position,
    constant AttentionDims& dims, threadgroup float* row, uint lane) {
    float squares = 0.0f;
    for (uint i = lane; i < dims.head_dim; i += SIMD_WIDTH) {
        float x = float(head[i]);
        squares += x * x;
    }
    float scale = precise::rsqrt(simd_sum(squares) / float(dims.head_dim) + dims.eps);
    for (uint i = lane; i < dims.head_dim; i += SIMD_WIDTH) {
        row[i] = float(head[i]) * scale * gain[i];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    uint pairs = dims.rotary_dim / 2;
    for (uint i = lane; i < pairs; i += SIMD_WIDTH) {
        float angle = float(position) * inv_freq[i];
        float sine = precise::sin(angle);
        float cosine = precise::cos(angle);
        float first = row[i];
        float second = row[i + pairs];
        row[i] = first * cosine - second * sine;
        row[i + pairs] = second * cosine + first * sine;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = lane; i < dims.head_dim; i += SIMD_WIDTH) {
        row[i] = round_bf16(row[i]);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}
