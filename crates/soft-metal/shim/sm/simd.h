// Barriers and SIMD-group functions. Each is one meeting of the SIMD-group's lanes (abi.h).
#pragma once
#include "math.h"

namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr SM_INLINE mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }

SM_INLINE void threadgroup_barrier(mem_flags flags) { sm_threadgroup_barrier((uint)flags); }
SM_INLINE void simdgroup_barrier(mem_flags flags) { sm_simdgroup_barrier((uint)flags); }

} // namespace metal

namespace sm {

// What all lanes brought to a meeting.
template <class T>
struct Met {
    SmArea* area;
    uint mask;
    uint lane;

    const T* slots() const { return (const T*)area->slots; }
    bool has(uint i) const { return i < 32 && (mask >> i & 1); }
    // What lane i brought. What an absent lane brings is undefined in Metal; here it is poison.
    T of(uint i) const { return has(i) ? slots()[i] : poison<T>(); }
};

template <class T>
SM_INLINE Met<T> meet(T value) {
    static_assert(sizeof(T) <= 1024, "at most 1 KiB a lane");
    SmMeeting m = sm_meet(&value, sizeof(T));
    Met<T> met;
    met.area = m.area;
    met.mask = m.area->mask;
    met.lane = (uint)m.lane;
    return met;
}

template <class T>
constexpr constant bool in_simd = has_order<T> && sizeof(element_t<T>) <= 4 && !__is_same(element_t<T>, bool);
#define SM_SIMD_TYPE(T)                                                                                                \
    static_assert(sm::in_simd<T>, "SIMD-group functions take float, half and integers of at most 32 bits");

// What the first lane to run on does for all. Not inlined, because kernels have hundreds of calls; not instrumented,
// because it touches nothing of the kernel's.
#define SM_OUTLINE __attribute__((noinline, no_sanitize("thread", "alignment", "array-bounds")))

// Combines what the present lanes brought: neighbours at half the distance first, as a tree.
template <class T, class F>
SM_OUTLINE void reduce_slots(SmArea* area, F f) {
    T v[32];
    int count = 0;
    for (uint i = 0; i < 32; i++)
        if (area->mask >> i & 1) v[count++] = ((const T*)area->slots)[i];
    while (count > 1) {
        int half_count = (count + 1) / 2;
        for (int i = 0; i + half_count < count; i++) v[i] = f(v[i], v[i + half_count]);
        count = half_count;
    }
    *(T*)area->result = v[0];
    area->done = 1;
}

template <class T, class F>
SM_INLINE T reduce(T value, F f) {
    SM_SIMD_TYPE(T)
    Met<T> m = meet(value);
    if (!m.area->done) reduce_slots<T>(m.area, f);
    return *(const T*)m.area->result;
}

// f over the present lanes before this one, starting from `identity`, and this one too if `inclusive`.
template <class T, class F>
SM_INLINE T prefix(T value, T identity, bool inclusive, F f) {
    SM_SIMD_TYPE(T)
    Met<T> m = meet(value);
    T sum = identity;
    for (uint i = 0; i < m.lane + inclusive; i++)
        if (m.has(i)) sum = f(sum, m.slots()[i]);
    return sum;
}

SM_INLINE ulong ballot(bool vote) {
    Met<uchar> m = meet((uchar)vote);
    ulong bits = 0;
    for (uint i = 0; i < 32; i++)
        if (m.has(i) && m.slots()[i]) bits |= 1ul << i;
    return bits;
}

// What lane `from(lane)` brought.
template <class T, class F>
SM_INLINE T shuffle(T value, F from) {
    SM_SIMD_TYPE(T)
    Met<T> m = meet(value);
    return m.of(from(m.lane));
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
    return sm::shuffle(x, [=](uint) { return (uint)lane; });
}
template <class T>
SM_INLINE T simd_broadcast(T x, ushort lane) {
    return sm::shuffle(x, [=](uint) { return (uint)lane; });
}
template <class T>
SM_INLINE T simd_shuffle_xor(T x, ushort mask) {
    return sm::shuffle(x, [=](uint l) { return l ^ mask; });
}
// Lanes that would read past the end keep their own value.
template <class T>
SM_INLINE T simd_shuffle_down(T x, ushort delta) {
    return sm::shuffle(x, [=](uint l) { return l + delta < 32 ? l + delta : l; });
}
template <class T>
SM_INLINE T simd_shuffle_up(T x, ushort delta) {
    return sm::shuffle(x, [=](uint l) { return l >= delta ? l - delta : l; });
}
template <class T>
SM_INLINE T simd_shuffle_rotate_down(T x, ushort delta) {
    return sm::shuffle(x, [=](uint l) { return (l + delta) & 31; });
}
template <class T>
SM_INLINE T simd_shuffle_rotate_up(T x, ushort delta) {
    return sm::shuffle(x, [=](uint l) { return (l - delta) & 31; });
}
template <class T>
SM_INLINE T simd_broadcast_first(T x) {
    SM_SIMD_TYPE(T)
    sm::Met<T> m = sm::meet(x);
    return m.of((uint)__builtin_ctz(m.mask));
}

struct simd_vote {
    ulong bits;
    explicit simd_vote(ulong b = 0) : bits(b) {}
    explicit operator ulong() const { return bits; }
    bool all() const { return bits == 0xfffffffful; }
    bool any() const { return bits != 0; }
};
SM_INLINE simd_vote simd_ballot(bool vote) { return simd_vote(sm::ballot(vote)); }
SM_INLINE simd_vote simd_active_threads_mask() { return simd_vote(sm::ballot(true)); }
SM_INLINE bool simd_any(bool vote) { return sm::ballot(vote) != 0; }
SM_INLINE bool simd_all(bool vote) { return sm::ballot(!vote) == 0; }
SM_INLINE bool simd_is_first() {
    sm::Met<uchar> m = sm::meet((uchar)0);
    return m.lane == (uint)__builtin_ctz(m.mask);
}

} // namespace metal
