// The functions behind Metal's float functions: the C library's, in float.
#pragma once
#include "base.h"

namespace sm {
namespace accurate {

#define SM_UNARY_BUILTIN(name)                                                                                         \
    SM_INLINE float name##_f32(float x) { return __builtin_##name##f(x); }
SM_UNARY_BUILTIN(exp)
SM_UNARY_BUILTIN(exp2)
SM_UNARY_BUILTIN(log)
SM_UNARY_BUILTIN(log2)
SM_UNARY_BUILTIN(log10)
SM_UNARY_BUILTIN(sin)
SM_UNARY_BUILTIN(cos)
SM_UNARY_BUILTIN(tan)
SM_UNARY_BUILTIN(asin)
SM_UNARY_BUILTIN(acos)
SM_UNARY_BUILTIN(atan)
SM_UNARY_BUILTIN(sinh)
SM_UNARY_BUILTIN(cosh)
SM_UNARY_BUILTIN(tanh)
SM_UNARY_BUILTIN(sqrt)
SM_UNARY_BUILTIN(floor)
SM_UNARY_BUILTIN(ceil)
SM_UNARY_BUILTIN(trunc)
SM_UNARY_BUILTIN(rint)
SM_UNARY_BUILTIN(round)
SM_UNARY_BUILTIN(fabs)
SM_INLINE float rsqrt_f32(float x) { return 1.0f / __builtin_sqrtf(x); }
SM_INLINE float exp10_f32(float x) { return __builtin_exp2f(x * 3.32192809488736234787f); }
SM_INLINE float fract_f32(float x) { return x - __builtin_floorf(x); }

SM_INLINE float pow_f32(float x, float y) { return __builtin_powf(x, y); }
SM_INLINE float powr_f32(float x, float y) { return __builtin_powf(x, y); }
SM_INLINE float atan2_f32(float y, float x) { return __builtin_atan2f(y, x); }
SM_INLINE float fmod_f32(float x, float y) { return __builtin_fmodf(x, y); }
SM_INLINE float fmax_f32(float x, float y) { return __builtin_fmaxf(x, y); }
SM_INLINE float fmin_f32(float x, float y) { return __builtin_fminf(x, y); }
SM_INLINE float copysign_f32(float x, float y) { return __builtin_copysignf(x, y); }
SM_INLINE float divide_f32(float x, float y) { return x / y; }

} // namespace accurate

// Metal's fast functions may be as exact as the others.
namespace approximate = accurate;

} // namespace sm
