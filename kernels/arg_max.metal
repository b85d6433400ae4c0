// Logits to the most likely token.
#include "generated/args.h"
#include "platform.h"

// A token and its logit. The better of two has the larger logit, or the lower id.
struct Candidate {
    float logit;
    uint token;
};

inline Candidate better(Candidate a, Candidate b) {
    bool second = b.logit > a.logit || (b.logit == a.logit && b.token < a.token);
    Candidate best;
    best.logit = second ? b.logit : a.logit;
    best.token = second ? b.token : a.token;
    return best;
}

inline Candidate best_of_simdgroup(Candidate mine) {
    #pragma clang loop unroll(full)
    for (uint mask = 1; mask < SIMD_WIDTH; mask *= 2) {
        Candidate other;
        other.logit = simd_shuffle_xor(mine.logit, ushort(mask));
        other.token = simd_shuffle_xor(mine.token, ushort(mask));
        mine = better(mine, other);
    }
    return mine;
}

// One threadgroup. Every thread starts from a token of the vocabulary, the last one if there are more threads, so that
// whatever the logits are an id of the vocabulary comes out.
kernel void arg_max(
    device const float* logits [[buffer(0)]],
    device uint* token [[buffer(1)]],
    constant ArgMaxArgs& args [[buffer(2)]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float best_logits[SIMD_WIDTH];
    threadgroup uint best_tokens[SIMD_WIDTH];
    Candidate mine;
    mine.token = min(thread_index, args.vocab - 1);
    mine.logit = logits[mine.token];
    #pragma clang loop unroll_count(8)
    for (uint i = thread_index + ARG_MAX_THREADS; i < args.vocab; i += ARG_MAX_THREADS) {
        Candidate other;
        other.token = i;
        other.logit = logits[i];
        mine = better(mine, other);
    }
    mine = best_of_simdgroup(mine);
    if (lane == 0) {
        best_logits[simdgroup] = mine.logit;
        best_tokens[simdgroup] = mine.token;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // As many SIMD-groups as a SIMD-group has lanes.
    mine.logit = best_logits[lane];
    mine.token = best_tokens[lane];
    mine = best_of_simdgroup(mine);
    if (thread_index == 0) {
        token[0] = mine.token;
    }
}
