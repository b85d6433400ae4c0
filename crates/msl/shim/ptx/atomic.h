// Relaxed atomics on device and threadgroup memory.
#pragma once
#include "simd.h"

namespace metal {

enum memory_order { memory_order_relaxed = __ATOMIC_RELAXED };

template <class T>
struct atomic {
    T value;
};

} // namespace metal

typedef metal::atomic<int> atomic_int;
typedef metal::atomic<uint> atomic_uint;

namespace sm {
template <class T>
struct same {
    typedef T type;
};
} // namespace sm

namespace metal {

#define SM_ATOMIC_RMW(name, builtin, space)                                                                            \
    template <class T>                                                                                                 \
    SM_INLINE T name(volatile space atomic<T>* object, typename sm::same<T>::type x, memory_order) {                   \
        return builtin(&object->value, x, __ATOMIC_RELAXED);                                                           \
    }
#define SM_ATOMICS(space)                                                                                              \
    template <class T>                                                                                                 \
    SM_INLINE T atomic_load_explicit(const volatile space atomic<T>* object, memory_order) {                           \
        return __atomic_load_n(&object->value, __ATOMIC_RELAXED);                                                      \
    }                                                                                                                  \
    template <class T>                                                                                                 \
    SM_INLINE void atomic_store_explicit(volatile space atomic<T>* object, typename sm::same<T>::type x,               \
                                         memory_order) {                                                               \
        __atomic_store_n(&object->value, x, __ATOMIC_RELAXED);                                                         \
    }                                                                                                                  \
    SM_ATOMIC_RMW(atomic_exchange_explicit, __atomic_exchange_n, space)                                                \
    SM_ATOMIC_RMW(atomic_fetch_add_explicit, __atomic_fetch_add, space)                                                \
    SM_ATOMIC_RMW(atomic_fetch_sub_explicit, __atomic_fetch_sub, space)                                                \
    SM_ATOMIC_RMW(atomic_fetch_min_explicit, __atomic_fetch_min, space)                                                \
    SM_ATOMIC_RMW(atomic_fetch_max_explicit, __atomic_fetch_max, space)                                                \
    SM_ATOMIC_RMW(atomic_fetch_and_explicit, __atomic_fetch_and, space)                                                \
    SM_ATOMIC_RMW(atomic_fetch_or_explicit, __atomic_fetch_or, space)                                                  \
    SM_ATOMIC_RMW(atomic_fetch_xor_explicit, __atomic_fetch_xor, space)
SM_ATOMICS(device)
SM_ATOMICS(threadgroup)

} // namespace metal
