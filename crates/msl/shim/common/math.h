// Math, integer, relational and geometric functions on scalars and vectors of float, half and integers.
//
// As in Metal's library there is none for bfloat: convert to float first. Arguments of one call have one type, because
// Metal's overloads would be ambiguous otherwise; a scalar beside a vector is spread.
#pragma once
#include "convert.h"
#include "scalar.h"

namespace sm {

template <class T>
constexpr constant bool has_math = __is_same(element_t<T>, float) || __is_same(element_t<T>, half);
template <class T>
constexpr constant bool has_order = has_math<T> || __is_integral(element_t<T>);

// f(x) for every element.
template <class T, class F>
SM_INLINE T each(T x, F f) {
    if constexpr (is_vector_v<T>) {
        T r;
        for (int i = 0; i < shape<T>::length; i++) r[i] = f((element_t<T>)x[i]);
        return r;
    } else {
        return f(x);
    }
}
template <class T, class F>
SM_INLINE T each(T x, T y, F f) {
    if constexpr (is_vector_v<T>) {
        T r;
        for (int i = 0; i < shape<T>::length; i++) r[i] = f((element_t<T>)x[i], (element_t<T>)y[i]);
        return r;
    } else {
        return f(x, y);
    }
}

#define SM_FLOAT_1(how, name)                                                                                          \
    template <class T>                                                                                                 \
    SM_INLINE T name(T x) {                                                                                            \
        static_assert(sm::has_math<T>, #name " takes float or half; convert bfloat and integers to float first");      \
        return sm::each(x, [](sm::element_t<T> e) { return (sm::element_t<T>)sm::how::name##_f32((float)e); });        \
    }
#define SM_FLOAT_2(how, name)                                                                                          \
    template <class T>                                                                                                 \
    SM_INLINE T name(T x, T y) {                                                                                       \
        static_assert(sm::has_math<T>, #name " takes float or half; convert bfloat and integers to float first");      \
        return sm::each(x, y, [](sm::element_t<T> a, sm::element_t<T> b) {                                             \
            return (sm::element_t<T>)sm::how::name##_f32((float)a, (float)b);                                          \
        });                                                                                                            \
    }
#define SM_FLOAT_ALL(how)                                                                                              \
    SM_FLOAT_1(how, exp) SM_FLOAT_1(how, exp2) SM_FLOAT_1(how, exp10) SM_FLOAT_1(how, log) SM_FLOAT_1(how, log2)       \
    SM_FLOAT_1(how, log10) SM_FLOAT_1(how, sin) SM_FLOAT_1(how, cos) SM_FLOAT_1(how, tan) SM_FLOAT_1(how, asin)        \
    SM_FLOAT_1(how, acos) SM_FLOAT_1(how, atan) SM_FLOAT_1(how, sinh) SM_FLOAT_1(how, cosh)                            \
    SM_FLOAT_1(how, tanh) SM_FLOAT_1(how, sqrt) SM_FLOAT_1(how, rsqrt) SM_FLOAT_1(how, floor)                          \
    SM_FLOAT_1(how, ceil) SM_FLOAT_1(how, trunc) SM_FLOAT_1(how, rint) SM_FLOAT_1(how, round)                          \
    SM_FLOAT_1(how, fabs) SM_FLOAT_1(how, fract) SM_FLOAT_2(how, pow) SM_FLOAT_2(how, powr)                            \
    SM_FLOAT_2(how, atan2) SM_FLOAT_2(how, fmod) SM_FLOAT_2(how, fmax) SM_FLOAT_2(how, fmin)                           \
    SM_FLOAT_2(how, copysign) SM_FLOAT_2(how, divide)

} // namespace sm

namespace metal {

SM_FLOAT_ALL(accurate)
namespace precise {
SM_FLOAT_ALL(accurate)
}
namespace fast {
SM_FLOAT_ALL(approximate)
}

#define SM_ORDER_2(name, expression)                                                                                   \
    template <class T>                                                                                                 \
    SM_INLINE constexpr T name(T x, T y) {                                                                             \
        static_assert(sm::has_order<T>, #name " takes float, half or integers; convert bfloat to float first");        \
        return sm::each(x, y, [](sm::element_t<T> a, sm::element_t<T> b) { return (sm::element_t<T>)(expression); });  \
    }                                                                                                                  \
    template <class T, int N>                                                                                          \
    SM_INLINE vec<T, N> name(vec<T, N> x, T y) {                                                                       \
        return name(x, (vec<T, N>)y);                                                                                  \
    }                                                                                                                  \
    template <class T, int N>                                                                                          \
    SM_INLINE vec<T, N> name(T x, vec<T, N> y) {                                                                       \
        return name((vec<T, N>)x, y);                                                                                  \
    }
// A NaN loses, as in Metal's fmax and fmin.
SM_ORDER_2(max, a < b || a != a ? b : a)
SM_ORDER_2(min, b < a || a != a ? b : a)
template <class T>
SM_INLINE T clamp(T x, T low, T high) {
    return min(max(x, low), high);
}
template <class T, int N>
SM_INLINE vec<T, N> clamp(vec<T, N> x, T low, T high) {
    return min(max(x, low), high);
}
template <class T>
SM_INLINE T max3(T x, T y, T z) {
    return max(max(x, y), z);
}
template <class T>
SM_INLINE T min3(T x, T y, T z) {
    return min(min(x, y), z);
}
template <class T>
SM_INLINE T median3(T x, T y, T z) {
    return max(min(x, y), min(max(x, y), z));
}
namespace precise {
using metal::clamp;
using metal::max;
using metal::min;
} // namespace precise
namespace fast {
using metal::clamp;
using metal::max;
using metal::min;
} // namespace fast

template <class T>
SM_INLINE T abs(T x) {
    static_assert(sm::has_order<T>, "abs takes float, half or integers; convert bfloat to float first");
    return sm::each(x, [](sm::element_t<T> e) {
        if constexpr (sm::has_math<sm::element_t<T>>)
            return (sm::element_t<T>)__builtin_fabsf((float)e);
        else
            return (sm::element_t<T>)(e < 0 ? -e : e);
    });
}
template <class T>
SM_INLINE T absdiff(T x, T y) {
    return sm::each(x, y, [](sm::element_t<T> a, sm::element_t<T> b) { return (sm::element_t<T>)(a > b ? a - b : b - a); });
}
template <class T>
SM_INLINE T fma(T a, T b, T c) {
    static_assert(sm::has_math<T>, "fma takes float or half; convert bfloat to float first");
    if constexpr (sm::is_vector_v<T>) {
        T r;
        for (int i = 0; i < sm::shape<T>::length; i++)
            r[i] = (sm::element_t<T>)__builtin_fmaf((float)a[i], (float)b[i], (float)c[i]);
        return r;
    } else {
        return (T)__builtin_fmaf((float)a, (float)b, (float)c);
    }
}
namespace precise {
using metal::abs;
using metal::fma;
} // namespace precise
namespace fast {
using metal::abs;
using metal::fma;
} // namespace fast

template <class T>
SM_INLINE T sign(T x) {
    return sm::each(x, [](sm::element_t<T> e) { return (sm::element_t<T>)(e > 0 ? 1 : e < 0 ? -1 : 0); });
}
template <class T>
SM_INLINE T saturate(T x) {
    return clamp(x, (T)(sm::element_t<T>)0, (T)(sm::element_t<T>)1);
}
template <class T>
SM_INLINE T step(T edge, T x) {
    return sm::each(edge, x, [](sm::element_t<T> a, sm::element_t<T> b) { return (sm::element_t<T>)(b < a ? 0 : 1); });
}
template <class T>
SM_INLINE T mix(T x, T y, T a) {
    return x + (y - x) * a;
}
template <class T>
SM_INLINE T ldexp(T x, int e) {
    return (T)__builtin_ldexpf((float)x, e);
}

// Relational.
template <class T>
SM_INLINE bool isnan(T x) {
    static_assert(!sm::is_vector_v<T>, "scalars only");
    return x != x;
}
template <class T>
SM_INLINE bool isinf(T x) {
    static_assert(!sm::is_vector_v<T>, "scalars only");
    return __builtin_fabsf((float)x) == __builtin_inff();
}
template <class T>
SM_INLINE bool isfinite(T x) {
    static_assert(!sm::is_vector_v<T>, "scalars only");
    return __builtin_fabsf((float)x) < __builtin_inff();
}
template <class T>
SM_INLINE bool signbit(T x) {
    return __builtin_bit_cast(uint, (float)x) >> 31;
}
// y where c, else x.
template <class T, class C>
SM_INLINE T select(T x, T y, C c) {
    if constexpr (sm::is_vector_v<T>) {
        T r;
        for (int i = 0; i < sm::shape<T>::length; i++) r[i] = c[i] ? y[i] : x[i];
        return r;
    } else {
        return c ? y : x;
    }
}
template <class T>
SM_INLINE bool any(T v) {
    bool r = false;
    for (int i = 0; i < sm::shape<T>::length; i++) r = r || v[i];
    return r;
}
template <class T>
SM_INLINE bool all(T v) {
    bool r = true;
    for (int i = 0; i < sm::shape<T>::length; i++) r = r && v[i];
    return r;
}

// Integers.
template <class T>
SM_INLINE T popcount(T x) {
    return sm::each(x, [](sm::element_t<T> e) {
        return (sm::element_t<T>)__builtin_popcountl((ulong)(make_unsigned_t<sm::element_t<T>>)e);
    });
}
template <class T>
SM_INLINE T clz(T x) {
    return sm::each(x, [](sm::element_t<T> e) {
        typedef make_unsigned_t<sm::element_t<T>> U;
        const int bits = 8 * sizeof(U);
        return (sm::element_t<T>)(e == 0 ? bits : __builtin_clzl((ulong)(U)e) - (64 - bits));
    });
}
template <class T>
SM_INLINE T ctz(T x) {
    return sm::each(x, [](sm::element_t<T> e) {
        return (sm::element_t<T>)(e == 0 ? 8 * sizeof(e) : __builtin_ctzl((ulong)e));
    });
}
template <class T>
SM_INLINE T reverse_bits(T x) {
    return sm::each(x, [](sm::element_t<T> e) {
        typedef make_unsigned_t<sm::element_t<T>> U;
        return (sm::element_t<T>)(__builtin_bitreverse64((ulong)(U)e) >> (64 - 8 * sizeof(U)));
    });
}
template <class T>
SM_INLINE T rotate(T x, T n) {
    return sm::each(x, n, [](sm::element_t<T> e, sm::element_t<T> k) {
        typedef make_unsigned_t<sm::element_t<T>> U;
        const uint bits = 8 * sizeof(U), s = (uint)k % bits;
        return (sm::element_t<T>)(s == 0 ? (U)e : (U)((U)e << s | (U)e >> (bits - s)));
    });
}
// High half of the product.
template <class T>
SM_INLINE T mulhi(T x, T y) {
    return sm::each(x, y, [](sm::element_t<T> a, sm::element_t<T> b) {
        if constexpr (__is_signed(sm::element_t<T>))
            return (sm::element_t<T>)((__int128)a * b >> (8 * sizeof(a)));
        else
            return (sm::element_t<T>)((unsigned __int128)a * b >> (8 * sizeof(a)));
    });
}
template <class T>
SM_INLINE T extract_bits(T x, uint offset, uint bits) {
    return sm::each(x, [=](sm::element_t<T> e) {
        typedef sm::element_t<T> E;
        if (bits == 0) return (E)0;
        const uint left = 8 * sizeof(E) - bits - offset;
        return (E)((E)((make_unsigned_t<E>)e << left) >> (8 * sizeof(E) - bits));
    });
}
template <class T>
SM_INLINE T insert_bits(T base, T insert, uint offset, uint bits) {
    return sm::each(base, insert, [=](sm::element_t<T> a, sm::element_t<T> b) {
        typedef make_unsigned_t<sm::element_t<T>> U;
        const U mask = (U)(((1ul << bits) - 1) << offset);
        return (sm::element_t<T>)(((U)a & ~mask) | ((U)((ulong)(U)b << offset) & mask));
    });
}
// The nearest value of T.
template <class T>
SM_INLINE T saturated(__int128 x) {
    const __int128 low = numeric_limits<T>::min(), high = numeric_limits<T>::max();
    return (T)(x < low ? low : x > high ? high : x);
}
template <class T>
SM_INLINE T addsat(T x, T y) {
    typedef sm::element_t<T> E;
    return sm::each(x, y, [](E a, E b) { return saturated<E>((__int128)a + b); });
}
template <class T>
SM_INLINE T subsat(T x, T y) {
    typedef sm::element_t<T> E;
    return sm::each(x, y, [](E a, E b) { return saturated<E>((__int128)a - b); });
}

// Geometric.
template <class T, int N>
SM_INLINE T dot(vec<T, N> x, vec<T, N> y) {
    T sum = x[0] * y[0];
    for (int i = 1; i < N; i++) sum += x[i] * y[i];
    return sum;
}
template <class T, int N>
SM_INLINE T length_squared(vec<T, N> x) {
    return dot(x, x);
}
template <class T, int N>
SM_INLINE T length(vec<T, N> x) {
    return sqrt(dot(x, x));
}
template <class T, int N>
SM_INLINE vec<T, N> normalize(vec<T, N> x) {
    return x * rsqrt(dot(x, x));
}

} // namespace metal
