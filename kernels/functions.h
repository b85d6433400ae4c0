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

// The sum of `value` over all threads of the threadgroup, the same in each. `slots` has room for every SIMD-group and
// must not be touched again before another barrier.
inline float threadgroup_sum(float value, threadgroup float* slots, uint simdgroup, uint simdgroups, uint lane) {
    float partial = simd_sum(value);
    if (lane == 0) {
        slots[simdgroup] = partial;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_sum(lane < simdgroups ? slots[lane] : 0.0f);
}
