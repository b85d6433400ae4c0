// Instructions of NVIDIA's GPUs that kernel text may use where it is made for them (kernels/*_mma.h and what they share).
#pragma once
#include "simd.h"
#include "warpgroup.h"

namespace ptx {

// Sums of 16 rows by 8 columns: a lane has columns 2 t, 2 t + 1 of row g and of row g + 8, where g = lane / 4, t = lane % 4. Operands
// are pairs of bf16: of the left one rows g and g + 8 in columns 2 t, then rows g and g + 8 in columns 2 t + 8; of the right
// one column g in rows 2 t, then 2 t + 8.
SM_INLINE void multiply_16x8x16(thread float (&sums)[4], uint a0, uint a1, uint a2, uint a3, uint b0, uint b1) {
    __asm__ volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The thread's index in its SIMD-group.
SM_INLINE uint lane() { return sm::lane(); }

// The bytes of two words that four digits name: 0 to 3 of `a`, 4 to 7 of `b`, the lowest digit first.
SM_INLINE uint bytes(uint a, uint b, uint digits) {
    uint out;
    __asm__("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(digits));
    return out;
}

// (a & mask) | bits, as one instruction.
SM_INLINE uint and_or(uint a, uint mask, uint bits) {
    uint out;
    __asm__("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(a), "r"(mask), "r"(bits));
    return out;
}

// The transpose of 8 rows of 8 bf16, of which a lane has columns 2 t, 2 t + 1 of row g.
SM_INLINE uint transpose_8x8(uint a) {
    uint out;
    __asm__ volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(a));
    return out;
}

// Two floats as a pair of bf16, the first one in the lower half, nearest, ties to even.
SM_INLINE uint narrow_pair(float low, float high) {
    uint out;
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

// 2 to the power of x by the hardware's approximation; 0 where that is no normal float.
SM_INLINE float power_of_2(float x) {
    float out;
    __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}

// a * b + c of two pairs, each rounded once.
SM_INLINE uint fma_bf16x2(uint a, uint b, uint c) {
    uint out;
    __asm__("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

// c plus the products of four unsigned bytes of `a` with those of `b`, which are unsigned or signed.
SM_INLINE int dot_unsigned(uint a, uint b, int c) {
    int out;
    __asm__("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}
SM_INLINE int dot_signed(uint a, uint b, int c) {
    int out;
    __asm__("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

// 16 bytes, with which the second-level cache fetches the 128 bytes around them.
SM_INLINE uint4 load_16_of_128(device const uchar* from) {
    uint4 words;
    __asm__ volatile("ld.global.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                     : "l"(from)
                     : "memory");
    return words;
}

// Starts a copy of 16 bytes, or of 16 zeros.
SM_INLINE void copy_16(threadgroup void* to, device const void* from, bool wanted) {
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"((uint)(ulong)to), "l"(from), "r"(wanted ? 16 : 0)
                     : "memory");
}

// Whether one of so many threads says so, which all of them ask at barrier `id`, and are given the same answer.
SM_INLINE bool any_at_barrier(uint id, uint threads, bool says) {
    uint any;
    __asm__ volatile("{\n\t.reg .pred own, all;\n\tsetp.ne.u32 own, %1, 0;\n\t"
                     "barrier.cta.red.or.pred all, %2, %3, own;\n\tselp.u32 %0, 1, 0, all;\n\t}"
                     : "=r"(any)
                     : "r"((uint)says), "r"(id), "r"(threads)
                     : "memory");
    return any != 0;
}

// What this thread has started since the last time is one batch.
SM_INLINE void end_copies() { __asm__ volatile("cp.async.commit_group;" : : : "memory"); }

// Waits until at most so many of this thread's batches are under way; other threads see them after a barrier.
template <int UnderWay>
SM_INLINE void wait_copies() {
    __asm__ volatile("cp.async.wait_group %0;" : : "n"(UnderWay) : "memory");
}

} // namespace ptx
