// Norm and rotation of one query or key head, shared by prefill and decode.
#pragma once
#include "generated/args.h"
#include "functions.h"

// Eight neighbouring elements of a head for each lane, as far as it has so many.
inline Float8 head_part(device const bfloat* head, uint head_dim, uint lane) {
    if (8 * lane < head_dim) {
        return load_bf16x8(head + 8 * lane);
    }
    return Float8{float4(0.0f), float4(0.0f)};
}

// The gains of these elements.
inline Float8 gain_part(device const float* gain, uint head_dim, uint lane) {
    if (8 * lane < head_dim) {
        return Float8{load_float4(gain + 8 * lane), load_float4(gain + 8 * lane + 4)};
    }
    return Float8{float4(0.0f), float4(0.0f)};
}

// Leaves the cosines of a position's angles in `turns`, then their sines: thread `index` of `threads` does its share.
inline void prepare_turns(
    device const float* inv_freq, uint position, constant AttentionDims& dims, threadgroup float* turns, uint index,
    uint threads) {
    uint pairs = dims.rotary_dim / 2;
    for (uint i = index; i < pairs; i += threads) {
        float angle = float(position) * inv_freq[i];
        turns[i] = precise::cos(angle);
        turns[pairs + i] = precise::sin(angle);
    }
}

// A lane's part of a head, normed, rotated and rounded. One SIMD-group does a head, all its lanes together, with a `row` in
// which they meet, and which it may use again for another head. Element i of the rotated part pairs with element
// i + rotary_dim / 2. Of `turns`, a lane sees what its own SIMD-group has just written.
inline uint4 prepare_part(
    Float8 x, Float8 gain, threadgroup const float* turns, constant AttentionDims& dims, threadgroup float* row,
    uint lane) {
    float scale = precise::rsqrt(simd_sum(dot8(x, x)) / float(dims.head_dim) + dims.eps);
    x.low = x.low * scale * gain.low;
    x.high = x.high * scale * gain.high;
    uint first = 8 * lane;
    #pragma clang loop unroll(full)
    for (uint e = 0; e < 4; e++) {
        if (first < dims.rotary_dim) {
            row[first + e] = x.low[e];
            row[first + 4 + e] = x.high[e];
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    uint pairs = dims.rotary_dim / 2;
    #pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        uint i = first + e;
        float own = e < 4 ? x.low[e % 4] : x.high[e % 4];
        if (i < pairs) {
            own = own * turns[i] - row[i + pairs] * turns[pairs + i];
        } else if (i < 2 * pairs) {
            own = own * turns[i - pairs] + row[i - pairs] * turns[i];
        }
        if (e < 4) {
            x.low[e % 4] = round_bf16(own);
        } else {
            x.high[e % 4] = round_bf16(own);
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    return narrow8(x);
}
