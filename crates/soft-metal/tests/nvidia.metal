// What the text for NVIDIA's GPUs uses besides Metal; tests/nvidia.rs says what each kernel computes.
#include <metal_stdlib>
using namespace metal;

// Every instruction that works on a thread's words alone.
kernel void words(device const uint* a [[buffer(0)]],
                  device const uint* b [[buffer(1)]],
                  device uint* out [[buffer(2)]],
                  uint i [[thread_index_in_threadgroup]]) {
    wait_for_inputs();
    out[8 * i] = ptx::bytes(a[i], b[i], 0x6240u);
    out[8 * i + 1] = ptx::bytes(a[i], b[i], 0x3715u);
    out[8 * i + 2] = ptx::and_or(a[i], 0x00ff00ffu, b[i]);
    out[8 * i + 3] = uint(ptx::dot_unsigned(a[i], b[i], 5));
    out[8 * i + 4] = uint(ptx::dot_signed(a[i], b[i], 5));
    out[8 * i + 5] = ptx::fma_bf16x2(a[i], b[i], a[i]);
    out[8 * i + 6] = ptx::narrow_pair(as_type<float>(a[i]), as_type<float>(b[i]));
    out[8 * i + 7] = as_type<uint>(ptx::power_of_2(float(int(i)) * 8.0f - 140.0f));
}

inline uint pair_at(device const bfloat* x, uint row, uint column, uint columns) {
    return *(device const uint*)(x + row * columns + column);
}

// 16x16 by 16x8, the right operand by columns, as one operation; and an 8x8 transposed.
kernel void fragments(device const bfloat* a [[buffer(0)]],
                      device const bfloat* b [[buffer(1)]],
                      device float* out [[buffer(2)]],
                      device uint* transposed [[buffer(3)]],
                      uint lane [[thread_index_in_threadgroup]]) {
    wait_for_inputs();
    const uint g = lane / 4, t = lane % 4 * 2;
    float sums[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    ptx::multiply_16x8x16(sums, pair_at(a, g, t, 16), pair_at(a, g + 8, t, 16), pair_at(a, g, t + 8, 16),
                          pair_at(a, g + 8, t + 8, 16), pair_at(b, g, t, 16), pair_at(b, g, t + 8, 16));
    out[g * 8 + t] = sums[0];
    out[g * 8 + t + 1] = sums[1];
    out[(g + 8) * 8 + t] = sums[2];
    out[(g + 8) * 8 + t + 1] = sums[3];
    transposed[lane] = ptx::transpose_8x8(pair_at(a, g, t, 16));
}

// Copies rows of 64 elements, 128 of them, to where products of four SIMD-groups find them.
inline void stage(device const bfloat* from, threadgroup uchar* to, uint index) {
    for (uint i = index; i < 128 * 8; i += 128) {
        const uint row = i / 8;
        ptx::copy_16(to + row * 128 + ((i % 8 ^ (row & 7)) << 4), (device const uchar*)from + i * 16, true);
    }
    ptx::end_copies();
}

// 64 rows of 64 columns by the first N rows of as many columns; by the first N columns of 64 rows; and by 64 rows with both
// operands in threadgroup memory.
template <int N>
kernel void products(device const bfloat* a [[buffer(0)]],
                     device const bfloat* b [[buffer(1)]],
                     device float* by_rows [[buffer(2)]],
                     device float* by_columns [[buffer(3)]],
                     device float* by_both [[buffer(4)]],
                     uint index [[thread_index_in_threadgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint4 left[128 * 8];
    threadgroup uint4 right[128 * 8];
    wait_for_inputs();
    stage(a, (threadgroup uchar*)left, index);
    stage(b, (threadgroup uchar*)right, index);
    ptx::wait_copies<0>();
    ptx::share_with_products();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint row = simdgroup * 16 + lane / 4, t = lane % 4 * 2;
    float rows[N / 2], columns[N / 2], both[32];
    for (int i = 0; i < N / 2; i++) rows[i] = columns[i] = 0.0f;
    ptx::begin_products();
    for (uint k = 0; k < 4; k++) {
        const uint at = 16 * k + t;
        const uint own[4] = {pair_at(a, row, at, 64), pair_at(a, row + 8, at, 64), pair_at(a, row, at + 8, 64),
                             pair_at(a, row + 8, at + 8, 64)};
        ptx::Products<N>::add(rows, own, ptx::swizzled_rows(right) + k * PTX_NEXT_16_COLUMNS);
        ptx::ColumnProducts<N>::add(columns, own, ptx::swizzled_columns(right, 64 * 128) + k * PTX_NEXT_16_ROWS);
        const ulong x = ptx::swizzled_rows(left) + k * PTX_NEXT_16_COLUMNS;
        const ulong y = ptx::swizzled_rows(right) + k * PTX_NEXT_16_COLUMNS;
        if (k == 0) ptx::multiply_rows_64x64x16<false>(both, x, y);
        else ptx::multiply_rows_64x64x16<true>(both, x, y);
    }
    ptx::end_products();
    ptx::wait_products<0>();
    for (int i = 0; i < N / 2; i++) {
        const uint to = (row + i / 2 % 2 * 8) * N + i / 4 * 8 + t + i % 2;
        by_rows[to] = rows[i];
        by_columns[to] = columns[i];
    }
    for (int i = 0; i < 32; i++) by_both[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + t + i % 2] = both[i];
}
template [[host_name("products_64")]] kernel decltype(products<64>) products<64>;
template [[host_name("products_128")]] kernel decltype(products<128>) products<128>;

// Copies x in two batches, of which the second is not asked for; waits for all but as many batches as are `under_way`.
kernel void copies(device const uint4* x [[buffer(0)]],
                   device uint4* y [[buffer(1)]],
                   constant uint& under_way [[buffer(2)]],
                   uint i [[thread_index_in_threadgroup]]) {
    threadgroup uint4 line[64];
    wait_for_inputs();
    ptx::copy_16(line + i, x + i, true);
    ptx::end_copies();
    ptx::copy_16(line + 32 + i, x + i, false);
    ptx::end_copies();
    if (under_way == 0) ptx::wait_copies<0>();
    if (under_way == 1) ptx::wait_copies<1>();
    y[i] = line[i];
    y[32 + i] = line[32 + i];
}

// A product in two batches, of which as many are waited for as leave no more than are `under_way`.
kernel void late_products(device const bfloat* x [[buffer(0)]],
                          device float* out [[buffer(1)]],
                          constant uint& under_way [[buffer(2)]],
                          uint index [[thread_index_in_threadgroup]]) {
    threadgroup uint4 right[128 * 8];
    wait_for_inputs();
    stage(x, (threadgroup uchar*)right, index);
    ptx::wait_copies<0>();
    ptx::share_with_products();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    float first[8], second[8];
    for (int i = 0; i < 8; i++) first[i] = second[i] = 0.5f;
    ptx::begin_products();
    ptx::Products<16>::add(first, ones, ptx::swizzled_rows(right));
    ptx::end_products();
    ptx::Products<16>::add(second, ones, ptx::swizzled_rows(right));
    ptx::end_products();
    if (under_way == 0) ptx::wait_products<0>();
    if (under_way == 1) ptx::wait_products<1>();
    out[2 * index] = first[0];
    out[2 * index + 1] = second[0];
    // What one SIMD-group of four waits for is done for all of them.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ptx::wait_products<0>();
}

// Each half of the threads asks itself whether one of it has a number that is not 0.
kernel void ask(device const uint* x [[buffer(0)]],
                device uint* y [[buffer(1)]],
                constant uint& threads [[buffer(2)]],
                uint i [[thread_index_in_threadgroup]],
                uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    wait_for_inputs();
    y[i] = ptx::any_at_barrier(1 + simdgroup / 2, threads, x[i] != 0);
    // The halves meet at barriers of their own, as this hardware lets them.
    if (simdgroup / 2 == 0) threadgroup_barrier(mem_flags::mem_threadgroup);
    else threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Reads x, or writes y, before it waits.
kernel void reads_early(device const uint* x [[buffer(0)]],
                        device uint* y [[buffer(1)]],
                        uint i [[thread_index_in_threadgroup]]) {
    const uint early = x[i]; // LINE reads early
    wait_for_inputs();
    y[i] = early;
}
kernel void writes_early(device const uint* x [[buffer(0)]],
                         device uint* y [[buffer(1)]],
                         uint i [[thread_index_in_threadgroup]]) {
    y[i] = 1; // LINE writes early
    wait_for_inputs();
    y[i] = x[i];
}
kernel void never_waits(device const uint* x [[buffer(0)]],
                        device uint* y [[buffer(1)]],
                        uint i [[thread_index_in_threadgroup]]) {
    y[i] = x[i];
}
