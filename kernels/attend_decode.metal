// Decode: attention of one token over blocks of the cache, and the merge of the blocks' partial results.
//
// A partial result is the largest score, the sum of exp(score - largest), and that sum's weighted values. Head sizes are
// 64, 128 and 256.
#include "attention.h"

// Elements from one prepared row to the next: all rows start at multiples of 16 bytes and meet different banks. Rows are
// the pack's queries, then the token's own key.
#define PREPARED_STRIDE (HEAD_DIM_MAX + 8)

// First and last key, exclusive, of a block when `visible` keys are split: `block_keys` each, or evenly in multiples of
// 32 if that is 0.
inline uint2 block_range(uint visible, uint blocks, uint block_keys, uint block) {
    uint size = block_keys;
    if (size == 0) {
        size = ((visible + blocks - 1) / blocks + 31) / 32 * 32;
    }
    return uint2(min(block * size, visible), min((block + 1) * size, visible));
}

// One block of one pack of query heads.
struct Pack {
    // First head, and heads.
    uint first_head;
    uint queries;
    // First element of the KV head's part of a cache row.
    uint column;
    // Keys of the block; those before `cached` lie in the cache, the one after them is the token's own.
    uint first_key;
    uint end_key;
    uint cached;
};

inline Pack pack_of(constant AttentionDims& dims, constant CacheReading& reading, uint3 group, uint position) {
    uint per_kv = dims.heads / dims.kv_heads;
    uint2 range = block_range(position + 1, reading.blocks, reading.block_keys, group.x);
    Pack pack;
    pack.first_head = group.z * per_kv + group.y * PACKED;
    pack.queries = min(per_kv - group.y * PACKED, PACKED);
    pack.column = group.z * HEAD_DIM;
    pack.first_key = range.x;
    pack.end_key = range.y;
    pack.cached = position + 1;
    return pack;
}

#if defined(LILY_MMA)
#include "attend_keys_mma.h"
#else
#include "attend_keys.h"
#endif

// Threadgroups are blocks x packs of query heads x KV heads; function constant PACKED is the size of a pack, at most
// PACK_MAX. The token's own key and value do not come from the cache, since the threadgroup that has them in its block, of
// the first pack, writes them there meanwhile.
kernel void attend_blocks(
    device const uint* step [[buffer(0)]],
    device const bfloat* q_raw [[buffer(1)]],
    device const bfloat* k_raw [[buffer(2)]],
    device const bfloat* v_raw [[buffer(3)]],
    device const float* q_gain [[buffer(4)]],
    device const float* k_gain [[buffer(5)]],
    device const float* inv_freq [[buffer(6)]],
    device bfloat* keys [[buffer(7)]],
    device bfloat* values [[buffer(8)]],
    device float* partials [[buffer(9)]],
    constant AttendBlocksArgs& args [[buffer(10)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint4 prepared_words[(PACK_MAX + 1) * PREPARED_STRIDE / 8];
    threadgroup float meeting[MEETING_FLOATS];
    threadgroup float turns[HEAD_DIM_MAX];
    threadgroup ushort* prepared = (threadgroup ushort*)prepared_words;
    uint position = step[0];
    uint kv_width = args.dims.kv_heads * HEAD_DIM;
    Pack pack = pack_of(args.dims, args.reading, group, position);
    pack.cached = position;
    bool current = pack.first_key <= position && position < pack.end_key;
    KeysAhead ahead;
    ahead.request(pack, keys, values, kv_width, simdgroup, lane);
    prepare_turns(inv_freq, position, args.dims, turns, thread_index, BLOCK_THREADS);
    Float8 gain = gain_part(q_gain, HEAD_DIM, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    wait_for_inputs();

    // Rows of queries that the pack has not got are 0.
    threadgroup float* row = meeting + simdgroup * HEAD_DIM_MAX;
    if (simdgroup < PACK_MAX) {
        uint4 words = uint4(0);
        if (simdgroup < pack.queries) {
            device const bfloat* raw = q_raw + (pack.first_head + simdgroup) * 2 * HEAD_DIM;
            words = prepare_part(head_part(raw, HEAD_DIM, lane), gain, turns, args.dims, row, lane);
        }
        if (8 * lane < HEAD_DIM) {
            *(threadgroup uint4*)(prepared + simdgroup * PREPARED_STRIDE + 8 * lane) = words;
        }
    }
    device const bfloat* own_value = v_raw + pack.column;
    if (current && simdgroup == PACK_MAX % BLOCK_SIMDGROUPS) {
        Float8 own = head_part(k_raw + pack.column, HEAD_DIM, lane);
        uint4 words = prepare_part(own, gain_part(k_gain, HEAD_DIM, lane), turns, args.dims, row, lane);
        if (8 * lane < HEAD_DIM) {
            *(threadgroup uint4*)(prepared + PACK_MAX * PREPARED_STRIDE + 8 * lane) = words;
            if (group.y == 0) {
                ulong to = ulong(position) * kv_width + pack.column + 8 * lane;
                store_uint4((device uchar*)(keys + to), words);
                store_uint4((device uchar*)(values + to), load_uint4((device const uchar*)(own_value + 8 * lane)));
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device float* out = partials + ulong(group.x * args.dims.heads + pack.first_head) * (HEAD_DIM + 2);
    attend_pack(
        ahead, pack, keys, values, own_value, kv_width, out, prepared, meeting, thread_index, simdgroup, lane);
}

// The same with queries, and a key in the cache, that `qk_prep` has prepared.
kernel void attend_prepared(
    device const uint* step [[buffer(0)]],
    device const bfloat* q [[buffer(1)]],
    device const bfloat* keys [[buffer(2)]],
    device const bfloat* values [[buffer(3)]],
    device float* partials [[buffer(4)]],
    constant AttendPreparedArgs& args [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint4 prepared_words[(PACK_MAX + 1) * PREPARED_STRIDE / 8];
    threadgroup float meeting[MEETING_FLOATS];
    threadgroup ushort* prepared = (threadgroup ushort*)prepared_words;
    Pack pack = pack_of(args.dims, args.reading, group, step[0]);
    uint kv_width = args.dims.kv_heads * HEAD_DIM;
    KeysAhead ahead;
    ahead.request(pack, keys, values, kv_width, simdgroup, lane);
    for (uint i = thread_index; i < PACK_MAX * HEAD_DIM; i += BLOCK_THREADS) {
        uint query = i / HEAD_DIM;
        uint from = (pack.first_head + query) * HEAD_DIM + i % HEAD_DIM;
        ushort element = query < pack.queries ? ((device const ushort*)q)[from] : ushort(0);
        prepared[query * PREPARED_STRIDE + i % HEAD_DIM] = element;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device float* out = partials + ulong(group.x * args.dims.heads + pack.first_head) * (HEAD_DIM + 2);
    attend_pack(ahead, pack, keys, values, values, kv_width, out, prepared, meeting, thread_index, simdgroup, lane);
}

// Blocks whose partial results a SIMD-group has under way: eight times as many are merged in one go, 66 on a GPU of 132
// multiprocessors.
#if defined(LILY_MMA)
#define MERGED 9
#else
#define MERGED 8
#endif

// Threadgroups are query heads x stretches of 32 columns. A SIMD-group adds every eighth block, MERGED of them at a time.
kernel void attend_merge(
    device const bfloat* q_raw [[buffer(0)]],
    device const float* partials [[buffer(1)]],
    device bfloat* out [[buffer(2)]],
    constant AttendMergeArgs& args [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float sums[BLOCK_SIMDGROUPS * SIMD_WIDTH];
    threadgroup float mosts[BLOCK_SIMDGROUPS];
    threadgroup float totals[BLOCK_SIMDGROUPS];
    uint head = group.x;
    uint column = group.y * SIMD_WIDTH + lane;
    uint stride = args.dims.heads * (HEAD_DIM + 2);
    device const float* parts = partials + head * (HEAD_DIM + 2);
    float most = EMPTY_BLOCK;
    float total = 0.0f;
    float sum = 0.0f;
    for (uint first = simdgroup; first < args.blocks; first += BLOCK_SIMDGROUPS * MERGED) {
        float each_most[MERGED];
        float each_total[MERGED];
        float each_sum[MERGED];
        #pragma clang loop unroll(full)
        for (uint j = 0; j < MERGED; j++) {
            uint block = first + j * BLOCK_SIMDGROUPS;
            device const float* part = parts + ulong(block) * stride;
            bool inside = block < args.blocks;
            each_most[j] = inside ? part[0] : EMPTY_BLOCK;
            each_total[j] = inside ? part[1] : 0.0f;
            each_sum[j] = inside ? part[2 + column] : 0.0f;
        }
        float larger = most;
        #pragma clang loop unroll(full)
        for (uint j = 0; j < MERGED; j++) {
            larger = max(larger, each_most[j]);
        }
        float shrink = fast::exp(most - larger);
        total *= shrink;
        sum *= shrink;
        #pragma clang loop unroll(full)
        for (uint j = 0; j < MERGED; j++) {
            float factor = fast::exp(each_most[j] - larger);
            total += factor * each_total[j];
            sum += factor * each_sum[j];
        }
        most = larger;
    }
    sums[simdgroup * SIMD_WIDTH + lane] = sum;
    if (lane == 0) {
        mosts[simdgroup] = most;
        totals[simdgroup] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
        float larger = EMPTY_BLOCK;
        for (uint s = 0; s < BLOCK_SIMDGROUPS; s++) {
            larger = max(larger, mosts[s]);
        }
        sum = 0.0f;
        total = 0.0f;
        for (uint s = 0; s < BLOCK_SIMDGROUPS; s++) {
            float factor = fast::exp(mosts[s] - larger);
            sum += factor * sums[s * SIMD_WIDTH + lane];
            total += factor * totals[s];
        }
        float gate = float(q_raw[(head * 2 + 1) * HEAD_DIM + column]);
        out[head * HEAD_DIM + column] = bfloat(sum / total * sigmoid(gate));
    }
}
