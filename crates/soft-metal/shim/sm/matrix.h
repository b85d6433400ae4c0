// simdgroup_matrix: 8x8 tiles spread over the lanes of a SIMD-group, two elements a lane.
//
// Which lane holds which element is not part of Metal, so there is no `thread_elements()`, and the lanes are not in the order
// that comes to mind first: a kernel that counts on a lane loading what it has just stored itself has a race.
#pragma once
#include "simd.h"

namespace sm {

// Place of a lane's two elements among the 32 pairs of a tile, row by row.
SM_INLINE uint pair_of(uint lane) { return lane ^ 21; }

// Row and first column of the two elements that a lane holds.
SM_INLINE uint2 fragment(uint lane) { return uint2{pair_of(lane) >> 2, (pair_of(lane) & 3) * 2}; }

SM_INLINE uint lane() { return sm_thread_index() & 31; }

} // namespace sm

namespace metal {

template <class T, int Cols, int Rows>
struct simdgroup_matrix {
    static_assert(Cols == 8 && Rows == 8, "SIMD-group matrices are 8x8");
    static_assert(is_floating_point_v<T>, "SIMD-group matrices hold float, half or bfloat");
    vec<T, 2> sm_elements;
    simdgroup_matrix() = default;
    // d on the diagonal, 0 elsewhere.
    explicit simdgroup_matrix(T d) {
        uint2 at = sm::fragment(sm::lane());
        sm_elements = vec<T, 2>{at.x == at.y ? d : (T)0.0f, at.x == at.y + 1 ? d : (T)0.0f};
    }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
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
        uint2 at = sm::fragment(sm::lane());                                                                           \
        src += origin.y * elements_per_row + origin.x;                                                                 \
        ulong first = transpose ? at.y * elements_per_row + at.x : at.x * elements_per_row + at.y;                     \
        ulong second = first + (transpose ? elements_per_row : 1);                                                     \
        d.sm_elements = vec<T, 2>{src[first], src[second]};                                                            \
    }                                                                                                                  \
    template <class T>                                                                                                 \
    SM_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> a, space T* dst, ulong elements_per_row = 8,              \
                                   ulong2 origin = ulong2{0, 0}, bool transpose = false) {                             \
        uint2 at = sm::fragment(sm::lane());                                                                           \
        dst += origin.y * elements_per_row + origin.x;                                                                 \
        ulong first = transpose ? at.y * elements_per_row + at.x : at.x * elements_per_row + at.y;                     \
        ulong second = first + (transpose ? elements_per_row : 1);                                                     \
        dst[first] = a.sm_elements.x;                                                                                  \
        dst[second] = a.sm_elements.y;                                                                                 \
    }
SM_MATRIX_MEMORY(device)
SM_MATRIX_MEMORY(threadgroup)

} // namespace metal

namespace sm {

template <class A, class B, class C>
struct Operands {
    vec<A, 2> a;
    vec<B, 2> b;
    vec<C, 2> c;
};

// Row-major 8x8 floats of one operand of all lanes.
template <class T, int Stride>
SM_INLINE void spread(const uchar* elements, float* out) {
    for (uint l = 0; l < 32; l++) {
        vec<T, 2> v = *(const vec<T, 2>*)(elements + l * Stride);
        out[2 * pair_of(l)] = (float)v.x;
        out[2 * pair_of(l) + 1] = (float)v.y;
    }
}

// a * b + c of all lanes into the result, summed in float with k ascending.
template <class A, class B, class C>
SM_OUTLINE void multiply_slots(SmArea* area) {
    typedef Operands<A, B, C> Each;
    float left[64], right[64], sum[64];
    spread<A, sizeof(Each)>(area->slots + __builtin_offsetof(Each, a), left);
    spread<B, sizeof(Each)>(area->slots + __builtin_offsetof(Each, b), right);
    spread<C, sizeof(Each)>(area->slots + __builtin_offsetof(Each, c), sum);
    typedef vec<float, 8> Row;
    Row rows[8];
    for (int k = 0; k < 8; k++) __builtin_memcpy(&rows[k], right + 8 * k, sizeof(Row));
    for (int i = 0; i < 8; i++) {
        Row row;
        __builtin_memcpy(&row, sum + 8 * i, sizeof(Row));
        for (int k = 0; k < 8; k++) row = __builtin_elementwise_fma((Row)left[8 * i + k], rows[k], row);
        __builtin_memcpy(area->result + 32 * i, &row, sizeof(Row));
    }
    area->done = 1;
}

} // namespace sm

namespace metal {

// d = a * b + c.
template <class D, class A, class B, class C>
SM_INLINE void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                             simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c) {
    static_assert(is_same_v<A, B> && is_same_v<C, D>, "operands have one type, and so have sum and result");
    typedef sm::Operands<A, B, C> Operands;
    Operands mine = {a.sm_elements, b.sm_elements, c.sm_elements};
    sm::Met<Operands> m = sm::meet(mine);
    if (!m.area->done) sm::multiply_slots<A, B, C>(m.area);
    const float* sum = (const float*)m.area->result + 2 * sm::pair_of(m.lane);
    d.sm_elements = vec<D, 2>{(D)sum[0], (D)sum[1]};
}

template <class D, class A, class B>
SM_INLINE void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                  simdgroup_matrix<B, 8, 8> b) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>((D)0.0f));
}

} // namespace metal
