// Decode: one token of Gated DeltaNet, from the convolution to the gated norm.
#include "generated/args.h"
#include "functions.h"

// Floats of a row of the state that a lane holds at most.
#define STATE_PARTS (KEY_DIM_MAX / SIMD_WIDTH)
// Rows of the state that a SIMD-group holds at a time, each spread over its lanes.
#define STATE_ROWS 8

// The convolution of one channel with SiLU; the owner of the channel also moves its window one row on.
inline float convolve(
    device const bfloat* qkv, device const float* taps, device bfloat* window, uint channel, uint channels, uint past,
    uint half_index, bool owner) {
    device const bfloat* before = window + half_index * past * channels + channel;
    device bfloat* after = window + (1 - half_index) * past * channels + channel;
    float sum = 0.0f;
    for (uint j = 0; j < past; j++) {
        bfloat x = before[j * channels];
        sum += taps[j * channels + channel] * float(x);
        if (owner && j > 0) {
            after[(j - 1) * channels] = x;
        }
    }
    bfloat x = qkv[channel];
    if (owner && past > 0) {
        after[(past - 1) * channels] = x;
    }
    return silu(sum + taps[past * channels + channel] * float(x));
}

// Scales a head to length `length`, rounded to bf16. One SIMD-group, all its lanes.
inline void normalize(threadgroup float* head, uint size, float length, uint lane) {
    float squares = 0.0f;
    for (uint i = lane; i < size; i += SIMD_WIDTH) {
        squares += head[i] * head[i];
    }
    float factor = length * precise::rsqrt(simd_sum(squares) + 1e-6f);
    for (uint i = lane; i < size; i += SIMD_WIDTH) {
        head[i] = round_bf16(head[i] * factor);
    }
}

// A lane's part of STATE_ROWS rows of a head's state.
inline void load_rows(thread float* rows, device const float* state, uint first, uint value_dim, uint lane) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < STATE_ROWS; j++) {
        #pragma clang loop unroll(full)
        for (uint p = 0; p < STATE_PARTS; p++) {
            uint i = p * SIMD_WIDTH + lane;
            bool inside = i < KEY_DIM && first + j < value_dim;
            rows[j * STATE_PARTS + p] = inside ? state[(first + j) * KEY_DIM + i] : 0.0f;
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
    wait_for_inputs();

    uint shares = dims.value_heads / dims.key_heads;
    uint key_head = head / shares;
    uint keys_width = dims.key_heads * key_dim;
    uint channels = 2 * keys_width + dims.value_heads * value_dim;
    uint past = dims.conv_width - 1;
    bool owner = head % shares == 0;
    for (uint i = thread_index; i < 2 * key_dim + value_dim; i += DELTA_STEP_THREADS) {
        if (i < key_dim) {
            at.query[i] = convolve(qkv, taps, window, key_head * key_dim + i, channels, past, step[1], owner);
        } else if (i < 2 * key_dim) {
            uint channel = keys_width + key_head * key_dim + i - key_dim;
            at.key[i - key_dim] = convolve(qkv, taps, window, channel, channels, past, step[1], owner);
        } else {
            uint channel = 2 * keys_width + head * value_dim + i - 2 * key_dim;
            at.value[i - 2 * key_dim] = round_bf16(convolve(qkv, taps, window, channel, channels, past, step[1], true));
        }
    }
    float decay = decay_of(float(a[head]), a_log[head], dt_bias[head]);
    float beta = sigmoid(float(b[head]));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
        normalize(at.query, key_dim, precise::rsqrt(float(key_dim)), lane);
    } else if (simdgroup == 1) {
        normalize(at.key, key_dim, 1.0f, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    while (first < value_dim) {
        float known[STATE_ROWS] = {};
        #pragma clang loop unroll(full)
        for (uint p = 0; p < STATE_PARTS; p++) {
            uint i = p * SIMD_WIDTH + lane;
            float k = i < key_dim ? at.key[i] : 0.0f;
            #pragma clang loop unroll(full)
            for (uint j = 0; j < STATE_ROWS; j++) {
                rows[j * STATE_PARTS + p] *= decay;
                known[j] += rows[j * STATE_PARTS + p] * k;
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
            for (uint p = 0; p < STATE_PARTS; p++) {
                uint i = p * SIMD_WIDTH + lane;
                if (i < key_dim) {
                    float s = rows[j * STATE_PARTS + p] + change * at.key[i];
                    results[j] += s * at.query[i];
                    if (first + j < value_dim) {
                        head_state[(first + j) * key_dim + i] = s;
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
    update_head(
        step, qkv, a, b, taps, a_log, dt_bias, window, state, args.dims, group.x, at, thread_index, simdgroup, lane);
    uint value_dim = args.dims.value_dim;
    float result = thread_index < value_dim ? y[thread_index] : 0.0f;
    float squares = threadgroup_sum(result * result, slots, simdgroup, DELTA_STEP_THREADS / SIMD_WIDTH, lane);
    if (thread_index < value_dim) {
        float scale = precise::rsqrt(squares / float(value_dim) + args.dims.eps);
        uint to = group.x * value_dim + thread_index;
        out[to] = bfloat(result * scale * gain[thread_index] * silu(float(z[to])));
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
