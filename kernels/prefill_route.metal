// Routing of a prefill chunk on the device: router logits, choice of experts, grouping of rows by expert.
#include "generated/args.h"
#include "quant.h"
#include "top_k.h"

// Eight elements of output `output` of the router, or of the shared expert's scale, which comes last.
inline Float8 router_weights(StoredMatrix router, StoredMatrix shared, uint experts, uint output, uint column) {
    if (output < experts) return dequantize8(router, output, column);
    return dequantize8(shared, 0, column);
}

// A SIMD-group takes some outputs of some rows, so that weights are read and dequantised once for all of those rows. Rows
// and outputs past the last repeat it and are not stored. Weights stay fp32.
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
    const uint first_output = (group.x * VECTOR_SIMDGROUPS + simdgroup) * VECTOR_OUTPUTS;
    const uint first_row = group.y * ROUTER_ROWS;
    if (first_output > d.experts) return;

    float sums[VECTOR_OUTPUTS][ROUTER_ROWS];
#pragma clang loop unroll(full)
    for (uint o = 0; o < VECTOR_OUTPUTS; o++)
#pragma clang loop unroll(full)
        for (uint r = 0; r < ROUTER_ROWS; r++) sums[o][r] = 0.0f;
    for (uint column = 8 * lane; column < d.width; column += 8 * SIMD_WIDTH) {
        Float8 rows[ROUTER_ROWS];
#pragma clang loop unroll(full)
        for (uint r = 0; r < ROUTER_ROWS; r++)
            rows[r] = load_bf16x8(x + ulong(min(first_row + r, d.rows - 1)) * d.width + column);
#pragma clang loop unroll(full)
        for (uint o = 0; o < VECTOR_OUTPUTS; o++) {
            const uint output = min(first_output + o, d.experts);
            const Float8 w = router_weights(of_router, of_shared, d.experts, output, column);
#pragma clang loop unroll(full)
            for (uint r = 0; r < ROUTER_ROWS; r++) sums[o][r] += dot8(w, rows[r]);
        }
    }
    // Lane i keeps sum i.
    float mine = 0.0f;
#pragma clang loop unroll(full)
    for (uint o = 0; o < VECTOR_OUTPUTS; o++) {
#pragma clang loop unroll(full)
        for (uint r = 0; r < ROUTER_ROWS; r++) {
            const float sum = simd_sum(sums[o][r]);
            mine = lane == o * ROUTER_ROWS + r ? sum : mine;
        }
    }
    const uint output = first_output + lane / ROUTER_ROWS;
    const uint row = first_row + lane % ROUTER_ROWS;
    if (lane >= VECTOR_OUTPUTS * ROUTER_ROWS || row >= d.rows || output > d.experts) return;
    if (output == d.experts)
        shared[row] = sigmoid(mine);
    else
        logits[ulong(row) * d.experts + output] = mine;
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
    for (uint at = from + lane; at < to; at += SIMD_WIDTH) {
        const uint bin = experts[at];
        if (bin < expert) atomic_fetch_add_explicit(&counts[bin], 1u, memory_order_relaxed);
        own += bin == expert ? 1u : 0u;
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
    for (uint base = from; base < to; base += SIMD_WIDTH) {
        const uint at = base + lane;
        const uint mine = at < to && experts[at] == expert ? 1u : 0u;
        const uint rank = simd_prefix_exclusive_sum(mine);
        if (mine != 0) order[place + rank] = at;
        place += simd_sum(mine);
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
