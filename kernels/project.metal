// Decode: products of one row, or of BATCH rows, with the projections of a layer, with a matrix into the residual stream,
// and with the head.
#include "matvec_rows.h"

// A threadgroup's rows of one projection, rounded to bf16.
inline void project_rows(
    StoredMatrix m, uint outputs, uint block, thread NormedRow& source, device bfloat* y, threadgroup float4* vectors,
    threadgroup float* slots, Place at) {
    uint first = (block * VECTOR_SIMDGROUPS + at.simdgroup) * VECTOR_OUTPUTS;
    source.deferred = defers(m.format);
    if (BATCH > 1) {
        NormedRows rows = normed_rows(source);
        float sums[BATCH_MAX * VECTOR_OUTPUTS] = {};
        batch_products<VECTOR_OUTPUTS>(sums, m, first, outputs - 1, rows, false, vectors, slots, at);
        #pragma clang loop unroll(full)
        for (uint i = 0; i < BATCH_MAX; i++) {
            if (i < BATCH) {
                float product = simd_sum4(sums + i * VECTOR_OUTPUTS, SIMD_WIDTH, at.lane) * rows.left(i);
                if (at.lane < VECTOR_OUTPUTS && first + at.lane < outputs) {
                    y[i * outputs + first + at.lane] = bfloat(product);
                }
            }
        }
        return;
    }
    float sums[VECTOR_OUTPUTS] = {};
#if defined(LILY_MMA)
    if (is_wide(m.format)) {
        copied_products<VECTOR_OUTPUTS, STAGED_COLUMNS>(
            sums, m, first, outputs - 1, source, false, vectors, slots, at);
    } else
#endif
    row_products<VECTOR_OUTPUTS, VECTOR_STEPS, STAGED_COLUMNS>(
        sums, m, first, outputs - 1, source, false, vectors, slots, at);
    float product = simd_sum4(sums, SIMD_WIDTH, at.lane) * source.left();
    if (at.lane < VECTOR_OUTPUTS && first + at.lane < outputs) {
        y[first + at.lane] = bfloat(product);
    }
}

inline uint vector_blocks(uint outputs) {
    return (outputs + VECTOR_OUTPUTS * VECTOR_SIMDGROUPS - 1) / (VECTOR_OUTPUTS * VECTOR_SIMDGROUPS);
}

// The threadgroups of one projection follow those of the one before.
kernel void project(
    device const bfloat* h [[buffer(0)]],
    device const float* gain [[buffer(1)]],
    device const uchar* codes0 [[buffer(2)]],
    device const uchar* scales0 [[buffer(3)]],
    device const uchar* biases0 [[buffer(4)]],
    device const uchar* codes1 [[buffer(5)]],
    device const uchar* scales1 [[buffer(6)]],
    device const uchar* biases1 [[buffer(7)]],
    device const uchar* codes2 [[buffer(8)]],
    device const uchar* scales2 [[buffer(9)]],
    device const uchar* biases2 [[buffer(10)]],
    device const uchar* codes3 [[buffer(11)]],
    device const uchar* scales3 [[buffer(12)]],
    device const uchar* biases3 [[buffer(13)]],
    device bfloat* y0 [[buffer(14)]],
    device bfloat* y1 [[buffer(15)]],
    device bfloat* y2 [[buffer(16)]],
    device bfloat* y3 [[buffer(17)]],
    constant ProjectArgs& args [[buffer(18)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 vectors[STAGING(STAGED_COLUMNS, VECTOR_SIMDGROUPS, 1)];
    threadgroup float slots[BATCH_SLOTS];
    Place at = place(thread_index, simdgroup, VECTOR_SIMDGROUPS, lane);
    NormedRow row = normed_row(h, gain, args.width, args.eps);
    uint block = group.x;
    uint blocks0 = vector_blocks(args.outputs[0]);
    uint blocks1 = blocks0 + vector_blocks(args.outputs[1]);
    uint blocks2 = blocks1 + vector_blocks(args.outputs[2]);
    uint part = block < blocks0 ? 0 : block < blocks1 ? 1 : block < blocks2 ? 2 : 3;
    StoredMatrix m = stored_matrix(codes0, scales0, biases0, FORMAT0, args.width);
    device bfloat* y = y0;
    uint outputs = args.outputs[0];
    if (part == 1) {
        m = stored_matrix(codes1, scales1, biases1, FORMAT0, args.width);
        outputs = args.outputs[1];
        y = y1;
        block -= blocks0;
    } else if (part == 2) {
        m = stored_matrix(codes2, scales2, biases2, FORMAT0, args.width);
        outputs = args.outputs[2];
        y = y2;
        block -= blocks1;
    } else if (part == 3) {
        m = stored_matrix(codes3, scales3, biases3, FORMAT0, args.width);
        outputs = args.outputs[3];
        y = y3;
        block -= blocks2;
    }
    // Code is fetched anew by every kernel, so that matrices of one format share one path.
    if (FORMAT1 == FORMAT0 && FORMAT2 == FORMAT0 && FORMAT3 == FORMAT0) {
        project_rows(m, outputs, block, row, y, vectors, slots, at);
    } else if (part == 0) {
        project_rows(m, outputs, block, row, y, vectors, slots, at);
    } else if (part == 1) {
        m.format = FORMAT1;
        project_rows(m, outputs, block, row, y, vectors, slots, at);
    } else if (part == 2) {
        m.format = FORMAT2;
        project_rows(m, outputs, block, row, y, vectors, slots, at);
    } else {
        m.format = FORMAT3;
        project_rows(m, outputs, block, row, y, vectors, slots, at);
    }
}

kernel void matvec_add(
    device const bfloat* x [[buffer(0)]],
    device const uchar* codes [[buffer(1)]],
    device const uchar* scales [[buffer(2)]],
    device const uchar* biases [[buffer(3)]],
    device bfloat* h [[buffer(4)]],
    constant MatVecAddArgs& args [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 vectors[STAGING(2 * STAGED_COLUMNS, VECTOR_SIMDGROUPS, 0)];
    threadgroup float slots[BATCH_SLOTS];
    StoredMatrix m = stored_matrix(codes, scales, biases, FORMAT0, args.cols);
    PlainRow row;
    row.x = x;
    uint first = (group.x * VECTOR_SIMDGROUPS + simdgroup) * NARROW_OUTPUTS;
    Place at = place(thread_index, simdgroup, VECTOR_SIMDGROUPS, lane);
    if (BATCH > 1) {
        PlainRows rows;
        rows.x = x;
        rows.cols = args.cols;
        float all[BATCH_MAX * NARROW_OUTPUTS] = {};
        batch_products<NARROW_OUTPUTS>(all, m, first, args.outputs - 1, rows, false, vectors, slots, at);
        #pragma clang loop unroll(full)
        for (uint i = 0; i < BATCH_MAX; i++) {
            if (i < BATCH) {
                float product = simd_sum2(all + i * NARROW_OUTPUTS, lane);
                if (lane < NARROW_OUTPUTS && first + lane < args.outputs) {
                    device bfloat* to = h + i * args.outputs + first + lane;
                    *to = bfloat(float(*to) + product);
                }
            }
        }
        return;
    }
    float sums[NARROW_OUTPUTS] = {};
    row_products<NARROW_OUTPUTS, 4, 2 * STAGED_COLUMNS>(
        sums, m, first, args.outputs - 1, row, false, vectors, slots, at);
    uint output = first + lane;
    bool writes = lane < NARROW_OUTPUTS && output < args.outputs;
    float before = writes ? float(h[output]) : 0.0f;
    float product = simd_sum2(sums, lane);
    if (writes) {
        h[output] = bfloat(before + product);
    }
}

// A threadgroup's logits of a batch.
inline void head_rows(
    StoredMatrix m, uint vocab, uint first, thread NormedRows& rows, bool again, device float* logits,
    threadgroup float4* vectors, threadgroup float* slots, Place at) {
    float sums[BATCH_MAX * VECTOR_OUTPUTS] = {};
    batch_products<VECTOR_OUTPUTS>(sums, m, first, vocab - 1, rows, again, vectors, slots, at);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < BATCH_MAX; i++) {
        if (i < BATCH) {
            float product = simd_sum4(sums + i * VECTOR_OUTPUTS, SIMD_WIDTH, at.lane);
            if (at.lane < VECTOR_OUTPUTS && first + at.lane < vocab) {
                logits[ulong(i) * vocab + first + at.lane] = product;
            }
        }
    }
}

#if defined(LILY_MMA)
// A threadgroup's logits of blocks `block`, `block + step`, ..., of which the next one's rows are copied meanwhile. A row is one
// copy of a SIMD-group.
inline void copied_logits(
    StoredMatrix m, uint vocab, uint block, uint step, thread NormedRow& row, device float* logits,
    threadgroup float4* vectors, threadgroup float* slots, Place at) {
    threadgroup uint4* own = copies_of(vectors, STAGED_COLUMNS, 2 * at.simdgroup);
    uint blocks = vector_blocks(vocab);
    uint first = (block * VECTOR_SIMDGROUPS + at.simdgroup) * VECTOR_OUTPUTS;
    copy_rows<VECTOR_OUTPUTS>(m, first, vocab - 1, 0, m.cols, own, at.lane);
    expect_row(row, m.cols, vectors, at);
    wait_for_inputs();
    row.begin(slots, at);
    stage_fixed(row, true, 0, m.cols, STAGED_COLUMNS, m.format, vectors, at);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    FixedRow staged = fixed_row(vectors, STAGED_COLUMNS, 0);
    uint half_of = 0;
    #pragma clang loop unroll(disable)
    for (; block < blocks; block += step) {
        uint next = first + step * VECTOR_SIMDGROUPS * VECTOR_OUTPUTS;
        // All lanes have read what this half had last time.
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (block + step < blocks) {
            copy_rows<VECTOR_OUTPUTS>(m, next, vocab - 1, 0, m.cols, own + (1 - half_of) * COPIED_VECTORS, at.lane);
        } else {
            ptx::end_copies();
        }
        float sums[VECTOR_OUTPUTS] = {};
        add_copied<VECTOR_OUTPUTS, 1>(
            sums, m, first, vocab - 1, 0, m.cols, own + half_of * COPIED_VECTORS, staged, at.lane);
        float product = simd_sum4(sums, SIMD_WIDTH, at.lane);
        if (at.lane < VECTOR_OUTPUTS && first + at.lane < vocab) {
            logits[first + at.lane] = product;
        }
        first = next;
        half_of = 1 - half_of;
    }
}
#endif

// A threadgroup takes several blocks of the vocabulary one after another, because they share the normed row.
kernel void head(
    device const bfloat* h [[buffer(0)]],
    device const float* gain [[buffer(1)]],
    device const uchar* codes [[buffer(2)]],
    device const uchar* scales [[buffer(3)]],
    device const uchar* biases [[buffer(4)]],
    device float* logits [[buffer(5)]],
    constant HeadArgs& args [[buffer(6)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 vectors[STAGING(STAGED_COLUMNS, VECTOR_SIMDGROUPS, 2)];
    threadgroup float slots[BATCH_SLOTS];
    Place at = place(thread_index, simdgroup, VECTOR_SIMDGROUPS, lane);
    StoredMatrix m = stored_matrix(codes, scales, biases, FORMAT0, args.width);
    NormedRow row = normed_row(h + ulong(args.row) * args.width, gain, args.width, args.eps);
    NormedRows rows = normed_rows(row);
    uint blocks = vector_blocks(args.vocab);
#if defined(LILY_MMA)
    if (BATCH == 1 && is_wide(m.format) && args.width <= Copies<VECTOR_OUTPUTS>::columns(m.format)) {
        copied_logits(m, args.vocab, group.x, groups.x, row, logits, vectors, slots, at);
        return;
    }
#endif
    for (uint block = group.x; block < blocks; block += groups.x) {
        uint first = (block * VECTOR_SIMDGROUPS + simdgroup) * VECTOR_OUTPUTS;
        bool again = block != group.x;
        if (BATCH > 1) {
            head_rows(m, args.vocab, first, rows, again, logits, vectors, slots, at);
            continue;
        }
        float sums[VECTOR_OUTPUTS] = {};
#if defined(LILY_MMA)
        if (is_wide(m.format)) {
            copied_products<VECTOR_OUTPUTS, STAGED_COLUMNS>(
                sums, m, first, args.vocab - 1, row, again, vectors, slots, at);
        } else
#endif
        row_products<VECTOR_OUTPUTS, VECTOR_STEPS, STAGED_COLUMNS>(
            sums, m, first, args.vocab - 1, row, again, vectors, slots, at);
        float product = simd_sum4(sums, SIMD_WIDTH, lane);
        if (lane < VECTOR_OUTPUTS && first + lane < args.vocab) {
            logits[first + lane] = product;
        }
    }
}
