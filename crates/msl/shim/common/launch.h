// From launch parameters to kernel arguments.
#pragma once
#include "atomic.h"
#include "matrix.h"

namespace sm {

// Numbers shared with soft-metal's src/abi.rs.
enum Kind {
    BUFFER,
    THREAD_POSITION_IN_GRID,
    THREADGROUP_POSITION_IN_GRID,
    THREAD_POSITION_IN_THREADGROUP,
    THREAD_INDEX_IN_THREADGROUP,
    SIMDGROUP_INDEX_IN_THREADGROUP,
    THREAD_INDEX_IN_SIMDGROUP,
    THREADS_PER_THREADGROUP,
    THREADGROUPS_PER_GRID,
    THREADS_PER_GRID,
    SIMDGROUPS_PER_THREADGROUP,
    THREADS_PER_SIMDGROUP,
};

// A builtin as a scalar (the x dimension) or a vector of 2 or 3.
template <class T>
SM_INLINE T position(uint x, uint y, uint z) {
    typedef element_t<T> E;
    if constexpr (!is_vector_v<T>)
        return (T)x;
    else if constexpr (shape<T>::length == 2)
        return T{(E)x, (E)y};
    else
        return T{(E)x, (E)y, (E)z};
}

template <class T>
struct pointee {
    static constexpr constant bool is_reference = false;
};
template <class T>
struct pointee<T&> {
    typedef T type;
    static constexpr constant bool is_reference = true;
};
template <class T>
struct pointee<T*> {
    typedef T type;
    static constexpr constant bool is_reference = false;
};

template <class P, int K, int I>
SM_INLINE P argument(const SmThread& t) {
    const SmLaunch& l = *t.launch;
    if constexpr (K == BUFFER) {
        if constexpr (pointee<P>::is_reference)
            return *(typename pointee<P>::type*)l.buffers[I];
        else
            return (P)l.buffers[I];
    } else if constexpr (K == THREAD_POSITION_IN_GRID) {
        return position<P>(t.group[0] * l.threads + t.index, t.group[1], t.group[2]);
    } else if constexpr (K == THREADGROUP_POSITION_IN_GRID) {
        return position<P>(t.group[0], t.group[1], t.group[2]);
    } else if constexpr (K == THREAD_POSITION_IN_THREADGROUP) {
        return position<P>(t.index, 0, 0);
    } else if constexpr (K == THREAD_INDEX_IN_THREADGROUP) {
        return (P)t.index;
    } else if constexpr (K == SIMDGROUP_INDEX_IN_THREADGROUP) {
        return (P)t.simdgroup;
    } else if constexpr (K == THREAD_INDEX_IN_SIMDGROUP) {
        return (P)t.lane;
    } else if constexpr (K == THREADS_PER_THREADGROUP) {
        return position<P>(l.threads, 1, 1);
    } else if constexpr (K == THREADGROUPS_PER_GRID) {
        return position<P>(l.threadgroups[0], l.threadgroups[1], l.threadgroups[2]);
    } else if constexpr (K == THREADS_PER_GRID) {
        return position<P>(l.threadgroups[0] * l.threads, l.threadgroups[1], l.threadgroups[2]);
    } else if constexpr (K == SIMDGROUPS_PER_THREADGROUP) {
        return (P)t.simdgroups;
    } else {
        static_assert(K == THREADS_PER_SIMDGROUP, "unknown builtin");
        return (P)32;
    }
}

template <int N, class First, class... Rest>
struct nth {
    typedef typename nth<N - 1, Rest...>::type type;
};
template <class First, class... Rest>
struct nth<0, First, Rest...> {
    typedef First type;
};
template <class F, int N>
struct parameter;
template <class... P, int N>
struct parameter<void(P...), N> {
    typedef typename nth<N, P...>::type type;
};
template <class F, int N>
using parameter_t = typename parameter<F, N>::type;

} // namespace sm
