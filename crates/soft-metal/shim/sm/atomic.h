// Relaxed atomics on device and threadgroup memory. They are calls, so that a race checker knows them apart from plain
// accesses.
#pragma once
#include "simd.h"

namespace metal {

enum memory_order { memory_order_relaxed = 0 };

template <class T>
struct atomic {
    T value;
};

} // namespace metal

typedef metal::atomic<int> atomic_int;
typedef metal::atomic<uint> atomic_uint;
typedef metal::atomic<float> atomic_float;
typedef metal::atomic<bool> atomic_bool;

namespace sm {

template <class T>
SM_INLINE T atomic_op(uint what, void* address, T value) {
    static_assert(sizeof(T) == 4, "atomics are 32 bits wide");
    if constexpr (__is_same(T, float))
        return sm_atomic_f32(what, address, value);
    else if constexpr (__is_same(T, int))
        return sm_atomic_i32(what, address, value);
    else
        return sm_atomic_u32(what, address, value);
}

template <class T>
struct same {
    typedef T type;
};

} // namespace sm

namespace metal {

#define SM_ATOMIC_RMW(name, what, space)                                                                               \
    template <class T>                                                                                                 \
    SM_INLINE T name(volatile space atomic<T>* object, typename sm::same<T>::type x, memory_order) {                   \
        return sm::atomic_op<T>(what, (void*)&object->value, x);                                                       \
    }
#define SM_ATOMICS(space)                                                                                              \
    template <class T>                                                                                                 \
    SM_INLINE T atomic_load_explicit(const volatile space atomic<T>* object, memory_order) {                           \
        return sm::atomic_op<T>(SM_ATOMIC_LOAD, (void*)&object->value, (T)0);                                          \
    }                                                                                                                  \
    template <class T>                                                                                                 \
    SM_INLINE void atomic_store_explicit(volatile space atomic<T>* object, typename sm::same<T>::type x,               \
                                         memory_order) {                                                               \
        sm::atomic_op<T>(SM_ATOMIC_STORE, (void*)&object->value, x);                                                   \
    }                                                                                                                  \
    template <class T>                                                                                                 \
    SM_INLINE bool atomic_compare_exchange_weak_explicit(volatile space atomic<T>* object, thread T* expected,         \
                                                         typename sm::same<T>::type desired, memory_order,             \
                                                         memory_order) {                                               \
        uint wanted = __builtin_bit_cast(uint, *expected);                                                             \
        uint found = sm_atomic_cas((void*)&object->value, wanted, __builtin_bit_cast(uint, desired));                  \
        *expected = __builtin_bit_cast(T, found);                                                                      \
        return found == wanted;                                                                                        \
    }                                                                                                                  \
    SM_ATOMIC_RMW(atomic_exchange_explicit, SM_ATOMIC_EXCHANGE, space)                                                 \
    SM_ATOMIC_RMW(atomic_fetch_add_explicit, SM_ATOMIC_ADD, space)                                                     \
    SM_ATOMIC_RMW(atomic_fetch_sub_explicit, SM_ATOMIC_SUB, space)                                                     \
    SM_ATOMIC_RMW(atomic_fetch_min_explicit, SM_ATOMIC_MIN, space)                                                     \
    SM_ATOMIC_RMW(atomic_fetch_max_explicit, SM_ATOMIC_MAX, space)                                                     \
    SM_ATOMIC_RMW(atomic_fetch_and_explicit, SM_ATOMIC_AND, space)                                                     \
    SM_ATOMIC_RMW(atomic_fetch_or_explicit, SM_ATOMIC_OR, space)                                                       \
    SM_ATOMIC_RMW(atomic_fetch_xor_explicit, SM_ATOMIC_XOR, space)
SM_ATOMICS(device)
SM_ATOMICS(threadgroup)

} // namespace metal
