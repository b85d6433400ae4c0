// Kernels that run at the same time as those of races.metal.
#include <metal_stdlib>
using namespace metal;

[[kernel]] void writes(device bfloat* x [[buffer(0)]], uint tid [[thread_position_in_grid]]) {
    x[tid] = bfloat(2.0f); // LINE writes
}

[[kernel]] void reads(device const bfloat* x [[buffer(0)]],
                      device bfloat* y [[buffer(1)]],
                      uint tid [[thread_position_in_grid]]) {
    y[tid] = x[tid]; // LINE reads
}
