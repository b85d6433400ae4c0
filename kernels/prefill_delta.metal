// Gated DeltaNet of a prefill chunk: convolution, norms and gates; the recurrent scan; the gated norm.
#include "generated/args.h"
#include "functions.h"
#if defined(LILY_MMA)
#include "delta_scan_staged.h"
#endif

// Channels of a head that a lane has at a time, and how often: four neighbours, and twice for the largest heads.
#define PREP_CHANNELS 4
#define PREP_PARTS 2

// Row `row` of the chunk, counted from its first; rows before it lie in the half of the window that holds the past.
inline device const bfloat* chunk_row(device const bfloat* qkv, device const bfloat* past, int row, uint behind,
                                      uint channels) {
    return row >= 0 ? qkv + ulong(row) * channels : past + (row + int(behind)) * channels;
}

// The convolution's output after SiLU, of four channels of PREP_ROWS rows. Rows past the last repeat it.
inline void convolve(thread float4* x, device const bfloat* qkv, device const bfloat* past,
                     device const float* taps, uint first_row, uint rows, uint behind, uint channels, uint channel) {
#pragma clang loop unroll(full)
    for (uint r = 0; r < PREP_ROWS; r++) x[r] = float4(0.0f);
    // Where neither end of the chunk is near, no row has to be looked for.
    const bool inside = first_row >= behind && first_row + PREP_ROWS <= rows;
    device const bfloat* from = qkv + (inside ? ulong(first_row - behind) * channels : 0) + channel;
    for (uint j = 0; j <= behind; j++) {
        const float4 tap = load_float4(taps + j * channels + channel);
        if (inside) {
#pragma clang loop unroll(full)
            for (uint r = 0; r < PREP_ROWS; r++) x[r] = fma(tap, load_bf16x4(from + r * channels), x[r]);
            from += channels;
        } else {
#pragma clang loop unroll(full)
            for (uint r = 0; r < PREP_ROWS; r++) {
                const int row = int(min(first_row + r, rows - 1) + j) - int(behind);
                x[r] = fma(tap, load_bf16x4(chunk_row(qkv, past, row, behind, channels) + channel), x[r]);
            }
        }
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < PREP_ROWS; r++) x[r] = float4(silu(x[r].x), silu(x[r].y), silu(x[r].z), silu(x[r].w));
}

// A SIMD-group prepares one head (queries, then keys, then values) of PREP_ROWS rows, which share a reading of the taps.
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
    const uint first_row = (group.x * ROW_SIMDGROUPS + simdgroup) * PREP_ROWS;
    if (first_row >= d.rows) return;
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
    const uint row_elements = is_value ? values : keys;
    device bfloat* out = (is_value ? v : group.y < d.key_heads ? q : k) + head * dim;

    float4 x[PREP_PARTS][PREP_ROWS];
    float squares[PREP_ROWS];
#pragma clang loop unroll(full)
    for (uint r = 0; r < PREP_ROWS; r++) squares[r] = 0.0f;
#pragma clang loop unroll(full)
    for (uint i = 0; i < PREP_PARTS; i++) {
        const uint c = PREP_CHANNELS * (i * SIMD_WIDTH + lane);
#pragma clang loop unroll(full)
        for (uint r = 0; r < PREP_ROWS; r++) x[i][r] = float4(0.0f);
        if (c < dim) convolve(x[i], qkv, past, taps, first_row, d.rows, behind, channels, first + c);
#pragma clang loop unroll(full)
        for (uint r = 0; r < PREP_ROWS; r++) squares[r] += dot(x[i][r], x[i][r]);
    }
    // Lane i knows the factor of row i modulo their number.
    float factor = 1.0f;
    if (!is_value) {
        const float length = group.y < d.key_heads ? precise::rsqrt(float(dim)) : 1.0f;
        factor = length * precise::rsqrt(simd_sum8(squares, lane) + 1e-6f);
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < PREP_ROWS; r++) {
        const float own = simd_shuffle(factor, ushort(r));
        if (first_row + r >= d.rows) continue;
#pragma clang loop unroll(full)
        for (uint i = 0; i < PREP_PARTS; i++) {
            const uint c = PREP_CHANNELS * (i * SIMD_WIDTH + lane);
            if (c < dim) store_bf16x4(out + ulong(first_row + r) * row_elements + c, x[i][r] * own);
        }
    }
    if (is_value && lane < PREP_ROWS && first_row + lane < d.rows) {
        const uint at = (first_row + lane) * d.value_heads + head;
        decay[at] = decay_of(float(a[at]), a_log[head], dt_bias[head]);
        beta[at] = sigmoid(float(b[at]));
    }

    // The chunk's last rows are the next one's past. Where the chunk is shorter than the window, its first row carries
    // the remainder of the old past over.
    for (uint w = 0; w < behind; w++) {
        const int source = int(d.rows + w) - int(behind);
        if (uint(max(source, 0)) / PREP_ROWS != first_row / PREP_ROWS) continue;
        device const bfloat* from = chunk_row(qkv, past, source, behind, channels) + first;
        for (uint c = PREP_CHANNELS * lane; c < dim; c += PREP_CHANNELS * SIMD_WIDTH)
            store_uint2((device uchar*)(future + w * channels + first + c), load_uint2((device const uchar*)(from + c)));
    }
}

#if !defined(LILY_MMA)
// Rows that are under way while one is computed: more of the scan's time than a load takes.
#define SCAN_AHEAD 4

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
    const float update = (float(row.v) - simd_sum(known)) * row.beta;
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
    const bool active = KEY_DIM == SIMD_WIDTH * Parts || lane * Parts < d.key_dim;
    const ulong own = active ? lane * Parts : 0;
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
            const float result = simd_sum(sum);
            if (lane == 0) y[(first + j) * at.row_values] = bfloat(result);
            if (BLOCK_ROWS != 0 && (first + j + 1) % BLOCK_ROWS == 0 && first + j + 1 < d.rows) {
                through_memory<Parts>(s, state, active);
            }
        }
    }
#pragma clang loop unroll(full)
    for (uint j = 0; j < SCAN_AHEAD; j++) {
        if (first + j >= d.rows) continue;
        const float sum = simd_sum(scan_row<Parts>(s, ahead[j], active));
        if (lane == 0) y[(first + j) * at.row_values] = bfloat(sum);
    }
    if (active) {
#pragma clang loop unroll(full)
        for (int i = 0; i < Parts; i++) state[i] = s[i];
    }
}
#endif

// A SIMD-group carries a state column, spread over its lanes, through all rows of the chunk; or a threadgroup carries several
// columns (delta_scan_staged.h).
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
    constant DeltaDims& d = args.dims;
#if defined(LILY_MMA)
    threadgroup StagedRows staged[2];
    const uint head = group.y;
    ScanInput in;
    in.rows = d.rows;
    in.row_keys = d.key_heads * d.key_dim;
    in.row_values = d.value_heads * d.value_dim;
    in.value_heads = d.value_heads;
    in.key_dim = d.key_dim;
    in.value_dim = d.value_dim;
    in.first_column = group.x * SCAN_TILE;
    if (in.first_column >= d.value_dim) return;
    in.q = q + head / (d.value_heads / d.key_heads) * d.key_dim;
    in.k = k + head / (d.value_heads / d.key_heads) * d.key_dim;
    in.v = v + head * d.value_dim;
    in.decay = decay + head;
    in.beta = beta + head;
    const uint index = simdgroup * SIMD_WIDTH + lane;
    const uint own_column = in.first_column + index / SCAN_LANES * SCAN_COLUMNS;
    in.writes = own_column < d.value_dim;
    const uint column = head * d.value_dim + min(own_column, d.value_dim - SCAN_COLUMNS);
    device float* own_state = state + ulong(column) * d.key_dim;
    if (KEY_DIM <= 64)
        scan_staged<64 / SCAN_LANES>(in, own_state, y + column, staged, index, lane);
    else if (KEY_DIM <= 128)
        scan_staged<128 / SCAN_LANES>(in, own_state, y + column, staged, index, lane);
    else
        scan_staged<256 / SCAN_LANES>(in, own_state, y + column, staged, index, lane);
#else
    const uint column = group.x * ROW_SIMDGROUPS + simdgroup;
    if (column >= d.value_dim) return;
    if (KEY_DIM <= 64)
        scan_column<2>(q, k, v, decay, beta, state, y, d, group.y, column, lane);
    else if (KEY_DIM <= 128)
        scan_column<4>(q, k, v, decay, beta, state, y, d, group.y, column, lane);
    else
        scan_column<8>(q, k, v, decay, beta, state, y, d, group.y, column, lane);
#endif
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
    float4 x[PREP_PARTS];
    float square = 0.0f;
#pragma clang loop unroll(full)
    for (uint i = 0; i < PREP_PARTS; i++) {
        const uint c = PREP_CHANNELS * (i * SIMD_WIDTH + lane);
        x[i] = c < d.value_dim ? load_bf16x4(y + first + c) : float4(0.0f);
        square += dot(x[i], x[i]);
    }
    const float scale = precise::rsqrt(simd_sum(square) / float(d.value_dim) + d.eps);
#pragma clang loop unroll(full)
    for (uint i = 0; i < PREP_PARTS; i++) {
        const uint c = PREP_CHANNELS * (i * SIMD_WIDTH + lane);
        if (c >= d.value_dim) continue;
        const float4 gate = load_bf16x4(z + first + c);
        const float4 gated = x[i] * scale * load_float4(gain + c);
        store_bf16x4(out + first + c, gated * float4(silu(gate.x), silu(gate.y), silu(gate.z), silu(gate.w)));
    }
}
