// Kernels with and without races; tests/races.rs knows which.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

// Sums 64 values through threadgroup memory. `MODE` leaves out one barrier, or replaces it by what orders nothing.
enum Mode { RIGHT, NO_BARRIER, NO_SECOND, WRONG_FLAGS, NO_FLAGS };

template <int MODE>
[[kernel]] void sum(device const float* x [[buffer(0)]],
                    device float* y [[buffer(1)]],
                    uint tid [[thread_index_in_threadgroup]],
                    uint group [[threadgroup_position_in_grid]]) {
    threadgroup float line[64];
    line[tid] = x[group * 64 + tid]; // LINE first
    if (MODE == WRONG_FLAGS) threadgroup_barrier(mem_flags::mem_device);
    else if (MODE == NO_FLAGS) threadgroup_barrier(mem_flags::mem_none);
    else if (MODE != NO_BARRIER) threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0;
    for (uint i = 0; i < 64; i++) total += line[(i + tid) % 64]; // LINE reads
    if (MODE != NO_SECOND) threadgroup_barrier(mem_flags::mem_threadgroup);
    line[tid] = total; // LINE second
    y[group * 64 + tid] = line[tid];
}
template [[host_name("sum")]] [[kernel]] decltype(sum<RIGHT>) sum<RIGHT>;
template [[host_name("sum_no_barrier")]] [[kernel]] decltype(sum<NO_BARRIER>) sum<NO_BARRIER>;
template [[host_name("sum_no_second")]] [[kernel]] decltype(sum<NO_SECOND>) sum<NO_SECOND>;
template [[host_name("sum_wrong_flags")]] [[kernel]] decltype(sum<WRONG_FLAGS>) sum<WRONG_FLAGS>;
template [[host_name("sum_no_flags")]] [[kernel]] decltype(sum<NO_FLAGS>) sum<NO_FLAGS>;

// Lanes exchange values of their SIMD-group through threadgroup memory. Only a barrier of the SIMD-group orders them; a
// meeting of the lanes does not.
template <int ORDERED>
[[kernel]] void exchange(device const float* x [[buffer(0)]],
                         device float* y [[buffer(1)]],
                         uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float line[64];
    line[tid] = x[tid]; // LINE put
    if (ORDERED) simdgroup_barrier(mem_flags::mem_threadgroup);
    const float most = simd_max(x[tid]);
    y[tid] = line[tid ^ 1] + most; // LINE get
}
template [[host_name("exchange")]] [[kernel]] decltype(exchange<1>) exchange<1>;
template [[host_name("exchange_unordered")]] [[kernel]] decltype(exchange<0>) exchange<0>;

// Neighbours own neighbouring 16-bit elements, and update them in place.
[[kernel]] void in_place(device bfloat* x [[buffer(0)]], uint tid [[thread_position_in_grid]]) {
    x[tid] = bfloat(float(x[tid]) + 1.0f);
}

// All threads of all threadgroups write the same bytes.
[[kernel]] void everybody(device float* x [[buffer(0)]], uint group [[threadgroup_position_in_grid]]) {
    x[0] = float(group); // LINE everybody
}

// One threadgroup reads what another writes.
[[kernel]] void neighbours(device float* x [[buffer(0)]],
                           uint tid [[thread_index_in_threadgroup]],
                           uint group [[threadgroup_position_in_grid]]) {
    const float next = x[(group * 64 + tid + 64) % 128]; // LINE other
    x[group * 64 + tid] = next; // LINE own
}

// Several threadgroups read what one of them writes afterwards.
[[kernel]] void read_by_all(device float* x [[buffer(0)]],
                            device float* y [[buffer(1)]],
                            uint tid [[thread_index_in_threadgroup]],
                            uint group [[threadgroup_position_in_grid]]) {
    y[group * 64 + tid] = x[tid]; // LINE all
    if (group == 1) x[tid] = 0; // LINE one
}

// Through device memory, with the flag that orders it or the other one.
template <int RIGHT_FLAG>
[[kernel]] void through_device(device float* x [[buffer(0)]],
                               device float* y [[buffer(1)]],
                               uint tid [[thread_index_in_threadgroup]]) {
    x[tid] = float(tid);
    threadgroup_barrier(RIGHT_FLAG ? mem_flags::mem_device : mem_flags::mem_threadgroup);
    y[tid] = x[63 - tid];
}
template [[host_name("through_device")]] [[kernel]] decltype(through_device<1>) through_device<1>;
template [[host_name("through_device_wrong")]] [[kernel]] decltype(through_device<0>) through_device<0>;

[[kernel]] void counters(device atomic_uint* x [[buffer(0)]], device uint* y [[buffer(1)]], uint tid [[thread_position_in_grid]]) {
    const uint ticket = atomic_fetch_add_explicit(x, 1u, memory_order_relaxed);
    y[ticket] = tid;
}

[[kernel]] void counter_read_plainly(device atomic_uint* x [[buffer(0)]],
                                     device uint* y [[buffer(1)]],
                                     uint tid [[thread_position_in_grid]]) {
    atomic_fetch_add_explicit(x, 1u, memory_order_relaxed); // LINE atomic
    y[tid] = *(device uint*)x; // LINE plain
}

// A product tile by tile, the way that kernels do it.
[[kernel]] void tiles(device const bfloat* a [[buffer(0)]],
                      device const bfloat* b [[buffer(1)]],
                      device float* c [[buffer(2)]],
                      uint tid [[thread_index_in_threadgroup]],
                      uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup bfloat left[16 * 16];
    threadgroup bfloat right[16 * 16];
    simdgroup_matrix<float, 8, 8> sum[2];
    for (int i = 0; i < 2; i++) sum[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k = 0; k < 64; k += 16) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < 256; i += 64) {
            left[i] = a[i / 16 * 64 + k + i % 16];
            right[i] = b[(k + i / 16) * 16 + i % 16];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint kk = 0; kk < 16; kk += 8) {
            simdgroup_matrix<bfloat, 8, 8> l, r;
            simdgroup_load(l, left + simd * 8 * 16 + kk, 16);
            for (uint i = 0; i < 2; i++) {
                simdgroup_load(r, right + kk * 16 + 8 * i, 16);
                simdgroup_multiply_accumulate(sum[i], l, r, sum[i]);
            }
        }
    }
    for (uint i = 0; i < 2; i++) simdgroup_store(sum[i], c + simd * 8 * 16 + 8 * i, 16);
}

// Accesses inside the memory of a buffer and outside of what is bound of it.
[[kernel]] void outside(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint tid [[thread_index_in_threadgroup]]) {
    y[tid] = x[tid + 1]; // LINE outside
}

[[kernel]] void undeclared_arena(device float* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float line[64];
    threadgroup float* p = line;
    p[tid + 1] = 0; // LINE arena
    y[tid] = p[tid + 1];
}
