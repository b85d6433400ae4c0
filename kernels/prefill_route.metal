// Routing of a prefill chunk on the device: router logits, choice of experts, grouping of rows by expert.
#include "generated/args.h"
#include "functions.h"
#include "quant.h"

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

// Fills the place of an expert that does not exist.
#define NO_EXPERT 0xffffffffu

// Whether candidate a (an expert and its logit) comes before b: the larger logit, then the lower expert.
inline bool comes_before(float a_logit, uint a, float b_logit, uint b) {
    if (a == NO_EXPERT || b == NO_EXPERT) return b == NO_EXPERT && a != NO_EXPERT;
    return a_logit > b_logit || (a_logit == b_logit && a < b);
}

// A SIMD-group chooses the experts of one row. Each round takes the first expert, in order of preference, that comes
// after the one chosen before.
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
    logits += ulong(row) * d.experts;
    uint last = NO_EXPERT;
    float last_logit = 0.0f;
    float most = 0.0f;
    // Lane i keeps choice i.
    uint chosen = 0;
    float chosen_logit = 0.0f;
    for (uint round = 0; round < d.top_k; round++) {
        uint best = NO_EXPERT;
        float best_logit = 0.0f;
        for (uint e = lane; e < d.experts; e += SIMD_WIDTH) {
            const float logit = logits[e];
            const bool open = last == NO_EXPERT || comes_before(last_logit, last, logit, e);
            if (open && comes_before(logit, e, best_logit, best)) {
                best = e;
                best_logit = logit;
            }
        }
#pragma clang loop unroll(full)
        for (ushort distance = 16; distance > 0; distance /= 2) {
            const uint other = simd_shuffle_xor(best, distance);
            const float other_logit = simd_shuffle_xor(best_logit, distance);
            if (comes_before(other_logit, other, best_logit, best)) {
                best = other;
                best_logit = other_logit;
            }
        }
        if (round == 0) most = best_logit;
        if (lane == round) {
            chosen = best;
            chosen_logit = best_logit;
        }
        last = best;
        last_logit = best_logit;
    }
    const float weight = lane < d.top_k ? precise::exp(chosen_logit - most) : 0.0f;
    const float total = simd_sum(weight);
    if (lane < d.top_k) {
        experts[ulong(row) * d.top_k + lane] = chosen;
        scores[ulong(row) * d.top_k + lane] = weight / total;
    }
}

// Experts that are counted in one pass over the assignments.
#define COUNTED_EXPERTS 1024

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
    threadgroup atomic_uint counts[COUNTED_EXPERTS];
    threadgroup uint sums[3][ROW_THREADS / SIMD_WIDTH];
    constant MoeDims& d = args.dims;
    const uint expert = group.x;
    const uint assignments = d.rows * d.top_k;
    // Each SIMD-group looks at its own run of neighbouring assignments.
    const uint simdgroups = ROW_THREADS / SIMD_WIDTH;
    const uint share = (assignments + ROW_THREADS - 1) / ROW_THREADS * SIMD_WIDTH;
    const uint from = min(simdgroup * share, assignments);
    const uint to = min(from + share, assignments);

    uint below = 0;
    uint tiles_below = 0;
    for (uint first = 0; first < expert; first += COUNTED_EXPERTS) {
        for (uint i = index; i < COUNTED_EXPERTS; i += ROW_THREADS)
            atomic_store_explicit(&counts[i], 0u, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint end = min(expert - first, uint(COUNTED_EXPERTS));
        for (uint at = from + lane; at < to; at += SIMD_WIDTH) {
            const uint bin = experts[at] - first;
            if (bin < end) atomic_fetch_add_explicit(&counts[bin], 1u, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = index; i < end; i += ROW_THREADS) {
            const uint count = atomic_load_explicit(&counts[i], memory_order_relaxed);
            below += count;
            tiles_below += (count + args.tile_rows - 1) / args.tile_rows;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    uint own = 0;
    for (uint at = from + lane; at < to; at += SIMD_WIDTH) own += experts[at] == expert ? 1u : 0u;
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
