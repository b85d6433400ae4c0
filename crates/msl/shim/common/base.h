// Qualifiers, scalar and vector types, and the type traits that the other headers need.
#pragma once
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
// For decltype(f) of a function; kernels have no function pointers.
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable

#define device __global
#define threadgroup __local
#define constant const __constant
// As strict as Apple's compiler: pointers to one address space do not convert to another.
#define thread __private

// OpenCL predefines these names.
#define atomic_int sm_atomic_int_t
#define atomic_uint sm_atomic_uint_t
#define atomic_float sm_atomic_float_t
#define atomic_bool sm_atomic_bool_t

#define METAL_FUNC inline __attribute__((always_inline))
#define SM_INLINE inline __attribute__((always_inline))
#define NULL nullptr

typedef decltype(nullptr) nullptr_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef unsigned long uintptr_t;
typedef long intptr_t;
typedef __bf16 bfloat;

#include "abi.h"

namespace metal {

template <class T, T v>
struct integral_constant {
    static constexpr constant T value = v;
    typedef T value_type;
    typedef integral_constant type;
    constexpr operator T() const { return v; }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <bool B, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
    typedef T type;
};
template <bool B, class T = void>
using enable_if_t = typename enable_if<B, T>::type;

template <bool B, class T, class F>
struct conditional {
    typedef T type;
};
template <class T, class F>
struct conditional<false, T, F> {
    typedef F type;
};
template <bool B, class T, class F>
using conditional_t = typename conditional<B, T, F>::type;

template <class T>
struct remove_addrspace {
    typedef T type;
};
template <class T>
struct remove_addrspace<__global T> {
    typedef T type;
};
template <class T>
struct remove_addrspace<__local T> {
    typedef T type;
};
template <class T>
struct remove_addrspace<__constant T> {
    typedef T type;
};
template <class T>
struct remove_addrspace<const __constant T> {
    typedef const T type;
};
template <class T>
struct remove_addrspace<__private T> {
    typedef T type;
};
template <class T>
struct remove_addrspace<__generic T> {
    typedef T type;
};
template <class T>
using remove_addrspace_t = typename remove_addrspace<T>::type;
template <class T>
using remove_cv_t = __remove_cv(T);
template <class T>
using remove_reference_t = __remove_reference_t(T);
template <class T>
using decay_t = remove_addrspace_t<remove_cv_t<remove_addrspace_t<remove_reference_t<T>>>>;

template <class A, class B>
struct is_same : bool_constant<__is_same(A, B)> {};
template <class A, class B>
constexpr constant bool is_same_v = __is_same(A, B);
template <class T>
constexpr constant bool is_floating_point_v = __is_same(T, float) || __is_same(T, half) || __is_same(T, bfloat);
template <class T>
struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <class T>
constexpr constant bool is_integral_v = __is_integral(T);
template <class T>
struct is_integral : bool_constant<__is_integral(T)> {};
template <class T>
constexpr constant bool is_signed_v = __is_signed(T);
template <class T>
constexpr constant bool is_unsigned_v = __is_unsigned(T);
template <class T>
using make_unsigned_t = __make_unsigned(T);

template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));

} // namespace metal

#define SM_VECTORS(T)                                                                                                  \
    typedef T T##2 __attribute__((ext_vector_type(2)));                                                                \
    typedef T T##3 __attribute__((ext_vector_type(3)));                                                                \
    typedef T T##4 __attribute__((ext_vector_type(4)));
SM_VECTORS(float)
SM_VECTORS(half)
SM_VECTORS(bfloat)
SM_VECTORS(int)
SM_VECTORS(uint)
SM_VECTORS(short)
SM_VECTORS(ushort)
SM_VECTORS(char)
SM_VECTORS(uchar)
SM_VECTORS(long)
SM_VECTORS(ulong)
// The front end has no vectors of bool.
typedef uchar2 bool2;
typedef uchar3 bool3;
typedef uchar4 bool4;

namespace sm {
using namespace metal;

// Element type and length of a scalar or vector.
template <class T>
struct shape {
    typedef T element;
    static constexpr constant int length = 1;
    static constexpr constant bool is_vector = false;
};
template <class T, int N>
struct shape<T __attribute__((ext_vector_type(N)))> {
    typedef T element;
    static constexpr constant int length = N;
    static constexpr constant bool is_vector = true;
};
template <class T>
struct shape<const T> : shape<T> {};
template <class T>
using element_t = typename shape<T>::element;
template <class T>
constexpr constant bool is_vector_v = shape<T>::is_vector;

// A value with all bits set: NaN for every float type, and never a value that somebody wanted.
template <class T>
SM_INLINE T poison() {
    T value;
    __builtin_memset(&value, 0xff, sizeof(T));
    return value;
}
} // namespace sm
