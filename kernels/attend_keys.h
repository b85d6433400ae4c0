// Decode attention of a pack of query heads to a block of keys: a lane owns 2, 4 or 8 neighbouring elements of every row.
//
// What attend_decode.metal, which includes it, needs of it and of its counterpart for NVIDIA's matrix units
// (attend_keys_mma.h) is `KeysAhead`, `attend_pack`, and how many queries and how much threadgroup memory that takes.
#pragma once
#include "attention.h"

#define BLOCK_SIMDGROUPS (BLOCK_THREADS / SIMD_WIDTH)
// Keys that a SIMD-group scores at once.
#define BLOCK_KEYS 4
// Most queries of a pack.
#define PACK_MAX PACKED_QUERIES
// Floats in which a threadgroup's SIMD-groups meet: one query's sums of all of them; the largest score and the total of
// every query.
#define MEETING_SUMS (BLOCK_SIMDGROUPS * HEAD_DIM_MAX)
#define MEETING_FLOATS (MEETING_SUMS + 2 * BLOCK_SIMDGROUPS * PACKED_QUERIES)

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

// A lane's elements of a prepared row.
inline Float8 read_part(threadgroup const ushort* row, uint lane) {
    threadgroup const ushort* from = row + HEAD_DIM / SIMD_WIDTH * lane;
    if (HEAD_DIM == 256) {
        return widen8(*(threadgroup const uint4*)from);
    }
    if (HEAD_DIM == 128) {
        return widen8(uint4(*(threadgroup const uint2*)from, 0, 0));
    }
    return widen8(uint4(*(threadgroup const uint*)from, 0, 0, 0));
}

// What a SIMD-group knows of the cache before its queries are there: nothing.
struct KeysAhead {
    void request(Pack pack, device const bfloat* keys, device const bfloat* values, uint kv_width, uint simdgroup,
                 uint lane) thread {}
};

// What a SIMD-group knows of its keys so far.
struct LaneSums {
    // Of every query, this lane's elements of the weighted values.
    Float8 sums[PACKED_QUERIES];
    // Of query lane % PACKED_QUERIES: its largest score; and the part of its sum that this lane's keys make.
    float most;
    float total;
};

// Makes a weight of a lane's score, 0 of one whose key is not `inside` the block; rescales the sums so far.
inline float weigh_keys(thread LaneSums& state, float score, bool inside) {
    score = inside ? score : EMPTY_BLOCK;
    float larger = max(score, simd_shuffle_xor(score, 4));
    larger = max(larger, simd_shuffle_xor(larger, 8));
    larger = max(larger, state.most);
    float shrink = fast::exp(state.most - larger);
    float weight = inside ? fast::exp(score - larger) : 0.0f;
    state.most = larger;
    state.total = state.total * shrink + weight;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < PACKED_QUERIES; i++) {
        float factor = simd_shuffle(shrink, ushort(i));
        state.sums[i].low *= factor;
        state.sums[i].high *= factor;
    }
    return weight;
}

// Adds keys `first` to `first + 3` of a block, whose queries are scaled. The queries of a pack share every load of a cache
// row; a row is read by a whole SIMD-group.
inline void add_keys(
    thread LaneSums& state, thread const Float8* query, Pack pack, device const bfloat* keys, device const bfloat* values,
    threadgroup const ushort* own_key, device const bfloat* own_value, uint kv_width, uint first, uint lane) {
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
    float weight = weigh_keys(state, score, inside);
    #pragma clang loop unroll(full)
    for (uint j = 0; j < BLOCK_KEYS; j++) {
        Float8 value = widen8(value_words[j]);
        #pragma clang loop unroll(full)
        for (uint i = 0; i < PACKED_QUERIES; i++) {
            if (i < PACKED) {
                float part = simd_shuffle(weight, ushort(j * PACKED_QUERIES + i));
                state.sums[i].low += part * value.low;
                state.sums[i].high += part * value.high;
            }
        }
    }
}

// Makes the block's results of its SIMD-groups', query by query, and writes those of the first `queries`.
inline void merge_keys(
    thread const LaneSums& state, uint queries, device float* out_of_pack, threadgroup float* meeting, uint thread_index,
    uint simdgroup, uint lane) {
    threadgroup float* meeting_most = meeting + MEETING_SUMS;
    threadgroup float* meeting_total = meeting_most + BLOCK_SIMDGROUPS * PACKED_QUERIES;
    float total = state.total;
    total += simd_shuffle_xor(total, 4);
    total += simd_shuffle_xor(total, 8);
    if (lane < PACKED_QUERIES) {
        meeting_most[simdgroup * PACKED_QUERIES + lane] = state.most;
        meeting_total[simdgroup * PACKED_QUERIES + lane] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < PACKED_QUERIES; i++) {
        float block_most = EMPTY_BLOCK;
        for (uint s = 0; s < BLOCK_SIMDGROUPS; s++) {
            block_most = max(block_most, meeting_most[s * PACKED_QUERIES + i]);
        }
        float factor = fast::exp(meeting_most[simdgroup * PACKED_QUERIES + i] - block_most);
        threadgroup float* mine = meeting + simdgroup * HEAD_DIM_MAX + HEAD_DIM / SIMD_WIDTH * lane;
        #pragma clang loop unroll(full)
        for (uint e = 0; e < 4; e++) {
            if (e < HEAD_DIM / SIMD_WIDTH) {
                mine[e] = factor * state.sums[i].low[e];
            }
            if (e + 4 < HEAD_DIM / SIMD_WIDTH) {
                mine[e + 4] = factor * state.sums[i].high[e];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (i < queries) {
            device float* out = out_of_pack + i * (HEAD_DIM + 2);
            for (uint c = thread_index; c < HEAD_DIM; c += BLOCK_THREADS) {
                float sum = 0.0f;
                for (uint s = 0; s < BLOCK_SIMDGROUPS; s++) {
                    sum += meeting[s * HEAD_DIM_MAX + c];
                }
                out[2 + c] = sum;
            }
            if (thread_index == 0) {
                float block_total = 0.0f;
                for (uint s = 0; s < BLOCK_SIMDGROUPS; s++) {
                    uint at = s * PACKED_QUERIES + i;
                    block_total += meeting_total[at] * fast::exp(meeting_most[at] - block_most);
                }
                out[0] = block_most;
                out[1] = block_total;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// The partial results of a pack whose prepared queries, and the token's own key, are in threadgroup memory.
inline void attend_pack(
    thread KeysAhead& ahead, Pack pack, device const bfloat* keys, device const bfloat* values,
    device const bfloat* own_value, uint kv_width, device float* out_of_pack, threadgroup const ushort* prepared,
    threadgroup float* meeting, uint thread_index, uint simdgroup, uint lane) {
    threadgroup const ushort* own_key = prepared + PACK_MAX * PREPARED_STRIDE;
    Float8 query[PACKED_QUERIES];
    LaneSums state;
    float scale = precise::rsqrt(float(HEAD_DIM));
    #pragma clang loop unroll(full)
    for (uint i = 0; i < PACKED_QUERIES; i++) {
        query[i] = read_part(prepared + i * PREPARED_STRIDE, lane);
        query[i].low *= scale;
        query[i].high *= scale;
        state.sums[i].low = float4(0.0f);
        state.sums[i].high = float4(0.0f);
    }
    state.most = EMPTY_BLOCK;
    state.total = 0.0f;
    uint stride = BLOCK_SIMDGROUPS * BLOCK_KEYS;
    for (uint first = pack.first_key + simdgroup * BLOCK_KEYS; first < pack.end_key; first += stride) {
        add_keys(state, query, pack, keys, values, own_key, own_value, kv_width, first, lane);
    }
    merge_keys(state, pack.queries, out_of_pack, meeting, thread_index, simdgroup, lane);
}
