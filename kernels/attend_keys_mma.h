// Decode attention by the matrix units of NVIDIA's GPUs, 16x8x16 at a time: what attend_keys.h does, for packs of 8. Keys,
// then dimensions of values, are an operation's 16 rows, the queries its 8 columns. Nothing of the cache passes through
// threadgroup memory: a lane loads what it multiplies, 16 bytes of a row at a time, and which dimensions an operation takes
// follows from that. Included where the host's headers have `ptx`, which wraps the instructions.
#pragma once
#include "attention.h"

#define BLOCK_SIMDGROUPS (BLOCK_THREADS / SIMD_WIDTH)
// Keys that a SIMD-group takes at a time.
#define BLOCK_KEYS 16
// Most queries of a pack.
#define PACK_MAX WIDE_PACKED_QUERIES
// Floats from one row of a SIMD-group's sums to the next: even, and eight rows meet different banks.
#define SUM_STRIDE (HEAD_DIM_MAX + 2)
// Floats in which a threadgroup's SIMD-groups meet: eight rows of sums of each, even queries first; the largest score and
// the total of every query.
#define MEETING_SUMS (BLOCK_SIMDGROUPS * PACK_MAX * SUM_STRIDE)
#define MEETING_FLOATS (MEETING_SUMS + 2 * BLOCK_SIMDGROUPS * PACK_MAX)

// 16 bytes of a cache row, whose neighbours other lanes read, or this one next.
inline uint4 load_elements(device const uchar* from) {
    if (COALESCED == 0) {
        uint words[4] = {};
        #pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            words[e / 2] |= uint(((device const ushort*)from)[e]) << (e % 2 * 16);
        }
        return uint4(words[0], words[1], words[2], words[3]);
    }
    return ptx::load_16_of_128(from);
}

// Keys `first` to `first + 15` and their values, as a lane needs them. Those that are not in the cache are 0.
struct KeysAhead {
    // Elements 32 s + 8 (lane % 4) to 7 further of keys lane / 4 and 8 further.
    uint4 keys[HEAD_DIM_MAX / 32][2];
    // Elements 64 s + 8 (lane / 4) to 7 further of values 2 (lane % 4), the next, and 8 further each.
    uint4 values[HEAD_DIM_MAX / 64][4];

    void request_keys(device const bfloat* rows, ulong kv_width, uint first, uint end, uint lane) thread {
        #pragma clang loop unroll(full)
        for (uint i = 0; i < 2; i++) {
            uint key = first + lane / 4 + 8 * i;
            device const uchar* row = (device const uchar*)(rows + key * kv_width + lane % 4 * 8);
            #pragma clang loop unroll(full)
            for (uint s = 0; s < HEAD_DIM_MAX / 32; s++) {
                if (32 * s < HEAD_DIM) {
                    keys[s][i] = key < end ? load_elements(row + 64 * s) : uint4(0);
                }
            }
        }
    }

    void request_values(device const bfloat* rows, ulong kv_width, uint first, uint end, uint lane) thread {
        #pragma clang loop unroll(full)
        for (uint i = 0; i < 4; i++) {
            uint key = first + lane % 4 * 2 + i % 2 + i / 2 * 8;
            device const uchar* row = (device const uchar*)(rows + key * kv_width + lane / 4 * 8);
            #pragma clang loop unroll(full)
            for (uint s = 0; s < HEAD_DIM_MAX / 64; s++) {
                if (64 * s < HEAD_DIM) {
                    values[s][i] = key < end ? load_elements(row + 128 * s) : uint4(0);
                }
            }
        }
    }

    // What a SIMD-group multiplies first.
    void request(Pack pack, device const bfloat* all_keys, device const bfloat* all_values, uint kv_width, uint simdgroup,
                 uint lane) thread {
        uint first = pack.first_key + simdgroup * BLOCK_KEYS;
        uint end = min(pack.cached, pack.end_key);
        request_keys(all_keys + pack.column, kv_width, first, end, lane);
        request_values(all_values + pack.column, kv_width, first, end, lane);
    }

    // Puts the token's own key and value, which the cache has not got yet, in their place.
    void put_own(threadgroup const ushort* key, device const bfloat* value, uint first, uint own, uint lane) thread {
        #pragma clang loop unroll(full)
        for (uint i = 0; i < 2; i++) {
            if (first + lane / 4 + 8 * i == own) {
                #pragma clang loop unroll(full)
                for (uint s = 0; s < HEAD_DIM_MAX / 32; s++) {
                    if (32 * s < HEAD_DIM) {
                        keys[s][i] = *(threadgroup const uint4*)(key + 32 * s + lane % 4 * 8);
                    }
                }
            }
        }
        #pragma clang loop unroll(full)
        for (uint i = 0; i < 4; i++) {
            if (first + lane % 4 * 2 + i % 2 + i / 2 * 8 == own) {
                #pragma clang loop unroll(full)
                for (uint s = 0; s < HEAD_DIM_MAX / 64; s++) {
                    if (64 * s < HEAD_DIM) {
                        values[s][i] = load_uint4((device const uchar*)(value + 64 * s + lane / 4 * 8));
                    }
                }
            }
        }
    }
};

// What a SIMD-group knows of its keys so far, of queries 2 (lane % 4) and the next.
struct MmaSums {
    // Dimensions 64 s + 8 (lane / 4) + 2 u of both queries, then the next dimension of both.
    float sums[HEAD_DIM_MAX / 64][4][4];
    float most[2];
    float total[2];
};

inline void mma_begin(thread MmaSums& state) {
    #pragma clang loop unroll(full)
    for (uint s = 0; s < HEAD_DIM_MAX / 64; s++) {
        #pragma clang loop unroll(full)
        for (uint u = 0; u < 4; u++) {
            #pragma clang loop unroll(full)
            for (uint e = 0; e < 4; e++) {
                state.sums[s][u][e] = 0.0f;
            }
        }
    }
    state.most[0] = state.most[1] = EMPTY_BLOCK;
    state.total[0] = state.total[1] = 0.0f;
}

// Scores of keys lane / 4 and 8 further: of the first key with both queries, then of the second.
inline void mma_scores(thread float* scores, thread const KeysAhead& ahead, threadgroup const ushort* queries, uint lane) {
    float parts[2][4] = {};
    threadgroup const ushort* row = queries + lane / 4 * PREPARED_STRIDE + lane % 4 * 8;
    #pragma clang loop unroll(full)
    for (uint s = 0; s < HEAD_DIM_MAX / 32; s++) {
        if (32 * s < HEAD_DIM) {
            uint4 query = *(threadgroup const uint4*)(row + 32 * s);
            uint4 low = ahead.keys[s][0];
            uint4 high = ahead.keys[s][1];
            ptx::multiply_16x8x16(parts[0], low.x, high.x, low.y, high.y, query.x, query.y);
            ptx::multiply_16x8x16(parts[1], low.z, high.z, low.w, high.w, query.z, query.w);
        }
    }
    float scale = precise::rsqrt(float(HEAD_DIM));
    #pragma clang loop unroll(full)
    for (uint e = 0; e < 4; e++) {
        scores[e] = (parts[0][e] + parts[1][e]) * scale;
    }
}

// Turns scores into weights, of keys before `end`; rescales the sums so far.
inline void mma_weigh(thread MmaSums& state, thread float* scores, uint first, uint end, uint lane) {
    #pragma clang loop unroll(full)
    for (uint q = 0; q < 2; q++) {
        bool low = first + lane / 4 < end;
        bool high = first + lane / 4 + 8 < end;
        float larger = max(low ? scores[q] : EMPTY_BLOCK, high ? scores[2 + q] : EMPTY_BLOCK);
        larger = max(larger, simd_shuffle_xor(larger, 4));
        larger = max(larger, simd_shuffle_xor(larger, 8));
        larger = max(max(larger, simd_shuffle_xor(larger, 16)), state.most[q]);
        float shrink = fast::exp(state.most[q] - larger);
        scores[q] = low ? fast::exp(scores[q] - larger) : 0.0f;
        scores[2 + q] = high ? fast::exp(scores[2 + q] - larger) : 0.0f;
        state.most[q] = larger;
        state.total[q] = state.total[q] * shrink + scores[q] + scores[2 + q];
        #pragma clang loop unroll(full)
        for (uint s = 0; s < HEAD_DIM_MAX / 64; s++) {
            if (64 * s < HEAD_DIM) {
                #pragma clang loop unroll(full)
                for (uint u = 0; u < 4; u++) {
                    state.sums[s][u][q] *= shrink;
                    state.sums[s][u][2 + q] *= shrink;
                }
            }
        }
    }
}

// Adds the values by their weights, which are split into a bf16 and what it leaves, so that little is lost.
inline void mma_add_values(thread MmaSums& state, thread const KeysAhead& ahead, thread const float* weights) {
    uint coarse[2];
    uint fine[2];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < 2; i++) {
        float even = round_bf16(weights[2 * i]);
        float odd = round_bf16(weights[2 * i + 1]);
        coarse[i] = ptx::transpose_8x8(bf16_pair(even, odd));
        fine[i] = ptx::transpose_8x8(
            bf16_pair(round_bf16(weights[2 * i] - even), round_bf16(weights[2 * i + 1] - odd)));
    }
    #pragma clang loop unroll(full)
    for (uint s = 0; s < HEAD_DIM_MAX / 64; s++) {
        if (64 * s < HEAD_DIM) {
            #pragma clang loop unroll(full)
            for (uint u = 0; u < 4; u++) {
                uint a[4];
                #pragma clang loop unroll(full)
                for (uint i = 0; i < 2; i++) {
                    uint4 first = ahead.values[s][2 * i];
                    uint4 second = ahead.values[s][2 * i + 1];
                    a[2 * i] = ptx::bytes(first[u], second[u], 0x5410u);
                    a[2 * i + 1] = ptx::bytes(first[u], second[u], 0x7632u);
                }
                ptx::multiply_16x8x16(state.sums[s][u], a[0], a[1], a[2], a[3], coarse[0], coarse[1]);
                ptx::multiply_16x8x16(state.sums[s][u], a[0], a[1], a[2], a[3], fine[0], fine[1]);
            }
        }
    }
}

// Makes one result of those of the `used` first SIMD-groups, and writes it for `queries` queries.
inline void mma_merge(
    thread MmaSums& state, uint used, uint queries, device float* out, threadgroup float* sums, uint thread_index,
    uint simdgroup, uint lane) {
    threadgroup float* most_of = sums + MEETING_SUMS;
    threadgroup float* total_of = most_of + BLOCK_SIMDGROUPS * PACK_MAX;
    #pragma clang loop unroll(full)
    for (uint q = 0; q < 2; q++) {
        float total = state.total[q];
        total += simd_shuffle_xor(total, 4);
        total += simd_shuffle_xor(total, 8);
        total += simd_shuffle_xor(total, 16);
        if (lane < 4) {
            most_of[simdgroup * PACK_MAX + 2 * lane + q] = state.most[q];
            total_of[simdgroup * PACK_MAX + 2 * lane + q] = total;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup < used) {
        #pragma clang loop unroll(full)
        for (uint q = 0; q < 2; q++) {
            float most = EMPTY_BLOCK;
            for (uint s = 0; s < used; s++) {
                most = max(most, most_of[s * PACK_MAX + lane % 4 * 2 + q]);
            }
            float factor = fast::exp(state.most[q] - most);
            threadgroup float* row = sums + (simdgroup * PACK_MAX + q * 4 + lane % 4) * SUM_STRIDE + lane / 4 * 8;
            #pragma clang loop unroll(full)
            for (uint s = 0; s < HEAD_DIM_MAX / 64; s++) {
                if (64 * s < HEAD_DIM) {
                    #pragma clang loop unroll(full)
                    for (uint u = 0; u < 4; u++) {
                        *(threadgroup float2*)(row + 64 * s + 2 * u) =
                            factor * float2(state.sums[s][u][q], state.sums[s][u][2 + q]);
                    }
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < queries * HEAD_DIM; i += BLOCK_THREADS) {
        uint query = i / HEAD_DIM;
        threadgroup const float* from = sums + (query % 2 * 4 + query / 2) * SUM_STRIDE + i % HEAD_DIM;
        float sum = 0.0f;
        for (uint s = 0; s < used; s++) {
            sum += from[s * PACK_MAX * SUM_STRIDE];
        }
        out[query * (HEAD_DIM + 2) + 2 + i % HEAD_DIM] = sum;
    }
    if (thread_index < queries) {
        float most = EMPTY_BLOCK;
        for (uint s = 0; s < used; s++) {
            most = max(most, most_of[s * PACK_MAX + thread_index]);
        }
        float total = 0.0f;
        for (uint s = 0; s < used; s++) {
            total += total_of[s * PACK_MAX + thread_index] * fast::exp(most_of[s * PACK_MAX + thread_index] - most);
        }
        out[thread_index * (HEAD_DIM + 2)] = most;
        out[thread_index * (HEAD_DIM + 2) + 1] = total;
    }
}

// The partial results of a pack whose prepared queries are in threadgroup memory; keys and values of the first sixteen of
// each SIMD-group have been requested. Those of the next are under way while it works on what it has.
inline void attend_pack(
    thread KeysAhead& ahead, Pack pack, device const bfloat* keys, device const bfloat* values,
    device const bfloat* own_value, uint kv_width, device float* out_of_pack, threadgroup const ushort* prepared,
    threadgroup float* meeting, uint thread_index, uint simdgroup, uint lane) {
    uint cached = min(pack.cached, pack.end_key);
    MmaSums state;
    mma_begin(state);
    #pragma clang loop unroll(disable)
    for (uint first = pack.first_key + simdgroup * BLOCK_KEYS; first < pack.end_key;
         first += BLOCK_SIMDGROUPS * BLOCK_KEYS) {
        if (first <= pack.cached && pack.cached < min(first + BLOCK_KEYS, pack.end_key)) {
            ahead.put_own(prepared + PACK_MAX * PREPARED_STRIDE, own_value, first, pack.cached, lane);
        }
        uint next = first + BLOCK_SIMDGROUPS * BLOCK_KEYS;
        float scores[4];
        mma_scores(scores, ahead, prepared, lane);
        ahead.request_keys(keys + pack.column, kv_width, next, cached, lane);
        mma_weigh(state, scores, first, pack.end_key, lane);
        mma_add_values(state, ahead, scores);
        ahead.request_values(values + pack.column, kv_width, next, cached, lane);
    }
    uint used = min((pack.end_key - pack.first_key + BLOCK_KEYS - 1) / BLOCK_KEYS, uint(BLOCK_SIMDGROUPS));
    mma_merge(state, used, pack.queries, out_of_pack, meeting, thread_index, simdgroup, lane);
}
