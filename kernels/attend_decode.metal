// Decode: attention of one token over blocks of the cache, and the merge of the blocks' partial results.
//
// A partial result is the largest score, the sum of exp(score - largest), and that sum's weighted values. Head sizes are
// 64, 128 and 256: a lane owns 2, 4 or 8 neighbouring elements of every row.
#include "attention.h"

#define BLOCK_SIMDGROUPS (BLOCK_THREADS / SIMD_WIDTH)
// Keys that a SIMD-group scores at once.
#define BLOCK_KEYS 4

// A lane's elements of a row of bf16, as they are stored. Without COALESCED, one after another: then neighbouring lanes
// never read neighbouring bytes at a time.
inline uint4 load_part(device const bfloat* row, uint lane) {
    if (COALESCED == 0) {
        device const ushort* elements = (device const ushort*)row + HEAD_DIM / SIMD_WIDTH * lane;
        uint words[4] = {};
        #pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            if (e < HEAD_DIM / SIMD_WIDTH) {
                words[e / 2] |= uint(elements[e]) << (e % 2 * 16);
            }
        }
        return uint4(words[0], words[1], words[2], words[3]);
    }
    device const uchar* from = (device const uchar*)row + HEAD_DIM / SIMD_WIDTH * 2 * lane;
    if (HEAD_DIM == 256) {
        return load_uint4(from);
    }
    if (HEAD_DIM == 128) {
        return uint4(load_uint2(from), 0, 0);
    }
    return uint4(load_uint(from), 0, 0, 0);
}

// A lane's elements of a row in threadgroup memory.
inline Float8 read_part(threadgroup const float* row, uint lane) {
    uint parts = HEAD_DIM / SIMD_WIDTH;
    threadgroup const float* from = row + parts * lane;
    Float8 x;
    x.low = float4(from[0], from[1], 0.0f, 0.0f);
    x.high = float4(0.0f);
    if (HEAD_DIM >= 128) {
        x.low.zw = float2(from[2], from[3]);
    }
    if (HEAD_DIM == 256) {
        x.high = float4(from[4], from[5], from[6], from[7]);
    }
    return x;
}

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

// Where the SIMD-groups of a threadgroup meet.
struct Meeting {
    // Prepared queries, then the token's own key.
    threadgroup float* prepared;
    // One query's sums of all SIMD-groups; and the largest score and the total of every query.
    threadgroup float* sums;
    threadgroup float* most;
    threadgroup float* total;
};

inline Meeting meeting_of(
    threadgroup float* prepared, threadgroup float* sums, threadgroup float* most, threadgroup float* total) {
    Meeting meeting;
    meeting.prepared = prepared;
    meeting.sums = sums;
    meeting.most = most;
    meeting.total = total;
    return meeting;
}

// The partial results of a pack whose prepared queries are in threadgroup memory. The queries of a pack share every load of
// a cache row; a row is read by a whole SIMD-group. Function constant PACKED is the pack's size, at most PACKED_QUERIES.
inline void attend_pack(
    Pack pack, device const bfloat* keys, device const bfloat* values, device const bfloat* own_value, uint kv_width,
    device float* out_of_pack, Meeting meeting, uint thread_index, uint simdgroup, uint lane) {
    threadgroup const float* own_key = meeting.prepared + PACKED_QUERIES * HEAD_DIM_MAX;
    Float8 query[PACKED_QUERIES];
    Float8 sums[PACKED_QUERIES];
    float scale = precise::rsqrt(float(HEAD_DIM));
    #pragma clang loop unroll(full)
    for (uint i = 0; i < PACKED_QUERIES; i++) {
        query[i] = read_part(meeting.prepared + i * HEAD_DIM_MAX, lane);
        query[i].low *= scale;
        query[i].high *= scale;
        sums[i].low = float4(0.0f);
        sums[i].high = float4(0.0f);
    }
    // Of query lane % PACKED_QUERIES: its largest score; and the part of its sum that this lane's keys make.
    float most = EMPTY_BLOCK;
    float total = 0.0f;
    uint stride = BLOCK_SIMDGROUPS * BLOCK_KEYS;
    for (uint first = pack.first_key + simdgroup * BLOCK_KEYS; first < pack.end_key; first += stride) {
        uint4 key_words[BLOCK_KEYS];
        uint4 value_words[BLOCK_KEYS];
        #pragma clang loop unroll(full)
        for (uint j = 0; j < BLOCK_KEYS; j++) {
            uint at = first + j;
            ulong row = ulong(at) * kv_width + pack.column;
            key_words[j] = uint4(0);
            value_words[j] = uint4(0);
            if (at < pack.end_key && at < pack.cached) {
                key_words[j] = load_part(keys + row, lane);
                value_words[j] = load_part(values + row, lane);
            } else if (at == pack.cached) {
                value_words[j] = load_part(own_value, lane);
            }
        }
        float scores[BLOCK_KEYS * PACKED_QUERIES] = {};
        #pragma clang loop unroll(full)
        for (uint j = 0; j < BLOCK_KEYS; j++) {
            Float8 key = widen8(key_words[j]);
            if (first + j == pack.cached) {
                key = read_part(own_key, lane);
            }
            #pragma clang loop unroll(full)
            for (uint i = 0; i < PACKED_QUERIES; i++) {
                if (i < PACKED) {
                    scores[j * PACKED_QUERIES + i] = dot8(query[i], key);
                }
            }
        }
        // Lane l gets the score of query l % 4 and key l / 4 % 4.
        float score = simd_sum16(scores, lane);
        bool inside = first + lane / PACKED_QUERIES % BLOCK_KEYS < pack.end_key;
        score = inside ? score : EMPTY_BLOCK;
        float larger = max(score, simd_shuffle_xor(score, 4));
        larger = max(larger, simd_shuffle_xor(larger, 8));
        larger = max(larger, most);
        float shrink = fast::exp(most - larger);
        float weight = inside ? fast::exp(score - larger) : 0.0f;
        most = larger;
        total = total * shrink + weight;
        #pragma clang loop unroll(full)
        for (uint i = 0; i < PACKED_QUERIES; i++) {
            float factor = simd_shuffle(shrink, ushort(i));
            sums[i].low *= factor;
            sums[i].high *= factor;
        }
        #pragma clang loop unroll(full)
        for (uint j = 0; j < BLOCK_KEYS; j++) {
            Float8 value = widen8(value_words[j]);
            #pragma clang loop unroll(full)
            for (uint i = 0; i < PACKED_QUERIES; i++) {
                if (i < PACKED) {
                    float part = simd_shuffle(weight, ushort(j * PACKED_QUERIES + i));
                    sums[i].low += part * value.low;
                    sums[i].high += part * value.high;
                }
            }
        }
    }
    total += simd_shuffle_xor(total, 4);
    total += simd_shuffle_xor(total, 8);
    if (lane < PACKED_QUERIES) {
        meeting.most[simdgroup * PACKED_QUERIES + lane] = most;
        meeting.total[simdgroup * PACKED_QUERIES + lane] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // The SIMD-groups' results become the block's, query by query.
    #pragma clang loop unroll(full)
    for (uint i = 0; i < PACKED_QUERIES; i++) {
        float block_most = EMPTY_BLOCK;
        for (uint s = 0; s < BLOCK_SIMDGROUPS; s++) {
            block_most = max(block_most, meeting.most[s * PACKED_QUERIES + i]);
        }
        float factor = fast::exp(meeting.most[simdgroup * PACKED_QUERIES + i] - block_most);
        threadgroup float* mine = meeting.sums + simdgroup * HEAD_DIM_MAX + HEAD_DIM / SIMD_WIDTH * lane;
        #pragma clang loop unroll(full)
        for (uint e = 0; e < 4; e++) {
            if (e < HEAD_DIM / SIMD_WIDTH) {
                mine[e] = factor * sums[i].low[e];
            }
            if (e + 4 < HEAD_DIM / SIMD_WIDTH) {
                mine[e + 4] = factor * sums[i].high[e];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (i < pack.queries) {
            device float* out = out_of_pack + i * (HEAD_DIM + 2);
            for (uint c = thread_index; c < HEAD_DIM; c += BLOCK_THREADS) {
                float sum = 0.0f;
                for (uint s = 0; s < BLOCK_SIMDGROUPS; s++) {
                    sum += meeting.sums[s * HEAD_DIM_MAX + c];
                }
                out[2 + c] = sum;
            }
            if (thread_index == 0) {
                float block_total = 0.0f;
                for (uint s = 0; s < BLOCK_SIMDGROUPS; s++) {
                    uint at = s * PACKED_QUERIES + i;
                    block_total += meeting.total[at] * fast::exp(meeting.most[at] - block_most);
                }
                out[0] = block_most;
                out[1] = block_total;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Threadgroups are blocks x packs of query heads x KV heads. The token's own key and value do not come from the cache, since
// the threadgroup that has them in its block, of the first pack, writes them there meanwhile.
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
    threadgroup float prepared[(PACKED_QUERIES + 1) * HEAD_DIM_MAX];
    threadgroup float sums_of[BLOCK_SIMDGROUPS * HEAD_DIM_MAX];
    threadgroup float most_of[BLOCK_SIMDGROUPS * PACKED_QUERIES];
    threadgroup float total_of[BLOCK_SIMDGROUPS * PACKED_QUERIES];
    uint position = step[0];
    uint kv_width = args.dims.kv_heads * HEAD_DIM;
    Pack pack = pack_of(args.dims, args.reading, group, position);
    pack.cached = position;
    bool current = pack.first_key <= position && position < pack.end_key;
    threadgroup float* own_key = prepared + PACKED_QUERIES * HEAD_DIM_MAX;
    device const bfloat* own_value = v_raw + pack.column;
    wait_for_inputs();

    if (simdgroup < pack.queries) {
        device const bfloat* raw = q_raw + (pack.first_head + simdgroup) * 2 * HEAD_DIM;
        threadgroup float* query = prepared + simdgroup * HEAD_DIM_MAX;
        prepare_head(raw, q_gain, inv_freq, position, args.dims, query, lane);
    } else if (simdgroup < PACKED_QUERIES) {
        for (uint i = lane; i < HEAD_DIM; i += SIMD_WIDTH) {
            prepared[simdgroup * HEAD_DIM_MAX + i] = 0.0f;
        }
    } else if (simdgroup == PACKED_QUERIES && current) {
        prepare_head(k_raw + pack.column, k_gain, inv_freq, position, args.dims, own_key, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (current && group.y == 0) {
        ulong row = ulong(position) * kv_width + pack.column;
        for (uint i = thread_index; i < HEAD_DIM; i += BLOCK_THREADS) {
            keys[row + i] = bfloat(own_key[i]);
            values[row + i] = own_value[i];
        }
    }
    Meeting meeting = meeting_of(prepared, sums_of, most_of, total_of);
    device float* out = partials + ulong(group.x * args.dims.heads + pack.first_head) * (HEAD_DIM + 2);
    attend_pack(pack, keys, values, own_value, kv_width, out, meeting, thread_index, simdgroup, lane);
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
    threadgroup float prepared[(PACKED_QUERIES + 1) * HEAD_DIM_MAX];
    threadgroup float sums_of[BLOCK_SIMDGROUPS * HEAD_DIM_MAX];
    threadgroup float most_of[BLOCK_SIMDGROUPS * PACKED_QUERIES];
    threadgroup float total_of[BLOCK_SIMDGROUPS * PACKED_QUERIES];
    Pack pack = pack_of(args.dims, args.reading, group, step[0]);
    for (uint i = thread_index; i < PACKED_QUERIES * HEAD_DIM; i += BLOCK_THREADS) {
        uint query = i / HEAD_DIM;
        uint from = (pack.first_head + query) * HEAD_DIM + i % HEAD_DIM;
        prepared[query * HEAD_DIM_MAX + i % HEAD_DIM] = query < pack.queries ? float(q[from]) : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Meeting meeting = meeting_of(prepared, sums_of, most_of, total_of);
    uint kv_width = args.dims.kv_heads * HEAD_DIM;
    device float* out = partials + ulong(group.x * args.dims.heads + pack.first_head) * (HEAD_DIM + 2);
    attend_pack(pack, keys, values, values, kv_width, out, meeting, thread_index, simdgroup, lane);
}

// Threadgroups are query heads x stretches of 32 columns. A SIMD-group adds every eighth block.
kernel void attend_merge(
    device const bfloat* q_raw [[buffer(0)]],
    device const float* partials [[buffer(1)]],
    device bfloat* out [[buffer(2)]],
    constant AttendMergeArgs& args [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float sums[BLOCK_SIMDGROUPS * SIMD_WIDTH];
    uint head = group.x;
    uint column = group.y * SIMD_WIDTH + lane;
    uint stride = args.dims.heads * (HEAD_DIM + 2);
    device const float* parts = partials + head * (HEAD_DIM + 2);
    float most = EMPTY_BLOCK;
    for (uint block = lane; block < args.blocks; block += SIMD_WIDTH) {
        most = max(most, parts[ulong(block) * stride]);
    }
    most = simd_max(most);
    float total = 0.0f;
    for (uint block = lane; block < args.blocks; block += SIMD_WIDTH) {
        device const float* part = parts + ulong(block) * stride;
        total += fast::exp(part[0] - most) * part[1];
    }
    total = simd_sum(total);
    float sum = 0.0f;
    #pragma clang loop unroll_count(4)
    for (uint block = simdgroup; block < args.blocks; block += BLOCK_SIMDGROUPS) {
        device const float* part = parts + ulong(block) * stride;
        sum += fast::exp(part[0] - most) * part[2 + column];
    }
    sums[simdgroup * SIMD_WIDTH + lane] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
        sum = 0.0f;
        for (uint s = 0; s < BLOCK_SIMDGROUPS; s++) {
            sum += sums[s * SIMD_WIDTH + lane];
        }
        float gate = float(q_raw[(head * 2 + 1) * HEAD_DIM + column]);
        out[head * HEAD_DIM + column] = bfloat(sum / total * sigmoid(gate));
    }
}
