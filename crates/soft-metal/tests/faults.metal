// Kernels that do what a GPU leaves undefined; tests/faults.rs knows how each must be refused.
#include <metal_stdlib>
using namespace metal;

// A sum over the threadgroup without the barrier that the first addition needs.
[[kernel]] void scan_unordered(device const float* x [[buffer(0)]],
                               device float* y [[buffer(1)]],
                               uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float line[64];
    line[tid] = x[tid];
    if (tid < 32) line[tid] += line[tid + 32];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < 32) {
        const float sum = simd_sum(line[tid]);
        if (tid == 0) y[0] = sum;
    }
}

// What must be refused. Each case is a value of `what`.
struct FaultArgs {
    uint what;
    uint zero;
};

[[kernel]] void faults(device float* x [[buffer(0)]],
                       device float* y [[buffer(1)]],
                       constant FaultArgs& args [[buffer(2)]],
                       uint tid [[thread_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float shared[8192 - 4];
    const uint what = args.what;
    if (what == 1 && tid == 3) y[tid] = x[4096 + args.zero]; // LINE read
    if (what == 2 && tid == 3) y[-5000 - int(args.zero)] = 1; // LINE write
    if (what == 3) y[tid] = dot(*(device const float4*)(x + tid), float4(1)); // LINE aligned
    float local[4] = {1, 2, 3, 4};
    if (what == 4) y[tid] = local[tid + args.zero]; // LINE array
    if (what == 5) y[tid] = float(tid / args.zero); // LINE divide
    if (what == 6) {
        if (lane < 16) y[tid] = simd_sum(1.0f); // LINE divided
        else y[tid] = simd_max(2.0f);
    }
    if (what == 7 && lane == 31) return;
    if (what == 7) y[tid] = simd_sum(1.0f); // LINE returned
    if (what == 8 && tid < 32) {
        threadgroup_barrier(mem_flags::mem_none); // LINE barrier
    } else if (what == 8) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (what == 9 && tid >= 32) return;
    if (what == 9) threadgroup_barrier(mem_flags::mem_none); // LINE deserted
    threadgroup float* all = shared;
    if (what == 10) all[8192 + args.zero] = 1; // LINE arena
    if (what == 11 && tid < 16) threadgroup_barrier(mem_flags::mem_none); // LINE half
    if (what == 12 && tid == 0) y[-1 - int(args.zero)] = 1;
    shared[tid] = 0;
    y[tid] = shared[tid];
}

[[kernel]] void stack(device float* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    float local[1 << 15];
    for (uint i = 0; i < (1 << 15); i++) local[i] = y[i % 32] + float(i);
    float sum = 0;
    for (uint i = 0; i < (1 << 15); i++) sum += local[(i * 7919u + tid) % (1 << 15)];
    y[tid] = sum;
}

