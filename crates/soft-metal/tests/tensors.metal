// Metal 4 tensor operations; tests/tensors.rs knows what each kernel must compute.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

struct Shape {
    int m;
    int n;
    int k;
};

typedef matmul2d_descriptor Descriptor;

// A 16x32 tile of c += a * b, with operands in device memory; all of K at once. Four SIMD-groups.
[[kernel]] void memory_operands(device bfloat* a [[buffer(0)]],
                                device bfloat* b [[buffer(1)]],
                                device float* c [[buffer(2)]],
                                constant Shape& s [[buffer(3)]],
                                uint3 group [[threadgroup_position_in_grid]]) {
    tensor<device bfloat, dextents<int32_t, 2>, tensor_inline> left(a, dextents<int32_t, 2>(s.k, s.m));
    tensor<device bfloat, dextents<int32_t, 2>, tensor_inline> right(b, dextents<int32_t, 2>(s.n, s.k));
    auto out = tensor(c, dextents<int32_t, 2>(s.n, s.m));
    constexpr Descriptor descriptor(16, 32, static_cast<int>(dynamic_extent), false, false, false,
                                    Descriptor::mode::multiply_accumulate);
    matmul2d<descriptor, execution_simdgroups<4>> product;
    auto l = left.slice(0, group.y * 16);
    auto r = right.slice(group.x * 32, 0);
    auto o = out.slice(group.x * 32, group.y * 16);
    auto sums = product.get_destination_cooperative_tensor<decltype(l), decltype(r), float>();
    for (int i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) sums[i] = 1.0f;
    }
    product.run(l, r, sums);
    sums.store(o);
}

// The same through threadgroup memory in steps of 16, b transposed, one SIMD-group; results by their indices.
[[kernel]] void staged_operands(device const half* a [[buffer(0)]],
                                device const half* b [[buffer(1)]],
                                device float* c [[buffer(2)]],
                                constant Shape& s [[buffer(3)]],
                                uint3 group [[threadgroup_position_in_grid]],
                                uint lane [[thread_index_in_simdgroup]]) {
    threadgroup half left[16 * 24];
    threadgroup half right[32 * 24];
    constexpr Descriptor descriptor(16, 32, 16, false, true, false, Descriptor::mode::multiply_accumulate);
    matmul2d<descriptor, execution_simdgroup> product;
    array<int, 2> strides = {1, 24};
    tensor<threadgroup half, dextents<int32_t, 2>, tensor_inline> l(left, dextents<int32_t, 2>(16, 16), strides);
    tensor<threadgroup half, dextents<int32_t, 2>, tensor_inline> r(right, dextents<int32_t, 2>(16, 32), strides);
    auto sums = product.get_destination_cooperative_tensor<decltype(l), decltype(r), float>();
    for (int i = 0; i < sums.get_capacity(); i++) sums[i] = 0.0f;
    for (int k = 0; k < s.k; k += 16) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (int i = lane; i < 16 * 16; i += 32) {
            const int row = group.y * 16 + i / 16;
            left[i / 16 * 24 + i % 16] = row < s.m ? a[row * s.k + k + i % 16] : 0.0h;
        }
        for (int i = lane; i < 32 * 16; i += 32) {
            const int row = group.x * 32 + i / 16;
            right[i / 16 * 24 + i % 16] = row < s.n ? b[row * s.k + k + i % 16] : 0.0h;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        product.run(l, r, sums);
    }
    for (int i = 0; i < sums.get_capacity(); i++) {
        if (!sums.is_valid_element(i)) continue;
        const auto at = sums.get_multidimensional_index(i);
        const int row = group.y * 16 + at[1];
        const int col = group.x * 32 + at[0];
        if (row < s.m && col < s.n) c[row * s.n + col] = sums[i];
    }
}

// Operands in registers: 16x32x16 tiles, filled by their indices; the left one transposed.
[[kernel]] void register_operands(device const bfloat* a [[buffer(0)]],
                                  device const bfloat* b [[buffer(1)]],
                                  device float* c [[buffer(2)]],
                                  constant Shape& s [[buffer(3)]]) {
    constexpr Descriptor descriptor(16, 32, 16, true, false, false, Descriptor::mode::multiply_accumulate);
    matmul2d<descriptor, execution_simdgroup> product;
    auto l = product.get_left_input_cooperative_tensor<bfloat, bfloat, float>();
    auto r = product.get_right_input_cooperative_tensor<bfloat, bfloat, float>();
    auto sums = product.get_destination_cooperative_tensor<decltype(l), decltype(r), float>();
    for (int i = 0; i < sums.get_capacity(); i++) sums[i] = 0.0f;
    for (int k = 0; k < s.k; k += 16) {
        for (int i = 0; i < l.get_capacity(); i++) {
            if (!l.is_valid_element(i)) continue;
            const auto at = l.get_multidimensional_index(i);
            l[i] = a[(k + at[1]) * 16 + at[0]];
        }
        auto from = tensor(b, dextents<int32_t, 2>(32, s.k));
        auto part = from.slice(0, k);
        r.load(part);
        product.run(l, r, sums);
    }
    auto out = tensor(c, dextents<int32_t, 2>(32, 16));
    sums.store(out);
}

// One thread alone, straight to memory; what was there does not matter.
[[kernel]] void single_thread(device float* a [[buffer(0)]],
                              device float* b [[buffer(1)]],
                              device float* c [[buffer(2)]],
                              constant Shape& s [[buffer(3)]],
                              uint tid [[thread_index_in_threadgroup]]) {
    constexpr Descriptor descriptor(8, 8, 8, false, false, false, Descriptor::mode::multiply);
    matmul2d<descriptor, execution_thread> product;
    auto l = tensor(a + 64 * tid, dextents<int32_t, 2>(8, 8));
    auto r = tensor(b, dextents<int32_t, 2>(8, 8));
    auto o = tensor(c + 64 * tid, dextents<int32_t, 2>(8, 8));
    product.run(l, r, o);
}

// Half of a SIMD-group leaves before the product.
[[kernel]] void divided(device float* a [[buffer(0)]], device float* c [[buffer(1)]], uint lane [[thread_index_in_simdgroup]]) {
    if (lane >= 16) return;
    constexpr Descriptor descriptor(8, 8, 8, false, false, false, Descriptor::mode::multiply);
    matmul2d<descriptor, execution_simdgroup> product;
    auto l = tensor(a, dextents<int32_t, 2>(8, 8));
    auto o = tensor(c, dextents<int32_t, 2>(8, 8));
    product.run(l, l, o); // LINE divided
}

[[kernel]] void bench(device bfloat* a [[buffer(0)]], device float* c [[buffer(1)]], constant Shape& s [[buffer(2)]]) {
    constexpr Descriptor descriptor(16, 32, 64, false, true, false, Descriptor::mode::multiply_accumulate);
    matmul2d<descriptor, execution_simdgroup> product;
    auto l = tensor(a, dextents<int32_t, 2>(64, 16));
    auto r = tensor(a, dextents<int32_t, 2>(64, 32));
    auto sums = product.get_destination_cooperative_tensor<decltype(l), decltype(r), float>();
    for (int i = 0; i < sums.get_capacity(); i++) sums[i] = 0.0f;
    for (int i = 0; i < s.k; i++) product.run(l, r, sums);
    auto o = tensor(c, dextents<int32_t, 2>(32, 16));
    sums.store(o);
}
