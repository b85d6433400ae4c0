// The functions behind Metal's float functions, for a GPU without a C library.
//
// `accurate` functions stay within a few units in the last place, `approximate` ones are the hardware's.
#pragma once
#include "base.h"

namespace sm {

SM_INLINE float exp2_hardware(float x) { return __nvvm_ex2_approx_f(x); }
SM_INLINE float bits_to_float(uint bits) { return __builtin_bit_cast(float, bits); }
SM_INLINE uint float_to_bits(float x) { return __builtin_bit_cast(uint, x); }

namespace accurate {

SM_INLINE float floor_f32(float x) { return __nvvm_floor_f(x); }
SM_INLINE float ceil_f32(float x) { return __nvvm_ceil_f(x); }
SM_INLINE float trunc_f32(float x) { return __nvvm_trunc_f(x); }
SM_INLINE float rint_f32(float x) { return __builtin_rintf(x); }
SM_INLINE float fabs_f32(float x) { return __builtin_fabsf(x); }
SM_INLINE float copysign_f32(float x, float y) {
    return bits_to_float((float_to_bits(x) & 0x7fffffffu) | (float_to_bits(y) & 0x80000000u));
}
// Halves away from zero.
SM_INLINE float round_f32(float x) {
    const float whole = trunc_f32(x);
    return __builtin_fabsf(x - whole) >= 0.5f ? whole + copysign_f32(1.0f, x) : whole;
}
SM_INLINE float fract_f32(float x) { return x - floor_f32(x); }
SM_INLINE float fmax_f32(float x, float y) { return __builtin_fmaxf(x, y); }
SM_INLINE float fmin_f32(float x, float y) { return __builtin_fminf(x, y); }
SM_INLINE float divide_f32(float x, float y) { return x / y; }
SM_INLINE float sqrt_f32(float x) { return __nvvm_sqrt_rn_f(x); }
SM_INLINE float rsqrt_f32(float x) { return __nvvm_rsqrt_approx_f(x); }

// e^x: x = n ln 2 + r with r small, then the hardware's 2^y of a small y. Two factors of 2^n, because 2^n alone may be
// too large or too small. Adding 1.5 * 2^23 rounds to a whole number and leaves it in the lowest bits: conversions would
// take the unit that 2^y needs.
SM_INLINE float exp_f32(float x) {
    const float clamped = __builtin_fminf(__builtin_fmaxf(x, -104.0f), 89.0f);
    const float raised = __builtin_fmaf(clamped, 1.44269504088896340736f, 12582912.0f);
    const float n = raised - 12582912.0f;
    float r = __builtin_fmaf(n, -0.693359375f, clamped);
    r = __builtin_fmaf(n, 2.12194440e-4f, r);
    const float part = __nvvm_ex2_approx_ftz_f(r * 1.44269504088896340736f);
    const int whole = (int)(float_to_bits(raised) - 0x4b400000u), half_of = whole >> 1;
    const float first = bits_to_float((uint)(half_of + 127) << 23);
    const float second = bits_to_float((uint)(whole - half_of + 127) << 23);
    return x != x ? x : part * first * second;
}
SM_INLINE float exp2_f32(float x) { return exp2_hardware(x); }
SM_INLINE float exp10_f32(float x) { return exp_f32(x * 2.30258509299404568402f); }

// ln x: x = m 2^n with m between sqrt(1/2) and sqrt(2), then ln m = 2 artanh((m - 1) / (m + 1)).
SM_INLINE float log_f32(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const float scaled = tiny ? x * 8388608.0f : x;
    const uint bits = float_to_bits(scaled);
    const uint from = bits - 0x3f3504f3u;
    const int n = ((int)from >> 23) - (tiny ? 23 : 0);
    const float m = bits_to_float((from & 0x007fffffu) + 0x3f3504f3u);
    const float s = (m - 1.0f) / (m + 1.0f), square = s * s;
    float series = __builtin_fmaf(square, 2.0f / 9.0f, 2.0f / 7.0f);
    series = __builtin_fmaf(square, series, 2.0f / 5.0f);
    series = __builtin_fmaf(square, series, 2.0f / 3.0f);
    const float small = __builtin_fmaf(series * square, s, 2.0f * s);
    const float result = __builtin_fmaf((float)n, 0.693359375f, __builtin_fmaf((float)n, -2.12194440e-4f, small));
    if (x == 0.0f) return -__builtin_inff();
    if (!(x > 0.0f)) return __builtin_nanf("");
    return x == __builtin_inff() ? x : result;
}
SM_INLINE float log2_f32(float x) { return log_f32(x) * 1.44269504088896340736f; }
SM_INLINE float log10_f32(float x) { return log_f32(x) * 0.434294481903251827651f; }
SM_INLINE float pow_f32(float x, float y) { return exp2_hardware(y * log2_f32(x)); }
SM_INLINE float powr_f32(float x, float y) { return pow_f32(x, y); }

// A quarter turn q and the rest of an angle below some hundred thousand: pi / 2 in three parts.
SM_INLINE float quarter_turns(float x, int& q) {
    const float n = __builtin_rintf(x * 0.63661977236758134308f);
    q = (int)n;
    float r = __builtin_fmaf(n, -1.57079637050628662109375f, x);
    r = __builtin_fmaf(n, 4.37113900018624283e-8f, r);
    return __builtin_fmaf(n, 1.71512451e-15f, r);
}
SM_INLINE float sine_near_zero(float r) {
    const float s = r * r;
    float p = __builtin_fmaf(s, 1.0f / 362880.0f, -1.0f / 5040.0f);
    p = __builtin_fmaf(s, p, 1.0f / 120.0f);
    p = __builtin_fmaf(s, p, -1.0f / 6.0f);
    return __builtin_fmaf(p * s, r, r);
}
SM_INLINE float cosine_near_zero(float r) {
    const float s = r * r;
    float p = __builtin_fmaf(s, -1.0f / 3628800.0f, 1.0f / 40320.0f);
    p = __builtin_fmaf(s, p, -1.0f / 720.0f);
    p = __builtin_fmaf(s, p, 1.0f / 24.0f);
    return __builtin_fmaf(s, __builtin_fmaf(s, p, -0.5f), 1.0f);
}
SM_INLINE float turned(float r, int q) {
    const float value = (q & 1) != 0 ? cosine_near_zero(r) : sine_near_zero(r);
    return (q & 2) != 0 ? -value : value;
}
SM_INLINE float sin_f32(float x) {
    int q;
    const float r = quarter_turns(x, q);
    return turned(r, q);
}
SM_INLINE float cos_f32(float x) {
    int q;
    const float r = quarter_turns(x, q);
    return turned(r, q + 1);
}
SM_INLINE float tan_f32(float x) { return sin_f32(x) / cos_f32(x); }
SM_INLINE float sinh_f32(float x) { return 0.5f * (exp_f32(x) - exp_f32(-x)); }
SM_INLINE float cosh_f32(float x) { return 0.5f * (exp_f32(x) + exp_f32(-x)); }
SM_INLINE float tanh_f32(float x) { return 1.0f - 2.0f / (exp_f32(2.0f * x) + 1.0f); }
// Used by no kernel; a kernel that does will not assemble.
float asin_f32(float x);
float acos_f32(float x);
float atan_f32(float x);
float atan2_f32(float y, float x);
float fmod_f32(float x, float y);

} // namespace accurate

namespace approximate {

using namespace accurate;
SM_INLINE float exp_f32(float x) { return exp2_hardware(x * 1.44269504088896340736f); }
SM_INLINE float log2_f32(float x) { return __nvvm_lg2_approx_f(x); }
SM_INLINE float log_f32(float x) { return __nvvm_lg2_approx_f(x) * 0.693147180559945309417f; }
SM_INLINE float sin_f32(float x) { return __nvvm_sin_approx_f(x); }
SM_INLINE float cos_f32(float x) { return __nvvm_cos_approx_f(x); }

} // namespace approximate
} // namespace sm
