// The experts of a token: the largest logits, ties to the lowest index, and their softmax over the chosen ones.
#pragma once
#include "generated/args.h"
#include "functions.h"

// A number whose unsigned order is the order of the floats; never 0. Both zeros are one number.
inline uint ordered(float x) {
    uint bits = as_type<uint>(x == 0.0f ? 0.0f : x);
    return max(bits & 0x80000000u ? ~bits : bits | 0x80000000u, 1u);
}

// What lane i knows of the i-th choice, for i below top_k.
struct Choice {
    uint expert;
    float score;
};

// One SIMD-group chooses, all its lanes together. Each lane keeps the logits of every 32nd expert in registers; 0 marks
// one that was taken. Whatever the logits are, top_k different experts come out.
inline Choice choose_experts(device const float* logits, uint experts, uint top_k, uint lane) {
    uint mine[EXPERTS_MAX / SIMD_WIDTH];
    #pragma clang loop unroll(full)
    for (uint j = 0; j < EXPERTS_MAX / SIMD_WIDTH; j++) {
        uint expert = j * SIMD_WIDTH + lane;
        mine[j] = expert < experts ? ordered(logits[expert]) : 0;
    }
    Choice choice;
    choice.expert = 0;
    for (uint i = 0; i < top_k; i++) {
        uint best = 0;
        uint at = experts;
        #pragma clang loop unroll(full)
        for (uint j = 0; j < EXPERTS_MAX / SIMD_WIDTH; j++) {
            if (mine[j] > best) {
                best = mine[j];
                at = j * SIMD_WIDTH + lane;
            }
        }
        uint top = simd_max(best);
        uint expert = simd_min(best == top ? at : experts);
        #pragma clang loop unroll(full)
        for (uint j = 0; j < EXPERTS_MAX / SIMD_WIDTH; j++) {
            if (j * SIMD_WIDTH + lane == expert) {
                mine[j] = 0;
            }
        }
        if (lane == i) {
            choice.expert = expert;
        }
    }
    float logit = logits[choice.expert];
    float most = simd_broadcast(logit, 0);
    float weight = lane < top_k ? precise::exp(logit - most) : 0.0f;
    choice.score = weight / simd_sum(weight);
    return choice;
}

// Experts of which a lane knows the logits.
#define SHARE (EXPERTS_MAX / SIMD_WIDTH / VECTOR_SIMDGROUPS)

// How a threadgroup chooses the `top_k` most likely experts: every SIMD-group's largest logits give a bound that at least so
// many reach, what reaches it is listed, and every one of the list counts those before it. Between the steps lies a barrier.
struct Choosing {
    // What every SIMD-group contributes to the bound.
    threadgroup uint* bounds;
    threadgroup atomic_uint* listed;
    // Keys and experts of the list.
    threadgroup uint2* list;
    // The choice, most likely first.
    threadgroup uint* chosen;
    uint keys[SHARE];

    static uint expert_of(uint j, uint simdgroup, uint lane) {
        return (j * VECTOR_SIMDGROUPS + simdgroup) * SIMD_WIDTH + lane;
    }

    // The keys of the thread's experts, and the smallest of the largest ones of its SIMD-group, of which there are as many as
    // its share of `top_k`.
    void bound(device const float* logits, uint experts, uint top_k, uint simdgroup, uint lane) thread {
        uint left[SHARE];
        #pragma clang loop unroll(full)
        for (uint j = 0; j < SHARE; j++) {
            uint expert = expert_of(j, simdgroup, lane);
            keys[j] = expert < experts ? ordered(logits[expert]) : 0;
            left[j] = keys[j];
        }
        uint bound = 0;
        #pragma clang loop unroll(disable)
        for (uint i = 0; i < top_k; i += VECTOR_SIMDGROUPS) {
            uint best = 0;
            uint at = EXPERTS_MAX;
            #pragma clang loop unroll(full)
            for (uint j = 0; j < SHARE; j++) {
                at = left[j] > best ? expert_of(j, simdgroup, lane) : at;
                best = max(best, left[j]);
            }
            bound = simd_max(best);
            if (i + VECTOR_SIMDGROUPS < top_k) {
                uint expert = simd_min(best == bound ? at : EXPERTS_MAX);
                #pragma clang loop unroll(full)
                for (uint j = 0; j < SHARE; j++) {
                    left[j] = expert_of(j, simdgroup, lane) == expert ? 0 : left[j];
                }
            }
        }
        if (lane == 0) {
            bounds[simdgroup] = bound;
        }
        if (simdgroup == 0 && lane == 0) {
            atomic_store_explicit(listed, 0, memory_order_relaxed);
        }
    }

    // Lists what reaches the bound, in any order.
    void select(uint simdgroup, uint lane) thread {
        uint bound = bounds[0];
        #pragma clang loop unroll(full)
        for (uint s = 1; s < VECTOR_SIMDGROUPS; s++) {
            bound = min(bound, bounds[s]);
        }
        bound = max(bound, 1u);
        #pragma clang loop unroll(full)
        for (uint j = 0; j < SHARE; j++) {
            if (keys[j] >= bound) {
                uint place = atomic_fetch_add_explicit(listed, 1, memory_order_relaxed);
                list[place] = uint2(keys[j], expert_of(j, simdgroup, lane));
            }
        }
    }

    // Chooses of the list: larger keys come first, then lower experts.
    void choose(uint top_k, uint thread_index) thread {
        uint count = atomic_load_explicit(listed, memory_order_relaxed);
        for (uint i = thread_index; i < count; i += VECTOR_SIMDGROUPS * SIMD_WIDTH) {
            uint2 own = list[i];
            uint rank = 0;
            #pragma clang loop unroll_count(4)
            for (uint j = 0; j < count; j++) {
                uint2 other = list[j];
                rank += other.x > own.x || (other.x == own.x && other.y < own.y) ? 1 : 0;
            }
            if (rank < top_k) {
                chosen[rank] = own.y;
            }
        }
    }

    // The rest of it, when the bounds are known; the SIMD-groups after the first VECTOR_SIMDGROUPS have no share.
    void finish(uint top_k, uint thread_index, uint simdgroup, uint lane) thread {
        if (simdgroup < VECTOR_SIMDGROUPS) {
            select(simdgroup, lane);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (simdgroup < VECTOR_SIMDGROUPS) {
            choose(top_k, thread_index);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
};

inline Choosing choosing_in(
    threadgroup uint* bounds, threadgroup atomic_uint* listed, threadgroup uint2* list, threadgroup uint* chosen) {
    Choosing choosing;
    choosing.bounds = bounds;
    choosing.listed = listed;
    choosing.list = list;
    choosing.chosen = chosen;
    return choosing;
}
