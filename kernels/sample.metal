// Logits to the next token, by the steps at the top of crates/lily-engine/src/sampler/mod.rs: all threadgroups look at
// stretches of the logits, then a single one chooses.
//
// Sets of tokens are never listed. The k largest, or the most likely with a share of the mass, are all tokens up to a
// cut in the order "larger logit first, then lower id"; a cut is found digit by digit, by adding up how many tokens, or
// how much mass, each value of the digit has. All sums are of integers, so their order does not matter.
#include "generated/args.h"
#include "functions.h"
#include "sampling.h"

// Digits of a key, most significant first: 11, 11 and 10 bits.
#define DIGITS 3
#define BINS 2048
// A mass has 58 bits in sum; no 64-bit atomics are to be had, so it is added up in three parts of 14 bits. A part of every
// token of a vocabulary below 2^18 fits into 32 bits.
#define LIMBS 3
#define LIMB_BITS 14

// The last token that is kept: larger keys are kept, and of equal keys the ids up to `id`.
struct Cut {
    uint key;
    uint id;
};

inline bool kept(Cut cut, uint key, uint id) { return key > cut.key || (key == cut.key && id <= cut.id); }

inline uint digit_bits(uint digit) { return digit == 2 ? 10u : 11u; }
inline uint digit_shift(uint digit) { return digit == 0 ? 21u : digit == 1 ? 10u : 0u; }

// The logits after bias and penalties, and what weighs them.
struct Logits {
    device const SampleParams* params;
    device const float* raw;
    device const float* bias;
    device const uint* counts;
    uint vocab;
    float max;
};

// The logit of token i, of which `logit` is the raw one.
inline float adjusted(Logits logits, uint i, float logit) {
    uint uses = logits.params->uses;
    if ((uses & USES_BIAS) != 0) {
        logit = logit + logits.bias[i];
    }
    if ((uses & (USES_SEEN | USES_GENERATED)) != 0) {
        uint seen = logits.counts[i];
        if ((uses & USES_SEEN) != 0 && seen != 0) {
            float penalty = logits.params->repetition_penalty;
            logit = logit > 0.0f ? logit / penalty : logit * penalty;
        }
        uint generated = seen & ~IN_PROMPT;
        if ((uses & USES_GENERATED) != 0 && generated != 0) {
            float by_count = float(generated) * logits.params->frequency_penalty;
            logit = (logit - by_count) - logits.params->presence_penalty;
        }
    }
    return logit;
}

// The logit that has a key.
inline float logit_of(uint key) { return as_type<float>((key >> 31) != 0 ? key & 0x7fffffffu : ~key); }

inline float logit_at(Logits logits, uint i) { return adjusted(logits, i, logits.raw[i]); }

inline ulong mass_at(Logits logits, float logit) {
    return mass_of(exp_nonpositive((logit - logits.max) * logits.params->inverse_temperature));
}

// What a search has found: the value of the digit, the sum of what comes before it, and its own sum.
struct Found {
    uint value;
    ulong before;
    ulong inside;
};

// A token among few.
struct Few {
    ulong mass;
    uint id;
};

// Most tokens that are kept one by one.
#define FEW 64

// What all threads share.
struct Shared {
    threadgroup atomic_uint* bins;
    threadgroup ulong* partial;
    threadgroup Found* found;
    threadgroup Few* few;
    // Stretches whose tokens can be drawn, and how many they are.
    threadgroup ushort* stretches;
    uint listed;
};

// A thread's walk over the tokens of the listed stretches: a SIMD-group a stretch.
#define FOR_TOKENS(i, shared, logits, thread_index)                                                                    \
    for (uint s_ = (thread_index) / SIMD_WIDTH; s_ < (shared).listed; s_ += SAMPLE_THREADS / SIMD_WIDTH)               \
        for (uint i = (shared).stretches[s_] * SCAN_STRETCH + (thread_index) % SIMD_WIDTH,                             \
                  end_ = min((shared).stretches[s_] * SCAN_STRETCH + SCAN_STRETCH, (logits).vocab);                    \
             i < end_; i += SIMD_WIDTH)

inline void clear_bins(Shared shared, uint thread_index) {
    for (uint i = thread_index; i < LIMBS * BINS; i += SAMPLE_THREADS) {
        atomic_store_explicit(&shared.bins[i], 0u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Adds to a bin. Counts need the first part only.
inline void add_to_bin(Shared shared, uint bin, ulong amount) {
    for (uint limb = 0; limb < LIMBS; limb++) {
        uint part = uint(amount >> (LIMB_BITS * limb)) & ((1u << LIMB_BITS) - 1u);
        if (part != 0) {
            atomic_fetch_add_explicit(&shared.bins[limb * BINS + bin], part, memory_order_relaxed);
        }
    }
}

inline ulong bin_sum(Shared shared, uint bin) {
    ulong sum = 0;
    for (uint limb = 0; limb < LIMBS; limb++) {
        sum += ulong(atomic_load_explicit(&shared.bins[limb * BINS + bin], memory_order_relaxed)) << (LIMB_BITS * limb);
    }
    return sum;
}

// Finds the bin in which the running sum reaches `need`, from the largest bin down or from the smallest up. The first
// SIMD-group looks: each lane sums up its own stretch of bins, and the lane in whose stretch it happens walks it.
inline void find_bin(Shared shared, uint bins, bool descending, ulong need, uint thread_index) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint stretch = bins / SIMD_WIDTH;
    if (thread_index < SIMD_WIDTH) {
        ulong sum = 0;
        for (uint i = 0; i < stretch; i++) {
            uint at = thread_index * stretch + i;
            sum += bin_sum(shared, descending ? bins - 1 - at : at);
        }
        shared.partial[thread_index] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < SIMD_WIDTH) {
        ulong before = 0;
        for (uint i = 0; i < thread_index; i++) {
            before += shared.partial[i];
        }
        if (before < need && before + shared.partial[thread_index] >= need) {
            uint at = thread_index * stretch;
            ulong inside = bin_sum(shared, descending ? bins - 1 - at : at);
            while (before + inside < need) {
                before += inside;
                at++;
                inside = bin_sum(shared, descending ? bins - 1 - at : at);
            }
            shared.found->value = descending ? bins - 1 - at : at;
            shared.found->before = before;
            shared.found->inside = inside;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// The cut at which the tokens kept by `within` reach `need`, counted one each or by mass. `need` is at least 1 and at
// most what there is.
inline Cut find_cut(Shared shared, Logits logits, Cut within, bool by_mass, ulong need, uint thread_index) {
    Cut cut;
    cut.key = 0;
    uint known = 0;
    for (uint digit = 0; digit < DIGITS; digit++) {
        clear_bins(shared, thread_index);
        uint shift = digit_shift(digit);
        uint mask = (1u << digit_bits(digit)) - 1u;
        FOR_TOKENS(i, shared, logits, thread_index) {
            float logit = logit_at(logits, i);
            uint key = key_of(logit);
            ulong mass = mass_at(logits, logit);
            if (mass != 0 && (key & known) == cut.key && kept(within, key, i)) {
                add_to_bin(shared, (key >> shift) & mask, by_mass ? mass : 1ul);
            }
        }
        find_bin(shared, mask + 1u, true, need, thread_index);
        need -= shared.found->before;
        cut.key |= shared.found->value << shift;
        known |= mask << shift;
    }
    // Tokens of one key have one mass, so what is still needed is a number of them, lowest ids first.
    ulong each = by_mass ? mass_at(logits, logit_of(cut.key)) : 1ul;
    ulong wanted = (need + each - 1ul) / each;
    cut.id = 0xffffffffu;
    if (wanted * each < shared.found->inside) {
        cut.id = 0;
        uint known_id = 0;
        for (uint digit = 0; digit < DIGITS; digit++) {
            clear_bins(shared, thread_index);
            uint shift = digit_shift(digit);
            uint mask = (1u << digit_bits(digit)) - 1u;
            FOR_TOKENS(i, shared, logits, thread_index) {
                if (key_of(logit_at(logits, i)) == cut.key && (i & known_id) == cut.id && kept(within, cut.key, i)) {
                    add_to_bin(shared, (i >> shift) & mask, 1ul);
                }
            }
            find_bin(shared, mask + 1u, false, wanted, thread_index);
            wanted -= shared.found->before;
            cut.id |= shared.found->value << shift;
            known_id |= mask << shift;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return cut;
}

// The sum of a number of every thread, the same in each.
inline ulong sum_of_all(Shared shared, ulong mine, uint thread_index) {
    clear_bins(shared, thread_index);
    add_to_bin(shared, 0, mine & 0x3fffffffffful);
    add_to_bin(shared, 1, mine >> 42);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong sum = bin_sum(shared, 0) + (bin_sum(shared, 1) << 42);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return sum;
}

// Mass of a token that may be drawn; 0 for all others.
inline ulong drawn_mass(Logits logits, Cut within, ulong least, uint i) {
    float logit = logit_at(logits, i);
    ulong mass = mass_at(logits, logit);
    return mass >= least && kept(within, key_of(logit), i) ? mass : 0ul;
}

// The mass of all tokens that are kept.
inline ulong total_mass(Shared shared, Logits logits, Cut within, ulong least, uint thread_index) {
    ulong mine = 0;
    FOR_TOKENS(i, shared, logits, thread_index) {
        mine += drawn_mass(logits, within, least, i);
    }
    return sum_of_all(shared, mine, thread_index);
}

// The token that holds a random point when the kept tokens lie side by side in ascending id, each as wide as its mass.
// The point's place is found by the ids' digits, as a cut is.
inline uint drawn_token(Shared shared, Logits logits, Cut within, ulong least, ulong random, uint thread_index) {
    ulong total = total_mass(shared, logits, within, least, thread_index);
    ulong need = multiply_high(random, total) + 1ul;
    uint token = 0;
    uint known = 0;
    for (uint digit = 0; digit < DIGITS; digit++) {
        clear_bins(shared, thread_index);
        uint shift = digit_shift(digit);
        uint mask = (1u << digit_bits(digit)) - 1u;
        FOR_TOKENS(i, shared, logits, thread_index) {
            ulong mass = (i & known) == token ? drawn_mass(logits, within, least, i) : 0ul;
            if (mass != 0) {
                add_to_bin(shared, (i >> shift) & mask, mass);
            }
        }
        find_bin(shared, mask + 1u, false, need, thread_index);
        need -= shared.found->before;
        token |= shared.found->value << shift;
        known |= mask << shift;
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    return token;
}

// The key of the `rank`-th largest of the threads' keys, of which 0 is none. There are so many. Found bit by bit, by how
// many keys are no smaller.
inline uint ranked_key(Shared shared, uint mine, uint rank, uint thread_index) {
    threadgroup uint* counts = (threadgroup uint*)shared.partial;
    uint key = 0;
    for (uint bit = 32; bit-- > 0;) {
        uint larger = key | 1u << bit;
        uint count = simd_sum(mine >= larger ? 1u : 0u);
        // Two sets of counts take turns: who writes the next has read the last.
        threadgroup uint* set = counts + bit % 2 * SIMD_WIDTH;
        if (thread_index % SIMD_WIDTH == 0) {
            set[thread_index / SIMD_WIDTH] = count;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // As many SIMD-groups as a SIMD-group has lanes.
        key = simd_sum(set[thread_index % SIMD_WIDTH]) >= rank ? larger : key;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return key;
}

// A key that no smaller one of the `top_k` largest tokens has, or 0. A stretch's largest logit is `most`: the `top_k` largest
// of these are as many tokens.
inline uint least_key(Shared shared, Logits logits, float most, uint top_k, uint thread_index) {
    uint stretches = (logits.vocab + SCAN_STRETCH - 1) / SCAN_STRETCH;
    uint mine = thread_index < stretches ? max(key_of(most), 1u) : 0u;
    return top_k != 0 && top_k < stretches ? ranked_key(shared, mine, top_k, thread_index) : 0u;
}

// Lists the stretches that hold a token which may be drawn, none of which has a key below `least`.
inline uint list_stretches(Shared shared, Logits logits, float most, uint least, uint thread_index) {
    uint stretches = (logits.vocab + SCAN_STRETCH - 1) / SCAN_STRETCH;
    clear_bins(shared, thread_index);
    if (thread_index < stretches && max(key_of(most), 1u) >= least && mass_at(logits, most) != 0) {
        uint at = atomic_fetch_add_explicit(&shared.bins[0], 1u, memory_order_relaxed);
        shared.stretches[at] = ushort(thread_index);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint listed = atomic_load_explicit(&shared.bins[0], memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return listed;
}

// Whether steps 4 to 8 were done the short way, for a small top_k: the few tokens that may be among the largest are listed,
// one for each thread, and compared with each other. If there are more of them than threads, it is not done.
inline bool sampled_of_few(
    Shared shared, Logits logits, uint top_k, uint least, ulong random, thread uint& token, uint thread_index) {
    threadgroup atomic_uint* keys = shared.bins + BINS;
    threadgroup atomic_uint* ids = keys + BINS;
    if (thread_index == 0) {
        atomic_store_explicit(&shared.bins[0], 0u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    FOR_TOKENS(i, shared, logits, thread_index) {
        float logit = logit_at(logits, i);
        if (key_of(logit) >= least && mass_at(logits, logit) != 0) {
            uint at = atomic_fetch_add_explicit(&shared.bins[0], 1u, memory_order_relaxed);
            if (at < SAMPLE_THREADS) {
                atomic_store_explicit(&keys[at], key_of(logit), memory_order_relaxed);
                atomic_store_explicit(&ids[at], i, memory_order_relaxed);
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint candidates = atomic_load_explicit(&shared.bins[0], memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (candidates > SAMPLE_THREADS) {
        return false;
    }
    uint kept = min(candidates, top_k);
    if (thread_index < candidates) {
        uint key = atomic_load_explicit(&keys[thread_index], memory_order_relaxed);
        uint id = atomic_load_explicit(&ids[thread_index], memory_order_relaxed);
        uint rank = 0;
        for (uint j = 0; j < candidates; j++) {
            uint other = atomic_load_explicit(&keys[j], memory_order_relaxed);
            uint other_id = atomic_load_explicit(&ids[j], memory_order_relaxed);
            rank += other > key || (other == key && other_id < id) ? 1u : 0u;
        }
        if (rank < kept) {
            shared.few[rank].mass = mass_at(logits, logit_of(key));
            shared.few[rank].id = id;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // From here on a thread has the token of its rank.
    ulong mass = 0;
    ulong before = 0;
    ulong total = 0;
    if (thread_index < kept) {
        mass = shared.few[thread_index].mass;
        for (uint j = 0; j < kept; j++) {
            before += j < thread_index ? shared.few[j].mass : 0ul;
            total += shared.few[j].mass;
        }
        float top_p = logits.params->top_p;
        float min_p = logits.params->min_p;
        bool inside = top_p >= 1.0f || before < share_of(total, top_p);
        mass = inside && mass >= (min_p > 0.0f ? mass_of(min_p) : 0ul) ? mass : 0ul;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < kept) {
        shared.few[thread_index].mass = mass;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (mass != 0) {
        uint id = shared.few[thread_index].id;
        before = total = 0;
        for (uint j = 0; j < kept; j++) {
            before += shared.few[j].id < id ? shared.few[j].mass : 0ul;
            total += shared.few[j].mass;
        }
        ulong need = multiply_high(random, total) + 1ul;
        if (before < need && before + mass >= need) {
            shared.found->value = id;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    token = shared.found->value;
    return true;
}

// Steps 4 to 8.
inline uint sampled(Shared shared, Logits logits, float most, uint draw, uint thread_index) {
    Cut within;
    within.key = 0;
    within.id = 0xffffffffu;
    uint top_k = logits.params->top_k;
    uint least_kept = least_key(shared, logits, most, top_k, thread_index);
    shared.listed = list_stretches(shared, logits, most, least_kept, thread_index);
    ulong random = philox_draw(uint2(logits.params->seed[0], logits.params->seed[1]), draw);
    uint token = 0;
    if (top_k != 0 && top_k <= FEW
        && sampled_of_few(shared, logits, top_k, least_kept, random, token, thread_index)) {
        return token;
    }
    if (top_k != 0 && top_k < logits.vocab) {
        ulong mine = 0;
        FOR_TOKENS(i, shared, logits, thread_index) {
            mine += mass_at(logits, logit_at(logits, i)) != 0 ? 1ul : 0ul;
        }
        if (sum_of_all(shared, mine, thread_index) >= ulong(top_k)) {
            within = find_cut(shared, logits, within, false, ulong(top_k), thread_index);
        }
    }
    float top_p = logits.params->top_p;
    if (top_p < 1.0f) {
        ulong need = share_of(total_mass(shared, logits, within, 0ul, thread_index), top_p);
        within = find_cut(shared, logits, within, true, need, thread_index);
    }
    float min_p = logits.params->min_p;
    ulong least = min_p > 0.0f ? mass_of(min_p) : 0ul;
    return drawn_token(shared, logits, within, least, random, thread_index);
}

// What a look at all raw and all adjusted logits tells.
struct Extremes {
    float raw_max;
    float raw_min;
    float max;
    uint token;
    // The lowest id whose logit is not finite.
    uint broken;
};

inline Extremes no_extremes() {
    Extremes none;
    none.raw_max = -INFINITY;
    none.raw_min = INFINITY;
    none.max = -INFINITY;
    none.token = 0xffffffffu;
    none.broken = 0xffffffffu;
    return none;
}

// The better of two arg-maxes is the larger logit, or the lower id.
inline Extremes merged(Extremes a, Extremes b) {
    bool second = b.max > a.max || (b.max == a.max && b.token < a.token);
    Extremes m;
    m.raw_max = max(a.raw_max, b.raw_max);
    m.raw_min = min(a.raw_min, b.raw_min);
    m.max = second ? b.max : a.max;
    m.token = second ? b.token : a.token;
    m.broken = min(a.broken, b.broken);
    return m;
}

inline Extremes merged_in_simdgroup(Extremes mine) {
    #pragma clang loop unroll(full)
    for (uint mask = 1; mask < SIMD_WIDTH; mask *= 2) {
        Extremes other;
        other.raw_max = simd_shuffle_xor(mine.raw_max, ushort(mask));
        other.raw_min = simd_shuffle_xor(mine.raw_min, ushort(mask));
        other.max = simd_shuffle_xor(mine.max, ushort(mask));
        other.token = simd_shuffle_xor(mine.token, ushort(mask));
        other.broken = simd_shuffle_xor(mine.broken, ushort(mask));
        mine = merged(mine, other);
    }
    return mine;
}

// Raw logits of a stretch that a lane reads.
#define LANE_LOGITS (SCAN_STRETCH / SIMD_WIDTH)
#define SCAN_SIMDGROUPS (SCAN_THREADS / SIMD_WIDTH)

// A SIMD-group looks at a stretch of the logits, and leaves what it tells, with the sum of exp(logit - largest) over its
// raw logits.
kernel void sample_scan(
    device const uint* params [[buffer(0)]],
    device const float* logits [[buffer(1)]],
    device const float* bias [[buffer(2)]],
    device const uint* counts [[buffer(3)]],
    device uint* scans [[buffer(4)]],
    device float* sums [[buffer(5)]],
    constant SampleScanArgs& args [[buffer(6)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    Logits all;
    all.params = (device const SampleParams*)params;
    all.raw = logits;
    all.bias = bias;
    all.counts = counts;
    all.vocab = min(all.params->vocab, args.vocab);
    uint stretch = group.x * SCAN_SIMDGROUPS + simdgroup;
    uint first = stretch * SCAN_STRETCH + lane;
    if (stretch * SCAN_STRETCH >= all.vocab) {
        return;
    }
    float raw[LANE_LOGITS];
    #pragma clang loop unroll(full)
    for (uint j = 0; j < LANE_LOGITS; j++) {
        raw[j] = logits[min(first + j * SIMD_WIDTH, all.vocab - 1)];
    }
    Extremes mine = no_extremes();
    #pragma clang loop unroll(full)
    for (uint j = 0; j < LANE_LOGITS; j++) {
        uint i = first + j * SIMD_WIDTH;
        if (i < all.vocab) {
            Extremes one;
            one.raw_max = raw[j];
            one.raw_min = raw[j];
            one.max = adjusted(all, i, raw[j]);
            one.token = i;
            // False for NaN too.
            one.broken = !(raw[j] < INFINITY) ? i : 0xffffffffu;
            mine = merged(mine, one);
        }
    }
    mine = merged_in_simdgroup(mine);
    float sum = 0.0f;
    #pragma clang loop unroll(full)
    for (uint j = 0; j < LANE_LOGITS; j++) {
        bool inside = first + j * SIMD_WIDTH < all.vocab && mine.raw_max > -INFINITY;
        sum += inside ? exp_nonpositive(raw[j] - mine.raw_max) : 0.0f;
    }
    sum = simd_sum(sum);
    if (lane == 0) {
        device uint* out = scans + stretch * SCAN_WORDS;
        out[0] = as_type<uint>(mine.raw_max);
        out[1] = as_type<uint>(mine.raw_min);
        out[2] = as_type<uint>(mine.max);
        out[3] = mine.token;
        out[4] = mine.broken;
        sums[stretch] = sum;
    }
}

inline uint status_of(Extremes all, uint vocab) {
    return all.broken != 0xffffffffu                                ? SAMPLE_NOT_FINITE
        : all.raw_max == -INFINITY                        ? SAMPLE_ALL_MASKED
        : vocab > 1 && all.raw_max == all.raw_min         ? SAMPLE_FLAT
                                                          : 0u;
}

inline Extremes merged_in_threadgroup(Extremes mine, threadgroup Extremes* slots, uint simdgroup, uint lane) {
    mine = merged_in_simdgroup(mine);
    if (lane == 0) {
        slots[simdgroup] = mine;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // As many SIMD-groups as a SIMD-group has lanes.
    return merged_in_simdgroup(slots[lane]);
}

// One threadgroup of so many threads, which a compiler left alone may give too many registers to be allowed.
[[max_total_threads_per_threadgroup(SAMPLE_THREADS)]]
kernel void sample(
    device const uint* params [[buffer(0)]],
    device const float* logits [[buffer(1)]],
    device const float* bias [[buffer(2)]],
    device uint* counts [[buffer(3)]],
    device uint* step [[buffer(4)]],
    device uint* token [[buffer(5)]],
    device uint* draws [[buffer(6)]],
    device uint* results [[buffer(7)]],
    device float* logprobs [[buffer(8)]],
    device const uint* scans [[buffer(9)]],
    device const float* sums [[buffer(10)]],
    constant SampleArgs& args [[buffer(11)]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup atomic_uint bins[LIMBS * BINS];
    threadgroup ulong partial[SIMD_WIDTH];
    threadgroup Found found[1];
    threadgroup Extremes slots[SIMD_WIDTH];
    threadgroup float shares[SIMD_WIDTH];
    threadgroup ushort stretches[SAMPLE_THREADS];
    threadgroup Few few[FEW];
    Shared shared;
    shared.few = few;
    shared.bins = bins;
    shared.partial = partial;
    shared.found = found;
    shared.stretches = stretches;
    shared.listed = 0;
    Logits all;
    all.params = (device const SampleParams*)params;
    all.raw = logits;
    all.bias = bias;
    all.counts = counts;
    all.vocab = min(all.params->vocab, args.vocab);
    Extremes own = no_extremes();
    float own_sum = 0.0f;
    if (thread_index * SCAN_STRETCH < all.vocab) {
        device const uint* scan = scans + thread_index * SCAN_WORDS;
        own.raw_max = as_type<float>(scan[0]);
        own.raw_min = as_type<float>(scan[1]);
        own.max = as_type<float>(scan[2]);
        own.token = scan[3];
        own.broken = scan[4];
        own_sum = sums[thread_index];
    }
    Extremes extremes = merged_in_threadgroup(own, slots, simdgroup, lane);
    all.max = extremes.max;
    uint draw = draws[0];
    uint status = status_of(extremes, all.vocab);
    uint chosen = status == 0 ? extremes.token : 0u;
    if (status == 0 && all.params->inverse_temperature != 0.0f) {
        chosen = sampled(shared, all, own.max, draw, thread_index);
    }
    float share = own_sum > 0.0f ? own_sum * exp_nonpositive(own.raw_max - extremes.raw_max) : 0.0f;
    float sum = threadgroup_sum(share, shares, simdgroup, SAMPLE_THREADS / SIMD_WIDTH, lane);
    // Everybody has read what changes now.
    threadgroup_barrier(mem_flags::mem_device);
    if (thread_index == 0) {
        uint slot = draw % 2;
        results[slot * RESULT_WORDS] = chosen;
        results[slot * RESULT_WORDS + 1] = status;
        uint broken = extremes.broken;
        float told = broken != 0xffffffffu ? logits[broken] : extremes.raw_max;
        results[slot * RESULT_WORDS + 2] = as_type<uint>(told);
        results[slot * RESULT_WORDS + 3] = broken;
        logprobs[slot] = status == 0 ? (logits[chosen] - extremes.raw_max) - precise::log(sum) : 0.0f;
        counts[chosen] += 1;
        token[0] = chosen;
        step[0] += 1;
        step[1] = 1 - step[1];
        draws[0] = draw + 1;
    }
}
