// One kernel per group of operations that soft-metal models; tests/ops.rs knows what each must compute.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

// Every result of a thread in its own column: y[row * threads + thread].
#define OUT(row) y[(row) * threads + tid]

template <typename T>
[[kernel]] void reductions(device const T* x [[buffer(0)]],
                           device T* y [[buffer(1)]],
                           uint tid [[thread_index_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]]) {
    const T v = x[tid];
    OUT(0) = simd_sum(v);
    OUT(1) = simd_product(v);
    OUT(2) = simd_min(v);
    OUT(3) = simd_max(v);
    OUT(4) = simd_prefix_inclusive_sum(v);
    OUT(5) = simd_prefix_exclusive_sum(v);
    OUT(6) = simd_prefix_inclusive_product(v);
    OUT(7) = simd_prefix_exclusive_product(v);
}
#define REDUCTIONS(T) template [[host_name("reductions_" #T)]] [[kernel]] decltype(reductions<T>) reductions<T>;
REDUCTIONS(float)
REDUCTIONS(half)
REDUCTIONS(int)
REDUCTIONS(uint)
REDUCTIONS(short)
REDUCTIONS(ushort)
REDUCTIONS(char)
REDUCTIONS(uchar)

template <typename T>
[[kernel]] void bits(device const T* x [[buffer(0)]],
                     device T* y [[buffer(1)]],
                     uint tid [[thread_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]]) {
    const T v = x[tid];
    OUT(0) = simd_and(v);
    OUT(1) = simd_or(v);
    OUT(2) = simd_xor(v);
    OUT(3) = popcount(v);
    OUT(4) = clz(v);
    OUT(5) = ctz(v);
    OUT(6) = reverse_bits(v);
    OUT(7) = rotate(v, T(3));
    OUT(8) = mulhi(v, T(77));
    OUT(9) = extract_bits(v, 2u, 4u);
    OUT(10) = insert_bits(v, T(5), 1u, 3u);
    OUT(11) = addsat(v, T(100));
    OUT(12) = subsat(v, T(100));
    OUT(13) = absdiff(v, T(9));
}
#define BITS(T) template [[host_name("bits_" #T)]] [[kernel]] decltype(bits<T>) bits<T>;
BITS(int)
BITS(uint)
BITS(short)
BITS(ushort)
BITS(char)
BITS(uchar)

template <typename T>
[[kernel]] void moves(device const T* x [[buffer(0)]],
                      device T* y [[buffer(1)]],
                      uint tid [[thread_index_in_threadgroup]],
                      ushort lane [[thread_index_in_simdgroup]],
                      uint threads [[threads_per_threadgroup]]) {
    const T v = x[tid];
    OUT(0) = simd_shuffle(v, ushort((lane * 7 + 3) % 32));
    OUT(1) = simd_shuffle_xor(v, 5);
    OUT(2) = simd_shuffle_up(v, 3);
    OUT(3) = simd_shuffle_down(v, 3);
    OUT(4) = simd_shuffle_rotate_up(v, 3);
    OUT(5) = simd_shuffle_rotate_down(v, 3);
    OUT(6) = simd_broadcast(v, 9);
    OUT(7) = simd_broadcast_first(v);
}
#define MOVES(T) template [[host_name("moves_" #T)]] [[kernel]] decltype(moves<T>) moves<T>;
MOVES(float)
MOVES(half)
MOVES(int)
MOVES(uint)
MOVES(short)
MOVES(ushort)
MOVES(uchar)

[[kernel]] void votes(device const uint* x [[buffer(0)]],
                      device uint* y [[buffer(1)]],
                      uint tid [[thread_index_in_threadgroup]],
                      uint threads [[threads_per_threadgroup]]) {
    const bool v = x[tid] != 0;
    OUT(0) = uint(ulong(simd_ballot(v)));
    OUT(1) = simd_any(v);
    OUT(2) = simd_all(v);
    OUT(3) = simd_is_first();
    OUT(4) = uint(ulong(simd_active_threads_mask()));
    OUT(5) = simd_ballot(v).any();
}

template <typename T>
[[kernel]] void functions(device const T* x [[buffer(0)]],
                          device T* y [[buffer(1)]],
                          uint tid [[thread_index_in_threadgroup]],
                          uint threads [[threads_per_threadgroup]]) {
    const T v = x[tid], w = x[(tid + 1) % threads];
    OUT(0) = exp(v);
    OUT(1) = exp2(v);
    OUT(2) = log(abs(v));
    OUT(3) = log2(fabs(v));
    OUT(4) = sqrt(abs(v));
    OUT(5) = rsqrt(abs(v));
    OUT(6) = sin(v);
    OUT(7) = cos(v);
    OUT(8) = tanh(v);
    OUT(9) = floor(v);
    OUT(10) = ceil(v);
    OUT(11) = round(v);
    OUT(12) = rint(v);
    OUT(13) = trunc(v);
    OUT(14) = fract(v);
    OUT(15) = pow(abs(v), w);
    OUT(16) = min(v, w);
    OUT(17) = max(v, w);
    OUT(18) = clamp(v, T(-1), T(1));
    OUT(19) = fma(v, w, T(2));
    OUT(20) = select(v, w, v < w);
    OUT(21) = sign(v);
    OUT(22) = saturate(v);
    OUT(23) = fast::exp(v);
    OUT(24) = precise::exp(v);
    OUT(25) = copysign(v, w);
    OUT(26) = fmod(v, w);
    OUT(27) = T(isnan(v) + 2 * isinf(v) + 4 * isfinite(v));
}
#define FUNCTIONS(T) template [[host_name("functions_" #T)]] [[kernel]] decltype(functions<T>) functions<T>;
FUNCTIONS(float)
FUNCTIONS(half)

// Conversions of every scalar type to every other, from floats and from ints.
[[kernel]] void conversions(device const float* x [[buffer(0)]],
                            device float* y [[buffer(1)]],
                            uint tid [[thread_index_in_threadgroup]],
                            uint threads [[threads_per_threadgroup]]) {
    const float v = x[tid];
    OUT(0) = float(half(v));
    OUT(1) = float(bfloat(v));
    OUT(2) = float(int(v));
    OUT(3) = float(short(v));
    OUT(4) = float(char(int(v)));
    OUT(5) = float(uchar(int(v)));
    OUT(6) = float(long(v));
    OUT(7) = as_type<float>(as_type<uint>(v) ^ 0x80000000u);
    OUT(8) = float(bfloat(half(v)));
    OUT(9) = float((half)bfloat(v));
    OUT(10) = float(bfloat(v) * bfloat(v) + bfloat(1.0));
    OUT(11) = float(half(v) * half(v) + 1.0h);
    OUT(12) = float(1.5bf) + 0.25;
    OUT(13) = float(bool(v));
    OUT(14) = float(as_type<bfloat>(ushort(as_type<uint>(v) >> 16)));
    OUT(15) = static_cast<float>(static_cast<ushort>(v + 300.0));
}

struct Pair {
    packed_float3 position;
    float weight;
};

[[kernel]] void vectors(device const float* x [[buffer(0)]],
                        device float* y [[buffer(1)]],
                        device const packed_uint4* p [[buffer(2)]],
                        device Pair* pairs [[buffer(3)]],
                        uint tid [[thread_index_in_threadgroup]],
                        uint threads [[threads_per_threadgroup]]) {
    const float4 v = *(device const float4*)(x + 4 * (tid % 8));
    OUT(0) = dot(v, float4(1, 2, 3, 4));
    OUT(1) = float4(half4(v)).y;
    OUT(2) = float4(v.xy, v.w, 7).z;
    float4 w = v;
    w.zw = v.xx;
    OUT(3) = w.z + w.w;
    OUT(4) = length(float2(3, 4));
    OUT(5) = float(int4(v).x) + float(vec<bfloat, 4>(v).w);
    OUT(6) = max(v, 1.0f).x + clamp(v, 0.0f, 2.0f).y + min(v, float4(2)).z;
    OUT(7) = select(v, w, v < w).z;
    OUT(8) = any(v > 3.0f) + 2 * all(v > -100.0f);
    const uint4 q = p[tid];
    OUT(9) = float(q.x + q.y) + float(uint4(p[tid]).z + ((uint4)p[tid]).w);
    OUT(10) = float(((uint4)(uchar4)q).y & 15);
    pairs[tid].position = packed_float3(v.xyz);
    pairs[tid].weight = v.w;
    const float3 back = pairs[tid].position;
    OUT(11) = back.z + exp(float2(0)).x;
    OUT(12) = float3(1)[2] + as_type<float2>(uint2(0x3f800000u, 0x40000000u)).y;
    const half2 h = half2(v.xy);
    OUT(13) = float(h.x + h.y);
    OUT(14) = mix(v, w, float4(0.5)).z + fma(v, v, v).x;
    OUT(15) = float(as_type<uchar4>(q.x).y);
}

template <typename T>
[[kernel]] void matrices(device const T* a [[buffer(0)]],
                         device const T* b [[buffer(1)]],
                         device float* y [[buffer(2)]],
                         device T* z [[buffer(3)]],
                         uint lane [[thread_index_in_simdgroup]]) {
    threadgroup T tile[8 * 9];
    for (uint i = lane; i < 64; i += 32) tile[i / 8 * 9 + i % 8] = b[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_matrix<T, 8, 8> left, right, turned, shared;
    simdgroup_load(left, a, 8);
    simdgroup_load(right, b, 8);
    simdgroup_load(turned, b, 8, ulong2(0, 0), true);
    simdgroup_load(shared, tile, 9);
    simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
    simdgroup_multiply_accumulate(sum, left, right, sum);
    simdgroup_store(sum, y, 8);
    simdgroup_multiply(sum, left, turned);
    simdgroup_store(sum, y + 64, 8);
    simdgroup_multiply(sum, left, shared);
    simdgroup_store(sum, y + 128, 8, ulong2(0, 0), true);
    simdgroup_store(left, tile, 9);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = lane; i < 64; i += 32) z[i] = tile[i / 8 * 9 + i % 8];
    simdgroup_matrix<T, 8, 8> unit(T(2));
    simdgroup_store(unit, z + 64, 8);
}
#define MATRICES(T) template [[host_name("matrices_" #T)]] [[kernel]] decltype(matrices<T>) matrices<T>;
MATRICES(float)
MATRICES(half)
MATRICES(bfloat)

// The origin of a tile is (column, row).
[[kernel]] void matrix_origin(device const float* x [[buffer(0)]], device float* y [[buffer(1)]]) {
    simdgroup_float8x8 m;
    simdgroup_load(m, x, 16, ulong2(8, 1));
    simdgroup_store(m, y, 8);
}

[[kernel]] void atomics(device atomic_uint* u [[buffer(0)]],
                        device atomic_int* s [[buffer(1)]],
                        device atomic_float* f [[buffer(2)]],
                        device uint* y [[buffer(3)]],
                        uint tid [[thread_index_in_threadgroup]],
                        uint group [[threadgroup_position_in_grid]],
                        uint threads [[threads_per_threadgroup]]) {
    threadgroup atomic_uint shared[2];
    if (tid == 0) {
        atomic_store_explicit(&shared[0], 0u, memory_order_relaxed);
        atomic_store_explicit(&shared[1], 0xffffffffu, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&shared[0], tid, memory_order_relaxed);
    atomic_fetch_min_explicit(&shared[1], tid + 5, memory_order_relaxed);
    const uint ticket = atomic_fetch_add_explicit(&u[0], 1, memory_order_relaxed);
    atomic_fetch_or_explicit(&u[1], 1u << (tid % 32), memory_order_relaxed);
    atomic_fetch_and_explicit(&u[2], ~(1u << (tid % 32)), memory_order_relaxed);
    atomic_fetch_xor_explicit(&u[3], tid, memory_order_relaxed);
    atomic_fetch_max_explicit(&u[4], tid, memory_order_relaxed);
    atomic_fetch_sub_explicit(&s[0], 2, memory_order_relaxed);
    atomic_fetch_min_explicit(&s[1], -int(tid), memory_order_relaxed);
    atomic_fetch_add_explicit(&f[0], 0.5f, memory_order_relaxed);
    uint seen = atomic_load_explicit(&u[5], memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&u[5], &seen, seen + 3, memory_order_relaxed, memory_order_relaxed)) {
    }
    atomic_exchange_explicit(&u[6], 42u, memory_order_relaxed);
    y[group * threads + tid] = ticket;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 0) {
        atomic_fetch_add_explicit(&u[7], atomic_load_explicit(&shared[0], memory_order_relaxed), memory_order_relaxed);
        atomic_fetch_add_explicit(&u[8], atomic_load_explicit(&shared[1], memory_order_relaxed), memory_order_relaxed);
    }
}

[[kernel]] void builtins(device uint* y [[buffer(0)]],
                         uint3 grid [[thread_position_in_grid]],
                         uint3 group [[threadgroup_position_in_grid]],
                         ushort tid [[thread_index_in_threadgroup]],
                         ushort2 local [[thread_position_in_threadgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint3 groups [[threadgroups_per_grid]],
                         uint threads [[threads_per_threadgroup]],
                         uint3 all [[threads_per_grid]],
                         uint simds [[simdgroups_per_threadgroup]],
                         uint width [[threads_per_simdgroup]]) {
    device uint* out = y + ((group.z * groups.y + group.y) * all.x + grid.x) * 8;
    out[0] = grid.x + 1000 * grid.y + 100000 * grid.z;
    out[1] = tid + 1000 * local.x + 100000 * local.y;
    out[2] = simd;
    out[3] = lane;
    out[4] = simds + 100 * width;
    out[5] = groups.x + 10 * groups.y + 100 * groups.z;
    out[6] = all.x;
    out[7] = threads;
}

constant uint FACTOR [[function_constant(0)]];
constant float OFFSET [[function_constant(3)]];
constant bool NEGATE [[function_constant(5)]];
constant uint UNUSED [[function_constant(9)]];

static float scaled(float x) { return x * float(FACTOR); }

[[kernel]] void constants(device const float* x [[buffer(0)]],
                          device float* y [[buffer(1)]],
                          uint tid [[thread_index_in_threadgroup]]) {
    const float v = scaled(x[tid]) + OFFSET;
    y[tid] = NEGATE ? -v : v;
}

struct ScanArgs {
    uint count;
    float scale;
};

// A sum over the threadgroup, through threadgroup memory.
[[max_total_threads_per_threadgroup(1024)]] [[kernel]] void scan(device const float* x [[buffer(0)]],
                                                                  device float* y [[buffer(1)]],
                                                                  constant ScanArgs& args [[buffer(2)]],
                                                                  uint tid [[thread_index_in_threadgroup]],
                                                                  uint group [[threadgroup_position_in_grid]],
                                                                  uint threads [[threads_per_threadgroup]]) {
    threadgroup float line[1024], spare[3];
    const uint i = group * threads + tid;
    line[tid] = i < args.count ? x[i] * args.scale : 0.0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = threads / 2; step > 0; step /= 2) {
        if (tid < step) line[tid] += line[tid + step];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (tid < 3) spare[tid] = line[0];
    if (tid == 0) y[group] = spare[0];
}

// For measuring.
struct BenchArgs {
    uint count;
};
[[kernel]] void bench_sum(device float* y [[buffer(0)]], constant BenchArgs& a [[buffer(1)]], uint tid [[thread_position_in_grid]]) {
    float v = y[tid];
    for (uint i = 0; i < a.count; i++) v = simd_sum(v) * 0.03125f;
    y[tid] = v;
}
[[kernel]] void bench_barrier(device float* y [[buffer(0)]], constant BenchArgs& a [[buffer(1)]], uint tid [[thread_position_in_grid]]) {
    for (uint i = 0; i < a.count; i++) threadgroup_barrier(mem_flags::mem_none);
    y[tid] = 0;
}
[[kernel]] void bench_matrix(device float* y [[buffer(0)]], constant BenchArgs& a [[buffer(1)]], uint tid [[thread_position_in_grid]]) {
    simdgroup_float8x8 m(0.5f), sum = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
    for (uint i = 0; i < a.count; i++) simdgroup_multiply_accumulate(sum, m, m, sum);
    simdgroup_store(sum, y, 8);
}
