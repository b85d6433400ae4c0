// The description of a kernel's parameters for the host.
#pragma once
#include "launch.h"

namespace sm {

// Number of an element type; 0 is any other.
template <class T>
constexpr uint element_code() {
    if constexpr (__is_same(T, float)) return 1;
    if constexpr (__is_same(T, half)) return 2;
    if constexpr (__is_same(T, bfloat)) return 3;
    if constexpr (__is_same(T, uint) || __is_same(T, atomic_uint)) return 4;
    if constexpr (__is_same(T, int) || __is_same(T, atomic_int)) return 5;
    if constexpr (__is_same(T, uchar)) return 6;
    if constexpr (__is_same(T, ushort)) return 7;
    return 0;
}

template <class T>
constexpr constant uint space_of = 0;
template <class T>
constexpr constant uint space_of<__global T> = 1;
template <class T>
constexpr constant uint space_of<__constant T> = 2;
template <class T>
constexpr constant uint space_of<const __constant T> = 2;

template <class P, int K, int I>
constexpr SmParameter describe() {
    if constexpr (K == BUFFER) {
        typedef typename pointee<P>::type T;
        typedef decay_t<T> E;
        return SmParameter{K, I, space_of<T>, __is_const(T), element_code<E>(), sizeof(E)};
    } else {
        return SmParameter{K, 0, 0, 0, 0, 0};
    }
}

} // namespace sm
