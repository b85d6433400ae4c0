// Token ids to rows of the embedding.
#include "generated/args.h"
#include "quant.h"

// One threadgroup a token, eight elements a thread.
kernel void embed(
    device const uint* tokens [[buffer(0)]],
    device const uchar* codes [[buffer(1)]],
    device const uchar* scales [[buffer(2)]],
    device const uchar* biases [[buffer(3)]],
    device bfloat* y [[buffer(4)]],
    constant EmbedArgs& args [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
    StoredMatrix m = stored_matrix(codes, scales, biases, FORMAT0, args.width);
    uint row = group.x;
    device bfloat* out = y + ulong(row) * args.width;
    for (uint column = 8 * thread_index; column < args.width; column += 8 * ROW_THREADS) {
        Float8 x = dequantize8(m, tokens[row], column);
        #pragma clang loop unroll(full)
        for (uint i = 0; i < 4; i++) {
            out[column + i] = bfloat(x.low[i]);
            out[column + 4 + i] = bfloat(x.high[i]);
        }
    }
}
