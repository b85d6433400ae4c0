// The arithmetic of the sampler, the same to the bit as in crates/lily-engine/src/sampler: every + - * rounds once, so
// nothing here may be contracted to a fused multiply-add.
#pragma once
#include "platform.h"
#pragma clang fp contract(off)

// e^x for x <= 0; 0 below -87.
inline float exp_nonpositive(float x) {
    float clamped = x < -87.0f ? -87.0f : x;
    float shifted = clamped * 1.44269504088896340736f + 12582912.0f;
    float n = shifted - 12582912.0f;
    float r = (clamped - n * (355.0f / 512.0f)) - n * -2.1219444e-4f;
    float poly = 1.0f / 5040.0f;
    poly = poly * r + 1.0f / 720.0f;
    poly = poly * r + 1.0f / 120.0f;
    poly = poly * r + 1.0f / 24.0f;
    poly = poly * r + 1.0f / 6.0f;
    poly = poly * r + 0.5f;
    float fraction = (poly * (r * r) + r) + 1.0f;
    uint exponent = as_type<uint>(shifted) - as_type<uint>(12582912.0f) + 127u;
    return x < -87.0f ? 0.0f : fraction * as_type<float>(exponent << 23);
}

// Mass of a weight in [0, 1], in units of 2^-40.
inline ulong mass_of(float weight) { return ulong(weight * 1099511627776.0f); }

// An integer that orders as the logits do. Adding zero turns -0 into 0.
inline uint key_of(float logit) {
    uint bits = as_type<uint>(logit + 0.0f);
    return (bits >> 31) == 0 ? bits | 0x80000000u : ~bits;
}

// The upper 64 bits of a product.
inline ulong multiply_high(ulong a, ulong b) {
    ulong a_low = a & 0xfffffffful;
    ulong a_high = a >> 32;
    ulong b_low = b & 0xfffffffful;
    ulong b_high = b >> 32;
    ulong middle = a_high * b_low + ((a_low * b_low) >> 32);
    ulong other = a_low * b_high + (middle & 0xfffffffful);
    return a_high * b_high + (middle >> 32) + (other >> 32);
}

// The mass that `top_p` of `total` needs, rounded up, with top_p in units of 2^-32 rounded up.
inline ulong share_of(ulong total, float top_p) {
    ulong p = ulong(ceil(top_p * 4294967296.0f));
    return (total >> 32) * p + (((total & 0xfffffffful) * p + 0xfffffffful) >> 32);
}

// Draw `index` of a seed: Philox4x32-10.
inline ulong philox_draw(uint2 seed, uint index) {
    uint4 counter = uint4(index, 0u, 0u, 0u);
    uint2 key = seed;
    for (uint round = 0; round < 10; round++) {
        ulong a = 0xd2511f53ul * ulong(counter.x);
        ulong b = 0xcd9e8d57ul * ulong(counter.z);
        counter = uint4(uint(b >> 32) ^ counter.y ^ key.x, uint(b), uint(a >> 32) ^ counter.w ^ key.y, uint(a));
        key += uint2(0x9e3779b9u, 0xbb67ae85u);
    }
    return ulong(counter.x) | (ulong(counter.y) << 32);
}
