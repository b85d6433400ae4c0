// Gated DeltaNet of a prefill chunk: convolution, norms and gates; the recurrent scan; the gated norm.
#include "generated/args.h"
#include "functions.h"

// Most elements of a key head: 8 in each lane.
#define KEY_PARTS 8

// Row `row` of the chunk, counted from its first; rows before it lie in the half of the window that holds the past.
inline float chunk_input(device const bfloat* qkv, device const bfloat* past, int row, uint behind, uint channels,
                             uint channel) {
    return row >= 0 ? float(qkv[ulong(row) * channels + channel]) : float(past[(row + int(behind)) * channels + channel]);
}

// The convolution's output after SiLU.
inline float convolved(device const bfloat* qkv, device const bfloat* past, device const float* taps, int row,
                           uint behind, uint channels, uint channel) {
    float sum = 0.0f;
    for (uint j = 0; j <= behind; j++) {
        const float x = chunk_input(qkv, past, row + int(j) - int(behind), behind, channels, channel);
        sum = fma(taps[j * channels + channel], x, sum);
    }
    return silu(sum);
}

// A SIMD-group prepares one head (queries, then keys, then values) of one row.
kernel void delta_prep(device const uint* step [[buffer(0)]],
                       device const bfloat* qkv [[buffer(1)]],
                       device const bfloat* a [[buffer(2)]],
                       device const bfloat* b [[buffer(3)]],
                       device const float* taps [[buffer(4)]],
                       device const float* a_log [[buffer(5)]],
                       device const float* dt_bias [[buffer(6)]],
                       device bfloat* window [[buffer(7)]],
                       device bfloat* q [[buffer(8)]],
                       device bfloat* k [[buffer(9)]],
                       device bfloat* v [[buffer(10)]],
                       device float* decay [[buffer(11)]],
                       device float* beta [[buffer(12)]],
                       constant DeltaPrepArgs& args [[buffer(13)]],
                       uint3 group [[threadgroup_position_in_grid]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
    constant DeltaDims& d = args.dims;
    const uint row = group.x * ROW_SIMDGROUPS + simdgroup;
    if (row >= d.rows) return;
    const uint keys = d.key_heads * d.key_dim;
    const uint values = d.value_heads * d.value_dim;
    const uint channels = 2 * keys + values;
    const uint behind = d.conv_width - 1;
    const uint half_window = behind * channels;
    device const bfloat* past = window + step[1] * half_window;
    device bfloat* future = window + (1 - step[1]) * half_window;

    const bool is_value = group.y >= 2 * d.key_heads;
    const uint head = is_value ? group.y - 2 * d.key_heads : group.y % d.key_heads;
    const uint dim = is_value ? d.value_dim : d.key_dim;
    const uint first = is_value ? 2 * keys + head * dim : group.y * dim;

    if (is_value) {
        for (uint c = lane; c < dim; c += SIMD_WIDTH)
            v[ulong(row) * values + head * dim + c] =
                bfloat(convolved(qkv, past, taps, int(row), behind, channels, first + c));
        if (lane == 0) {
            const uint at = row * d.value_heads + head;
            decay[at] = decay_of(float(a[at]), a_log[head], dt_bias[head]);
            beta[at] = sigmoid(float(b[at]));
        }
    } else {
        const bool is_query = group.y < d.key_heads;
        float x[KEY_PARTS];
        float square = 0.0f;
#pragma clang loop unroll(full)
        for (uint i = 0; i < KEY_PARTS; i++) {
            const uint c = i * SIMD_WIDTH + lane;
            x[i] = c < dim ? convolved(qkv, past, taps, int(row), behind, channels, first + c) : 0.0f;
            square = fma(x[i], x[i], square);
        }
        const float length = is_query ? precise::rsqrt(float(dim)) : 1.0f;
        const float factor = length * precise::rsqrt(simd_sum(square) + 1e-6f);
        device bfloat* out = (is_query ? q : k) + ulong(row) * keys + head * dim;
#pragma clang loop unroll(full)
        for (uint i = 0; i < KEY_PARTS; i++) {
            const uint c = i * SIMD_WIDTH + lane;
            if (c < dim) out[c] = bfloat(x[i] * factor);
        }
    }

    // The chunk's last rows are the next one's past. Where the chunk is shorter than the window, its first row carries
    // the remainder of the old past over.
    for (uint w = 0; w < behind; w++) {
        const int source = int(d.rows + w) - int(behind);
        if (int(row) != max(source, 0)) continue;
        for (uint c = lane; c < dim; c += SIMD_WIDTH)
            future[w * channels + first + c] =
                bfloat(chunk_input(qkv, past, source, behind, channels, first + c));
    }
}

// `Parts` neighbouring elements.
template <int Parts>
inline void load_parts(device const bfloat* from, thread float (&x)[Parts]) {
    device const bfloat2* pairs = (device const bfloat2*)from;
#pragma clang loop unroll(full)
    for (int i = 0; i < Parts / 2; i++) {
        const float2 pair = float2(pairs[i]);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
    }
}

// What one row brings to one state column.
template <int Parts>
struct ScanRow {
    float q[Parts];
    float k[Parts];
    float v;
    float decay;
    float beta;
};

// Writes a lane's elements of the state and reads them again.
template <int Parts>
inline void through_memory(thread float (&s)[Parts], device float* state, bool active) {
    if (active) {
#pragma clang loop unroll(full)
        for (int i = 0; i < Parts; i++) state[i] = s[i];
    }
    // Nothing may take the stored elements for the loaded ones.
    simdgroup_barrier(mem_flags::mem_device);
#pragma clang loop unroll(full)
    for (int i = 0; i < Parts; i++) s[i] = active ? state[i] : 0.0f;
}

// The scan of one state column, `Parts` neighbouring elements in each lane. A row is loaded while the one before it is
// computed: the recurrence waits for its own sums only.
template <int Parts>
inline void scan_column(device const bfloat* q, device const bfloat* k, device const bfloat* v,
                            device const float* decay, device const float* beta, device float* state, device bfloat* y,
                            constant DeltaDims& d, uint head, uint column, uint lane) {
    const bool active = lane * Parts < d.key_dim;
    const ulong row_keys = d.key_heads * d.key_dim;
    const ulong row_values = d.value_heads * d.value_dim;
    const ulong own = active ? lane * Parts : 0;
    q += head / (d.value_heads / d.key_heads) * d.key_dim + own;
    k += head / (d.value_heads / d.key_heads) * d.key_dim + own;
    v += head * d.value_dim + column;
    y += head * d.value_dim + column;
    decay += head;
    beta += head;
    state += (ulong(head) * d.value_dim + column) * d.key_dim + own;

    float s[Parts];
#pragma clang loop unroll(full)
    for (int i = 0; i < Parts; i++) s[i] = active ? state[i] : 0.0f;
    ScanRow<Parts> next;
    load_parts<Parts>(q, next.q);
    load_parts<Parts>(k, next.k);
    next.v = float(v[0]);
    next.decay = decay[0];
    next.beta = beta[0];
    for (uint row = 0; row < d.rows; row++) {
        ScanRow<Parts> now;
#pragma clang loop unroll(full)
        for (int i = 0; i < Parts; i++) {
            // Lanes without elements take part in the sums with zeros.
            now.q[i] = active ? next.q[i] : 0.0f;
            now.k[i] = active ? next.k[i] : 0.0f;
        }
        now.v = next.v;
        now.decay = next.decay;
        now.beta = next.beta;
        const ulong ahead = min(row + 1, d.rows - 1);
        load_parts<Parts>(q + ahead * row_keys, next.q);
        load_parts<Parts>(k + ahead * row_keys, next.k);
        next.v = float(v[ahead * row_values]);
        next.decay = decay[ahead * d.value_heads];
        next.beta = beta[ahead * d.value_heads];

        float known = 0.0f;
#pragma clang loop unroll(full)
        for (int i = 0; i < Parts; i++) {
            s[i] *= now.decay;
            known = fma(s[i], now.k[i], known);
        }
        const float update = (now.v - simd_sum(known)) * now.beta;
        float sum = 0.0f;
#pragma clang loop unroll(full)
        for (int i = 0; i < Parts; i++) {
            s[i] = fma(update, now.k[i], s[i]);
            sum = fma(s[i], now.q[i], sum);
        }
        sum = simd_sum(sum);
        if (lane == 0) y[row * row_values] = bfloat(sum);
        if (BLOCK_ROWS != 0 && (row + 1) % BLOCK_ROWS == 0 && row + 1 < d.rows) {
            through_memory<Parts>(s, state, active);
        }
    }
    if (active) {
#pragma clang loop unroll(full)
        for (int i = 0; i < Parts; i++) state[i] = s[i];
    }
}

// A SIMD-group carries one state column, spread over its lanes, through all rows of the chunk.
kernel void delta_scan(device const bfloat* q [[buffer(0)]],
                       device const bfloat* k [[buffer(1)]],
                       device const bfloat* v [[buffer(2)]],
                       device const float* decay [[buffer(3)]],
                       device const float* beta [[buffer(4)]],
                       device float* state [[buffer(5)]],
                       device bfloat* y [[buffer(6)]],
                       constant DeltaScanArgs& args [[buffer(7)]],
                       uint3 group [[threadgroup_position_in_grid]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
    const uint column = group.x * ROW_SIMDGROUPS + simdgroup;
    if (column >= args.dims.value_dim) return;
    if (KEY_DIM <= 64)
        scan_column<2>(q, k, v, decay, beta, state, y, args.dims, group.y, column, lane);
    else if (KEY_DIM <= 128)
        scan_column<4>(q, k, v, decay, beta, state, y, args.dims, group.y, column, lane);
    else
        scan_column<8>(q, k, v, decay, beta, state, y, args.dims, group.y, column, lane);
}

// A SIMD-group norms and gates one head of one row.
kernel void gated_norm(device const bfloat* y [[buffer(0)]],
                       device const bfloat* z [[buffer(1)]],
                       device const float* gain [[buffer(2)]],
                       device bfloat* out [[buffer(3)]],
                       constant GatedNormArgs& args [[buffer(4)]],
                       uint3 group [[threadgroup_position_in_grid]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
    constant DeltaDims& d = args.dims;
    const uint item = group.x * ROW_SIMDGROUPS + simdgroup;
    if (item >= d.rows * d.value_heads) return;
    const ulong first = ulong(item) * d.value_dim;
    float square = 0.0f;
    for (uint c = lane; c < d.value_dim; c += SIMD_WIDTH) {
        const float x = float(y[first + c]);
        square = fma(x, x, square);
    }
    const float scale = precise::rsqrt(simd_sum(square) / float(d.value_dim) + d.eps);
    for (uint c = lane; c < d.value_dim; c += SIMD_WIDTH)
        out[first + c] = bfloat(float(y[first + c]) * scale * gain[c] * silu(float(z[first + c])));
}
