// Where results of a chunk's attention go, whatever computes them.
#pragma once
#include "generated/args.h"

#define LN_2 0.69314718055994530942f

// The results of one segment of keys, for tokens from `position` on.
struct Outputs {
    device const bfloat* q_raw;
    device float* partials;
    device bfloat* out;
    uint position;
    uint segment;
    uint segments;
    uint segment_keys;

    // Its first key, and its last one of those up to `last`, which is not before it.
    uint first_key() const { return segment * segment_keys; }
    uint last_key(uint last) const { return min(last - first_key(), segment_keys - 1) + first_key(); }
    // Whether a token sees keys of this segment; whether it sees others, so that its result is a partial one.
    bool sees(uint token) const { return position + token >= first_key(); }
    bool is_partial(uint token) const { return position + token >= segment_keys; }
    // Of a head's row in the output, that of a token, its partial result.
    device float* partial(ulong row, uint token, uint heads, uint dim) const {
        const ulong others = ulong(token) * heads * (segments - 1) + ulong(segment) * heads;
        return partials + (row + others) * (dim + 2);
    }
};
