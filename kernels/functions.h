// Functions of the model that several kernels share, in fp32, and sums over SIMD-groups and threadgroups.
#pragma once
#include "platform.h"

inline float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(-x)); }

inline float silu(float x) { return x * sigmoid(x); }

// ln(1 + e^x). Metal has no log1p; where e^x is so small that 1 + e^x would lose its digits, four terms of the series
// are exact to fp32.
inline float softplus(float x) {
    float e = precise::exp(min(x, 20.0f));
    float series = e * (1.0f - e * (0.5f - e * (1.0f / 3.0f - 0.25f * e)));
    float small = e < 0.015625f ? series : precise::log(1.0f + e);
    return x > 20.0f ? x : small;
}

// Decay of the recurrent state: exp(-exp(A_log) * softplus(a + dt_bias)).
inline float decay_of(float a, float a_log, float dt_bias) {
    return precise::exp(-precise::exp(a_log) * softplus(a + dt_bias));
}

inline float dot8(Float8 a, Float8 b) { return dot(a.low, b.low) + dot(a.high, b.high); }

// Leaves a SIMD-group's share of a sum over the threadgroup, for `sum_of_shares` behind a barrier.
inline void leave_share(float value, threadgroup float* slots, uint simdgroup, uint lane) {
    float partial = simd_sum(value);
    if (lane == 0) {
        slots[simdgroup] = partial;
    }
}

// The sum of all shares, the same in each thread.
inline float sum_of_shares(threadgroup const float* slots, uint simdgroups, uint lane) {
#if defined(LILY_MMA)
    // Every thread reads them all: reads of one place are cheaper than exchanges.
    float sums[4] = {};
    #pragma clang loop unroll(full)
    for (uint i = 0; i < simdgroups; i++) {
        sums[i % 4] += slots[i];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
#else
    return simd_sum(lane < simdgroups ? slots[lane] : 0.0f);
#endif
}

// The sum of `value` over all threads of the threadgroup, the same in each. `slots` has room for every SIMD-group and
// must not be touched again before another barrier.
inline float threadgroup_sum(float value, threadgroup float* slots, uint simdgroup, uint simdgroups, uint lane) {
    leave_share(value, slots, simdgroup, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return sum_of_shares(slots, simdgroups, lane);
}

// Halves the number of values that each lane holds: of each pair of neighbours a lane keeps the one that `mask` names
// and adds what the lane across brings of it.
template <uint PAIRS>
inline void fold_pairs(thread float* values, uint mask, uint lane) {
    bool upper = (lane & mask) != 0;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < PAIRS; i++) {
        // Both are read, so that no compiler makes a choice of addresses of it, which would put the values into memory.
        float even = values[2 * i];
        float odd = values[2 * i + 1];
        float sent = upper ? even : odd;
        values[i] = (upper ? odd : even) + simd_shuffle_xor(sent, ushort(mask));
    }
}

// Sums several values over the SIMD-group with far fewer exchanges than one sum each would take. Lane i gets the sum of
// value i modulo their number. `values` is used up.
inline float simd_sum2(thread float* values, uint lane) {
    fold_pairs<1>(values, 1, lane);
    float sum = values[0];
    sum += simd_shuffle_xor(sum, 2);
    sum += simd_shuffle_xor(sum, 4);
    sum += simd_shuffle_xor(sum, 8);
    return sum + simd_shuffle_xor(sum, 16);
}

// The same of four values, over every `span` lanes separately: 4, 8, 16 or 32.
inline float simd_sum4(thread float* values, uint span, uint lane) {
    fold_pairs<2>(values, 1, lane);
    fold_pairs<1>(values, 2, lane);
    float sum = values[0];
    if (span > 4) {
        sum += simd_shuffle_xor(sum, 4);
    }
    if (span > 8) {
        sum += simd_shuffle_xor(sum, 8);
    }
    if (span > 16) {
        sum += simd_shuffle_xor(sum, 16);
    }
    return sum;
}

inline float simd_sum8(thread float* values, uint lane) {
    fold_pairs<4>(values, 1, lane);
    fold_pairs<2>(values, 2, lane);
    fold_pairs<1>(values, 4, lane);
    float sum = values[0];
    sum += simd_shuffle_xor(sum, 8);
    return sum + simd_shuffle_xor(sum, 16);
}

inline float simd_sum16(thread float* values, uint lane) {
    fold_pairs<8>(values, 1, lane);
    fold_pairs<4>(values, 2, lane);
    fold_pairs<2>(values, 4, lane);
    fold_pairs<1>(values, 8, lane);
    return values[0] + simd_shuffle_xor(values[0], 16);
}
