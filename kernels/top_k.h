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
