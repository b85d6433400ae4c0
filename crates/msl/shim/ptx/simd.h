// Barriers and SIMD-group functions: a SIMD-group is a warp, and all its lanes arrive.
#pragma once
#include "math.h"

namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr SM_INLINE mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }

// Barriers order shared and device memory among their threads.
SM_INLINE void threadgroup_barrier(mem_flags flags) { __syncthreads(); }
SM_INLINE void simdgroup_barrier(mem_flags flags) { __asm__ volatile("bar.warp.sync 0xffffffff;" : : : "memory"); }

// Waits until the kernels that this one depends on have ended, and sees what they wrote.
SM_INLINE void wait_for_inputs() { __asm__ volatile("griddepcontrol.wait;" : : : "memory"); }

} // namespace metal

namespace sm {

SM_INLINE uint lane() { return __nvvm_read_ptx_sreg_tid_x() & 31; }

template <class T>
constexpr constant bool in_simd = has_order<T> && sizeof(element_t<T>) <= 4 && !__is_same(element_t<T>, bool);
#define SM_SIMD_TYPE(T)                                                                                                \
    static_assert(sm::in_simd<T>, "SIMD-group functions take float, half and integers of at most 32 bits");

// A value of at most 32 bits as a word, and back.
template <class T>
SM_INLINE uint word_of(T x) {
    if constexpr (__is_same(T, float))
        return __builtin_bit_cast(uint, x);
    else if constexpr (__is_same(T, half))
        return __builtin_bit_cast(ushort, x);
    else
        return (uint)x;
}
template <class T>
SM_INLINE T of_word(uint word) {
    if constexpr (__is_same(T, float))
        return __builtin_bit_cast(float, word);
    else if constexpr (__is_same(T, half))
        return __builtin_bit_cast(half, (ushort)word);
    else
        return (T)word;
}

SM_INLINE uint word_from(uint word, uint from) {
    uint got;
    __asm__ volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(got) : "r"(word), "r"(from));
    return got;
}
SM_INLINE uint word_across(uint word, uint mask) {
    uint got;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(got) : "r"(word), "r"(mask));
    return got;
}

template <class T>
SM_INLINE T from_lane(T x, uint from) {
    SM_SIMD_TYPE(T)
    return each(x, [=](element_t<T> e) { return of_word<element_t<T>>(word_from(word_of<element_t<T>>(e), from)); });
}
template <class T>
SM_INLINE T across(T x, uint mask) {
    SM_SIMD_TYPE(T)
    return each(x, [=](element_t<T> e) { return of_word<element_t<T>>(word_across(word_of<element_t<T>>(e), mask)); });
}

// What has an instruction of its own: sums, largest and smallest of 32-bit integers.
#define SM_REDUX(name, T, instruction)                                                                                 \
    SM_INLINE T name(T x) {                                                                                            \
        T out;                                                                                                         \
        __asm__ volatile("redux.sync." instruction " %0, %1, 0xffffffff;" : "=r"(out) : "r"(x));                       \
        return out;                                                                                                    \
    }
SM_REDUX(redux_sum, uint, "add.u32")
SM_REDUX(redux_max, uint, "max.u32")
SM_REDUX(redux_min, uint, "min.u32")

// The same in every lane, and the same to the bit.
template <class T, class F>
SM_INLINE T reduce(T x, F f) {
    SM_SIMD_TYPE(T)
#pragma clang loop unroll(full)
    for (uint mask = 16; mask > 0; mask /= 2) x = f(x, across(x, mask));
    return x;
}

// f over the lanes before this one, starting from `identity`, and this one too if `inclusive`.
template <class T, class F>
SM_INLINE T prefix(T x, T identity, bool inclusive, F f) {
    SM_SIMD_TYPE(T)
    const uint own = lane();
#pragma clang loop unroll(full)
    for (uint distance = 1; distance < 32; distance *= 2) {
        const T before = from_lane(x, own - distance);
        x = own >= distance ? f(before, x) : x;
    }
    if (inclusive) return x;
    const T before = from_lane(x, own - 1);
    return own == 0 ? identity : before;
}

SM_INLINE uint ballot(bool vote) {
    uint bits;
    __asm__ volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
                     : "=r"(bits)
                     : "r"((uint)vote));
    return bits;
}

} // namespace sm

namespace metal {

#define SM_REDUCTION(name, expression)                                                                                 \
    template <class T>                                                                                                 \
    SM_INLINE T name(T x) {                                                                                            \
        return sm::reduce(x, [](T a, T b) { return (T)(expression); });                                                \
    }
SM_REDUCTION(simd_sum, a + b)
SM_REDUCTION(simd_product, a* b)
SM_REDUCTION(simd_max, metal::max(a, b))
SM_REDUCTION(simd_min, metal::min(a, b))
SM_REDUCTION(simd_and, a& b)
SM_REDUCTION(simd_or, a | b)
SM_REDUCTION(simd_xor, a ^ b)
SM_INLINE uint simd_sum(uint x) { return sm::redux_sum(x); }
SM_INLINE uint simd_max(uint x) { return sm::redux_max(x); }
SM_INLINE uint simd_min(uint x) { return sm::redux_min(x); }

#define SM_PREFIX(name, identity, inclusive, expression)                                                               \
    template <class T>                                                                                                 \
    SM_INLINE T name(T x) {                                                                                            \
        return sm::prefix(x, (T)(sm::element_t<T>)(identity), inclusive, [](T a, T b) { return (T)(expression); });    \
    }
SM_PREFIX(simd_prefix_inclusive_sum, 0, true, a + b)
SM_PREFIX(simd_prefix_exclusive_sum, 0, false, a + b)
SM_PREFIX(simd_prefix_inclusive_product, 1, true, a* b)
SM_PREFIX(simd_prefix_exclusive_product, 1, false, a* b)

template <class T>
SM_INLINE T simd_shuffle(T x, ushort lane) {
    return sm::from_lane(x, lane);
}
template <class T>
SM_INLINE T simd_broadcast(T x, ushort lane) {
    return sm::from_lane(x, lane);
}
template <class T>
SM_INLINE T simd_shuffle_xor(T x, ushort mask) {
    return sm::across(x, mask);
}
// Lanes that would read past the end keep their own value.
template <class T>
SM_INLINE T simd_shuffle_down(T x, ushort delta) {
    const uint own = sm::lane();
    return sm::from_lane(x, own + delta < 32 ? own + delta : own);
}
template <class T>
SM_INLINE T simd_shuffle_up(T x, ushort delta) {
    const uint own = sm::lane();
    return sm::from_lane(x, own >= delta ? own - delta : own);
}
template <class T>
SM_INLINE T simd_shuffle_rotate_down(T x, ushort delta) {
    return sm::from_lane(x, (sm::lane() + delta) & 31);
}
template <class T>
SM_INLINE T simd_shuffle_rotate_up(T x, ushort delta) {
    return sm::from_lane(x, (sm::lane() - delta) & 31);
}
template <class T>
SM_INLINE T simd_broadcast_first(T x) {
    return sm::from_lane(x, 0);
}

struct simd_vote {
    ulong bits;
    explicit simd_vote(ulong b = 0) : bits(b) {}
    explicit operator ulong() const { return bits; }
    bool all() const { return bits == 0xfffffffful; }
    bool any() const { return bits != 0; }
};
SM_INLINE simd_vote simd_ballot(bool vote) { return simd_vote(sm::ballot(vote)); }
SM_INLINE bool simd_any(bool vote) { return sm::ballot(vote) != 0; }
SM_INLINE bool simd_all(bool vote) { return sm::ballot(!vote) == 0; }

} // namespace metal
