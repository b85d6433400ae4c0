// Products of four SIMD-groups at once, on NVIDIA's Hopper GPUs: sums in registers, the left operand there or in threadgroup
// memory, the right operand in threadgroup memory. They run beside what the threads do next; what they read may change only
// after they have ended.
#pragma once
#include "simd.h"

namespace ptx {

// An operand of a product: rows of 64 bf16 from `rows` on, which starts at a multiple of 1,024 bytes. A row has 128 bytes,
// and piece p of 16 bytes of row r lies where piece p ^ (r & 7) would.
SM_INLINE ulong swizzled_rows(threadgroup const void* rows) {
    return (ulong)((uint)(ulong)rows >> 4 & 0x3fffu) | 1ul << 16 | 64ul << 32 | 1ul << 62;
}

// The same where a product takes columns of 16 rows: those of 64 more are in rows that start so many bytes further.
SM_INLINE ulong swizzled_columns(threadgroup const void* rows, uint next_64_columns) {
    return swizzled_rows(rows) + ((ulong)(next_64_columns / 16 - 1) << 16);
}

// How much further the operand begins that is 16 columns further, and the one that is 16 rows further.
#define PTX_NEXT_16_COLUMNS 2ul
#define PTX_NEXT_16_ROWS 128ul

// Makes this thread's writes to threadgroup memory, and copies that it has waited for, visible to products after a barrier.
SM_INLINE void share_with_products() { __asm__ volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

// Before the first product of a batch: registers that it reads and adds to are as they were left.
SM_INLINE void begin_products() { __asm__ volatile("wgmma.fence.sync.aligned;" : : : "memory"); }

// The products since the last time are one batch.
SM_INLINE void end_products() { __asm__ volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }

// Waits until at most so many batches are under way. Waits that differ in their place are not made one.
template <int UnderWay, int Place = 0>
SM_INLINE void wait_products() {
    __asm__ volatile("wgmma.wait_group.sync.aligned %0; // %1" : : "n"(UnderWay), "n"(Place) : "memory");
}

// After the wait: nothing may read these sums earlier.
template <int Count>
SM_INLINE void settle(thread float (&sums)[Count]) {
#pragma clang loop unroll(full)
    for (int i = 0; i < Count; i++) __asm__ volatile("" : "+f"(sums[i]) : : "memory");
}

// Adds products of 64 rows (left) with N rows (right) of 16 columns each; SIMD-group w of the four has left rows 16 w to 16 w + 15.
// With g = lane / 4 and t = lane % 4, a lane gives left rows 16 w + g and 8 further as pairs of bf16: both in columns 2 t and
// 2 t + 1, then both in columns 2 t + 8 and 2 t + 9. It has, for every eight right rows, the sums of left row 16 w + g with right
// rows 2 t and 2 t + 1, then those of left row 16 w + g + 8.
template <int N>
struct Products;

// The same with N columns of 16 rows each on the right.
template <int N>
struct ColumnProducts;

#define PTX_R8(a, b, c, d, e, f, g, h) "%" #a ", %" #b ", %" #c ", %" #d ", %" #e ", %" #f ", %" #g ", %" #h
#define PTX_R16 PTX_R8(0, 1, 2, 3, 4, 5, 6, 7)
#define PTX_R32 PTX_R16 ", " PTX_R8(8, 9, 10, 11, 12, 13, 14, 15)
#define PTX_R64 PTX_R32 ", " PTX_R8(16, 17, 18, 19, 20, 21, 22, 23) ", " PTX_R8(24, 25, 26, 27, 28, 29, 30, 31)
#define PTX_R96 PTX_R64 ", " PTX_R8(32, 33, 34, 35, 36, 37, 38, 39) ", " PTX_R8(40, 41, 42, 43, 44, 45, 46, 47)
#define PTX_R128 PTX_R96 ", " PTX_R8(48, 49, 50, 51, 52, 53, 54, 55) ", " PTX_R8(56, 57, 58, 59, 60, 61, 62, 63)
#define PTX_R256                                                                                                       \
    PTX_R128 ", " PTX_R8(64, 65, 66, 67, 68, 69, 70, 71) ", " PTX_R8(72, 73, 74, 75, 76, 77, 78, 79) ", "              \
        PTX_R8(80, 81, 82, 83, 84, 85, 86, 87) ", " PTX_R8(88, 89, 90, 91, 92, 93, 94, 95) ", "                        \
        PTX_R8(96, 97, 98, 99, 100, 101, 102, 103) ", " PTX_R8(104, 105, 106, 107, 108, 109, 110, 111) ", "            \
        PTX_R8(112, 113, 114, 115, 116, 117, 118, 119) ", " PTX_R8(120, 121, 122, 123, 124, 125, 126, 127)
#define PTX_S4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define PTX_S8(i) PTX_S4(i), PTX_S4(i + 4)
#define PTX_S16 PTX_S8(0)
#define PTX_S32 PTX_S16, PTX_S8(8)
#define PTX_S64 PTX_S32, PTX_S8(16), PTX_S8(24)
#define PTX_S96 PTX_S64, PTX_S8(32), PTX_S8(40)
#define PTX_S128 PTX_S96, PTX_S8(48), PTX_S8(56)
#define PTX_S256                                                                                                       \
    PTX_S128, PTX_S8(64), PTX_S8(72), PTX_S8(80), PTX_S8(88), PTX_S8(96), PTX_S8(104), PTX_S8(112), PTX_S8(120)

#define PTX_PRODUCTS(Name, columns, N, a0, a1, a2, a3, b)                                                              \
    template <>                                                                                                        \
    struct Name<N> {                                                                                                   \
        static SM_INLINE void add(thread float (&sums)[N / 2], thread const uint (&a)[4], ulong right) {               \
            __asm__ volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" PTX_R##N                     \
                             "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", 1, 1, 1, " #columns ";"            \
                             : PTX_S##N                                                                                \
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right));                                \
        }                                                                                                              \
    };

PTX_PRODUCTS(Products, 0, 16, 8, 9, 10, 11, 12)
PTX_PRODUCTS(Products, 0, 32, 16, 17, 18, 19, 20)
PTX_PRODUCTS(Products, 0, 64, 32, 33, 34, 35, 36)
PTX_PRODUCTS(Products, 0, 96, 48, 49, 50, 51, 52)
PTX_PRODUCTS(Products, 0, 128, 64, 65, 66, 67, 68)
PTX_PRODUCTS(ColumnProducts, 1, 64, 32, 33, 34, 35, 36)
PTX_PRODUCTS(ColumnProducts, 1, 128, 64, 65, 66, 67, 68)
PTX_PRODUCTS(ColumnProducts, 1, 256, 128, 129, 130, 131, 132)

// Products of 64 rows with 64 rows of 16 columns each, both in threadgroup memory: added to the sums, or in their place.
template <bool Added>
SM_INLINE void multiply_rows_64x64x16(thread float (&sums)[32], ulong left, ulong right) {
    __asm__ volatile("{ .reg .pred added; setp.ne.u32 added, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" PTX_R64 "}, %32, %33, added, 1, 1, 0, 0; }"
                     : PTX_S64
                     : "l"(left), "l"(right), "n"(Added));
}

} // namespace ptx
