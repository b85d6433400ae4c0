// Constructors and conversions. The rewriter turns `float4(..)`, `(float4)x`, `half(x)` into the templates of this file,
// because the front end's own forms are OpenCL's, not Metal's.
#pragma once
#include "base.h"

namespace sm {
// Packed vectors enter expressions as plain ones.
template <class T>
SM_INLINE constexpr T unpacked(T v) {
    return v;
}
} // namespace sm

#define SM_PACKED(T)                                                                                                   \
    struct packed_##T##2 {                                                                                             \
        T x, y;                                                                                                        \
        packed_##T##2() = default;                                                                                     \
        packed_##T##2(T a, T b) : x(a), y(b) {}                                                                        \
        packed_##T##2(T##2 v) : x(v.x), y(v.y) {}                                                                      \
        operator T##2() const { return T##2{x, y}; }                                                                   \
        T operator[](int i) const { return i == 0 ? x : y; }                                                           \
    };                                                                                                                 \
    struct packed_##T##3 {                                                                                             \
        T x, y, z;                                                                                                     \
        packed_##T##3() = default;                                                                                     \
        packed_##T##3(T a, T b, T c) : x(a), y(b), z(c) {}                                                             \
        packed_##T##3(T##3 v) : x(v.x), y(v.y), z(v.z) {}                                                              \
        operator T##3() const { return T##3{x, y, z}; }                                                                \
        T operator[](int i) const { return i == 0 ? x : i == 1 ? y : z; }                                              \
    };                                                                                                                 \
    struct packed_##T##4 {                                                                                             \
        T x, y, z, w;                                                                                                  \
        packed_##T##4() = default;                                                                                     \
        packed_##T##4(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}                                                  \
        packed_##T##4(T##4 v) : x(v.x), y(v.y), z(v.z), w(v.w) {}                                                      \
        operator T##4() const { return T##4{x, y, z, w}; }                                                             \
        T operator[](int i) const { return i == 0 ? x : i == 1 ? y : i == 2 ? z : w; }                                 \
    };                                                                                                                 \
    namespace sm {                                                                                                     \
    SM_INLINE T##2 unpacked(packed_##T##2 v) { return v; }                                                             \
    SM_INLINE T##3 unpacked(packed_##T##3 v) { return v; }                                                             \
    SM_INLINE T##4 unpacked(packed_##T##4 v) { return v; }                                                             \
    }
SM_PACKED(float)
SM_PACKED(half)
SM_PACKED(bfloat)
SM_PACKED(int)
SM_PACKED(uint)
SM_PACKED(short)
SM_PACKED(ushort)
SM_PACKED(char)
SM_PACKED(uchar)

namespace sm {

// One scalar into another type. half and bfloat only meet in float.
template <class To, class From>
SM_INLINE constexpr To scalar(From x) {
    if constexpr ((__is_same(To, bfloat) && __is_same(From, half)) || (__is_same(To, half) && __is_same(From, bfloat)))
        return (To)(float)x;
    else
        return (To)x;
}

template <class To, class From>
SM_INLINE constexpr auto elements(From v) {
    typedef vec<To, shape<From>::length> V;
    if constexpr (__is_same(element_t<From>, To))
        return v;
    else if constexpr ((__is_same(To, bfloat) && __is_same(element_t<From>, half)) ||
                       (__is_same(To, half) && __is_same(element_t<From>, bfloat)))
        return __builtin_convertvector(__builtin_convertvector(v, vec<float, shape<From>::length>), V);
    else
        return __builtin_convertvector(v, V);
}

template <class V, int I>
SM_INLINE constexpr void place(V&) {}
template <class V, int I, class A, class... Rest>
SM_INLINE constexpr void place(V& v, A a, Rest... rest) {
    typedef element_t<V> E;
    if constexpr (is_vector_v<A>) {
        for (int i = 0; i < shape<A>::length; i++) v[I + i] = scalar<E>(a[i]);
    } else {
        v[I] = scalar<E>(a);
    }
    place<V, I + shape<A>::length>(v, rest...);
}

// `(T)x` and `T(x)` on values.
template <class T, class From>
SM_INLINE constexpr T cast(From from) {
    auto x = unpacked(from);
    typedef decay_t<decltype(x)> X;
    if constexpr (is_vector_v<T> && is_vector_v<X>) {
        static_assert(shape<T>::length == shape<X>::length, "a vector converts to one of its own length");
        return elements<element_t<T>>(x);
    } else if constexpr (is_vector_v<T>) {
        return (T)scalar<element_t<T>>(x);
    } else if constexpr (is_floating_point_v<T> && is_floating_point_v<X>) {
        return scalar<T>(x);
    } else {
        return (T)x;
    }
}

// `T(..)`: zero, splat, conversion, or piece by piece.
template <class T>
SM_INLINE constexpr T make() {
    return T{};
}
template <class T, class From>
SM_INLINE constexpr T make(From x) {
    return cast<T>(x);
}
template <class T, class A, class B, class... Rest>
SM_INLINE constexpr T make(A a, B b, Rest... rest) {
    if constexpr (is_vector_v<T>) {
        typedef element_t<T> E;
        static_assert(((shape<A>::length + shape<B>::length) + ... + shape<Rest>::length) == shape<T>::length,
                      "a vector is made of exactly as many elements as it has");
        if constexpr (sizeof...(Rest) + 2 == shape<T>::length) {
            return T{scalar<E>(a), scalar<E>(b), scalar<E>(rest)...};
        } else {
            T v{};
            place<T, 0>(v, a, b, rest...);
            return v;
        }
    } else {
        return T(a, b, rest...);
    }
}

} // namespace sm

template <class To, class From>
SM_INLINE constexpr To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
    return __builtin_bit_cast(To, from);
}

namespace metal {

template <class T, size_t N>
struct array {
    T e[N];
    constexpr T operator[](int i) const { return e[i]; }
    T& operator[](int i) { return e[i]; }
    constexpr size_t size() const { return N; }
};

template <class T>
struct numeric_limits;
#define SM_INTEGER_LIMITS(T, low, high)                                                                                \
    template <>                                                                                                        \
    struct numeric_limits<T> {                                                                                         \
        static constexpr T min() { return (T)(low); }                                                                  \
        static constexpr T lowest() { return (T)(low); }                                                               \
        static constexpr T max() { return (T)(high); }                                                                 \
    };
SM_INTEGER_LIMITS(char, -128, 127)
SM_INTEGER_LIMITS(uchar, 0, 255)
SM_INTEGER_LIMITS(short, -32768, 32767)
SM_INTEGER_LIMITS(ushort, 0, 65535)
SM_INTEGER_LIMITS(int, -2147483647 - 1, 2147483647)
SM_INTEGER_LIMITS(uint, 0, 0xffffffffu)
SM_INTEGER_LIMITS(long, -0x7fffffffffffffffl - 1, 0x7fffffffffffffffl)
SM_INTEGER_LIMITS(ulong, 0, 0xfffffffffffffffful)
#define SM_FLOAT_LIMITS(T, low, high, eps)                                                                             \
    template <>                                                                                                        \
    struct numeric_limits<T> {                                                                                         \
        static constexpr T min() { return (T)(low); }                                                                  \
        static constexpr T max() { return (T)(high); }                                                                 \
        static constexpr T lowest() { return (T)(-(high)); }                                                           \
        static constexpr T epsilon() { return (T)(eps); }                                                              \
        static constexpr T infinity() { return (T)__builtin_inff(); }                                                  \
        static constexpr T quiet_NaN() { return (T)__builtin_nanf(""); }                                               \
    };
SM_FLOAT_LIMITS(float, 1.175494351e-38f, 3.402823466e+38f, 1.1920929e-7f)
SM_FLOAT_LIMITS(half, 6.103515625e-5f, 65504.0f, 9.765625e-4f)
SM_FLOAT_LIMITS(bfloat, 1.175494351e-38f, 3.3895314e38f, 7.8125e-3f)

} // namespace metal
