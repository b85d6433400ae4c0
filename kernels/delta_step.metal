// Decode: one token of Gated DeltaNet, from the convolution to the gated norm.
#include "generated/args.h"
#include "functions.h"

// Floats of a row of the state that a lane holds at most: four neighbours of every 128.
#define STATE_PARTS (KEY_DIM_MAX / SIMD_WIDTH)
// Rows of the state that a SIMD-group holds at a time, each spread over its lanes.
#define STATE_ROWS 8

// Channels that a thread convolves at most.
#define OWN_CHANNELS ((2 * KEY_DIM_MAX + VALUE_DIM_MAX + DELTA_STEP_THREADS - 1) / DELTA_STEP_THREADS)

// A channel of the convolution: what its window and taps tell before the token's own value comes.
struct Channel {
    // Its number; `channels` if the thread has none.
    uint index;
    float sum;
    float tap;
    bool owner;
};

inline Channel channel_of(
    device const float* taps, device const bfloat* before, uint index, uint channels, uint past, bool owner) {
    Channel channel;
    channel.index = index;
    channel.sum = 0.0f;
    channel.tap = 0.0f;
    channel.owner = owner;
    if (index < channels) {
        #pragma clang loop unroll_count(3)
        for (uint j = 0; j < past; j++) {
            channel.sum += taps[j * channels + index] * float(before[j * channels + index]);
        }
        channel.tap = taps[past * channels + index];
    }
    return channel;
}

// Moves a channel's window one row on.
inline void move_window(
    device const bfloat* qkv, device const bfloat* before, device bfloat* after, uint channel, uint channels, uint past) {
    #pragma clang loop unroll(disable)
    for (uint j = 1; j < past; j++) {
        after[(j - 1) * channels + channel] = before[j * channels + channel];
    }
    if (past > 0) {
        after[(past - 1) * channels + channel] = qkv[channel];
    }
}

// The first of the four elements of a row that are a lane's `quad`-th, and whether the row has them.
inline uint quad_at(uint quad, uint lane) { return (quad * SIMD_WIDTH + lane) * 4; }
inline bool has_quad(uint quad, uint lane) {
    uint before = quad * SIMD_WIDTH * 4;
    return before < KEY_DIM && (before + SIMD_WIDTH * 4 <= KEY_DIM || quad_at(quad, lane) < KEY_DIM);
}

// A lane's elements of a head, of which `length` becomes the length, rounded to bf16. One SIMD-group, all its lanes.
inline void normalized(thread float* out, threadgroup const float* head, float length, uint lane) {
    float squares = 0.0f;
    #pragma clang loop unroll(full)
    for (uint q = 0; q < STATE_PARTS / 4; q++) {
        #pragma clang loop unroll(full)
        for (uint e = 0; e < 4; e++) {
            out[4 * q + e] = has_quad(q, lane) ? head[quad_at(q, lane) + e] : 0.0f;
            squares += out[4 * q + e] * out[4 * q + e];
        }
    }
    float factor = length * precise::rsqrt(simd_sum(squares) + 1e-6f);
    #pragma clang loop unroll(full)
    for (uint p = 0; p < STATE_PARTS; p++) {
        out[p] = round_bf16(out[p] * factor);
    }
}

// A lane's part of STATE_ROWS rows of a head's state.
inline void load_rows(thread float* rows, device const float* state, uint first, uint value_dim, uint lane) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < STATE_ROWS; j++) {
        #pragma clang loop unroll(full)
        for (uint q = 0; q < STATE_PARTS / 4; q++) {
            float4 four = float4(0.0f);
            if (has_quad(q, lane) && first + j < value_dim) {
                four = *(device const float4*)(state + (first + j) * KEY_DIM + quad_at(q, lane));
            }
            #pragma clang loop unroll(full)
            for (uint e = 0; e < 4; e++) {
                rows[j * STATE_PARTS + 4 * q + e] = four[e];
            }
        }
    }
}

// What a threadgroup has in threadgroup memory of one value head.
struct Head {
    threadgroup float* query;
    threadgroup float* key;
    threadgroup float* value;
    // Results, rounded to bf16.
    threadgroup float* y;
};

// Everything of a value head but its norm; a threadgroup does it. Value heads that share a key head all prepare its query
// and key; the first of them owns those channels of the window. The first rows of the state are requested before anything
// else.
inline void update_head(
    device const uint* step, device const bfloat* qkv, device const bfloat* a, device const bfloat* b,
    device const float* taps, device const float* a_log, device const float* dt_bias, device bfloat* window,
    device float* state, constant DeltaDims& dims, uint head, Head at, uint thread_index, uint simdgroup, uint lane) {
    uint key_dim = KEY_DIM;
    uint value_dim = dims.value_dim;
    uint simdgroups = DELTA_STEP_THREADS / SIMD_WIDTH;
    device float* head_state = state + ulong(head) * value_dim * key_dim;

    float rows[STATE_ROWS * STATE_PARTS];
    uint first = simdgroup * STATE_ROWS;
    load_rows(rows, head_state, first, value_dim, lane);
    uint shares = dims.value_heads / dims.key_heads;
    uint key_head = head / shares;
    uint keys_width = dims.key_heads * key_dim;
    uint channels = 2 * keys_width + dims.value_heads * value_dim;
    uint past = dims.conv_width - 1;
    uint half_index = step[1];
    device const bfloat* before = window + half_index * past * channels;
    device bfloat* after = window + (1 - half_index) * past * channels;
    Channel own[OWN_CHANNELS];
    #pragma clang loop unroll(full)
    for (uint c = 0; c < OWN_CHANNELS; c++) {
        uint i = c * DELTA_STEP_THREADS + thread_index;
        uint index = channels;
        if (i < 2 * key_dim) {
            index = (i < key_dim ? 0 : keys_width - key_dim) + key_head * key_dim + i;
        } else if (i < 2 * key_dim + value_dim) {
            index = 2 * keys_width + head * value_dim + i - 2 * key_dim;
        }
        own[c] = channel_of(taps, before, index, channels, past, i >= 2 * key_dim || head % shares == 0);
    }
    float log_of_a = a_log[head];
    float bias_of_a = dt_bias[head];
    wait_for_inputs();

    #pragma clang loop unroll(full)
    for (uint c = 0; c < OWN_CHANNELS; c++) {
        uint i = c * DELTA_STEP_THREADS + thread_index;
        if (own[c].index < channels) {
            float x = silu(own[c].sum + own[c].tap * float(qkv[own[c].index]));
            if (i < key_dim) {
                at.query[i] = x;
            } else if (i < 2 * key_dim) {
                at.key[i - key_dim] = x;
            } else {
                at.value[i - 2 * key_dim] = round_bf16(x);
            }
        }
    }
    float decay = decay_of(float(a[head]), log_of_a, bias_of_a);
    float beta = sigmoid(float(b[head]));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float query[STATE_PARTS];
    float key[STATE_PARTS];
    normalized(query, at.query, precise::rsqrt(float(key_dim)), lane);
    normalized(key, at.key, 1.0f, lane);

    #pragma clang loop unroll(disable)
    while (first < value_dim) {
        float known[STATE_ROWS] = {};
        #pragma clang loop unroll(full)
        for (uint p = 0; p < STATE_PARTS; p++) {
            #pragma clang loop unroll(full)
            for (uint j = 0; j < STATE_ROWS; j++) {
                rows[j * STATE_PARTS + p] *= decay;
                known[j] += rows[j * STATE_PARTS + p] * key[p];
            }
        }
        // Lane i has what row first + i % STATE_ROWS knows.
        float sum = simd_sum8(known, lane);
        uint mine = first + lane % STATE_ROWS;
        float update = mine < value_dim ? (at.value[mine] - sum) * beta : 0.0f;
        float results[STATE_ROWS] = {};
        #pragma clang loop unroll(full)
        for (uint j = 0; j < STATE_ROWS; j++) {
            float change = simd_shuffle(update, ushort(j));
            #pragma clang loop unroll(full)
            for (uint q = 0; q < STATE_PARTS / 4; q++) {
                if (has_quad(q, lane)) {
                    float4 four;
                    #pragma clang loop unroll(full)
                    for (uint e = 0; e < 4; e++) {
                        four[e] = rows[j * STATE_PARTS + 4 * q + e] + change * key[4 * q + e];
                        results[j] += four[e] * query[4 * q + e];
                    }
                    if (first + j < value_dim) {
                        *(device float4*)(head_state + (first + j) * key_dim + quad_at(q, lane)) = four;
                    }
                }
            }
        }
        float result = simd_sum8(results, lane);
        if (lane < STATE_ROWS && mine < value_dim) {
            at.y[mine] = round_bf16(result);
        }
        first += simdgroups * STATE_ROWS;
        load_rows(rows, head_state, first, value_dim, lane);
    }
    #pragma clang loop unroll(full)
    for (uint c = 0; c < OWN_CHANNELS; c++) {
        if (own[c].index < channels && own[c].owner) {
            move_window(qkv, before, after, own[c].index, channels, past);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// A threadgroup a value head. A compiler left alone may take so many registers that so large a threadgroup is not allowed.
[[max_total_threads_per_threadgroup(DELTA_STEP_THREADS)]]
kernel void delta_step(
    device const uint* step [[buffer(0)]],
    device const bfloat* qkv [[buffer(1)]],
    device const bfloat* z [[buffer(2)]],
    device const bfloat* a [[buffer(3)]],
    device const bfloat* b [[buffer(4)]],
    device const float* taps [[buffer(5)]],
    device const float* a_log [[buffer(6)]],
    device const float* dt_bias [[buffer(7)]],
    device const float* gain [[buffer(8)]],
    device bfloat* window [[buffer(9)]],
    device float* state [[buffer(10)]],
    device bfloat* out [[buffer(11)]],
    constant DeltaStepArgs& args [[buffer(12)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float query[KEY_DIM_MAX];
    threadgroup float key[KEY_DIM_MAX];
    threadgroup float value[VALUE_DIM_MAX];
    threadgroup float y[VALUE_DIM_MAX];
    threadgroup float slots[DELTA_STEP_THREADS / SIMD_WIDTH];
    Head at;
    at.query = query;
    at.key = key;
    at.value = value;
    at.y = y;
    uint value_dim = args.dims.value_dim;
    float own_gain = thread_index < value_dim ? gain[thread_index] : 0.0f;
    update_head(
        step, qkv, a, b, taps, a_log, dt_bias, window, state, args.dims, group.x, at, thread_index, simdgroup, lane);
    float own_z = thread_index < value_dim ? float(z[group.x * value_dim + thread_index]) : 0.0f;
    float result = thread_index < value_dim ? y[thread_index] : 0.0f;
    float squares = threadgroup_sum(result * result, slots, simdgroup, DELTA_STEP_THREADS / SIMD_WIDTH, lane);
    if (thread_index < value_dim) {
        float scale = precise::rsqrt(squares / float(value_dim) + args.dims.eps);
        uint to = group.x * value_dim + thread_index;
        out[to] = bfloat(result * scale * own_gain * silu(own_z));
    }
}

// The same without the norm.
[[max_total_threads_per_threadgroup(DELTA_STEP_THREADS)]]
kernel void delta_update(
    device const uint* step [[buffer(0)]],
    device const bfloat* qkv [[buffer(1)]],
    device const bfloat* a [[buffer(2)]],
    device const bfloat* b [[buffer(3)]],
    device const float* taps [[buffer(4)]],
    device const float* a_log [[buffer(5)]],
    device const float* dt_bias [[buffer(6)]],
    device bfloat* window [[buffer(7)]],
    device float* state [[buffer(8)]],
    device bfloat* results [[buffer(9)]],
    constant DeltaUpdateArgs& args [[buffer(10)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float query[KEY_DIM_MAX];
    threadgroup float key[KEY_DIM_MAX];
    threadgroup float value[VALUE_DIM_MAX];
    threadgroup float y[VALUE_DIM_MAX];
    Head at;
    at.query = query;
    at.key = key;
    at.value = value;
    at.y = y;
    update_head(
        step, qkv, a, b, taps, a_log, dt_bias, window, state, args.dims, group.x, at, thread_index, simdgroup, lane);
    if (thread_index < args.dims.value_dim) {
        results[group.x * args.dims.value_dim + thread_index] = bfloat(y[thread_index]);
    }
}
