// Routing of a prefill chunk on the device: router logits, choice of experts, grouping of rows by expert.
#include "generated/args.h"
#include "quant.h"
#include "top_k.h"
#if defined(LILY_MMA)
#include "router_mma.h"
#endif

// Eight elements of output `output` of the router, or of the shared expert's scale, which comes last.
inline Float8 router_weights(StoredMatrix router, StoredMatrix shared, uint experts, uint output, uint column) {
    if (output < experts) return dequantize8(router, output, column);
    return dequantize8(shared, 0, column);
}

// The logits of `Outputs` outputs and ROUTER_ROWS rows by one SIMD-group, which reads and dequantises weights once for all
// of those rows. Rows and outputs past the last repeat it and are not stored. Weights stay fp32.
template <int Outputs>
inline void router_block(device const bfloat* x, StoredMatrix router, StoredMatrix shared_row, device float* logits,
                         device float* shared, uint rows_of_x, uint experts, uint first_row, uint first_output, uint lane) {
    const uint width = router.cols;
    float sums[Outputs][ROUTER_ROWS];
#pragma clang loop unroll(full)
    for (uint o = 0; o < Outputs; o++)
#pragma clang loop unroll(full)
        for (uint r = 0; r < ROUTER_ROWS; r++) sums[o][r] = 0.0f;
    for (uint column = 8 * lane; column < width; column += 8 * SIMD_WIDTH) {
        Float8 rows[ROUTER_ROWS];
#pragma clang loop unroll(full)
        for (uint r = 0; r < ROUTER_ROWS; r++)
            rows[r] = load_bf16x8(x + ulong(min(first_row + r, rows_of_x - 1)) * width + column);
#pragma clang loop unroll(full)
        for (uint o = 0; o < Outputs; o++) {
            const uint output = min(first_output + o, experts);
            const Float8 w = router_weights(router, shared_row, experts, output, column);
#pragma clang loop unroll(full)
            for (uint r = 0; r < ROUTER_ROWS; r++) sums[o][r] += dot8(w, rows[r]);
        }
    }
    // Lane i keeps sum i.
    float mine = 0.0f;
#pragma clang loop unroll(full)
    for (uint o = 0; o < Outputs; o++) {
#pragma clang loop unroll(full)
        for (uint r = 0; r < ROUTER_ROWS; r++) {
            const float sum = simd_sum(sums[o][r]);
            mine = lane == o * ROUTER_ROWS + r ? sum : mine;
        }
    }
    const uint output = first_output + lane / ROUTER_ROWS;
    const uint row = first_row + lane % ROUTER_ROWS;
    if (lane >= Outputs * ROUTER_ROWS || row >= rows_of_x || output > experts) return;
    if (output == experts)
        shared[row] = sigmoid(mine);
    else
        logits[ulong(row) * experts + output] = mine;
}

// Router logits of some rows. With matrix units a threadgroup takes a tile; where they do not compute exactly, and elsewhere,
// SIMD-groups take blocks.
kernel void router(device const bfloat* x [[buffer(0)]],
                   device const uchar* router_codes [[buffer(1)]],
                   device const uchar* router_scales [[buffer(2)]],
                   device const uchar* router_biases [[buffer(3)]],
                   device const uchar* shared_codes [[buffer(4)]],
                   device const uchar* shared_scales [[buffer(5)]],
                   device const uchar* shared_biases [[buffer(6)]],
                   device float* logits [[buffer(7)]],
                   device float* shared [[buffer(8)]],
                   constant RouterArgs& args [[buffer(9)]],
                   uint3 group [[threadgroup_position_in_grid]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
    constant MoeDims& d = args.dims;
    const StoredMatrix of_router = stored_matrix(router_codes, router_scales, router_biases, FORMAT0, d.width);
    const StoredMatrix of_shared = stored_matrix(shared_codes, shared_scales, shared_biases, FORMAT1, d.width);
#if defined(LILY_MMA)
    // Two threadgroups to a multiprocessor.
    limit_registers<128>();
    threadgroup float memory[ROUTER_PARTS * ROUTER_TILE_ROWS * ROUTER_STRIDE];
    const uint first_row = group.y * ROUTER_TILE_ROWS;
    const uint first_output = group.x * ROUTER_TILE_OUTPUTS;
    if (first_row >= d.rows || first_output > d.experts) return;
    if (!has_exact_codes(FORMAT0)) {
        for (uint output = first_output + VECTOR_OUTPUTS * simdgroup;
             output < min(first_output + ROUTER_TILE_OUTPUTS, d.experts + 1); output += VECTOR_OUTPUTS * VECTOR_SIMDGROUPS)
            for (uint row = first_row; row < min(first_row + ROUTER_TILE_ROWS, d.rows); row += ROUTER_ROWS)
                router_block<VECTOR_OUTPUTS>(x, of_router, of_shared, logits, shared, d.rows, d.experts, row, output, lane);
        return;
    }
    // The threadgroup in whose tile the shared expert's scale would be takes it too.
    const uint row = first_row + ROUTER_ROWS * simdgroup;
    if (d.experts < first_output + ROUTER_TILE_OUTPUTS && row < d.rows)
        router_block<1>(x, of_router, of_shared, logits, shared, d.rows, d.experts, row, d.experts, lane);
    if (first_output >= d.experts) return;
    const uint index = simdgroup * SIMD_WIDTH + lane;
    if (router_span(FORMAT0) == 64)
        router_tile<64>(x, of_router, logits, first_row, d.rows, first_output, d.experts, memory, index, simdgroup, lane);
    else
        router_tile<32>(x, of_router, logits, first_row, d.rows, first_output, d.experts, memory, index, simdgroup, lane);
#else
    const uint first_output = (group.x * VECTOR_SIMDGROUPS + simdgroup) * VECTOR_OUTPUTS;
    if (first_output > d.experts) return;
    router_block<VECTOR_OUTPUTS>(x, of_router, of_shared, logits, shared, d.rows, d.experts, group.y * ROUTER_ROWS,
                                 first_output, lane);
#endif
}

// A SIMD-group chooses the experts of one row.
kernel void route(device const float* logits [[buffer(0)]],
                  device uint* experts [[buffer(1)]],
                  device float* scores [[buffer(2)]],
                  constant RouteArgs& args [[buffer(3)]],
                  uint3 group [[threadgroup_position_in_grid]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
    constant MoeDims& d = args.dims;
    const uint row = group.x * ROW_SIMDGROUPS + simdgroup;
    if (row >= d.rows) return;
    const Choice choice = choose_experts(logits + ulong(row) * d.experts, d.experts, d.top_k, lane);
    if (lane < d.top_k) {
        experts[ulong(row) * d.top_k + lane] = choice.expert;
        scores[ulong(row) * d.top_k + lane] = choice.score;
    }
}

// Assignments that a lane of `group_rows` looks at at once.
#define GROUP_AHEAD 8

// The experts of every 32nd assignment from `at` on; no expert past the last.
inline void load_bins(thread uint* bins, device const uint* experts, uint at, uint end) {
#pragma clang loop unroll(full)
    for (uint i = 0; i < GROUP_AHEAD; i++) bins[i] = at + i * SIMD_WIDTH < end ? experts[at + i * SIMD_WIDTH] : NO_TILE;
}

// A threadgroup finds everything of one expert: it counts the assignments and tiles of all experts below, then lists its
// own assignments, stable, and its tiles. No threadgroup waits for another: reading all assignments again is cheaper.
kernel void group_rows(device const uint* experts [[buffer(0)]],
                       device uint* offsets [[buffer(1)]],
                       device uint* order [[buffer(2)]],
                       device uint* tiles [[buffer(3)]],
                       constant GroupRowsArgs& args [[buffer(4)]],
                       uint3 group [[threadgroup_position_in_grid]],
                       uint index [[thread_index_in_threadgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
    threadgroup atomic_uint counts[EXPERTS_MAX];
    threadgroup uint sums[3][ROW_THREADS / SIMD_WIDTH];
    constant MoeDims& d = args.dims;
    const uint expert = group.x;
    const uint assignments = d.rows * d.top_k;
    // Each SIMD-group looks at its own run of neighbouring assignments.
    const uint simdgroups = ROW_THREADS / SIMD_WIDTH;
    const uint share = (assignments + ROW_THREADS - 1) / ROW_THREADS * SIMD_WIDTH;
    const uint from = min(simdgroup * share, assignments);
    const uint to = min(from + share, assignments);

    for (uint i = index; i < expert; i += ROW_THREADS) atomic_store_explicit(&counts[i], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint own = 0;
    for (uint base = from; base < to; base += GROUP_AHEAD * SIMD_WIDTH) {
        uint bins[GROUP_AHEAD];
        load_bins(bins, experts, base + lane, to);
#pragma clang loop unroll(full)
        for (uint i = 0; i < GROUP_AHEAD; i++) {
            if (bins[i] < expert) atomic_fetch_add_explicit(&counts[bins[i]], 1u, memory_order_relaxed);
            own += bins[i] == expert ? 1u : 0u;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint below = 0;
    uint tiles_below = 0;
    for (uint i = index; i < expert; i += ROW_THREADS) {
        const uint count = atomic_load_explicit(&counts[i], memory_order_relaxed);
        below += count;
        tiles_below += (count + args.tile_rows - 1) / args.tile_rows;
    }
    own = simd_sum(own);
    below = simd_sum(below);
    tiles_below = simd_sum(tiles_below);
    if (lane == 0) {
        sums[0][simdgroup] = own;
        sums[1][simdgroup] = below;
        sums[2][simdgroup] = tiles_below;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint before = 0;
    own = below = tiles_below = 0;
    for (uint s = 0; s < simdgroups; s++) {
        before += s < simdgroup ? sums[0][s] : 0u;
        own += sums[0][s];
        below += sums[1][s];
        tiles_below += sums[2][s];
    }

    uint place = below + before;
    for (uint base = from; base < to; base += GROUP_AHEAD * SIMD_WIDTH) {
        uint bins[GROUP_AHEAD];
        load_bins(bins, experts, base + lane, to);
#pragma clang loop unroll(full)
        for (uint i = 0; i < GROUP_AHEAD; i++) {
            const uint lanes = uint(ulong(simd_ballot(bins[i] == expert)));
            if (bins[i] == expert) order[place + popcount(lanes & ((1u << lane) - 1))] = base + i * SIMD_WIDTH + lane;
            place += popcount(lanes);
        }
    }
    const uint own_tiles = (own + args.tile_rows - 1) / args.tile_rows;
    for (uint i = index; i < own_tiles; i += ROW_THREADS) {
        tiles[2 * (tiles_below + i)] = expert;
        tiles[2 * (tiles_below + i) + 1] = below + i * args.tile_rows;
    }
    if (index == 0) offsets[expert] = below;
    // The last expert knows where everything ends.
    if (expert + 1 == d.experts) {
        if (index == 0) offsets[d.experts] = assignments;
        const uint capacity = assignments / args.tile_rows + min(d.experts, assignments);
        for (uint i = 2 * (tiles_below + own_tiles) + index; i < 2 * capacity; i += ROW_THREADS) tiles[i] = NO_TILE;
    }
}
