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

// Rows that are under way while one is computed: more of the scan's time than a load takes.
#define SCAN_AHEAD 4

// Lanes that a state column is spread over. Where instructions are the limit rather than the number of SIMD-groups, fewer
// lanes make one reading of a row serve several columns.
#if defined(LILY_MMA)
#define SCAN_LANES 8
#else
#define SCAN_LANES 32
#endif

// The sum over the lanes of a column.
inline float column_sum(float x) {
    if (SCAN_LANES == 32) return simd_sum(x);
#pragma clang loop unroll(full)
    for (uint mask = 1; mask < SCAN_LANES; mask *= 2) x += simd_shuffle_xor(x, ushort(mask));
    return x;
}

// What one row brings to one state column, as it is stored: pairs of neighbouring elements.
template <int Parts>
struct ScanRow {
    uint q[Parts / 2];
    uint k[Parts / 2];
    bfloat v;
    float decay;
    float beta;
};

// Where the rows of one state column are.
struct ScanColumn {
    device const bfloat* q;
    device const bfloat* k;
    device const bfloat* v;
    device const float* decay;
    device const float* beta;
    ulong row_keys;
    ulong row_values;
    uint value_heads;
};

// Neighbouring words, as many at a time as there are.
template <int Words>
inline void load_words(thread uint (&words)[Words], device const uchar* from) {
    if (Words == 1) words[0] = load_uint(from);
    if (Words == 2) {
        const uint2 both = load_uint2(from);
        words[0] = both.x;
        words[Words - 1] = both.y;
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < Words / 4; i++) {
        const uint4 four = load_uint4(from + 16 * i);
        words[4 * i] = four.x;
        words[4 * i + 1] = four.y;
        words[4 * i + 2] = four.z;
        words[4 * i + 3] = four.w;
    }
}

template <int Parts>
inline void load_row(thread ScanRow<Parts>& row, ScanColumn at, ulong index) {
    device const uchar* q = (device const uchar*)(at.q + index * at.row_keys);
    device const uchar* k = (device const uchar*)(at.k + index * at.row_keys);
    load_words<Parts / 2>(row.q, q);
    load_words<Parts / 2>(row.k, k);
    row.v = at.v[index * at.row_values];
    row.decay = at.decay[index * at.value_heads];
    row.beta = at.beta[index * at.value_heads];
}

// One row of the scan: the state's column moves on, and this lane's part of its product with the query comes out. Lanes without elements take part
// in the sums with zeros.
template <int Parts>
inline float scan_row(thread float (&s)[Parts], thread const ScanRow<Parts>& row, bool active) {
    float key[Parts];
    float query[Parts];
#pragma clang loop unroll(full)
    for (int i = 0; i < Parts / 2; i++) {
        key[2 * i] = active ? bf16_low(row.k[i]) : 0.0f;
        key[2 * i + 1] = active ? bf16_high(row.k[i]) : 0.0f;
        query[2 * i] = active ? bf16_low(row.q[i]) : 0.0f;
        query[2 * i + 1] = active ? bf16_high(row.q[i]) : 0.0f;
    }
    float known = 0.0f;
#pragma clang loop unroll(full)
    for (int i = 0; i < Parts; i++) {
        s[i] *= row.decay;
        known = fma(s[i], key[i], known);
    }
    const float update = (float(row.v) - column_sum(known)) * row.beta;
    float sum = 0.0f;
#pragma clang loop unroll(full)
    for (int i = 0; i < Parts; i++) {
        s[i] = fma(update, key[i], s[i]);
        sum = fma(s[i], query[i], sum);
    }
    return sum;
}

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

// The scan of one state column, `Parts` neighbouring elements in each lane. Rows are loaded while those before them are
// computed: the recurrence waits for its own sums only.
template <int Parts>
inline void scan_column(device const bfloat* q, device const bfloat* k, device const bfloat* v,
                            device const float* decay, device const float* beta, device float* state, device bfloat* y,
                            constant DeltaDims& d, uint head, uint column, uint lane) {
    const bool active = KEY_DIM == SCAN_LANES * Parts || lane % SCAN_LANES * Parts < d.key_dim;
    const ulong own = active ? lane % SCAN_LANES * Parts : 0;
    ScanColumn at;
    at.row_keys = d.key_heads * d.key_dim;
    at.row_values = d.value_heads * d.value_dim;
    at.value_heads = d.value_heads;
    at.q = q + head / (d.value_heads / d.key_heads) * d.key_dim + own;
    at.k = k + head / (d.value_heads / d.key_heads) * d.key_dim + own;
    at.v = v + head * d.value_dim + column;
    at.decay = decay + head;
    at.beta = beta + head;
    y += head * d.value_dim + column;
    state += (ulong(head) * d.value_dim + column) * d.key_dim + own;

    float s[Parts];
#pragma clang loop unroll(full)
    for (int i = 0; i < Parts; i++) s[i] = active ? state[i] : 0.0f;
    ScanRow<Parts> ahead[SCAN_AHEAD];
#pragma clang loop unroll(full)
    for (uint i = 0; i < SCAN_AHEAD; i++) load_row<Parts>(ahead[i], at, min(i, d.rows - 1));
    uint first = 0;
    for (; first + SCAN_AHEAD <= d.rows; first += SCAN_AHEAD) {
#pragma clang loop unroll(full)
        for (uint j = 0; j < SCAN_AHEAD; j++) {
            const float sum = scan_row<Parts>(s, ahead[j], active);
            // When the row is done with, so that the later one can take its registers.
            load_row<Parts>(ahead[j], at, min(first + j + SCAN_AHEAD, d.rows - 1));
            const float result = column_sum(sum);
            if (lane % SCAN_LANES == 0) y[(first + j) * at.row_values] = bfloat(result);
            if (BLOCK_ROWS != 0 && (first + j + 1) % BLOCK_ROWS == 0 && first + j + 1 < d.rows) {
                through_memory<Parts>(s, state, active);
            }
        }
    }
#pragma clang loop unroll(full)
    for (uint j = 0; j < SCAN_AHEAD; j++) {
        if (first + j >= d.rows) continue;
        const float sum = column_sum(scan_row<Parts>(s, ahead[j], active));
        if (lane % SCAN_LANES == 0) y[(first + j) * at.row_values] = bfloat(sum);
    }
    if (active) {
#pragma clang loop unroll(full)
        for (int i = 0; i < Parts; i++) state[i] = s[i];
    }
}

// A SIMD-group carries its state columns, each spread over its lanes, through all rows of the chunk.
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
    const uint columns = SIMD_WIDTH / SCAN_LANES;
    const uint first = (group.x * ROW_SIMDGROUPS + simdgroup) * columns;
    if (first >= args.dims.value_dim) return;
    // Columns past the last repeat it.
    const uint column = min(first + lane / SCAN_LANES, args.dims.value_dim - 1);
    if (KEY_DIM <= 64)
        scan_column<64 / SCAN_LANES>(q, k, v, decay, beta, state, y, args.dims, group.y, column, lane);
    else if (KEY_DIM <= 128)
        scan_column<128 / SCAN_LANES>(q, k, v, decay, beta, state, y, args.dims, group.y, column, lane);
    else
        scan_column<256 / SCAN_LANES>(q, k, v, decay, beta, state, y, args.dims, group.y, column, lane);
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
