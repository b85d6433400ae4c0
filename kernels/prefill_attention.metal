// Attention of a prefill chunk: preparation of queries and keys with the cache write, and attention over the cache.
#include "attention.h"
#if defined(LILY_MMA)
#include "attend_tile_mma.h"
#else
#include "attend_tile.h"
#endif

// A SIMD-group prepares one head (queries, then keys) of one row, or copies a head of values.
kernel void qk_prep(device const uint* step [[buffer(0)]],
                    device const bfloat* q_raw [[buffer(1)]],
                    device const bfloat* k_raw [[buffer(2)]],
                    device const bfloat* v_raw [[buffer(3)]],
                    device const float* q_gain [[buffer(4)]],
                    device const float* k_gain [[buffer(5)]],
                    device const float* inv_freq [[buffer(6)]],
                    device bfloat* keys [[buffer(7)]],
                    device bfloat* values [[buffer(8)]],
                    device bfloat* q [[buffer(9)]],
                    constant QkPrepArgs& args [[buffer(10)]],
                    uint3 group [[threadgroup_position_in_grid]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float rows[ROW_SIMDGROUPS * 2 * HEAD_DIM_MAX];
    constant AttentionDims& a = args.dims;
    const uint row = group.x * ROW_SIMDGROUPS + simdgroup;
    if (row >= a.rows) return;
    const uint position = step[0] + row;
    const uint dim = a.head_dim;
    const ulong cache_row = ulong(position) * a.kv_heads * dim;
    const ulong kv_row = ulong(row) * a.kv_heads * dim;
    if (group.y >= a.heads + a.kv_heads) {
        const uint first = (group.y - a.heads - a.kv_heads) * dim;
        for (uint c = lane; c < dim; c += SIMD_WIDTH) values[cache_row + first + c] = v_raw[kv_row + first + c];
        return;
    }
    const bool is_query = group.y < a.heads;
    const uint head = is_query ? group.y : group.y - a.heads;
    const ulong query = ulong(row) * a.heads + head;
    device const bfloat* raw = is_query ? q_raw + query * 2 * dim : k_raw + kv_row + head * dim;
    device bfloat* out = is_query ? q + query * dim : keys + cache_row + head * dim;
    threadgroup float* own = rows + simdgroup * 2 * HEAD_DIM_MAX;
    threadgroup float* turns = own + HEAD_DIM_MAX;
    const Float8 x = head_part(raw, dim, lane);
    const Float8 gain = gain_part(is_query ? q_gain : k_gain, dim, lane);
    prepare_turns(inv_freq, position, a, turns, lane, SIMD_WIDTH);
    const uint4 words = prepare_part(x, gain, turns, a, own, lane);
    if (8 * lane < dim) store_uint4((device uchar*)(out + 8 * lane), words);
}

kernel void attend(device const uint* step [[buffer(0)]],
                   device const bfloat* q [[buffer(1)]],
                   device const bfloat* q_raw [[buffer(2)]],
                   device const bfloat* keys [[buffer(3)]],
                   device const bfloat* values [[buffer(4)]],
                   device float* partials [[buffer(5)]],
                   device bfloat* out [[buffer(6)]],
                   constant AttendArgs& args [[buffer(7)]],
                   uint3 group [[threadgroup_position_in_grid]],
                   uint index [[thread_index_in_threadgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint4 memory[ATTEND_MEMORY];
    constant AttentionDims& a = args.dims;
    const Outputs outputs = {q_raw, partials, out, step[0], group.z, args.segments.count, args.segments.keys};
    // The last tiles see most keys and start first.
    const uint tiles = (a.rows * (a.heads / a.kv_heads) + TILE_QUERIES - 1) / TILE_QUERIES;
    const uint tile = tiles - 1 - group.x;
    if (HEAD_DIM == 64)
        attend_tile<64>(q, keys, values, outputs, a, tile, group.y, index, simdgroup, lane, memory);
    else if (HEAD_DIM == 128)
        attend_tile<128>(q, keys, values, outputs, a, tile, group.y, index, simdgroup, lane, memory);
    else
        attend_tile<256>(q, keys, values, outputs, a, tile, group.y, index, simdgroup, lane, memory);
}

// A SIMD-group merges one head of one row.
kernel void merge_segments(device const uint* step [[buffer(0)]],
                           device const bfloat* q_raw [[buffer(1)]],
                           device const float* partials [[buffer(2)]],
                           device bfloat* out [[buffer(3)]],
                           constant MergeSegmentsArgs& args [[buffer(4)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
    constant AttentionDims& a = args.dims;
    const uint row = group.x * ROW_SIMDGROUPS + simdgroup;
    if (row >= a.rows) return;
    const uint seen = (step[0] + row) / args.segments.keys + 1;
    if (seen == 1) return;
    const uint dim = a.head_dim;
    const ulong stride = ulong(a.heads) * (dim + 2);
    const ulong head = ulong(row) * a.heads + group.y;
    device const float* parts = partials + row * args.segments.count * stride + group.y * (dim + 2);
    float most = EMPTY_BLOCK;
    for (uint s = 0; s < seen; s++) most = max(most, parts[s * stride]);
    for (uint c = 2 * lane; c < dim; c += 2 * SIMD_WIDTH) {
        float total = 0.0f;
        float2 sum = 0.0f;
        for (uint s = 0; s < seen; s++) {
            device const float* part = parts + s * stride;
            const float weight = fast::exp(part[0] - most);
            total += weight * part[1];
            sum += weight * *(device const float2*)(part + 2 + c);
        }
        for (uint e = 0; e < 2; e++) {
            const float gate = float(q_raw[(2 * head + 1) * dim + c + e]);
            out[head * dim + c + e] = bfloat(sum[e] / total * sigmoid(gate));
        }
    }
}
