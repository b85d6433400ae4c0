// Metal 4 tensors: tensors in memory, cooperative tensors, and matmul2d of MetalPerformancePrimitives.
//
// Which thread holds which element of a cooperative tensor is not part of Metal. Here element x of the row-major tile is
// the thread's element x / threads, and every thread has one element more that is not valid, so that code which assumes
// a layout or forgets `is_valid_element` computes something else.
#pragma once
#include "matrix.h"

namespace metal {

constexpr constant size_t dynamic_extent = ~0ul;
template <class T>
constexpr constant T dynamic_length_v = (T)~0ul;

template <class I, size_t... Extents>
struct extents {
    I values[sizeof...(Extents)];
    template <class... A>
    constexpr extents(A... a) : values{(I)a...} {
        static_assert(sizeof...(A) == sizeof...(Extents), "as many extents as dimensions");
    }
    constexpr I extent(int i) const { return values[i]; }
};
template <class I, int Rank>
struct sm_dextents;
template <class I>
struct sm_dextents<I, 1> {
    typedef extents<I, dynamic_extent> type;
};
template <class I>
struct sm_dextents<I, 2> {
    typedef extents<I, dynamic_extent, dynamic_extent> type;
};
template <class I, int Rank>
using dextents = typename sm_dextents<I, Rank>::type;

struct tensor_inline {};

// A matrix in memory; dimension 0 is the contiguous one. Accesses past the extents read 0 and write nothing.
template <class T, class E, class Tag = tensor_inline>
struct tensor {
    typedef remove_cv_t<remove_addrspace_t<T>> element_type;
    T* sm_data;
    int sm_extents[2];
    long sm_strides[2];

    tensor(T* data, E size) : sm_data(data), sm_extents{(int)size.values[0], (int)size.values[1]} {
        sm_strides[0] = 1;
        sm_strides[1] = sm_extents[0];
    }
    template <class S>
    tensor(T* data, E size, array<S, 2> strides)
        : sm_data(data), sm_extents{(int)size.values[0], (int)size.values[1]} {
        sm_strides[0] = strides[0];
        sm_strides[1] = strides[1];
    }
    // The part from these indices on.
    tensor slice(int first, int second) const {
        tensor part = *this;
        part.sm_data += first * sm_strides[0] + second * sm_strides[1];
        part.sm_extents[0] -= first;
        part.sm_extents[1] -= second;
        return part;
    }
    int get_extent(int i) const { return sm_extents[i]; }

    bool sm_has(int first, int second) const {
        return first >= 0 && second >= 0 && first < sm_extents[0] && second < sm_extents[1];
    }
    element_type sm_get(int first, int second) const {
        return sm_has(first, second) ? (element_type)sm_data[first * sm_strides[0] + second * sm_strides[1]]
                                     : (element_type)0.0f;
    }
    void sm_put(int first, int second, float value) const {
        if (sm_has(first, second)) sm_data[first * sm_strides[0] + second * sm_strides[1]] = (element_type)value;
    }
};
template <class T, class E>
tensor(T*, E) -> tensor<T, E, tensor_inline>;
template <class T, class E, class S>
tensor(T*, E, S) -> tensor<T, E, tensor_inline>;

template <int N>
struct execution_simdgroups {
    static constexpr constant int sm_threads = 32 * N;
};
typedef execution_simdgroups<1> execution_simdgroup;
struct execution_thread {
    static constexpr constant int sm_threads = 1;
};

// Rows x Cols values, spread over the threads of a scope.
template <class T, int Rows, int Cols, int Threads>
struct cooperative_tensor {
    typedef T element_type;
    static constexpr constant int sm_rows = Rows;
    static constexpr constant int sm_cols = Cols;
    static constexpr constant int sm_capacity = (Rows * Cols + Threads - 1) / Threads + 1;
    T sm_values[sm_capacity];

    static int sm_position(int i) { return i * Threads + (int)(sm_thread_index() % Threads); }

    static constexpr int get_capacity() { return sm_capacity; }
    bool is_valid_element(int i) const { return i < sm_capacity - 1 && sm_position(i) < Rows * Cols; }
    // Column and row.
    array<int, 2> get_multidimensional_index(int i) const {
        return array<int, 2>{{sm_position(i) % Cols, sm_position(i) / Cols}};
    }
    T& operator[](int i) { return sm_values[i]; }
    T operator[](int i) const { return sm_values[i]; }
    T* begin() { return sm_values; }
    T* end() { return sm_values + sm_capacity; }

    template <class M>
    void load(thread const M& from) {
        for (int i = 0; i < sm_capacity; i++)
            if (is_valid_element(i)) sm_values[i] = sm::scalar<T>(from.sm_get(sm_position(i) % Cols, sm_position(i) / Cols));
    }
    template <class M>
    void store(thread const M& to) const {
        for (int i = 0; i < sm_capacity; i++)
            if (is_valid_element(i)) to.sm_put(sm_position(i) % Cols, sm_position(i) / Cols, (float)sm_values[i]);
    }
};

} // namespace metal

namespace sm {

template <class T>
struct is_cooperative {
    static constexpr constant bool value = false;
};
template <class T, int R, int C, int N>
struct is_cooperative<cooperative_tensor<T, R, C, N>> {
    static constexpr constant bool value = true;
};

// What stands for a tensor in memory where registers of all lanes meet.
struct Nothing {};
template <class T>
using registers_t = conditional_t<is_cooperative<T>::value, T, Nothing>;
template <class T>
SM_INLINE registers_t<T> registers_of(const T& operand) {
    if constexpr (is_cooperative<T>::value)
        return operand;
    else
        return Nothing{};
}

template <class A, class B>
struct Inputs {
    registers_t<A> a;
    registers_t<B> b;
};

} // namespace sm

namespace mpp {
namespace tensor_ops {
using namespace metal;

struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool left, right;
    mode how;
    constexpr matmul2d_descriptor(int rows, int cols, int inner = (int)dynamic_extent, bool transpose_left = false,
                                  bool transpose_right = false, bool relaxed_precision = false,
                                  mode operation = mode::multiply)
        : m(rows), n(cols), k(inner), left(transpose_left), right(transpose_right), how(operation) {}
    // As a template argument: the language here has none of class type.
    constexpr operator ulong() const {
        return (ulong)(m & 0xffff) | (ulong)(n & 0xffff) << 16 | (ulong)(k & 0xffff) << 32 | (ulong)left << 48 |
               (ulong)right << 49 | (ulong)(how == mode::multiply_accumulate) << 50;
    }
};

template <ulong Descriptor, class Scope>
class matmul2d {
    static constexpr constant int M = Descriptor & 0xffff;
    static constexpr constant int N = Descriptor >> 16 & 0xffff;
    static constexpr constant int K = (short)(Descriptor >> 32 & 0xffff);
    static constexpr constant bool LEFT = Descriptor >> 48 & 1;
    static constexpr constant bool RIGHT = Descriptor >> 49 & 1;
    static constexpr constant bool ACCUMULATE = Descriptor >> 50 & 1;
    static constexpr constant int THREADS = Scope::sm_threads;

    // Element of an operand, from memory or from the registers of the lane that holds it. `Whole`: memory has all of it.
    template <class T, bool Whole>
    SM_INLINE static float element(const T& operand, const uchar* slots, int row, int col, int stride) {
        if constexpr (sm::is_cooperative<T>::value) {
            const int x = row * T::sm_cols + col;
            return (float)((const T*)(slots + x % THREADS * stride))->sm_values[x / THREADS];
        } else if constexpr (Whole) {
            return (float)operand.sm_data[col * operand.sm_strides[0] + row * operand.sm_strides[1]];
        } else {
            return (float)operand.sm_get(col, row);
        }
    }

    template <class T>
    SM_INLINE static bool is_whole(const T& operand, int rows, int cols) {
        if constexpr (sm::is_cooperative<T>::value)
            return true;
        else
            return operand.sm_has(cols - 1, rows - 1);
    }

    template <class A, class B, bool Whole>
    SM_INLINE static float dot(const A& left, const B& right, const sm::Inputs<A, B>* slots, int inner, int row, int col,
                               float sum) {
        const int stride = sizeof(sm::Inputs<A, B>);
        const uchar *a = (const uchar*)&slots->a, *b = (const uchar*)&slots->b;
        for (int k = 0; k < inner; k++)
            sum = __builtin_fmaf(element<A, Whole>(left, a, LEFT ? k : row, LEFT ? row : k, stride),
                                 element<B, Whole>(right, b, RIGHT ? col : k, RIGHT ? k : col, stride), sum);
        return sum;
    }

    // The elements of the result that this thread owns.
    template <bool Whole, class A, class B, class C>
    SM_INLINE static void own(const A& left, const B& right, const sm::Inputs<A, B>* slots, int inner, C& dest) {
        const int first = sm_thread_index() % THREADS;
        for (int x = first; x < M * N; x += THREADS) {
            const int row = x / N, col = x % N;
            if constexpr (sm::is_cooperative<C>::value) {
                float sum = ACCUMULATE ? (float)dest[x / THREADS] : 0.0f;
                dest[x / THREADS] =
                    (typename C::element_type)dot<A, B, Whole>(left, right, slots, inner, row, col, sum);
            } else if (dest.sm_has(col, row)) {
                float sum = ACCUMULATE ? (float)dest.sm_get(col, row) : 0.0f;
                dest.sm_put(col, row, dot<A, B, Whole>(left, right, slots, inner, row, col, sum));
            }
        }
    }

public:
    template <class L, class R, class D>
    auto get_left_input_cooperative_tensor() const {
        static_assert(K > 0, "cooperative inputs need a K known at compile time");
        return cooperative_tensor<L, LEFT ? K : M, LEFT ? M : K, THREADS>{};
    }
    template <class L, class R, class D>
    auto get_right_input_cooperative_tensor() const {
        static_assert(K > 0, "cooperative inputs need a K known at compile time");
        return cooperative_tensor<R, RIGHT ? N : K, RIGHT ? K : N, THREADS>{};
    }
    // Not zeroed: that is the caller's work.
    template <class L, class R, class D>
    auto get_destination_cooperative_tensor() const {
        cooperative_tensor<D, M, N, THREADS> d;
        for (int i = 0; i < d.get_capacity(); i++) d[i] = sm::poison<D>();
        return d;
    }

    // dest = left * right, or += of a descriptor that accumulates; sums in float with k ascending. The lanes of a
    // SIMD-group arrive together.
    template <class A, class B, class C>
    SM_INLINE void run(thread A& left, thread B& right, thread C& dest) const {
        const bool registers = sm::is_cooperative<A>::value || sm::is_cooperative<B>::value;
        static_assert(!registers || THREADS <= 32, "cooperative inputs belong to one SIMD-group or thread");
        int inner = K;
        if constexpr (K <= 0) inner = left.get_extent(LEFT ? 1 : 0);
        typedef sm::Inputs<A, B> Inputs;
        Inputs mine = {sm::registers_of<A>(left), sm::registers_of<B>(right)};
        const Inputs* slots = &mine;
        if constexpr (THREADS > 1) slots = sm::meet(mine).slots();
        if (is_whole<A>(left, LEFT ? inner : M, LEFT ? M : inner) &&
            is_whole<B>(right, RIGHT ? N : inner, RIGHT ? inner : N))
            own<true, A, B, C>(left, right, slots, inner, dest);
        else
            own<false, A, B, C>(left, right, slots, inner, dest);
    }
};

} // namespace tensor_ops
} // namespace mpp
