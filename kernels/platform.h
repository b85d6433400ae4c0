// Memory access beyond Metal's library, the rounding of results, and where a kernel waits for those before it. What a host
// promises of its memory, and how it starts kernels, comes as macros:
// - LILY_ALIGNED: buffers start at multiples of 16 bytes, so that 16 bytes of a row can be loaded at once.
// - LILY_EARLY_START: a kernel may start before those that it depends on have ended; the host's headers have
//   `wait_for_inputs` then.
// - LILY_MMA: matrix products are those of NVIDIA's GPUs; the host's headers have `ptx` and `limit_registers` then.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Eight neighbouring values.
struct Float8 {
    float4 low;
    float4 high;
};

#if !defined(LILY_MMA)
// A kernel whose registers decide how many of its threadgroups run at a time may say how many a thread gets at most. It is
// heeded where the host's headers have it.
template <uint Count>
inline void limit_registers() {}
#endif

#if !defined(LILY_EARLY_START)
// Until here a kernel may only read weights, the step and the session's state, and write nothing.
inline void wait_for_inputs() {}
#endif

inline uint load_uint(device const uchar* from) { return *(device const uint*)from; }

#if defined(LILY_ALIGNED)
inline uint2 load_uint2(device const uchar* from) { return *(device const uint2*)from; }
inline uint4 load_uint4(device const uchar* from) { return *(device const uint4*)from; }
inline void store_uint2(device uchar* to, uint2 words) { *(device uint2*)to = words; }
inline void store_uint4(device uchar* to, uint4 words) { *(device uint4*)to = words; }
// Partial results of attention start at multiples of 8 bytes.
inline float4 load_float4(device const float* from) {
    return float4(*(device const float2*)from, *(device const float2*)(from + 2));
}
#else
// Stored matrices start at any multiple of 4 bytes of a checkpoint, so no load asks for more.
inline uint2 load_uint2(device const uchar* from) { return uint2(*(device const packed_uint2*)from); }
inline uint4 load_uint4(device const uchar* from) { return uint4(*(device const packed_uint4*)from); }
inline void store_uint2(device uchar* to, uint2 words) { *(device packed_uint2*)to = packed_uint2(words); }
inline void store_uint4(device uchar* to, uint4 words) { *(device packed_uint4*)to = packed_uint4(words); }
inline float4 load_float4(device const float* from) { return float4(*(device const packed_float4*)from); }
#endif

// The bf16 in the lower half of a word, and the one in its upper half.
inline float bf16_low(uint word) { return as_type<float>(word << 16); }
inline float bf16_high(uint word) { return as_type<float>(word & 0xffff0000u); }

// Eight bf16 that lie in four words.
inline Float8 widen8(uint4 words) {
    Float8 x;
    x.low = float4(bf16_low(words.x), bf16_high(words.x), bf16_low(words.y), bf16_high(words.y));
    x.high = float4(bf16_low(words.z), bf16_high(words.z), bf16_low(words.w), bf16_high(words.w));
    return x;
}

// The same way back, of values that are bf16.
inline uint bf16_pair(float low, float high) { return as_type<uint>(low) >> 16 | (as_type<uint>(high) & 0xffff0000u); }

inline uint4 narrow8(Float8 x) {
    return uint4(
        bf16_pair(x.low.x, x.low.y), bf16_pair(x.low.z, x.low.w), bf16_pair(x.high.x, x.high.y),
        bf16_pair(x.high.z, x.high.w));
}

// Eight bf16 from an address that is a multiple of 4 bytes.
inline Float8 load_bf16x8(device const bfloat* from) { return widen8(load_uint4((device const uchar*)from)); }

// Four bf16 at an address that is a multiple of 8 bytes.
inline float4 load_bf16x4(device const bfloat* from) {
    const uint2 words = load_uint2((device const uchar*)from);
    return float4(bf16_low(words.x), bf16_high(words.x), bf16_low(words.y), bf16_high(words.y));
}

inline void store_bf16x4(device bfloat* to, float4 x) { store_uint2((device uchar*)to, as_type<uint2>(bfloat4(x))); }

// Eight bf16 at one that is a multiple of 16.
inline void store_bf16x8(device bfloat* to, Float8 x) {
    const uint2 low = as_type<uint2>(bfloat4(x.low));
    const uint2 high = as_type<uint2>(bfloat4(x.high));
    store_uint4((device uchar*)to, uint4(low, high));
}

// The nearest bf16, ties to even, as a float.
inline float round_bf16(float x) { return float(bfloat(x)); }
