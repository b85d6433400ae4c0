// Instructions of NVIDIA's GPUs that kernel text may use where it is made for them: what crates/msl/shim/ptx/instructions.h and
// warpgroup.h give on such a GPU, from which the two say what each does.
//
// Copies are in memory, and products done, when they are started or only when they are waited for, as the run time's order of lanes
// has it. What is not shown by this: that registers which a product reads stay as they are meanwhile, and that what makes
// threadgroup memory visible to products stands where it must.
#pragma once
#include "matrix.h"

template <uint Count>
SM_INLINE void limit_registers() {}

SM_INLINE void wait_for_inputs() { sm_wait_for_inputs(); }

// Kernels have hundreds of calls of these, too many to inline.
#define SM_CALLED __attribute__((noinline))

namespace sm {

// A bf16 in each half of a word.
SM_INLINE float low_of(uint pair) { return __builtin_bit_cast(float, pair << 16); }
SM_INLINE float high_of(uint pair) { return __builtin_bit_cast(float, pair & 0xffff0000u); }
SM_INLINE uint bits_of_bfloat(float x) { return __builtin_bit_cast(ushort, (bfloat)x); }

// a * b + c of bf16 numbers, rounded once: to odd on the way through float.
SM_INLINE uint fma_bfloat(float a, float b, float c) {
    const double exact = (double)a * (double)b + (double)c;
    const float near = (float)exact;
    uint bits = __builtin_bit_cast(uint, near);
    if ((double)near != exact && near == near) {
        const bool larger = __builtin_fabs((double)near) > __builtin_fabs(exact);
        bits = (larger ? bits - 1 : bits) | 1;
    }
    return bits_of_bfloat(__builtin_bit_cast(float, bits));
}

// Four words that each lane of a SIMD-group brings.
struct FourWords {
    uint words[4];
};

// Two rows of 16 bf16, spread over the four lanes that share lane / 4: a lane has of either columns 2 t and 2 t + 1, then those 8
// further.
struct TwoRows {
    float values[2][16];
};
SM_OUTLINE void gather_rows(TwoRows& rows, const FourWords* slots, uint lane) {
    for (uint t = 0; t < 4; t++) {
        const FourWords& from = slots[(lane & 28) + t];
        for (uint i = 0; i < 4; i++) {
            float* to = rows.values[i % 2] + 2 * t + i / 2 * 8;
            to[0] = low_of(from.words[i]);
            to[1] = high_of(from.words[i]);
        }
    }
}

// Sums of two left rows with two neighbouring right ones.
SM_INLINE void add_four(thread float* sums, const TwoRows& left, const float (&right)[2][16]) {
    for (int i = 0; i < 4; i++) {
        float sum = 0.0f;
        for (int k = 0; k < 16; k++) sum = __builtin_fmaf(left.values[i / 2][k], right[i % 2][k], sum);
        sums[i] += sum;
    }
}

// What a lane brings to a product of 16 rows with 8 columns, and the sums that it has of it.
struct MmaOperands {
    FourWords left;
    uint right[2];
};
SM_OUTLINE void add_met(thread float* sums, const MmaOperands* slots, uint lane) {
    FourWords left[4];
    float right[2][16];
    for (uint t = 0; t < 4; t++) {
        left[t] = slots[(lane & 28) + t].left;
        for (uint i = 0; i < 4; i++) {
            const uint pair = slots[(lane % 4 * 2 + i % 2) * 4 + t].right[i / 2];
            float* to = right[i % 2] + 2 * t + i / 2 * 8;
            to[0] = low_of(pair);
            to[1] = high_of(pair);
        }
    }
    TwoRows rows;
    gather_rows(rows, left, 0);
    add_four(sums, rows, right);
}

// Where byte `at` of rows of 128 bytes lies, of which neighbouring pieces of 16 have changed places.
SM_INLINE ulong swizzled(ulong at) { return at ^ (at >> 3 & 0x70); }

// The address that an operand is told by: in units of 16 bytes, as kernels take for granted.
SM_INLINE ulong operand_at(ulong operand) { return (operand & 0xfffffffffffful) << 4; }

// Element k of row n of an operand, and of column n.
SM_INLINE float element_of_row(ulong operand, uint n, uint k) {
    const ulong at = operand_at(operand) + n * 128 + k * 2;
    return (float)*(threadgroup const bfloat*)swizzled(at);
}
SM_INLINE float element_of_column(ulong operand, uint n, uint k) {
    const ulong at = operand_at(operand) + n / 64 * (operand >> 48) * 16 + k * 128 + n % 64 * 2;
    return (float)*(threadgroup const bfloat*)swizzled(at);
}

// Adds the products of a lane's two left rows with N right rows, or columns.
template <int N, bool Columns>
SM_CALLED void add_products(thread float (&sums)[N / 2], const TwoRows& left, ulong operand, uint lane) {
    for (uint block = 0; block < N / 8; block++) {
        const uint n = 8 * block + lane % 4 * 2;
        float right[2][16];
        for (uint i = 0; i < 2; i++)
            for (uint k = 0; k < 16; k++)
                right[i][k] = Columns ? element_of_column(operand, n + i, k) : element_of_row(operand, n + i, k);
        add_four(sums + 4 * block, left, right);
    }
}

// A product with left rows in registers; with left rows in threadgroup memory.
struct Product {
    thread float* sums;
    ulong right;
    TwoRows left;
    uint lane;
    uint reserved;
};
struct StagedProduct {
    thread float* sums;
    ulong left;
    ulong right;
    uint index;
    uint added;
};

// They copy first: what the run time keeps is no memory of the kernel's.
template <int N, bool Columns>
SM_OUTLINE void do_product(const void* operands) {
    const Product p = *(const Product*)operands;
    add_products<N, Columns>(*(thread float(*)[N / 2])p.sums, p.left, p.right, p.lane);
}
SM_CALLED inline void add_staged(const StagedProduct& p) {
    const uint row = p.index / 32 % 4 * 16 + p.index % 32 / 4;
    TwoRows rows;
    for (uint i = 0; i < 2; i++)
        for (uint k = 0; k < 16; k++) rows.values[i][k] = element_of_row(p.left, row + 8 * i, k);
    for (int i = 0; i < 32; i++) p.sums[i] = p.added ? p.sums[i] : 0.0f;
    add_products<64, false>(*(thread float(*)[32])p.sums, rows, p.right, p.index % 32);
}
SM_OUTLINE inline void do_staged(const void* operands) {
    const StagedProduct p = *(const StagedProduct*)operands;
    add_staged(p);
}

} // namespace sm

namespace ptx {

SM_INLINE uint lane() { return sm::lane(); }

SM_INLINE void multiply_16x8x16(thread float (&sums)[4], uint a0, uint a1, uint a2, uint a3, uint b0, uint b1) {
    const sm::MmaOperands own = {{{a0, a1, a2, a3}}, {b0, b1}};
    const sm::Met<sm::MmaOperands> met = sm::meet(own);
    sm::add_met(sums, met.slots(), met.lane);
}

SM_OUTLINE uint bytes(uint a, uint b, uint digits) {
    const ulong all = (ulong)b << 32 | a;
    uint out = 0;
    for (uint i = 0; i < 4; i++) out |= (uint)(all >> (digits >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return out;
}

SM_INLINE uint and_or(uint a, uint mask, uint bits) { return (a & mask) | bits; }

SM_INLINE uint transpose_8x8(uint a) {
    const sm::Met<uint> met = sm::meet(a);
    const uint row = met.lane / 4;
    const uint first = met.of(met.lane % 4 * 8 + row / 2);
    const uint second = met.of(met.lane % 4 * 8 + 4 + row / 2);
    return bytes(first, second, row % 2 == 0 ? 0x5410 : 0x7632);
}

SM_INLINE uint narrow_pair(float low, float high) { return sm::bits_of_bfloat(high) << 16 | sm::bits_of_bfloat(low); }

SM_INLINE float power_of_2(float x) {
    const float power = __builtin_exp2f(x);
    return power < 0x1p-126f ? 0.0f : power;
}

SM_OUTLINE uint fma_bf16x2(uint a, uint b, uint c) {
    const uint low = sm::fma_bfloat(sm::low_of(a), sm::low_of(b), sm::low_of(c));
    return sm::fma_bfloat(sm::high_of(a), sm::high_of(b), sm::high_of(c)) << 16 | low;
}

SM_OUTLINE int dot_unsigned(uint a, uint b, int c) {
    for (uint i = 0; i < 32; i += 8) c += (int)((a >> i & 0xff) * (b >> i & 0xff));
    return c;
}
SM_OUTLINE int dot_signed(uint a, uint b, int c) {
    for (uint i = 0; i < 32; i += 8) c += (int)(a >> i & 0xff) * (int)(char)(b >> i & 0xff);
    return c;
}

SM_INLINE uint4 load_16_of_128(device const uchar* from) { return *(device const uint4*)from; }

SM_INLINE void copy_16(threadgroup void* to, device const void* from, bool wanted) {
    const uint4 words = wanted ? *(device const uint4*)from : (uint4)0;
    sm_copy_16((ulong)to, &words);
}
SM_INLINE void end_copies() { sm_end_copies(); }
template <int UnderWay>
SM_INLINE void wait_copies() {
    sm_wait_copies(UnderWay);
}

SM_INLINE bool any_at_barrier(uint id, uint threads, bool says) { return sm_any_at_barrier(id, threads, says) != 0; }

SM_INLINE ulong swizzled_rows(threadgroup const void* rows) { return (ulong)rows >> 4; }
SM_INLINE ulong swizzled_columns(threadgroup const void* rows, uint next_64_columns) {
    return (ulong)rows >> 4 | (ulong)(next_64_columns / 16) << 48;
}
#define PTX_NEXT_16_COLUMNS 2ul
#define PTX_NEXT_16_ROWS 128ul

SM_INLINE void share_with_products() {}
SM_INLINE void begin_products() {}
SM_INLINE void end_products() { sm_end_products(); }
template <int UnderWay, int Place = 0>
SM_INLINE void wait_products() {
    sm_wait_products(UnderWay);
}
template <int Count>
SM_INLINE void settle(thread float (&sums)[Count]) {}

template <int N, bool Columns>
struct SmProducts {
    static SM_INLINE void add(thread float (&sums)[N / 2], thread const uint (&a)[4], ulong right) {
        const sm::FourWords own = {{a[0], a[1], a[2], a[3]}};
        const sm::Met<sm::FourWords> met = sm::meet(own);
        sm::Product product = {sums, right, {}, met.lane, 0};
        sm::gather_rows(product.left, met.slots(), met.lane);
        sm_start_product(sm::do_product<N, Columns>, &product, sizeof(product));
    }
};
template <int N>
struct Products : SmProducts<N, false> {};
template <int N>
struct ColumnProducts : SmProducts<N, true> {};

template <bool Added>
SM_INLINE void multiply_rows_64x64x16(thread float (&sums)[32], ulong left, ulong right) {
    sm_simdgroup_barrier(0);
    const sm::StagedProduct product = {sums, left, right, sm_thread_index(), Added};
    sm_start_product(sm::do_staged, &product, sizeof(product));
}

} // namespace ptx
