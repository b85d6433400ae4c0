// simdgroup_matrix: 8x8 tiles spread over the lanes of a warp, two neighbouring elements of row lane / 4 in each lane. That
// is how the tensor cores hold sums and left operands; a right operand is transposed on the way in. Products of bf16
// are the upper half of an m16n8k8 operation, those of floats go by shuffles.
#pragma once
#include "simd.h"

namespace metal {

template <class T, int Cols, int Rows>
struct simdgroup_matrix {
    static_assert(Cols == 8 && Rows == 8, "SIMD-group matrices are 8x8");
    static_assert(is_same_v<T, float> || is_same_v<T, bfloat>, "SIMD-group matrices hold float or bfloat here");
    vec<T, 2> sm_elements;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Cols, int Rows>
SM_INLINE simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, Cols, Rows> m;
    m.sm_elements = (vec<T, 2>)value;
    return m;
}

#define SM_MATRIX_MEMORY(space)                                                                                        \
    template <class T>                                                                                                 \
    SM_INLINE void simdgroup_load(thread simdgroup_matrix<T, 8, 8>& d, const space T* src,                             \
                                  ulong elements_per_row = 8, ulong2 origin = ulong2{0, 0}, bool transpose = false) {  \
        const uint row = sm::lane() >> 2, col = (sm::lane() & 3) * 2;                                                  \
        src += origin.y * elements_per_row + origin.x;                                                                 \
        const ulong first = transpose ? col * elements_per_row + row : row * elements_per_row + col;                   \
        const ulong second = first + (transpose ? elements_per_row : 1);                                               \
        d.sm_elements = vec<T, 2>{src[first], src[second]};                                                            \
    }                                                                                                                  \
    template <class T>                                                                                                 \
    SM_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> a, space T* dst, ulong elements_per_row = 8,              \
                                   ulong2 origin = ulong2{0, 0}, bool transpose = false) {                             \
        const uint row = sm::lane() >> 2, col = (sm::lane() & 3) * 2;                                                  \
        dst += origin.y * elements_per_row + origin.x;                                                                 \
        const ulong first = transpose ? col * elements_per_row + row : row * elements_per_row + col;                   \
        const ulong second = first + (transpose ? elements_per_row : 1);                                               \
        dst[first] = a.sm_elements.x;                                                                                  \
        dst[second] = a.sm_elements.y;                                                                                 \
    }
SM_MATRIX_MEMORY(device)
SM_MATRIX_MEMORY(threadgroup)

// d = a * b + c.
template <class D, class A, class B, class C>
SM_INLINE void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                             simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c) {
    static_assert(is_same_v<A, B> && is_same_v<C, D> && is_same_v<D, float>, "operands have one type, sums are floats");
    if constexpr (is_same_v<A, bfloat>) {
        const uint left = __builtin_bit_cast(uint, a.sm_elements), right = __builtin_bit_cast(uint, b.sm_elements);
        float x = c.sm_elements.x, y = c.sm_elements.y, lower_x = 0.0f, lower_y = 0.0f;
        uint columns;
        __asm__ volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(right));
        __asm__ volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                         "{%0, %1, %2, %3};"
                         : "+f"(x), "+f"(y), "+f"(lower_x), "+f"(lower_y)
                         : "r"(left), "r"(0), "r"(columns));
        d.sm_elements = vec<float, 2>{x, y};
    } else {
        const uint lane = sm::lane();
        vec<float, 2> sum = c.sm_elements;
#pragma clang loop unroll(full)
        for (uint k = 0; k < 8; k++) {
            const float left = sm::from_lane(k % 2 == 0 ? a.sm_elements.x : a.sm_elements.y, (lane & 28) + k / 2);
            const uint from = k * 4 + (lane & 3);
            sum.x = __builtin_fmaf(left, sm::from_lane(b.sm_elements.x, from), sum.x);
            sum.y = __builtin_fmaf(left, sm::from_lane(b.sm_elements.y, from), sum.y);
        }
        d.sm_elements = sum;
    }
}

template <class D, class A, class B>
SM_INLINE void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                  simdgroup_matrix<B, 8, 8> b) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>((D)0.0f));
}

} // namespace metal
